//! Frees of blocks that pinned states contain.

use super::world::World;
use super::*;

/// Frees a block written in `birth` in the current txg, completes that txg and two more, and returns whether
/// its space can be allocated again.
fn is_reused(pinned: &[Txg], birth: Txg) -> bool {
    let mut world = World::new(vec![plain(0, 1, 20, 9)], 4096, LOGS);
    let block = world.allocate(&normal(4096, 1)).unwrap()[0];
    world.sync();
    let allocated = world.stated_bytes();
    world.allocator.set_pinned(pinned);
    let freed = world.txg;
    world.allocator.free(freed, &block, birth, false).unwrap();
    while world.pass(1) {}
    world.allocator.synced(freed, Txg(0), pinned).unwrap();
    assert_eq!(world.stated_bytes(), allocated, "not before two more txgs");
    world.allocator.synced(freed, freed, pinned).unwrap();
    world.stated_bytes() < allocated
}

#[test]
fn a_block_of_a_pinned_state_is_not_reused() {
    let freed = World::new(vec![plain(0, 1, 20, 9)], 4096, LOGS).txg.0 + 1;
    let (before, last) = (Txg(freed - 2), Txg(freed - 1));
    assert!(is_reused(&[], before));
    assert!(!is_reused(&[before], before), "pinned in its birth txg");
    assert!(!is_reused(&[last], before), "pinned between birth and free");
    assert!(is_reused(&[before], last), "younger than the pinned state");
    assert!(!is_reused(&[before, last], last), "in the newer state");
    assert!(
        is_reused(&[Txg(freed)], before),
        "freed in the pinned state"
    );
}

#[test]
fn a_pin_taken_after_the_free_delays_reuse() {
    let mut world = World::new(vec![plain(0, 1, 20, 9)], 4096, LOGS);
    let block = world.allocate(&normal(4096, 1)).unwrap()[0];
    let birth = world.txg;
    world.sync();
    let (allocated, freed) = (world.stated_bytes(), world.txg);
    world.allocator.free(freed, &block, birth, false).unwrap();
    while world.pass(1) {}
    // The state before this txg is the last committed one until the txg is.
    world.allocator.synced(freed, freed, &[birth]).unwrap();
    assert_eq!(world.stated_bytes(), allocated);
    world.allocator.synced(freed, freed, &[]).unwrap();
    assert!(world.stated_bytes() < allocated);
}

/// Blocks that are not next to each other, written in the first txg; the rest of the space is free.
fn scattered(world: &mut World, count: usize) -> Vec<Dva> {
    let all: Vec<Dva> = (0..count * 2)
        .map(|_| world.allocate(&normal(4096, 1)).unwrap()[0])
        .collect();
    world.sync();
    all.into_iter().step_by(2).collect()
}

/// Frees a block of `birth` in the current txg and completes the txg.
fn free_and_sync(world: &mut World, block: &Dva, birth: Txg, until: Txg, pinned: &[Txg]) {
    let txg = world.txg;
    world.allocator.free(txg, block, birth, false).unwrap();
    while world.pass(1) {}
    world.allocator.synced(txg, until, pinned).unwrap();
    world.txg = Txg(txg.0 + 1);
}

fn waiting_sets(world: &World, block: &Dva) -> usize {
    let vdevs = world.allocator.vdevs();
    let metaslab = vdevs[&block.vdev].holder_of(block).unwrap();
    metaslab.with(|state| state.waiting_sets())
}

#[test]
fn frees_that_the_same_pins_hold_are_kept_as_one() {
    let mut world = World::new(vec![plain(0, 1, 20, 9)], 4096, LOGS);
    let birth = world.txg;
    let blocks = scattered(&mut world, 50);
    let allocated = world.stated_bytes();
    for block in &blocks {
        let until = Txg(world.txg.0 - 2);
        free_and_sync(&mut world, block, birth, until, &[birth]);
        assert!(waiting_sets(&world, block) <= 3, "txg {}", world.txg);
    }
    assert_eq!(world.stated_bytes(), allocated);
    let last = world.txg;
    world.allocator.synced(last, last, &[birth]).unwrap();
    assert_eq!(world.stated_bytes(), allocated);
    assert_eq!(waiting_sets(&world, &blocks[0]), 1);
    world.allocator.synced(last, last, &[]).unwrap();
    assert_eq!(world.stated_bytes(), allocated - 50 * 4096);
    assert_eq!(waiting_sets(&world, &blocks[0]), 0);
}

#[test]
fn too_many_ranges_held_by_pins_are_noticed() {
    let mut world = World::new(vec![plain(0, 1, 20, 9)], 4096, LOGS);
    let birth = world.txg;
    let blocks = scattered(&mut world, 8);
    world.allocator.held_ranges_max = 4;
    for block in &blocks[..6] {
        // Not held by the pin alone yet.
        free_and_sync(&mut world, block, birth, Txg(0), &[birth]);
        assert!(!world.allocator.holds_too_many_ranges());
    }
    let until = Txg(world.txg.0 - 1);
    free_and_sync(&mut world, &blocks[6], birth, until, &[birth]);
    assert!(world.allocator.holds_too_many_ranges());
    free_and_sync(&mut world, &blocks[7], birth, until, &[]);
    assert!(!world.allocator.holds_too_many_ranges());
}

#[test]
fn exactly_the_blocks_of_pinned_states_are_held() {
    for seed in 1..=20u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut below = |end: u64| {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (random >> 33) % end
        };
        let mut world = World::new(vec![plain(0, 1, 20, 9)], 4096, LOGS);
        let first = world.txg.0;
        let mut blocks = scattered(&mut world, 80);
        let allocated = world.stated_bytes();
        let mut pinned: Vec<Txg> = vec![];
        let mut freed: Vec<(Txg, Txg)> = vec![];
        let mut until = Txg(0);
        while let Some(block) = blocks.pop() {
            let txg = world.txg;
            if below(3) == 0 {
                pinned.push(Txg(txg.0 - 1));
                world.allocator.set_pinned(&pinned);
            }
            let birth = Txg(first + below(txg.0 - first));
            freed.push((birth, txg));
            if below(4) == 0 && !pinned.is_empty() {
                pinned.remove(below(pinned.len() as u64) as usize);
            }
            // Now and then the pool is short.
            until = until.max(Txg(txg.0 - 2 * below(2)));
            free_and_sync(&mut world, &block, birth, until, &pinned);
            freed.retain(|(birth, freed)| {
                *freed > until || pinned.iter().any(|pin| birth <= pin && pin < freed)
            });
            let gone = 80 - blocks.len() - freed.len();
            assert_eq!(
                world.stated_bytes(),
                allocated - gone as u64 * 4096,
                "seed {seed}, txg {txg}, {pinned:?}"
            );
        }
    }
}
