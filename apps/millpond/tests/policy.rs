//! Programs of others that snapshot, prune and replicate with `zpool` and `zfs`, unchanged.
//!
//! `tools/oracle/fetch` gets them. Needs root and /dev/fuse too; a test whose program is absent says so. One runs after the
//! other, because syncoid names the sockets of its ssh connections by the second.

#[path = "support/shell.rs"]
mod shell;

use shell::Shell;
use std::path::PathBuf;
use std::process::{Command, Output};

const SSHD: &str = "/usr/sbin/sshd";
/// How much of a stream gets through before it is cut.
const CUT_BYTES: u64 = 3_000_000;

/// Two pools, `src` with files and `dst`, and the programs.
struct Stage {
    shell: Shell,
    programs: PathBuf,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.shell
            .run("zpool export -af; kill -TERM $(cat HERE/state/lock HERE/sshd.pid)");
    }
}

/// The folder of the programs.
fn programs() -> Option<PathBuf> {
    let tool = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tools/oracle/where");
    let printed = Command::new(tool).output().ok()?.stdout;
    let cache = String::from_utf8(printed).ok()?;
    Some(PathBuf::from(cache.trim()).join("policy"))
}

impl Stage {
    /// Returns `None`, with a message, if the test cannot run.
    fn new(program: &str) -> Option<Self> {
        let programs = programs().filter(|folder| folder.join(program).exists());
        let Some(programs) = programs else {
            println!("{program} is not at hand (tools/oracle/fetch gets it); passed over");
            return None;
        };
        let shell = Shell::new()?;
        for disk in ["one", "two"] {
            shell.image(disk, 256);
        }
        shell.done("zpool create -m HERE/src src HERE/one; zpool create -m HERE/dst dst HERE/two");
        shell.done("zfs create src/data; zfs create src/data/sub; zfs create dst/backup");
        shell.done(
            "cd HERE/src/data; head -c 6000000 /dev/urandom > large; mkdir dir; echo a > dir/a; \
             ln -s dir/a link; echo b > sub/b",
        );
        Some(Self { shell, programs })
    }

    /// Runs a line with the programs in the path.
    fn run(&self, line: &str) -> Output {
        let programs = self.programs.display();
        self.shell.run(&format!(
            "export PATH={programs}/usr/sbin:{programs}/usr/bin:{programs}/python/bin:$PATH \
             PERL5LIB={programs}/usr/share/perl5 PYTHONPATH={programs}/python \
             LD_LIBRARY_PATH={programs}/usr/lib/x86_64-linux-gnu; {line}"
        ))
    }

    /// A line for a program that looks for `/sbin/zfs`, or for files of its own below `/usr/share`: both are laid over
    /// what is there, in a mount namespace. The mounts of the pools are not held there.
    fn laid(&self, line: &str) -> String {
        let programs = self.programs.display();
        let lay = |folder: &str, over: &str| {
            format!("mount -t overlay overlay -o lowerdir={over}:{folder} {folder}")
        };
        let share = lay("/usr/share", &format!("{programs}/usr/share"));
        let sbin = lay("/usr/sbin", "HERE/sbin");
        let prepared = format!(
            "grep -o \"HERE/[^ ]*\" /proc/self/mounts | sort -r | xargs -r -n1 umount -l; mkdir -p HERE/sbin; \
             cp -P HERE/zfs HERE/zpool HERE/sbin/; {share} && {sbin} && {line}"
        );
        format!("unshare -m bash -c '{}'", prepared.replace('\'', "'\\''"))
    }

    /// Runs a line that must succeed, and returns all that it printed.
    fn done(&self, line: &str) -> String {
        let output = self.run(line);
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {text}");
        text
    }

