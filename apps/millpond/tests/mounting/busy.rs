//! What keeps a mount busy, and what does not.

use super::Stage;

#[test]
fn the_users_of_a_busy_mount_are_named() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/tank tank HERE/disk && zfs create tank/a");
    stage.done("echo text > HERE/tank/a/file && cp $(which sleep) HERE/tank/a/program");
    let by = |line: &str, name: &str, command: &str| {
        let refused = stage.refused(&format!("{line} && {command}"));
        let is_named = refused.contains(&format!("{name} (process "));
        let is_busy = refused.contains("pool or dataset is busy: used by ");
        assert!(is_named && is_busy, "{refused}");
    };
    for command in [
        "zfs unmount tank/a",
        "zfs destroy tank/a",
        "zpool export tank",
    ] {
        // The command gets the open file and the working directory from its shell.
        let name = command.split(' ').next().unwrap_or_default();
        by("exec 7< HERE/tank/a/file", name, command);
        by("cd HERE/tank/a", name, command);
    }
    let program = "{ HERE/tank/a/program 600 & } && P=$! && trap \"kill $P\" EXIT && sleep 0.2";
    by(program, "program", "zfs unmount tank/a");
    // Nothing was unmounted, and the pool is still imported.
    assert_eq!(stage.done("cat HERE/tank/a/file"), "text\n");
    stage.done("mkdir HERE/tank/a/dir && mount -t tmpfs none HERE/tank/a/dir");
    let refused = stage.refused("zfs unmount tank/a");
    assert!(refused.contains("is mounted at"), "{refused}");
    assert!(refused.contains("/tank/a/dir"), "{refused}");
    stage.done("umount HERE/tank/a/dir && zpool export tank && zpool import -d HERE/disk tank");
}

#[test]
fn a_trim_discards_what_was_deleted_just_before() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/tank tank HERE/disk");
    stage.done("head -c 40M /dev/urandom > HERE/tank/file && zpool sync tank");
    let kib = || -> u64 {
        let text = stage.done("du -k HERE/disk | cut -f1");
        text.trim().parse().unwrap()
    };
    assert!(kib() > 40 << 10, "{}", kib());
    stage.done("rm HERE/tank/file && zpool trim -w tank");
    assert!(kib() < 20 << 10, "{}", kib());
    stage.done("zpool export tank");
}

/// A service of systemd has a namespace that follows this one: a file that it has open keeps the mount here busy.
#[test]
fn a_user_in_another_namespace_is_named() {
    let Some(stage) = Stage::new() else { return };
    stage.done("mkdir HERE/shared && mount --bind HERE/shared HERE/shared");
    stage.done("mount --make-shared HERE/shared");
    stage.done(
        "zpool create -m HERE/shared/tank tank HERE/disk && echo text > HERE/shared/tank/file",
    );
    stage.done(
        "unshare -m --propagation slave bash -c 'exec 3< HERE/shared/tank/file; echo > HERE/inside; \
         while [ ! -e HERE/go ]; do sleep 0.1; done; exec 3<&-; echo > HERE/out' > /dev/null 2>&1 &",
    );
    stage.done("while [ ! -e HERE/inside ]; do sleep 0.1; done");
    let refused = stage.refused("zpool export tank");
    // What it waits with has its descriptors too, and may be named first.
    let is_named = refused.contains("used by ") && refused.contains("bash (process ");
    assert!(is_named, "{refused}");
    stage.done("touch HERE/go; while [ ! -e HERE/out ]; do sleep 0.1; done");
    stage.done("zpool export tank && zpool import -N -d HERE/disk tank && zpool export tank");
    stage.done("umount HERE/shared");
}

#[test]
fn a_rollback_that_cannot_be_made_destroys_nothing() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/tank tank HERE/disk && zfs create tank/a");
    stage.done("echo first > HERE/tank/a/file && zfs snapshot tank/a@1");
    stage.done("echo second > HERE/tank/a/file && zfs snapshot tank/a@2");
    stage.done("zfs clone tank/a@2 tank/c && zfs bookmark tank/a@2 tank/a#2");
    let all = "zfs list -H -o name,mounted -r -t all tank";
    let before = stage.done(all);
    let refused = stage.refused("exec 7< HERE/tank/c/file; zfs rollback -R tank/a@1");
    assert!(refused.contains("busy"), "{refused}");
    assert_eq!(stage.done(all), before);
    assert_eq!(stage.done("cat HERE/tank/a/file"), "second\n");
    stage.done("zfs hold keep tank/a@2");
    stage.refused("zfs rollback -R tank/a@1");
    assert_eq!(stage.done("cat HERE/tank/a/file"), "second\n");
    stage.done("zfs release keep tank/a@2 && zfs rollback -R tank/a@1");
    assert_eq!(stage.done("cat HERE/tank/a/file"), "first\n");
    assert_eq!(
        stage.done("zfs list -H -o name -r -t all tank/a"),
        "tank/a\ntank/a@1\n"
    );
    stage.done("zpool export tank");
}

#[test]
fn a_recursive_destroy_that_cannot_be_made_destroys_nothing() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/tank tank HERE/disk && zfs create -p tank/a/b");
    stage.done("zfs snapshot -r tank/a@1 && zfs clone tank/a@1 tank/c");
    stage.done("echo text > HERE/tank/a/b/file && echo text > HERE/tank/c/file");
    let all = "zfs list -H -o name,mounted -r -t all tank";
    let before = stage.done(all);
    for (open, line) in [
        ("tank/a/b/file", "zfs destroy -r tank/a/b"),
        ("tank/a/b/file", "zfs destroy -R tank/a"),
        ("tank/c/file", "zfs destroy -R tank/a"),
        ("tank/c/file", "zfs destroy -R tank/a@1"),
    ] {
        let refused = stage.refused(&format!("exec 7< HERE/{open}; {line}"));
        assert!(refused.contains("busy"), "{refused}");
        assert_eq!(stage.done(all), before, "{line}");
    }
    stage.done("zfs destroy -R tank/a");
    assert_eq!(stage.done("zfs list -H -o name -r -t all tank"), "tank\n");
    stage.done("zpool export tank");
}

#[test]
fn a_refused_unmount_leaves_what_is_below_mounted() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/tank tank HERE/disk && zfs create -p tank/a/b");
    stage.done("zfs create tank/c && echo text > HERE/tank/a/b/file");
    let before = stage.mounts();
    for busy in ["tank", "tank/a"] {
        let refused = stage.refused(&format!("cd HERE/{busy}; zfs unmount tank"));
        assert!(refused.contains("busy"), "{refused}");
        assert_eq!(stage.mounts(), before, "{busy}");
    }
    assert_eq!(stage.done("cat HERE/tank/a/b/file"), "text\n");
    stage.done("zfs unmount tank && zpool export tank");
}

#[test]
fn space_usage_is_exact_after_zpool_sync() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/tank tank HERE/disk");
    // The kernel keeps attributes for a second.
    let shown = stage.done(
        "head -c 5M /dev/urandom > HERE/tank/file && mkdir HERE/tank/dir && cd HERE/tank && \
         stat -c %b file > ../before && zpool sync && stat -c %b file && sleep 1.2 && stat -c %b file",
    );
    let blocks: Vec<u64> = shown.lines().map(|line| line.parse().unwrap()).collect();
    assert!(blocks[0] > 10_000 && blocks[1] == blocks[0], "{shown}");
    stage.done("zpool export tank");
}
