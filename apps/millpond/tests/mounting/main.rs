//! Mount points on paths that another user owns: real mounts by a real daemon.
//!
//! Needs root and /dev/fuse; skipped otherwise.

mod busy;
mod created;
mod durable;
mod places;
mod replaced;
#[path = "../support/shell.rs"]
mod shell;
mod snapshots;

use shell::Shell;

struct Stage {
    shell: Shell,
}

impl std::ops::Deref for Stage {
    type Target = Shell;
    fn deref(&self) -> &Shell {
        &self.shell
    }
}

impl Stage {
    /// Returns `None`, with a message, if the test cannot run.
    fn new() -> Option<Self> {
        let shell = Shell::new()?;
        shell.image("disk", 128);
        Some(Self { shell })
    }

    /// Runs a command that must fail and returns its error.
    fn refused(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(!output.status.success(), "{line}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// The mount points below the test directory, with their options.
    fn mounts(&self) -> Vec<String> {
        let here = self.folder.path().to_string_lossy().into_owned();
        let table = self.done("cat /proc/self/mounts");
        let lines = table.lines().map(|line| line.split(' '));
        let own = lines.filter_map(|mut words| {
            let at = words.nth(1)?.strip_prefix(&here)?.to_owned();
            Some(format!("{at} {}", words.nth(1)?))
        });
        own.collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.run("zpool export -af; kill -TERM $(cat HERE/state/lock)");
        self.run("grep -o \"HERE[^ ]*\" /proc/self/mounts | sort -r | xargs -r -n1 umount -l");
    }
}

/// Prefix that runs a command as an ordinary user.
const USER: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";

#[test]
fn a_users_symlink_at_a_mount_point_is_not_followed() {
    let Some(stage) = Stage::new() else { return };
    stage.done("mkdir HERE/home HERE/victim && chown 65534 HERE/home && echo kept > HERE/victim/f");
    stage.done("zpool create -m none tank HERE/disk");
    stage.done("zfs create -o mountpoint=HERE/home/mnt tank/a && zfs unmount tank/a");
    stage.done(&format!(
        "{USER} rmdir HERE/home/mnt && {USER} ln -s HERE/victim HERE/home/mnt"
    ));
    let message = stage.refused("zfs mount tank/a");
    assert!(message.contains("user 65534"), "{message}");
    // A link further up, with the mount point to be created below it.
    stage.done("zfs set canmount=noauto tank/a && zfs set mountpoint=HERE/home/mnt/new tank/a");
    let message = stage.refused("zfs mount tank/a");
    assert!(message.contains("user 65534"), "{message}");
    assert_eq!(stage.mounts(), Vec::<String>::new());
    assert_eq!(stage.done("ls HERE/victim").trim(), "f");
    // A symbolic link owned by root in a directory owned by root is followed.
    stage.done("ln -s victim HERE/alias && zfs set mountpoint=HERE/alias/new tank/a");
    stage.done("zfs mount tank/a && echo x > HERE/victim/new/file && zfs unmount tank/a");
    assert_eq!(stage.done("ls HERE/victim/new").trim(), "");
}

#[test]
fn another_root_is_not_left() {
    let Some(stage) = Stage::new() else { return };
    stage.done("mkdir -p HERE/deep/alt HERE/victim");
    stage.done("zpool create -R HERE/deep/alt -m /data tank HERE/disk");
    assert_eq!(stage.mounts().len(), 1);
    // A symbolic link inside the pool, as an untrusted pool may contain it.
    stage.done("ln -s HERE/victim HERE/deep/alt/data/sub && zfs create tank/sub");
    stage.done(
        "ln -s ../../../../../../../../HERE/victim HERE/deep/alt/data/up && zfs create tank/up",
    );
    let mounts = stage.mounts();
    assert_eq!(mounts.len(), 3, "{mounts:?}");
    for mount in &mounts {
        assert!(mount.starts_with("/deep/alt/"), "{mount}");
    }
    let message = stage.run("zfs create -o mountpoint=/x/../../victim tank/out");
    let message = String::from_utf8_lossy(&message.stderr).into_owned();
    assert!(message.contains("'..'"), "{message}");
    assert_eq!(stage.mounts().len(), 3);
    assert_eq!(stage.done("ls HERE/victim").trim(), "");
    stage.done("zpool export tank");
    assert_eq!(stage.mounts(), Vec::<String>::new());
}

#[test]
fn unmount_follows_the_mount_not_its_path() {
    let Some(stage) = Stage::new() else { return };
    stage.done("mkdir -p HERE/home HERE/other/mnt && chown 65534 HERE/home");
    stage.done(&format!("{USER} mkdir HERE/home/p"));
    stage.done("zpool create -m none tank HERE/disk");
    stage.done("zfs create -o mountpoint=HERE/home/p/mnt tank/a");
    stage.done("mount -t tmpfs other HERE/other/mnt");
    stage.done(&format!(
        "{USER} mv HERE/home/p HERE/home/q && {USER} ln -s HERE/other HERE/home/p"
    ));
    stage.done("zfs unmount tank/a");
    let mounts = stage.mounts();
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    assert!(mounts[0].starts_with("/other/mnt "), "{mounts:?}");
    stage.done("umount HERE/other/mnt");
}

#[test]
fn restricted_mounts_of_untrusted_pools_grant_no_privileges() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/mnt tank HERE/disk && zpool export tank");
    let import = |options: &str| {
        let output = stage.run(&format!("zpool import {options} -d HERE/disk tank"));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    // Our own pool in our own image: no warning.
    assert_eq!(import(""), "");
    stage.done("zpool export tank && chown 65534 HERE/disk");
    let message = import("");
    assert!(message.contains("belongs to user 65534"), "{message}");
    assert!(message.contains("-o nosuid,nodev"), "{message}");
    assert!(!stage.mounts()[0].contains("nosuid"));
    stage.done("zpool export tank");
    assert_eq!(import("-o nosuid,nodev"), "");
    assert!(
        stage.mounts()[0].contains("nosuid,nodev"),
        "{:?}",
        stage.mounts()
    );
}

#[test]
fn access_control_lists_count_as_soon_as_they_are_switched_on() {
    let Some(stage) = Stage::new() else { return };
    // All users may read except user 65534.
    stage.done("cat > HERE/shut <<'E'\nimport os, struct, sys\nlist = struct.pack('<I', 2)\nfor entry in (1, 6, -1), (2, 0, 65534), (4, 4, -1), (16, 4, -1), (32, 4, -1):\n    list += struct.pack('<HHI', entry[0], entry[1], entry[2] & 0xffffffff)\nos.setxattr(sys.argv[1], 'system.posix_acl_access', list)\nE");
    if !stage.run("python3 -c ''").status.success() {
        println!("needs python3; passed over");
        return;
    }
    stage.done("zpool create -m HERE/mnt tank HERE/disk && echo secret > HERE/mnt/file");
    stage.done("zfs set acltype=posix tank && python3 HERE/shut HERE/mnt/file");
    let read = format!("{USER} cat HERE/mnt/file");
    stage.refused(&read);
    stage.done("zfs set acltype=off tank");
    assert_eq!(stage.done(&read).trim(), "secret");
    let message = stage.refused("cd HERE/mnt && zfs set acltype=posix tank");
    assert!(message.contains("busy"), "{message}");
    assert_eq!(stage.done("zfs get -H -o value acltype tank").trim(), "off");
    stage.done("zfs set acltype=posix tank");
    stage.refused(&read);
}

#[test]
fn a_dead_mount_of_another_state_directory_is_cleared() {
    let Some(stage) = Stage::new() else { return };
    stage.done(
        "zpool create -m HERE/data tank HERE/disk && echo x > HERE/data/file && zpool sync tank",
    );
    stage.done(
        "process=$(cat HERE/state/lock); kill -KILL $process; \
         while kill -0 $process 2>/dev/null; do sleep 0.05; done; ! ls HERE/data 2>/dev/null",
    );
    // Another daemon does not know the mounts of the killed daemon.
    stage.done("export MILLPOND_DIR=HERE/other; zpool import -f -d HERE/disk tank");
    assert_eq!(stage.done("cat HERE/data/file"), "x\n");
    stage.done(
        "export MILLPOND_DIR=HERE/other; zpool export tank; kill -TERM $(cat HERE/other/lock)",
    );
}

#[test]
fn a_user_who_can_have_no_daemon_sees_no_pools() {
    let Some(stage) = Stage::new() else { return };
    // The folder of the program may be closed to others.
    stage.done("mkdir -m 700 HERE/closed && mkdir HERE/bin");
    stage.done("cp \"$(readlink -f HERE/millpond)\" HERE/bin/millpond");
    stage.done("ln -s millpond HERE/bin/zpool && ln -s millpond HERE/bin/zfs");
    let user = format!("{USER} env MILLPOND_DIR=HERE/closed/own PATH=HERE/bin:$PATH");
    let answers = [
        ("zpool list", "no pools available"),
        ("zpool status", "no pools available"),
        ("zfs list", "no datasets available"),
    ];
    for (line, words) in answers {
        let text = stage.done(&format!("{user} {line} 2>&1"));
        assert_eq!(text.trim(), words, "{line}");
    }
    let message = stage.refused(&format!("{user} zpool create tank HERE/disk"));
    let reason = "/closed/own: Permission denied; set MILLPOND_DIR to a folder of yours";
    assert!(message.contains(reason), "{message}");
}

/// Scripts name datasets by where they are mounted, and put `-d` and `-r` in any order.
#[test]
fn datasets_are_listed_by_path_depth_and_word() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/tank tank HERE/disk");
    stage.done("zfs create tank/a; zfs create tank/a/b; zfs snapshot -r tank@s; zfs bookmark tank@s tank#m");
    let listed = |options: &str| {
        let text = stage.done(&format!("zfs list -H -o name {options}"));
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(listed("HERE/tank/a"), ["tank/a"]);
    assert_eq!(listed("-r HERE/tank/a"), ["tank/a", "tank/a/b"]);
    for verb in ["userspace", "groupspace", "get -H all"] {
        let by_path = stage.done(&format!("zfs {verb} HERE/tank/a"));
        assert_eq!(by_path, stage.done(&format!("zfs {verb} tank/a")));
        assert!(!by_path.is_empty(), "{verb}");
    }
    let refused = stage.refused("zfs userspace /proc");
    assert!(refused.ends_with("not a ZFS filesystem\n"), "{refused}");
    let refused = stage.refused("zfs list /proc");
    assert!(refused.ends_with("not a ZFS filesystem\n"), "{refused}");
    let refused = stage.refused("zfs list HERE/nothing");
    assert!(
        refused.ends_with("No such file or directory\n"),
        "{refused}"
    );
    for options in ["-d 1 -r tank", "-r -d 1 tank"] {
        assert_eq!(listed(options), ["tank", "tank/a"], "{options}");
    }
    // Without a depth it has its own snapshots, with depth 0 none.
    assert_eq!(listed("-t snapshot tank"), ["tank@s"]);
    assert!(listed("-d 0 -t snapshot tank").is_empty());
    // Words are sorted as words: fletcher2, off, on.
    stage.done("zfs set checksum=fletcher2 tank/a/b; zfs set checksum=off tank/a");
    let sorted = ["tank/a/b", "tank/a", "tank"];
    assert_eq!(listed("-r -s checksum tank"), sorted);
    let bookmark = stage.done("zfs get -r -H -o name creation 'tank#m'");
    assert_eq!(bookmark, "tank#m\n");
    let ancestors = stage.done("zfs create -nP -p tank/c");
    assert_eq!(ancestors, "create_ancestors\ttank/c\ncreate\ttank/c\n");
    stage.done("zpool reguid -g -1 tank");
    assert_eq!(
        stage.done("zpool get -Ho value guid tank").trim(),
        u64::MAX.to_string()
    );
    let refused = stage.refused("zpool set 'a:B,c=1' tank");
    assert!(refused.contains("invalid property 'a:B,c'"), "{refused}");
}

#[test]
fn canmount_noauto_leaves_the_mount_as_it_is() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/tank tank HERE/disk; zfs create tank/a");
    // In use, so it could not be unmounted.
    stage.done("cd HERE/tank/a && zfs set canmount=noauto tank/a && touch file");
    assert_eq!(stage.mounts().len(), 2);
    stage.done("zfs unmount tank/a; zfs set canmount=on tank/a; zfs unmount tank/a");
    stage.done("zfs set canmount=noauto tank/a; zfs mount -a");
    assert_eq!(stage.mounts().len(), 1);
}

#[test]
fn children_are_mounted_when_their_parent_inherits_a_mount_point() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/tank tank HERE/disk");
    stage.done("zfs create -o mountpoint=none tank/a; zfs create tank/a/b; zfs create tank/a/b/c");
    assert_eq!(stage.mounts().len(), 1);
    stage.done("zfs inherit mountpoint tank/a");
    let mounts = stage.mounts();
    assert_eq!(mounts.len(), 4, "{mounts:?}");
}

