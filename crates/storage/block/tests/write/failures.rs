//! Failing leaves.

use crate::pool::{Moody, Pool, TXG, Vdev, address, job, noise};
use millpond_block::{BlockError, BlockWrite, PointerValidity, Retention};
use millpond_device::Device;
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::{CompressionKind, Txg, VDEV_DATA_START_BYTES};
use millpond_vdev::LeafId;

fn missed(pool: &Pool) -> Vec<(u32, Txg)> {
    let missed = pool.store.take_missed().into_iter();
    missed.map(|missed| (missed.leaf.0, missed.txg)).collect()
}

#[test]
fn a_write_with_one_failed_mirror_side_succeeds() {
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    pool.devices[0].fail_writes(true);
    let content = noise(1, 8192);
    let written = pool.write_one(job(content.clone()));
    assert_eq!(missed(&pool), [(0, TXG)]);
    assert_eq!(missed(&pool), []);
    let topology = pool.store.topology();
    assert_eq!(topology.leaf_stats(LeafId(0)).write_errors, 1);
    assert_eq!(topology.leaf_stats(LeafId(1)).write_errors, 0);
    pool.store.flush().unwrap();
    // Reads no longer use the side that missed the write.
    for _ in 0..3 {
        let block = pool.store.read_uncached(&written.pointer, address(), None);
        assert_eq!(block.unwrap().bytes, Arc::new(content.clone()));
    }
    assert_eq!(pool.store.topology().leaf_stats(LeafId(0)).reads, 0);
    // A later txg is written to it again.
    pool.devices[0].fail_writes(false);
}

#[test]
fn raidz_bears_as_many_failures_as_it_has_parity() {
    let pool = Pool::new(&[(Vdev::Raidz(5, 2), 9)]);
    pool.devices[1].fail_writes(true);
    pool.devices[4].fail_writes(true);
    let content = noise(1, 30 << 10);
    let written = pool.write_one(job(content.clone()));
    assert_eq!(missed(&pool), [(1, TXG), (4, TXG)]);
    pool.store.flush().unwrap();
    assert_eq!(pool.read(&written.pointer), content);
    pool.devices[2].fail_writes(true);
    let live = pool.arena.live_bytes();
    let outcome = pool.store.write(TXG, &pool.arena, vec![job(content)]);
    let Err(BlockError::Write { reason, .. }) = &outcome[0] else {
        panic!("{outcome:?}")
    };
    assert!(
        reason.contains("disk13") && reason.contains("as told"),
        "{reason}"
    );
    assert_eq!(pool.arena.live_bytes(), live);
}

#[test]
fn a_block_on_a_bad_sector_is_written_elsewhere() {
    let _mark = mark::expect("block-written-elsewhere");
    let pool = Pool::new(&[(Vdev::Disk, 9), (Vdev::Disk, 9)]);
    // The first address that the arena allocates on the second vdev.
    pool.devices[1]
        .bad_bytes
        .lock()
        .push(VDEV_DATA_START_BYTES..VDEV_DATA_START_BYTES + 512);
    let blocks: Vec<BlockWrite> = (0..4)
        .map(|seed| BlockWrite {
            copies: 2,
            ..job(noise(seed, 4096))
        })
        .collect();
    let written = pool.write(blocks.clone());
    for (job, written) in blocks.iter().zip(&written) {
        assert_eq!(written.pointer.dvas().count(), 2);
        assert_eq!(pool.read(&written.pointer), *job.content);
        assert!(
            pool.reopened()
                .audit(&written.pointer, address())
                .unwrap()
                .is_clean()
        );
    }
    // Nothing is lost, so no leaf missed anything.
    assert_eq!(missed(&pool), []);
    assert_eq!(pool.arena.live_bytes(), 4 * 2 * 4096);
}

#[test]
fn a_failed_rewrite_allocates_new_space() {
    let pool = Pool::new(&[(Vdev::Disk, 9)]);
    let raw = |seed| BlockWrite {
        compression: CompressionKind::Off,
        ..job(noise(seed, 4096))
    };
    let first = pool.write_one(raw(1)).pointer;
    pool.devices[0]
        .bad_bytes
        .lock()
        .push(VDEV_DATA_START_BYTES..VDEV_DATA_START_BYTES + 512);
    let second = pool.write_one(BlockWrite {
        previous: first,
        may_rewrite: true,
        ..raw(2)
    });
    assert!(!second.keeps_space());
    assert_eq!(pool.read(&second.pointer), noise(2, 4096));
    // The caller still has to kill the old pointer.
    assert_eq!(pool.arena.live_bytes(), 8192);
}

