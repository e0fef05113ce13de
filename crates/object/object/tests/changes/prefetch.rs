//! Prefetch: which blocks it reads and which it leaves alone.

use super::*;
use millpond_block::PrefetchStats;
use millpond_env::sync::atomic::{AtomicBool, Ordering};
use millpond_env::thread;
use millpond_object::{CacheHint, Object};
use millpond_ondisk::ObjectId;

const BLOCK: u64 = 16 << 10;
const BLOCKS: u64 = 200;

/// A bench with one synced object, reopened with an empty cache.
struct Cold {
    bench: Bench,
    id: ObjectId,
    content: Vec<u8>,
}

impl Cold {
    fn new() -> Self {
        let mut bench = dataset();
        let content = noise(3, (BLOCK * BLOCKS) as usize);
        let tx = bench.begin();
        let object = bench.set.allocate(&tx, file(BLOCK as u32)).unwrap();
        object.write(&tx, 0, &content).unwrap();
        let id = object.id();
        drop((tx, object));
        bench.sync();
        bench.store = bench.sink.store();
        bench.reopen();
        Self { bench, id, content }
    }
    fn object(&self) -> Arc<Object> {
        self.bench.set.object(self.id).unwrap()
    }
    fn read(&self, object: &Object, offset: u64, length: u64) {
        let mut bytes = vec![0; length as usize];
        object.read(offset, &mut bytes).unwrap();
        let expected = &self.content[offset as usize..][..length as usize];
        assert!(bytes == expected, "bytes from {offset}");
    }
    fn stats(&self) -> PrefetchStats {
        self.bench.store.wait_for_prefetch();
        self.bench.store.prefetch_stats()
    }
}

#[test]
fn blocks_of_a_sequential_read_are_prefetched() {
    let cold = Cold::new();
    let object = cold.object();
    for block in 0..BLOCKS {
        cold.read(&object, block * BLOCK, BLOCK);
        cold.bench.store.wait_for_prefetch();
    }
    let stats = cold.stats();
    assert_eq!(stats.given_up, 0);
    // All blocks but the first two, and all indirect blocks but the first.
    let indirect = BLOCKS / 32;
    assert_eq!(stats.read, BLOCKS - 2 + indirect);
    let cache = cold.bench.store.cache_statistics();
    assert_eq!(
        (cache.speculative_used, cache.speculative_bytes),
        (stats.read, 0)
    );
}

#[test]
fn an_unchanging_object_is_prefetched() {
    let cold = Cold::new();
    let object = cold.bench.set.committed().unwrap().object(cold.id).unwrap();
    let mut bytes = vec![0; BLOCK as usize];
    for block in 0..BLOCKS {
        object.clone().read(block * BLOCK, &mut bytes).unwrap();
        cold.bench.store.wait_for_prefetch();
        assert!(bytes == cold.content[(block * BLOCK) as usize..][..BLOCK as usize]);
    }
    assert!(cold.stats().read > BLOCKS / 2);
}

#[test]
fn drop_behind_reads_are_evicted_after_the_stream() {
    let cold = Cold::new();
    let (live, stored) = (
        cold.object(),
        cold.bench.set.committed().unwrap().object(cold.id).unwrap(),
    );
    let read = |is_live: bool, block: u64, hint| {
        let mut bytes = vec![0; BLOCK as usize];
        match is_live {
            true => live.read_with_hint(block * BLOCK, &mut bytes, hint),
            false => stored.read_with_hint(block * BLOCK, &mut bytes, hint),
        }
        .unwrap();
        assert!(bytes == cold.content[(block * BLOCK) as usize..][..BLOCK as usize]);
    };
    for is_live in [true, false] {
        for block in 0..BLOCKS {
            // Neighbouring requests overtake each other.
            read(is_live, block ^ 1, CacheHint::DropBehind);
            cold.bench.store.wait_for_prefetch();
        }
        // The cache keeps one MiB behind the reader, and blocks that are not data.
        let kept = cold.bench.store.cache_statistics().entries;
        let behind = (1 << 20) / BLOCK;
        assert!((behind..behind + 20).contains(&kept), "{kept}");
    }
    // Everything can still be read, and stays cached unless the reader says otherwise.
    let misses = cold.bench.store.cache_statistics().demand.misses;
    (0..BLOCKS).for_each(|block| read(true, block, CacheHint::Retain));
    let cache = cold.bench.store.cache_statistics();
    assert!(cache.weight_bytes > BLOCK * BLOCKS);
    assert!(cache.demand.misses > misses);
}

#[test]
fn random_reads_stay_cached_despite_the_drop_hint() {
    let cold = Cold::new();
    let object = cold.object();
    let mut piece = [0; 4096];
    for step in 0..BLOCKS {
        let block = step * 83 % BLOCKS;
        object
            .read_with_hint(block * BLOCK, &mut piece, CacheHint::DropBehind)
            .unwrap();
    }
    assert!(cold.bench.store.cache_statistics().weight_bytes > BLOCK * BLOCKS);
}

#[test]
fn blocks_wanted_by_another_reader_stay_cached() {
    let cold = Cold::new();
    let object = cold.object();
    let wanted = 3 * BLOCK;
    (0..2).for_each(|_| cold.read(&object, wanted, 100));
    let mut bytes = vec![0; BLOCK as usize];
    for block in 0..BLOCKS {
        object
            .read_with_hint(block * BLOCK, &mut bytes, CacheHint::DropBehind)
            .unwrap();
    }
    let misses = cold.bench.store.cache_statistics().demand.misses;
    cold.read(&object, wanted, 100);
    assert_eq!(cold.bench.store.cache_statistics().demand.misses, misses);
}

