//! Hot spares: they step in by themselves or for an administrator, go back to the list, or stay for good.

use crate::attach::{
    add_spare, attach, complete, cut_at_every_place, is_sound, kinds, of_disk, tops,
};
use crate::exhaustive::judge;
use crate::rebuild::is_complete;
use crate::scan::{lived, online, scrub};
use crate::sim;
use millpond_device::Device;
use millpond_engine::{
    AttachError, AttachKind,
    NewLayout::{Mirror, Raidz, Single},
    Pool, ResilverKind,
};
use millpond_env::mark;
use millpond_ondisk::Guid;
use millpond_pool::import::read_labels;
use millpond_pool::is_labelled_as;
use millpond_sim::{Event, PowerCut, SimDisk, World};
use millpond_tests::workload::Life;
use millpond_vdev::{VdevConfig, VdevType};
use std::sync::Arc;

/// A RAID-Z pool with a spare, which is offered to it. Returns the disk of the spare.
fn with_spare(world: &World, shape: &str) -> (Pool, Life, Arc<SimDisk>) {
    let (pool, life) = lived(world, shape, &[(Raidz(1), 3)], 80);
    let spare = world.disk(128 << 20, 512);
    add_spare(&pool, &spare);
    offer(&pool, &spare);
    (pool, life, spare)
}

fn offer(pool: &Pool, disk: &Arc<SimDisk>) {
    let view = pool.committed().unwrap();
    let guid = view.inner().spares()[0].u64("guid").unwrap();
    pool.inner().offer_spare(Guid(guid), Arc::clone(disk) as _);
}

fn fail(pool: &Pool, number: usize) {
    let how = millpond_engine::Offline {
        is_fault: true,
        is_temporary: false,
    };
    let leaf = of_disk(pool, number);
    pool.inner().offline_leaf(leaf, how).unwrap();
}

/// Replaces a failed disk, for which a spare stands in. The spare steps back.
pub(crate) fn replace_for_good(world: &World, pool: &Pool, disk: usize) {
    let new = world.disk(128 << 20, 512);
    attach(pool, of_disk(pool, disk), &new, AttachKind::Replacement).unwrap();
    complete(pool);
    let vdevs = tops(pool);
    assert!(
        kinds(&vdevs[0]).iter().all(|kind| kind.is_leaf()),
        "{vdevs:#?}"
    );
}

#[test]
fn a_spare_steps_in_and_back() {
    let _mark = mark::expect("spare-stepped-in");
    let world = World::without_journal(66);
    let (pool, mut life, spare) = with_spare(&world, "spare");
    assert_eq!(pool.inner().step_in_spares(0).unwrap(), 0);
    fail(&pool, 1);
    assert_eq!(pool.inner().step_in_spares(1 << 40).unwrap(), 0);
    assert_eq!(pool.inner().step_in_spares(0).unwrap(), 1);
    assert_eq!(pool.inner().step_in_spares(0).unwrap(), 0);
    assert_eq!(kinds(&tops(&pool)[0])[1], VdevType::Spare);
    life.steps(&pool, 10);
    complete(&pool);
    // It stays in place of the failed disk. A second disk may fail.
    assert_eq!(kinds(&tops(&pool)[0])[1], VdevType::Spare);
    pool.sync().unwrap();
    pool.export().unwrap();
    world.disks()[1].set_absent(true);
    world.disks()[2].set_absent(true);
    let view = sim::read(&world).unwrap();
    life.compare(&view, "spare");
    drop(view);
    world.disks()[1].set_absent(false);
    world.disks()[2].set_absent(false);
    judge(&world, "a spare in use");
    let pool = sim::open(&world).unwrap();
    offer(&pool, &spare);
    // The disk comes back: it is resilvered, and the spare goes back to the list.
    online(&world, &pool, 1);
    pool.inner().clear_leaves(None);
    pool.sync().unwrap();
    life.steps(&pool, 10);
    let back = pool.inner().leaf_condition(of_disk(&pool, 1));
    assert!(pool.inner().needs_resilver(), "{back:?}");
    assert!(pool.inner().start_resilver().unwrap());
    complete(&pool);
    assert!(
        kinds(&tops(&pool)[0]).iter().all(|kind| kind.is_leaf()),
        "{:#?}",
        tops(&pool)
    );
    life.steps(&pool, 10);
    // And it can step in again.
    fail(&pool, 2);
    assert_eq!(pool.inner().step_in_spares(0).unwrap(), 1);
    // Now the failed disk is replaced for good.
    replace_for_good(&world, &pool, 2);
    scrub(&pool);
    pool.export().unwrap();
    world.disks()[2].set_absent(true);
    let view = sim::read(&world).unwrap();
    is_sound(&view, "spare");
    life.compare(&view, "spare");
    judge(&world, "a spare that stepped back");
}

fn listed(pool: &Pool) -> usize {
    pool.committed().unwrap().inner().spares().len()
}

/// Uses the spare of [`with_spare`] for a leaf, as `zpool replace` does.
fn use_spare(pool: &Pool, number: usize) -> Result<Guid, AttachError> {
    let spare = pool.inner().free_spare_at("/sim/d3.img").unwrap().unwrap();
    let leaf = of_disk(pool, number);
    let how = ResilverKind::Healing;
    pool.inner().use_spare(how, leaf, spare, || None)
}

