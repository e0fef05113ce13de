//! Sequential resilvers of dRAID: children get their columns from another leaf of the child or from the rest of each group, and
//! distributed spares what they stand for, while programs write, when disks fail, and after power cuts.

use crate::attach::{of_disk, tops};
use crate::draid::{ONE, SMALL, TWO, draid, fail as take_out, reads_without, use_spare_as};
use crate::exhaustive::judge;
use crate::rebuild::{
    REBUILD, attach, cut_everywhere, fail, finish_with, is_complete, is_healed, is_same_everywhere,
    rebuild, slice, write_beside,
};
use crate::scan::{finish, lived, scrub};
use crate::sim;
use millpond_engine::{AttachKind, LeafEvent, LeafState, Pool, ResilverKind};
use millpond_env::mark;
use millpond_ondisk::{Guid, RebuildPhase, VDEV_DATA_START_BYTES};
use millpond_sim::{Scope, World, noise};
use std::sync::Arc;

fn use_spare(pool: &Pool, leaf: Guid, path: &str) -> Guid {
    use_spare_as(ResilverKind::Sequential, pool, leaf, path).unwrap()
}

/// How many pages each disk holds.
fn stored(world: &World) -> Vec<usize> {
    let disks = world.disks();
    disks
        .iter()
        .map(|disk| disk.content().pages().count())
        .collect()
}

/// The disks of a new pool that hold most. What it has lies in few groups, in which not all children have a column.
fn fullest(world: &World) -> Vec<usize> {
    let stored = stored(world);
    let mut disks: Vec<usize> = (0..stored.len()).collect();
    disks.sort_by_key(|disk| std::cmp::Reverse(stored[*disk]));
    disks
}

/// Opens the pool without each of these disks.
fn each_missing(world: &World, disks: &[usize], look: &dyn Fn(&str)) {
    for goes in disks {
        world.disks()[*goes].set_absent(true);
        look(&format!("without disk {goes}"));
        world.disks()[*goes].set_absent(false);
    }
}

/// The offset that is stored is the start of a stripe: the kernel module may continue from it.
fn is_at_a_stripe(pool: &Pool) {
    let topology = pool.inner().store().topology();
    for (top, state, _) in pool.inner().rebuilds() {
        let node = topology.tree.top(top).unwrap();
        let stripe_bytes = node.draid().unwrap().stripe_bytes(node.ashift).unwrap();
        assert_eq!(state.last_offset % stripe_bytes, 0, "{state:?}");
    }
}

/// With the old disk there, its bytes are copied. Without it, they are computed.
#[test]
fn children_are_replaced_while_the_pool_is_used() {
    let _ends = mark::expect("rebuild-ends");
    let _computed = mark::expect("copy-from-parity");
    // `dead`: which of the fullest disks, of which the first is replaced.
    for (shape, top, dead) in [
        ("draid1 alive", ONE, vec![]),
        ("draid1 dead", ONE, vec![0]),
        ("draid2 dead", TWO, vec![0]),
        ("draid2, another dead", TWO, vec![1]),
        ("draid2, two dead", TWO, vec![0, 1]),
        ("draid3 dead", (draid(3, 3, 1), 8), vec![0, 1, 4]),
    ] {
        let world = World::without_journal(180);
        let (pool, mut life) = lived(&world, shape, &[top], 100);
        let disks = fullest(&world);
        let old = of_disk(&pool, disks[0]);
        for number in dead.iter().map(|at| disks[*at]) {
            take_out(&pool, number);
            world.disks()[number].set_absent(true);
        }
        let disk = world.disk(128 << 20, 512);
        attach(&pool, old, &disk, AttachKind::Replacement).unwrap();
        assert_eq!(pool.inner().features().count(REBUILD), Some(1));
        let mut slices = 0;
        let state = finish_with(&pool, |pool| {
            life.steps(pool, 1);
            is_at_a_stripe(pool);
            slices += 1;
        });
        let state = state.unwrap();
        assert!(slices >= 5, "{shape}: {slices} slices");
        assert_eq!((state.phase, state.errors), (RebuildPhase::Complete, 0));
        is_rebuilt(&pool, shape);
        life.steps(&pool, 10);
        pool.sync().unwrap();
        is_same_everywhere(&pool);
        pool.export().unwrap();
        // What parity is left covers other disks now.
        world.disks()[disks[0]].set_absent(true);
        let parity = if top == ONE { 1 } else { 2 };
        let away: Vec<usize> = dead
            .iter()
            .filter(|at| **at > 0)
            .map(|at| disks[*at])
            .collect();
        for other in disks[2..4].iter().filter(|_| away.len() < parity) {
            reads_without(&world, &life, &[&[away.clone(), vec![*other]].concat()]);
        }
        judge(&world, shape);
    }
}

/// A rebuild was complete, and nothing else is needed for its leaves.
fn is_rebuilt(pool: &Pool, shape: &str) {
    assert!(pool.inner().take_scrub_due(), "{shape}");
    assert_eq!(pool.inner().features().count(REBUILD), Some(0), "{shape}");
    pool.inner().finish_replacements().unwrap();
}

