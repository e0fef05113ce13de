//! Consecutive txgs and reopened pools.

use crate::SyncMode;
use crate::error::Reading;
use crate::import::{PoolState, Rewind};
use crate::tests::leaks::{check, check_reopened};
use crate::tests::made::{
    NoDatasets, Shape, candidate, count_up, counted, make, open, open_read_only, open_some,
    open_with,
};
use crate::{OpenError, OpenOptions, PoolError, PoolView};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::Ordering;
use millpond_object::NewObject;
use millpond_ondisk::{BlockId, Feature, Level, ObjectType, Txg};
use millpond_sim::{FaultPlan, PowerCut, Scope, World, noise};
use std::collections::BTreeSet;

#[test]
fn every_byte_of_a_reopened_pool_has_one_owner() {
    for shape in [
        Shape::ONE,
        Shape::MIRROR,
        Shape {
            disks: 3,
            ashift: 9,
            ..Shape::ONE
        },
        Shape {
            has_features: false,
            ..Shape::ONE
        },
    ] {
        let world = World::without_journal(1);
        let port = Arc::new(NoDatasets::default());
        let pool = make(&world, shape, port.clone());
        for expected in 1..=9 {
            assert_eq!(count_up(&pool).unwrap(), expected);
            let committed = pool.committed().unwrap();
            assert_eq!(counted(&committed), expected);
            check(&committed);
        }
        drop(pool);
        let read = open_read_only(&world).unwrap();
        assert_eq!(counted(&read), 9, "{shape:?}");
        assert_eq!(read.uberblock().txg, Txg(4 + 9));
        let used = check(&read);
        // Continue from the space maps on disk.
        let pool = open(&world, port).unwrap();
        for expected in 10..=20 {
            assert_eq!(count_up(&pool).unwrap(), expected);
        }
        let read = pool.committed().unwrap();
        let after = check(&read);
        assert!(after < used * 3, "{used} bytes became {after}");
        let usage = pool.space();
        let allocated: u64 = usage.vdevs.iter().map(|v| v.allocated_bytes).sum();
        assert!(allocated >= after, "what waits counts as allocated");
    }
}

#[test]
fn a_pool_without_contiguous_space_for_its_metadata_converges() {
    let _mark = mark::expect("gang-block-rewritten-in-place");
    for (has_features, disks) in [(true, 1), (false, 1), (true, 3)] {
        let shape = Shape {
            has_features,
            disks,
            ashift: 9,
            ..Shape::ONE
        };
        let world = World::without_journal(1);
        let port = Arc::new(NoDatasets::default());
        let pool = make(&world, shape, port.clone());
        pool.allocator().force_gangs(2048);
        for expected in 1..=9 {
            assert_eq!(count_up(&pool).unwrap(), expected);
            check(&pool.committed().unwrap());
        }
        drop(pool);
        assert_eq!(counted(&open_read_only(&world).unwrap()), 9);
        let pool = open(&world, port).unwrap();
        assert_eq!(count_up(&pool).unwrap(), 10);
        check(&pool.committed().unwrap());
    }
}

/// The first block of the MOS is a gang block with a header of 4 KiB: it is read before the tables that tell of such headers.
#[test]
fn a_pool_whose_first_blocks_have_large_gang_headers_opens() {
    const FEATURE: &str = "com.klarasystems:dynamic_gang_header";
    let world = World::without_journal(1);
    let port = Arc::new(NoDatasets::default());
    let pool = make(&world, Shape::MIRROR, port.clone());
    let enabled = pool.sync_task(|ctx| {
        ctx.enable_feature(Feature::by_guid(FEATURE).unwrap())?;
        ctx.feature_increment(FEATURE)?;
        // Dnodes that do not compress: their block takes several sectors.
        for number in 0..24 {
            let noise = noise(number, 320);
            let new = NewObject::new(ObjectType::METADATA_U64)
                .with_bonus(ObjectType::METADATA_U64, noise);
            ctx.mos().allocate(ctx.tx(), new).reading("test")?;
        }
        Ok(())
    });
    enabled.unwrap();
    drop(pool);
    let pool = open(&world, port.clone()).unwrap();
    pool.allocator().force_gangs(8192);
    assert_eq!(count_up(&pool).unwrap(), 1);
    drop(pool);
    for expected in 1..=3 {
        let read = open_read_only(&world).unwrap();
        assert_eq!(counted(&read), expected);
        let dnodes = read.mos().meta_object();
        let first = dnodes.pointer(Level(0), BlockId(0)).unwrap();
        assert!(first.is_gang());
        check(&read);
        drop(read);
        let pool = open(&world, port.clone()).unwrap();
        pool.allocator().force_gangs(8192);
        count_up(&pool).unwrap();
    }
}

