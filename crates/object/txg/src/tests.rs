use crate::{BeginWait, DirtyLimits, Pause, Transaction, TxgError, TxgGroups, TxgRequest};
use millpond_env::mark;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex, bounded};
use millpond_env::{Clock, Env, thread};
use millpond_ondisk::Txg;
use std::time::Duration;

/// A clock that only moves when it is set.
#[derive(Default)]
struct Hand(AtomicU64);

impl Clock for Hand {
    fn wall_ns(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    fn monotonic_ns(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

fn limits() -> DirtyLimits {
    DirtyLimits {
        limit_bytes: 1000,
        ..DirtyLimits::default()
    }
}

fn groups() -> (Arc<TxgGroups>, Arc<Hand>) {
    let hand = Arc::new(Hand::default());
    let env = Env {
        clock: Arc::clone(&hand) as Arc<dyn Clock>,
        ..Env::real()
    };
    (TxgGroups::new(&env, Txg(4), limits()), hand)
}

const NOW: Duration = Duration::ZERO;

fn next(groups: &Arc<TxgGroups>) -> Option<u64> {
    groups.next_to_sync(NOW).map(|syncing| syncing.txg().0)
}

#[test]
fn an_empty_txg_stays_open_until_a_sync_is_requested() {
    let (groups, hand) = groups();
    hand.0.store(60_000_000_000, Ordering::SeqCst);
    assert_eq!(next(&groups), None);
    assert_eq!((groups.open_txg(), groups.synced_txg()), (Txg(4), Txg(3)));
    groups.ask(Txg(4));
    let syncing = groups.next_to_sync(NOW).unwrap();
    assert!(syncing.is_idle());
    groups.synced(syncing.txg());
    assert_eq!((groups.open_txg(), groups.synced_txg()), (Txg(5), Txg(4)));
}

#[test]
fn a_group_closes_a_period_after_its_first_transaction() {
    let (groups, hand) = groups();
    // Repeated use keeps it from closing early as an idle group would.
    for tenths in (0..50).step_by(9) {
        hand.0.store(tenths * 100_000_000, Ordering::SeqCst);
        drop(groups.begin(1).unwrap());
        assert_eq!(next(&groups), None);
    }
    hand.0.store(4_999_999_999, Ordering::SeqCst);
    assert_eq!(next(&groups), None);
    hand.0.store(5_000_000_000, Ordering::SeqCst);
    let syncing = groups.next_to_sync(NOW).unwrap();
    assert!(!syncing.is_idle());
}

#[test]
fn a_group_closes_when_a_share_of_the_limit_is_dirty() {
    let (groups, _) = groups();
    let transaction = groups.begin(0).unwrap();
    transaction.charge(199);
    assert_eq!(groups.open_txg(), Txg(4));
    transaction.charge(1);
    assert_eq!(groups.open_txg(), Txg(5));
    assert_eq!(next(&groups), None, "its transaction has not ended");
    drop(transaction);
    assert_eq!(next(&groups), Some(4));
}

#[test]
fn three_groups_are_alive_at_most() {
    let (groups, _) = groups();
    groups.ask(Txg(9));
    assert_eq!(groups.open_txg(), Txg(5));
    assert_eq!(next(&groups), Some(4));
    // 4 is being written, 5 quiesces, 6 stays open.
    assert_eq!(groups.open_txg(), Txg(6));
    let late = groups.begin(0).unwrap();
    assert_eq!(late.txg(), Txg(6));
    assert_eq!(
        next(&groups),
        Some(4),
        "handed out again until it is synced"
    );
    groups.synced(Txg(4));
    assert_eq!(next(&groups), Some(5));
    assert_eq!(groups.open_txg(), Txg(7));
    groups.synced(Txg(5));
    assert_eq!(next(&groups), None);
    drop(late);
    assert_eq!(next(&groups), Some(6));
}

#[test]
fn transactions_of_the_syncing_thread_never_wait() {
    let (groups, _) = groups();
    groups.ask(Txg(4));
    let syncing = groups.next_to_sync(NOW).unwrap();
    let own = syncing.transaction();
    assert!(own.is_syncing() && own.txg() == Txg(4));
    own.charge(1 << 40);
    assert_eq!(groups.dirty_bytes(), 0);
    groups.synced(Txg(4));
    drop(own);
    let other = groups.begin(0).unwrap();
    assert!(!other.is_syncing() && other.txg() == Txg(5));
}

#[test]
fn begin_on_the_syncing_thread_never_waits() {
    let (groups, _) = groups();
    let full = groups.begin(0).unwrap();
    full.charge(5000);
    drop(full);
    assert_eq!(next(&groups), Some(4));
    let while_full = groups.begin(10).unwrap();
    assert_eq!(while_full.txg(), Txg(5));
}

#[test]
fn at_the_limit_transactions_wait_until_a_group_is_synced() {
    let (groups, _) = groups();
    let full = groups.begin(0).unwrap();
    full.charge(1000);
    drop(full);
    let order: Mutex<_> = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let transaction = groups.begin(1).unwrap();
            order.lock().push("begun");
            transaction.txg()
        });
        let syncing = groups.next_to_sync(Duration::from_secs(60)).unwrap();
        order.lock().push("synced");
        groups.synced(syncing.txg());
        assert_eq!(waiter.join().unwrap(), Txg(5));
    });
    assert_eq!(*order.lock(), ["synced", "begun"]);
}

