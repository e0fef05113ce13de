//! Free space of leaves is discarded, and nothing else is: by `zpool trim` and by `autotrim`, while programs write, after
//! power cuts, and when the pool is opened again. A discarded range holds zeros, its old bytes or noise.

use crate::draid::{ONE, SMALL, TWO};
use crate::exhaustive::{is_all, judge, step};
use crate::initialize::{
    ACTIVE, COMPLETE, INITIALIZE, START, all_pattern_bytes, are_complete, change, finish,
    free_bytes, is_sound, judge_cuts, small,
};
use crate::scan::lived;
use crate::sim;
use millpond_device::{Device, DiscardSupport};
use millpond_engine::{
    ActivityAction::{self, Cancel, Suspend},
    ActivityRefusal, LeafActivity,
    NewLayout::{self, Mirror, Raidz, Single},
    OpenOptions, Pool, PoolSetting, Rewind, ScrubRange, SliceLimits, TrimOptions, Txg, View,
};
use millpond_env::mark;
use millpond_ondisk::Guid;
use millpond_ondisk::pool_directory::vdev_key;
use millpond_sim::{Event, Fault, FaultPlan, PowerCut, RequestKind, Scope, Seed, World};
use millpond_tests::leaves::{self, stored_activity, stored_number};
use millpond_tests::workload::Life;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const TRIM: LeafActivity = LeafActivity::Trim;
const CANCELED: u64 = 2;
const SUSPENDED: u64 = 3;

fn start(rate_bytes: u64, is_secure: bool) -> ActivityAction {
    ActivityAction::Start(TrimOptions {
        rate_bytes,
        is_secure,
    })
}

fn trim(pool: &Pool, leaves: &[Guid], action: ActivityAction) {
    assert_eq!(refused(pool, leaves, action), [], "{action:?}");
}

fn refused(pool: &Pool, leaves: &[Guid], action: ActivityAction) -> Vec<(Guid, ActivityRefusal)> {
    (pool.inner().change_leaf_activity(leaves, TRIM, action)).unwrap()
}

/// The stored state and progress of a leaf's trim.
fn stored(pool: &Pool, leaf: Guid) -> (u64, u64) {
    stored_activity(pool, leaf, TRIM)
}

fn set_autotrim(pool: &Pool, value: u64) {
    let setting = PoolSetting::Number {
        name: "autotrim",
        value,
        text: ["off", "on"][value as usize].into(),
    };
    pool.inner().set_property(&setting).unwrap();
}

/// Counts the bytes that disks of a world discard.
fn discarded(world: &World) -> Arc<AtomicU64> {
    let bytes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&bytes);
    world.watch(move |request| {
        if request.kind == RequestKind::Discard && request.is_ok {
            counted.fetch_add(request.length_bytes, Ordering::SeqCst);
        }
    });
    bytes
}

#[test]
fn free_space_is_discarded_and_nothing_else_changes() {
    let _mark = mark::expect("leaf-activity-ends");
    for (shape, tops) in [
        ("one", vec![(Single, 1)]),
        ("mirror", vec![(Mirror, 2)]),
        ("raidz1", vec![(Raidz(1), 3)]),
        ("raidz2", vec![(Raidz(2), 5)]),
        ("two", vec![(Single, 1), (Single, 1)]),
        ("draid1", vec![ONE]),
        ("draid2", vec![TWO]),
    ] {
        let world = World::without_journal(191);
        let (pool, mut life) = lived(&world, shape, &tops, 60);
        change(&pool, &leaves::all(&pool), START);
        finish(&pool);
        let before = all_pattern_bytes(&world);
        assert!(before > 60 << 20, "{shape}: {before}");
        trim(&pool, &leaves::all(&pool), start(0, false));
        let mut slices = 0;
        while pool.inner().leaf_activity_slice(&small(4)).unwrap() {
            // Programs write and free between the slices.
            if slices < 40 {
                life.steps(&pool, 2);
            }
            slices += 1;
        }
        assert!(slices > 3, "{shape}: {slices}");
        are_complete(&pool, TRIM, shape);
        // What was too small, or freed meanwhile, is left.
        let after = all_pattern_bytes(&world);
        assert!(after < before / 20, "{shape}: {after} of {before}");
        assert!(free_bytes(&pool) > 50 << 20);
        pool.export().unwrap();
        is_sound(&world, &life, shape);
    }
}