#[test]
fn a_mount_that_another_namespace_has_too_keeps_nothing_busy() {
    let Some(stage) = Stage::new() else { return };
    stage.done(
        "zpool create -m HERE/tank tank HERE/disk; zfs create tank/a; echo text > HERE/tank/a/file",
    );
    // As a container does: its mounts are copies of those that were there when it started.
    stage.done("unshare -m sh -c 'exec 3< HERE/tank/a/file; echo in > HERE/inside; while [ ! -e HERE/go ]; do sleep 0.1; done; cat <&3 > HERE/seen 2>&1; echo > HERE/out' > /dev/null 2>&1 &");
    stage.done("while [ ! -s HERE/inside ]; do sleep 0.1; done");
    stage.done("zfs unmount tank/a && zfs destroy tank/a");
    stage.done("zpool export tank");
    stage.done("touch HERE/go; while [ ! -e HERE/out ]; do sleep 0.1; done");
    let seen = stage.done("cat HERE/seen");
    assert!(
        seen.contains("not connected") || seen.contains("abort"),
        "{seen}"
    );
    stage.done("zpool import -d HERE/disk tank");
}

#[test]
fn a_file_comes_back_from_a_state_of_a_pool_in_use() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/tank tank HERE/disk; zfs create tank/a");
    stage.done(
        "head -c 3000000 /dev/urandom > HERE/kept; cp HERE/kept HERE/tank/a/file; zpool sync tank",
    );
    stage.done("rm HERE/tank/a/file; zpool sync tank");
    for number in 0..10 {
        stage.done(&format!(
            "echo {number} > HERE/tank/a/{number}; zpool sync tank"
        ));
    }
    let states = stage.done("millpond -d HERE/disk history tank");
    let whole = states.lines().filter(|line| line.contains("whole")).count();
    assert!(whole > 10, "{states}");
    let refused = stage.refused("millpond -d HERE/disk undelete tank/a:/file");
    assert!(refused.contains("in use by another program"), "{refused}");
    stage.done("millpond -d HERE/disk undelete -o HERE/tank/a/file tank/a:/file && cmp HERE/kept HERE/tank/a/file");
}