    /// Starts an ssh server of its own at the loopback address, which ends with the test. Returns its port, or `None`,
    /// with a message, if there is no `sshd`.
    fn ssh_server(&self) -> Option<u16> {
        if !std::path::Path::new(SSHD).exists() {
            println!("{SSHD} is not at hand (Debian's openssh-server has it); passed over");
            return None;
        }
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("its number").port();
        drop(free);
        // The server listens a moment after it is started. It gives its sessions no more of its own environment.
        self.shell.done(&format!(
            "cd HERE; ssh-keygen -q -t ed25519 -N '' -f key; ssh-keygen -q -t ed25519 -N '' -f hostkey; mkdir -p /run/sshd; \
             printf '%s\\n' 'Port {port}' 'ListenAddress 127.0.0.1' 'HostKey HERE/hostkey' 'PidFile HERE/sshd.pid' \
             'AuthorizedKeysFile HERE/key.pub' 'StrictModes no' 'PermitRootLogin yes' 'UsePAM no' \
             \"SetEnv PATH=$PATH MILLPOND_DIR=$MILLPOND_DIR\" > sshd_config; {SSHD} -f HERE/sshd_config; \
             printf '%s\\n' 'Host far' 'HostName 127.0.0.1' 'User root' 'Port {port}' 'IdentityFile HERE/key' \
             'StrictHostKeyChecking no' 'UserKnownHostsFile /dev/null' 'LogLevel ERROR' > ssh_config; \
             for _ in $(seq 50); do ssh -F HERE/ssh_config far true 2>/dev/null && break; sleep 0.1; done; \
             ssh -F HERE/ssh_config far zfs list src"
        ));
        Some(port)
    }

    fn snapshots(&self, of: &str) -> Vec<String> {
        let list = format!("zfs list -Hro name -s creation -t snapshot {of}");
        let names = self.shell.done(&list);
        names.lines().map(str::to_owned).collect()
    }

    fn change_files(&self) {
        self.shell.done(
            "cd HERE/src/data; mv dir/a dir/c; echo more >> large; rm link; echo new > new; echo x >> sub/b",
        );
    }

    /// The copy of `src/data` has the same files.
    fn is_same(&self, copy: &str) {
        self.shell.done(&format!(
            "diff -r --no-dereference HERE/src/data HERE/{copy}"
        ));
    }
}

#[test]
#[ignore = "programs of others; make test-policy"]
fn sanoid_takes_and_prunes_snapshots() {
    let Some(stage) = Stage::new("usr/sbin/sanoid") else {
        return;
    };
    let policy = |hourly: u32| {
        format!(
            "mkdir -p HERE/etc; cp /usr/share/sanoid/sanoid.defaults.conf HERE/etc/; printf '[src/data]\\n\
             use_template=all\\nrecursive=yes\\n[template_all]\\nfrequently=0\\nhourly={hourly}\\ndaily=2\\nmonthly=1\\n\
             yearly=0\\nautosnap=yes\\nautoprune=yes\\n' > HERE/etc/sanoid.conf"
        )
    };
    let sanoid =
        "sanoid --configdir=HERE/etc --cache-dir=HERE/cache --run-dir=HERE/run --force-update";
    let run = |line: String| stage.done(&stage.laid(&line));
    run(format!("{} && {sanoid} --take-snapshots", policy(3)));
    let of = |kind: &str| {
        let all = stage.snapshots("src");
        all.iter().filter(|name| name.ends_with(kind)).count()
    };
    assert_eq!([of("_hourly"), of("_daily"), of("_monthly")], [2, 2, 2]);
    // Nothing is due.
    run(format!("{sanoid} --take-snapshots"));
    assert_eq!(stage.snapshots("src").len(), 6);
    run(format!(
        "sleep 2; {} && {sanoid} --prune-snapshots",
        policy(0)
    ));
    assert_eq!([of("_hourly"), of("_daily"), of("_monthly")], [0, 2, 2]);
}

