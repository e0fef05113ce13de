//! Older copies of a device that take its place while the pool is in use: all that they lack is written to them before
//! they count as complete.

use crate::attach::of_disk;
use crate::exhaustive::judge;
use crate::rebuild::{attach, finish_with, slice};
use crate::scan::{finish, leaf, lived, online, scanner};
use crate::sim;
use millpond_block::LeafReason;
use millpond_device::Device;
use millpond_engine::{
    AttachKind,
    NewLayout::{self, Mirror, Raidz},
    Offline, Pool,
};
use millpond_env::mark;
use millpond_ondisk::RebuildPhase;
use millpond_sim::{Content, World};
use millpond_tests::workload::Life;
use std::sync::Arc;

const BYTES: u64 = 128 << 20;

/// How the device goes and the copy comes.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// `zpool offline` and `zpool online`.
    Order,
    /// It is gone from its path, and the copy is found there.
    Found,
    /// It is faulted, and its contents are put back before `zpool clear`.
    Cleared,
}

use Way::{Cleared, Found, Order};

/// Puts a copy in the place of disk 1.
fn swap(world: &World, pool: &Pool, old: Content, way: Way) {
    let inner = pool.inner();
    let guid = leaf(pool, 1);
    let copy = world.disk_with(BYTES, 512, old);
    let device: Arc<dyn Device> = Arc::clone(&copy) as _;
    match way {
        Order => {
            inner.offline_leaf(guid, Default::default()).unwrap();
            let now = inner.online_leaf(guid, Some(&device)).unwrap();
            assert!(now.is_usable());
        }
        Found => {
            assert!(inner.give_up_leaf(guid, LeafReason::OpenFailed));
            assert!(inner.is_its_own(guid, device.as_ref()));
            assert!(inner.reopen_leaf(guid, &device).unwrap());
        }
        Cleared => {
            let fault = Offline {
                is_fault: true,
                ..Offline::default()
            };
            inner.offline_leaf(guid, fault).unwrap();
            let disk = &world.disks()[1];
            let (now, then) = (disk.content(), copy.content());
            for (at, page) in now.pages() {
                disk.rot(at, &vec![0; page.len()]);
            }
            for (at, page) in then.pages() {
                disk.rot(at, page);
            }
            inner.clear_leaves(None);
            assert!(inner.leaf_condition(guid).unwrap().is_usable());
            copy.set_absent(true);
            return;
        }
    }
    world.disks()[1].set_absent(true);
}

/// Resilvers, and reads everything without disk 0.
fn is_whole_without_the_other(world: &World, pool: Pool, life: &Life, what: &str) {
    let inner = pool.inner();
    pool.sync().unwrap();
    for _ in 0..3 {
        inner.start_resilver().unwrap();
        finish(&pool);
    }
    assert!(!inner.needs_resilver(), "{what}");
    inner
        .offline_leaf(leaf(&pool, 0), Default::default())
        .unwrap();
    pool.export().unwrap();
    world.disks()[0].set_absent(true);
    let read = sim::read(world).unwrap();
    life.compare(&read, what);
    sim::verify_blocks(&read).unwrap_or_else(|error| panic!("{what}: {error}"));
}

