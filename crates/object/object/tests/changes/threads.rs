//! Many threads change a set while it is synced.

use super::*;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::thread;
use millpond_object::NewObject;
use millpond_ondisk::{BlockId, ObjectId, ObjectType};
use std::collections::BTreeSet;

/// Syncs until `stop` is set and nothing is left, and counts txgs.
fn sync_loop(bench: &Bench, stop: &AtomicBool, count: &AtomicU64) {
    loop {
        let is_last = stop.load(Ordering::SeqCst);
        bench.groups.ask(bench.groups.open_txg());
        while let Some(syncing) = bench.groups.next_to_sync(Duration::from_millis(1)) {
            let txg = syncing.txg();
            bench.set.sync(txg, 1, &*bench.sink).unwrap();
            bench.groups.synced(txg);
            count.fetch_add(1, Ordering::SeqCst);
        }
        if is_last {
            return;
        }
    }
}

#[test]
fn threads_write_their_objects_while_txgs_are_synced() {
    let bench = Bench::new(ObjectSetKind::Other, WritePolicy::dataset());
    let stop = AtomicBool::new(false);
    let tx = bench.begin();
    // One object that all threads write, each its own blocks.
    let shared = NewObject::new(ObjectType::OTHER_U8).with_block_bytes(4096);
    let shared = bench.set.allocate(&tx, shared).unwrap();
    drop(tx);
    let (done, count) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        let sync = scope.spawn(|| sync_loop(&bench, &stop, &count));
        let writers: Vec<_> = (0..4u64)
            .map(|who| {
                let (bench, shared, done, count) = (&bench, &shared, &done, &count);
                scope.spawn(move || {
                    for round in 0..60u64 {
                        // Makes some txgs end between the rounds, however the threads are scheduled.
                        while round % 20 == 10 && count.load(Ordering::SeqCst) < round / 10 {
                            thread::yield_now();
                        }
                        let tx = bench.begin();
                        let new = NewObject::new(ObjectType::OTHER_U8).with_block_bytes(1024);
                        let own = bench.set.allocate(&tx, new).unwrap();
                        let fill = (who * 60 + round) as u8 | 1;
                        own.write(&tx, 300, &[fill; 5000]).unwrap();
                        drop(tx);
                        // Half blocks, so that old content is read while syncs replace the tree.
                        let tx = bench.begin();
                        let at = ((round % 16) * 4 + who) * 4096;
                        shared.write(&tx, at + 7 * round, &[fill; 100]).unwrap();
                        own.write(&tx, 2000, &[fill ^ 0x80; 10]).unwrap();
                        drop(tx);
                        let mut read = [0; 100];
                        shared.read(at + 7 * round, &mut read).unwrap();
                        assert_eq!(read, [fill; 100]);
                        if round % 3 == 0 {
                            let tx = bench.begin();
                            bench.set.free(&tx, own.id()).unwrap();
                        }
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, Ordering::SeqCst);
        sync.join().unwrap();
    });
    assert_eq!(done.load(Ordering::SeqCst), 4);
    assert!(count.load(Ordering::SeqCst) >= 5);
    let set = bench.judged();
    assert_eq!(set.object_count(), 1 + 4 * 40);
    let mut object = set.next_object(ObjectId(0)).unwrap();
    while let Some(one) = object {
        if one.id() != shared.id() {
            let mut bytes = vec![0; 5300];
            one.read(0, &mut bytes).unwrap();
            let fill = bytes[300];
            assert!(bytes[..300].iter().all(|byte| *byte == 0));
            assert!(bytes[300..2000].iter().all(|byte| *byte == fill));
            assert!(bytes[2000..2010].iter().all(|byte| *byte == fill ^ 0x80));
            assert!(bytes[2010..].iter().all(|byte| *byte == fill));
        }
        object = set.next_object(one.id()).unwrap();
    }
    let (mut live, mut synced) = (vec![0; 64 * 4096], vec![0; 64 * 4096]);
    shared.read(0, &mut live).unwrap();
    set.object(shared.id())
        .unwrap()
        .read(0, &mut synced)
        .unwrap();
    assert!(live == synced);
}

#[test]
fn threads_that_allocate_at_once_get_different_numbers() {
    let bench = Bench::new(ObjectSetKind::Other, WritePolicy::dataset());
    let ids: Vec<u64> = thread::scope(|scope| {
        let threads: Vec<_> = (1..=4u8)
            .map(|slots| {
                let bench = &bench;
                scope.spawn(move || {
                    let tx = bench.begin();
                    let mut ids = vec![];
                    for _ in 0..500 {
                        let new = NewObject::new(ObjectType::OTHER_U8).with_slots(slots);
                        let id = bench.set.allocate(&tx, new).unwrap().id().0;
                        ids.extend(id..id + u64::from(slots));
                    }
                    ids
                })
            })
            .collect();
        let lists = threads.into_iter().map(|thread| thread.join().unwrap());
        lists.flatten().collect()
    });
    let distinct: BTreeSet<u64> = ids.iter().copied().collect();
    assert_eq!((distinct.len(), ids.len()), (5000, 5000));
    let (_, set) = bench.sync();
    assert_eq!(set.object_count(), 2000);
}

#[test]
fn all_threads_get_the_same_object() {
    let mut bench = Bench::new(ObjectSetKind::Other, WritePolicy::dataset());
    let tx = bench.begin();
    for _ in 0..100 {
        let new = NewObject::new(ObjectType::OTHER_U8);
        bench.set.allocate(&tx, new).unwrap();
    }
    drop(tx);
    bench.sync();
    bench.reopen();
    // All threads add to the same byte count under their object's own lock. A second copy would lose updates.
    thread::scope(|scope| {
        for who in 0..4u64 {
            let bench = &bench;
            scope.spawn(move || {
                for id in 1..=100 {
                    let tx = bench.begin();
                    let object = bench.set.object(ObjectId(id)).unwrap();
                    object.write(&tx, who * 8, &[who as u8 + 1; 8]).unwrap();
                }
            });
        }
    });
    for id in 1..=100 {
        let object = bench.set.object(ObjectId(id)).unwrap();
        let block = object.read_block(BlockId(0)).unwrap();
        for who in 0..4usize {
            assert_eq!(block.bytes[who * 8..][..8], [who as u8 + 1; 8]);
        }
    }
    bench.sync();
}
