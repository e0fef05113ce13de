use super::*;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::base::{Condvar, Mutex, RwLock};
use crate::sync::{Arc, OnceLock, bounded};
use crate::thread;
use std::collections::BTreeSet;
use std::time::Duration;

fn random(seed: u64) -> Schedule {
    Schedule {
        seed,
        policy: Policy::Random { one_in: 2 },
        points_max: 1_000_000,
    }
}

fn ranks(seed: u64) -> Schedule {
    Schedule {
        policy: Policy::Ranks { one_in: 5 },
        ..random(seed)
    }
}

/// The order of the writes of three threads that write twice each.
fn order_of(schedule: Schedule) -> (Vec<u64>, Report) {
    let body = || {
        let list = Mutex::new(vec![]);
        thread::scope(|scope| {
            for number in 0..3 {
                let list = &list;
                scope.spawn(move || {
                    for _ in 0..2 {
                        list.lock().push(number);
                    }
                });
            }
        });
        list.into_inner()
    };
    run(schedule, body).unwrap()
}

#[test]
fn equal_seeds_give_equal_schedules() {
    // There are 6! / (2! 2! 2!) = 90 orders. Those in which the first thread finishes last are rare.
    for (schedule, least) in [(random as fn(u64) -> Schedule, 75), (ranks, 40)] {
        let mut orders = BTreeSet::new();
        for seed in 0..2000 {
            let (order, report) = order_of(schedule(seed));
            assert_eq!((report.threads, report.left), (4, 0));
            if seed < 50 {
                assert_eq!(order_of(schedule(seed)), (order.clone(), report));
            }
            orders.insert(order);
        }
        assert!(orders.len() >= least, "{}", orders.len());
    }
}

#[test]
fn lost_updates_without_a_lock_are_found() {
    let body = || {
        let count = Arc::new(AtomicU64::new(0));
        let gate = Arc::new(Mutex::new(()));
        let started = (0..2).map(|_| {
            let (count, gate) = (Arc::clone(&count), Arc::clone(&gate));
            let body = move || {
                let seen = count.load(Ordering::SeqCst);
                drop(gate.lock());
                count.store(seen + 1, Ordering::SeqCst);
            };
            thread::spawn("adder", body).unwrap()
        });
        let started: Vec<_> = started.collect();
        for thread in started {
            thread.join().unwrap();
        }
        count.load(Ordering::SeqCst)
    };
    let results = (0..100).map(|seed| run(random(seed), body).unwrap().0);
    assert_eq!(results.collect::<BTreeSet<_>>(), BTreeSet::from([1, 2]));
}

#[test]
fn deadlocks_are_reported() {
    let body = || {
        let locks = (Mutex::new(()), Mutex::new(()));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _one = locks.0.lock();
                let _two = locks.1.lock();
            });
            let _two = locks.1.lock();
            let _one = locks.0.lock();
        });
    };
    let outcomes: Vec<_> = (0..40).map(|seed| run(random(seed), body)).collect();
    assert!(outcomes.iter().any(Result::is_ok));
    let stuck = outcomes.iter().find_map(|outcome| outcome.as_ref().err());
    assert_eq!(
        stuck.map(ToString::to_string).as_deref(),
        Some("stuck: nobody can go on: first waits for a lock, scoped waits for a lock")
    );
}

#[test]
fn a_run_without_an_end_is_stuck() {
    let schedule = Schedule {
        points_max: 1000,
        ..random(1)
    };
    let text = run(schedule, || {
        loop {
            thread::yield_now();
        }
    });
    let text = text
        .map(|(never, _): ((), _)| never)
        .unwrap_err()
        .to_string();
    assert!(text.contains("more than 1000 points"), "{text}");
}

#[test]
fn a_message_wakes_one_receiver_and_the_end_wakes_all() {
    for seed in 0..100 {
        let body = || {
            let (send, receive) = bounded(2);
            let sum = AtomicU64::new(0);
            thread::scope(|scope| {
                for _ in 0..3 {
                    let (receive, sum) = (receive.clone(), &sum);
                    scope.spawn(move || {
                        while let Ok(number) = receive.recv() {
                            sum.fetch_add(number, Ordering::SeqCst);
                        }
                    });
                }
                for number in 1..=10 {
                    send.send(number).unwrap();
                }
                drop(send);
            });
            drop(receive);
            sum.into_inner()
        };
        assert_eq!(run(random(seed), body).unwrap().0, 55);
    }
}

