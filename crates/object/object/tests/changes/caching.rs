//! What of an object set stays in the cache, and what is prefetched.

use super::*;
use millpond_object::{BlockChoice, CacheHint, Caching, Object, ObjectView, ReadableObject};
use millpond_ondisk::{BlockId, ObjectId};

const BLOCK: u64 = 16 << 10;
const BLOCKS: u64 = 200;
const KEPT_METADATA: Caching = Caching {
    copied: BlockChoice::All,
    kept: BlockChoice::Metadata,
    prefetched: BlockChoice::None,
};
const KEPT_NOTHING: Caching = Caching {
    copied: BlockChoice::All,
    kept: BlockChoice::None,
    prefetched: BlockChoice::None,
};

/// A bench with one synced object, reopened with an empty cache.
struct Cold {
    bench: Bench,
    id: ObjectId,
    content: Vec<u8>,
}

impl Cold {
    fn new(caching: Caching) -> Self {
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
        let cold = Self { bench, id, content };
        cold.set(caching);
        cold
    }
    fn set(&self, caching: Caching) {
        let policy = self.bench.set.policy();
        self.bench.set.set_policy(WritePolicy { caching, ..policy });
    }
    fn live(&self) -> Arc<Object> {
        self.bench.set.object(self.id).unwrap()
    }
    fn stored(&self) -> ObjectView {
        self.bench.set.committed().unwrap().object(self.id).unwrap()
    }
    /// Reads in steps of this length, up to the end, which lies 100 bytes before that of the last block.
    fn read_all(&self, object: &ReadableObject, step: usize) {
        let end = self.content.len() - 100;
        for at in (0..end).step_by(step) {
            let mut bytes = vec![0; step.min(end - at)];
            let is_end = at + bytes.len() == end;
            (object.read_until(at as u64, &mut bytes, CacheHint::Retain, is_end)).unwrap();
            assert!(
                bytes == self.content[at..][..bytes.len()],
                "bytes from {at}"
            );
        }
    }
    /// Blocks read from the devices so far: data, metadata.
    fn reads(&self) -> [u64; 2] {
        let counts = self.bench.store.cache_statistics().demand;
        let metadata = counts.metadata_misses;
        [counts.misses - metadata, metadata]
    }
    /// The reads that an action costs.
    fn cost(&self, act: impl FnOnce()) -> [u64; 2] {
        let before = self.reads();
        act();
        let after = self.reads();
        [after[0] - before[0], after[1] - before[1]]
    }
}

#[test]
fn data_that_is_not_kept_is_read_again_and_metadata_is_not() {
    let cold = Cold::new(KEPT_METADATA);
    for object in [cold.live().into(), cold.stored().into()] {
        cold.read_all(&object, BLOCK as usize);
        let again = cold.cost(|| cold.read_all(&object, 3 * BLOCK as usize));
        assert_eq!(again, [BLOCKS, 0]);
        let cache = cold.bench.store.cache_statistics();
        assert_eq!((cache.data_bytes, cache.speculative_bytes), (0, 0));
        assert!(cache.metadata_bytes > 0);
    }
}

#[test]
fn a_sequential_reader_of_small_pieces_reads_each_block_once() {
    for caching in [KEPT_METADATA, KEPT_NOTHING] {
        let cold = Cold::new(caching);
        for object in [cold.live().into(), cold.stored().into()] {
            let cost = cold.cost(|| cold.read_all(&object, 1000));
            // The first piece of all does not look like a stream yet.
            assert_eq!(cost[0], BLOCKS + 1, "{caching:?}");
            let cache = cold.bench.store.cache_statistics();
            assert_eq!((cache.data_bytes, cache.speculative_bytes), (0, 0));
        }
    }
}

