//! The traversal that frees a destroyed dataset, on damaged and forged trees and from bookmarks.

use super::forge_object_0;
use super::scene::{Damage, Scene};
use millpond_checksum::checksum;
use millpond_compress::{ZstdLevel, compress};
use millpond_dataset::{Dataset, traverse_destroyed_tree};
use millpond_env::sync::Arc;
use millpond_ondisk::{
    BlockBookmark, BlockPointer, BpTreeEntry, ChecksumKind, CompressionKind, Endian, Level,
    ObjectType, Txg,
};
use millpond_pool::PoolView;
use millpond_tests::hostile::image::{Changed, FRONT_BYTES};

/// The blocks of `tank/plain` that a destroy would free.
fn freed(damage: impl FnOnce(&Scene, &mut Changed<'_>)) -> Result<usize, String> {
    let (blocks, outcome) = destroyed(&Scene::get().open(damage, |_| {}), START);
    outcome.map(|()| blocks.len())
}

const START: BlockBookmark = BlockBookmark {
    object_set: 0,
    object: 0,
    level: 0,
    block_id: 0,
};

/// The blocks of `tank/plain` that a destroy would free from a bookmark on, and how it would end.
fn destroyed(
    pool: &Arc<PoolView>,
    resume: BlockBookmark,
) -> (Vec<BlockPointer>, Result<(), String>) {
    let dataset = Dataset::find(pool, "tank/plain").unwrap();
    let entry = BpTreeEntry {
        pointer: dataset.phys().block_pointer,
        birth: Txg(0),
        resume,
    };
    let mut blocks = vec![];
    let outcome = traverse_destroyed_tree(pool.store(), &entry, &mut |block| blocks.push(*block));
    (blocks, outcome)
}

#[test]
fn a_destroy_resumes_at_blocks_of_dnodes() {
    let pool = Scene::get().open(|_, _| {}, |_| {});
    let (all, outcome) = destroyed(&pool, START);
    assert_eq!(outcome, Ok(()));
    let is_of_dnodes = |block: &BlockPointer| {
        block.object_type() == ObjectType::DNODE && block.level() == Level(0)
    };
    let places = (0..all.len()).filter(|place| is_of_dnodes(&all[*place]));
    let places: Vec<usize> = places.collect();
    assert!(places.len() > 1, "{places:?}");
    // As OpenZFS stores it: everything below the block is free.
    for (block_id, place) in (0..).zip(places) {
        let resume = BlockBookmark {
            object_set: u64::MAX,
            block_id,
            ..START
        };
        let (rest, outcome) = destroyed(&pool, resume);
        assert_eq!(outcome, Ok(()));
        assert!(rest == all[place..], "block of dnodes {block_id}");
    }
}

#[test]
fn a_destroy_does_not_start_again_at_an_odd_bookmark() {
    let pool = Scene::get().open(|_, _| {}, |_| {});
    let from = |level, object_set| {
        let resume = BlockBookmark {
            object_set,
            level,
            ..START
        };
        destroyed(&pool, resume)
    };
    let (rest, outcome) = from(-1, u64::MAX);
    assert_eq!((rest.len(), outcome), (1, Ok(())), "the object set");
    for level in [-2, 64, i64::MIN, i64::MAX] {
        let (rest, outcome) = from(level, u64::MAX);
        assert_eq!(rest.len(), 0, "{level}");
        assert!(outcome.unwrap_err().contains("bookmark"));
    }
    let (all, _) = destroyed(&pool, START);
    assert!(from(0, 5).0.len() < all.len());
}

#[test]
fn a_destroy_frees_data_blocks_of_any_size() {
    let whole = freed(|_, _| {}).unwrap();
    assert!(whole > 20, "{whole}");
    let odd = freed(|s, c| {
        let (_, _, indirect) = s.pointer(&s.file("tank/plain", "large"));
        let block = s.image.block_of(&indirect).unwrap();
        // The logical size is in the lowest bits.
        let size = c.get((block, 6 * 8));
        c.put((block, 6 * 8), size - 1);
    });
    assert_eq!(odd, Ok(whole));
    let contradiction = freed(|s, c| {
        let (_, _, indirect) = s.pointer(&s.file("tank/plain", "large"));
        let block = s.image.block_of(&indirect).unwrap();
        let level = c.get((block, 6 * 8)) + (1 << 56);
        c.put((block, 6 * 8), level);
    });
    assert!(contradiction.unwrap_err().contains("level"));
}

/// The blocks of `tank/plain` if its file `large` has a tree in which each level has the one below it 1024
/// times, and the lowest has holes.
fn without_end(compression: CompressionKind) -> (Vec<BlockPointer>, String) {
    const BYTES: u64 = 128 << 10;
    let place = |level: u64| (50 << 20) + level * BYTES;
    let scene = Scene::get();
    let (block, at, lowest) = scene.pointer(&scene.file("tank/plain", "large"));
    assert_eq!(lowest.lsize_bytes(), BYTES);
    let mut pointer = lowest;
    let mut blocks = vec![];
    for level in 1..7 {
        let content = match level {
            1 => vec![0; BYTES as usize],
            _ => pointer.encode().repeat(1024),
        };
        let encoded = compress(compression, ZstdLevel::DEFAULT, &content, content.len());
        let mut stored = encoded.unwrap_or(content);
        stored.resize(stored.len().next_multiple_of(512), 0);
        let length = stored.len() as u64;
        let sum = checksum(ChecksumKind::Fletcher4, &stored, Endian::Little, None);
        pointer.words[12..].copy_from_slice(&sum.unwrap());
        blocks.push((place(level), stored));
        pointer.words[..6].copy_from_slice(&[length / 512, place(level) / 512, 0, 0, 0, 0]);
        let sizes = (BYTES / 512 - 1) | (length / 512 - 1) << 16;
        let kind = u64::from(lowest.object_type().0) << 48 | level << 56 | 1 << 63;
        let checksum = u64::from(ChecksumKind::Fletcher4.number()) << 40;
        pointer.words[6] = sizes | u64::from(compression.number()) << 32 | checksum | kind;
    }
    let damage = |_: &Scene, change: &mut Changed<'_>| {
        // The count of levels is the third byte of a dnode, before its pointers.
        change.put_bytes((block, at - 64 + 2), &[7]);
        change.put_pointer(block, at, &pointer);
    };
    let pool = scene.open(damage, |overlay| {
        for (place, bytes) in blocks {
            overlay.put(FRONT_BYTES + place, bytes);
        }
    });
    let (visited, outcome) = destroyed(&pool, START);
    (visited, outcome.unwrap_err())
}

#[test]
fn a_destroy_of_a_tree_without_end_ends() {
    let (_, error) = without_end(CompressionKind::Off);
    assert!(error.contains("more metadata than fits"), "{error}");
}

#[test]
fn a_destroy_frees_nothing_of_metadata_without_end() {
    let whole = freed(|_, _| {}).unwrap();
    // Blocks of 512 bytes: the devices have space for very many.
    let (visited, error) = without_end(CompressionKind::Gzip(9));
    assert!(error.contains("in a row"), "{error}");
    assert!(visited.len() < whole, "{}", visited.len());
}

#[test]
fn a_destroy_ignores_a_dnode_in_the_slot_of_object_0() {
    let whole = freed(|_, _| {});
    assert_eq!(freed(forge_object_0), whole);
}