#[test]
fn a_txg_without_changes_leaves_no_trace() {
    let _mark = mark::expect("txg-without-trace");
    let world = World::new(2);
    let pool = make(&world, Shape::ONE, Arc::new(NoDatasets::default()));
    count_up(&pool).unwrap();
    let uberblock = pool.uberblock();
    let events = world.journal().len();
    for _ in 0..5 {
        pool.sync().unwrap();
    }
    assert_eq!(world.journal().len(), events);
    assert_eq!(pool.uberblock(), uberblock);
    // The next txg leaves a gap in the txg numbers.
    count_up(&pool).unwrap();
    assert_eq!(pool.uberblock().txg, Txg(uberblock.txg.0 + 6));
    check(&pool.committed().unwrap());
}

#[test]
fn logs_claimed_once_datasets_twice_background_once() {
    let world = World::without_journal(3);
    let pool = make(&world, Shape::ONE, Arc::new(NoDatasets::default()));
    count_up(&pool).unwrap();
    drop(pool);
    let port = Arc::new(NoDatasets::default());
    let pool = open(&world, port.clone()).unwrap();
    count_up(&pool).unwrap();
    let calls = port.calls.lock().clone();
    assert_eq!(
        calls,
        [
            ("claim", 6, 1),
            ("datasets", 6, 1),
            ("background", 6, 1),
            ("datasets", 6, 2),
            ("datasets", 7, 1),
            ("background", 7, 1),
            ("datasets", 7, 2),
        ]
    );
}

#[test]
fn a_failed_txg_is_never_committed_and_all_waiters_fail() {
    let world = World::without_journal(4);
    let port = Arc::new(NoDatasets::default());
    let pool = make(&world, Shape::ONE, port.clone());
    count_up(&pool).unwrap();
    port.fails.store(true, Ordering::Relaxed);
    let error = count_up(&pool).unwrap_err();
    assert_eq!(error, PoolError::Unsupported { what: "luck" });
    port.fails.store(false, Ordering::Relaxed);
    let error = count_up(&pool).unwrap_err();
    assert!(matches!(error, PoolError::Suspended { .. }), "{error}");
    assert_eq!(pool.suspension().unwrap().txg, Txg(6));
    assert!(pool.begin(0).is_err());
    let read = open_read_only(&world).unwrap();
    assert_eq!((counted(&read), read.uberblock().txg), (1, Txg(5)));
    check(&read);
}

#[test]
fn a_failed_task_fails_its_txg() {
    let world = World::without_journal(5);
    let port = Arc::new(NoDatasets::default());
    let pool = make(&world, Shape::ONE, port);
    count_up(&pool).unwrap();
    let refused: Result<(), _> = pool.sync_task(|ctx| {
        ctx.set_directory_number("test:count", 99)?;
        Err(PoolError::Unsupported { what: "this" })
    });
    assert_eq!(refused, Err(PoolError::Unsupported { what: "this" }));
    assert_eq!(counted(&open_read_only(&world).unwrap()), 1);
}

