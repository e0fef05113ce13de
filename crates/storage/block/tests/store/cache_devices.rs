//! Blocks on cache devices, without a pool.

use super::compressed::records;
use super::*;
use millpond_block::{CacheDeviceId, CacheDeviceStats, FeedLimits, UsedOnce};
use millpond_ondisk::Ashift;
use std::time::Duration;

const COUNT: u8 = 200;

fn id() -> CacheDeviceId {
    CacheDeviceId {
        pool_guid: Guid(1),
        vdev_guid: Guid(9),
        ashift: Ashift(9),
    }
}

fn cache_device() -> Arc<Counting> {
    Arc::new(Counting {
        inner: MemoryDevice::new(vec![0; 64 << 20]),
        reads: AtomicU64::new(0),
        is_held: AtomicBool::new(false),
    })
}

fn stats(mirror: &Mirror) -> CacheDeviceStats {
    let stats = mirror.store.cache_device_stats();
    assert_eq!(stats[0].0, Guid(9));
    stats[0].1
}

fn read_all(mirror: &Mirror, records: &[(BlockPointer, Vec<u8>)]) {
    for (number, (pointer, data)) in records.iter().enumerate() {
        let block = mirror.store.read(pointer, address(), None).unwrap();
        assert_eq!(*block.bytes, *data);
        if number % 16 == 15 {
            mirror.store.feed_cache_devices(&FeedLimits::default());
        }
    }
}

#[test]
fn a_block_on_a_cache_device_is_not_read_from_the_pool() {
    let (mirror, records) = records(COUNT);
    let cache = cache_device();
    (mirror.store)
        .add_cache_device(cache.clone(), id(), true)
        .unwrap();
    read_all(&mirror, &records);
    let (reads, before) = (mirror.reads(), stats(&mirror));
    assert_eq!((reads, before.hits), (COUNT.into(), 0));
    read_all(&mirror, &records);
    let after = stats(&mirror);
    assert!(after.hits >= u64::from(COUNT) / 2, "{after:?}");
    assert_eq!(mirror.reads() - reads, after.misses - before.misses);
    assert_eq!(after.checksum_errors, 0);
    // Prefetch finds copies, too.
    let (reads, hits) = (mirror.reads(), stats(&mirror).hits);
    for (number, (pointer, data)) in records[..8].iter().enumerate() {
        // The cache has space for one prefetched block.
        match number % 2 {
            0 => drop(mirror.store.prefetch(pointer, address(), None).unwrap()),
            _ => {
                let wanted = vec![(*pointer, address(), PooledBuf::default())];
                assert!(mirror.store.prefetch_blocks(wanted, None));
            }
        }
        assert!(mirror.store.is_cached(pointer, None));
        let block = mirror.store.read(pointer, address(), None).unwrap();
        assert_eq!(*block.bytes, *data);
    }
    assert_eq!(stats(&mirror).hits, hits + 8);
    assert_eq!(mirror.reads(), reads);
    // A view uses them, and the counts outlive the device.
    let view = mirror.store.view(Arc::default());
    assert_eq!(view.cache_device_stats().len(), 1);
    assert!(mirror.store.remove_cache_device(Guid(9)));
    assert!(view.cache_device_stats().is_empty());
    assert_eq!(Arc::strong_count(&cache), 1, "it is closed");
    read_all(&mirror, &records);
}

#[test]
fn a_limit_bounds_each_round() {
    let (mirror, records) = records(64);
    let limits = FeedLimits {
        write_bytes_max: 32 << 10,
        write_bytes_boost: 0,
        ..FeedLimits::default()
    };
    (mirror.store)
        .add_cache_device(cache_device(), id(), true)
        .unwrap();
    for (pointer, _) in &records {
        mirror.store.read(pointer, address(), None).unwrap();
    }
    let fed = mirror.store.feed_cache_devices(&limits);
    assert_eq!((fed.bytes, fed.is_busy), (32 << 10, true));
    for _ in 0..15 {
        assert_eq!(mirror.store.feed_cache_devices(&limits).bytes, 32 << 10);
    }
    let fed = mirror.store.feed_cache_devices(&limits);
    assert_eq!((fed.bytes, fed.is_busy), (0, false));
    assert_eq!(stats(&mirror).buffers, 64);
}

#[test]
fn blocks_that_were_used_once_can_be_left_out() {
    // All stay in the cache.
    let (mirror, records) = records(40);
    (mirror.store)
        .add_cache_device(cache_device(), id(), true)
        .unwrap();
    for (pointer, _) in &records {
        mirror.store.read(pointer, address(), None).unwrap();
    }
    let frequent = 5;
    // The first are only used again when others have come meanwhile.
    for (pointer, _) in records[frequent..].iter().cycle().take(4000) {
        mirror.store.forget(pointer);
        mirror.store.read(pointer, address(), None).unwrap();
    }
    for (pointer, _) in &records[..frequent] {
        mirror.store.read(pointer, address(), None).unwrap();
    }
    let limits = FeedLimits {
        left_out: UsedOnce::All,
        ..FeedLimits::default()
    };
    mirror.store.feed_cache_devices(&limits);
    let by_kind = stats(&mirror).by_kind;
    assert_eq!((stats(&mirror).buffers, by_kind.mru), (frequent as u64, 0));
    assert!(by_kind.mfu > 0 && by_kind.mfu == by_kind.data + by_kind.metadata);
}

#[test]
fn a_cache_device_that_hangs_delays_a_reader_once() {
    let (mirror, records) = records(COUNT);
    let deadline = Some(Duration::from_millis(500));
    (mirror.store).change_topology(|topology| topology.deadline = deadline);
    let cache = cache_device();
    (mirror.store)
        .add_cache_device(cache.clone(), id(), true)
        .unwrap();
    read_all(&mirror, &records);
    let before = stats(&mirror);
    cache.is_held.store(true, Ordering::SeqCst);
    read_all(&mirror, &records);
    let after = stats(&mirror);
    assert_eq!((after.hits, after.is_usable), (before.hits, false));
    assert!(after.read_errors > 1, "{after:?}");
    cache.is_held.store(false, Ordering::SeqCst);
}