#[test]
fn estimates_count_until_transactions_end() {
    let (groups, _) = groups();
    let announced = groups.begin(1000).unwrap();
    assert_eq!(groups.dirty_bytes(), 1000);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| groups.begin(1).map(drop));
        announced.charge(10);
        drop(announced);
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(groups.dirty_bytes(), 10);
}

#[test]
fn delays_grow_smoothly_from_the_share_to_the_limit() {
    let limits = limits();
    let delay = |dirty| limits.delay(dirty, 1 << 20);
    assert_eq!(delay(600), Duration::ZERO);
    let delays: Vec<Duration> = (601..1000).map(delay).collect();
    assert!(delays[0] > Duration::ZERO && delays[0] < Duration::from_micros(2));
    assert!(delays.is_sorted());
    assert_eq!(delay(800), limits.delay_scale);
    assert_eq!(delay(999), limits.delay_max);
    assert_eq!(delay(u64::MAX), limits.delay_max);
}

#[test]
fn small_writes_are_delayed_in_proportion() {
    let limits = limits();
    let most = limits.delay_max;
    assert_eq!(limits.delay(999, u64::MAX), most);
    assert_eq!(limits.delay(999, 512 << 10), most / 2);
    assert_eq!(limits.delay(999, 16 << 10), most / 64);
    assert_eq!(limits.delay(999, 0), most / 64);
}

#[test]
fn little_room_in_the_pool_lowers_the_limit() {
    let limits = DirtyLimits {
        limit_bytes: 512 << 20,
        ..DirtyLimits::default()
    };
    let limit = |room_mib: u64| limits.within(room_mib << 20).limit_bytes >> 20;
    assert_eq!(limit(1 << 40), 512);
    assert_eq!(limit(90), 80);
    assert_eq!(limit(0), 16, "less would close a txg with every few writes");
    let groups = TxgGroups::new(&Env::real(), Txg(4), limits);
    let some = groups.begin(0).unwrap();
    some.charge(16 << 20);
    assert_eq!((groups.dirty_percent(), groups.open_txg()), (3, Txg(4)));
    groups.set_room(18 << 20);
    assert_eq!(groups.dirty_percent(), 100);
    some.charge(1);
    assert_eq!(groups.open_txg(), Txg(5), "a fifth of the limit closes it");
}

