//! Pools on disks that stop answering.

use crate::tests::leaks::{check, check_reopened};
use crate::tests::made::{NoDatasets, Shape, candidate, count_up, counted, make};
use crate::{FailMode, Pool, PoolSetting, RequestDeadline, SettingTime, WriteOptions};
use crate::{OpenOptions, PoolError};
use millpond_env::sync::Arc;
use millpond_env::thread;
use millpond_ondisk::Guid;
use millpond_sim::{HangPlan, Hanging, World};
use std::time::Duration;

const SECOND_NS: u64 = 1_000_000_000;

fn opened(world: &World, shape: Shape) -> Arc<Pool> {
    let port = Arc::new(NoDatasets::default());
    let pool = make(world, shape, Arc::clone(&port) as _);
    count_up(&pool).unwrap();
    drop(pool);
    let writing = WriteOptions {
        can_be_resumed: true,
        deadline: RequestDeadline(Some(Duration::from_secs(5))),
        ..WriteOptions::default()
    };
    let candidate = candidate(&world.disks()).unwrap();
    let options = OpenOptions::default();
    Pool::open(&world.env(), &candidate, &options, &writing, port).unwrap()
}

#[test]
fn a_single_disk_that_hangs_is_waited_for_and_named() {
    for (seed, kind) in [(80, Hanging::Writes), (81, Hanging::Flushes)] {
        let world = World::without_journal(seed);
        let pool = opened(&world, Shape::ONE);
        let elsewhere = World::without_journal(seed + 10);
        let other = opened(&elsewhere, Shape::ONE);
        let disk = Arc::clone(&world.disks()[0]);
        disk.hang(HangPlan::new(kind));
        thread::scope(|scope| {
            let counting = scope.spawn(|| count_up(&pool));
            disk.await_hang();
            assert_eq!(pool.suspension(), None, "not yet");
            world.advance(6 * SECOND_NS);
            let suspension = pool.suspension().unwrap();
            let reason = &suspension.reason;
            let is_named = reason.contains("/sim/0") && reason.contains("has not answered");
            assert!(is_named && suspension.can_resume, "{reason}");
            // Neither resume nor export can complete while the device hangs.
            assert!(matches!(pool.resume(), Err(PoolError::Suspended { .. })));
            assert!(matches!(pool.export(), Err(PoolError::Suspended { .. })));
            // The committed state is readable if it is cached, and another pool is not affected.
            assert_eq!(count_up(&other), Ok(2));
            assert!(!counting.is_finished());
            disk.release();
            assert_eq!(counting.join().unwrap(), Ok(2));
        });
        assert_eq!(pool.suspension(), None);
        assert_eq!(count_up(&pool), Ok(3));
        check(&pool.committed().unwrap());
        drop(pool);
        check_reopened(&world, 3);
    }
}

#[test]
fn failmode_continue_refuses_writes_to_a_hung_disk() {
    let world = World::without_journal(82);
    let pool = opened(&world, Shape::ONE);
    let setting = PoolSetting::parse("failmode", "continue", SettingTime::Later).unwrap();
    pool.sync_task(|ctx| ctx.set_pool_property(&setting))
        .unwrap();
    assert_eq!(pool.failmode(), FailMode::Continue);
    let disk = Arc::clone(&world.disks()[0]);
    disk.hang(HangPlan::new(Hanging::Writes));
    thread::scope(|scope| {
        let counting = scope.spawn(|| count_up(&pool));
        disk.await_hang();
        drop(pool.begin(0).unwrap());
        world.advance(6 * SECOND_NS);
        let refused = pool.begin(0).map(drop);
        assert!(matches!(refused, Err(PoolError::Suspended { .. })));
        disk.release();
        assert_eq!(counting.join().unwrap(), Ok(2));
    });
    drop(pool.begin(0).unwrap());
}

#[test]
fn a_hung_side_is_dropped_and_resilvered_when_it_answers() {
    let world = World::without_journal(83);
    let pool = opened(&world, Shape::MIRROR);
    let disk = Arc::clone(&world.disks()[0]);
    disk.hang(HangPlan::new(Hanging::Everything).passing(6 * SECOND_NS));
    assert_eq!(count_up(&pool), Ok(2));
    let lost = || -> Vec<Guid> { pool.lost_leaves(false).iter().map(|one| one.0).collect() };
    let hung = lost();
    assert_eq!(hung.len(), 1);
    let device: Arc<dyn millpond_device::Device> = Arc::clone(&disk) as _;
    // Reading its labels would hang too.
    assert_eq!(pool.reopen_leaf(hung[0], &device), Ok(false));
    assert_eq!(counted(&pool.committed().unwrap()), 2);
    disk.release();
    let leaf = pool.store().topology().tree.find_leaf(hung[0]).unwrap();
    while pool.store().topology().abandoned_requests(leaf) > 0 {
        thread::yield_now();
    }
    assert_eq!(count_up(&pool), Ok(3));
    check(&pool.committed().unwrap());
}
