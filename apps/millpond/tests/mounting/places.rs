//! Directories of mount points.

use super::Stage;

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
    // What is only unmounted keeps its folder, and what is not empty, or was there before, stays.
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