#[test]
fn small_writes_do_not_wait_for_large_ones() {
    let groups = TxgGroups::new(&Env::real(), Txg(4), limits());
    let most = groups.begin(0).unwrap();
    most.charge(1100);
    drop(most);
    let begin = |written_bytes, wait| {
        groups.begin_as(TxgRequest {
            written_bytes,
            wait,
            ..TxgRequest::default()
        })
    };
    // Delayed, although nothing is ever synced.
    drop(begin(64 << 10, BeginWait::Throttled).unwrap());
    let large = begin((64 << 10) + 1, BeginWait::Never);
    assert!(matches!(large, Err(TxgError::WouldWait)));
    let more = groups.begin(0).unwrap();
    more.charge(25);
    drop(more);
    assert_eq!(groups.dirty_bytes(), 1125);
}

#[test]
fn a_delayed_transaction_begins_on_time() {
    let _mark = mark::expect("writer-delayed");
    let groups = TxgGroups::new(&Env::real(), Txg(4), limits());
    let most = groups.begin(0).unwrap();
    most.charge(950);
    drop(most);
    // Continues although nothing is ever synced.
    drop(groups.begin(0).unwrap());
}

#[test]
fn waiters_are_woken_by_the_commit_and_by_failure() {
    let (groups, _) = groups();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| groups.wait_synced(Txg(5)));
        let opener = scope.spawn(|| groups.wait_open(Txg(6)));
        for txg in [4, 5] {
            let syncing = groups.next_to_sync(Duration::from_secs(60)).unwrap();
            assert_eq!(syncing.txg(), Txg(txg));
            groups.synced(syncing.txg());
        }
        assert_eq!(
            (waiter.join().unwrap(), opener.join().unwrap()),
            (Ok(()), Ok(()))
        );

        let waiter = scope.spawn(|| groups.wait_synced(Txg(6)));
        let syncing = groups.next_to_sync(Duration::from_secs(60)).unwrap();
        groups.fail("the disk is gone");
        groups.fail("so is the other");
        let suspended = TxgError::Suspended {
            reason: "the disk is gone".into(),
        };
        assert_eq!(waiter.join().unwrap(), Err(suspended.clone()));
        assert_eq!(groups.begin(0).map(drop), Err(suspended));
        assert_eq!(next(&groups), None);
        groups.resume();
        assert_eq!(next(&groups), Some(6), "the same group is tried again");
        groups.synced(syncing.txg());
        assert_eq!(groups.wait_synced(Txg(6)), Ok(()));
    });
}

#[test]
fn while_paused_nothing_begins_and_the_open_group_continues() {
    let (groups, _) = groups();
    thread::scope(|scope| {
        let under_way = groups.begin(0).unwrap();
        let waiter = scope.spawn(|| groups.wait_synced(Txg(4)));
        groups.pause("the disk is gone", Pause::Refuse);
        let refused = TxgError::Suspended {
            reason: "the disk is gone".into(),
        };
        let refusal = scope.spawn(|| groups.begin(0).map(drop)).join();
        assert_eq!(refusal.unwrap(), Err(refused));
        groups.pause("the disk is gone", Pause::Hold);
        let held = scope.spawn(|| groups.begin(0).map(|tx| tx.txg()));
        drop(under_way);
        let syncing = groups.next_to_sync(Duration::from_secs(60)).unwrap();
        // Nothing waits on the sync thread.
        assert_eq!(groups.begin(0).map(|tx| tx.txg()), Ok(Txg(5)));
        assert!(!waiter.is_finished() && !held.is_finished());
        groups.resume();
        assert_eq!(held.join().unwrap(), Ok(Txg(5)));
        groups.synced(syncing.txg());
        assert_eq!(waiter.join().unwrap(), Ok(()));

        groups.pause("again", Pause::Hold);
        // Not on a sync thread.
        let late = scope.spawn(|| groups.begin(0).map(drop));
        groups.end_all();
        assert_eq!(late.join().unwrap(), Err(TxgError::Ended));
    });
}