#[test]
fn a_spare_that_an_administrator_uses_goes_back_or_stays() {
    let _mark = mark::expect("spare-stays-for-good");
    for is_dead in [false, true] {
        let world = World::without_journal(68);
        let (pool, mut life, spare) = with_spare(&world, "spare used");
        let guid = use_spare(&pool, 1).unwrap();
        assert_eq!(kinds(&tops(&pool)[0])[1], VdevType::Spare);
        assert_eq!(pool.inner().free_spare_at("/sim/d3.img").unwrap(), None);
        life.steps(&pool, 10);
        complete(&pool);
        // Given up: it is in the list as before, with its label.
        pool.inner().detach_leaf(guid).unwrap();
        assert_eq!(listed(&pool), 1);
        offer(&pool, &spare);
        use_spare(&pool, 1).unwrap();
        complete(&pool);
        life.steps(&pool, 10);
        world.disks()[1].set_absent(is_dead);
        pool.inner().detach_leaf(of_disk(&pool, 1)).unwrap();
        assert_eq!(listed(&pool), 0);
        let column = &tops(&pool)[0].children[1];
        assert!(column.kind.is_leaf() && !column.is_spare, "{column:?}");
        assert_eq!(column.guid, guid);
        assert_eq!(pool.inner().step_in_spares(0).unwrap(), 0);
        life.steps(&pool, 10);
        scrub(&pool);
        pool.export().unwrap();
        world.disks()[1].set_absent(true);
        judge(&world, "a spare that stayed");
        let pool = sim::open(&world).unwrap();
        life.steps(&pool, 10);
        pool.export().unwrap();
        let view = sim::read(&world).unwrap();
        is_sound(&view, "a spare that stayed");
        life.compare(&view, "a spare that stayed");
    }
}

#[test]
fn a_spare_of_a_single_disk_takes_the_place_of_its_vdev() {
    let world = World::without_journal(69);
    let (pool, mut life) = lived(&world, "spare, single", &[(Single, 1), (Single, 1)], 60);
    let spare = world.disk(128 << 20, 512);
    add_spare(&pool, &spare);
    let path = "/sim/d2.img";
    let guid = pool.inner().free_spare_at(path).unwrap().unwrap();
    let device = || Some(Arc::clone(&spare) as _);
    let how = ResilverKind::Healing;
    (pool.inner().use_spare(how, of_disk(&pool, 1), guid, device)).unwrap();
    complete(&pool);
    let place = tops(&pool)[1].guid;
    pool.inner().detach_leaf(of_disk(&pool, 1)).unwrap();
    let top = &tops(&pool)[1];
    assert_eq!((top.path.as_deref(), top.guid), (Some(path), place));
    assert!(!top.is_spare && listed(&pool) == 0);
    life.steps(&pool, 10);
    pool.export().unwrap();
    world.disks()[1].set_absent(true);
    judge(&world, "a spare of a single disk");
    let view = sim::read(&world).unwrap();
    life.compare(&view, "a spare of a single disk");
}

#[test]
fn a_device_that_is_no_free_spare_any_more_does_not_step_in() {
    let world = World::without_journal(70);
    let (pool, _, spare) = with_spare(&world, "taken spare");
    // Another pool has written its labels there.
    let other = World::without_journal(71);
    sim::create(&other, &[(Single, 1)], 128).export().unwrap();
    let label = &mut vec![0; 256 << 10];
    other.disks()[0].read(0, label).unwrap();
    spare.write(0, label).unwrap();
    let refused = use_spare(&pool, 1).unwrap_err().to_string();
    assert!(refused.contains("not labelled"), "{refused}");
    fail(&pool, 1);
    assert_eq!(pool.inner().step_in_spares(0).unwrap(), 0);
    assert_eq!(pool.inner().free_spare_at("/sim/d9.img").unwrap(), None);
    pool.export().unwrap();
}

#[test]
fn a_spare_is_removed_unless_it_is_in_use() {
    let world = World::without_journal(67);
    let (pool, _, _) = with_spare(&world, "spare removed");
    let guid = Guid(
        pool.committed().unwrap().inner().spares()[0]
            .u64("guid")
            .unwrap(),
    );
    fail(&pool, 1);
    assert_eq!(pool.inner().step_in_spares(0).unwrap(), 1);
    let refused = pool.inner().remove_auxiliary(guid).unwrap_err().to_string();
    assert!(refused.starts_with("Pool busy"), "{refused}");
    pool.inner().detach_leaf(guid).unwrap();
    let removed = pool.inner().remove_auxiliary(guid).unwrap();
    assert_eq!(removed.path.as_deref(), Some("/sim/d3.img"));
    assert!(pool.committed().unwrap().inner().spares().is_empty());
    let again = pool.inner().remove_auxiliary(guid).unwrap_err().to_string();
    assert_eq!(again, "no such device in pool");
    pool.export().unwrap();
    judge(&world, "a removed spare");
}

