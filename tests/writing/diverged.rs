//! Two sides of a mirror that were used separately, so each has changes of its own.

use crate::exhaustive::files_of;
use crate::exhaustive::judge;
use crate::sim;
use millpond_block::LeafReason;
use millpond_device::Device;
use millpond_engine::{Caller, NewLayout::Mirror, NewMode, Pool, WriteAt};
use millpond_env::mark;
use millpond_pool::import::{ImportCondition, VdevAux, VdevState};
use millpond_sim::World;
use std::sync::Arc;

fn write(pool: &Pool, name: &str) {
    let files = pool.file_system("tank").unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o600);
    let (node, _) = files
        .create(&caller, &root, name.as_bytes(), mode, true)
        .unwrap();
    files
        .write(&caller, &node, WriteAt::Offset(0), name.as_bytes())
        .unwrap();
    drop((node, files, root));
    pool.sync().unwrap();
}

fn names(pool: &Pool) -> Vec<String> {
    let files = files_of(&pool.committed().unwrap()).unwrap();
    let names = files.keys();
    names
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

fn only(world: &World, disk: usize) {
    for (number, other) in world.disks().iter().enumerate() {
        other.set_absent(number != disk);
    }
}

fn pages(world: &World, disk: usize) -> Vec<(u64, Vec<u8>)> {
    let content = world.disks()[disk].content();
    let pages = content.pages();
    pages.map(|(at, page)| (at, page.to_vec())).collect()
}

#[test]
fn a_diverged_side_is_reported_and_not_used() {
    let world = World::without_journal(61);
    let pool = sim::create(&world, &[(Mirror, 2)], 96);
    write(&pool, "both");
    drop(pool);
    // The same number of txgs on both sides, so that labels look alike; the second side has one more.
    for (disk, more) in [(0, &[][..]), (1, &["second-again"][..])] {
        only(&world, disk);
        let pool = sim::open(&world).unwrap();
        write(&pool, ["first", "second"][disk]);
        for name in more {
            write(&pool, name);
        }
        drop(pool);
    }
    world.disks().iter().for_each(|disk| disk.set_absent(false));
    let alone = pages(&world, 0);
    let found = sim::candidate(&world);
    let first = found.assembly.as_ref().unwrap().leaves[0].guid;
    let message = found
        .conditions
        .iter()
        .find_map(|condition| match condition {
            ImportCondition::Device {
                guid, state, aux, ..
            } => Some((*guid, *state, *aux)),
            _ => None,
        });
    assert_eq!(
        message,
        Some((first, VdevState::CannotOpen, VdevAux::Diverged))
    );
    drop(found);
    let pool = sim::open(&world).unwrap();
    assert_eq!(names(&pool), ["both", "second", "second-again"]);
    write(&pool, "third");
    pool.export().unwrap();
    assert!(pages(&world, 0) == alone, "the first side was written to");
    // The changes of the first side are still accessible.
    only(&world, 0);
    let pool = sim::open(&world).unwrap();
    assert_eq!(names(&pool), ["both", "first"]);
}

#[test]
fn a_diverged_side_is_used_only_on_request() {
    let _mark = mark::expect("diverged-leaf-taken-back");
    let world = World::without_journal(63);
    let pool = sim::create(&world, &[(Mirror, 2)], 96);
    write(&pool, "both");
    drop(pool);
    for (disk, name) in [(0, "first"), (1, "second")] {
        only(&world, disk);
        let pool = sim::open(&world).unwrap();
        write(&pool, name);
        if disk == 1 {
            write(&pool, "second-again");
        }
        drop(pool);
    }
    world.disks().iter().for_each(|disk| disk.set_absent(false));
    let pool = sim::open(&world).unwrap();
    let first = sim::candidate(&world).assembly.unwrap().leaves[0].guid;
    assert_eq!(pool.inner().lost_leaves(false), []);
    let device: Arc<dyn Device> = Arc::clone(&world.disks()[0]) as _;
    pool.inner().online_leaf(first, Some(&device)).unwrap();
    write(&pool, "third");
    pool.export().unwrap();
    let found = sim::candidate(&world);
    assert_eq!(
        found.assembly.as_ref().unwrap().leaves[0].diverged_since,
        None
    );
    drop(found);
    let pool = sim::open(&world).unwrap();
    assert_eq!(names(&pool), ["both", "second", "second-again", "third"]);
    drop(pool);
    judge(&world, "taken back");
    // It has the changes written since.
    only(&world, 0);
    let found = sim::candidate(&world);
    assert!(found.assembly.as_ref().unwrap().leaves[0].device.is_some());
}

#[test]
fn a_diverged_side_is_not_used_automatically() {
    let world = World::without_journal(64);
    let pool = sim::create(&world, &[(Mirror, 2)], 96);
    write(&pool, "both");
    drop(pool);
    only(&world, 0);
    let pool = sim::open(&world).unwrap();
    write(&pool, "first");
    drop(pool);
    only(&world, 1);
    let pool = sim::open(&world).unwrap();
    write(&pool, "second");
    write(&pool, "second-again");
    let alone = pages(&world, 0);
    world.disks()[0].set_absent(false);
    let engine = pool.inner();
    let (guid, _) = engine.lost_leaves(false).remove(0);
    let device: Arc<dyn Device> = Arc::clone(&world.disks()[0]) as _;
    assert!(!engine.reopen_leaf(guid, &device).unwrap());
    assert_eq!(engine.lost_leaves(false), []);
    write(&pool, "third");
    assert!(pages(&world, 0) == alone, "it was written to");
    // An explicit online request accepts it, and its own changes are not read.
    engine.online_leaf(guid, Some(&device)).unwrap();
    write(&pool, "fourth");
    sim::verify(&pool.committed().unwrap()).unwrap();
    pool.export().unwrap();
    judge(&world, "taken while in use");
}

/// A copy of one side was used elsewhere, further than the pool.
#[test]
fn a_copy_with_newer_changes_of_its_own_is_not_used_automatically() {
    let world = World::without_journal(65);
    let pool = sim::create(&world, &[(Mirror, 2)], 96);
    write(&pool, "both");
    let content = world.disks()[1].content();
    let elsewhere = World::without_journal(66);
    let copy = elsewhere.disk_with(96 << 20, 512, content);
    let other = sim::open(&elsewhere).unwrap();
    for number in 0..20 {
        write(&other, &format!("elsewhere-{number}"));
    }
    let newest = other.inner().uberblock().txg;
    drop(other);
    for number in 0..8 {
        write(&pool, &format!("here-{number}"));
    }
    let engine = pool.inner();
    let here = names(&pool);
    assert!(engine.uberblock().txg < newest);
    let guid = crate::scan::leaf(&pool, 1);
    assert!(engine.give_up_leaf(guid, LeafReason::OpenFailed));
    let copy = world.disk_with(96 << 20, 512, copy.content());
    world.disks()[1].set_absent(true);
    let device: Arc<dyn Device> = Arc::clone(&copy) as _;
    assert!(engine.is_its_own(guid, device.as_ref()));
    assert!(!engine.reopen_leaf(guid, &device).unwrap());
    assert_eq!(engine.absent_leaves(), []);
    // By order it is taken, and lacks everything.
    engine.online_leaf(guid, Some(&device)).unwrap();
    assert!(engine.start_resilver().unwrap());
    crate::scan::finish(&pool);
    assert!(!engine.needs_resilver());
    pool.export().unwrap();
    only(&world, 2);
    let pool = sim::open(&world).unwrap();
    assert_eq!(names(&pool), here);
    sim::verify_blocks(&pool.committed().unwrap()).unwrap();
}

/// One side was used elsewhere, where blocks were freed and overwritten. The rings of the other one have turned since.
#[test]
fn a_side_that_was_used_elsewhere_long_ago_lacks_everything() {
    let _marks = [
        mark::expect("used-meanwhile"),
        mark::expect("used-meanwhile-at-import"),
    ];
    for is_offered in [true, false] {
        let world = World::without_journal(67);
        let pool = sim::create(&world, &[(Mirror, 2)], 96);
        let before: Vec<String> = (0..10).map(|number| format!("both-{number}")).collect();
        before.iter().for_each(|name| write(&pool, name));
        pool.export().unwrap();
        only(&world, 1);
        let pool = sim::open(&world).unwrap();
        let files = pool.file_system("tank").unwrap();
        let root = files.root().unwrap();
        for name in &before {
            files.unlink(&root, name.as_bytes()).unwrap();
        }
        drop((root, files));
        for number in 0..20 {
            write(&pool, &format!("elsewhere-{number}"));
        }
        pool.export().unwrap();
        only(&world, 0);
        let pool = sim::open(&world).unwrap();
        // More than a ring has slots.
        for _ in 0..200 {
            write(&pool, "here");
            let files = pool.file_system("tank").unwrap();
            let root = files.root().unwrap();
            files.unlink(&root, b"here").unwrap();
        }
        let pool = match is_offered {
            true => {
                world.disks()[1].set_absent(false);
                let guid = crate::scan::leaf(&pool, 1);
                let device: Arc<dyn Device> = Arc::clone(&world.disks()[1]) as _;
                pool.inner().online_leaf(guid, Some(&device)).unwrap();
                pool
            }
            false => {
                pool.export().unwrap();
                world.disks()[1].set_absent(false);
                sim::open(&world).unwrap()
            }
        };
        if pool.inner().needs_resilver() {
            pool.inner().start_resilver().unwrap();
        }
        crate::scan::finish(&pool);
        assert!(!pool.inner().needs_resilver());
        pool.export().unwrap();
        only(&world, 1);
        let pool = sim::open(&world).unwrap();
        assert_eq!(names(&pool), before);
        sim::verify_blocks(&pool.committed().unwrap()).unwrap();
    }
}

#[test]
fn a_returned_side_without_own_changes_is_used() {
    let world = World::without_journal(62);
    let pool = sim::create(&world, &[(Mirror, 2)], 96);
    write(&pool, "both");
    drop(pool);
    only(&world, 1);
    let pool = sim::open(&world).unwrap();
    write(&pool, "second");
    drop(pool);
    world.disks().iter().for_each(|disk| disk.set_absent(false));
    let found = sim::candidate(&world);
    let assembly = found.assembly.as_ref().unwrap();
    assert!(assembly.leaves[0].stale_since.is_some() && assembly.leaves[0].device.is_some());
    assert_eq!(assembly.leaves[0].diverged_since, None);
}