#[test]
fn nothing_is_kept_and_one_read_needs_each_indirect_block_once() {
    let cold = Cold::new(KEPT_NOTHING);
    for object in [cold.live().into(), cold.stored().into()] {
        // 200 blocks below 7 indirect blocks below another one.
        let cost = cold.cost(|| cold.read_all(&object, cold.content.len()));
        assert_eq!(cost, [BLOCKS, 8]);
        let mut piece = [0; 100];
        let twice = cold.cost(|| {
            for _ in 0..2 {
                object.read(77 * BLOCK, &mut piece).unwrap();
            }
        });
        assert_eq!(twice, [2, 4], "random reads keep nothing");
        assert_eq!(object.next_hole_block(BlockId(0)).unwrap(), BlockId(BLOCKS));
        assert_eq!(cold.bench.store.cache_statistics().weight_bytes, 0);
    }
}

#[test]
fn a_change_of_the_policy_takes_effect_with_the_next_read() {
    let cold = Cold::new(Caching::default());
    let object = cold.live().into();
    cold.bench.store.set_prefetch(false);
    cold.read_all(&object, BLOCK as usize);
    assert_eq!(cold.cost(|| cold.read_all(&object, BLOCK as usize)), [0, 0]);
    cold.set(KEPT_METADATA);
    // What was cached is found once more.
    assert_eq!(cold.cost(|| cold.read_all(&object, BLOCK as usize)), [0, 0]);
    let again = cold.cost(|| cold.read_all(&object, BLOCK as usize));
    assert_eq!(again, [BLOCKS, 0]);
    cold.set(Caching::default());
    cold.read_all(&object, BLOCK as usize);
    assert_eq!(cold.cost(|| cold.read_all(&object, BLOCK as usize)), [0, 0]);
}

#[test]
fn prefetched_blocks_do_not_stay_after_their_read() {
    let cold = Cold::new(Caching {
        copied: BlockChoice::All,
        kept: BlockChoice::Metadata,
        prefetched: BlockChoice::All,
    });
    let object = cold.live().into();
    for _ in 0..2 {
        let used = cold.bench.store.cache_statistics().speculative_used;
        for block in 0..BLOCKS {
            let mut bytes = vec![0; BLOCK as usize];
            ReadableObject::read(&object, block * BLOCK, &mut bytes).unwrap();
            cold.bench.store.wait_for_prefetch();
        }
        let cache = cold.bench.store.cache_statistics();
        assert!(cache.speculative_used - used > BLOCKS - 20);
        assert_eq!((cache.data_bytes, cache.speculative_bytes), (0, 0));
    }
}

#[test]
fn prefetch_reads_what_the_policy_permits() {
    for (prefetched, data, metadata) in [
        (BlockChoice::None, false, false),
        (BlockChoice::Metadata, false, true),
        (BlockChoice::All, true, true),
    ] {
        let cold = Cold::new(Caching {
            copied: BlockChoice::All,
            kept: BlockChoice::All,
            prefetched,
        });
        let objects: [ReadableObject; 2] = [cold.live().into(), cold.stored().into()];
        for block in 0..BLOCKS {
            // Each object reads a half of the blocks first.
            let object = &objects[usize::from(block >= BLOCKS / 2)];
            object
                .read(block * BLOCK, &mut [0; BLOCK as usize])
                .unwrap();
            cold.bench.store.wait_for_prefetch();
        }
        let counts = cold.bench.store.cache_statistics().prefetch;
        let of_data = counts.misses - counts.metadata_misses;
        assert_eq!(of_data > 0, data, "{prefetched:?}");
        assert_eq!(counts.metadata_misses > 0, metadata, "{prefetched:?}");
    }
}

/// A partly overwritten block is read when its first part arrives, and not again when it is written.
#[test]
fn a_partly_written_block_is_read_once() {
    let cold = Cold::new(KEPT_METADATA);
    let object = cold.live();
    let tx = cold.bench.begin();
    let written = cold.cost(|| object.write(&tx, 5 * BLOCK + 7, b"changed").unwrap());
    assert_eq!(written[0], 1);
    drop(tx);
    assert!(cold.bench.store.cache_statistics().speculative_bytes > BLOCK);
    cold.bench.sync();
    assert_eq!(cold.bench.store.cache_statistics().speculative_bytes, 0);
    let mut bytes = [0; 9];
    object.read(5 * BLOCK + 6, &mut bytes).unwrap();
    assert_eq!(&bytes[1..8], b"changed");
    assert_eq!(bytes[0], cold.content[(5 * BLOCK + 6) as usize]);
}

