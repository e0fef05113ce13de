//! Blocks that the cache keeps as they are stored.

use super::*;

const RECORD_BYTES: usize = 128 << 10;
const STORED_BYTES: usize = 8 << 10;

/// Compressible content, and its bytes on the devices.
fn compressed(seed: u8) -> (Vec<u8>, Vec<u8>) {
    let mut data = content(seed, 4096);
    data.resize(RECORD_BYTES, seed);
    let kind = CompressionKind::Lz4;
    let level = millpond_compress::ZstdLevel::DEFAULT;
    let mut stored = millpond_compress::compress(kind, level, &data, STORED_BYTES).unwrap();
    stored.resize(STORED_BYTES, 0);
    (data, stored)
}

/// A mirror with blocks whose content is twice the cache, and what they contain.
pub(super) fn records(count: u8) -> (Mirror, Vec<(BlockPointer, Vec<u8>)>) {
    let mirror = Mirror::new([true, true]);
    let records = (0..count).map(|number| {
        let (data, stored) = compressed(number);
        let offset = u64::from(number) * STORED_BYTES as u64;
        mirror.write(offset, &stored);
        let size = STORED_BYTES as u64;
        let mut pointer = pointer(offset, size, false, RECORD_BYTES as u64, size);
        pointer.words[6] &= !(0x7f << 32);
        pointer.words[6] |= u64::from(CompressionKind::Lz4.number()) << 32;
        (sealed(pointer, &stored), data)
    });
    let records = records.collect();
    (mirror, records)
}

#[test]
fn compressed_blocks_are_charged_as_stored_and_stay() {
    let (mirror, records) = records(16);
    for round in 0..3 {
        for (pointer, data) in &records {
            let block = mirror.store.read(pointer, address(), None).unwrap();
            assert_eq!(*block.bytes, *data);
        }
        assert_eq!(mirror.reads(), 16, "round {round}");
    }
    let stats = mirror.store.cache_statistics();
    assert_eq!((stats.entries, stats.evicted), (16, 0));
    assert_eq!((stats.demand.misses, stats.demand.hits), (16, 32));
    let compact = stats.weight_bytes - stats.expanded_bytes;
    assert_eq!(compact, 16 * (STORED_BYTES as u64 + 256));
    assert_eq!(stats.content_bytes, 16 * (RECORD_BYTES as u64 + 256));
    assert!(stats.weight_bytes <= 1 << 20);
    assert!(stats.expanded_bytes >= 2 * RECORD_BYTES as u64);
}

#[test]
fn threads_expand_a_block_to_the_same_content() {
    let (mirror, records) = records(16);
    for (pointer, _) in &records {
        mirror.store.read(pointer, address(), None).unwrap();
    }
    thread::scope(|scope| {
        for first in 0..4 {
            let (mirror, records) = (&mirror, &records);
            scope.spawn(move || {
                for (pointer, data) in records.iter().cycle().skip(first).take(100) {
                    let block = mirror.store.read(pointer, address(), None).unwrap();
                    assert_eq!(*block.bytes, *data);
                }
            });
        }
    });
    assert_eq!(mirror.reads(), 16);
    let stats = mirror.store.cache_statistics();
    assert_eq!(stats.entries, 16);
    assert_eq!(stats.demand.count(), 16 + 400);
}

#[test]
fn every_way_to_a_compressed_block_finds_its_content() {
    let (mirror, records) = records(16);
    let store = &mirror.store;
    let wanted: Vec<_> = records.iter().map(|(p, _)| (*p, address())).collect();
    for _ in 0..2 {
        for (outcome, (_, data)) in store.read_batch(&wanted, None).iter().zip(&records) {
            assert_eq!(*outcome.as_ref().unwrap().bytes, *data);
        }
        for (pointer, data) in &records {
            assert!(store.is_cached(pointer, None));
            assert_eq!(*store.cached(pointer, None).unwrap().bytes, *data);
        }
        for (pointer, data) in &records {
            assert_eq!(
                *store.prefetch(pointer, address(), None).unwrap().bytes,
                *data
            );
        }
    }
    assert_eq!(mirror.reads(), 16);
    for retention in [Retention::Rest, Retention::Drop] {
        for (pointer, data) in &records {
            let block = store.read_with(pointer, address(), None, retention);
            assert_eq!(*block.unwrap().bytes, *data);
        }
    }
    assert_eq!(mirror.reads(), 16);
    assert_eq!(store.cache_statistics().weight_bytes, 0);
}
