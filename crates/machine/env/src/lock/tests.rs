use super::{Condvar, Mutex, RwLock};
use crate::rank::{
    self, DatasetNames, FileChanges, Held, Leaf, LockRank, ObjectState, ObjectTable, RANKS,
};
use crate::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// The message with which `body` panics in debug builds; empty if it does not.
fn refusal(body: impl FnOnce()) -> String {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(()) => String::new(),
        Err(reason) => *reason.downcast::<String>().expect("a formatted message"),
    }
}

#[test]
fn the_order_of_the_table_is_the_order_of_locking() {
    let outer: Mutex<u8, ObjectState> = Mutex::new(1);
    let inner: RwLock<u8, ObjectTable> = RwLock::new(2);
    let sum = *outer.lock() + *inner.read();
    assert_eq!(sum, 3);
    let first = outer.lock();
    let second = inner.write();
    drop(first);
    // Released in any order.
    drop(second);
    let _first = outer.lock();
}

#[test]
fn an_earlier_lock_is_refused_while_a_later_one_is_held() {
    let outer: Mutex<(), ObjectState> = Mutex::new(());
    let inner: RwLock<(), ObjectTable> = RwLock::new(());
    let held = inner.read();
    let words = refusal(|| drop(outer.lock()));
    assert!(words.contains("taking \"object\""), "{words}");
    assert!(words.contains("\"table of an object set\""), "{words}");
    // Another thread holds nothing, and a lock that is not waited for may be taken.
    thread::scope(|scope| scope.spawn(|| drop(outer.lock())).join().unwrap());
    assert!(outer.try_lock().is_some());
    assert!(outer.try_lock_for(Duration::from_millis(1)).is_some());
    drop(held);
    assert_eq!(refusal(|| drop(outer.lock())), "");
}

#[test]
fn two_of_a_rank_are_refused_unless_the_table_allows_it() {
    let tables: [RwLock<(), ObjectTable>; 2] = Default::default();
    let _held = tables[0].read();
    assert!(!refusal(|| drop(tables[1].read())).is_empty());
    // A waiting writer would keep the second reader of one lock out.
    assert!(!refusal(|| drop(tables[0].read())).is_empty());

    let files: [Mutex<(), FileChanges>; 2] = Default::default();
    thread::scope(|scope| {
        let both = scope.spawn(|| {
            let _first = files[0].lock();
            drop(files[1].lock());
        });
        both.join().unwrap();
    });
}

#[test]
fn a_wait_for_a_condition_checks_the_order_again() {
    let state: Mutex<(), ObjectState> = Mutex::new(());
    let leaf: Mutex<(), Leaf> = Mutex::new(());
    let changed = Condvar::new();
    let limit = Duration::from_millis(1);
    let mut guard = state.lock();
    assert!(changed.wait_for(&mut guard, limit).timed_out());
    let _inner = leaf.lock();
    let words = refusal(|| {
        changed.wait_for(&mut guard, limit);
    });
    assert!(words.contains("waiting on \"object\""), "{words}");
}

#[test]
fn brief_locks_are_not_held_across_device_io() {
    let names: RwLock<(), DatasetNames> = RwLock::new(());
    let state: Mutex<(), ObjectState> = Mutex::new(());
    let _names = names.read();
    assert_eq!(refusal(rank::check_io), "");
    let _state = state.lock();
    assert!(refusal(rank::check_io).contains("device I/O while holding \"object\""));
}

#[test]
fn a_transaction_counts_like_a_lock() {
    let transaction = Held::waiting(rank::OpenTransaction::RANK);
    assert!(!refusal(|| drop(Held::waiting(rank::OpenTransaction::RANK))).is_empty());
    drop(transaction);
    assert_eq!(
        refusal(|| drop(Held::waiting(rank::OpenTransaction::RANK))),
        ""
    );
}

#[test]
fn ranks_are_numbered_in_the_order_of_the_table() {
    for (order, rank) in RANKS.iter().enumerate() {
        let rank = rank.as_ref().unwrap();
        assert_eq!(rank.order, order);
        assert!(!rank.name.is_empty() && rank.held.ends_with('.'));
    }
    assert_eq!(RANKS.last().copied(), Some(Leaf::RANK));
}
