//! A suspended pool: its programs wait, programs of other pools do not.

use crate::rig::absent;
use crate::sim;
use millpond_engine::{NewLayout::Single, Pool, WriteOptions};
use millpond_env::mark;
use millpond_fuse::{FuseServer, Mount, MountOptions, MountTarget};
use millpond_sim::World;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// More waiting requests than the server has threads at the start.
const WAITING: usize = 24;

fn pool(world: &World) -> Pool {
    let writing = WriteOptions {
        can_be_resumed: true,
        ..WriteOptions::default()
    };
    sim::create_with(world, &[(Single, 1)], 128, writing)
}

fn mounted(server: &Arc<FuseServer>, pool: &Pool, name: &str) -> (Mount, TempDir) {
    let point = tempfile::tempdir().unwrap();
    let target = MountTarget {
        files: pool.served("tank").unwrap() as _,
        source: name.to_owned(),
        mountpoint: point.path().to_owned(),
        root: None,
    };
    let mount = server.mount(target, &MountOptions::default()).unwrap();
    (mount, point)
}

fn write_and_sync(folder: &Path, name: &str) {
    let mut file = File::create(folder.join(name)).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_suspended_pool_stalls_no_other_pools_mounts() {
    if let Some(why) = absent() {
        println!("{why}: passed over");
        return;
    }
    // The queues of io_uring have a fixed number of threads. The others inherit the watch.
    let _mark = (!crate::ring::is_allowed()).then(|| mark::expect("fuse-thread-added"));
    let (sick, sound) = (World::without_journal(61), World::without_journal(62));
    let (sick_pool, sound_pool) = (pool(&sick), pool(&sound));
    let server = FuseServer::start(2).unwrap();
    let (sick_mount, sick_point) = mounted(&server, &sick_pool, "sick");
    let (sound_mount, sound_point) = mounted(&server, &sound_pool, "sound");
    let is_by_ring = sick_mount.is_by_ring();
    write_and_sync(sick_point.path(), "before");
    for disk in sick.disks() {
        disk.set_absent(true);
    }
    std::thread::scope(|scope| {
        for number in 0..WAITING {
            let folder = sick_point.path();
            scope.spawn(move || write_and_sync(folder, &format!("waiting{number}")));
        }
        while sick_pool.inner().suspension().is_none() {
            std::thread::yield_now();
        }
        // All of this would hang if it had to wait behind the other requests.
        for number in 0..50 {
            write_and_sync(sound_point.path(), &format!("sound{number}"));
        }
        assert_eq!(
            fs::read(sound_point.path().join("sound7")).unwrap(),
            [7; 100_000]
        );
        assert_eq!(fs::read_dir(sound_point.path()).unwrap().count(), 50);
        // Operations without writes work in the suspended pool too, even with access times enabled.
        if !is_by_ring {
            let before = fs::read(sick_point.path().join("before")).unwrap();
            assert_eq!(before.len(), 100_000);
        }
        for disk in sick.disks() {
            disk.set_absent(false);
        }
        sick_pool.inner().resume().unwrap();
    });
    assert_eq!(
        fs::read_dir(sick_point.path()).unwrap().count(),
        WAITING + 1
    );
    for mount in [&sick_mount, &sound_mount] {
        crate::rig::unmount(mount);
    }
}
