//! Blocks that do not stay in the cache after their read.

use super::*;

/// A mirror with a block of 4 KiB.
fn one_block() -> (Mirror, BlockPointer, Vec<u8>) {
    let mirror = Mirror::new([true, true]);
    let data = content(21, 4096);
    mirror.write(0x4000, &data);
    let pointer = sealed(pointer(0x4000, 4096, false, 4096, 4096), &data);
    (mirror, pointer, data)
}

#[test]
fn a_dropped_block_is_read_from_the_device_each_time() {
    let (mirror, pointer, data) = one_block();
    let read = |retention| {
        let block = (mirror.store).read_with(&pointer, address(), None, retention);
        assert_eq!(*block.unwrap().bytes, data);
        mirror.reads()
    };
    assert_eq!([Retention::Drop; 3].map(read), [1, 2, 3]);
    assert_eq!(mirror.store.cache_statistics().weight_bytes, 0);
    // A part of it, the rest, and no more.
    let steps = [
        Retention::Rest,
        Retention::Rest,
        Retention::Drop,
        Retention::Drop,
    ];
    assert_eq!(steps.map(read), [4, 4, 4, 5]);
    assert_eq!([Retention::Keep, Retention::Keep].map(read), [6, 6]);
    let counts = mirror.store.cache_statistics().demand;
    assert_eq!((counts.hits, counts.misses), (3, 6), "a read counts once");
}

#[test]
fn readers_that_drop_a_block_share_one_read_with_others() {
    for (first, second) in [
        (Retention::Drop, Retention::Drop),
        (Retention::Drop, Retention::Keep),
        (Retention::Keep, Retention::Drop),
    ] {
        let (mirror, pointer, data) = one_block();
        let read = |retention| {
            let block = (mirror.store).read_with(&pointer, address(), None, retention);
            assert_eq!(*block.unwrap().bytes, data);
        };
        mirror.hold(true);
        thread::scope(|scope| {
            scope.spawn(|| read(first));
            while mirror.reads() == 0 {
                thread::yield_now();
            }
            scope.spawn(|| read(second));
            while mirror.store.cache_statistics().demand.io_hits == 0 {
                thread::yield_now();
            }
            mirror.hold(false);
        });
        assert_eq!(mirror.reads(), 1);
        let is_kept = mirror.store.cached(&pointer, None).is_some();
        let is_wanted = [first, second].contains(&Retention::Keep);
        assert_eq!(is_kept, is_wanted, "{first:?} and {second:?}");
        let counts = mirror.store.cache_statistics().demand;
        assert_eq!((counts.hits, counts.io_hits, counts.misses), (0, 1, 1));
    }
}

#[test]
fn a_prefetched_block_waits_for_its_reader_and_is_dropped_then() {
    let (mirror, pointer, _) = one_block();
    let prefetch = || {
        let buffer = PooledBuf::default();
        assert!((mirror.store).prefetch_block(&pointer, address(), None, buffer));
    };
    (0..2).for_each(|_| prefetch());
    assert_eq!(mirror.reads(), 1);
    let read = |retention| {
        let block = (mirror.store).read_with(&pointer, address(), None, retention);
        block.unwrap();
    };
    read(Retention::Drop);
    assert_eq!(mirror.reads(), 1);
    read(Retention::Drop);
    assert_eq!(mirror.reads(), 2);
    let stats = mirror.store.cache_statistics();
    assert_eq!((stats.speculative_used, stats.transient_hits), (1, 1));
    assert_eq!((stats.prefetch.hits, stats.prefetch.misses), (1, 1));
}