#[test]
fn ended_groups_refuse_and_give_up_waiting() {
    let (groups, _) = groups();
    thread::scope(|scope| {
        let syncer = scope.spawn(|| groups.next_to_sync(Duration::from_secs(3600)).is_none());
        let waiter = scope.spawn(|| groups.wait_synced(Txg(1000)));
        groups.end_all();
        // The waiter's request may have closed a group first; in that case the sync thread gets that group.
        let got_none = syncer.join().unwrap();
        assert!(got_none || groups.open_txg() > Txg(4));
        assert_eq!(waiter.join().unwrap(), Err(TxgError::Ended));
    });
    assert_eq!(groups.begin(0).map(drop), Err(TxgError::Ended));
    assert!(groups.has_ended());
}

#[test]
fn no_transaction_is_in_a_group_that_is_being_written() {
    let groups = TxgGroups::new(
        &Env::real(),
        Txg(4),
        DirtyLimits {
            limit_bytes: 100_000,
            ..DirtyLimits::default()
        },
    );
    let active: [AtomicU64; 4] = Default::default();
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let transaction: Transaction = groups.begin(100).unwrap();
                    let slot = &active[(transaction.txg().0 % 4) as usize];
                    slot.fetch_add(1, Ordering::SeqCst);
                    transaction.charge(100);
                    slot.fetch_sub(1, Ordering::SeqCst);
                }
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        let mut last = 3;
        while done.load(Ordering::SeqCst) < 4 || groups.dirty_bytes() > 0 {
            groups.ask(groups.open_txg());
            let Some(syncing) = groups.next_to_sync(Duration::from_millis(1)) else {
                continue;
            };
            let txg = syncing.txg();
            assert_eq!(txg.0, last + 1);
            assert!(groups.open_txg().0 - txg.0 <= 2);
            assert_eq!(active[(txg.0 % 4) as usize].load(Ordering::SeqCst), 0);
            last = txg.0;
            groups.synced(txg);
        }
    });
}

#[test]
fn at_the_limit_a_transaction_waits_for_a_write() {
    let _mark = mark::expect("writer-throttled");
    let (groups, _) = groups();
    let all = groups.begin(0).unwrap();
    all.charge(1125);
    drop(all);
    let more = Arc::clone(&groups);
    let waiter = thread::spawn("waiter", move || more.begin(0).map(|tx| tx.txg())).unwrap();
    while groups.state.lock().throttled == 0 {
        thread::yield_now();
    }
    let syncing = groups.next_to_sync(NOW).unwrap();
    groups.synced(syncing.txg());
    assert_eq!(waiter.join().unwrap(), Ok(Txg(5)));
}

fn begin_freeing(groups: &Arc<TxgGroups>, freed_blocks: u64) -> Result<Transaction, TxgError> {
    groups.begin_as(TxgRequest {
        freed_blocks,
        ..TxgRequest::default()
    })
}

#[test]
fn frees_beyond_the_budget_of_a_group_wait_for_the_next() {
    let _mark = mark::expect("frees-wait-for-next-txg");
    let (groups, _) = groups();
    let most = groups.limits().freed_blocks_max;
    // The first one always fits. Frees never delay a transaction that frees nothing.
    drop(begin_freeing(&groups, most + 1).unwrap());
    assert_eq!(groups.begin(0).unwrap().txg(), Txg(4));
    let more = Arc::clone(&groups);
    let waiter = thread::spawn("waiter", move || begin_freeing(&more, 1).map(|tx| tx.txg()));
    assert_eq!(waiter.unwrap().join().unwrap(), Ok(Txg(5)));
    // No other caller requested the group, and its period has not passed.
    let syncing = groups.next_to_sync(NOW).unwrap();
    assert_eq!(syncing.txg(), Txg(4));
    groups.synced(Txg(4));
    // The sync thread never waits.
    drop(begin_freeing(&groups, most).unwrap());
    assert_eq!(begin_freeing(&groups, most).unwrap().txg(), Txg(5));
}

fn begin_waiting(groups: &Arc<TxgGroups>, wait: BeginWait) -> Result<Transaction, TxgError> {
    groups.begin_as(TxgRequest {
        wait,
        ..TxgRequest::default()
    })
}