#[test]
fn an_absent_leaf_is_not_written_and_misses_every_txg() {
    let mut pool = Pool::new(&[(Vdev::Raidz(3, 1), 12)]);
    pool.remove(2);
    let store = pool.reopened();
    for txg in [TXG.0, TXG.0, TXG.0] {
        let content = noise(txg, 64 << 10);
        let written = store.write(Txg(txg), &pool.arena, vec![job(content.clone())]);
        let pointer = written[0].as_ref().unwrap().pointer;
        assert_eq!(
            store.read(&pointer, address(), None).unwrap().bytes,
            Arc::new(content.clone())
        );
    }
    let missed = store.take_missed();
    assert_eq!(missed.len(), 1);
    assert_eq!((missed[0].leaf, missed[0].txg), (LeafId(2), TXG));
    assert_eq!(pool.devices[2].writes.load(Ordering::SeqCst), 0);
    store.flush().unwrap();
    assert_eq!(pool.devices[2].flushes.load(Ordering::SeqCst), 0);
}

#[test]
fn a_failed_flush_counts_as_lost_writes() {
    let pool = Pool::new(&[(Vdev::Mirror(2), 9), (Vdev::Disk, 9)]);
    pool.write(vec![job(noise(1, 4096))]);
    pool.devices[0].fails_flush.store(true, Ordering::SeqCst);
    pool.store.flush().unwrap();
    assert_eq!(missed(&pool), [(0, TXG)]);
    // It was flushed, then rewritten and flushed again.
    assert_eq!(pool.store.topology().leaf_stats(LeafId(0)).write_errors, 2);
    // Without new writes there is nothing to flush.
    pool.store.flush().unwrap();
    assert_eq!(missed(&pool), []);
    // Both sides fail: one by a write, the other by the flush.
    pool.devices[0].fails_flush.store(false, Ordering::SeqCst);
    pool.devices[1].fails_flush.store(true, Ordering::SeqCst);
    pool.devices[0].fail_writes(true);
    pool.write((0..2).map(|n| job(noise(n, 4096))).collect());
    let error = pool.store.flush().unwrap_err();
    assert_eq!(error.vdev.0, 0);
    assert!(error.reason.contains("disk12"), "{error}");
    // The writes of the single disk did not suffer.
    assert!(missed(&pool).iter().all(|(leaf, _)| *leaf < 2));
}

pub(crate) fn spoil(device: &Arc<Moody>, offset: u64) {
    let at = VDEV_DATA_START_BYTES + offset;
    device.inner.write(at, &[0x5a; 512]).unwrap();
}

#[test]
fn reads_repair_corrupt_copies_if_enabled() {
    for vdev in [Vdev::Mirror(2), Vdev::Raidz(4, 2)] {
        let pool = Pool::new(&[(vdev, 9)]);
        let content = noise(1, 16 << 10);
        let pointer = pool.write_one(job(content.clone())).pointer;
        let before: Vec<_> = pool.devices.iter().map(|d| d.inner.to_vec()).collect();
        for (device, before) in before.iter().enumerate().take(2) {
            spoil(&pool.devices[device], 512);
            let store = pool.reopened();
            let writes = || -> u64 {
                let devices = pool.devices.iter();
                devices
                    .map(|device| device.writes.load(Ordering::SeqCst))
                    .sum()
            };
            let unchanged = writes();
            let read = || {
                store
                    .read_uncached(&pointer, address(), None)
                    .unwrap()
                    .bytes
            };
            assert_eq!(read(), Arc::new(content.clone()));
            assert_eq!(writes(), unchanged, "repairs nobody wanted");
            store.set_repair(true);
            // A mirror reads the same side first for each block, and parity is not read at all; only what
            // was read is repaired.
            assert_eq!(read(), Arc::new(content.clone()));
            let audit = store.audit(&pointer, address()).unwrap();
            let stats = store.topology().leaf_stats(LeafId(device as u32));
            if stats.checksum_errors > 0 && audit.is_clean() {
                assert!(writes() > unchanged);
                assert_eq!(stats.repaired_bytes, stats.write_bytes);
                assert!(stats.repaired_bytes >= 512);
                assert!(pool.devices[device].inner.to_vec() == *before);
            } else {
                assert_eq!(writes(), unchanged);
            }
            // Restore it for the next iteration.
            pool.devices[device].inner.write(0, before).unwrap();
        }
    }
}

