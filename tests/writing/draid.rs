//! dRAID: written, healed, replaced, and spared by its own space.

use crate::attach::{
    attach, complete, cut_at_every_place, cut_everywhere, is_sound, kinds, leaf_at, of_disk, tops,
};
use crate::exhaustive::judge;
use crate::rebuild::is_complete;
use crate::scan::{self, lived, rot, scrub};
use crate::sim;
use crate::spares::replace_for_good;
use millpond_engine::{
    AttachError, AttachKind, DraidShape, NewLayout, Offline, Pool, ResilverKind,
};
use millpond_env::mark;
use millpond_ondisk::Guid;
use millpond_sim::World;
use millpond_vdev::VdevType;

pub(crate) const fn draid(parity: u8, data: u8, spares: u8) -> NewLayout {
    NewLayout::Draid(DraidShape {
        parity,
        data,
        spares,
    })
}

/// Groups that wrap around rows, one spare.
pub(crate) const ONE: (NewLayout, usize) = (draid(1, 3, 1), 6);
pub(crate) const TWO: (NewLayout, usize) = (draid(2, 2, 2), 7);
/// The least that has a spare.
pub(crate) const SMALL: (NewLayout, usize) = (draid(1, 1, 1), 5);

pub(crate) fn use_spare(pool: &Pool, leaf: Guid, path: &str) -> Result<Guid, AttachError> {
    use_spare_as(ResilverKind::Healing, pool, leaf, path)
}

pub(crate) fn use_spare_as(
    how: ResilverKind,
    pool: &Pool,
    leaf: Guid,
    path: &str,
) -> Result<Guid, AttachError> {
    let spare = pool.inner().free_spare_at(path).unwrap().unwrap();
    pool.inner().use_spare(how, leaf, spare, || None)
}

/// An absent disk is used again.
pub(crate) fn back(world: &World, pool: &Pool, disk: usize) {
    world.disks()[disk].set_absent(false);
    scan::online(world, pool, disk);
}

pub(crate) fn fail(pool: &Pool, number: usize) {
    let how = Offline {
        is_fault: true,
        is_temporary: false,
    };
    pool.inner()
        .offline_leaf(of_disk(pool, number), how)
        .unwrap();
}

/// The pool is read without each of these sets of disks.
pub(crate) fn reads_without(
    world: &World,
    life: &millpond_tests::workload::Life,
    sets: &[&[usize]],
) {
    for set in sets {
        let what = format!("without {set:?}");
        set.iter()
            .for_each(|disk| world.disks()[*disk].set_absent(true));
        let view = sim::read(world).unwrap_or_else(|error| panic!("{what}: {error}"));
        is_sound(&view, &what);
        life.compare(&view, &what);
        set.iter()
            .for_each(|disk| world.disks()[*disk].set_absent(false));
    }
}

#[test]
fn a_scrub_repairs_what_parity_covers_padding_too() {
    for (shape, top, bad) in [
        ("draid1 rotten", ONE, vec![3]),
        ("draid2 rotten", TWO, vec![0, 5]),
        ("draid3 rotten", (draid(3, 2, 0), 5), vec![1, 2, 4]),
    ] {
        let world = World::without_journal(170);
        let (pool, mut life) = lived(&world, shape, &[top], 100);
        for disk in &bad {
            rot(&world, *disk, *disk as u64, 200_000);
        }
        let first = scrub(&pool);
        assert!(first.processed_bytes > 0 && first.errors == 0, "{first:?}");
        life.steps(&pool, 10);
        pool.sync().unwrap();
        let second = scrub(&pool);
        assert_eq!((second.processed_bytes, second.errors), (0, 0), "{shape}");
        pool.export().unwrap();
        reads_without(&world, &life, &[&bad]);
        judge(&world, shape);
    }
}

#[test]
fn a_child_that_was_away_is_resilvered() {
    for (shape, top, away) in [
        ("draid1 away", ONE, vec![3]),
        ("draid2 away", TWO, vec![1, 4]),
    ] {
        let world = World::without_journal(171);
        let (pool, mut life) = lived(&world, shape, &[top], 60);
        for disk in &away {
            world.disks()[*disk].set_absent(true);
        }
        life.steps(&pool, 30);
        pool.sync().unwrap();
        for disk in &away {
            back(&world, &pool, *disk);
        }
        assert!(pool.inner().needs_resilver());
        assert!(pool.inner().start_resilver().unwrap());
        complete(&pool);
        let found = scrub(&pool);
        assert_eq!((found.processed_bytes, found.errors), (0, 0), "{shape}");
        pool.export().unwrap();
        let others: &[&[usize]] = match away.len() {
            1 => &[&[0], &[5]],
            _ => &[&[0, 2], &[5, 6]],
        };
        reads_without(&world, &life, others);
        judge(&world, shape);
    }
}