#[test]
fn log_writers_pass_the_throttle_and_some_never_wait() {
    let (groups, _) = groups();
    let all = groups.begin(0).unwrap();
    all.charge(1000);
    drop(all);
    assert!(begin_waiting(&groups, BeginWait::UnlessPaused).is_ok());
    let never = || begin_waiting(&groups, BeginWait::Never).map(drop);
    assert_eq!(never(), Err(TxgError::WouldWait));
    let syncing = groups.next_to_sync(NOW).unwrap();
    groups.synced(syncing.txg());
    // From here on this thread is the sync thread, which never waits.
    thread::scope(|scope| {
        assert_eq!(scope.spawn(never).join().unwrap(), Ok(()));
        groups.pause("a disk is away", Pause::Hold);
        assert_eq!(scope.spawn(never).join().unwrap(), Err(TxgError::WouldWait));
    });
}

#[test]
fn an_unused_txg_closes_early() {
    let (groups, hand) = groups();
    let second = 1_000_000_000;
    drop(groups.begin(1).unwrap());
    hand.0.store(second - 1, Ordering::SeqCst);
    assert_eq!(next(&groups), None);
    // After new use it gets another second, and it does not close as idle while a transaction is open.
    let open = groups.begin(1).unwrap();
    hand.0.store(3 * second, Ordering::SeqCst);
    assert_eq!(next(&groups), None);
    drop(open);
    hand.0.store(4 * second - 1, Ordering::SeqCst);
    assert_eq!(next(&groups), None);
    hand.0.store(4 * second, Ordering::SeqCst);
    assert_eq!(next(&groups), Some(4));
}

#[test]
fn a_partial_change_is_never_written() {
    let _mark = mark::expect("half-a-change");
    let half = |tx: &Transaction| drop(tx.unfinished());
    let panic = |tx: &Transaction| {
        let groups = Arc::clone(tx.groups());
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _tx = groups.begin(1).unwrap();
            panic!("as told");
        }));
        assert!(caught.is_err());
    };
    for ruin in [&half as &dyn Fn(&Transaction), &panic] {
        let (groups, _) = groups();
        drop(groups.begin(1).unwrap());
        groups.ask(Txg(4));
        let before = groups.next_to_sync(NOW).unwrap();
        let tx = groups.begin(1).unwrap();
        ruin(&tx);
        drop(tx);
        // The group that was being written is complete.
        groups.synced(before.txg());
        groups.ask(Txg(5));
        assert_eq!(next(&groups), None);
        assert!(matches!(groups.begin(1), Err(TxgError::Suspended { .. })));
        assert!(matches!(
            groups.wait_synced(Txg(5)),
            Err(TxgError::Suspended { .. })
        ));
        assert!(groups.failure().is_some());
        groups.resume();
        assert_eq!(next(&groups), None);
        assert!(groups.ruined().is_some());
    }
    let (groups, _) = groups();
    let tx = groups.begin(1).unwrap();
    tx.unfinished().done();
    drop(tx);
    groups.ask(Txg(4));
    assert_eq!(next(&groups), Some(4));
}

#[test]
fn the_sync_thread_sees_that_a_group_is_idle_after_its_last_transaction() {
    let watch = mark::expect("sync-thread-waits-for-idle");
    let limits = DirtyLimits {
        period: Duration::from_secs(3600),
        idle_period: Duration::from_millis(20),
        ..limits()
    };
    let groups = TxgGroups::new(&Env::real(), Txg(4), limits);
    let transaction = groups.begin(1).unwrap();
    let (tell, told) = bounded(1);
    let own = Arc::clone(&groups);
    let thread = thread::spawn("sync", move || {
        let syncing = own.next_to_sync(Duration::from_secs(3600));
        tell.send(syncing.map(|syncing| syncing.txg())).unwrap();
    });
    while watch.count("sync-thread-waits-for-idle") == 0 {
        std::thread::yield_now();
    }
    // It sleeps now, or is about to: it holds the lock until then.
    drop(transaction);
    assert_eq!(told.recv_timeout(Duration::from_secs(30)), Ok(Some(Txg(4))));
    thread.unwrap().join().unwrap();
}