#[test]
fn a_failed_read_by_an_outdated_pointer_blames_no_device() {
    for vdev in [Vdev::Disk, Vdev::Mirror(2), Vdev::Raidz(4, 2)] {
        let pool = Pool::new(&[(vdev, 9)]);
        let pointer = pool.write_one(job(noise(1, 16 << 10))).pointer;
        for device in &pool.devices {
            for sector in 0..64 {
                spoil(device, sector * 512);
            }
        }
        let store = pool.reopened();
        let errors = || -> u64 {
            let topology = store.topology();
            let leaves = 0..pool.devices.len() as u32;
            leaves
                .map(|leaf| topology.leaf_stats(LeafId(leaf)).checksum_errors)
                .sum()
        };
        let read =
            |validity| store.read_if_valid(&pointer, address(), None, Retention::Keep, validity);
        assert!(read(PointerValidity::MaybeOutdated(&|| true)).is_err());
        assert_eq!((errors(), store.damaged_blocks().len()), (0, 0), "{vdev:?}");
        assert!(read(PointerValidity::Current).is_err());
        assert!(errors() >= pool.devices.len() as u64, "{vdev:?}");
        assert_eq!(store.damaged_blocks().len(), 1, "{vdev:?}");
    }
}

#[test]
fn every_corrupt_data_column_is_repaired() {
    let pool = Pool::new(&[(Vdev::Raidz(4, 2), 9)]);
    let content = noise(1, 16 << 10);
    let pointer = pool.write_one(job(content.clone())).pointer;
    let before: Vec<_> = pool.devices.iter().map(|d| d.inner.to_vec()).collect();
    // The block begins at 0: its parity is on the first two children.
    spoil(&pool.devices[2], 1024);
    spoil(&pool.devices[3], 4096);
    let store = pool.reopened();
    store.set_repair(true);
    assert_eq!(
        store.read(&pointer, address(), None).unwrap().bytes,
        Arc::new(content.clone())
    );
    for (device, before) in pool.devices.iter().zip(&before) {
        assert!(device.inner.to_vec() == *before);
    }
    assert!(
        pool.reopened()
            .audit(&pointer, address())
            .unwrap()
            .is_clean()
    );
}

#[test]
fn a_lost_copy_is_written_again_from_a_good_one() {
    let _mark = mark::expect("second-copy-read");
    let pool = Pool::new(&[(Vdev::Disk, 9), (Vdev::Disk, 12)]);
    let content = noise(1, 8192);
    let twice = BlockWrite {
        copies: 2,
        ..job(content.clone())
    };
    let pointer = pool.write_one(twice).pointer;
    spoil(&pool.devices[0], 0);
    let store = pool.reopened();
    assert_eq!(
        store
            .read_uncached(&pointer, address(), None)
            .unwrap()
            .bytes,
        Arc::new(content.clone())
    );
    assert!(
        !pool
            .reopened()
            .audit(&pointer, address())
            .unwrap()
            .is_clean()
    );
    store.set_repair(true);
    assert_eq!(
        store
            .read_uncached(&pointer, address(), None)
            .unwrap()
            .bytes,
        Arc::new(content.clone())
    );
    assert!(
        pool.reopened()
            .audit(&pointer, address())
            .unwrap()
            .is_clean()
    );
    let stats = store.topology().leaf_stats(LeafId(0));
    assert_eq!(stats.repaired_bytes, 8192);
}

#[test]
fn a_repair_that_fails_does_not_hurt_the_read() {
    let pool = Pool::new(&[(Vdev::Raidz(3, 1), 9)]);
    let content = noise(1, 8192);
    let pointer = pool.write_one(job(content.clone())).pointer;
    spoil(&pool.devices[1], 512);
    let store = pool.reopened();
    store.set_repair(true);
    pool.devices[1].fail_writes(true);
    assert_eq!(
        store.read(&pointer, address(), None).unwrap().bytes,
        Arc::new(content.clone())
    );
    let stats = store.topology().leaf_stats(LeafId(1));
    assert_eq!((stats.write_errors, stats.repaired_bytes), (1, 0));
}

/// A power cut may take back what no flush covers. So a leaf that loses a repair lacks the block's txg.
#[test]
fn repairs_by_reads_are_flushed_or_missed() {
    for is_lost in [false, true] {
        let pool = Pool::new(&[(Vdev::Raidz(3, 1), 9)]);
        let pointer = pool.write_one(job(noise(1, 8192))).pointer;
        spoil(&pool.devices[1], 512);
        let store = pool.reopened();
        store.set_repair(true);
        store.read(&pointer, address(), None).unwrap();
        assert_eq!(store.topology().leaf_stats(LeafId(1)).repaired_bytes, 4096);
        let flushes = || pool.devices[1].flushes.load(Ordering::SeqCst);
        let before = flushes();
        pool.devices[1].fails_flush.store(is_lost, Ordering::SeqCst);
        store.flush().unwrap();
        assert!(flushes() > before);
        let missed = store.take_missed();
        let missed: Vec<_> = missed.iter().map(|one| (one.leaf.0, one.txg)).collect();
        match is_lost {
            true => assert_eq!(missed, [(1, pointer.physical_birth())]),
            false => assert_eq!(missed, []),
        }
    }
}

