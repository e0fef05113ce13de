//! Pools on devices that fail and recover.

use crate::tests::leaks::{check, check_reopened};
use crate::tests::made::{NoDatasets, Shape, candidate, count_up, counted, make, open_read_only};
use crate::{FailMode, Pool, PoolSetting, SettingTime, SyncMode, WriteOptions};
use crate::{OpenOptions, PoolError};
use millpond_env::mark;
use millpond_env::sync::atomic::Ordering;
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_env::thread;
use millpond_sim::{Fault, FaultPlan, PowerCut, Scope, SimDisk, World};
use millpond_vdev::{Health, LeafHealth, LeafId};
use std::time::Duration;

/// A pool with count 1 that is open so that it can be resumed.
fn resumable(world: &World, shape: Shape) -> Arc<Pool> {
    resumable_with(world, shape, Arc::new(NoDatasets::default()))
}

fn resumable_with(world: &World, shape: Shape, port: Arc<NoDatasets>) -> Arc<Pool> {
    let pool = make(world, shape, Arc::new(NoDatasets::default()));
    count_up(&pool).unwrap();
    drop(pool);
    let writing = WriteOptions {
        sync_mode: SyncMode::Thread,
        can_be_resumed: true,
        ..WriteOptions::default()
    };
    let candidate = candidate(&world.disks()).unwrap();
    let options = OpenOptions::default();
    Pool::open(&world.env(), &candidate, &options, &writing, port).unwrap()
}

fn set_failmode(pool: &Pool, mode: &str) {
    let setting = PoolSetting::parse("failmode", mode, SettingTime::Later).unwrap();
    pool.sync_task(|ctx| ctx.set_pool_property(&setting))
        .unwrap();
}

fn nap() {
    let mutex: Mutex<_> = Mutex::new(());
    Condvar::new().wait_for(&mut mutex.lock(), Duration::from_millis(1));
}

fn await_suspension(pool: &Pool) -> String {
    loop {
        match pool.suspension() {
            Some(suspension) => return suspension.reason,
            None => nap(),
        }
    }
}

fn all(disks: &[Arc<SimDisk>], are_absent: bool) {
    disks.iter().for_each(|disk| disk.set_absent(are_absent));
}

fn is_suspended<T: std::fmt::Debug>(outcome: Result<T, PoolError>) -> bool {
    matches!(outcome, Err(PoolError::Suspended { .. }))
}

#[test]
fn all_callers_wait_for_the_devices_and_nothing_is_lost() {
    let _mark = mark::expect("pool-resumed");
    for (seed, shape) in [(60, Shape::ONE), (61, Shape::MIRROR)] {
        let world = World::without_journal(seed);
        let pool = resumable(&world, shape);
        assert_eq!(pool.failmode(), FailMode::Wait);
        thread::scope(|scope| {
            all(&world.disks(), true);
            let counting = scope.spawn(|| count_up(&pool));
            let reason = await_suspension(&pool);
            assert!(reason.contains("/sim/0"), "{reason}");
            let beginning = scope.spawn(|| pool.begin(0).map(drop));
            let syncing = scope.spawn(|| pool.sync());
            // The devices still fail: it retries and waits again.
            assert!(is_suspended(pool.resume()));
            assert!(pool.suspension().unwrap().can_resume);
            assert!(is_suspended(pool.export()));
            // Transactions started between the two attempts may succeed; their txg is not written yet.
            assert!(!counting.is_finished() && !syncing.is_finished());
            all(&world.disks(), false);
            pool.resume().unwrap();
            assert_eq!(counting.join().unwrap(), Ok(2));
            beginning.join().unwrap().unwrap();
            syncing.join().unwrap().unwrap();
        });
        assert_eq!(pool.suspension(), None);
        assert_eq!(pool.resume(), Ok(()));
        assert_eq!(count_up(&pool), Ok(3));
        check(&pool.committed().unwrap());
        drop(pool);
        check_reopened(&world, 3);
    }
}