#[test]
fn discarded_space_may_hold_anything_and_is_used_again() {
    for (shape, top) in [
        ("any, mirror", (Mirror, 2)),
        ("any, raidz", (Raidz(1), 4)),
        ("any, draid", ONE),
    ] {
        let world = World::without_journal(192);
        world.set_discards(Seed::new(4));
        let (pool, mut life) = lived(&world, shape, &[top], 40);
        set_autotrim(&pool, 1);
        for _ in 0..6 {
            trim(&pool, &leaves::all(&pool), start(0, false));
            while pool.inner().leaf_activity_slice(&small(8)).unwrap() {
                life.steps(&pool, 3);
                pool.inner().autotrim(&SliceLimits::default());
            }
        }
        pool.inner().start_scrub(ScrubRange::All).unwrap();
        crate::scan::finish(&pool);
        pool.export().unwrap();
        is_sound(&world, &life, shape);
    }
}

#[test]
fn it_is_suspended_resumed_and_cancelled() {
    let world = World::without_journal(193);
    let (pool, life) = lived(&world, "states", &[(Mirror, 2)], 30);
    let all = leaves::all(&pool);
    let first = all[0];
    let why = |pool: &Pool, action| refused(pool, &[first], action).first().map(|(_, why)| *why);
    assert_eq!(why(&pool, Suspend), Some(ActivityRefusal::NotActive(TRIM)));
    assert_eq!(why(&pool, Cancel), Some(ActivityRefusal::NotActive(TRIM)));
    assert_eq!(
        why(&pool, start(0, true)),
        Some(ActivityRefusal::NoDiscards)
    );
    // 4 MiB in a second: the simulated clock stands still between requests.
    trim(&pool, &[first], start(4 << 20, false));
    assert_eq!(
        why(&pool, start(0, false)),
        Some(ActivityRefusal::Active(TRIM))
    );
    let limits = SliceLimits::default();
    assert!(pool.inner().leaf_activity_slice(&limits).unwrap());
    let (_, offset) = stored(&pool, first);
    assert!(offset > 0 && offset < 8 << 20, "{offset}");
    assert!(
        !pool.inner().leaf_activity_slice(&limits).unwrap(),
        "too fast"
    );
    let delay = pool.inner().leaf_activity_delay().as_millis();
    assert!((800..=1000).contains(&delay), "{delay}");
    world.advance(1_000_000_000);
    assert!(pool.inner().leaf_activity_slice(&limits).unwrap());
    trim(&pool, &[first], Suspend);
    let (state, offset) = stored(&pool, first);
    assert!(state == SUSPENDED && offset >= 8 << 20, "{state} {offset}");
    world.advance(5_000_000_000);
    assert!(!pool.inner().leaf_activity_slice(&limits).unwrap());
    // It stays suspended, and continues from there with its rate.
    drop(pool);
    let pool = sim::open(&world).unwrap();
    assert!(!pool.inner().is_leaf_active(TRIM));
    trim(&pool, &[first], start(0, false));
    assert_eq!(stored(&pool, first), (ACTIVE, offset));
    assert_eq!(
        stored_number(&pool, first, vdev_key::TRIM_RATE),
        Some(4 << 20)
    );
    // Active, it continues when the pool is opened.
    drop(pool);
    let pool = sim::open(&world).unwrap();
    assert!(pool.inner().is_leaf_active(TRIM));
    assert!(pool.inner().leaf_activity_slice(&limits).unwrap());
    let (_, more) = stored(&pool, first);
    assert!(
        more > offset && more < offset + (8 << 20),
        "{more} {offset}"
    );
    trim(&pool, &[first], Cancel);
    assert_eq!(stored(&pool, first), (CANCELED, 0));
    assert_eq!(stored_number(&pool, first, vdev_key::TRIM_RATE), Some(0));
    // Secure, on a disk that can: it begins anew, although the other was suspended.
    trim(&pool, &[first], start(1 << 20, false));
    pool.inner().leaf_activity_slice(&limits).unwrap();
    trim(&pool, &[first], Suspend);
    world.disks()[0].set_discard_support(DiscardSupport {
        plain: true,
        secure: true,
    });
    trim(&pool, &[first], start(0, true));
    assert_eq!(stored(&pool, first), (ACTIVE, 0));
    assert_eq!(stored_number(&pool, first, vdev_key::TRIM_SECURE), Some(1));
    finish(&pool);
    assert_eq!(stored(&pool, first).0, COMPLETE);
    assert_eq!(stored(&pool, all[1]), (0, 0));
    let text = crate::initialize::history(&pool);
    for event in ["activated", "suspended", "canceled", "complete"] {
        let event = format!("vdev=/sim/d0.img {event}");
        assert!(text.contains(&event), "{event} in {text}");
    }
    pool.export().unwrap();
    is_sound(&world, &life, "states");
}

