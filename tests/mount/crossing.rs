//! Snapshots below `.zfs`, changes made outside the mount, and unmounting.

use crate::rig::Rig;
use millpond_engine::{Caller, WriteAt};
use millpond_fuse::{FuseError, clear_dead_mount};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;

#[test]
fn snapshots_are_below_dot_zfs_with_their_own_inodes() {
    let Some(rig) = Rig::new(&[]) else {
        return;
    };
    let file = rig.path("file");
    fs::write(&file, "before").unwrap();
    let snapshots = rig.path(".zfs/snapshot");
    assert_eq!(fs::read_dir(&snapshots).unwrap().count(), 0);
    let one = format!("{}@one", rig.dataset);
    rig.pool.datasets().snapshot(&[&one], &[]).unwrap();
    fs::write(&file, "after").unwrap();
    let names: Vec<_> = fs::read_dir(&snapshots)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["one"]);
    let copy = snapshots.join("one/file");
    assert_eq!(fs::read_to_string(&copy).unwrap(), "before");
    assert_eq!(fs::read_to_string(&file).unwrap(), "after");
    let (live, stored) = (fs::metadata(&file).unwrap(), fs::metadata(&copy).unwrap());
    assert_ne!(live.ino(), stored.ino());
    assert_eq!(live.dev(), stored.dev());
    let refused = fs::write(&copy, "no").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    assert!(fs::create_dir(snapshots.join("two")).is_err());
    // `.zfs` is not listed and cannot be created.
    let listed = fs::read_dir(rig.path("")).unwrap();
    assert!(
        listed
            .map(|entry| entry.unwrap().file_name())
            .all(|name| name != ".zfs")
    );
    rig.pool
        .datasets()
        .destroy_snapshots(&[&one], millpond_engine::DestroyOptions::default())
        .map(|_| ())
        .unwrap();
    assert_eq!(fs::read_dir(&snapshots).unwrap().count(), 0);
    assert!(!snapshots.join("one").exists());
    rig.finish();
}

#[test]
fn outside_changes_are_seen_after_invalidation() {
    let Some(rig) = Rig::new(&[]) else {
        return;
    };
    let file = rig.path("file");
    fs::write(&file, "mounted").unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "mounted");
    assert!(!rig.path("new").exists());
    let live = rig.files().files();
    let root = live.root().unwrap();
    let node = root.lookup(b"file").unwrap();
    let caller = Caller::root();
    live.write(&caller, &node, WriteAt::Offset(0), b"ELSEWHERE")
        .unwrap();
    let mode = millpond_engine::NewMode::exactly(0o644);
    live.create(&caller, &root, b"new", mode, true).unwrap();
    rig.mount.invalidate_all().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "ELSEWHERE");
    assert!(rig.path("new").exists());
    drop((root, node));
    rig.finish();
}

#[test]
fn a_busy_mount_is_refused_and_can_be_detached() {
    let Some(rig) = Rig::new(&[]) else {
        return;
    };
    let path = rig.path("");
    let held = fs::File::create(rig.path("held")).unwrap();
    assert_eq!(
        rig.mount.unmount(false),
        Err(FuseError::Busy(rig.mount.mountpoint().to_owned()))
    );
    rig.mount.unmount(true).unwrap();
    assert!(held.metadata().is_err());
    assert!(fs::read_dir(&path).unwrap().next().is_none());
    clear_dead_mount(&path).unwrap();
    drop(held);
    rig.finish();
}