#[test]
fn failmode_continue_refuses_writes_and_allows_reads() {
    let _mark = mark::expect("write-waited-for-device");
    let world = World::without_journal(62);
    let pool = resumable(&world, Shape::ONE);
    set_failmode(&pool, "continue");
    let disk = Arc::clone(&world.disks()[0]);
    // Only writes fail.
    let fails = FaultPlan::failing(Scope::Writes);
    disk.set_faults(Some(fails));
    thread::scope(|scope| {
        let counting = scope.spawn(|| count_up(&pool));
        await_suspension(&pool);
        assert!(is_suspended(pool.begin(0)));
        assert!(is_suspended(count_up(&pool)));
        assert!(is_suspended(pool.sync()));
        assert_eq!(counted(&pool.committed().unwrap()), 1);
        disk.set_faults(None);
        pool.resume().unwrap();
        assert_eq!(counting.join().unwrap(), Ok(2));
    });
    assert_eq!(counted(&pool.committed().unwrap()), 2);
    check(&pool.committed().unwrap());
}

#[test]
fn with_panic_it_is_the_end() {
    let world = World::without_journal(63);
    let pool = resumable(&world, Shape::ONE);
    set_failmode(&pool, "panic");
    all(&world.disks(), true);
    let error = count_up(&pool).unwrap_err();
    assert!(!pool.suspension().unwrap().can_resume);
    let reason = pool.suspension().unwrap().reason;
    assert!(reason.contains("failmode=panic"), "{reason}: {error}");
    all(&world.disks(), false);
    assert!(is_suspended(pool.resume()));
    assert!(is_suspended(count_up(&pool)));
    drop(pool);
    assert_eq!(counted(&open_read_only(&world).unwrap()), 1);
}

#[test]
fn an_abandoned_pool_fails_all_waiters_and_is_as_after_a_crash() {
    let world = World::without_journal(64);
    let pool = resumable(&world, Shape::ONE);
    thread::scope(|scope| {
        all(&world.disks(), true);
        let counting = scope.spawn(|| count_up(&pool));
        await_suspension(&pool);
        let beginning = scope.spawn(|| pool.begin(0).map(drop));
        pool.abandon();
        assert!(counting.join().unwrap().is_err());
        assert!(beginning.join().unwrap().is_err());
    });
    drop(pool);
    all(&world.disks(), false);
    check_reopened(&world, 1);
}

#[test]
fn a_suspended_pool_ends_when_its_last_handle_is_dropped() {
    let world = World::without_journal(65);
    let pool = resumable(&world, Shape::ONE);
    let groups = Arc::clone(pool.groups());
    all(&world.disks(), true);
    pool.mark_config_dirty();
    groups.ask(pool.begin(0).unwrap().txg());
    await_suspension(&pool);
    drop(pool);
    while groups.failure().is_none() && !groups.has_ended() {
        nap();
    }
}

#[test]
fn data_lost_by_a_failed_flush_is_rewritten_on_resume() {
    let _mark = mark::expect("unflushed-written-again");
    for shape in [Shape::ONE, Shape::MIRROR] {
        let world = World::new(66);
        let pool = resumable(&world, shape);
        let no_flush = || FaultPlan::failing(Scope::Flushes);
        thread::scope(|scope| {
            world
                .disks()
                .iter()
                .for_each(|disk| disk.set_faults(Some(no_flush())));
            let counting = scope.spawn(|| count_up(&pool));
            await_suspension(&pool);
            assert!(is_suspended(pool.resume()));
            world.disks().iter().for_each(|disk| disk.set_faults(None));
            // One side of the mirror failed its probe.
            pool.clear_leaves(None);
            pool.resume().unwrap();
            assert_eq!(counting.join().unwrap(), Ok(2));
        });
        // Pages that failed to be written may be evicted at any time.
        world.disks().iter().for_each(|disk| disk.evict());
        check(&pool.committed().unwrap());
        for cut in [PowerCut::EverythingWritten, PowerCut::NothingUnflushed] {
            check_reopened(&world.reborn(world.recorded(), &cut), 2);
        }
        // The side that was faulted is resilvered: it may have been put back to older contents. What is missed lies on
        // the other one.
        let missed = pool.state.read().missed.len();
        assert!(missed < world.disks().len().max(1), "{missed}");
    }
}

