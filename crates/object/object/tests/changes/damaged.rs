//! Objects with unreadable indirect blocks.

use crate::{Bench, dataset, file, noise};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_object::{BlockError, Object, ObjectError, ObjectSetView, SyncedSet, WritePolicy};
use millpond_ondisk::{BlockId, BlockPointer, Level, ObjectId, Txg};
use millpond_vdev::LeafId;

/// Pointers in an indirect block of 4 KiB.
const SPAN: u64 = 32;
const BLOCK: u64 = 512;

/// Creates an object with level-1 indirect blocks below one of level 2, damages the given level-1 blocks and
/// empties the cache.
fn damaged(blocks: u64, lost: &[u64]) -> (Bench, ObjectId) {
    let mut bench = dataset();
    let tx = bench.begin();
    let object = bench.set.allocate(&tx, file(BLOCK as u32)).unwrap();
    let id = object.id();
    object
        .write(&tx, 0, &noise(1, (blocks * BLOCK) as usize))
        .unwrap();
    drop((tx, object));
    let (_, committed) = bench.sync();
    for number in lost {
        bench.sink.damage(&level_1(&committed, id, *number));
    }
    bench.store = bench.sink.store();
    bench.reopen();
    (bench, id)
}

fn level_1(set: &Arc<ObjectSetView>, id: ObjectId, number: u64) -> BlockPointer {
    let object = set.object(id).unwrap();
    assert_eq!(object.dnode().levels, 3);
    object.pointer(Level(1), BlockId(number)).unwrap()
}

fn object(bench: &Bench, id: ObjectId) -> Arc<Object> {
    bench.set.object(id).unwrap()
}

/// Syncs without checking the tree, because the check would meet the damage.
fn sync(bench: &Bench) -> SyncedSet {
    let syncing = bench.close();
    let synced = bench.set.sync(syncing.txg(), 1, &*bench.sink).unwrap();
    bench.groups.synced(syncing.txg());
    synced
}

fn is_corrupt<T: std::fmt::Debug>(outcome: Result<T, ObjectError>) -> bool {
    matches!(outcome, Err(ObjectError::Block(BlockError::Corrupt { .. })))
}

/// The first read may have met a sync; only the second one, which waits for syncs, counts.
#[test]
fn a_lost_block_is_counted_once_and_remembered() {
    let (bench, id) = damaged(5 * SPAN, &[1]);
    let errors = || bench.store.topology().leaf_stats(LeafId(0)).checksum_errors;
    let mut back = vec![0; BLOCK as usize];
    assert!(is_corrupt(object(&bench, id).read(SPAN * BLOCK, &mut back)));
    // Two copies.
    assert_eq!(errors(), 2);
    let damaged = bench.store.damaged_blocks();
    let blocks: Vec<_> = damaged.iter().map(|block| block.address.block).collect();
    assert_eq!(blocks, [BlockId(1)]);
}

/// A sync may free a block while it is read. Then its place is another block's soon, of which one copy may be written.
#[test]
fn a_block_that_a_sync_replaced_during_the_read_is_not_repaired() {
    for is_replaced in [false, true] {
        let mut bench = dataset();
        let policy = bench.set.policy();
        bench.set.set_policy(WritePolicy {
            copies: 2,
            ..policy
        });
        let content = noise(1, 4 * BLOCK as usize);
        let tx = bench.begin();
        let new = bench.set.allocate(&tx, file(BLOCK as u32)).unwrap();
        new.write(&tx, 0, &content).unwrap();
        let id = new.id();
        drop((tx, new));
        let (_, committed) = bench.sync();
        let pointer = committed.object(id).unwrap();
        let pointer = pointer.pointer(Level(0), BlockId(0)).unwrap();
        let first = pointer.dvas().next().unwrap();
        bench.sink.damage_copy(first, BLOCK);
        bench.store = bench.sink.store();
        bench.reopen();
        bench.store.space_is_reusable(Txg(u64::MAX));
        bench.store.set_repair(true);
        let object = object(&bench, id);
        let mut back = vec![0; BLOCK as usize];
        // Indirect blocks are cached now.
        object.read(3 * BLOCK, &mut back).unwrap();
        let bench = Arc::new(bench);
        if is_replaced {
            let (bench, object) = (Arc::clone(&bench), Arc::clone(&object));
            bench.clone().sink.before_read(move || {
                let tx = bench.begin();
                object.write(&tx, 0, &noise(2, BLOCK as usize)).unwrap();
                drop(tx);
                sync(&bench);
            });
        }
        object.read(0, &mut back).unwrap();
        assert!(back == content[..BLOCK as usize]);
        assert_eq!(bench.sink.is_damaged(first), is_replaced);
        let errors = bench.store.topology().leaf_stats(LeafId(0)).checksum_errors;
        assert_eq!(errors, u64::from(!is_replaced));
    }
}