/// What a repair was to write over is still unflushed: the leaf must not lose it in silence.
#[test]
fn a_failed_repair_does_not_lose_unflushed_bytes() {
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    pool.store.set_repair(true);
    let pointer = pool.write_one(job(noise(1, 8192))).pointer;
    // What the device returns is wrong for once, and it does not take the repair.
    let right = pool.devices[0].inner.to_vec();
    spoil(&pool.devices[0], 0);
    pool.devices[0].fail_writes(true);
    while pool.store.topology().leaf_stats(LeafId(0)).write_errors == 0 {
        let read = pool.store.read_uncached(&pointer, address(), None).unwrap();
        assert_eq!(read.bytes, Arc::new(noise(1, 8192)));
    }
    pool.devices[0].fail_writes(false);
    pool.devices[0].forget_unflushed();
    pool.store.flush().unwrap();
    assert!(*pool.devices[0].medium.lock() == right);
    assert_eq!(missed(&pool), []);
}

/// Contents are kept until a flush; nothing else may be kept with them.
#[test]
fn a_store_dropped_without_a_flush_releases_its_devices() {
    for vdev in [Vdev::Disk, Vdev::Mirror(2), Vdev::Raidz(4, 2)] {
        let pool = Pool::new(&[(vdev, 9)]);
        pool.write_one(job(noise(1, 16 << 10)));
        let device = Arc::downgrade(&pool.devices[0]);
        drop(pool);
        assert_eq!(device.strong_count(), 0, "{vdev:?}");
    }
}

/// Writes one block while a write of one leaf fails.
fn write_without(pool: &Pool, leaf: usize, content: &[u8]) -> millpond_ondisk::BlockPointer {
    pool.devices[leaf].fail_writes(true);
    let written = pool.write_one(BlockWrite {
        compression: CompressionKind::Off,
        ..job(content.to_vec())
    });
    pool.devices[leaf].fail_writes(false);
    written.pointer
}

#[test]
fn leaves_that_missed_different_blocks_commit_once_their_flushes_succeed() {
    for (vdev, leaves) in [(Vdev::Mirror(2), 2), (Vdev::Raidz(3, 1), 3)] {
        let pool = Pool::new(&[(vdev, 9)]);
        let contents: Vec<Vec<u8>> = (0..leaves).map(|seed| noise(seed, 8192)).collect();
        let pointers: Vec<_> = (contents.iter().enumerate())
            .map(|(leaf, content)| write_without(&pool, leaf, content))
            .collect();
        pool.devices[0].fails_flush.store(true, Ordering::SeqCst);
        let error = pool.store.flush().unwrap_err();
        assert!(error.reason.contains("as told"), "{error}");
        pool.devices[0].fails_flush.store(false, Ordering::SeqCst);
        pool.store.distrust_unflushed();
        pool.store.flush().unwrap();
        for device in &pool.devices {
            device.forget_unflushed();
            assert!(*device.medium.lock() == device.inner.to_vec(), "{vdev:?}");
        }
        for (pointer, content) in pointers.iter().zip(&contents) {
            assert_eq!(pool.read(pointer), *content, "{vdev:?}");
        }
    }
}

/// A flush that fails gives up what a leaf had, while the same block is still being written to the other leaf, which then
/// fails.
#[test]
fn a_block_that_one_leaf_fails_and_a_flush_loses_on_the_other_is_written_elsewhere() {
    let _marks = [
        mark::expect("written-while-flush-failed"),
        mark::expect("block-written-elsewhere"),
    ];
    let pool = Pool::with(&[(Vdev::Mirror(2), 9)], false, 1);
    let store = Arc::new(pool.reopened());
    store.set_write_threads(1);
    let (flusher, devices) = (Arc::clone(&store), pool.devices.clone());
    pool.devices[1].before_write(move || {
        devices[0].fails_flush.store(true, Ordering::SeqCst);
        let flush = std::thread::spawn(move || flusher.flush());
        flush.join().unwrap().unwrap();
        devices[0].fails_flush.store(false, Ordering::SeqCst);
        devices[1].bad_bytes.lock().push(0..u64::MAX);
        let healed = Arc::clone(&devices[1]);
        devices[0].before_write(move || healed.bad_bytes.lock().clear());
    });
    let content = noise(1, 8192);
    let block = BlockWrite {
        compression: CompressionKind::Off,
        ..job(content.clone())
    };
    let written = store.write(TXG, &pool.arena, vec![block]);
    let pointer = written[0].as_ref().unwrap().pointer;
    store.flush().unwrap();
    let offset = pointer.dvas().next().unwrap().offset_bytes;
    for device in &pool.devices {
        assert!(device.holds(offset, &content));
    }
}

