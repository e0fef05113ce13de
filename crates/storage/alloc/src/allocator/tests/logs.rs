//! When changes are written, and how long they stay in logs.

use super::image::Image;
use super::world::World;
use super::*;
use crate::{RangeConflict, StoreError, UnflushedLogs};
use millpond_env::mark;
use millpond_ondisk::{Endian, SpaceAction, SpaceMapEntries, SpaceMapEntry};

fn id(vdev: u32, index: u64) -> MetaslabId {
    MetaslabId {
        vdev: VdevId(vdev),
        index,
    }
}

fn since(image: &Image, index: u64) -> u64 {
    image.unflushed.get(&id(0, index)).map_or(0, |txg| txg.0)
}

fn hex(bytes: &[u8]) -> String {
    let words: Vec<String> = bytes
        .chunks(8)
        .map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    words.join(" ")
}

#[test]
fn a_map_gets_the_bytes_that_were_seen_in_a_real_pool() {
    let mut world = World::new(vec![plain(0, 3, 24, 12)], 16384, OLD);
    world.txg = Txg(5);
    world.allocate(&normal(11 << 12, 1)).unwrap();
    world.allocate(&normal(1 << 12, 1)).unwrap();
    world.allocate(&normal(9 << 12, 1)).unwrap();
    // Allocated and freed in one txg: nothing is written about it.
    world.free_young(1);
    world.sync();
    assert_eq!(
        hex(&world.committed.maps[&MapName::Metaslab(id(0, 0))].bytes),
        "0500000000000480 0a00000000000000 08000c0000000000"
    );
}

#[test]
fn a_log_has_two_word_entries_and_the_map_a_histogram() {
    let mut world = World::new(vec![plain(0, 3, 24, 12)], 131_072, LOGS);
    world.txg = Txg(41);
    world.allocate(&normal(0x4000, 1)).unwrap();
    world.sync();
    let log = &world.committed.maps[&MapName::Log(Txg(41))];
    assert_eq!(
        hex(&log.bytes),
        "2900000000000480 0000001f000000c0 0000000000000000"
    );
    assert_eq!(log.header.allocated_bytes, 0x4000);
    let own = &world.committed.maps[&MapName::Metaslab(id(0, 0))];
    assert_eq!(
        (own.header.length_bytes, own.header.allocated_bytes),
        (0, 0)
    );
    // 16 MiB minus 16 KiB: between 2^23 and 2^24, eleven above 4 KiB.
    assert_eq!(own.header.histogram.unwrap().buckets[11], 1);
}

#[test]
fn entries_of_an_earlier_pass_are_freed_by_new_entries() {
    for forms in [LOGS, OLD] {
        let mut world = World::new(vec![plain(0, 2, 17, 9)], 4096, forms);
        world.allocate(&normal(4096, 1)).unwrap();
        assert!(world.pass(1));
        world.free_young(0);
        assert!(world.pass(2));
        // It is allocatable at once.
        let again = world.allocate(&normal(100 << 10, 1)).unwrap();
        assert_eq!(again[0].vdev, VdevId(0));
        world.free_young(0);
        assert!(!world.pass(3));
        world.allocate(&normal(4096, 1)).unwrap();
        world.sync();
    }
}

#[test]
fn a_txg_without_changes_writes_nothing() {
    let mut world = World::new(vec![plain(0, 2, 17, 9)], 4096, LOGS);
    assert!(!world.pass(1));
    world.allocate(&normal(4096, 1)).unwrap();
    world.sync();
    let before = format!("{:?}", world.committed);
    world.sync();
    world.sync();
    assert_eq!(format!("{:?}", world.committed), before);
    // Everything is already flushed, or an unused pool has nothing to flush.
    let mut unused = World::new(vec![plain(0, 2, 17, 9)], 4096, LOGS);
    unused.allocator.flush_all_in_next_txg();
    assert!(!unused.pass(1));
}

#[test]
fn a_removed_vdev_takes_the_logs_along_that_only_it_needed() {
    let mut world = World::new(vec![plain(0, 2, 17, 9), plain(1, 6, 17, 9)], 4096, LOGS);
    let only = |world: &World, vdev: u32| {
        for id in [0, 1] {
            let is_it = id == vdev;
            let allocator = &world.allocator;
            allocator.update_vdev(VdevId(id), |space| space.is_allocating = is_it);
        }
    };
    only(&world, 1);
    for lane in 0..3 {
        let request = AllocRequest {
            lane,
            ..normal(4096, 1)
        };
        world.allocate(&request).unwrap();
    }
    world.sync();
    only(&world, 0);
    world.allocate(&normal(4096, 1)).unwrap();
    let (before, now) = (Txg(world.txg.0 - 1), world.txg);
    assert!(world.pass(1));
    assert_eq!(world.memory.snapshot().logs(), [before, now]);
    // A task of the same txg removes it.
    world.allocator.remove_vdev(VdevId(1));
    world.allocate(&normal(4096, 1)).unwrap();
    assert!(world.pass(2));
    assert_eq!(world.memory.snapshot().logs(), [now]);
}