#[test]
fn disks_that_cannot_or_fail_are_left_alone() {
    let world = World::without_journal(194);
    let (pool, life) = lived(&world, "cannot", &[(Mirror, 3)], 30);
    let all = leaves::all(&pool);
    let none = DiscardSupport::default();
    world.disks()[0].set_discard_support(none);
    let bytes = discarded(&world);
    let found = refused(&pool, &all, start(0, false));
    assert_eq!(found, [(all[0], ActivityRefusal::NoDiscards)]);
    // The second stops being able to; the third fails each time.
    world.disks()[1].set_discard_support(none);
    let plan = FaultPlan::new(Seed::new(1)).with(Scope::Discards, Fault::Fail, 1_000_000);
    world.disks()[2].set_faults(Some(plan));
    finish(&pool);
    assert_eq!(stored(&pool, all[1]).0, CANCELED);
    assert_eq!(stored(&pool, all[2]).0, COMPLETE);
    assert_eq!(bytes.load(Ordering::SeqCst), 0);
    let topology = pool.inner().store().topology();
    let stats = topology.leaf_stats(topology.tree.find_leaf(all[2]).unwrap());
    assert!(stats.trim_errors > 0 && stats.trim_errors == stats.trims);
    // That is no error of the disk.
    assert_eq!((stats.write_errors, stats.trim_bytes), (0, 0));
    assert!(pool.inner().leaf_condition(all[2]).unwrap().is_usable());
    pool.export().unwrap();
    world.disks()[2].set_faults(None);
    is_sound(&world, &life, "cannot");
}

#[test]
fn a_faulted_leaf_forgets_what_was_to_be_done() {
    let world = World::without_journal(195);
    let (pool, _) = lived(&world, "faulted", &[(Mirror, 2)], 20);
    let all = leaves::all(&pool);
    change(&pool, &all, START);
    trim(&pool, &all, start(0, false));
    let how = millpond_engine::Offline {
        is_fault: true,
        is_temporary: false,
    };
    pool.inner().offline_leaf(all[1], how).unwrap();
    assert_eq!(stored(&pool, all[1]), (CANCELED, 0));
    assert_eq!(
        stored_number(&pool, all[1], vdev_key::INITIALIZE_STATE),
        Some(CANCELED)
    );
    assert_eq!(stored(&pool, all[0]).0, ACTIVE);
    assert!(pool.inner().is_leaf_active(INITIALIZE));
    pool.export().unwrap();
}

