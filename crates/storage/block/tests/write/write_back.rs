//! Flushes that fail once, as on Linux: the next one succeeds, the new bytes are in memory, and the disk
//! has the old ones.

use crate::pool::{Moody, Pool, TXG, Vdev, address, job, noise};
use millpond_block::{BlockWrite, LogWrite};
use millpond_device::Device;
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::{BlockPointer, CompressionKind, VDEV_DATA_START_BYTES};
use millpond_vdev::LeafId;

fn raw(seed: u64) -> BlockWrite {
    BlockWrite {
        compression: CompressionKind::Off,
        ..job(noise(seed, 4096))
    }
}

impl Moody {
    fn fail_flushes(&self, count: u64) {
        self.flushes_to_fail.store(count, Ordering::SeqCst);
    }
    /// Whether the disk itself holds these bytes at an offset of the vdev's data.
    pub fn holds(&self, offset: u64, bytes: &[u8]) -> bool {
        let start = (VDEV_DATA_START_BYTES + offset) as usize;
        self.medium.lock()[start..start + bytes.len()] == *bytes
    }
}

fn offset(pointer: &BlockPointer) -> u64 {
    pointer.dvas().next().unwrap().offset_bytes
}

fn labels(pool: &Pool, leaf: u32) -> Arc<dyn Device> {
    pool.store.topology().leaf_device(LeafId(leaf)).unwrap()
}

#[test]
fn a_flush_that_fails_once_is_made_good_at_once() {
    let _mark = mark::expect("unflushed-written-again");
    let pool = Pool::new(&[(Vdev::Disk, 9)]);
    let written = pool.write_one(raw(1));
    pool.devices[0].fail_flushes(1);
    pool.store.flush().unwrap();
    assert!(pool.devices[0].holds(offset(&written.pointer), &noise(1, 4096)));
    assert_eq!(pool.store.take_missed(), []);
}

#[test]
fn after_failed_flushes_all_blocks_are_rewritten() {
    for vdev in [Vdev::Disk, Vdev::Mirror(2), Vdev::Raidz(3, 1)] {
        let pool = Pool::new(&[(vdev, 9)]);
        let written = pool.write_one(raw(1));
        for device in &pool.devices {
            device.fail_flushes(2);
        }
        pool.store.flush().unwrap_err();
        // The next flush covers more than what was written since the failed one.
        let later = pool.write_one(raw(2));
        pool.store.flush().unwrap();
        for device in &pool.devices {
            assert!(*device.medium.lock() == device.inner.to_vec(), "{vdev:?}");
        }
        assert_eq!(pool.read(&written.pointer), noise(1, 4096));
        assert_eq!(pool.read(&later.pointer), noise(2, 4096));
        assert_eq!(pool.store.take_missed(), []);
    }
}

#[test]
fn an_error_seen_by_labels_is_seen_by_blocks() {
    let pool = Pool::new(&[(Vdev::Disk, 9)]);
    let written = pool.write_one(raw(1));
    pool.devices[0].fail_flushes(1);
    labels(&pool, 0).flush().unwrap_err();
    pool.store.flush().unwrap();
    assert!(pool.devices[0].holds(offset(&written.pointer), &noise(1, 4096)));
}

#[test]
fn an_error_seen_by_blocks_is_seen_by_labels() {
    let pool = Pool::new(&[(Vdev::Disk, 9)]);
    pool.write_one(raw(1));
    let label = labels(&pool, 0);
    label.write(0, &[7; 8192]).unwrap();
    pool.devices[0].fail_flushes(2);
    pool.store.flush().unwrap_err();
    label.flush().unwrap();
    assert_eq!(pool.devices[0].medium.lock()[..8192], [7; 8192]);
}

#[test]
fn an_error_seen_by_another_user_of_the_disk_counts() {
    let pool = Pool::new(&[(Vdev::Disk, 9)]);
    let written = pool.write_one(raw(1));
    pool.devices[0].fail_flushes(1);
    // A flush that bypasses the pool, as for another partition of the same disk.
    pool.devices[0].flush().unwrap_err();
    pool.store.flush().unwrap();
    assert!(pool.devices[0].holds(offset(&written.pointer), &noise(1, 4096)));
}

