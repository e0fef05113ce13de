//! Repairs that come too late: the block or the device may belong to something else by then.

use crate::failures::spoil;
use crate::pool::{Pool, TXG, Vdev, address, job, noise};
use millpond_block::{BlockWrite, PointerValidity, Retention};
use millpond_device::Device;
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::Txg;
use millpond_vdev::LeafId;

#[test]
fn reads_begun_before_space_reuse_repair_nothing() {
    let _mark = mark::expect("late-repair-dropped");
    let pool = Pool::new(&[(Vdev::Disk, 9), (Vdev::Disk, 12)]);
    let content = noise(1, 8192);
    let twice = BlockWrite {
        copies: 2,
        ..job(content.clone())
    };
    let pointer = pool.write_one(twice).pointer;
    spoil(&pool.devices[0], 0);
    let spoilt = pool.devices[0].inner.to_vec();
    let store = Arc::new(pool.reopened());
    store.set_repair(true);
    let reader = Arc::clone(&store);
    // While the good copy is read, a txg ends in which the block may have been freed.
    pool.devices[1].before_read(move || reader.space_is_reusable(TXG));
    let read = store.read_uncached(&pointer, address(), None).unwrap();
    assert_eq!(read.bytes, Arc::new(content));
    assert!(pool.devices[0].inner.to_vec() == spoilt);
    assert_eq!(store.topology().leaf_stats(LeafId(0)).repaired_bytes, 0);
}

/// A reader can have had its pointer for some txgs before it reads. Meanwhile the block may have been freed, and one side of
/// a new block may be on the devices already.
#[test]
fn reads_by_pointers_that_are_outdated_repair_and_blame_nothing() {
    let _mark = mark::expect("outdated-read-repairs-nothing");
    for vdev in [Vdev::Mirror(2), Vdev::Raidz(3, 1)] {
        let pool = Pool::new(&[(vdev, 9)]);
        let content = noise(1, 8192);
        let pointer = pool.write_one(job(content.clone())).pointer;
        let mut repairs = 0;
        for committed in [Txg(TXG.0 - 1), TXG] {
            for is_newest in [false, true] {
                let may_repair = is_newest && committed == TXG;
                for leaf in 0..2 {
                    let right = pool.devices[leaf].inner.to_vec();
                    spoil(&pool.devices[leaf], 0);
                    let spoilt = pool.devices[leaf].inner.to_vec();
                    let store = pool.reopened();
                    store.space_is_reusable(committed);
                    store.set_repair(true);
                    let ask = || is_newest;
                    let validity = PointerValidity::MaybeOutdated(&ask);
                    for _ in 0..4 {
                        // A mirror may read the other side.
                        let read = store.read_if_valid(
                            &pointer,
                            address(),
                            None,
                            Retention::Drop,
                            validity,
                        );
                        assert_eq!(read.unwrap().bytes, Arc::new(content.clone()));
                    }
                    let found = pool.devices[leaf].inner.to_vec();
                    let errors = store
                        .topology()
                        .leaf_stats(LeafId(leaf as u32))
                        .checksum_errors;
                    // If the spoilt bytes were not read, nothing was repaired.
                    let is_unchanged = found == spoilt && errors == 0;
                    assert!(
                        is_unchanged || may_repair && found == right,
                        "{vdev:?}: {leaf}"
                    );
                    repairs += u32::from(!is_unchanged);
                    pool.devices[leaf].inner.write(0, &right).unwrap();
                }
            }
        }
        assert!(repairs > 0, "{vdev:?}");
    }
}

/// After a detach the device may belong to another pool.
#[test]
fn a_read_that_began_before_a_leaf_left_does_not_repair_it() {
    let _mark = mark::expect("repair-of-departed-leaf-dropped");
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    let content = noise(1, 8192);
    let pointer = pool.write_one(job(content.clone())).pointer;
    for leaf in 0..2 {
        let right = pool.devices[leaf].inner.to_vec();
        spoil(&pool.devices[leaf], 0);
        let spoilt = pool.devices[leaf].inner.to_vec();
        let store = Arc::new(pool.reopened());
        store.set_repair(true);
        let reader = Arc::clone(&store);
        pool.devices[leaf].before_read(move || {
            reader.change_topology(|topology| {
                topology.counters[leaf] = topology.new_counters();
            });
        });
        let read = store.read_uncached(&pointer, address(), None).unwrap();
        assert_eq!(read.bytes, Arc::new(content.clone()));
        pool.devices[leaf].before_read(|| {});
        assert!(pool.devices[leaf].inner.to_vec() == spoilt, "leaf {leaf}");
        pool.devices[leaf].inner.write(0, &right).unwrap();
    }
}

/// A side of a mirror is read once more before it is repaired. Meanwhile a txg may end in which the block is freed.
#[test]
fn a_repair_is_dropped_if_space_is_reused_before_it_is_written() {
    let _mark = mark::expect("late-repair-dropped");
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    let content = noise(1, 8192);
    let pointer = pool.write_one(job(content.clone())).pointer;
    for leaf in 0..2 {
        let right = pool.devices[leaf].inner.to_vec();
        spoil(&pool.devices[leaf], 0);
        let spoilt = pool.devices[leaf].inner.to_vec();
        let store = Arc::new(pool.reopened());
        store.set_repair(true);
        let reader = Arc::clone(&store);
        // The first read is that of the block, if this side is read first.
        let device = Arc::clone(&pool.devices[leaf]);
        pool.devices[leaf].before_read(move || {
            device.before_read(move || reader.space_is_reusable(TXG));
        });
        let read = store.read_uncached(&pointer, address(), None).unwrap();
        assert_eq!(read.bytes, Arc::new(content.clone()));
        pool.devices[leaf].before_read(|| {});
        assert!(pool.devices[leaf].inner.to_vec() == spoilt, "leaf {leaf}");
        pool.devices[leaf].inner.write(0, &right).unwrap();
    }
}