struct Hours(AtomicU64);

impl Time for Hours {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    fn advance_to(&self, ns: u64) {
        self.0.fetch_max(ns, Ordering::SeqCst);
    }
}

#[test]
fn simulated_sleep_takes_no_real_time() {
    let hour = 3_600_000_000_000;
    for seed in 0..50 {
        let body = move || {
            let time = Arc::new(Hours(AtomicU64::new(5)));
            set_time(Arc::clone(&time) as Arc<dyn Time>);
            let (lock, changed) = (Mutex::new(0), Condvar::new());
            let (late, early) = thread::scope(|scope| {
                let waiting = scope.spawn(|| {
                    let mut guard = lock.lock();
                    while *guard < 100 {
                        let wait = changed.wait_for(&mut guard, Duration::from_nanos(hour));
                        assert!(!wait.timed_out());
                    }
                    time.now_ns()
                });
                for _ in 0..100 {
                    *lock.lock() += 1;
                    changed.notify_all();
                }
                let early = waiting.join().unwrap();
                let mut guard = lock.lock();
                assert!(
                    changed
                        .wait_for(&mut guard, Duration::from_nanos(hour))
                        .timed_out()
                );
                (time.now_ns(), early)
            });
            (early, late)
        };
        assert_eq!(run(random(seed), body).unwrap().0, (5, 5 + hour));
    }
}

#[test]
fn a_value_is_initialised_once_although_it_yields() {
    for seed in 0..100 {
        let body = || {
            let (once, gate, made) = (OnceLock::new(), Mutex::new(()), AtomicU64::new(0));
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let value = once.get_or_init(|| {
                            drop(gate.lock());
                            made.fetch_add(1, Ordering::SeqCst)
                        });
                        assert_eq!(*value, 0);
                    });
                }
            });
            made.into_inner()
        };
        assert_eq!(run(random(seed), body).unwrap().0, 1);
    }
}

#[test]
fn writers_are_exclusive_and_readers_are_shared() {
    let body = || {
        let lock = RwLock::new((0u32, 0u32));
        let (readers, together) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        let guard = lock.read();
                        let others = readers.fetch_add(1, Ordering::SeqCst);
                        together.fetch_max(others, Ordering::SeqCst);
                        thread::yield_now();
                        assert_eq!(guard.0, guard.1);
                        readers.fetch_sub(1, Ordering::SeqCst);
                    }
                });
                scope.spawn(|| {
                    for _ in 0..5 {
                        let mut guard = lock.write();
                        guard.0 += 1;
                        thread::yield_now();
                        assert_eq!(readers.load(Ordering::SeqCst), 0);
                        guard.1 += 1;
                    }
                });
            }
        });
        (lock.into_inner(), together.into_inner())
    };
    let mut together = 0;
    for seed in 0..60 {
        let (value, seen) = run(random(seed), body).unwrap().0;
        assert_eq!(value, (15, 15));
        together = together.max(seen);
    }
    assert_eq!(together, 2);
}

#[test]
fn a_panic_reaches_only_the_joining_thread() {
    let body = || {
        let failed = thread::spawn("fails", || panic!("as it should")).unwrap();
        let works = thread::spawn("works", || 7).unwrap();
        (failed.join().is_err(), works.join().unwrap())
    };
    assert_eq!(run(random(1), body).unwrap().0, (true, 7));
    let ended = run(random(1), || -> () { panic!("as it should, too") }).unwrap_err();
    assert_eq!(ended.to_string(), "panic: as it should, too");
}

#[test]
fn threads_that_are_never_woken_are_counted() {
    let body = || {
        let (send, receive) = bounded::<()>(1);
        let _ = thread::spawn("left", move || receive.recv());
        std::mem::forget(send);
    };
    assert_eq!(run(random(1), body).unwrap().1.left, 1);
}

#[test]
fn outside_of_a_run_they_are_ordinary_locks() {
    let (lock, changed) = (Mutex::new(0), Condvar::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut guard = lock.lock();
            while *guard == 0 {
                changed.wait(&mut guard);
            }
            *guard += 1;
        });
        *lock.lock() = 1;
        changed.notify_all();
    });
    assert_eq!(lock.into_inner(), 2);
}