#[test]
fn an_exported_pool_is_marked_and_keeps_only_its_last_log() {
    let world = World::without_journal(6);
    let port = Arc::new(NoDatasets::default());
    let pool = make(&world, Shape::MIRROR, port.clone());
    for _ in 0..7 {
        count_up(&pool).unwrap();
    }
    pool.export().unwrap();
    assert!(pool.begin(0).is_err());
    let candidate = crate::tests::made::candidate(&world.disks()).unwrap();
    assert_eq!(candidate.state, PoolState::Exported);
    let read = open_read_only(&world).unwrap();
    assert_eq!(counted(&read), 7);
    check(&read);
    assert_eq!(read.config().u64("state"), Ok(1));
    // Reopened: label and configuration show a pool in use again.
    let pool = open(&world, port).unwrap();
    count_up(&pool).unwrap();
    let candidate = crate::tests::made::candidate(&world.disks()).unwrap();
    assert_eq!(candidate.state, PoolState::Active);
    check(&pool.committed().unwrap());
}

#[test]
fn a_rewound_pool_continues_and_drops_its_newer_states() {
    let world = World::without_journal(7);
    let port = Arc::new(NoDatasets::default());
    let pool = make(&world, Shape::ONE, port.clone());
    for _ in 0..6 {
        count_up(&pool).unwrap();
    }
    let newest = pool.uberblock();
    drop(pool);
    let options = OpenOptions {
        rewind: Rewind::ToTxg(Txg(newest.txg.0 - 1)),
        ..OpenOptions::default()
    };
    let pool = open_with(&world, &options, port.clone()).unwrap();
    assert_eq!(counted(&pool.committed().unwrap()), 5);
    // What was given up is more than two txgs old: its blocks may be overwritten.
    assert!(pool.uberblock().txg.0 > newest.txg.0 + 2);
    drop(pool);
    let pool = open(&world, port).unwrap();
    assert_eq!(count_up(&pool).unwrap(), 6);
    check(&pool.committed().unwrap());
}

/// A pool without a sync thread may be used by several threads. Each of them writes its own txgs.
#[test]
fn several_callers_write_their_txgs_one_after_the_other() {
    let world = World::without_journal(10);
    let pool = make(&world, Shape::ONE, Arc::new(NoDatasets::default()));
    millpond_env::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..20 {
                    count_up(&pool).unwrap();
                }
            });
        }
    });
    let view = pool.committed().unwrap();
    assert_eq!(counted(&view), 60);
    check(&view);
}

/// A rewind overwrites what only the newer states use. From then on, none of these may be found.
#[test]
fn a_crash_while_a_pool_is_rewound_leaves_one_whole_state() {
    let world = World::new(9);
    let port = Arc::new(NoDatasets::default());
    let pool = make(&world, Shape::ONE, port.clone());
    for _ in 0..12 {
        count_up(&pool).unwrap();
    }
    let newest = pool.uberblock();
    drop(pool);
    let options = OpenOptions {
        rewind: Rewind::ToTxg(Txg(newest.txg.0 - 8)),
        ..OpenOptions::default()
    };
    let before = world.recorded();
    let pool = open_with(&world, &options, port.clone()).unwrap();
    count_up(&pool).unwrap();
    count_up(&pool).unwrap();
    let after = world.recorded();
    drop(pool);
    let mut found = BTreeSet::new();
    for count in before..=after {
        for cut in [PowerCut::EverythingWritten, PowerCut::NothingUnflushed] {
            let world = world.reborn(count, &cut);
            let view = open_read_only(&world).unwrap();
            found.insert(counted(&view));
            check(&view);
            // Neither does a later rewind find what is overwritten.
            let recent = OpenOptions {
                rewind: Rewind::Recent,
                ..OpenOptions::default()
            };
            let choices = candidate(&world.disks()).unwrap();
            for choice in choices.uberblock_choices(recent.rewind).unwrap() {
                let exact = OpenOptions {
                    rewind: Rewind::Exactly(choice.uberblock.txg),
                    ..OpenOptions::default()
                };
                check(&PoolView::open(&world.env(), &choices, &exact).unwrap());
            }
        }
    }
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [4, 5, 6, 12]);
}

