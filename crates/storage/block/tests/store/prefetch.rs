//! Prefetch.

use super::*;

#[test]
fn a_prefetched_block_is_a_cache_hit() {
    let mirror = Mirror::new([true, true]);
    let data = content(10, 4096);
    mirror.write(0, &data);
    let pointer = sealed(pointer(0, 4096, false, 4096, 4096), &data);
    assert!(
        mirror
            .store
            .prefetch_block(&pointer, address(), None, PooledBuf::default())
    );
    assert_eq!(mirror.store.prefetch_stats().read, 1);
    let reads = mirror.reads();
    let block = mirror.store.read(&pointer, address(), None).unwrap();
    assert_eq!(block.bytes, Arc::new(data));
    assert_eq!(mirror.reads(), reads);
    let stats = mirror.store.cache_statistics();
    assert_eq!((stats.speculative_used, stats.speculative_bytes), (1, 0));
}

#[test]
fn blocks_prefetched_together_are_cache_hits_without_the_damaged_one() {
    let mirror = Mirror::new([true, true]);
    mirror.store.set_repair(true);
    let data: Vec<Vec<u8>> = (0..4).map(|seed| content(seed, 4096)).collect();
    let pointers: Vec<BlockPointer> = (data.iter().zip(0u64..))
        .map(|(data, at)| {
            mirror.write(at * 8192, data);
            sealed(pointer(at * 8192, 4096, false, 4096, 4096), data)
        })
        .collect();
    // Wrong on both sides.
    mirror.write(2 * 8192, &content(9, 4096));
    let wanted = |all: &[BlockPointer]| -> Vec<_> {
        let blocks = all.iter().copied().chain([BlockPointer::default()]);
        blocks
            .map(|pointer| (pointer, address(), PooledBuf::default()))
            .collect()
    };
    assert!(!mirror.store.prefetch_blocks(wanted(&pointers), None));
    let stats = mirror.store.prefetch_stats();
    assert_eq!((stats.read, stats.given_up), (3, 1));
    let reads = mirror.reads();
    for at in [0, 1, 3] {
        let block = mirror.store.read(&pointers[at], address(), None).unwrap();
        assert_eq!(*block.bytes, data[at]);
    }
    assert_eq!(mirror.reads(), reads);
    assert_eq!(
        (mirror.checksum_errors(0), mirror.checksum_errors(1)),
        (0, 0)
    );
    mirror
        .store
        .read(&pointers[2], address(), None)
        .unwrap_err();
    // What is cached is not read again.
    let others = [pointers[0], pointers[1], pointers[3]];
    assert!(mirror.store.prefetch_blocks(wanted(&others), None));
    assert_eq!(mirror.store.prefetch_stats().read, 3);
}

#[test]
fn reused_space_gives_no_stale_bytes_and_no_errors() {
    let mirror = Mirror::new([true, true]);
    let (old, new) = (content(11, 4096), content(12, 4096));
    let mut old_pointer = sealed(pointer(0, 4096, false, 4096, 4096), &old);
    let new_pointer = sealed(pointer(0, 4096, false, 4096, 4096), &new);
    old_pointer.words[10] = 8;
    mirror.write(0, &old);
    assert!(
        mirror
            .store
            .prefetch_block(&old_pointer, address(), None, PooledBuf::default())
    );
    // The space was freed and allocated to another block, which only one side has so far.
    let place = VDEV_DATA_START_BYTES;
    mirror.sides[0].inner.write(place, &new).unwrap();
    let late = Mirror::new([true, true]);
    late.sides[0].inner.write(place, &new).unwrap();
    late.sides[1].inner.write(place, &old).unwrap();
    late.store.set_repair(true);
    // No matter which side is read first: the other's old bytes do not overwrite the new ones.
    let _ = late.store.prefetch(&old_pointer, address(), None);
    let mut now = vec![0; 4096];
    late.sides[0].inner.read(place, &mut now).unwrap();
    assert_eq!(now, new);
    late.sides[1].inner.write(place, &new).unwrap();
    let fresh = Mirror::new([true, true]);
    fresh.write(0, &new);
    assert!(
        !fresh
            .store
            .prefetch_block(&old_pointer, address(), None, PooledBuf::default())
    );
    assert_eq!(fresh.store.prefetch_stats().given_up, 1);
    for mirror in [&late, &fresh] {
        assert_eq!(
            (mirror.checksum_errors(0), mirror.checksum_errors(1)),
            (0, 0)
        );
    }
    // The prefetched content of the old block does not affect readers of the new one.
    mirror.sides[1].inner.write(place, &new).unwrap();
    let block = mirror.store.read(&new_pointer, address(), None).unwrap();
    assert_eq!(block.bytes, Arc::new(new));
}

