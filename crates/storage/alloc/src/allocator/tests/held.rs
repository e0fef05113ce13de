//! Held space is not allocated, and does not change what is stored.

use super::world::World;
use super::*;
use std::time::Duration;

const ALL: HoldLimits = HoldLimits {
    bytes: u64::MAX,
    ranges: usize::MAX,
    least_bytes: 0,
};

fn space(world: &World, from: u64, limits: &HoldLimits) -> HeldSpace {
    match world.allocator.hold_free(VdevId(0), from, limits) {
        Hold::Space(space) => space,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_held_is_allocated_by_nobody_until_it_is_dropped() {
    let mut world = World::new(vec![plain(0, 2, 20, 9)], 4096, LOGS);
    let held = space(&world, 0, &ALL);
    assert_eq!(held.ranges(), std::slice::from_ref(&(0..1 << 20)));
    assert_eq!(world.allocator.allocated_bytes(VdevId(0)), Some(0));
    let other = world.allocate(&normal(4096, 1)).unwrap();
    assert!(other[0].offset_bytes >= 1 << 20);
    // A free of it would be one of free space.
    let dva = Dva {
        offset_bytes: 4096,
        ..other[0]
    };
    assert!(world.allocator.free(Txg(4), &dva, Txg(4), false).is_err());
    drop(held);
    let found = (0..255).map(|_| world.allocate(&normal(4096, 1)).unwrap()[0].offset_bytes);
    assert!(
        found
            .collect::<Vec<_>>()
            .iter()
            .any(|offset| *offset < 1 << 20)
    );
    world.sync();
}

#[test]
fn deferred_frees_and_allocated_space_are_not_held() {
    let mut world = World::new(vec![plain(0, 1, 20, 9)], 4096, LOGS);
    let first = world.allocate(&normal(64 << 10, 1)).unwrap()[0];
    let second = world.allocate(&normal(64 << 10, 1)).unwrap()[0];
    world.sync();
    world.free_old(0);
    let taken = |world: &World| {
        let held = space(world, 0, &ALL);
        let overlaps = |dva: &Dva| {
            let range = dva.offset_bytes..dva.offset_bytes + dva.asize_bytes;
            let mut ranges = held.ranges().iter();
            ranges.any(|one| one.start < range.end && range.start < one.end)
        };
        (overlaps(&first), overlaps(&second))
    };
    for _ in 0..3 {
        assert_eq!(taken(&world), (false, false), "txg {}", world.txg);
        world.sync();
    }
    assert_eq!(taken(&world), (true, false));
}

#[test]
fn limits_are_kept_and_small_ranges_skipped() {
    let mut world = World::new(vec![plain(0, 2, 20, 9)], 4096, LOGS);
    world.allocate(&normal(4096, 1)).unwrap();
    let some = HoldLimits { bytes: 8192, ..ALL };
    let first = space(&world, 0, &some);
    assert_eq!(first.ranges(), std::slice::from_ref(&(4096..12288)));
    let second = space(&world, first.end_bytes(), &some);
    assert_eq!(second.ranges(), std::slice::from_ref(&(12288..20480)));
    let large = HoldLimits {
        least_bytes: 1 << 20,
        ..ALL
    };
    // The first metaslab has no piece of that size.
    assert_eq!(
        space(&world, 0, &large).ranges(),
        std::slice::from_ref(&(1 << 20..2 << 20))
    );
    let end = world.allocator.hold_free(VdevId(0), 2 << 20, &ALL);
    assert!(matches!(end, Hold::End));
    let other = world.allocator.hold_free(VdevId(9), 0, &ALL);
    assert!(matches!(other, Hold::End));
}

#[test]
fn an_allocation_without_space_waits_for_held_space() {
    let world = World::new(vec![plain(0, 1, 20, 9)], 4096, LOGS);
    let held = space(&world, 0, &ALL);
    std::thread::scope(|scope| {
        let allocator = &world.allocator;
        let waiting = scope.spawn(move || allocator.allocate(Txg(4), &normal(4096, 1)));
        while !matches!(allocator.hold_free(VdevId(0), 0, &ALL), Hold::Wanted) {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(held);
        assert!(waiting.join().unwrap().is_ok());
    });
    // Nobody waits any more.
    assert!(!matches!(
        world.allocator.hold_free(VdevId(0), 0, &ALL),
        Hold::Wanted
    ));
}