#[test]
fn export_leaves_one_log_and_every_used_metaslab_flushed() {
    let mut world = World::new(vec![plain(0, 6, 17, 9)], 4096, LOGS);
    for _ in 0..4 {
        for lane in 0..3 {
            let request = AllocRequest {
                lane,
                ..normal(4096, 1)
            };
            world.allocate(&request).unwrap();
        }
        world.sync();
    }
    assert!(world.committed.logs().len() > 1);
    world.allocator.flush_all_in_next_txg();
    let last = world.txg;
    world.sync();
    assert_eq!(world.committed.logs(), [last]);
    let used = world.committed.maps.len() as u64 - 1;
    assert!((3..6).contains(&used));
    let at_last = (0..6).filter(|index| since(&world.committed, *index) == last.0);
    assert_eq!(at_last.count() as u64, used);
    assert_eq!(
        (0..6)
            .filter(|index| since(&world.committed, *index) == 0)
            .count() as u64,
        6 - used
    );
    // The maps alone contain everything.
    let mut alone = world.committed.clone();
    alone
        .maps
        .retain(|name, _| matches!(name, MapName::Metaslab(_)));
    alone.unflushed.clear();
    let guessed = BTreeSet::new();
    assert_eq!(
        alone.check(&world.vdevs, 4096, &guessed),
        world.committed.check(&world.vdevs, 4096, &guessed)
    );
}

#[test]
fn logs_stay_few_and_each_txg_brings_the_oldest_home() {
    let mut world = World::new(vec![plain(0, 8, 17, 9)], 4096, LOGS);
    world.allocator.set_log_policy(LogPolicy {
        logs_max: 5,
        ..LogPolicy::default()
    });
    let mut most = 0;
    for round in 0..60usize {
        let request = AllocRequest {
            lane: round % 4,
            ..normal(1024, 1)
        };
        world.allocate(&request).unwrap();
        if round % 3 == 0 && !world.blocks.is_empty() {
            world.free_old(round % world.blocks.len());
        }
        let oldest = world.committed.unflushed.values().min().copied();
        world.sync();
        most = most.max(world.committed.logs().len());
        let txg = world.txg.0 - 1;
        assert!(world.committed.logs().contains(&Txg(txg)));
        if let Some(oldest) = oldest {
            let flushed = world
                .committed
                .unflushed
                .values()
                .filter(|since| since.0 == txg);
            assert!(flushed.count() > 0, "{oldest} waits for ever");
        }
    }
    assert!((2..=5).contains(&most), "{most} logs");
}

#[test]
fn enabling_log_space_maps_keeps_the_maps_entries() {
    let _mark = mark::expect("space-map-log-obsolete");
    let mut world = World::new(vec![plain(0, 4, 17, 9)], 4096, OLD);
    for _ in 0..5 {
        world.allocate(&normal(4096, 2)).unwrap();
        world.sync();
    }
    world.forms = LOGS;
    world.allocator.set_forms(LOGS);
    assert!(world.committed.logs().is_empty());
    world.free_old(0);
    world.sync();
    assert_eq!(world.committed.logs(), [Txg(9)]);
    assert_eq!(world.committed.unflushed.len(), 1);
    world.crash(false);
    world.allocate(&normal(4096, 2)).unwrap();
    world.sync();
}

#[test]
fn a_long_space_map_is_condensed() {
    let _mark = mark::expect("space-map-condensed");
    for forms in [LOGS, OLD] {
        let mut world = World::new(vec![plain(0, 1, 20, 9)], 512, forms);
        world.allocator.set_log_policy(LogPolicy {
            logs_max: 2,
            ..LogPolicy::default()
        });
        let name = MapName::Metaslab(id(0, 0));
        let (mut longest, mut times) = (0, 0);
        for round in 0..250usize {
            world
                .allocate(&normal(512 * (1 + round as u64 % 5), 1))
                .unwrap();
            if world.blocks.len() > 20 {
                world.free_old((round * 7) % world.blocks.len());
            }
            let before = world
                .committed
                .maps
                .get(&name)
                .map_or(0, |map| map.bytes.len());
            world.sync();
            let map = &world.committed.maps[&name];
            longest = longest.max(map.bytes.len());
            if map.bytes.len() < before {
                times += 1;
                let whole = SpaceMapEntries::new(&map.bytes, Endian::Little).nth(1);
                assert_eq!(
                    whole.unwrap().unwrap(),
                    SpaceMapEntry::Range {
                        action: SpaceAction::Allocate,
                        vdev: None,
                        offset_units: 0,
                        run_units: 2048
                    }
                );
            }
        }
        assert!(
            times > 0 && longest < 4096,
            "{times} times, {longest} bytes"
        );
    }
}