fn shapes() -> [(&'static str, Vec<(NewLayout, usize)>); 3] {
    [
        ("mirror", vec![(Mirror, 2)]),
        ("raidz", vec![(Raidz(1), 4)]),
        // Not every vdev gets every uberblock.
        ("mirrors", vec![(Mirror, 2); 5]),
    ]
}

#[test]
fn an_older_copy_gets_all_that_it_lacks() {
    for (shape, tops) in shapes() {
        for way in [Order, Found, Cleared] {
            let what = format!("{shape} {way:?}");
            let world = World::without_journal(201);
            let (pool, mut life) = lived(&world, &what, &tops, 60);
            let old = world.disks()[1].content();
            for _ in 0..4 {
                life.steps(&pool, 20);
                pool.sync().unwrap();
            }
            swap(&world, &pool, old, way);
            life.steps(&pool, 10);
            is_whole_without_the_other(&world, pool, &life, &what);
        }
    }
}

#[test]
fn a_copy_of_before_a_resilver_gets_what_that_wrote() {
    let _mark = mark::expect("copy-of-before-a-resilver");
    for way in [Order, Found] {
        let what = format!("before a resilver, {way:?}");
        let world = World::without_journal(202);
        let (pool, mut life) = lived(&world, &what, &[(Mirror, 2)], 60);
        let away = leaf(&pool, 1);
        pool.inner().offline_leaf(away, Default::default()).unwrap();
        life.steps(&pool, 40);
        online(&world, &pool, 1);
        let old = world.disks()[1].content();
        assert!(pool.inner().start_resilver().unwrap());
        finish(&pool);
        assert!(!pool.inner().needs_resilver());
        life.steps(&pool, 10);
        pool.sync().unwrap();
        swap(&world, &pool, old, way);
        is_whole_without_the_other(&world, pool, &life, &what);
    }
}

#[test]
fn a_copy_that_comes_during_a_resilver_is_not_complete_at_its_end() {
    for way in [Order, Found] {
        let what = format!("during a resilver, {way:?}");
        let world = World::without_journal(203);
        let (pool, mut life) = lived(&world, &what, &[(Mirror, 2)], 60);
        let old = world.disks()[1].content();
        life.steps(&pool, 40);
        pool.sync().unwrap();
        let away = leaf(&pool, 1);
        pool.inner().offline_leaf(away, Default::default()).unwrap();
        life.steps(&pool, 40);
        online(&world, &pool, 1);
        assert!(pool.inner().start_resilver().unwrap());
        for _ in 0..2 {
            assert!(scanner().slice(pool.inner()).unwrap(), "{what}");
        }
        swap(&world, &pool, old, way);
        finish(&pool);
        is_whole_without_the_other(&world, pool, &life, &what);
    }
}

#[test]
fn the_same_device_gets_only_what_it_missed() {
    let world = World::without_journal(204);
    let (pool, mut life) = lived(&world, "same device", &[(Mirror, 2)], 100);
    let away = leaf(&pool, 1);
    pool.inner().offline_leaf(away, Default::default()).unwrap();
    life.steps(&pool, 3);
    online(&world, &pool, 1);
    let all = pool.inner().uberblock().txg.0;
    let missed = crate::scan::missed(&pool, 1);
    assert!(missed > 0 && missed < all / 2, "{missed} of {all}");
    // Nor does one that was never away miss anything more.
    assert!(pool.inner().start_resilver().unwrap());
    finish(&pool);
    online(&world, &pool, 0);
    online(&world, &pool, 1);
    assert!(!pool.inner().needs_resilver());
    pool.export().unwrap();
    judge(&world, "same device");
}

#[test]
fn a_target_that_is_put_back_to_older_contents_is_not_complete() {
    let world = World::without_journal(173);
    let (pool, _) = lived(&world, "target older", &[(Mirror, 2)], 100);
    let disk = world.disk(BYTES, 512);
    let new = attach(&pool, of_disk(&pool, 0), &disk, AttachKind::Mirror).unwrap();
    assert!(slice(&pool));
    let old = disk.content();
    for _ in 0..3 {
        assert!(slice(&pool));
    }
    pool.inner().offline_leaf(new, Default::default()).unwrap();
    let copy = world.disk_with(BYTES, 512, old);
    disk.set_absent(true);
    let device: Arc<dyn Device> = copy;
    pool.inner().online_leaf(new, Some(&device)).unwrap();
    let state = finish_with(&pool, |_| ()).unwrap();
    assert_eq!(state.phase, RebuildPhase::Canceled);
    assert!(pool.inner().needs_resilver());
    pool.inner().start_resilver().unwrap();
    finish(&pool);
    assert!(!pool.inner().needs_resilver());
    pool.export().unwrap();
    for disk in [0, 1] {
        world.disks()[disk].set_absent(true);
    }
    sim::verify_blocks(&sim::read(&world).unwrap()).unwrap();
}