#[test]
#[ignore = "programs of others; make test-policy"]
fn syncoid_replicates_and_resumes() {
    let Some(stage) = Stage::new("usr/sbin/syncoid") else {
        return;
    };
    // It names its snapshots by the second.
    let syncoid = "sleep 1; syncoid --no-privilege-elevation -r src/data dst/backup/data";
    stage.done(syncoid);
    stage.is_same("dst/backup/data");
    stage.change_files();
    stage.done(syncoid);
    stage.is_same("dst/backup/data");
    // One snapshot of each is kept.
    assert_eq!(stage.snapshots("dst").len(), 2);
    // An increment that was cut in the middle is resumed.
    stage
        .shell
        .done("head -c 5000000 /dev/urandom > HERE/src/data/second; zfs snapshot src/data@by-hand");
    let last = stage.snapshots("dst/backup/data").remove(0);
    let last = last
        .split_once('@')
        .map(|(_, name)| name.to_owned())
        .unwrap_or_default();
    let cut = format!(
        "zfs send -i @{last} src/data@by-hand | head -c 3000000 | zfs receive -s -F dst/backup/data"
    );
    assert!(!stage.shell.run(&cut).status.success());
    let token = "zfs get -Ho value receive_resume_token dst/backup/data";
    assert!(stage.shell.done(token).len() > 10);
    let text = stage.done(syncoid);
    assert!(
        text.contains("Resuming interrupted zfs send/receive"),
        "{text}"
    );
    assert_eq!(stage.shell.done(token), "-\n");
    stage.is_same("dst/backup/data");
    assert!(
        stage
            .snapshots("dst")
            .contains(&"dst/backup/data@by-hand".to_owned())
    );
}

#[test]
#[ignore = "programs of others; make test-policy"]
fn zfs_autobackup_replicates_with_properties_and_holds() {
    let Some(stage) = Stage::new("python/bin/zfs-autobackup") else {
        return;
    };
    // Reading a copy would change its times, and an increment is not received over changes.
    stage.shell.done("zfs set atime=off dst");
    stage
        .shell
        .done("zfs set autobackup:offsite=true compression=zstd src/data");
    // Nothing changed counts only what was committed.
    let backup = "zpool sync; python3 -m zfs_autobackup.ZfsAutobackup -v --keep-source 1 --keep-target 1 \
                  --allow-empty offsite dst/backup";
    stage.done(backup);
    stage.is_same("dst/backup/src/data");
    let first = stage.snapshots("dst/backup/src/data");
    stage.change_files();
    stage.done(&format!("sleep 1; {backup}"));
    stage.is_same("dst/backup/src/data");
    let second = stage.snapshots("dst/backup/src/data");
    assert_eq!([first.len(), second.len()], [2, 2], "{first:?} {second:?}");
    assert!(first.iter().all(|name| !second.contains(name)));
    let property = stage
        .shell
        .done("zfs get -Ho value,source compression dst/backup/src/data");
    assert_eq!(property, "zstd\treceived\n");
    // The newest snapshot of each is held at both ends.
    for name in second {
        let holds = stage.shell.done(&format!("zfs holds -H {name}"));
        assert!(holds.contains("zfs_autobackup:offsite"), "{name}: {holds}");
    }
}

/// Pushed to the other side and pulled from it.
#[test]
#[ignore = "programs of others; make test-policy"]
fn syncoid_replicates_over_ssh() {
    let Some(stage) = Stage::new("usr/sbin/syncoid") else {
        return;
    };
    let Some(port) = stage.ssh_server() else {
        return;
    };
    let syncoid = format!(
        "sleep 1; syncoid --no-privilege-elevation --sshport={port} --sshkey=HERE/key \
         --sshoption=StrictHostKeyChecking=no --sshoption=UserKnownHostsFile=/dev/null -r"
    );
    // Each prunes the snapshots with its own identifier.
    let push = format!("{syncoid} --identifier=push src/data root@127.0.0.1:dst/backup/pushed");
    let pull = format!("{syncoid} --identifier=pull root@127.0.0.1:src/data dst/backup/pulled");
    for _ in 0..2 {
        for (line, copy) in [(&push, "pushed"), (&pull, "pulled")] {
            stage.done(line);
            stage.is_same(&format!("dst/backup/{copy}"));
        }
        stage
            .shell
            .done("cd HERE/src/data; echo more >> large; echo x >> sub/b");
    }
}