#[test]
fn a_write_below_an_unreadable_block_fails_before_the_sync() {
    let (bench, id) = damaged(5 * SPAN, &[1]);
    let object = object(&bench, id);
    let tx = bench.begin();
    let block = noise(2, BLOCK as usize);
    assert!(is_corrupt(object.write_block(
        &tx,
        BlockId(SPAN),
        block.clone()
    )));
    // A write that reaches the damage fails before it changes anything.
    let both = noise(3, 2 * BLOCK as usize);
    assert!(is_corrupt(object.write(&tx, (SPAN - 1) * BLOCK, &both)));
    object.write(&tx, (SPAN - 1) * BLOCK, &block).unwrap();
    object.write(&tx, 2 * SPAN * BLOCK, &block).unwrap();
    drop(tx);
    sync(&bench);
    let mut back = vec![0; BLOCK as usize];
    for at in [SPAN - 1, 2 * SPAN] {
        object.read(at * BLOCK, &mut back).unwrap();
        assert_eq!(back, block);
    }
    assert_eq!(bench.sink.take_leaks(), []);
}

#[test]
fn an_object_with_an_unreadable_indirect_block_is_freed() {
    let _mark = mark::expect("freed-tree-unreadable");
    let (bench, id) = damaged(5 * SPAN, &[1]);
    let before = bench.sink.alive().len() as u64;
    let tx = bench.begin();
    bench.set.free(&tx, id).unwrap();
    drop(tx);
    sync(&bench);
    let leaks = bench.sink.take_leaks();
    assert_eq!(leaks.len(), 1);
    assert_eq!((leaks[0].address.object, leaks[0].address.level.0), (id, 1));
    assert_eq!(
        (leaks[0].address.block, leaks[0].blocks),
        (BlockId(1), SPAN)
    );
    assert!(
        leaks[0].reason.contains("no good copy"),
        "{}",
        leaks[0].reason
    );
    // The data of four indirect blocks, and all six indirect blocks.
    let after = bench.sink.alive().len() as u64;
    assert!(before - after >= 4 * SPAN + 6, "{before} {after}");
    assert!(matches!(
        bench.set.object(id),
        Err(ObjectError::NotFound { .. })
    ));
}

#[test]
fn a_truncation_leaks_unreadable_blocks_uncharged() {
    let (bench, id) = damaged(5 * SPAN, &[1]);
    let object = object(&bench, id);
    // An edge inside the unreadable block is refused, because some of its pointers would have to stay.
    let tx = bench.begin();
    let inside = (SPAN + 1) * BLOCK;
    assert!(is_corrupt(object.free_range(&tx, inside, u64::MAX)));
    assert!(is_corrupt(object.free_range(&tx, 0, inside)));
    object.free_range(&tx, 0, u64::MAX).unwrap();
    drop(tx);
    sync(&bench);
    assert_eq!(bench.sink.take_leaks().len(), 1);
    assert_eq!(object.used_bytes(), 0);
    // The object is now empty.
    let tx = bench.begin();
    (object.write(&tx, 0, &noise(4, 3 * BLOCK as usize))).unwrap();
    drop(tx);
    sync(&bench);
    assert_eq!(bench.sink.take_leaks(), []);
    // Two indirect blocks of the tree remain, each with two copies of one sector.
    assert_eq!(object.used_bytes(), 3 * BLOCK + 2 * 2 * 512);
}

#[test]
fn chunks_are_computed_without_reading_lowest_indirects() {
    let (bench, id) = damaged(7 * SPAN + 5, &[0, 3]);
    let object = object(&bench, id);
    let all = || BlockId(0)..BlockId(u64::MAX);
    let one = object.next_free_chunk(all(), 1);
    assert_eq!((one.end, one.blocks), (Some(BlockId(SPAN)), SPAN));
    let three = object.next_free_chunk(all(), 3 * SPAN + 1);
    assert_eq!(
        (three.end, three.blocks),
        (Some(BlockId(3 * SPAN)), 3 * SPAN)
    );
    let rest = object.next_free_chunk(BlockId(6 * SPAN + 1)..BlockId(u64::MAX), 1000);
    assert_eq!((rest.end, rest.blocks), (None, SPAN - 1 + SPAN));
    let inside = object.next_free_chunk(BlockId(3)..BlockId(5), 1);
    assert_eq!((inside.end, inside.blocks), (None, 2));
    let following = object.next_free_chunk(BlockId(100 * SPAN)..BlockId(u64::MAX), 1);
    assert_eq!((following.end, following.blocks), (None, 0));
    // Chunk by chunk, each in its own txg.
    let (mut at, mut steps) = (BlockId(0), 0);
    loop {
        let chunk = object.next_free_chunk(at..BlockId(u64::MAX), 2 * SPAN);
        let tx = bench.begin();
        let end = chunk.end.map_or(u64::MAX, |end| (end.0 - at.0) * BLOCK);
        object.free_range(&tx, at.0 * BLOCK, end).unwrap();
        drop(tx);
        sync(&bench);
        steps += 1;
        match chunk.end {
            Some(end) => at = end,
            None => break,
        }
    }
    assert_eq!(steps, 4);
    assert_eq!(bench.sink.take_leaks().len(), 2);
    assert_eq!(object.used_bytes(), 0);
}