#[test]
fn distributed_spares_are_filled() {
    for (shape, top, dead) in [
        ("spare, alive", ONE, 0),
        ("spare, dead", ONE, 1),
        ("two spares", TWO, 2),
    ] {
        let world = World::without_journal(181);
        let (pool, mut life) = lived(&world, shape, &[top], 100);
        let disks = fullest(&world);
        for number in &disks[..dead] {
            take_out(&pool, *number);
            world.disks()[*number].set_absent(true);
        }
        let name = if top == ONE { "draid1-0-" } else { "draid2-0-" };
        let mut slices = 0;
        for (number, disk) in disks[..dead.max(1)].iter().enumerate() {
            use_spare(&pool, of_disk(&pool, *disk), &format!("{name}{number}"));
            // The second one starts the rebuild again.
            assert!(slice(&pool));
            life.steps(&pool, 2);
        }
        let state = finish_with(&pool, |pool| {
            life.steps(pool, 1);
            is_at_a_stripe(pool);
            slices += 1;
        });
        let state = state.unwrap();
        assert!(slices >= 5, "{shape}: {slices} slices");
        assert_eq!(
            (state.phase, state.errors),
            (RebuildPhase::Complete, 0),
            "{shape}"
        );
        is_rebuilt(&pool, shape);
        life.steps(&pool, 10);
        pool.sync().unwrap();
        is_same_everywhere(&pool);
        pool.export().unwrap();
        // As many as before may fail now.
        world.disks()[disks[0]].set_absent(true);
        let (two, three, four) = (disks[2], disks[3], disks[4]);
        match dead {
            2 => reads_without(
                &world,
                &life,
                &[&[two, three], &[three, four], &[four, two]],
            ),
            _ => reads_without(&world, &life, &[&[two], &[three], &[four]]),
        }
        judge(&world, shape);
    }
}

/// What a device cannot read is computed from more parity, if there is some.
#[test]
fn unreadable_columns_are_computed() {
    let world = World::without_journal(182);
    let (pool, mut life) = lived(&world, "draid2, unreadable", &[TWO], 100);
    let disks = fullest(&world);
    let old = of_disk(&pool, disks[0]);
    take_out(&pool, disks[0]);
    let disk = world.disk(128 << 20, 512);
    attach(&pool, old, &disk, AttachKind::Replacement).unwrap();
    fail(&world.disks()[disks[1]], Scope::Reads, 500_000);
    finish_with(&pool, |pool| life.steps(pool, 2));
    assert!(world.disks()[disks[1]].broken_promises() > 0);
    world.disks()[disks[1]].set_faults(None);
    is_complete(&pool);
    is_same_everywhere(&pool);
    pool.export().unwrap();
    judge(&world, "draid2, unreadable");
}

#[test]
fn after_errors_a_healing_resilver_follows() {
    let _mark = mark::expect("rebuild-falls-back");
    for (shape, is_target, scope, per_million) in [
        ("draid, unreadable", false, Scope::Reads, 300_000),
        ("draid, target fails", true, Scope::Writes, 900_000),
        ("draid, target loses", true, Scope::Flushes, 1_000_000),
    ] {
        let world = World::without_journal(183);
        let (pool, mut life) = lived(&world, shape, &[ONE], 100);
        let disks = fullest(&world);
        let number = if is_target { ONE.1 } else { disks[1] };
        let old = of_disk(&pool, disks[0]);
        take_out(&pool, disks[0]);
        let disk = world.disk(128 << 20, 512);
        attach(&pool, old, &disk, AttachKind::Replacement).unwrap();
        assert!(slice(&pool));
        fail(&world.disks()[number], scope, per_million);
        for _ in 0..6 {
            slice(&pool);
        }
        assert!(world.disks()[number].broken_promises() > 0, "{shape}");
        world.disks()[number].set_faults(None);
        life.steps(&pool, 5);
        pool.export().unwrap();
        let pool = sim::open(&world).unwrap();
        let state = finish_with(&pool, |pool| life.steps(pool, 2)).unwrap();
        let (phase, has_errors) = (state.phase, state.errors > 0);
        // A target that loses what it was given is out of date again.
        let expected = match is_target {
            false => (RebuildPhase::Complete, true),
            true => (RebuildPhase::Canceled, false),
        };
        assert_eq!((phase, has_errors), expected, "{shape}");
        let disks: Vec<usize> = (0..=ONE.1).filter(|disk| *disk != disks[0]).collect();
        is_healed(&world, pool, &life, (each_missing, &disks), shape);
    }
}

/// Overwrites what a disk holds behind its labels, unseen.
fn spoil(world: &World, number: usize) {
    let disk = &world.disks()[number];
    let pages: Vec<u64> = disk.content().pages().map(|(offset, _)| offset).collect();
    for offset in pages
        .into_iter()
        .filter(|offset| *offset >= VDEV_DATA_START_BYTES)
    {
        disk.rot(offset, &noise(offset, 4096));
    }
}