#[test]
fn files_are_rewritten_with_the_compression_of_today() {
    let Some(stage) = Stage::new() else { return };
    stage.done(
        "zpool create -o feature@physical_rewrite=enabled -O compression=off -m HERE/mnt tank HERE/disk",
    );
    stage.done(
        "mkdir HERE/mnt/sub && od -An -v -tx1 /dev/urandom | head -c 8000000 > HERE/mnt/file",
    );
    stage.done("cat HERE/mnt/file > HERE/mnt/sub/inner && ln -s file HERE/mnt/link");
    stage
        .done("cp HERE/mnt/file HERE/true && zfs snapshot tank@1 && zfs set compression=zstd tank");
    let referenced = || -> u64 {
        stage.done("zpool sync tank");
        let bytes = stage.done("zfs list -Hpo referenced tank");
        bytes.trim().parse().unwrap()
    };
    let before = referenced();
    // Links are not followed, and directories need `-r`.
    let shown = stage.done("zfs rewrite -v HERE/mnt/file HERE/mnt/sub HERE/mnt/link");
    assert_eq!(shown, stage.done("echo HERE/mnt/file"));
    let one = referenced();
    assert!(one + 3_000_000 < before, "{before} {one}");
    let shown = stage.done("zfs rewrite -P -rvx HERE/mnt | sort");
    assert_eq!(
        shown,
        stage.done("echo HERE/mnt/file && echo HERE/mnt/sub/inner")
    );
    let both = referenced();
    assert!(both + 3_000_000 < one, "{one} {both}");
    stage.done("cmp HERE/mnt/file HERE/true && cmp HERE/mnt/sub/inner HERE/true");
    // The file in the directory has the births of before: its data is not sent again.
    stage.done("zfs snapshot tank@2");
    let sent = stage.done("zfs send -i @1 tank@2 | wc -c");
    let sent: u64 = sent.trim().parse().unwrap();
    assert!((8_000_000..8_500_000).contains(&sent), "{sent}");
    let feature = stage.done("zpool get -Ho value feature@physical_rewrite tank");
    assert_eq!(feature.trim(), "active");
    // Refusals have the status of the error.
    let refused = |line: &str| {
        let done = stage.run(line);
        let words = String::from_utf8_lossy(&done.stderr).trim_end().to_owned();
        (words, done.status.code())
    };
    let here = stage.done("echo HERE").trim().to_owned();
    assert_eq!(
        refused("zfs rewrite HERE/none"),
        (
            format!("failed to stat {here}/none: No such file or directory"),
            Some(2)
        )
    );
    assert_eq!(
        refused("zfs rewrite HERE/true"),
        (
            format!("failed to rewrite {here}/true: Inappropriate ioctl for device"),
            Some(25)
        )
    );
    let (words, status) = refused("zfs rewrite");
    assert!(words.starts_with("usage:\n\trewrite [-Prvx]"), "{words}");
    assert_eq!(status, Some(2));
    stage.done("zpool export tank");
}