#[test]
fn old_bytes_never_overwrite_new_ones() {
    let pool = Pool::new(&[(Vdev::Disk, 9)]);
    let first = pool.write_one(raw(1)).pointer;
    pool.devices[0].fail_flushes(2);
    pool.store.flush().unwrap_err();
    let second = pool.write_one(BlockWrite {
        previous: first,
        may_rewrite: true,
        ..raw(2)
    });
    assert!(second.keeps_space());
    // Labels that end within one write cover half of it, and labels that begin within another one cover
    // half of that.
    let label = labels(&pool, 0);
    label.write(0, &[1; 4096]).unwrap();
    label.write(2048, &[2; 4096]).unwrap();
    label.write(512, &[3; 512]).unwrap();
    pool.devices[0].fail_flushes(2);
    pool.store.flush().unwrap_err();
    pool.store.flush().unwrap();
    assert!(pool.devices[0].holds(offset(&first), &noise(2, 4096)));
    let medium = pool.devices[0].medium.lock();
    let runs: Vec<u8> = medium[..6144].chunks(512).map(|sector| sector[0]).collect();
    assert_eq!(runs, [1, 3, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]);
}

#[test]
fn blocks_lost_by_a_faulted_side_are_not_retained() {
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    pool.write_one(raw(1));
    pool.devices[0].fails_flush.store(true, Ordering::SeqCst);
    pool.store.flush().unwrap();
    let missed = pool.store.take_missed();
    assert_eq!((missed[0].leaf, missed[0].txg), (LeafId(0), TXG));
    pool.devices[0].fails_flush.store(false, Ordering::SeqCst);
    let writes = pool.devices[0].writes.load(Ordering::SeqCst);
    pool.store.flush().unwrap();
    assert_eq!(pool.devices[0].writes.load(Ordering::SeqCst), writes);
}

#[test]
fn unflushed_blocks_are_rewritten_after_a_failed_flush() {
    let pool = Pool::new(&[(Vdev::Disk, 9)]);
    let written = pool.write_one(raw(1));
    // A disk that was away for a moment and does not report what it lost.
    pool.devices[0].forget_unflushed();
    pool.store.distrust_unflushed();
    pool.store.flush().unwrap();
    assert!(pool.devices[0].holds(offset(&written.pointer), &noise(1, 4096)));
}

#[test]
fn contents_that_wait_for_a_flush_are_bounded() {
    let _mark = mark::expect("flush-within-txg");
    let pool = Pool::new(&[(Vdev::Disk, 9)]);
    let label = labels(&pool, 0);
    for _ in 0..129 {
        label.write(0, &[1; 1 << 20]).unwrap();
    }
    assert_eq!(pool.devices[0].flushes.load(Ordering::SeqCst), 0);
    pool.write_one(raw(1));
    assert_eq!(pool.devices[0].flushes.load(Ordering::SeqCst), 1);
    pool.write_one(raw(2));
    assert_eq!(pool.devices[0].flushes.load(Ordering::SeqCst), 1);
}

fn log_write(pool: &Pool, seed: u64) -> LogWrite {
    let pointer = pool.write_one(raw(seed)).pointer;
    pool.store.flush().unwrap();
    LogWrite {
        address: address(),
        pointer,
        bytes: Arc::new(noise(seed + 100, 4096)),
    }
}

#[test]
fn a_log_block_is_durable_by_itself() {
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    let block = log_write(&pool, 1);
    let other = pool.write_one(raw(2)).pointer;
    pool.store
        .write_log_blocks(std::slice::from_ref(&block))
        .unwrap();
    for device in &pool.devices {
        assert!(device.holds(offset(&block.pointer), &block.bytes));
        assert!(!device.holds(offset(&other), &noise(2, 4096)));
    }
}

#[test]
fn a_log_block_whose_write_back_failed_is_an_error() {
    let pool = Pool::new(&[(Vdev::Disk, 9)]);
    let block = log_write(&pool, 1);
    let other = pool.write_one(raw(2)).pointer;
    pool.devices[0].fail_flushes(1);
    pool.store.write_log_blocks(&[block]).unwrap_err();
    // The error may have been one of the other block.
    pool.devices[0].forget_unflushed();
    pool.store.flush().unwrap();
    assert!(pool.devices[0].holds(offset(&other), &noise(2, 4096)));
}

#[test]
fn a_log_block_needs_one_side_of_a_mirror() {
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    let block = log_write(&pool, 1);
    pool.devices[0].fail_flushes(1);
    pool.store
        .write_log_blocks(std::slice::from_ref(&block))
        .unwrap();
    assert!(pool.devices[1].holds(offset(&block.pointer), &block.bytes));
    let missed = pool.store.take_missed();
    assert_eq!((missed[0].leaf, missed[0].txg), (LeafId(0), TXG));
}
