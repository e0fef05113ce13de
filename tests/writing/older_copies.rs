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
use millpond_sim::{Content, SimDisk, World};
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

/// A mirror whose disk 1 is copied before a resilver that completes it, used further and exported. Returns the copy.
fn resilvered_and_exported(world: &World, what: &str) -> (Content, Life) {
    let (pool, mut life) = lived(world, what, &[(Mirror, 2)], 60);
    let away = leaf(&pool, 1);
    pool.inner().offline_leaf(away, Default::default()).unwrap();
    life.steps(&pool, 40);
    online(world, &pool, 1);
    pool.sync().unwrap();
    let old = world.disks()[1].content();
    assert!(pool.inner().start_resilver().unwrap());
    finish(&pool);
    assert!(!pool.inner().needs_resilver());
    for _ in 0..6 {
        life.steps(&pool, 5);
        pool.sync().unwrap();
    }
    pool.export().unwrap();
    (old, life)
}

/// No one remembers the resilver: the copy gets everything.
#[test]
fn a_copy_of_before_a_resilver_of_an_earlier_session_gets_everything() {
    for way in [Order, Found, Cleared] {
        let _mark = mark::expect("copy-of-an-earlier-session");
        let what = format!("before a resilver of an earlier session, {way:?}");
        let world = World::without_journal(205);
        let (old, mut life) = resilvered_and_exported(&world, &what);
        let pool = sim::open(&world).unwrap();
        life.steps(&pool, 10);
        pool.sync().unwrap();
        swap(&world, &pool, old, way);
        is_whole_without_the_other(&world, pool, &life, &what);
    }
}

/// Puts other contents on a disk.
fn put_back(disk: &SimDisk, old: &Content) {
    for (at, page) in disk.content().pages() {
        disk.rot(at, &vec![0; page.len()]);
    }
    for (at, page) in old.pages() {
        disk.rot(at, page);
    }
}

/// The copy takes the place of the device while the pool is exported.
#[test]
fn a_copy_of_before_a_resilver_that_is_there_at_an_import_gets_everything() {
    let _mark = mark::expect("older-copy-at-import");
    let what = "before a resilver, at an import";
    let world = World::without_journal(206);
    let (old, mut life) = resilvered_and_exported(&world, what);
    put_back(&world.disks()[1], &old);
    let pool = sim::open(&world).unwrap();
    life.steps(&pool, 10);
    is_whole_without_the_other(&world, pool, &life, what);
}

/// The first half was copied before the last txgs and the second half after them.
#[test]
fn a_copy_that_was_made_while_the_pool_was_used_is_as_old_as_its_oldest_part() {
    let world = World::without_journal(207);
    let what = "copied meanwhile";
    let (pool, mut life) = lived(&world, what, &[(Mirror, 2)], 60);
    let disk = Arc::clone(&world.disks()[1]);
    let first = disk.content();
    for _ in 0..6 {
        life.steps(&pool, 10);
        pool.sync().unwrap();
    }
    let second = disk.content();
    life.steps(&pool, 5);
    pool.sync().unwrap();
    // An export would write labels, which tell it too.
    drop(pool);
    put_back(&disk, &first);
    for (at, page) in second.pages() {
        if at >= BYTES / 2 {
            disk.rot(at, page);
        }
    }
    let pool = sim::open(&world).unwrap();
    assert!(crate::scan::missed(&pool, 1) >= 6);
    life.steps(&pool, 10);
    is_whole_without_the_other(&world, pool, &life, what);
}

/// A device that was away over an export is not taken for a copy, at the import or later.
#[test]
fn a_device_that_was_away_over_an_export_is_no_copy() {
    for (shape, tops) in shapes() {
        let watch = mark::Watch::start();
        let world = World::without_journal(208);
        let (pool, mut life) = lived(&world, shape, &tops, 100);
        let away = leaf(&pool, 1);
        pool.inner().offline_leaf(away, Default::default()).unwrap();
        for _ in 0..8 {
            life.steps(&pool, 5);
            pool.sync().unwrap();
        }
        pool.export().unwrap();
        let pool = sim::open(&world).unwrap();
        life.steps(&pool, 5);
        pool.sync().unwrap();
        online(&world, &pool, 1);
        for name in ["older-copy-at-import", "copy-of-an-earlier-session"] {
            assert_eq!(watch.count(name), 0, "{shape}: {name}");
        }
        is_whole_without_the_other(&world, pool, &life, shape);
    }
}