#[test]
fn mount_zfs_mounts_legacy_file_systems_and_snapshots() {
    let Some(stage) = Stage::new() else { return };
    stage.done("mkdir HERE/x HERE/y && zpool create -m none tank HERE/disk");
    stage.done("zfs create -o mountpoint=legacy tank/l && zfs create -o mountpoint=HERE/a tank/a");
    stage.done("echo kept > HERE/a/file && zfs snapshot tank/a@s && echo new > HERE/a/file");
    let refused = |line: &str| {
        let done = stage.run(line);
        let words = String::from_utf8_lossy(&done.stderr).trim_end().to_owned();
        (words, done.status.code().unwrap())
    };
    assert_eq!(
        refused("mount.zfs tank/a HERE/x"),
        (
            "filesystem 'tank/a' cannot be mounted using 'mount'.\n\
             Use 'zfs set mountpoint=legacy' or 'zfs mount tank/a'.\n\
             See zfs(8) for more information."
                .to_owned(),
            1
        )
    );
    assert_eq!(
        refused("mount.zfs tank/none HERE/x"),
        (
            "filesystem 'tank/none' cannot be mounted, unable to open the dataset".to_owned(),
            1
        )
    );
    let bad = "filesystem 'tank/l' cannot be mounted due to invalid option 'abc'.\n\
               Use the '-s' option to ignore the bad mount option.";
    assert_eq!(
        refused("mount.zfs -o abc tank/l HERE/x"),
        (bad.to_owned(), 1)
    );
    assert_eq!(refused("mount.zfs tank/l HERE/none").1, 2);
    // A device stands for the root file system of its pool.
    let of_device = refused("mount.zfs HERE/disk HERE/x").0;
    assert!(
        of_device.starts_with("filesystem 'tank' cannot be mounted using 'mount'.\n"),
        "{of_device}"
    );
    let other = refused("mount.zfs HERE/x HERE/y").0;
    assert!(other.ends_with(", unable to open the dataset"), "{other}");
    let word = "cannot mount 'tank/a': Invalid argument";
    stage.done("zfs unmount tank/a");
    assert_eq!(refused("zfs mount -o word tank/a"), (word.to_owned(), 1));
    stage.done("mount.zfs -f tank/l HERE/x");
    assert_eq!(stage.mounts(), Vec::<String>::new());
    // As mount(8) calls it in a directory, and with an option for others.
    stage.done(
        "cd HERE && mount.zfs HERE/tank/l HERE/x -o rw,x-systemd.automount && echo 1 > HERE/x/one",
    );
    stage.done("mount.zfs -s -o abc,ro,zfsutil tank/a HERE/y");
    assert_eq!(stage.mounts().len(), 2);
    assert!(
        stage
            .refused("echo 2 > HERE/y/file")
            .contains("Read-only file system")
    );
    assert_eq!(refused("mount.zfs tank/l HERE/y").1, 2, "mounted already");
    // A mount at a place of its own stays there when a property mounts it again.
    stage.done("zfs set exec=off tank/l && cat HERE/x/one");
    stage.done("umount HERE/y && mount.zfs tank/a@s HERE/y");
    assert_eq!(stage.done("cat HERE/y/file").trim(), "kept");
    assert!(
        stage
            .refused("echo 2 > HERE/y/file")
            .contains("Read-only file system")
    );
    // In use, the snapshot is not destroyed; unused, its mount goes with it.
    let message = stage.refused("exec 7< HERE/y/file; zfs destroy tank/a@s");
    assert!(message.contains("busy"), "{message}");
    assert_eq!(stage.done("cat HERE/y/file").trim(), "kept");
    stage.done("zfs destroy tank/a@s");
    assert_eq!(stage.mounts().len(), 1);
    stage.done("zpool export tank");
    assert_eq!(stage.mounts(), Vec::<String>::new());
}

