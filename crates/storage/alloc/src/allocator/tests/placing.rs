//! Placement of blocks.

use super::world::World;
use super::*;
use millpond_env::mark;

fn class(space: VdevSpace, class: AllocationClass) -> VdevSpace {
    VdevSpace { class, ..space }
}

fn index(dva: &Dva, shift: u8) -> (VdevId, u64) {
    (dva.vdev, dva.offset_bytes >> shift)
}

#[test]
fn copies_prefer_different_vdevs_then_metaslabs() {
    let mut three = World::new((0..3).map(|id| plain(id, 2, 17, 9)).collect(), 4096, LOGS);
    for _ in 0..20 {
        let found = three.allocate(&normal(512, 3)).unwrap();
        let vdevs: BTreeSet<_> = found.iter().map(|dva| dva.vdev).collect();
        assert_eq!(vdevs.len(), 3);
    }
    let mut one = World::new(vec![plain(0, 3, 17, 9)], 4096, LOGS);
    for _ in 0..20 {
        let found = one.allocate(&normal(512, 3)).unwrap();
        let places: BTreeSet<_> = found.iter().map(|dva| index(dva, 17)).collect();
        assert_eq!(places.len(), 3);
    }
    let mut single = World::new(vec![plain(0, 1, 17, 9)], 4096, LOGS);
    // The world checks that they do not overlap.
    single.allocate(&normal(4096, 3)).unwrap();
}

#[test]
fn avoided_vdevs_are_used_only_as_a_last_resort() {
    let mut world = World::new(vec![plain(0, 2, 17, 9), plain(1, 2, 17, 9)], 4096, LOGS);
    let first = world.allocate(&normal(512, 1)).unwrap();
    for _ in 0..50 {
        let request = AllocRequest {
            avoid: &first,
            ..normal(512, 1)
        };
        assert_ne!(world.allocate(&request).unwrap()[0].vdev, first[0].vdev);
    }
    let mut one = World::new(vec![plain(0, 2, 17, 9)], 4096, LOGS);
    let first = one.allocate(&normal(512, 1)).unwrap();
    let request = AllocRequest {
        avoid: &first,
        ..normal(512, 1)
    };
    assert_ne!(
        index(&one.allocate(&request).unwrap()[0], 17),
        index(&first[0], 17)
    );
}

#[test]
fn each_class_takes_its_blocks_and_normal_takes_the_overflow() {
    let _mark = mark::expect("another-class-allocates");
    let mut world = World::new(
        vec![
            plain(0, 4, 17, 9),
            class(plain(1, 1, 17, 9), AllocationClass::Special),
            class(plain(2, 1, 17, 9), AllocationClass::Log),
        ],
        4096,
        LOGS,
    );
    assert!(world.allocator.takes_small_blocks() && world.allocator.has_log_vdevs());
    let on = |world: &mut World, placement, psize| {
        world
            .allocate(&AllocRequest::new(placement, psize, 1))
            .unwrap()[0]
            .vdev
            .0
    };
    assert_eq!(on(&mut world, Placement::Normal, 512), 0);
    assert_eq!(on(&mut world, Placement::Special, 100 << 10), 1);
    assert!(!world.allocator.takes_small_blocks());
    assert_eq!(on(&mut world, Placement::Special, 100 << 10), 0);
    assert_eq!(on(&mut world, Placement::Dedup, 512), 1);
    assert_eq!(on(&mut world, Placement::Log, 100 << 10), 2);
    assert_eq!(on(&mut world, Placement::Log, 100 << 10), 0);
    // Only the intent log goes to log vdevs.
    let mut log_only = World::new(
        vec![
            plain(0, 1, 17, 9),
            class(plain(2, 8, 17, 9), AllocationClass::Log),
        ],
        4096,
        LOGS,
    );
    log_only.allocate(&normal(128 << 10, 1)).unwrap();
    assert!(log_only.allocate(&normal(512, 1)).is_err());
}

#[test]
fn dedup_tables_prefer_dedup_vdevs() {
    let dedup = class(plain(1, 1, 17, 9), AllocationClass::Dedup);
    let special = class(plain(2, 1, 17, 9), AllocationClass::Special);
    let mut world = World::new(vec![plain(0, 1, 17, 9), dedup, special], 4096, LOGS);
    let table = AllocRequest::new(Placement::Dedup, 100 << 10, 1);
    assert_eq!(world.allocate(&table).unwrap()[0].vdev, VdevId(1));
    assert_eq!(world.allocate(&table).unwrap()[0].vdev, VdevId(0));
}