#[test]
fn long_runs_are_split_or_use_two_word_entries() {
    for (forms, entries) in [
        (OLD, 3),
        (
            SpaceMapForms {
                has_two_words: true,
                has_logs: false,
            },
            1,
        ),
    ] {
        let mut world = World::new(vec![plain(0, 1, 27, 9)], 4096, forms);
        world.allocate(&normal(40 << 20, 1)).unwrap();
        world.sync();
        let map = &world.committed.maps[&MapName::Metaslab(id(0, 0))];
        let found = SpaceMapEntries::new(&map.bytes, Endian::Little);
        let ranges = found.filter(|entry| matches!(entry, Ok(SpaceMapEntry::Range { .. })));
        assert_eq!(ranges.count(), entries);
    }
}

#[test]
fn freeing_free_or_invalid_space_is_refused() {
    let mut world = World::new(vec![plain(0, 2, 17, 9)], 4096, LOGS);
    let dva = world.allocate(&normal(4096, 1)).unwrap()[0];
    world.sync();
    let allocator = &world.allocator;
    let free = |dva: Dva| allocator.free(world.txg, &dva, world.txg, false);
    let at = |offset_bytes, asize_bytes| Dva {
        offset_bytes,
        asize_bytes,
        ..dva
    };
    assert!(matches!(
        free(at(8192, 512)),
        Err(AllocError::Contradiction {
            conflict: RangeConflict::Present { .. },
            ..
        })
    ));
    assert!(matches!(
        free(at(dva.offset_bytes + 512, 4096)),
        Err(AllocError::Contradiction { .. })
    ));
    for nowhere in [
        at((128 << 10) - 512, 1024),
        at(256 << 10, 512),
        at(u64::MAX, 512),
        at(0, 100),
        at(0, 0),
    ] {
        assert!(
            matches!(free(nowhere), Err(AllocError::NoMetaslab { .. })),
            "{nowhere:?}"
        );
        assert!(!allocator.holds(&nowhere));
    }
    assert!(matches!(
        free(Dva {
            vdev: VdevId(9),
            ..dva
        }),
        Err(AllocError::NoMetaslab { .. })
    ));
    free(dva).unwrap();
    assert!(free(dva).is_err());
    // Also when the metaslab is not loaded and the free is in a log.
    world.pass(1);
    let (_, metaslab) = world.allocator.metaslab(id(0, 0)).unwrap();
    metaslab.with(|state| state.unload());
    assert!(!metaslab.is_loaded());
    assert!(
        world
            .allocator
            .free(world.txg, &dva, world.txg, false)
            .is_err()
    );
}

#[test]
fn of_a_gang_block_the_header_alone_is_freed() {
    let mut world = World::new(vec![plain(0, 2, 17, 12)], 4096, LOGS);
    let header = world.allocate(&normal(512, 1)).unwrap()[0];
    assert_eq!(header.asize_bytes, 4096);
    let gang = Dva {
        asize_bytes: 1 << 20,
        is_gang: true,
        ..header
    };
    world
        .allocator
        .free(world.txg, &gang, world.txg, true)
        .unwrap();
    assert_eq!(world.stated_bytes(), 0);
}

#[test]
fn a_pool_whose_unflushed_changes_are_in_no_log_is_refused() {
    let mut world = World::new(vec![plain(0, 2, 17, 9)], 4096, LOGS);
    world.allocate(&normal(4096, 1)).unwrap();
    world.sync();
    let log = OpenedVdev {
        space: plain(0, 2, 17, 9),
        metaslabs: vec![OpenedMetaslab {
            map: None,
            unflushed_txg: Txg(4),
        }],
    };
    let opened = PoolAllocator::open(
        vec![log],
        BTreeMap::new(),
        UnflushedLogs::default(),
        world.memory.clone(),
        LOGS,
    );
    assert!(matches!(
        opened,
        Err(AllocError::Logs(StoreError::Corrupt(_)))
    ));
}

#[test]
fn headers_that_disagree_with_entries_disable_the_metaslab() {
    let mut world = World::new(vec![plain(0, 1, 17, 9)], 4096, OLD);
    world.allocate(&normal(4096, 1)).unwrap();
    world.sync();
    let map = world
        .committed
        .maps
        .get_mut(&MapName::Metaslab(id(0, 0)))
        .unwrap();
    map.header.allocated_bytes = 512;
    let (allocator, _) = world.committed.open(&world.vdevs, 4096, OLD);
    assert!(allocator.allocate(world.txg, &normal(512, 1)).is_err());
    assert!(matches!(
        allocator.take_faults()[..],
        [AllocError::Disagreement { .. }]
    ));
}
