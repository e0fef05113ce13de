//! Power failure between any two requests. Flushed data is kept; any part of the rest is lost.

use crate::tests::leaks::{check, check_reopened};
use crate::tests::made::{NoDatasets, Shape, count_up, counted, make, open, open_read_only};
use millpond_env::sync::Arc;
use millpond_sim::{Event, PowerCut, Seed, World};

/// Creates a pool, writes txgs, and records after which request each was acknowledged.
fn history(world: &World, shape: Shape, txgs: u64) -> Vec<(usize, u64)> {
    let pool = make(world, shape, Arc::new(NoDatasets::default()));
    count_up(&pool).unwrap();
    world.forget();
    let mut acknowledged = vec![(0, 1)];
    for _ in 0..txgs {
        let count = count_up(&pool).unwrap();
        acknowledged.push((world.journal().len(), count));
    }
    acknowledged
}

/// The lowest count that must have survived, given what was acknowledged by then.
fn floor(acknowledged: &[(usize, u64)], events: usize) -> u64 {
    acknowledged
        .iter()
        .rev()
        .find(|(at, _)| *at <= events)
        .map_or(0, |(_, count)| *count)
}

fn cut_everywhere(shape: Shape, seed: u64, txgs: u64, step: usize) {
    let world = World::new(seed);
    let acknowledged = history(&world, shape, txgs);
    let journal = world.journal();
    let flushes = |event: &Event| matches!(event, Event::Flush { .. });
    assert!(journal.events().iter().any(flushes), "nothing was flushed");
    let last = acknowledged.last().unwrap().1;
    for count in (0..=journal.len()).step_by(step) {
        for cut in [
            PowerCut::EverythingWritten,
            PowerCut::NothingUnflushed,
            PowerCut::Torn(Seed::new(seed * 7919 + count as u64)),
            PowerCut::First(1),
            PowerCut::AllBut(0),
        ] {
            let after = world.reborn(count, &cut);
            let pool = open_read_only(&after)
                .unwrap_or_else(|error| panic!("after {count} requests, {cut:?}: {error}"));
            let found = counted(&pool);
            let least = floor(&acknowledged, count);
            assert!(
                (least..=last.min(least + 1)).contains(&found),
                "after {count} requests, {cut:?}: {found}, but {least} was acknowledged"
            );
            check(&pool);
        }
    }
}

#[test]
fn one_disk_cut_off_anywhere_has_the_last_txg_or_the_next() {
    cut_everywhere(Shape::ONE, 21, 2, 1);
}

#[test]
fn a_mirror_cut_off_anywhere_has_the_last_txg_or_the_next() {
    cut_everywhere(Shape::MIRROR, 22, 2, 3);
}

#[test]
fn without_log_space_maps_it_is_the_same() {
    let shape = Shape {
        has_features: false,
        ..Shape::ONE
    };
    cut_everywhere(shape, 23, 2, 3);
}

#[test]
fn a_pool_survives_repeated_power_cuts() {
    let world = World::new(31);
    let acknowledged = history(&world, Shape::MIRROR, 2);
    let journal = world.journal();
    let mut count = 1;
    while count < journal.len() {
        let cut = PowerCut::Torn(Seed::new(count as u64));
        let after = world.reborn(count, &cut);
        let pool = open(&after, Arc::new(NoDatasets::default())).unwrap();
        let opened = after.journal().len();
        let next = count_up(&pool).unwrap();
        assert!(next > floor(&acknowledged, count));
        drop(pool);
        // A second power failure, during the writes of the second run.
        let middle = opened + (after.journal().len() - opened) / 2;
        let third = after.reborn(middle, &PowerCut::Torn(Seed::new(count as u64 + 1)));
        let read = open_read_only(&third).unwrap();
        assert!(counted(&read) >= next - 1);
        check(&read);
        count += 37;
    }
}

#[test]
fn a_crash_during_open_loses_nothing() {
    let world = World::new(32);
    let pool = make(&world, Shape::ONE, Arc::new(NoDatasets::default()));
    for _ in 0..3 {
        count_up(&pool).unwrap();
    }
    drop(pool);
    world.forget();
    let pool = open(&world, Arc::new(NoDatasets::default())).unwrap();
    drop(pool);
    for count in 0..=world.journal().len() {
        let after = world.reborn(count, &PowerCut::Torn(Seed::new(count as u64)));
        check_reopened(&after, 3);
    }
}