#[test]
fn a_child_is_replaced_alive_or_dead() {
    for is_dead in [false, true] {
        let world = World::without_journal(172);
        let (pool, mut life) = lived(&world, "draid replaced", &[TWO], 80);
        let old = of_disk(&pool, 2);
        if is_dead {
            fail(&pool, 2);
            world.disks()[2].set_absent(true);
        }
        let new = world.disk(128 << 20, 512);
        let small = world.disk(64 << 20, 512);
        let refused = attach(&pool, old, &small, AttachKind::Replacement).unwrap_err();
        assert_eq!(refused.to_string(), "device is too small");
        let refused = attach(&pool, old, &new, AttachKind::Mirror).unwrap_err();
        let words = "can only attach to mirrors and top-level disks";
        assert_eq!(refused.to_string(), words);
        attach(&pool, old, &new, AttachKind::Replacement).unwrap();
        life.steps(&pool, 10);
        complete(&pool);
        assert!(kinds(&tops(&pool)[0]).iter().all(|kind| kind.is_leaf()));
        let found = scrub(&pool);
        assert_eq!((found.processed_bytes, found.errors), (0, 0));
        life.steps(&pool, 10);
        pool.export().unwrap();
        world.disks()[2].set_absent(true);
        world.disks()[8].set_absent(true);
        reads_without(&world, &life, &[&[0, 1], &[3, 6]]);
        judge(&world, "a replaced child");
    }
}

#[test]
fn a_distributed_spare_steps_in_and_back() {
    let _mark = mark::expect("spare-stepped-in");
    let world = World::without_journal(173);
    let (pool, mut life) = lived(&world, "distributed", &[ONE], 80);
    assert_eq!(pool.inner().step_in_spares(0).unwrap(), 0);
    fail(&pool, 1);
    assert_eq!(pool.inner().step_in_spares(0).unwrap(), 1);
    let spare = &tops(&pool)[0].children[1];
    assert_eq!(spare.kind, VdevType::Spare);
    let leaf = &spare.children[1];
    assert_eq!(leaf.path.as_deref(), Some("draid1-0-0"));
    assert!(leaf.is_spare && leaf.top_guid == Some(tops(&pool)[0].guid));
    life.steps(&pool, 10);
    // It is filled sequentially.
    is_complete(&pool);
    life.steps(&pool, 10);
    pool.sync().unwrap();
    let found = scrub(&pool);
    assert_eq!((found.processed_bytes, found.errors), (0, 0));
    pool.export().unwrap();
    judge(&world, "a distributed spare in use");
    world.disks()[1].set_absent(true);
    reads_without(&world, &life, &[&[0], &[2], &[3], &[4], &[5]]);
    // The others hold its content: one of them may be away for a while too.
    let pool = sim::open(&world).unwrap();
    world.disks()[4].set_absent(true);
    life.steps(&pool, 20);
    pool.sync().unwrap();
    back(&world, &pool, 4);
    assert!(pool.inner().start_resilver().unwrap());
    complete(&pool);
    let found = scrub(&pool);
    assert_eq!((found.processed_bytes, found.errors), (0, 0));
    pool.export().unwrap();
    reads_without(&world, &life, &[&[0], &[4], &[5]]);
    // The disk comes back, and its spare goes.
    let pool = sim::open(&world).unwrap();
    back(&world, &pool, 1);
    pool.inner().clear_leaves(None);
    pool.sync().unwrap();
    life.steps(&pool, 10);
    pool.inner().start_resilver().unwrap();
    complete(&pool);
    assert!(kinds(&tops(&pool)[0]).iter().all(|kind| kind.is_leaf()));
    let found = scrub(&pool);
    assert_eq!((found.processed_bytes, found.errors), (0, 0));
    // It steps in again, and the failed disk is replaced for good.
    fail(&pool, 2);
    assert_eq!(pool.inner().step_in_spares(0).unwrap(), 1);
    is_complete(&pool);
    replace_for_good(&world, &pool, 2);
    let found = scrub(&pool);
    assert_eq!((found.processed_bytes, found.errors), (0, 0));
    pool.export().unwrap();
    world.disks()[2].set_absent(true);
    reads_without(&world, &life, &[&[0], &[6]]);
    judge(&world, "a distributed spare that stepped back");
}

