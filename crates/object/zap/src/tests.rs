use crate::testing::{FatWriter, Key, MemoryBlocks, micro};
use crate::*;
use millpond_env::sync::atomic::{AtomicUsize, Ordering};
use millpond_env::sync::{Arc, Mutex, Weak};
use millpond_object::{Block, BlockAddress, ObjectError};
use millpond_ondisk::BlockId;
use millpond_ondisk::zap::{ZapHashing, ZapPosition};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn numbered(count: u64) -> Vec<(Key, ZapValue)> {
    (0..count)
        .map(|index| {
            let name = format!("a name of some length {index}");
            (Key::Name(name.into_bytes()), ZapValue::from_u64(index))
        })
        .collect()
}

fn names(cursor: ZapCursor) -> Vec<Vec<u8>> {
    cursor.map(|entry| entry.unwrap().name).collect()
}

fn reason(error: ZapError) -> &'static str {
    match error {
        ZapError::Corrupt { error, .. } => error.reason,
        ZapError::Invalid { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

#[test]
fn a_microzap_finds_and_lists_in_hash_order() {
    let blocks = micro(0xad0c3, 0, &[(b"alpha", 1), (b"beta", 2), (b"gamma", 3)]);
    let zap = blocks.open().unwrap();
    assert_eq!(zap.form(), ZapForm::Micro);
    assert_eq!(zap.lookup_u64(b"beta").unwrap(), Some(2));
    assert_eq!(zap.lookup_u64(b"Beta").unwrap(), None);
    assert_eq!(zap.lookup_u64(&[b'x'; 60]).unwrap(), None);
    assert_eq!(zap.entry_count().unwrap(), 3);
    let hashing = ZapHashing::plain(0xad0c3);
    let listed = names(zap.iter());
    assert!(
        listed
            .windows(2)
            .all(|pair| hashing.name(&pair[0]) < hashing.name(&pair[1]))
    );
    assert_eq!(listed.len(), 3);
    assert_eq!(zap.check().unwrap().entries, 3);
}

#[test]
fn a_fat_zap_with_an_external_table_is_listed_whole() {
    for is_big in [false, true] {
        let entries = numbered(3000);
        let blocks = FatWriter::plain(10).write(&entries);
        assert!(blocks.header().table_blocks > 1, "wants an external table");
        let blocks = if is_big { blocks.swapped() } else { blocks };
        let zap = blocks.open().unwrap();
        for (key, value) in entries.iter().step_by(7) {
            let Key::Name(name) = key else { panic!() };
            assert_eq!(zap.lookup(name).unwrap().as_ref(), Some(value));
        }
        assert_eq!(zap.lookup(b"absent").unwrap(), None);
        let mut listed = names(zap.iter());
        assert_eq!(listed.len(), 3000);
        listed.sort();
        listed.dedup();
        assert_eq!(listed.len(), 3000);
        assert_eq!(zap.check().unwrap().entries, 3000);
        assert_eq!(zap.entry_count().unwrap(), 3000);
    }
}

#[test]
fn a_listing_continues_from_any_cookie() {
    let fat = FatWriter::plain(10).write(&numbered(200));
    let few: Vec<String> = (0..40).map(|index| format!("f{index}")).collect();
    let few: Vec<(&[u8], u64)> = few.iter().map(|name| (name.as_bytes(), 1)).collect();
    for blocks in [fat, micro(77, 0, &few)] {
        let zap = blocks.open().unwrap();
        let all = names(zap.iter());
        let mut cookie = 0;
        let mut stepped = Vec::new();
        loop {
            let mut cursor = zap.iter_from(cookie);
            let Some(entry) = cursor.next() else {
                assert_eq!(cursor.cookie(), COOKIE_END);
                break;
            };
            stepped.push(entry.unwrap().name);
            cookie = cursor.cookie();
        }
        assert_eq!(stepped, all);
        assert_eq!(names(zap.iter_from(COOKIE_END)).len(), 0);
    }
}

/// At each further read, counts the returned blocks that are still held.
struct Watched {
    blocks: MemoryBlocks,
    handed_out: Mutex<Vec<Weak<Block>>>,
    most_held: AtomicUsize,
}

impl ZapSource for Watched {
    fn read_block(&self, id: BlockId) -> Result<Arc<Block>, ObjectError> {
        let block = self.blocks.read_block(id)?;
        let mut handed_out = self.handed_out.lock();
        handed_out.retain(|block| block.strong_count() > 0);
        handed_out.push(Arc::downgrade(&block));
        self.most_held
            .fetch_max(handed_out.len(), Ordering::Relaxed);
        Ok(block)
    }
    fn address(&self, id: BlockId) -> BlockAddress {
        self.blocks.address(id)
    }
}

#[test]
fn a_listing_of_any_length_holds_the_header_and_one_block() {
    let watched = Arc::new(Watched {
        blocks: FatWriter::plain(10).write(&numbered(20_000)),
        handed_out: Mutex::default(),
        most_held: AtomicUsize::new(0),
    });
    let source: Arc<dyn ZapSource> = Arc::clone(&watched) as _;
    let zap = Zap::from_source(source).unwrap();
    assert_eq!(zap.iter().map(Result::unwrap).count(), 20_000);
    assert_eq!(watched.most_held.load(Ordering::Relaxed), 2);
}

#[test]
fn word_keys_are_found_hashed_or_prehashed() {
    for flags in [
        ZapFlags::HASH64 | ZapFlags::UINT64_KEY,
        ZapFlags::HASH64 | ZapFlags::UINT64_KEY | ZapFlags::PREHASHED_KEY,
    ] {
        let writer = FatWriter {
            flags,
            ..FatWriter::plain(12)
        };
        let entries: Vec<_> = (0..500u64)
            .map(|index| {
                let key = vec![index.wrapping_mul(0x9e37_79b9_7f4a_7c15), index];
                (Key::Words(key), ZapValue::from_u64s(&[index, 1]))
            })
            .collect();
        let zap = writer.write(&entries).open().unwrap();
        for (key, value) in &entries {
            let Key::Words(words) = key else { panic!() };
            assert_eq!(zap.lookup_words(words).unwrap().as_ref(), Some(value));
        }
        assert_eq!(zap.lookup_words(&[1, 2]).unwrap(), None);
        assert_eq!(
            reason(zap.lookup(b"name").unwrap_err()),
            "keys are words, not names"
        );
        let first = zap.iter().next().unwrap().unwrap();
        assert!(
            entries
                .iter()
                .any(|(key, _)| *key == Key::Words(first.words()))
        );
        assert_eq!(zap.check().unwrap().entries, 500);
    }
    let zap = micro(1, 0, &[(b"a", 1)]).open().unwrap();
    assert!(zap.lookup_words(&[1]).is_err());
}

#[test]
fn folding_zaps_match_by_each_of_the_three_ways() {
    let written: [(&[u8], u64); 4] = [
        (b"Foo", 1),
        (b"foo", 2),
        (b"FOO", 3),
        ("stra\u{df}e e\u{301}".as_bytes(), 4),
    ];
    let entries: Vec<_> = written
        .iter()
        .map(|(name, value)| (Key::Name(name.to_vec()), ZapValue::from_u64(*value)))
        .collect();
    let fat = FatWriter {
        normflags: 0x52,
        ..FatWriter::plain(12)
    };
    for blocks in [fat.write(&entries), micro(3, 0x52, &written)] {
        let zap = blocks.open().unwrap();
        let find = |name: &str, name_match| {
            zap.lookup_entry(name.as_bytes(), name_match)
                .unwrap()
                .map(|entry| (entry.name, entry.value.first().unwrap()))
        };
        // Exact: each name on its own. Folding: the oldest of the three.
        assert_eq!(find("foo", NameMatch::Exact), Some((b"foo".to_vec(), 2)));
        assert_eq!(find("fOO", NameMatch::Exact), None);
        assert_eq!(
            find("fOO", NameMatch::Normalised),
            Some((b"Foo".to_vec(), 1))
        );
        assert_eq!(find("FOO", NameMatch::NormalisedKeepingCase).unwrap().1, 3);
        assert_eq!(find("fOO", NameMatch::NormalisedKeepingCase), None);
        let composed = "stra\u{df}e \u{e9}";
        assert_eq!(find(composed, NameMatch::Exact), None);
        assert_eq!(
            find(composed, NameMatch::NormalisedKeepingCase).unwrap().1,
            4
        );
        assert_eq!(
            find("STRA\u{df}E \u{c9}", NameMatch::Normalised).unwrap().1,
            4
        );
        assert_eq!(
            find("STRA\u{df}E \u{c9}", NameMatch::NormalisedKeepingCase),
            None
        );
        assert_eq!(zap.lookup(b"\xff").unwrap(), None);
        assert_eq!(names(zap.iter()).len(), 4);
    }
}

#[test]
fn a_folding_that_does_not_exist_still_lets_a_fat_zap_be_listed() {
    let mut blocks = FatWriter::plain(12).write(&numbered(5));
    blocks.put_u64(0, 88, 0x30);
    let zap = blocks.open().unwrap();
    assert_eq!(
        reason(zap.lookup(b"x").unwrap_err()),
        "names are folded in an unknown way"
    );
    assert_eq!(names(zap.iter()).len(), 5);
}

#[test]
fn an_invalid_zap_is_an_error() {
    let zeros = MemoryBlocks {
        block_bytes: 512,
        ..MemoryBlocks::default()
    };
    assert_eq!(
        reason(zeros.open().unwrap_err()),
        "block 0 is no zap header"
    );
    let empty = MemoryBlocks::default();
    assert_eq!(reason(empty.open().unwrap_err()), "too short");
}

#[test]
fn a_table_that_points_outside_or_to_a_hole_is_an_error() {
    for (entry, expected) in [
        (0, "points outside the zap"),
        (u64::MAX, "points outside the zap"),
        (2, "points outside the zap"),
    ] {
        let mut blocks = FatWriter::plain(12).write(&numbered(5));
        for word in 0..256 {
            blocks.put_u64(0, 2048 + 8 * word, entry);
        }
        let zap = blocks.open().unwrap();
        assert_eq!(reason(zap.lookup(b"x").unwrap_err()), expected);
        let listed: Vec<_> = zap.iter().collect();
        assert_eq!(listed.len(), 1, "one run of bad entries is one error");
        assert!(listed[0].is_err());
        assert!(zap.check().is_err());
    }
    let mut hole = FatWriter::plain(12).write(&numbered(5));
    hole.blocks.remove(&1);
    let zap = hole.open().unwrap();
    assert_eq!(reason(zap.lookup(b"x").unwrap_err()), "not a zap leaf");
}

#[test]
fn leaves_that_claim_another_prefix_cannot_make_a_cycle() {
    let mut blocks = FatWriter::plain(10).write(&numbered(200));
    // All leaves claim to be the first one.
    let leaves: Vec<u64> = blocks
        .blocks
        .keys()
        .copied()
        .filter(|id| *id != 0)
        .collect();
    for id in leaves {
        blocks.put_u64(id, 16, 0);
    }
    let zap = blocks.open().unwrap();
    let listed: Vec<_> = zap.iter().collect();
    assert!(listed.len() < 400);
    let error = listed.into_iter().find_map(Result::err).unwrap();
    assert_eq!(reason(error), "prefix contradicts the pointer table");
}

#[test]
fn one_lost_leaf_is_one_error_and_the_others_are_listed() {
    let mut blocks = FatWriter::plain(10).write(&numbered(200));
    let total = blocks.header().leaf_count;
    assert!(total > 10);
    blocks.unreadable.push(4);
    let zap = blocks.open().unwrap();
    let listed: Vec<_> = zap.iter().collect();
    assert_eq!(listed.iter().filter(|entry| entry.is_err()).count(), 1);
    let good = listed.iter().filter(|entry| entry.is_ok()).count();
    assert!((150..200).contains(&good), "{good}");
}

#[test]
fn a_lost_table_block_is_one_error_and_the_rest_is_listed() {
    let mut blocks = FatWriter::plain(10).write(&numbered(3000));
    let header = blocks.header();
    blocks.unreadable.push(header.table_block + 1);
    let zap = blocks.open().unwrap();
    let listed: Vec<_> = zap.iter().collect();
    assert_eq!(listed.iter().filter(|entry| entry.is_err()).count(), 1);
    assert!(listed.len() > 1000);
}

#[test]
fn a_huge_table_of_holes_ends_after_a_bounded_number_of_errors() {
    let mut blocks = FatWriter::plain(9).write(&numbered(1));
    // 2^48 entries in 2^42 blocks, none of which exists.
    for (offset, value) in [
        (16, 2u64),
        (24, 1 << 42),
        (32, 48),
        (56, (1 << 42) + 2),
        (96, 1),
    ] {
        blocks.put_u64(0, offset, value);
    }
    let zap = blocks.open().unwrap();
    assert_eq!(zap.iter().filter(Result::is_err).count(), 1024);
    assert!(zap.check().is_err());
}

#[test]
fn a_wrong_entry_count_is_found_by_the_check() {
    let mut blocks = FatWriter::plain(12).write(&numbered(5));
    blocks.put_u64(0, 72, u64::MAX);
    let zap = blocks.open().unwrap();
    assert_eq!(names(zap.iter()).len(), 5);
    assert_eq!(reason(zap.check().unwrap_err()), "entries miscounted");
}

#[test]
fn a_hash_with_extra_low_bits_is_an_error() {
    let mut blocks = FatWriter::plain(12).write(&numbered(1));
    let at = 48 + 256;
    assert_eq!(blocks.blocks[&1][at], 252);
    blocks.blocks.get_mut(&1).unwrap()[at + 16] = 1;
    let listed: Vec<_> = blocks.open().unwrap().iter().collect();
    assert_eq!(listed.len(), 1);
    assert_eq!(
        reason(listed[0].clone().unwrap_err()),
        "hash has too many bits"
    );
}

#[test]
fn numbers_are_keys_in_lower_case_hexadecimal() {
    let zap = micro(5, 0, &[(b"3e8", 7), (b"0", 1)]).open().unwrap();
    assert_eq!(zap.lookup_number(1000).unwrap(), Some(7));
    assert_eq!(zap.lookup_number(0).unwrap(), Some(1));
    assert_eq!(zap.lookup_number(1).unwrap(), None);
}

#[test]
fn values_of_every_width_round_trip() {
    let entries = [
        ("u8", ZapValue::from_bytes(b"text\0")),
        ("u16", ZapValue::from_u16s(&[0x1234, 0x5678])),
        (
            "none",
            ZapValue {
                integer_bytes: 8,
                bytes: Vec::new(),
            },
        ),
        ("long", ZapValue::from_u64s(&[7; 515])),
    ];
    let written: Vec<_> = entries
        .iter()
        .map(|(name, value)| (Key::Name(name.as_bytes().to_vec()), value.clone()))
        .collect();
    let zap = FatWriter::plain(14).write(&written).open().unwrap();
    for (name, value) in &entries {
        assert_eq!(zap.lookup(name.as_bytes()).unwrap().as_ref(), Some(value));
    }
    assert_eq!(zap.lookup_u64(b"u16").unwrap(), Some(0x1234));
    assert_eq!(
        reason(zap.lookup_u64(b"none").unwrap_err()),
        "value has no integers"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn zap_entries_are_found_and_listed(
        model in proptest::collection::btree_map(
            proptest::collection::vec(1u8..=255, 1..70),
            proptest::collection::vec(any::<u64>(), 0..6),
            0..300,
        ),
        shift in 10u32..15,
        is_big in any::<bool>(),
    ) {
        let entries: Vec<_> = model
            .iter()
            .map(|(name, value)| (Key::Name(name.clone()), ZapValue::from_u64s(value)))
            .collect();
        let blocks = FatWriter::plain(shift).write(&entries);
        let blocks = if is_big { blocks.swapped() } else { blocks };
        let zap = blocks.open().unwrap();
        let mut listed = BTreeMap::new();
        for entry in zap.iter() {
            let entry = entry.unwrap();
            let found = zap.lookup(&entry.name).unwrap();
            prop_assert_eq!(found.as_ref(), Some(&entry.value));
            let integers = entry.value.integers().collect::<Vec<_>>();
            prop_assert!(listed.insert(entry.name, integers).is_none());
        }
        prop_assert_eq!(&listed, &model);
        prop_assert_eq!(zap.check().unwrap().entries, model.len() as u64);
    }

    #[test]
    fn a_damaged_zap_never_panics_and_every_walk_ends(
        flips in proptest::collection::vec((0u64..12, 0usize..1024, any::<u8>()), 1..60),
        cookie in any::<u64>(),
    ) {
        let mut blocks = FatWriter::plain(10).write(&numbered(60));
        for (id, at, byte) in flips {
            if let Some(block) = blocks.blocks.get_mut(&id) {
                block[at] = byte;
            }
        }
        if let Ok(zap) = blocks.open() {
            let _ = zap.lookup(b"a name of some length 7");
            let _ = zap.check();
            prop_assert!(zap.iter().count() < 20_000);
            prop_assert!(zap.iter_from(cookie).count() < 20_000);
            // Resuming by cookies also ends.
            let mut cookie = 0;
            let mut steps = 0;
            while cookie != COOKIE_END {
                let mut cursor = zap.iter_from(cookie);
                cursor.next();
                prop_assert!(cursor.cookie() > cookie || ZapPosition::from_cookie(cursor.cookie(), &zap.hashing) != ZapPosition::from_cookie(cookie, &zap.hashing));
                cookie = cursor.cookie();
                steps += 1;
                prop_assert!(steps < 20_000);
            }
        }
    }
}