#[test]
fn a_mirror_survives_one_failed_side_and_records_its_dtl() {
    let world = World::without_journal(8);
    let port = Arc::new(NoDatasets::default());
    let pool = make(&world, Shape::MIRROR, port.clone());
    count_up(&pool).unwrap();
    let bad = &world.disks()[1];
    bad.set_faults(Some(FaultPlan::failing(Scope::Writes)));
    for _ in 0..3 {
        count_up(&pool).unwrap();
    }
    bad.set_faults(None);
    count_up(&pool).unwrap();
    let read = pool.committed().unwrap();
    assert_eq!(counted(&read), 5);
    check(&read);
    drop((read, pool));
    // The second side lacks txgs 6, 7 and 8, and its dirty time log says so.
    let read = open_read_only(&world).unwrap();
    let topology = read.store().topology();
    let log = topology.tree.leaves().nth(1).unwrap().1.config.dtl.unwrap();
    let missed = crate::vdevs::objects::load_dirty_time_log(read.mos(), log).unwrap();
    assert!(
        missed
            .iter()
            .any(|range| range.start <= 6 && range.end >= 9),
        "{missed:?}"
    );
    check(&read);
}

#[test]
fn a_returned_side_is_not_read_for_txgs_it_missed() {
    let world = World::without_journal(11);
    let pool = make(&world, Shape::MIRROR, Arc::new(NoDatasets::default()));
    count_up(&pool).unwrap();
    drop(pool);
    let one = world.disks()[..1].to_vec();
    let pool = open_some(&world, &one, SyncMode::Caller).unwrap();
    for _ in 0..3 {
        count_up(&pool).unwrap();
    }
    check(&pool.committed().unwrap());
    let away = pool.uberblock().txg;
    drop(pool);
    // With both sides again, the missed txgs stay recorded.
    for _ in 0..2 {
        let pool = open_some(&world, &world.disks(), SyncMode::Caller).unwrap();
        count_up(&pool).unwrap();
        let read = pool.committed().unwrap();
        check(&read);
        let topology = read.store().topology();
        let (leaf, node) = topology.tree.leaves().nth(1).unwrap();
        let log = node.config.dtl.unwrap();
        let missed = crate::vdevs::objects::load_dirty_time_log(read.mos(), log).unwrap();
        assert!(
            missed
                .iter()
                .any(|range| range.start <= 6 && range.end > away.0),
            "{missed:?}, away up to {away}"
        );
        assert_eq!(topology.leaf_stats(leaf).checksum_errors, 0);
    }
}

#[test]
fn a_pool_without_redundancy_suspends_when_writes_fail() {
    let _mark = mark::expect("pool-stops");
    let world = World::without_journal(9);
    let port = Arc::new(NoDatasets::default());
    let pool = make(&world, Shape::ONE, port);
    count_up(&pool).unwrap();
    let disk = &world.disks()[0];
    disk.set_faults(Some(FaultPlan::failing(Scope::Writes)));
    assert!(count_up(&pool).is_err());
    assert!(pool.suspension().is_some());
    disk.set_faults(None);
    assert!(
        count_up(&pool).is_err(),
        "it stays so until it is opened again"
    );
    check_reopened(&world, 1);
}

#[test]
fn a_pool_with_unwritable_features_is_refused_unchanged() {
    let world = World::new(10);
    let port = Arc::new(NoDatasets::default());
    let pool = make(&world, Shape::ONE, port.clone());
    pool.sync_task(|ctx| {
        let table = ctx.directory_object("features_for_write")?.unwrap();
        ctx.set_table_number(table, "com.example:unheard_of", 1)
    })
    .unwrap();
    drop(pool);
    let events = world.journal().len();
    let error = open(&world, port).unwrap_err();
    assert!(matches!(error, OpenError::ReadOnly(_)), "{error}");
    assert_eq!(world.journal().len(), events);
}