#[test]
fn one_long_read_is_split_and_nothing_past_it_prefetched() {
    let cold = Cold::new();
    let object = cold.object();
    cold.read(&object, 10 * BLOCK, 20 * BLOCK);
    cold.bench.store.wait_for_prefetch();
    let cache = cold.bench.store.cache_statistics();
    assert_eq!(cache.speculative_bytes, 0, "nothing that was not asked for");
    cold.read(&object, 0, BLOCK * BLOCKS);
}

#[test]
fn random_and_backward_reads_cost_no_extra_reads() {
    let cold = Cold::new();
    let object = cold.object();
    let mut at = 7;
    for _ in 0..300 {
        at = (at * 131 + 17) % (BLOCKS * 4);
        cold.read(&object, at * 4096, 1000);
    }
    let object = cold.object();
    for block in (0..BLOCKS).rev() {
        cold.read(&object, block * BLOCK, BLOCK);
    }
    assert_eq!(cold.stats(), PrefetchStats::default());
}

#[test]
fn nothing_is_prefetched_if_off_or_with_one_thread() {
    for which in 0..2 {
        let cold = Cold::new();
        match which {
            0 => cold.bench.store.set_prefetch(false),
            _ => cold.bench.store.set_write_threads(1),
        }
        let object = cold.object();
        for block in 0..BLOCKS {
            cold.read(&object, block * BLOCK, BLOCK);
        }
        assert_eq!(cold.stats(), PrefetchStats::default());
    }
}

#[test]
fn prefetched_blocks_stay_within_their_cache_share() {
    let cold = Cold::new();
    let cache_bytes = 8 << 20;
    let object = cold.object();
    for step in 0..BLOCKS / 4 {
        for reader in 0..4 {
            cold.read(&object, (reader * BLOCKS / 4 + step) * BLOCK, BLOCK);
            cold.bench.store.wait_for_prefetch();
            let cache = cold.bench.store.cache_statistics();
            assert!(cache.weight_bytes <= cache_bytes);
            assert!(cache.speculative_bytes <= cache_bytes / 4);
        }
    }
    assert!(cold.stats().read > 0);
}

#[test]
fn a_file_changed_under_readers_returns_no_stale_bytes() {
    let cold = Cold::new();
    let stop = AtomicBool::new(false);
    let object = cold.object();
    let bench = &cold.bench;
    // Every block begins with the number of its round.
    let contents: Vec<Vec<u8>> = (0..8u8)
        .map(|round| {
            let mut content = noise(round.into(), (BLOCK * BLOCKS) as usize);
            let blocks = content.chunks_mut(BLOCK as usize);
            blocks.for_each(|block| block[0] = round);
            content
        })
        .collect();
    let write = |round: u8| {
        let tx = bench.begin();
        object.write(&tx, 0, &contents[usize::from(round)]).unwrap();
        drop(tx);
        bench.sync();
    };
    write(1);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut last = vec![0u8; BLOCKS as usize];
                    let mut bytes = vec![0; BLOCK as usize];
                    while !stop.load(Ordering::SeqCst) {
                        for block in 0..BLOCKS {
                            object.read(block * BLOCK, &mut bytes).unwrap();
                            let (round, seen) = (bytes[0], &mut last[block as usize]);
                            if round == 0 {
                                assert!(block >= BLOCKS / 2 && bytes.iter().all(|byte| *byte == 0));
                                continue;
                            }
                            let written = &contents[usize::from(round)];
                            assert!(bytes == written[(block * BLOCK) as usize..][..BLOCK as usize]);
                            assert!(round >= *seen, "block {block}: {round} after {seen}");
                            *seen = round;
                        }
                    }
                })
            })
            .collect();
        for round in 2..8u8 {
            let tx = bench.begin();
            object
                .free_range(&tx, BLOCK * BLOCKS / 2, u64::MAX)
                .unwrap();
            drop(tx);
            bench.sync();
            write(round);
        }
        stop.store(true, Ordering::SeqCst);
        readers.into_iter().for_each(|one| one.join().unwrap());
    });
}

#[test]
fn freeing_prefetches_indirect_blocks() {
    // 2048 blocks, 64 indirect blocks of 32 pointers, two above them.
    for is_whole in [true, false] {
        let mut bench = dataset();
        let tx = bench.begin();
        let object = bench.set.allocate(&tx, file(512)).unwrap();
        object.write(&tx, 0, &noise(5, 2048 * 512)).unwrap();
        let id = object.id();
        drop((tx, object));
        bench.sync();
        bench.store = bench.sink.store();
        bench.reopen();
        let tx = bench.begin();
        if is_whole {
            bench.set.free(&tx, id).unwrap();
        } else {
            let object = bench.set.object(id).unwrap();
            object.free_range(&tx, 512 * 40, 512 * 1900).unwrap();
        }
        drop(tx);
        // Compares live blocks with the freed ones.
        bench.sync();
        bench.store.wait_for_prefetch();
        let stats = bench.store.prefetch_stats();
        // One request for each indirect block but the first below each of the two. The sweep may overtake
        // requests.
        let expected = if is_whole { 62..=63 } else { 50..=63 };
        assert!(expected.contains(&stats.requests), "{stats:?}");
        assert!(stats.read <= stats.requests, "{stats:?}");
        assert_eq!(stats.given_up, 0);
    }
}