/// A mount under a name that the snapshot no longer has would stay when the snapshot is destroyed.
#[test]
fn a_mounted_snapshot_is_followed_when_its_name_changes() {
    let Some(stage) = Stage::new() else { return };
    stage.done("mkdir HERE/x HERE/y && zpool create -m none tank HERE/disk");
    stage.done("zfs create -o mountpoint=HERE/a tank/a && echo kept > HERE/a/file");
    stage.done("zfs snapshot -r tank@s && mount.zfs tank/a@s HERE/y");
    // It does not change, so it is sent while it is mounted.
    stage.done("zfs send tank/a@s > HERE/stream");
    stage.done("zfs rename -r tank@s tank@t");
    assert!(stage.done("zfs mount").contains("tank/a@t"));
    assert_eq!(stage.done("cat HERE/y/file").trim(), "kept");
    stage.done("zfs destroy tank/a@t");
    assert_eq!(stage.mounts().len(), 1);
    // A promoted clone takes the snapshot over. Another one stays where it is.
    stage.done("zfs snapshot tank/a@u && zfs clone -o canmount=off tank/a@u tank/c");
    stage.done("zfs snapshot tank/a@v && mount.zfs tank/a@u HERE/x && mount.zfs tank/a@v HERE/y");
    let message = stage.refused("exec 7< HERE/x/file; zfs promote tank/c");
    assert!(message.contains("busy"), "{message}");
    assert_eq!(stage.mounts().len(), 3);
    stage.done("zfs promote tank/c");
    let mounts = stage.done("zfs mount");
    assert!(
        mounts.contains("tank/a@v") && !mounts.contains("@u"),
        "{mounts}"
    );
    stage.done("zpool export tank");
}