#[test]
fn vdevs_of_many_metaslabs_lend_one_to_the_intent_log_alone() {
    let mut world = World::new(vec![plain(0, 65, 17, 9)], 4096, LOGS);
    let log = AllocRequest::new(Placement::Log, 4096, 1);
    assert_eq!(index(&world.allocate(&log).unwrap()[0], 17).1, 0);
    assert_eq!(world.allocator.usage().vdevs[0].embedded_log_bytes, 1 << 17);
    for _ in 0..64 {
        let found = world.allocate(&normal(128 << 10, 1)).unwrap();
        assert_ne!(index(&found[0], 17).1, 0);
    }
    assert!(world.allocate(&normal(512, 1)).is_err());
    assert_eq!(index(&world.allocate(&log).unwrap()[0], 17).1, 0);
}

#[test]
fn new_and_non_allocating_vdevs_get_no_allocations() {
    let world = World::new(vec![plain(0, 1, 17, 9)], 4096, LOGS);
    let allocator = &world.allocator;
    let new = VdevSpace {
        usable_from: Txg(6),
        ..plain(1, 4, 17, 9)
    };
    allocator.add_vdev(new.clone()).unwrap();
    assert!(allocator.add_vdev(new).is_err());
    allocator.update_vdev(VdevId(0), |space| space.is_allocating = false);
    assert!(allocator.allocate(Txg(5), &normal(512, 1)).is_err());
    // A log of an open txg may not lie on a vdev that the committed tree lacks.
    let log = AllocRequest::new(Placement::Log, 512, 1);
    for committed in [0, 4] {
        allocator.note_committed(Txg(committed));
        assert!(allocator.allocate(Txg(6), &log).is_err(), "{committed}");
    }
    allocator.note_committed(Txg(5));
    assert_eq!(allocator.allocate(Txg(6), &log).unwrap()[0].vdev, VdevId(1));
    allocator.update_vdev(VdevId(0), |space| space.is_allocating = true);
    assert_eq!(allocator.usage().pool().space_bytes, 5 << 17);
    allocator.remove_vdev(VdevId(1));
    assert_eq!(
        allocator.allocate(Txg(6), &normal(512, 1)).unwrap()[0].vdev,
        VdevId(0)
    );
    assert_eq!(allocator.allocated_bytes(VdevId(1)), None);
}

#[test]
fn allocated_sizes_match_the_vdevs_layout() {
    let mut world = World::new(vec![raidz(0, 2, 20, 5, 2)], 4096, LOGS);
    // 8 data sectors and 3 rows of 2 parity sectors: 14, rounded up to a multiple of 3.
    let dva = world.allocate(&normal(4096, 1)).unwrap()[0];
    assert_eq!(dva.asize_bytes, 15 * 512);
    assert_eq!(world.allocator.deflate_ratio(VdevId(0)), Some(307));
}

#[test]
fn unequal_vdevs_fill_evenly() {
    let vdevs = vec![plain(0, 8, 20, 9), plain(1, 24, 20, 9), plain(2, 64, 20, 9)];
    let world = World::new(vdevs, 4096, LOGS);
    for round in 0..2400u64 {
        let psize = 512 << (round % 7);
        world.allocator.allocate(Txg(4), &normal(psize, 1)).unwrap();
    }
    // About an eighth of 96 MiB.
    let usage = world.allocator.usage();
    let shares = usage
        .vdevs
        .iter()
        .map(|vdev| vdev.allocated_bytes * 1000 / vdev.space_bytes);
    let shares: Vec<u64> = shares.collect();
    let mean = usage.pool().allocated_bytes * 1000 / usage.pool().space_bytes;
    assert!(mean > 100);
    for share in &shares {
        assert!(share.abs_diff(mean) * 10 < mean, "{shares:?} of {mean}");
    }
}

#[test]
fn fragmented_space_is_allocated_to_the_last_sector() {
    let mut world = World::new(vec![plain(0, 2, 17, 9)], 4096, LOGS);
    while world.allocate(&normal(2048, 1)).is_ok() {}
    world.sync();
    for _ in 0..32 {
        // Every other block, so that no two pieces are adjacent.
        let mut offsets: Vec<_> = world.blocks.iter().map(|dva| dva.offset_bytes).collect();
        offsets.sort_unstable();
        let wanted = offsets.into_iter().find(|at| at % 4096 == 0).unwrap();
        let index = world
            .blocks
            .iter()
            .position(|dva| dva.offset_bytes == wanted)
            .unwrap();
        world.free_old(index);
    }
    for _ in 0..3 {
        world.sync();
    }
    let full = world.allocate(&normal(4096, 1)).unwrap_err();
    assert_eq!((full.psize_bytes, full.largest_free_bytes), (4096, 2048));
    let mut got = 0;
    for psize in [2048, 1024, 512] {
        while let Ok(found) = world.allocate(&normal(psize, 1)) {
            got += found[0].asize_bytes;
        }
    }
    assert_eq!(got, 32 * 2048);
    assert_eq!(
        world
            .allocate(&normal(512, 1))
            .unwrap_err()
            .largest_free_bytes,
        0
    );
    world.sync();
    assert_eq!(world.allocator.usage().pool().free_bytes(), 0);
}

