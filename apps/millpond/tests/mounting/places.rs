//! Directories of mount points, and where default ones are.

use super::{Stage, USER};

#[test]
fn folders_of_mount_points_go_with_their_file_systems() {
    let Some(stage) = Stage::new() else { return };
    let listed = |folder: &str| {
        let text = stage.done(&format!("ls HERE/{folder}"));
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let none: [&str; 0] = [];
    stage.done("mkdir HERE/mnt HERE/mnt/own && zpool create -m HERE/mnt/tank tank HERE/disk");
    stage.done("zfs create tank/a && zfs create tank/a/b && zfs create tank/c");
    stage.done("zfs destroy tank/c");
    assert_eq!(listed("mnt/tank"), ["a"]);
    stage.done("zfs rename tank/a tank/z");
    assert_eq!(listed("mnt/tank"), ["z"]);
    stage.done("zfs set mountpoint=HERE/mnt/moved tank/z");
    assert_eq!(listed("mnt/tank"), none);
    assert_eq!(listed("mnt"), ["moved", "own", "tank"]);
    // The folder stays if its file system is only unmounted, if it is not empty, or if it was there before.
    stage.done("zfs unmount tank/z");
    assert_eq!(listed("mnt"), ["moved", "own", "tank"]);
    stage.done("zfs set canmount=off tank/z/b tank/z && zfs set canmount=on tank/z tank/z/b");
    assert_eq!(listed("mnt"), ["moved", "own", "tank"]);
    stage.done("zfs unmount tank/z && touch HERE/mnt/moved/file && zfs mount tank/z");
    stage.done("zfs set mountpoint=HERE/mnt/own tank/z && zfs destroy -r tank/z");
    assert_eq!(listed("mnt"), ["moved", "own", "tank"]);
    // One that is not mounted any more.
    stage.done("zfs create -o mountpoint=HERE/mnt/late tank/l && zfs unmount tank/l");
    stage.done("zfs destroy tank/l");
    assert_eq!(listed("mnt"), ["moved", "own", "tank"]);
    stage.done("zpool export tank");
    assert_eq!(listed("mnt"), ["moved", "own", "tank"]);
    stage.done("zpool import -d HERE/disk tank");
    assert_eq!(listed("mnt"), ["moved", "own", "tank"]);
    stage.done("zpool destroy tank");
    assert_eq!(listed("mnt"), ["moved", "own"]);
    // After a restart of the daemon, those of default mount points.
    stage.done("zpool create -f -R HERE/alt tank HERE/disk && zfs create tank/a");
    stage.done("mkdir HERE/alt/tank/a/kept && zfs set canmount=noauto tank/a");
    stage.done("zpool export tank");
    assert_eq!(listed("alt"), none);
    stage.done("zpool import -d HERE/disk -R HERE/alt tank");
    assert_eq!(listed("alt"), ["tank"]);
}

#[test]
fn an_ordinary_user_has_mount_points_below_the_home_directory() {
    let Some(stage) = Stage::new() else { return };
    stage
        .done("mkdir HERE/home && chown 65534:65534 HERE/home HERE/disk && mv HERE/disk HERE/home");
    let user = format!("{USER} env HOME=HERE/home MILLPOND_DIR=HERE/home/state");
    // Without an entry in /etc/passwd nothing can be mounted; the pool is there all the same.
    let made = stage.run(&format!("{user} zpool create up HERE/home/disk"));
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(!said.contains("/up: Permission denied"), "{said}");
    let shown = |property: &str, dataset: &str| {
        let line = format!("{user} zfs get -H -o value,source {property} {dataset}");
        stage.done(&line).trim().to_owned()
    };
    let home = stage.path("home");
    let home = home.display();
    assert_eq!(shown("mountpoint", "up"), format!("{home}/up\tdefault"));
    stage.run(&format!("{user} zfs create up/a"));
    assert_eq!(shown("mountpoint", "up/a"), format!("{home}/up/a\tdefault"));
    stage.run(&format!("{user} zfs set mountpoint={home}/x up/a"));
    assert_eq!(shown("mountpoint", "up/a"), format!("{home}/x\tlocal"));
    stage.done("touch HERE/secret && chmod 600 HERE/secret");
    let refused = stage.refused(&format!("{user} zpool create other HERE/secret"));
    assert_eq!(
        refused,
        format!(
            "cannot create 'other': {}: Permission denied\n",
            stage.path("secret").display()
        )
    );
    stage.done(&format!("{user} zpool destroy up"));
    stage.run("kill -TERM $(cat HERE/home/state/lock)");
}