#[test]
fn damage_found_by_prefetch_is_left_to_the_reader() {
    for bad in 0..2 {
        let mirror = Mirror::new([true, true]);
        mirror.store.set_repair(true);
        let errors = || mirror.checksum_errors(bad as u32);
        let mut given_up = 0;
        // Reads alternate between the sides by megabytes.
        for number in 0..3u64 {
            let (offset, data) = (number << 20, content(number as u8, 2048));
            mirror.write(offset, &data);
            mirror.spoil(bad, offset + 512);
            let pointer = sealed(pointer(offset, 2048, false, 2048, 2048), &data);
            let meets_bad_side =
                !mirror
                    .store
                    .prefetch_block(&pointer, address(), None, PooledBuf::default());
            assert_eq!(errors(), given_up, "not counted ahead");
            given_up += u64::from(meets_bad_side);
            let block = mirror.store.read(&pointer, address(), None).unwrap();
            assert_eq!(*block.bytes, data);
            assert_eq!(errors(), given_up, "but by the reader");
            let mut now = vec![0; 2048];
            let place = VDEV_DATA_START_BYTES + offset;
            mirror.sides[bad].inner.read(place, &mut now).unwrap();
            assert_eq!(now == data, meets_bad_side, "who also repaired it");
        }
        assert!(given_up > 0, "some block meets the bad side first");
    }
}

#[test]
fn waiters_for_a_failed_speculative_read_read_themselves() {
    let mirror = Mirror::new([true, true]);
    let data = content(13, 8192);
    // A gang block is never prefetched.
    let leader = gang(&mirror, 0x40000, &data);
    thread::scope(|scope| {
        for number in 0..8 {
            let (mirror, leader, data) = (&mirror, &leader, &data);
            scope.spawn(move || {
                for _ in 0..50 {
                    if number % 2 == 0 {
                        let _ = mirror.store.prefetch(leader, address(), None);
                    }
                    let block = mirror.store.read(leader, address(), None).unwrap();
                    assert_eq!(*block.bytes, *data);
                }
            });
        }
    });
}

#[test]
fn blocks_without_checksum_are_not_prefetched() {
    let mirror = Mirror::new([true, true]);
    let mut unchecked = pointer(0, 512, false, 512, 512);
    unchecked.words[6] &= !(0xff << 40);
    unchecked.words[6] |= u64::from(ChecksumKind::Off.number()) << 40;
    assert!(mirror.store.read(&unchecked, address(), None).is_ok());
    let mirror = Mirror::new([true, true]);
    assert!(
        !mirror
            .store
            .prefetch_block(&unchecked, address(), None, PooledBuf::default())
    );
}

#[test]
fn prefetch_requests_run_unless_off_and_end_cleanly() {
    let mirror = Mirror::new([true, true]);
    let store = Arc::new(mirror.store);
    let ran = Arc::new(AtomicU64::new(0));
    let send = |store: &BlockStore| {
        let ran = Arc::clone(&ran);
        store.queue_prefetch(1, move || {
            ran.fetch_add(1, Ordering::SeqCst);
        })
    };
    for _ in 0..100 {
        assert!(send(&store));
    }
    store.wait_for_prefetch();
    assert_eq!(ran.load(Ordering::SeqCst), 100);
    // A panic in one request does not affect the others.
    assert!(store.queue_prefetch(1, || panic!("a prefetch request that panics")));
    assert!(send(&store.view(Arc::default())));
    store.wait_for_prefetch();
    assert_eq!(ran.load(Ordering::SeqCst), 101);
    store.set_prefetch(false);
    assert!(!send(&store) && store.ahead_bytes_max() == 0);
    store.set_prefetch(true);
    let held = Arc::clone(&ran);
    assert!(store.queue_prefetch(1, move || {
        while held.load(Ordering::SeqCst) == 101 {
            thread::scope(|_| ());
        }
    }));
    ran.fetch_add(1, Ordering::SeqCst);
    store.stop_prefetch();
    assert!(!send(&store));
    assert_eq!(Arc::strong_count(&ran), 1);
}

#[test]
fn nothing_is_prefetched_with_one_thread() {
    let mirror = Mirror::new([true, true]);
    mirror.store.set_write_threads(1);
    assert_eq!(mirror.store.ahead_bytes_max(), 0);
    assert!(!mirror.store.queue_prefetch(1, || ()));
    assert_eq!(mirror.store.view(Arc::default()).ahead_bytes_max(), 0);
}

#[test]
fn the_last_reference_to_a_store_may_be_a_prefetch() {
    for _ in 0..50 {
        let store = Arc::new(Mirror::new([true, true]).store);
        let held = Arc::clone(&store);
        assert!(store.queue_prefetch(1, move || drop(held)));
        drop(store);
    }
}