#[test]
fn if_one_copy_finds_no_space_none_is_allocated() {
    let _mark = mark::expect("no-room-for-second-copy");
    let mut world = World::new(vec![plain(0, 1, 17, 9)], 4096, LOGS);
    assert!(world.allocate(&normal(60 << 10, 3)).is_err());
    assert_eq!(world.stated_bytes(), 0);
    assert!(!world.pass(1));
    world.allocate(&normal(128 << 10, 1)).unwrap();
}

#[test]
fn freed_space_is_reusable_two_txgs_later() {
    let mut world = World::new(vec![plain(0, 1, 20, 9)], 4096, LOGS);
    world.allocate(&normal(300 << 10, 1)).unwrap();
    world.sync();
    world.free_old(0);
    // 724 KiB are free now, and one MiB once the freed block becomes allocatable.
    for _ in 0..3 {
        assert!(world.allocate(&normal(800 << 10, 1)).is_err());
        world.sync();
    }
    world.allocate(&normal(1 << 20, 1)).unwrap();
}

#[test]
fn a_nearly_full_pool_does_not_wait_for_two_txgs() {
    let mut world = World::new(vec![plain(0, 1, 20, 9)], 4096, LOGS);
    world.allocate(&normal(900 << 10, 1)).unwrap();
    world.sync();
    world.free_old(0);
    assert!(world.allocate(&normal(800 << 10, 1)).is_err());
    world.sync();
    world.allocate(&normal(1 << 20, 1)).unwrap();
}

#[test]
fn the_same_calls_give_the_same_places() {
    let run = || {
        let mut world = World::new(vec![plain(0, 9, 17, 9), raidz(1, 3, 18, 4, 1)], 4096, LOGS);
        let mut found = vec![];
        for round in 0..200usize {
            let request = AllocRequest {
                lane: round % 3,
                ..normal(512 * (1 + round as u64 % 9), 1 + (round % 2) as u8)
            };
            found.push(world.allocate(&request));
            if round % 10 == 9 {
                world.sync();
                world.free_old(round % world.blocks.len());
            }
        }
        (found, format!("{:?}", world.committed))
    };
    assert_eq!(run(), run());
}

#[test]
fn an_unreadable_metaslab_is_not_used() {
    let mut world = World::new(vec![plain(0, 2, 17, 9)], 4096, OLD);
    world.allocate(&normal(4096, 1)).unwrap();
    world.sync();
    world.crash(false);
    let broken = MetaslabId {
        vdev: VdevId(0),
        index: 0,
    };
    world.memory.unreadable.lock().push(broken);
    world.allocate(&normal(128 << 10, 1)).unwrap();
    assert!(world.allocate(&normal(512, 1)).is_err());
    assert!(
        matches!(world.allocator.take_faults()[..], [AllocError::Store { metaslab, .. }] if metaslab == broken)
    );
    assert!(world.allocator.take_faults().is_empty());
}

#[test]
fn metaslabs_not_in_use_are_unloaded_when_memory_is_short() {
    let mut world = World::new(vec![plain(0, 8, 17, 9)], 4096, LOGS);
    world.allocator.loaded_ranges_max = 0;
    for round in 0..100usize {
        let psize = 512 * (1 + round as u64 % 30);
        let request = AllocRequest {
            lane: round % 4,
            ..normal(psize, 2)
        };
        let _ = world.allocate(&request);
        if world.blocks.len() > 30 {
            world.free_old(round % world.blocks.len());
        }
        if round % 4 == 3 {
            world.sync();
        }
        let loaded = |world: &World| {
            let vdevs = world.allocator.vdevs();
            vdevs[&VdevId(0)]
                .metaslabs
                .iter()
                .filter(|one| one.is_loaded())
                .count()
        };
        if round == 99 {
            for _ in 0..4 {
                world.sync();
            }
            assert!(
                loaded(&world) <= vdev::ACTIVE_MAX,
                "{} loaded",
                loaded(&world)
            );
        }
    }
}

#[test]
fn fragmentation_follows_the_histograms() {
    let mut world = World::new(vec![plain(0, 2, 17, 9)], 4096, LOGS);
    assert_eq!(world.allocator.fragmentation(VdevId(0)), Some(0));
    while world.allocate(&normal(512, 1)).is_ok() {}
    world.sync();
    assert_eq!(world.allocator.fragmentation(VdevId(0)), None);
    world.free_old(0);
    world.sync();
    assert_eq!(world.allocator.pool_fragmentation(), Some(100));
}