#[test]
fn zfs_wait_ends_when_the_last_deleted_file_is_closed() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/mnt tank HERE/disk && zfs create tank/other");
    stage.done("zfs wait tank && zfs wait -t deleteq tank/other");
    stage.done("echo kept > HERE/mnt/file && zpool sync tank");
    // The command cannot end before the file is closed: what it prints comes last.
    let order = stage.done(
        "exec 7< HERE/mnt/file; rm HERE/mnt/file; \
         (exec 7<&-; zfs wait tank; echo waited) & \
         sleep 1; zfs wait tank/other; cat <&7; exec 7<&-; wait",
    );
    assert_eq!(order, "kept\nwaited\n");
    let message = stage.refused("zfs wait -t deleteq,bogus tank");
    assert!(
        message.starts_with("invalid activity 'bogus'\nusage:"),
        "{message}"
    );
    stage.done("zpool export tank");
}

#[test]
fn mount_options_replace_properties_until_the_next_mount() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/mnt tank HERE/disk && zfs set relatime=off tank");
    stage.done("echo words > HERE/mnt/file && zfs unmount tank");
    let accessed = || {
        stage.done("touch -a -d 2001-01-01 HERE/mnt/file && cat HERE/mnt/file && zpool sync tank");
        let year = stage.done("stat -c %x HERE/mnt/file");
        !year.starts_with("2001")
    };
    let shown = || {
        let words = "atime,exec,readonly,relatime,setuid";
        let rows = stage.done(&format!("zfs get -Ho value,source {words} tank"));
        rows.lines()
            .map(|row| row.replace('\t', " "))
            .collect::<Vec<_>>()
    };
    stage.done("zfs mount -o noatime,noexec tank");
    assert!(!accessed());
    let plain = [
        "on default",
        "on default",
        "off default",
        "off local",
        "on default",
    ];
    let mut other = plain;
    (other[0], other[1]) = ("off temporary", "off temporary");
    assert_eq!(shown(), other);
    // A property that changes meanwhile does not undo the option.
    stage.done("zfs set recordsize=64k tank");
    assert!(!accessed());
    stage.done("zfs unmount tank && zfs mount tank");
    assert!(accessed());
    assert_eq!(shown(), plain);
    stage.done("zfs unmount tank && zfs set atime=off tank && zfs mount -o atime,ro tank");
    assert_eq!(shown()[0], "on temporary");
    assert_eq!(shown()[2], "on temporary");
    stage.done("zpool export tank");
}