/// A spare whose own space lies on a failed disk, for which another one stands in.
#[test]
fn both_distributed_spares_are_used() {
    let world = World::without_journal(174);
    let (pool, mut life) = lived(&world, "distributed, two", &[TWO], 80);
    for disk in [3, 5] {
        fail(&pool, disk);
        world.disks()[disk].set_absent(true);
        assert_eq!(pool.inner().step_in_spares(0).unwrap(), 1);
        life.steps(&pool, 10);
        is_complete(&pool);
    }
    assert_eq!(pool.inner().step_in_spares(0).unwrap(), 0);
    life.steps(&pool, 10);
    pool.sync().unwrap();
    let found = scrub(&pool);
    assert_eq!((found.processed_bytes, found.errors), (0, 0));
    pool.export().unwrap();
    judge(&world, "two distributed spares");
    reads_without(&world, &life, &[&[0, 1], &[2, 6], &[4, 6], &[0, 4]]);
}

/// A child fails while the spare is being filled, and comes back: the spare lacks what it did not take.
#[test]
fn a_spare_lacks_what_an_absent_child_did_not_take() {
    let world = World::without_journal(175);
    let (pool, mut life) = lived(&world, "distributed, absent", &[TWO], 80);
    use_spare(&pool, of_disk(&pool, 0), "draid2-0-1").unwrap();
    assert!(scan::scanner().slice(pool.inner()).unwrap());
    world.disks()[6].set_absent(true);
    life.steps(&pool, 3);
    scan::finish(&pool);
    assert!(pool.inner().needs_resilver());
    back(&world, &pool, 6);
    for _ in 0..3 {
        pool.inner().start_resilver().unwrap();
        scan::finish(&pool);
    }
    assert!(!pool.inner().needs_resilver());
    let found = scrub(&pool);
    assert_eq!((found.processed_bytes, found.errors), (0, 0));
    pool.export().unwrap();
    world.disks()[0].set_absent(true);
    reads_without(&world, &life, &[&[1, 2], &[4, 5], &[3, 6]]);
    judge(&world, "a spare and an absent child");
}

#[test]
fn an_administrator_uses_a_distributed_spare() {
    let world = World::without_journal(176);
    let (pool, mut life) = lived(&world, "distributed, used", &[ONE, TWO], 80);
    let refused = use_spare(&pool, of_disk(&pool, 0), "draid2-1-0").unwrap_err();
    let words = "dRAID spares can only replace child devices in their parent's dRAID vdev";
    assert_eq!(refused.to_string(), words);
    let spare = use_spare(&pool, of_disk(&pool, 0), "draid1-0-0").unwrap();
    assert_eq!(pool.inner().free_spare_at("draid1-0-0").unwrap(), None);
    life.steps(&pool, 10);
    complete(&pool);
    let removed = pool.inner().remove_auxiliary(spare).unwrap_err();
    assert!(removed.to_string().starts_with("Pool busy"), "{removed}");
    pool.inner().detach_leaf(spare).unwrap();
    assert!(kinds(&tops(&pool)[0]).iter().all(|kind| kind.is_leaf()));
    assert!(pool.inner().free_spare_at("draid1-0-0").unwrap().is_some());
    let removed = pool.inner().remove_auxiliary(spare).unwrap_err();
    assert_eq!(removed.to_string(), "dRAID spares cannot be removed");
    life.steps(&pool, 10);
    pool.sync().unwrap();
    let found = scrub(&pool);
    assert_eq!((found.processed_bytes, found.errors), (0, 0));
    pool.export().unwrap();
    reads_without(&world, &life, &[&[0, 6, 7], &[5, 8, 12]]);
    judge(&world, "a distributed spare used by hand");
}