/// A sequential resilver verifies nothing: it copies what a silently spoiled disk holds into the spare. The scrub counts that
/// to the disk and to the spare, not to the disks that hold the spare's space.
#[test]
fn wrong_bytes_in_a_spare_are_counted_to_the_spare() {
    let world = World::without_journal(186);
    let (pool, life) = lived(&world, "spare of a spoiled disk", &[ONE], 100);
    let disks = fullest(&world);
    pool.sync().unwrap();
    spoil(&world, disks[0]);
    let spare = use_spare(&pool, of_disk(&pool, disks[0]), "draid1-0-0");
    let state = finish_with(&pool, |_| ()).unwrap();
    assert_eq!(state.phase, RebuildPhase::Complete);
    let scan = scrub(&pool);
    assert!(scan.processed_bytes > 0);
    assert_eq!(scan.errors, 0);
    pool.inner().check_leaves();
    let topology = pool.inner().store().topology();
    let spoiled = of_disk(&pool, disks[0]);
    for (leaf, node) in topology.tree.leaves() {
        let guid = node.config.guid;
        let wrong = topology.leaf_stats(leaf).checksum_errors;
        assert_eq!(wrong > 0, guid == spare || guid == spoiled, "{node:?}");
        let is_degraded = topology.condition(leaf).state == LeafState::Degraded;
        assert_eq!(is_degraded, guid == spoiled, "{node:?}");
    }
    let of_spare = |event: &LeafEvent| event.leaf == spare;
    assert!(pool.inner().take_leaf_events().iter().any(of_spare));
    is_same_everywhere(&pool);
    pool.export().unwrap();
    world.disks()[disks[0]].set_absent(true);
    reads_without(&world, &life, &[&[disks[1]], &[disks[2]]]);
    judge(&world, "spare of a spoiled disk");
}

/// A leaf that holds a part of the spare's space goes away: the spare lacks what it did not get.
#[test]
fn a_holder_of_the_spare_that_goes_away_ends_the_rebuild() {
    let world = World::without_journal(184);
    let (pool, mut life) = lived(&world, "holder away", &[TWO], 100);
    let disks = fullest(&world);
    let before = stored(&world);
    use_spare(&pool, of_disk(&pool, disks[0]), "draid2-0-0");
    for _ in 0..3 {
        assert!(slice(&pool));
    }
    // Most of what the spare got is on this one.
    let after = stored(&world);
    let growth = |disk: &usize| after[*disk].saturating_sub(before[*disk]);
    let holder = (0..TWO.1).max_by_key(growth).unwrap();
    assert!(growth(&holder) > 0 && holder != disks[0]);
    let away = of_disk(&pool, holder);
    pool.inner().offline_leaf(away, Default::default()).unwrap();
    life.steps(&pool, 5);
    let state = finish_with(&pool, |pool| life.steps(pool, 1)).unwrap();
    assert_eq!(state.phase, RebuildPhase::Canceled);
    let device = Arc::clone(&world.disks()[holder]) as _;
    pool.inner().online_leaf(away, Some(&device)).unwrap();
    while pool.inner().needs_resilver() {
        assert!(pool.inner().start_resilver().unwrap());
        finish(&pool);
    }
    is_same_everywhere(&pool);
    pool.export().unwrap();
    world.disks()[disks[0]].set_absent(true);
    let others = disks[1..].iter().filter(|disk| **disk != holder);
    let others: Vec<usize> = others.copied().take(3).collect();
    reads_without(&world, &life, &[&others[..2], &[others[2], holder]]);
    judge(&world, "holder away");
}

#[test]
fn a_pool_is_exported_and_imported_meanwhile() {
    let world = World::without_journal(185);
    let (pool, mut life) = lived(&world, "draid imported", &[ONE], 100);
    let disks = fullest(&world);
    take_out(&pool, disks[0]);
    use_spare(&pool, of_disk(&pool, disks[0]), "draid1-0-0");
    assert!(slice(&pool));
    let before = rebuild(&pool).last_offset;
    pool.export().unwrap();
    let pool = sim::open(&world).unwrap();
    assert_eq!(rebuild(&pool).last_offset, before);
    life.steps(&pool, 5);
    is_complete(&pool);
    is_same_everywhere(&pool);
    assert_eq!(tops(&pool)[0].children.len(), 6);
    pool.export().unwrap();
    judge(&world, "draid imported");
}

#[test]
fn writes_and_log_writes_run_beside_a_rebuild() {
    write_beside(SMALL.0, SMALL.1);
}

#[test]
fn replacing_a_child_survives_every_crash() {
    cut_everywhere(
        "replace -s, draid",
        SMALL,
        (each_missing, 12),
        &|world, pool| {
            let disk = world.disks().last().cloned().unwrap();
            let old = of_disk(pool, fullest(world)[0]);
            attach(pool, old, &disk, AttachKind::Replacement).unwrap();
        },
    );
}

#[test]
fn filling_a_spare_survives_every_crash() {
    cut_everywhere(
        "spare -s, draid",
        SMALL,
        (each_missing, 12),
        &|world, pool| {
            use_spare(pool, of_disk(pool, fullest(world)[0]), "draid1-0-0");
        },
    );
}
