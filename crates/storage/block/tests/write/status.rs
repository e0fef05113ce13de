//! Leaves that are out of use.

use crate::pool::{Pool, TXG, Vdev, address, job, noise};
use millpond_block::{LeafCondition, LeafReason, LeafState};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::Ordering;
use millpond_vdev::{Health, LeafHealth, LeafId};

#[test]
fn a_leaf_that_is_faulted_gets_no_requests() {
    for vdev in [Vdev::Mirror(2), Vdev::Raidz(3, 1)] {
        let pool = Pool::new(&[(vdev, 9)]);
        let first = pool.write_one(job(noise(1, 16 << 10)));
        pool.store.flush().unwrap();
        let topology = pool.store.topology();
        let given = || {
            let device = &pool.devices[0];
            let [writes, flushes] = [&device.writes, &device.flushes];
            let stats = pool.store.topology().leaf_stats(LeafId(0));
            let counts = [writes, flushes].map(|count| count.load(Ordering::SeqCst));
            (counts, stats)
        };
        // While a write is in progress: nothing of it counts as durable on the leaf.
        let under_way = pool.write_one(job(noise(2, 16 << 10)));
        assert!(topology.fault_leaf(LeafId(0), LeafReason::IoFailures));
        let before = given();
        let second = pool.write_one(job(noise(3, 16 << 10)));
        pool.store.flush().unwrap();
        for (seed, block) in [(1, &first), (2, &under_way), (3, &second)] {
            let read = pool.store.read_uncached(&block.pointer, address(), None);
            assert_eq!(read.unwrap().bytes, Arc::new(noise(seed, 16 << 10)));
        }
        assert!(topology.leaf_device(LeafId(0)).is_none(), "no labels");
        assert_eq!(given(), before, "nothing tried, nothing counted");
        let missed: Vec<_> = pool.store.take_missed();
        let missed: Vec<_> = missed.iter().map(|one| (one.leaf.0, one.txg)).collect();
        assert_eq!(missed, [(0, TXG)]);

        // Back in use, the leaf is not read for what it missed, even before its dirty time log is read.
        let online = LeafCondition::default();
        let now = pool.store.topology();
        let from = now.change_condition(LeafId(0), online).unwrap();
        assert_eq!(from.state, LeafState::Faulted);
        assert_eq!(now.leaf(LeafId(0), TXG), LeafHealth::Stale);
    }
}

/// What a leaf is writing while it goes out of use may not be on it when it returns.
#[test]
fn a_leaf_that_goes_out_of_use_during_a_write_misses_it() {
    let _mark = mark::expect("written-while-leaf-went");
    for vdev in [Vdev::Mirror(2), Vdev::Raidz(3, 1)] {
        let pool = Pool::new(&[(vdev, 9)]);
        let topology = pool.store.topology();
        pool.devices[0].before_write(move || {
            assert!(topology.fault_leaf(LeafId(0), LeafReason::IoFailures));
        });
        let block = pool.write_one(job(noise(1, 16 << 10)));
        pool.store.flush().unwrap();
        let missed: Vec<_> = pool.store.take_missed();
        let missed: Vec<_> = missed.iter().map(|one| (one.leaf.0, one.txg)).collect();
        assert_eq!(missed, [(0, TXG)], "{vdev:?}");
        let read = pool.store.read_uncached(&block.pointer, address(), None);
        assert_eq!(read.unwrap().bytes, Arc::new(noise(1, 16 << 10)));
    }
}