/// The child is detached, so that its spare stays, until a new device replaces the spare.
#[test]
fn a_distributed_spare_stays_until_it_is_replaced() {
    let world = World::without_journal(177);
    let (pool, mut life) = lived(&world, "distributed, stays", &[TWO], 80);
    let spare = use_spare(&pool, of_disk(&pool, 0), "draid2-0-1").unwrap();
    let early = pool.inner().detach_leaf(of_disk(&pool, 0));
    assert!(early.is_ok(), "parity covers it");
    assert_eq!(kinds(&tops(&pool)[0])[0], VdevType::DraidSpare);
    life.steps(&pool, 10);
    complete(&pool);
    let found = scrub(&pool);
    assert_eq!((found.processed_bytes, found.errors), (0, 0));
    pool.export().unwrap();
    world.disks()[0].set_absent(true);
    reads_without(&world, &life, &[&[1, 2], &[3, 6], &[4, 5]]);
    judge(&world, "a distributed spare that stays");
    let pool = sim::open(&world).unwrap();
    life.steps(&pool, 10);
    assert_eq!(pool.inner().free_spare_at("draid2-0-1").unwrap(), None);
    let new = world.disk(128 << 20, 512);
    attach(&pool, spare, &new, AttachKind::Replacement).unwrap();
    life.steps(&pool, 10);
    complete(&pool);
    assert!(kinds(&tops(&pool)[0]).iter().all(|kind| kind.is_device()));
    assert!(pool.inner().free_spare_at("draid2-0-1").unwrap().is_some());
    let found = scrub(&pool);
    assert_eq!((found.processed_bytes, found.errors), (0, 0));
    pool.export().unwrap();
    reads_without(&world, &life, &[&[1, 2], &[3, 7]]);
    judge(&world, "a distributed spare that was replaced");
}

#[test]
fn replacing_a_child_survives_every_crash() {
    cut_at_every_place("replace, draid", SMALL, AttachKind::Replacement);
}

#[test]
fn a_distributed_spare_survives_every_crash() {
    let begin = |_: &World, pool: &Pool| {
        use_spare(pool, of_disk(pool, 0), "draid1-0-0").unwrap();
    };
    let end = |pool: &Pool| {
        let spare = leaf_at(pool, "draid1-0-0");
        pool.inner().detach_leaf(spare).unwrap();
    };
    cut_everywhere("spare, draid", SMALL, |_, _| (), begin, end);
}

/// A child that holds nothing misses nothing while it is away. Its spare goes all the same when it is back.
#[test]
fn a_spare_steps_back_from_a_child_that_missed_nothing() {
    let world = World::without_journal(178);
    let pool = sim::create(&world, &[TWO], 128);
    pool.sync().unwrap();
    let stored = |disk: &usize| world.disks()[*disk].content().pages().count();
    let empty = (0..TWO.1).min_by_key(stored).unwrap();
    world.disks()[empty].set_absent(true);
    fail(&pool, empty);
    assert_eq!(pool.inner().step_in_spares(0).unwrap(), 1);
    is_complete(&pool);
    back(&world, &pool, empty);
    pool.inner().clear_leaves(None);
    pool.sync().unwrap();
    assert!(pool.inner().start_resilver().unwrap());
    complete(&pool);
    assert!(kinds(&tops(&pool)[0]).iter().all(|kind| kind.is_device()));
    pool.export().unwrap();
    judge(&world, "a spare that stepped back from an empty child");
}

/// Once its spare is complete, a child that is gone counts no more, also where the next one that fails holds a part of the spare.
#[test]
fn after_a_spare_stepped_in_another_child_may_fail() {
    for (shape, top, gone) in [("draid1, twice", ONE, 1), ("draid2, three times", TWO, 2)] {
        let world = World::without_journal(179);
        let (pool, mut life) = lived(&world, shape, &[top], 60);
        for disk in 0..gone {
            fail(&pool, disk);
            world.disks()[disk].set_absent(true);
            assert_eq!(pool.inner().step_in_spares(0).unwrap(), 1, "{shape}");
            life.steps(&pool, 5);
            is_complete(&pool);
        }
        // Every other child holds parts of the spares in some rows.
        for next in gone..top.1 {
            let what = format!("{shape}, {next}");
            world.disks()[next].set_absent(true);
            life.steps(&pool, 5);
            pool.sync()
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            life.steps(&pool, 5);
            pool.sync().unwrap();
            life.compare(&pool.committed().unwrap(), &what);
            world.disks()[next].set_absent(false);
            let device = std::sync::Arc::clone(&world.disks()[next]) as _;
            let leaf = of_disk(&pool, next);
            pool.inner().online_leaf(leaf, Some(&device)).unwrap();
            for _ in 0..3 {
                pool.inner().start_resilver().unwrap();
                scan::finish(&pool);
            }
            assert!(!pool.inner().needs_resilver(), "{what}");
        }
        let found = scrub(&pool);
        assert_eq!((found.processed_bytes, found.errors), (0, 0), "{shape}");
        pool.export().unwrap();
        judge(&world, shape);
    }
}
