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
    assert!(!held.is_wanted());
    std::thread::scope(|scope| {
        let allocator = &world.allocator;
        let waiting = scope.spawn(move || allocator.allocate(Txg(4), &normal(4096, 1)));
        while !held.is_wanted() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let other = allocator.hold_free(VdevId(0), 0, &ALL);
        assert!(matches!(other, Hold::Wanted));
        drop(held);
        assert!(waiting.join().unwrap().is_ok());
    });
    // Nobody waits any more.
    assert!(!space(&world, 0, &ALL).is_wanted());
}

#[test]
fn an_allocation_takes_other_space_while_some_is_held() {
    let world = World::new(vec![plain(0, 2, 20, 9)], 4096, LOGS);
    let some = HoldLimits {
        bytes: (1 << 20) - 4096,
        ..ALL
    };
    let held = [space(&world, 0, &some), space(&world, 1 << 20, &some)];
    let overlaps = |dva: &Dva| {
        let mut ranges = held.iter().flat_map(|held| held.ranges());
        let end = dva.offset_bytes + dva.asize_bytes;
        ranges.any(|one| one.start < end && dva.offset_bytes < one.end)
    };
    for _ in 0..2 {
        let dva = world.allocator.allocate(Txg(4), &normal(4096, 1)).unwrap();
        assert!(!overlaps(&dva[0]), "{dva:?}");
    }
    assert!(held.iter().all(|held| !held.is_wanted()));
}

#[test]
fn an_allocation_does_not_wait_without_end() {
    let mut world = World::new(vec![plain(0, 1, 20, 9)], 4096, LOGS);
    world.allocator.held_patience = Duration::from_millis(200);
    let held = space(&world, 0, &ALL);
    let begun = std::time::Instant::now();
    assert!(world.allocator.allocate(Txg(4), &normal(4096, 1)).is_err());
    assert!(begun.elapsed() >= Duration::from_millis(200));
    // The next ones do not wait until the holder has come back.
    world.allocator.held_patience = Duration::from_secs(3600);
    assert!(world.allocator.allocate(Txg(4), &normal(4096, 1)).is_err());
    drop(held);
    let held = space(&world, 0, &ALL);
    std::thread::scope(|scope| {
        let allocator = &world.allocator;
        let waiting = scope.spawn(move || allocator.allocate(Txg(4), &normal(4096, 1)));
        while !held.is_wanted() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(held);
        assert!(waiting.join().unwrap().is_ok());
    });
}

#[test]
fn space_that_is_given_back_meanwhile_is_found() {
    // Holds begin and end while allocations fail and look again: none may miss the space of a hold that ended between
    // its first look and its wait.
    let world = World::new(vec![plain(0, 1, 20, 9)], 4096, LOGS);
    let ends = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                drop(world.allocator.hold_free(VdevId(0), 0, &ALL));
            }
        });
        let all = (0..20_000).map(|_| {
            let dva = world.allocator.allocate(Txg(4), &normal(4096, 1))?;
            // It is free again at once.
            world.allocator.free(Txg(4), &dva[0], Txg(4), true).unwrap();
            Ok(())
        });
        let found: Result<Vec<()>, NoSpace> = all.collect();
        ends.store(true, std::sync::atomic::Ordering::Relaxed);
        found.unwrap();
    });
}

fn free(world: &mut World, dva: &Dva) {
    let at = world.blocks.iter().position(|one| one == dva).unwrap();
    world.free_old(at);
}

#[test]
fn what_was_freed_is_held_once_and_only_what_is_still_free() {
    let mut world = World::new(vec![plain(0, 1, 20, 9)], 4096, LOGS);
    let limits = HoldLimits {
        least_bytes: 32 << 10,
        ..ALL
    };
    world.allocator.note_frees(true);
    for size in [64, 4, 64, 64, 4] {
        world.allocate(&normal(size << 10, 1)).unwrap();
    }
    world.sync();
    let blocks = world.blocks.clone();
    // The third and the last stay.
    for block in [0, 1, 3] {
        free(&mut world, &blocks[block]);
    }
    let freed = |world: &World| match world.allocator.hold_freed(VdevId(0), &limits) {
        Hold::Space(held) => held.ranges().to_vec(),
        Hold::Wanted | Hold::End => vec![],
    };
    let none: [std::ops::Range<u64>; 0] = [];
    for _ in 0..3 {
        assert_eq!(freed(&world), none, "txg {}", world.txg);
        world.sync();
    }
    let range = |dva: &Dva| dva.offset_bytes..dva.offset_bytes + dva.asize_bytes;
    // The first two lie side by side.
    let first = range(&blocks[0]).start..range(&blocks[1]).end;
    assert_eq!(freed(&world), [first, range(&blocks[3])]);
    assert_eq!(freed(&world), none, "once");
    // What is allocated again meanwhile is left out, and so is what is too small.
    free(&mut world, &blocks[2]);
    free(&mut world, &blocks[4]);
    for _ in 0..3 {
        world.sync();
    }
    while let Ok(dva) = world.allocate(&normal(64 << 10, 1)) {
        if dva[0].offset_bytes == blocks[2].offset_bytes {
            break;
        }
    }
    assert_eq!(freed(&world), none, "allocated again");
}

