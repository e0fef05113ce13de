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
fn a_pin_taken_after_the_free_counts() {
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
