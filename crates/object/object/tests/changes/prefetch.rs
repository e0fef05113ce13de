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
    fn figures(&self) -> PrefetchStats {
        self.bench.store.settle_ahead();
        self.bench.store.prefetch_stats()
    }
}

#[test]
fn what_a_reader_from_front_to_back_asks_for_has_been_read() {
    let cold = Cold::new();
    let object = cold.object();
    for block in 0..BLOCKS {
        cold.read(&object, block * BLOCK, BLOCK);
        cold.bench.store.settle_ahead();
    }
    let figures = cold.figures();
    assert_eq!(figures.given_up, 0);
    // All blocks but the first two, and all indirect blocks but the first.
    let indirect = BLOCKS / 32;
    assert_eq!(figures.read, BLOCKS - 2 + indirect);
    let cache = cold.bench.store.cache_statistics();
    assert_eq!((cache.guesses_used, cache.guessed_bytes), (figures.read, 0));
}

#[test]
fn an_object_that_does_not_change_is_read_ahead_too() {
    let cold = Cold::new();
    let object = cold.bench.set.committed().unwrap().object(cold.id).unwrap();
    let mut bytes = vec![0; BLOCK as usize];
    for block in 0..BLOCKS {
        object.clone().read(block * BLOCK, &mut bytes).unwrap();
        cold.bench.store.settle_ahead();
        assert!(bytes == cold.content[(block * BLOCK) as usize..][..BLOCK as usize]);
    }
    assert!(cold.figures().read > BLOCKS / 2);
}

#[test]
fn what_its_reader_keeps_is_let_go_of_behind_a_stream() {
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
            cold.bench.store.settle_ahead();
        }
        // The cache keeps one MiB behind the reader, and blocks that are not data.
        let kept = cold.bench.store.cache_statistics().entries;
        let behind = (1 << 20) / BLOCK;
        assert!((behind..behind + 20).contains(&kept), "{kept}");
    }
    // Everything can still be read, and stays cached unless the reader says otherwise.
    let misses = cold.bench.store.cache_statistics().misses;
    (0..BLOCKS).for_each(|block| read(true, block, CacheHint::Retain));
    let cache = cold.bench.store.cache_statistics();
    assert!(cache.weight_bytes > BLOCK * BLOCKS);
    assert!(cache.misses > misses);
}

#[test]
fn who_jumps_about_keeps_its_blocks_here_whatever_its_reader_keeps() {
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
fn what_somebody_else_wants_stays_when_a_stream_has_passed() {
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
    let misses = cold.bench.store.cache_statistics().misses;
    cold.read(&object, wanted, 100);
    assert_eq!(cold.bench.store.cache_statistics().misses, misses);
}

#[test]
fn one_long_read_is_shared_out_and_nothing_behind_it_is_read() {
    let cold = Cold::new();
    let object = cold.object();
    cold.read(&object, 10 * BLOCK, 20 * BLOCK);
    cold.bench.store.settle_ahead();
    let cache = cold.bench.store.cache_statistics();
    assert_eq!(cache.guessed_bytes, 0, "nothing that was not asked for");
    cold.read(&object, 0, BLOCK * BLOCKS);
}

#[test]
fn who_jumps_about_or_reads_from_back_to_front_costs_no_more_than_without() {
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
    assert_eq!(cold.figures(), PrefetchStats::default());
}

#[test]
fn turned_off_or_with_one_thread_nothing_is_read_ahead() {
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
        assert_eq!(cold.figures(), PrefetchStats::default());
    }
}

#[test]
fn what_is_read_ahead_keeps_within_its_share_of_the_cache() {
    let cold = Cold::new();
    let cache_bytes = 8 << 20;
    let object = cold.object();
    for step in 0..BLOCKS / 4 {
        for reader in 0..4 {
            cold.read(&object, (reader * BLOCKS / 4 + step) * BLOCK, BLOCK);
            cold.bench.store.settle_ahead();
            let cache = cold.bench.store.cache_statistics();
            assert!(cache.weight_bytes <= cache_bytes);
            assert!(cache.guessed_bytes <= cache_bytes / 4);
        }
    }
    assert!(cold.figures().read > 0);
}

#[test]
fn a_file_cut_overwritten_and_synced_under_its_readers_gives_no_stale_bytes() {
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
fn indirect_blocks_of_a_tree_that_is_freed_are_read_ahead_of_the_sweep() {
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
        bench.store.settle_ahead();
        let figures = bench.store.prefetch_stats();
        // One request for each indirect block but the first below each of the two. The sweep may overtake
        // requests.
        let expected = if is_whole { 62..=63 } else { 50..=63 };
        assert!(expected.contains(&figures.requests), "{figures:?}");
        assert!(figures.read <= figures.requests, "{figures:?}");
        assert_eq!(figures.given_up, 0);
    }
}