/// Cut after a given number of bytes, first a full stream and then an increment, both pushed and pulled.
#[test]
#[ignore = "programs of others; make test-policy"]
fn syncoid_resumes_over_ssh() {
    let Some(stage) = Stage::new("usr/sbin/syncoid") else {
        return;
    };
    let Some(port) = stage.ssh_server() else {
        return;
    };
    let syncoid = format!(
        "sleep 1; syncoid --no-privilege-elevation --compress=none --sshport={port} --sshkey=HERE/key \
         --sshoption=StrictHostKeyChecking=no --sshoption=UserKnownHostsFile=/dev/null"
    );
    // Each prunes the snapshots with its own identifier.
    let push = format!("{syncoid} --identifier=push src/data root@127.0.0.1:dst/backup/pushed");
    let pull = format!("{syncoid} --identifier=pull root@127.0.0.1:src/data dst/backup/pulled");
    for _ in ["full", "increment"] {
        for (line, copy) in [(&push, "pushed"), (&pull, "pulled")] {
            let token = format!("zfs get -Ho value receive_resume_token dst/backup/{copy}");
            // Syncoid passes the stream through this program where it finds it.
            stage.shell.done(&format!(
                "printf '#!/bin/sh\\nexec head -c {CUT_BYTES}\\n' > HERE/mbuffer; chmod +x HERE/mbuffer"
            ));
            let cut = stage.run(line);
            let text = String::from_utf8_lossy(&cut.stderr);
            assert!(!cut.status.success(), "{line}: {text}");
            let received = stage.shell.done(&format!(
                "millpond stream token $({token}) | sed -n 's/.*bytes = //p'"
            ));
            let received = u64::from_str_radix(received.trim().trim_start_matches("0x"), 16);
            // The last block was cut, and all blocks before it are kept.
            let kept = CUT_BYTES - (256 << 10)..=CUT_BYTES;
            assert!(
                received.as_ref().is_ok_and(|bytes| kept.contains(bytes)),
                "{received:?}: {text}"
            );
            stage.shell.done("rm HERE/mbuffer");
            let text = stage.done(line);
            assert!(
                text.contains("Resuming interrupted zfs send/receive"),
                "{text}"
            );
            assert_eq!(stage.shell.done(&token), "-\n");
            // The first time, nothing of it was mounted. What is below is not replicated here.
            stage.shell.done(&format!(
                "zfs mount -a; diff -r --no-dereference -x sub HERE/src/data HERE/dst/backup/{copy}"
            ));
        }
        stage
            .shell
            .done("head -c 5000000 /dev/urandom > HERE/src/data/second; rm -f HERE/src/data/link");
    }
}

#[test]
#[ignore = "programs of others; make test-policy"]
fn zfs_autobackup_replicates_over_ssh() {
    let Some(stage) = Stage::new("python/bin/zfs-autobackup") else {
        return;
    };
    if stage.ssh_server().is_none() {
        return;
    }
    stage
        .shell
        .done("zfs set atime=off dst; zfs set autobackup:offsite=true src/data");
    let backup = "zpool sync; python3 -m zfs_autobackup.ZfsAutobackup -v --ssh-config HERE/ssh_config --ssh-target far \
                  --exclude-received --keep-source 1 --keep-target 1 --allow-empty offsite dst/backup";
    stage.done(backup);
    stage.is_same("dst/backup/src/data");
    stage.change_files();
    stage.done(&format!("sleep 1; {backup}"));
    stage.is_same("dst/backup/src/data");
}

#[test]
#[ignore = "programs of others; make test-policy"]
fn zfs_auto_snapshot_takes_and_prunes() {
    let Some(stage) = Stage::new("usr/sbin/zfs-auto-snapshot") else {
        return;
    };
    let old = "zfs-auto-snap_hourly-2020-01-01-0000";
    stage.shell.done(&format!(
        "zfs snapshot -r src@{old}; zfs set com.sun:auto-snapshot=false dst"
    ));
    stage.done("zfs-auto-snapshot --quiet --keep=1 --label=hourly //");
    let names = stage.snapshots("src");
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(
        names
            .iter()
            .all(|name| name.contains("@zfs-auto-snap_hourly-") && !name.ends_with(old))
    );
    assert_eq!(stage.snapshots("dst"), Vec::<String>::new());
}

#[test]
#[ignore = "programs of others; make test-policy"]
fn zfsnap_takes_and_expires_snapshots() {
    let Some(stage) = Stage::new("usr/sbin/zfSnap") else {
        return;
    };
    stage.done(&stage.laid("zfSnap -v -a 1s -r src/data"));
    assert_eq!(stage.snapshots("src").len(), 2);
    stage.done(&stage.laid("sleep 2; zfSnap -v -d"));
    assert_eq!(stage.snapshots("src"), Vec::<String>::new());
}