#[test]
fn what_older_uberblocks_need_is_not_held_even_if_it_can_be_allocated() {
    let mut world = World::new(vec![plain(0, 1, 20, 9)], 4096, LOGS);
    world.allocator.note_frees(true);
    while !world.allocator.is_short() {
        world.allocate(&normal(32 << 10, 1)).unwrap();
    }
    for _ in 0..3 {
        world.allocate(&normal(32 << 10, 1)).unwrap();
    }
    world.sync();
    let old = world.blocks[2];
    free(&mut world, &old);
    world.sync();
    let overlaps = |ranges: &[std::ops::Range<u64>]| {
        let end = old.offset_bytes + old.asize_bytes;
        (ranges.iter()).any(|one| one.start < end && old.offset_bytes < one.end)
    };
    let freed = |world: &World| match world.allocator.hold_freed(VdevId(0), &ALL) {
        Hold::Space(held) => overlaps(held.ranges()),
        Hold::Wanted | Hold::End => false,
    };
    for _ in 0..2 {
        // The pool is so full that it can be allocated now.
        assert!(world.allocator.is_short());
        assert!(!overlaps(space(&world, 0, &ALL).ranges()), "{}", world.txg);
        assert!(!freed(&world), "{}", world.txg);
        world.sync();
    }
    assert!(overlaps(space(&world, 0, &ALL).ranges()));
    assert!(freed(&world));
}

/// All used space, in pieces of at most `bytes_max`.
fn used(world: &World, bytes_max: u64) -> Vec<core::ops::Range<u64>> {
    let (mut at, mut all) = (0, Vec::<core::ops::Range<u64>>::new());
    while let Some(found) = world.allocator.used_space(VdevId(0), at, bytes_max) {
        let bytes = found.ranges.iter().map(|range| range.end - range.start);
        assert!(bytes.sum::<u64>() <= bytes_max);
        assert!(found.next_bytes > at);
        for range in found.ranges {
            assert!(at <= range.start && range.end <= found.next_bytes);
            match all.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => all.push(range),
            }
        }
        at = found.next_bytes;
    }
    all
}

#[test]
fn used_space_is_all_that_cannot_be_allocated() {
    let mut world = World::new(vec![plain(0, 2, 20, 9)], 4096, LOGS);
    assert_eq!(used(&world, 4096), []);
    let dvas: Vec<Dva> = (0..4)
        .map(|_| world.allocate(&normal(64 << 10, 1)).unwrap()[0])
        .collect();
    let range = |dva: &Dva| dva.offset_bytes..dva.offset_bytes + dva.asize_bytes;
    let whole = range(&dvas[0]).start..range(&dvas[3]).end;
    for bytes_max in [512, 4096, u64::MAX] {
        assert_eq!(used(&world, bytes_max), std::slice::from_ref(&whole));
    }
    world.sync();
    // Deferred frees count, and so does what an older uberblock may need.
    world.free_old(1);
    let held = space(&world, 0, &ALL);
    assert_eq!(used(&world, 4096).len(), 1, "what is held counts");
    drop(held);
    let mut txgs = 0;
    while used(&world, 4096).len() == 1 {
        assert_eq!(used(&world, 4096), std::slice::from_ref(&whole));
        world.sync();
        txgs += 1;
    }
    assert!(txgs >= 3, "{txgs}");
    let parts = [
        whole.start..range(&dvas[1]).start,
        range(&dvas[2]).start..whole.end,
    ];
    assert_eq!(used(&world, 4096), parts);
}