#[test]
fn writes_lost_by_returned_disks_are_repeated() {
    for shape in [Shape::ONE, Shape::MIRROR] {
        let world = World::new(68);
        let pool = resumable(&world, shape);
        // The disks accept writes, lose them, and fail when flushed.
        let forgets = || {
            let plan = FaultPlan::failing(Scope::Flushes);
            plan.with(Scope::Writes, Fault::Lose, 1_000_000)
                .sparing(4 << 20)
        };
        thread::scope(|scope| {
            world
                .disks()
                .iter()
                .for_each(|disk| disk.set_faults(Some(forgets())));
            let counting = scope.spawn(|| count_up(&pool));
            await_suspension(&pool);
            world.disks().iter().for_each(|disk| disk.set_faults(None));
            pool.resume().unwrap();
            assert_eq!(counting.join().unwrap(), Ok(2));
        });
        check(&pool.committed().unwrap());
        let after = world.reborn(world.recorded(), &PowerCut::NothingUnflushed);
        check_reopened(&after, 2);
    }
}

#[test]
fn txgs_unflushed_by_one_side_are_in_its_dtl() {
    let world = World::without_journal(67);
    let pool = resumable(&world, Shape::MIRROR);
    let no_flush = FaultPlan::failing(Scope::Flushes);
    world.disks()[0].set_faults(Some(no_flush));
    assert_eq!(count_up(&pool), Ok(2));
    world.disks()[0].set_faults(None);
    // The next txg stores the missed txgs.
    count_up(&pool).unwrap();
    assert_eq!(pool.state.read().missed.len(), 1);
    drop(pool);
    assert_eq!(counted(&open_read_only(&world).unwrap()), 3);
}

#[test]
fn a_failed_last_flush_of_a_txg_is_in_its_dtl() {
    let _mark = mark::expect("loss-at-flush-logged");
    let world = World::without_journal(69);
    let pool = resumable(&world, Shape::MIRROR);
    let no_flush = FaultPlan::failing(Scope::Flushes);
    world.disks()[0].set_faults(Some(no_flush));
    assert_eq!(count_up(&pool), Ok(2));
    let txg = pool.uberblock().txg;
    // No later txg may record the loss.
    pool.abandon();
    drop(pool);
    world.disks()[0].set_faults(None);
    let read = open_read_only(&world).unwrap();
    let topology = read.store().topology();
    assert_eq!(topology.leaf(LeafId(0), txg), LeafHealth::Stale);
    assert_eq!(topology.leaf(LeafId(1), txg), LeafHealth::Good);
    check(&read);
}

/// Asserts that the pool is stopped after a panic in a change, and keeps its committed state.
fn is_over(pool: Arc<Pool>, world: &World) {
    assert!(!pool.suspension().unwrap().can_resume);
    assert!(is_suspended(pool.begin(0)));
    assert!(is_suspended(pool.sync()));
    assert!(is_suspended(pool.sync_task(|_| Ok(()))));
    assert!(is_suspended(pool.resume()));
    drop(pool);
    check_reopened(world, 1);
}

#[test]
fn a_panic_within_a_transaction_is_never_committed() {
    let _mark = mark::expect("half-a-change");
    let world = World::without_journal(70);
    let pool = resumable(&world, Shape::ONE);
    let panicking = std::panic::AssertUnwindSafe(|| {
        let _tx = pool.begin(0).unwrap();
        pool.mark_config_dirty();
        panic!("as told");
    });
    assert!(std::panic::catch_unwind(panicking).is_err());
    is_over(pool, &world);
}

#[test]
fn a_change_that_fails_half_way_is_never_committed() {
    let world = World::without_journal(71);
    let pool = resumable(&world, Shape::ONE);
    let tx = pool.begin(0).unwrap();
    pool.mark_config_dirty();
    drop(tx.unfinished());
    drop(tx);
    is_over(pool, &world);
}

#[test]
fn a_panicking_sync_thread_wakes_all_waiters() {
    let _mark = mark::expect("sync-panicked");
    let world = World::without_journal(72);
    let port = Arc::new(NoDatasets::default());
    let pool = resumable_with(&world, Shape::ONE, Arc::clone(&port));
    port.panics.store(true, Ordering::Relaxed);
    thread::scope(|scope| {
        let waits = [0, 1].map(|which| {
            let pool = &pool;
            scope.spawn(move || match which {
                0 => is_suspended(pool.sync()),
                _ => is_suspended(count_up(pool)),
            })
        });
        for wait in waits {
            assert!(wait.join().unwrap());
        }
    });
    let reason = pool.suspension().unwrap().reason;
    assert!(reason.contains("panicked"), "{reason}");
    is_over(pool, &world);
}
