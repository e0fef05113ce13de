//! Pools with their own sync thread.

use crate::PoolError;
use crate::tests::leaks::check;
use crate::tests::made::{NoDatasets, Shape, count_up, counted, make, open_read_only, open_some};
use crate::{Pool, SyncMode};
use millpond_env::sync::Arc;
use millpond_env::thread;
use millpond_sim::World;
use std::collections::BTreeSet;

fn threaded(world: &World) -> Arc<Pool> {
    let pool = make(world, Shape::ONE, Arc::new(NoDatasets::default()));
    count_up(&pool).unwrap();
    drop(pool);
    open_some(world, &world.disks(), SyncMode::Thread).unwrap()
}

#[test]
fn concurrent_tasks_run_one_at_a_time_and_are_committed() {
    let world = World::without_journal(50);
    let pool = threaded(&world);
    let counts: Vec<u64> = thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|_| {
                scope.spawn(|| {
                    let mut counts = vec![];
                    for _ in 0..6 {
                        let count = count_up(&pool).unwrap();
                        assert!(counted(&pool.committed().unwrap()) >= count);
                        counts.push(count);
                        pool.sync().unwrap();
                    }
                    counts
                })
            })
            .collect();
        let each = threads.into_iter().map(|thread| thread.join().unwrap());
        each.flatten().collect()
    });
    let distinct: BTreeSet<u64> = counts.iter().copied().collect();
    assert_eq!(distinct, (2..=37).collect());
    check(&pool.committed().unwrap());
    drop(pool);
    assert_eq!(counted(&open_read_only(&world).unwrap()), 37);
}

#[test]
fn a_task_may_borrow_from_its_caller() {
    let world = World::without_journal(51);
    let pool = threaded(&world);
    let mut seen = vec![];
    let words = ["a", "b"];
    pool.sync_task(|ctx| {
        seen.push((ctx.pass(), words[1]));
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, [(1, "b")]);
}

#[test]
fn a_panicking_task_suspends_the_pool() {
    let world = World::without_journal(52);
    let pool = threaded(&world);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _: Result<(), _> = pool.sync_task(|_| panic!("as arranged"));
    }));
    assert!(panicked.is_err());
    let error = loop {
        // The caller unwinds before the sync thread notices the panic.
        if let Err(error) = count_up(&pool) {
            break error;
        }
    };
    assert!(matches!(error, PoolError::Suspended { .. }), "{error}");
    drop(pool);
    assert_eq!(counted(&open_read_only(&world).unwrap()), 1);
}

#[test]
fn an_exported_pool_has_no_thread_and_refuses_everything() {
    let world = World::without_journal(53);
    let pool = threaded(&world);
    assert_eq!(count_up(&pool).unwrap(), 2);
    thread::scope(|scope| {
        // A caller that is too late gets an error.
        let late = scope.spawn(|| while count_up(&pool).is_ok() {});
        pool.export().unwrap();
        late.join().unwrap();
    });
    assert!(pool.begin(0).is_err());
    assert!(pool.threads.is_empty());
    let read = open_read_only(&world).unwrap();
    assert!(counted(&read) >= 2);
    check(&read);
}

#[test]
fn export_does_not_wait_for_a_thread_whose_task_comes_too_late() {
    for _ in 0..30 {
        let world = World::without_journal(54);
        let pool = threaded(&world);
        let weak = Arc::downgrade(&pool);
        // As scrubs and initializations do, in a thread that export waits for.
        let body = move || while weak.upgrade().is_some_and(|pool| count_up(&pool).is_ok()) {};
        pool.spawn_scanner(body).unwrap();
        assert!(count_up(&pool).unwrap() >= 2);
        pool.export().unwrap();
        assert!(pool.threads.is_empty());
    }
}