#[test]
fn prefetched_dnodes_need_no_device_when_their_objects_are_opened() {
    for prefetched in [BlockChoice::All, BlockChoice::None] {
        let mut bench = dataset();
        let tx = bench.begin();
        let create = |_| bench.set.allocate(&tx, file(BLOCK as u32)).unwrap().id();
        let ids: Vec<ObjectId> = (0..300).map(create).collect();
        drop(tx);
        bench.sync();
        for is_live in [true, false] {
            bench.store = bench.sink.store();
            bench.reopen();
            let policy = bench.set.policy();
            let caching = Caching {
                copied: BlockChoice::All,
                kept: BlockChoice::All,
                prefetched,
            };
            bench.set.set_policy(WritePolicy { caching, ..policy });
            // In the order of names; some ids are free or beyond the array.
            let listed = ids.iter().rev().copied();
            let listed = listed.chain([ObjectId(0), ObjectId(9000), ObjectId(u64::MAX)]);
            let view = bench.set.committed().unwrap();
            match is_live {
                true => bench.set.prefetch_dnodes(listed),
                false => view.prefetch_dnodes(listed),
            }
            bench.store.wait_for_prefetch();
            let misses = || bench.store.cache_statistics().demand.misses;
            let before = misses();
            for id in &ids {
                match is_live {
                    true => drop(bench.set.object(*id).unwrap()),
                    false => drop(view.object(*id).unwrap()),
                }
            }
            assert_eq!(misses() == before, prefetched == BlockChoice::All);
        }
    }
}

#[test]
fn a_write_reads_its_edges_before_its_transaction() {
    let mut cold = Cold::new(KEPT_METADATA);
    let object = cold.live();
    // Within a block, over two edges, and of whole blocks.
    let cases = [
        (BLOCK + 5, 100, 1),
        (3 * BLOCK + 7, 2 * BLOCK, 2),
        (6 * BLOCK, 2 * BLOCK, 0),
    ];
    for (offset, length, edges_expected) in cases {
        let bytes = noise(offset, length as usize);
        let mut edges = None;
        let read = cold.cost(|| edges = Some(object.read_edges(offset, length).unwrap()));
        assert_eq!(read[0], edges_expected, "{offset}");
        let tx = cold.bench.begin();
        let written = cold.cost(|| {
            object
                .write_over(&tx, offset, &bytes, &edges.unwrap())
                .unwrap();
        });
        assert_eq!(written, [0, 0], "{offset}");
        cold.content[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
    // What is dirty is not read, and a block beyond the end is not there.
    let again = cold.cost(|| {
        object.read_edges(BLOCK + 9, 10).unwrap();
        object.read_edges(BLOCK * BLOCKS + 9, 10).unwrap();
    });
    assert_eq!(again, [0, 0]);
    cold.bench.sync();
    cold.read_all(&cold.live().into(), BLOCK as usize);
}

#[test]
fn edges_of_before_a_sync_are_not_used() {
    let mut cold = Cold::new(KEPT_METADATA);
    let object = cold.live();
    let edges = object.read_edges(5, 10).unwrap();
    let tx = cold.bench.begin();
    object.write(&tx, 100, b"newer").unwrap();
    drop(tx);
    cold.bench.sync();
    let tx = cold.bench.begin();
    object.write_over(&tx, 5, b"0123456789", &edges).unwrap();
    drop(tx);
    cold.content[5..15].copy_from_slice(b"0123456789");
    cold.content[100..105].copy_from_slice(b"newer");
    cold.bench.sync();
    cold.read_all(&cold.live().into(), BLOCK as usize);
}