#[test]
fn recent_frees_are_discarded_after_some_txgs() {
    let _mark = mark::expect("recent-frees-discarded");
    for (shape, top) in [
        ("auto", (Mirror, 2)),
        ("auto, raidz", (Raidz(1), 3)),
        ("auto, draid", TWO),
    ] {
        let world = World::without_journal(196);
        world.set_discards(Seed::new(5));
        let pool = sim::create(&world, &[top], 96);
        let bytes = discarded(&world);
        let mut life = Life::new("tank", shape, 5);
        life.file_bytes_max = 300_000;
        life.steps(&pool, 30);
        let limits = SliceLimits::default();
        let sync = |times: usize| {
            for _ in 0..times {
                pool.inner()
                    .sync_task(|ctx| {
                        ctx.mark_config_dirty();
                        Ok(())
                    })
                    .unwrap();
                pool.inner().autotrim(&limits);
            }
        };
        // Off, nothing is discarded.
        sync(70);
        life.steps(&pool, 30);
        sync(70);
        assert_eq!(bytes.load(Ordering::SeqCst), 0, "{shape}");
        set_autotrim(&pool, 1);
        sync(40);
        let none_freed = bytes.load(Ordering::SeqCst);
        for _ in 0..6 {
            life.steps(&pool, 30);
            sync(3);
        }
        sync(40);
        let some = bytes.load(Ordering::SeqCst);
        assert!(
            some > none_freed + (1 << 20),
            "{shape}: {none_freed}, {some}"
        );
        set_autotrim(&pool, 0);
        sync(3);
        let before = bytes.load(Ordering::SeqCst);
        life.steps(&pool, 60);
        sync(70);
        assert_eq!(bytes.load(Ordering::SeqCst), before, "{shape}");
        life.close_file_systems();
        pool.export().unwrap();
        is_sound(&world, &life, shape);
    }
}

/// Steps with trims of both kinds between them, and the power cut before each flush.
fn cut_everywhere(shape: &str, top: (NewLayout, usize)) {
    let world = World::new(197);
    world.set_discards(Seed::new(6));
    let pool = sim::create(&world, &[top], 64);
    set_autotrim(&pool, 1);
    let mut state = crate::exhaustive::Files::new();
    step(&pool, 0, &mut state);
    pool.sync().unwrap();
    for _ in 0..34 {
        pool.inner()
            .sync_task(|ctx| {
                ctx.mark_config_dirty();
                Ok(())
            })
            .unwrap();
    }
    let all = leaves::all(&pool);
    world.forget();
    let mut states = vec![(0, state.clone())];
    trim(&pool, &all, start(0, false));
    for number in 1..4 {
        pool.inner().leaf_activity_slice(&small(2)).unwrap();
        step(&pool, number, &mut state);
        pool.inner().autotrim(&SliceLimits::default());
        pool.sync().unwrap();
        states.push((world.recorded(), state.clone()));
    }
    let is_discard = |event: &Event| matches!(event, Event::Discard { .. });
    assert!(
        world
            .journal()
            .events()
            .iter()
            .filter(|event| is_discard(event))
            .count()
            > 3
    );
    drop(pool);
    judge_cuts(shape, &world, &states, TRIM, &mut Seed::new(198));
}

#[test]
fn every_crash_is_survived_on_one_disk() {
    cut_everywhere("trim one", (Single, 1));
}

#[test]
fn every_crash_is_survived_on_a_raidz() {
    cut_everywhere("trim raidz", (Raidz(1), 3));
}

#[test]
fn every_crash_is_survived_on_a_draid() {
    cut_everywhere("trim draid", SMALL);
}

#[test]
fn random_work_with_discards_survives_random_cuts() {
    let rounds = if is_all() { 60 } else { 4 };
    for seed in 0..rounds {
        let world = World::new(1000 + seed);
        world.set_discards(Seed::new(seed));
        let top = [(Single, 1), (Mirror, 2), (Raidz(1), 3), SMALL][seed as usize % 4];
        let pool = sim::create(&world, &[top], 64);
        set_autotrim(&pool, 1);
        let mut life = Life::new("tank", "cut", seed);
        life.file_bytes_max = 200_000;
        let limits = SliceLimits::default();
        for round in 0..12 {
            life.steps(&pool, 8);
            if round % 5 == 1 {
                let _ = refused(&pool, &leaves::all(&pool), start(0, false));
            }
            pool.inner().leaf_activity_slice(&small(6)).unwrap();
            pool.inner().autotrim(&limits);
        }
        life.commit(&pool).unwrap();
        life.close_file_systems();
        drop(pool);
        // Everything that was promised is there, whatever became of the discards since.
        let after = world.reborn(world.recorded(), &PowerCut::Torn(Seed::new(seed)));
        let view = sim::read(&after).unwrap();
        sim::verify(&view).unwrap();
        life.compare(&view, &format!("seed {seed}"));
        drop(view);
        judge(&after, &format!("seed {seed}"));
    }
}

