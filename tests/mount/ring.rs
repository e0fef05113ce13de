//! The transport of requests: io_uring if root has enabled it, otherwise `/dev/fuse`.

use crate::rig::Rig;
use millpond_fuse::{FuseServer, MountOptions, MountTarget};
use millpond_posix::vfs::InodeNumber;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

pub fn is_allowed() -> bool {
    let text = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let is_allowed = text.is_ok_and(|text| matches!(text.trim(), "Y" | "1"));
    if !is_allowed {
        println!("through /dev/fuse only: root has not allowed FUSE over io_uring here");
    }
    is_allowed
}

#[test]
fn requests_use_io_uring_where_root_enabled_it() {
    let Some(rig) = Rig::new(&[]) else { return };
    std::fs::write(rig.path("first"), b"words").unwrap();
    assert_eq!(rig.mount.is_by_ring(), is_allowed());
    // Short and long transfers in both directions.
    for length in [0, 1, 4095, 4096, 65_537, 1 << 20, (3 << 20) + 7] {
        let bytes: Vec<u8> = (0..length).map(|n: usize| (n % 253) as u8).collect();
        let path = rig.path(&format!("of-{length}"));
        std::fs::write(&path, &bytes).unwrap();
        // Read from the server again instead of the kernel's page cache.
        let number = InodeNumber(std::fs::metadata(&path).unwrap().ino());
        rig.mount.invalidate(number).unwrap();
        assert!(std::fs::read(&path).unwrap() == bytes, "{length}");
    }
    let long = rig.path(&"n".repeat(255));
    std::fs::write(&long, b"named at length").unwrap();
    assert_eq!(std::fs::read(&long).unwrap(), b"named at length");
    rig.finish();
}

#[test]
fn more_mounts_than_threads_are_served_all_the_same() {
    let Some(rig) = Rig::new(&[]) else { return };
    std::fs::write(rig.path("file"), b"words").unwrap();
    let server = FuseServer::start(2).unwrap();
    let mut mounts = vec![];
    for _ in 0..20 {
        let point = tempfile::tempdir().unwrap();
        let target = MountTarget {
            files: Arc::clone(rig.files()) as _,
            source: "tank".to_owned(),
            mountpoint: point.path().to_owned(),
            root: None,
        };
        let mount = server.mount(target, &MountOptions::default()).unwrap();
        mounts.push((mount, point));
    }
    for (_, point) in &mounts {
        let words = std::fs::read(point.path().join("file")).unwrap();
        assert_eq!(words, b"words");
    }
    let by_ring = mounts.iter().filter(|(mount, _)| mount.is_by_ring());
    let by_ring = by_ring.count();
    println!("{by_ring} of 20 through io_uring");
    match is_allowed() {
        // The 128 ring threads, two to four per processor and mount, are not enough for all 20 mounts.
        true => assert!(by_ring < 20 || std::thread::available_parallelism().unwrap().get() < 2),
        false => assert_eq!(by_ring, 0),
    }
    for (mount, _) in &mounts {
        crate::rig::unmount(mount);
    }
    // Their threads are available to other mounts again.
    let (_, point) = &mounts[0];
    let target = MountTarget {
        files: Arc::clone(rig.files()) as _,
        source: "tank".to_owned(),
        mountpoint: point.path().to_owned(),
        root: None,
    };
    let again = server.mount(target, &MountOptions::default()).unwrap();
    assert_eq!(std::fs::read(point.path().join("file")).unwrap(), b"words");
    assert_eq!(again.is_by_ring(), by_ring > 0);
    drop((again, mounts, server));
    rig.finish();
}