/// The first flush loses the block on one leaf before the other has it, so the second must not lose it there.
#[test]
fn a_block_that_a_flush_lost_on_one_leaf_is_not_given_up_on_the_other() {
    let pool = Pool::with(&[(Vdev::Mirror(2), 9)], false, 1);
    let store = Arc::new(pool.reopened());
    store.set_write_threads(1);
    let (flusher, first) = (Arc::clone(&store), Arc::clone(&pool.devices[0]));
    pool.devices[1].before_write(move || {
        first.fails_flush.store(true, Ordering::SeqCst);
        let flush = std::thread::spawn(move || flusher.flush());
        flush.join().unwrap().unwrap();
        first.fails_flush.store(false, Ordering::SeqCst);
    });
    let content = noise(1, 8192);
    let block = BlockWrite {
        compression: CompressionKind::Off,
        ..job(content.clone())
    };
    let written = store.write(TXG, &pool.arena, vec![block]);
    let pointer = written[0].as_ref().unwrap().pointer;
    let fails = &pool.devices[1].fails_flush;
    fails.store(true, Ordering::SeqCst);
    store.flush().unwrap_err();
    fails.store(false, Ordering::SeqCst);
    store.flush().unwrap();
    let offset = pointer.dvas().next().unwrap().offset_bytes;
    assert!(pool.devices[1].holds(offset, &content));
}

/// The block is written between the flushes of the two leaves, and the second one loses it.
#[test]
fn a_block_written_within_a_flush_that_one_leaf_loses_is_not_given_up_on_the_other() {
    let _mark = mark::expect("written-between-flushes-of-leaves");
    let pool = Arc::new(Pool::with(&[(Vdev::Mirror(2), 9)], false, 1));
    let store = Arc::new(pool.reopened());
    store.set_write_threads(1);
    let block = |seed| BlockWrite {
        compression: CompressionKind::Off,
        ..job(noise(seed, 8192))
    };
    store.write(TXG, &pool.arena, vec![block(1)]);
    pool.devices[1].fails_flush.store(true, Ordering::SeqCst);
    let (sender, written) = std::sync::mpsc::channel();
    let writer = (Arc::clone(&store), Arc::clone(&pool));
    pool.devices[0].within_flush(move || {
        let (store, pool) = writer;
        let write = std::thread::spawn(move || store.write(TXG, &pool.arena, vec![block(2)]));
        sender.send(write.join().unwrap()).unwrap();
    });
    store.flush().unwrap();
    pool.devices[1].fails_flush.store(false, Ordering::SeqCst);
    let written = written.recv().unwrap();
    let pointer = written[0].as_ref().unwrap().pointer;
    let offset = pointer.dvas().next().unwrap().offset_bytes;
    let is_held = || (pool.devices.iter()).any(|device| device.holds(offset, &noise(2, 8192)));
    assert!(!is_held());
    pool.devices[0].fails_flush.store(true, Ordering::SeqCst);
    store.flush().unwrap_err();
    pool.devices[0].fails_flush.store(false, Ordering::SeqCst);
    store.flush().unwrap();
    assert!(is_held());
}

/// As long as nothing is written within a flush, each leaf may lose another one.
#[test]
fn leaves_that_lose_one_flush_after_the_other_are_given_up() {
    let pool = Pool::with(&[(Vdev::Mirror(2), 9)], false, 1);
    let store = pool.reopened();
    for device in [0, 1] {
        let fails = &pool.devices[device].fails_flush;
        store.write(TXG, &pool.arena, vec![job(noise(device as u64, 8192))]);
        fails.store(true, Ordering::SeqCst);
        store.flush().unwrap();
        fails.store(false, Ordering::SeqCst);
        let missed = store.take_missed();
        let missed: Vec<_> = missed.iter().map(|missed| missed.leaf.0).collect();
        assert_eq!(missed, [device as u32]);
    }
}