#[test]
fn older_states_can_still_be_read() {
    let world = World::new(199);
    world.set_discards(Seed::new(8));
    let (pool, mut life) = lived(&world, "older", &[(Mirror, 2)], 60);
    set_autotrim(&pool, 1);
    let mut looks = vec![];
    for round in 0..60 {
        life.steps(&pool, 2);
        pool.sync().unwrap();
        let txg = pool.inner().uberblock().txg;
        let before = world.recorded();
        if round % 2 == 0 {
            let _ = refused(&pool, &leaves::all(&pool), Cancel);
            trim(&pool, &leaves::all(&pool), start(0, false));
        }
        let started = pool.inner().uberblock().txg;
        pool.inner().autotrim(&SliceLimits::default());
        pool.inner().leaf_activity_slice(&small(64)).unwrap();
        // Where the last discard was made, before anything was committed afterwards.
        let journal = world.journal();
        let last = (journal.events().iter())
            .rposition(|event| matches!(event, Event::Discard { .. }))
            .filter(|at| *at >= before);
        looks.extend(last.map(|at| (at + 1, txg, started)));
    }
    life.close_file_systems();
    drop(pool);
    assert!(looks.len() > 10, "{looks:?}");
    for (count, txg, started) in looks {
        let after = world.reborn(count, &PowerCut::EverythingWritten);
        for back in 0..=2 {
            let to = Txg(started.0 - back);
            let options = OpenOptions {
                rewind: Rewind::ToTxg(to),
                cache_bytes: Some(16 << 20),
                ..OpenOptions::default()
            };
            let view = View::open_candidate(&sim::candidate(&after), &options);
            let view = view.unwrap_or_else(|error| panic!("{txg} to {to}: {error}"));
            sim::verify(&view).unwrap_or_else(|error| panic!("{txg} to {to}: {error}"));
        }
    }
}

#[test]
fn stored_values_are_not_trusted() {
    for (state, offset, rate) in [
        (1, u64::MAX, 1),
        (1, 511, u64::MAX),
        (u64::MAX, 3, 7),
        (3, u64::MAX, u64::MAX),
    ] {
        let world = World::without_journal(201);
        let (pool, life) = lived(&world, "values", &[(Raidz(1), 3)], 20);
        let topology = pool.inner().store().topology();
        let zaps: Vec<_> = topology
            .tree
            .leaves()
            .map(|(_, node)| node.config.zap_leaf.unwrap())
            .collect();
        drop(topology);
        for zap in zaps {
            (pool.inner())
                .sync_task(|ctx| {
                    ctx.set_table_number(zap, vdev_key::TRIM_STATE, state)?;
                    ctx.set_table_number(zap, vdev_key::TRIM_OFFSET, offset)?;
                    ctx.set_table_number(zap, vdev_key::TRIM_SECURE, 77)?;
                    ctx.set_table_number(zap, vdev_key::TRIM_RATE, rate)
                })
                .unwrap();
        }
        drop(pool);
        let pool = sim::open(&world).unwrap();
        assert_eq!(pool.inner().is_leaf_active(TRIM), state == 1);
        for _ in 0..20 {
            pool.inner().leaf_activity_slice(&small(8)).unwrap();
            world.advance(1_000_000_000);
        }
        let _ = refused(&pool, &leaves::all(&pool), Cancel);
        trim(&pool, &leaves::all(&pool), start(0, false));
        finish(&pool);
        pool.export().unwrap();
        is_sound(&world, &life, "values");
    }
}

#[test]
fn devices_say_what_they_can() {
    let world = World::without_journal(200);
    let disk = world.disk(1 << 20, 512);
    let can = disk.discard_support().unwrap();
    assert!(can.plain && !can.secure);
    assert!(disk.discard_securely(0, 4096).is_err());
}