#[test]
fn a_spare_that_stays_survives_every_crash() {
    cut_at_every_place("spare, mirror", (Mirror, 2), AttachKind::Spare);
}

/// An administrator replaces a side of a mirror with a spare, sequentially. RAID-Z is refused.
#[test]
fn a_spare_is_filled_sequentially() {
    let world = World::without_journal(187);
    let (pool, mut life) = lived(&world, "spare -s", &[(Mirror, 2), (Raidz(1), 3)], 60);
    let spare = world.disk(128 << 20, 512);
    add_spare(&pool, &spare);
    offer(&pool, &spare);
    let view = pool.committed().unwrap();
    let guid = Guid(view.inner().spares()[0].u64("guid").unwrap());
    drop(view);
    let how = ResilverKind::Sequential;
    let refused = pool
        .inner()
        .use_spare(how, of_disk(&pool, 3), guid, || None);
    let words = "only mirror and dRAID vdevs support sequential reconstruction";
    assert_eq!(refused.unwrap_err().to_string(), words);
    fail(&pool, 0);
    let used = pool
        .inner()
        .use_spare(how, of_disk(&pool, 0), guid, || None);
    used.unwrap();
    life.steps(&pool, 5);
    is_complete(&pool);
    life.steps(&pool, 5);
    pool.export().unwrap();
    for away in [0, 1] {
        world.disks()[away].set_absent(true);
    }
    let view = sim::read(&world).unwrap();
    is_sound(&view, "spare -s");
    life.compare(&view, "spare -s");
    drop(view);
    for away in [0, 1] {
        world.disks()[away].set_absent(false);
    }
    judge(&world, "spare -s");
}

/// The power fails after the labels of a spare were written that steps in, and before the txg is committed.
#[test]
fn a_spare_that_was_stepping_in_is_free_after_a_crash() {
    let world = World::new(73);
    let pool = sim::create(&world, &[(Mirror, 2)], 64);
    add_spare(&pool, &world.disk(64 << 20, 512));
    fail(&pool, 1);
    pool.sync().unwrap();
    let listed = pool.inner().free_spare_at("/sim/d2.img").unwrap();
    let guid = listed.unwrap();
    world.forget();
    offer(&pool, world.disks().last().unwrap());
    assert_eq!(pool.inner().step_in_spares(0).unwrap(), 1);
    drop(pool);
    let journal = world.journal();
    let is_flush = |index: &usize| matches!(journal.events()[*index], Event::Flush { .. });
    let mut seen = [0; 3];
    for count in (0..journal.len()).filter(is_flush) {
        for cut in [PowerCut::NothingUnflushed, PowerCut::EverythingWritten] {
            let what = format!("after {count} events, {cut:?}");
            let after = world.reborn(count, &cut);
            let disk = Arc::clone(after.disks().last().unwrap());
            let labels = read_labels(disk.as_ref());
            let is_begun = labels.iter().all(Result::is_err);
            let pool = sim::open(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
            if kinds(&tops(&pool)[0])[1] == VdevType::Spare {
                seen[2] += 1;
                pool.export().unwrap();
                continue;
            }
            seen[usize::from(is_begun)] += 1;
            // Who opens the spares of a pool knows it again.
            assert!(is_labelled_as(disk.as_ref(), guid), "{what}");
            offer(&pool, &disk);
            assert_eq!(pool.inner().step_in_spares(0).unwrap(), 1, "{what}");
            complete(&pool);
            pool.export().unwrap();
            let view = sim::read(&after).unwrap();
            is_sound(&view, &what);
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

/// Two pools list the same spare. The power fails while it steps in for one of them: the other must not take it, as
/// the first may go on at any time.
#[test]
fn a_spare_that_was_stepping_in_is_not_free_for_another_pool() {
    let world = World::new(74);
    let pool = sim::create(&world, &[(Mirror, 2)], 64);
    let spare = world.disk(64 << 20, 512);
    add_spare(&pool, &spare);
    let other = World::without_journal(75);
    let second = sim::create(&other, &[(Mirror, 2)], 64);
    let listed = pool.committed().unwrap().inner().spares()[0].clone();
    let listed = VdevConfig::from_nvlist(&listed).unwrap();
    second.inner().share_spare(&listed).unwrap();
    fail(&pool, 1);
    fail(&second, 1);
    pool.sync().unwrap();
    world.forget();
    offer(&pool, &spare);
    assert_eq!(pool.inner().step_in_spares(0).unwrap(), 1);
    let journal = world.journal();
    let is_begun = |count: &usize| {
        let after = world.reborn(*count, &PowerCut::NothingUnflushed);
        let labels = read_labels(after.disks()[2].as_ref());
        labels.iter().all(Result::is_err)
    };
    let count = (0..journal.len()).find(is_begun).unwrap();
    let after = world.reborn(count, &PowerCut::NothingUnflushed);
    offer(&second, &after.disks()[2]);
    assert_eq!(second.inner().step_in_spares(0).unwrap(), 0);
    let again = sim::open(&after).unwrap();
    offer(&again, &after.disks()[2]);
    assert_eq!(again.inner().step_in_spares(0).unwrap(), 1);
}
