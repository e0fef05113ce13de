use super::testing::MemoryObject;
use super::*;
use crate::ZapForm;
use crate::testing::{FatWriter, Key, MemoryBlocks, micro};
use millpond_ondisk::Endian;
use proptest::prelude::*;
use std::collections::BTreeMap;

type Model = BTreeMap<Vec<u8>, ZapValue>;

/// Reads everything with the reader, proves it consistent, and compares.
fn same(object: &MemoryObject, model: &Model) {
    let zap = object.reader();
    let summary = zap.check().unwrap();
    assert_eq!(summary.entries, model.len() as u64);
    assert_eq!(zap.entry_count().unwrap(), model.len() as u64);
    let listed: Model = zap
        .iter()
        .map(|entry| entry.map(|entry| (entry.name, entry.value)).unwrap())
        .collect();
    assert!(&listed == model, "listing differs");
    for (name, value) in model {
        assert_eq!(zap.lookup(name).unwrap().as_ref(), Some(value));
    }
    if let Some(header) = zap.header() {
        let blocks = object.blocks();
        let last = blocks.blocks.keys().max().copied().unwrap_or(0);
        assert!(last < header.free_block, "a block lies behind the free one");
        let tables = header.table_blocks;
        let growing = blocks.blocks.len() as u64 - 1 - header.leaf_count - tables;
        assert!(growing <= tables * 2, "{growing} blocks belong to nobody");
        if header.next_table_block == 0 {
            assert_eq!(growing, 0, "blocks belong to nobody");
        }
    }
}

fn name(index: u64) -> Vec<u8> {
    format!("an entry with a longer name, number {index}").into_bytes()
}

#[test]
fn a_new_zap_is_empty_and_takes_entries() {
    let zap = MemoryObject::created(512, &NewZap::plain(0xad0c3));
    zap.insert_u64(b"alpha", 0x1122_3344_5566_7788).unwrap();
    zap.insert_u64(b"beta", 2).unwrap();
    let expected = micro(
        0xad0c3,
        0,
        &[(b"alpha", 0x1122_3344_5566_7788), (b"beta", 2)],
    );
    assert_eq!(zap.store().blocks().blocks, expected.blocks);
    assert!(matches!(
        zap.insert_u64(b"beta", 3),
        Err(ZapError::Exists { .. })
    ));
    zap.update_u64(b"beta", 3).unwrap();
    assert_eq!(zap.lookup_u64(b"beta").unwrap(), Some(3));
    assert!(zap.remove(b"alpha").unwrap());
    assert!(!zap.remove(b"alpha").unwrap());
    assert_eq!(zap.entry_count().unwrap(), 1);
    assert_eq!(zap.store().blocks().blocks[&0][64..128], [0; 64]);
}

#[test]
fn a_microzap_grows_by_512_bytes_and_becomes_fat_with_the_2048th_entry() {
    let zap = MemoryObject::created(512, &NewZap::plain(77));
    let mut model = Model::new();
    for index in 0..2047u64 {
        let name = format!("f{index:07}").into_bytes();
        zap.insert_u64(&name, index).unwrap();
        model.insert(name, ZapValue::from_u64(index));
        let expected = (index as usize + 1).div_ceil(8) * 512;
        let expected = if index % 8 == 7 {
            (index as usize + 2).div_ceil(8) * 512
        } else {
            expected
        };
        assert!(zap.store().blocks().block_bytes <= expected);
    }
    assert_eq!(zap.store().blocks().block_bytes, 128 << 10);
    assert_eq!(zap.view().unwrap().form(), ZapForm::Micro);
    same(zap.store(), &model);
    zap.insert_u64(b"one more", 1).unwrap();
    model.insert(b"one more".to_vec(), ZapValue::from_u64(1));
    assert_eq!(zap.view().unwrap().form(), ZapForm::Fat);
    assert_eq!(zap.store().blocks().block_bytes, 16 << 10);
    // 2048 entries of three chunks want 16 leaves at least.
    let header = zap.store().blocks().header();
    assert_eq!(header.salt, 77);
    assert!((10..=32).contains(&header.leaf_count), "{header:?}");
    same(zap.store(), &model);
}

#[test]
fn a_larger_limit_keeps_a_microzap_small_for_longer() {
    let zap = MemoryObject::created(512, &NewZap::plain(77)).with_micro_bytes_max(192 << 10);
    for index in 0..2500u64 {
        zap.insert_u64(format!("f{index:07}").as_bytes(), index)
            .unwrap();
    }
    assert_eq!(zap.view().unwrap().form(), ZapForm::Micro);
    assert!(zap.store().blocks().block_bytes > 128 << 10);
}

#[test]
fn what_does_not_fit_a_microzap_makes_it_fat_and_keeps_the_rest() {
    let wide = ZapValue::from_u16s(&[1, 2, 3]);
    let long = [b'l'; 50];
    for (name, value) in [
        (&b"list"[..], wide.clone()),
        (&long[..], ZapValue::from_u64(4)),
        (&b""[..], ZapValue::from_u64(4)),
        (&b"narrow"[..], ZapValue::from_bytes(b"12345678")),
        (&b"none"[..], ZapValue::from_u64s(&[])),
        (&b"old"[..], wide),
    ] {
        let zap = MemoryObject::created(512, &NewZap::plain(5));
        zap.insert_u64(b"old", 9).unwrap();
        zap.insert_u64(b"other", 10).unwrap();
        zap.update(name, &value).unwrap();
        assert_eq!(zap.view().unwrap().form(), ZapForm::Fat);
        let mut model = Model::from([
            (b"old".to_vec(), ZapValue::from_u64(9)),
            (b"other".to_vec(), ZapValue::from_u64(10)),
        ]);
        model.insert(name.to_vec(), value);
        same(zap.store(), &model);
    }
}

/// Names whose hash is equal whatever the salt: CRC is linear, so one difference of bits that gives
/// nothing in the upper 28 bits can be put on any name.
fn colliding(count: usize, bits: u32) -> Vec<Vec<u8>> {
    // Differences over eight bytes: find those whose effect vanishes in the upper `bits`, by
    // elimination over GF(2).
    let length = 8usize;
    let base = ZapHashing::plain(0);
    let crc = |name: &[u8]| millpond_ondisk::zap::zap_crc64(0, name);
    let zero = vec![b'@'; length];
    let at_zero = crc(&zero);
    let mut basis: Vec<(u64, u64)> = Vec::new();
    let mut kernel = Vec::new();
    for byte in 0..length {
        for bit in 0..6 {
            let mut name = zero.clone();
            name[byte] ^= 1 << bit;
            let mut effect = (crc(&name) ^ at_zero) >> (64 - bits);
            let mut mask = 1u64 << (byte * 6 + bit);
            for (other, other_mask) in &basis {
                if effect ^ other < effect {
                    effect ^= other;
                    mask ^= other_mask;
                }
            }
            if effect == 0 {
                kernel.push(mask);
            } else {
                basis.push((effect, mask));
                basis.sort_unstable_by(|one, other| other.cmp(one));
            }
        }
    }
    assert!(1 << kernel.len() >= count, "{} free bits", kernel.len());
    (0..count)
        .map(|choice| {
            let mask = kernel
                .iter()
                .enumerate()
                .filter(|(at, _)| choice >> at & 1 == 1)
                .fold(0, |mask, (_, one)| mask ^ one);
            let name: Vec<u8> = (0..length)
                .map(|byte| b'@' ^ ((mask >> (byte * 6)) & 63) as u8)
                .collect();
            assert_eq!((base.name(&name) ^ base.name(&zero)) >> (64 - bits), 0);
            name
        })
        .collect()
}

#[test]
fn names_of_one_hash_get_differentiators_in_order_and_fill_gaps() {
    let names = colliding(130, 28);
    let zap = MemoryObject::created(512, &NewZap::plain(0x1357));
    let mut model = Model::new();
    for (index, name) in names.iter().enumerate() {
        zap.insert_u64(name, index as u64).unwrap();
        model.insert(name.clone(), ZapValue::from_u64(index as u64));
        // (count × 5) ≥ 638 from the 128th on.
        let form = if index < 127 {
            ZapForm::Micro
        } else {
            ZapForm::Fat
        };
        assert_eq!(zap.view().unwrap().form(), form, "{index}");
    }
    same(zap.store(), &model);
    let order: Vec<Vec<u8>> = zap
        .view()
        .unwrap()
        .iter()
        .map(|entry| entry.unwrap().name)
        .collect();
    assert_eq!(order, names);
    for gap in [3usize, 50] {
        assert!(zap.remove(&names[gap]).unwrap());
    }
    zap.insert_u64(b"something else", 1).unwrap();
    zap.remove(b"something else").unwrap();
    for gap in [50usize, 3] {
        zap.insert_u64(&names[gap], 1).unwrap();
    }
    let order: Vec<Vec<u8>> = zap
        .view()
        .unwrap()
        .iter()
        .map(|entry| entry.unwrap().name)
        .collect();
    assert_eq!((&order[3], &order[50]), (&names[50], &names[3]));
}

#[test]
fn a_leaf_of_one_hash_that_is_full_refuses_the_next_and_stays_whole() {
    let names = colliding(300, 28);
    let zap = MemoryObject::created(512, &NewZap::plain(0x1357));
    zap.update(b"fat", &ZapValue::from_bytes(b"x")).unwrap();
    let mut model = Model::from([(b"fat".to_vec(), ZapValue::from_bytes(b"x"))]);
    let mut refused = 0;
    for name in &names {
        match zap.insert_u64(name, 1) {
            Ok(()) => {
                model.insert(name.clone(), ZapValue::from_u64(1));
            }
            Err(ZapError::Full { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    // 638 chunks, three each.
    assert_eq!(refused, 300 - 212);
    same(zap.store(), &model);
    assert!(zap.store().blocks().header().table_shift < 20);
    // Others still fit.
    zap.insert_u64(b"another", 1).unwrap();
}

#[test]
fn names_that_agree_in_many_bits_do_not_make_a_table_of_any_size() {
    let names = colliding(3000, 24);
    let zap = MemoryObject::created(512, &NewZap::plain(0x1357));
    // A microzap that cannot become fat stays what it is.
    let mut model = Model::new();
    let refused = names
        .iter()
        .filter(|name| zap.insert_u64(name, 1).is_err())
        .count();
    assert!(refused > 900, "{refused}");
    assert_eq!(zap.view().unwrap().form(), ZapForm::Micro);
    zap.view().unwrap().check().unwrap();

    let zap = MemoryObject::created(512, &NewZap::plain(0x1357));
    zap.update(b"", &ZapValue::from_u64(1)).unwrap();
    model.insert(Vec::new(), ZapValue::from_u64(1));
    for name in &names {
        match zap.insert_u64(name, 1) {
            Ok(()) => {
                model.insert(name.clone(), ZapValue::from_u64(1));
            }
            Err(ZapError::Full { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(model.len() < 3000);
    same(zap.store(), &model);
    let header = zap.store().blocks().header();
    assert!(header.table_shift <= 20, "{header:?}");
}

#[test]
fn two_hundred_thousand_entries_come_and_go() {
    let zap = MemoryObject::created(512, &NewZap::plain(0x9e37_79b9));
    let count = 200_000u64;
    let mut touched_most = 0;
    for index in 0..count {
        let before = zap.store().with(|state| state.writes + state.edits);
        zap.insert_u64(format!("file-{index:020}").as_bytes(), index)
            .unwrap();
        let touched = zap.store().with(|state| state.writes + state.edits) - before;
        if index > 2048 {
            touched_most = touched_most.max(touched);
        }
    }
    assert!(touched_most <= 12, "{touched_most} blocks for one entry");
    let zap_now = zap.view().unwrap();
    let summary = zap_now.check().unwrap();
    assert_eq!(summary.entries, count);
    let header = *zap_now.header().unwrap();
    assert!(header.table_blocks >= 1, "{header:?}");
    assert!((1000..3000).contains(&header.leaf_count), "{header:?}");
    drop(zap_now);
    for index in 0..count {
        assert!(zap.remove(format!("file-{index:020}").as_bytes()).unwrap());
    }
    let header = zap.store().blocks().header();
    assert_eq!((header.leaf_count, header.entry_count), (1, 0));
    zap.view().unwrap().check().unwrap();
    zap.insert_u64(b"again", 1).unwrap();
    assert_eq!(zap.lookup_u64(b"again").unwrap(), Some(1));
}

#[test]
fn names_that_fold_alike_stand_side_by_side() {
    let folding = Normalisation {
        folds_case: true,
        form: None,
    };
    let new = NewZap {
        normalisation: folding,
        ..NewZap::plain(3)
    };
    let zap = MemoryObject::created(512, &new);
    for form in [ZapForm::Micro, ZapForm::Fat] {
        assert_eq!(zap.view().unwrap().form(), form);
        for (index, name) in (0..).zip([b"Foo", b"foo", b"FOO"]) {
            zap.insert_u64(name, index).unwrap();
            assert!(matches!(
                zap.insert_u64(name, 9),
                Err(ZapError::Exists { .. })
            ));
        }
        let entry = |name: &[u8], how| zap.lookup_entry(name, how).unwrap().map(|entry| entry.name);
        assert_eq!(entry(b"fOO", NameMatch::Normalised).unwrap(), b"Foo");
        assert_eq!(entry(b"fOO", NameMatch::Exact), None);
        assert_eq!(entry(b"FOO", NameMatch::Exact).unwrap(), b"FOO");
        let gone = zap.remove_entry(b"fOO", NameMatch::Normalised).unwrap();
        assert_eq!(gone.unwrap().name, b"Foo");
        assert_eq!(entry(b"fOO", NameMatch::Normalised).unwrap(), b"foo");
        assert!(!zap.remove(b"fOO").unwrap());
        zap.view().unwrap().check().unwrap();
        for name in [b"foo", b"FOO"] {
            assert!(zap.remove(name).unwrap());
        }
        zap.update(b"wide", &ZapValue::from_bytes(b"x")).unwrap();
    }
    let forms = NewZap {
        normalisation: Normalisation::from_normflags(0x50).unwrap(),
        ..NewZap::plain(3)
    };
    let zap = MemoryObject::created(512, &forms);
    zap.insert_u64("e\u{301}".as_bytes(), 1).unwrap();
    assert!(
        zap.lookup_entry("é".as_bytes(), NameMatch::Normalised)
            .unwrap()
            .is_some()
    );
    assert!(matches!(
        zap.insert_u64(b"\xff", 1),
        Err(ZapError::Refused { .. })
    ));
    assert!(!zap.remove(b"\xff").unwrap());
}

#[test]
fn counting_removes_at_zero_and_refuses_to_go_below() {
    let zap = MemoryObject::created(512, &NewZap::plain(3));
    assert_eq!(zap.increment_number(0xabc, 5, AtZero::Remove).unwrap(), 5);
    assert_eq!(zap.increment(b"abc", -2, AtZero::Remove).unwrap(), 3);
    assert!(matches!(
        zap.increment(b"abc", -4, AtZero::Remove),
        Err(ZapError::Refused { .. })
    ));
    assert_eq!(zap.increment(b"abc", -3, AtZero::Remove).unwrap(), 0);
    assert_eq!(zap.lookup(b"abc").unwrap(), None);
    assert_eq!(zap.increment(b"abc", 0, AtZero::Remove).unwrap(), 0);
    assert_eq!(zap.lookup(b"abc").unwrap(), None);
    zap.increment(b"abc", 4, AtZero::Keep).unwrap();
    zap.increment(b"abc", -4, AtZero::Keep).unwrap();
    assert_eq!(zap.lookup_u64(b"abc").unwrap(), Some(0));
    zap.insert_number(10, 10).unwrap();
    assert_eq!(zap.lookup_u64(b"a").unwrap(), Some(10));
    assert!(zap.remove_number(10).unwrap());
}

#[test]
fn keys_of_words_come_and_go() {
    for flags in [3u64, 7] {
        let new = NewZap {
            flags: ZapFlags::from_bits(flags).unwrap(),
            ..NewZap::plain(0x1ecbdd)
        };
        let zap = MemoryObject::created(4096, &new);
        let key = |index: u64| [index.wrapping_mul(0x9e37_79b9_7f4a_7c15), index, 3];
        let value = |index: u64| ZapValue::from_bytes(&vec![index as u8; index as usize % 60 + 1]);
        for index in 0..2000 {
            zap.insert_words(&key(index), &value(index)).unwrap();
        }
        zap.view().unwrap().check().unwrap();
        for index in (0..2000).step_by(3) {
            zap.update_words(&key(index), &value(index + 50)).unwrap();
        }
        for index in 0..2000 {
            let expected = if index % 3 == 0 { index + 50 } else { index };
            assert_eq!(
                zap.lookup_words(&key(index)).unwrap(),
                Some(value(expected))
            );
        }
        zap.view().unwrap().check().unwrap();
        assert!(zap.insert_u64(b"name", 1).is_err());
        assert!(zap.remove(b"name").is_err());
        for index in 0..2000 {
            assert!(zap.remove_words(&key(index)).unwrap());
        }
        assert!(!zap.remove_words(&key(1)).unwrap());
        assert_eq!(zap.store().blocks().header().leaf_count, 1);
        zap.view().unwrap().check().unwrap();
    }
    let names = MemoryObject::created(512, &NewZap::plain(3));
    assert!(names.insert_words(&[1], &ZapValue::from_u64(1)).is_err());
}

#[test]
fn names_and_values_have_their_limits() {
    let zap = MemoryObject::created(512, &NewZap::plain(3));
    let long = vec![b'n'; 256];
    assert!(matches!(
        zap.insert_u64(&long, 1),
        Err(ZapError::NameTooLong { bytes_max: 255, .. })
    ));
    zap.insert_u64(&long[..255], 1).unwrap();
    let zap = zap.with_long_names();
    let longest = vec![b'n'; 1023];
    zap.insert_u64(&longest, 1).unwrap();
    assert_eq!(zap.lookup_u64(&longest).unwrap(), Some(1));
    assert!(matches!(
        zap.insert_u64(&vec![b'n'; 1024], 1),
        Err(ZapError::NameTooLong {
            bytes_max: 1023,
            ..
        })
    ));
    for value in [
        ZapValue::from_bytes(&[0; 8193]),
        ZapValue {
            integer_bytes: 3,
            bytes: vec![0; 3],
        },
        ZapValue {
            integer_bytes: 4,
            bytes: vec![0; 3],
        },
    ] {
        assert!(matches!(
            zap.insert(b"v", &value),
            Err(ZapError::Refused { .. })
        ));
    }
    zap.insert(b"v", &ZapValue::from_bytes(&[7; 8192])).unwrap();
    assert!(matches!(
        zap.insert_u64(b"a\0b", 1),
        Err(ZapError::Refused { .. })
    ));
    zap.view().unwrap().check().unwrap();
}

/// What a growing table looks like to others: a writer goes on, a reader is not disturbed.
#[test]
fn a_growth_left_half_done_is_carried_on() {
    let zap = MemoryObject::created(
        1024,
        &NewZap {
            flags: ZapFlags::HASH64,
            ..NewZap::plain(5)
        },
    );
    let mut model = Model::new();
    let mut seen_half_done = 0;
    for index in 0..3000 {
        zap.insert_u64(&name(index), index).unwrap();
        model.insert(name(index), ZapValue::from_u64(index));
        let header = zap.store().blocks().header();
        if header.next_table_block != 0 {
            seen_half_done += 1;
            if seen_half_done % 3 == 0 {
                assert!(
                    zap.remove(&name(index / 2)).unwrap()
                        == model.remove(&name(index / 2)).is_some()
                );
                same(zap.store(), &model);
            }
        }
    }
    assert!(seen_half_done > 5, "{seen_half_done}");
    same(zap.store(), &model);
    for index in (0..3000).rev() {
        let was = model.remove(&name(index)).is_some();
        assert_eq!(zap.remove(&name(index)).unwrap(), was);
        if index % 500 == 0 {
            same(zap.store(), &model);
        }
    }
    assert_eq!(zap.store().blocks().header().leaf_count, 1);
}

#[test]
fn zaps_of_big_endian_writers_are_continued() {
    let entries: Vec<_> = (0..400)
        .map(|index| (Key::Name(name(index)), ZapValue::from_u64(index)))
        .collect();
    let fat = FatWriter::plain(10).write(&entries).swapped();
    let mut few = micro(7, 0, &[(b"one", 1), (b"two", 2)]);
    let block = few.blocks.get_mut(&0).unwrap();
    for at in [0, 8, 16, 64, 128] {
        block[at..at + 8].reverse();
    }
    few.endian = Endian::Big;
    few.foreign.insert(0);
    let fat_model: Model = (0..400)
        .map(|index| (name(index), ZapValue::from_u64(index)))
        .collect();
    let micro_model = Model::from([
        (b"one".to_vec(), ZapValue::from_u64(1)),
        (b"two".to_vec(), ZapValue::from_u64(2)),
    ]);
    for (blocks, mut model) in [(fat, fat_model), (few, micro_model)] {
        let object = MemoryObject::of(blocks);
        let zap = object.zap();
        for index in 300..900 {
            zap.update_u64(&name(index), index * 2).unwrap();
            model.insert(name(index), ZapValue::from_u64(index * 2));
        }
        same(&object, &model);
        for key in model.keys().step_by(2) {
            assert!(zap.remove(key).unwrap());
        }
        let kept: Model = model.into_iter().skip(1).step_by(2).collect();
        same(&object, &kept);
    }
}

#[test]
fn a_listing_under_changes_gives_what_was_there_all_along_exactly_once() {
    let zap = MemoryObject::created(512, &NewZap::plain(0x51));
    for index in 0..3000 {
        zap.insert_u64(&name(index), index).unwrap();
    }
    let mut seen = BTreeMap::new();
    let mut next = 10_000u64;
    for entry in zap.iter_from(0).unwrap() {
        let entry = entry.unwrap();
        *seen.entry(entry.value.first().unwrap()).or_insert(0) += 1;
        // Many come, what came goes, at every step.
        for _ in 0..if next < 30_000 { 9 } else { 0 } {
            zap.insert_u64(&name(next), next).unwrap();
            next += 1;
        }
        if entry.value.first().unwrap() % 2 == 0 {
            zap.remove(&entry.name).unwrap();
        }
    }
    assert!(seen.values().all(|times| *times == 1));
    for index in 0..3000 {
        assert!(seen.contains_key(&index), "{index}");
    }
}

#[test]
fn a_change_that_fails_changes_nothing() {
    let entries: Vec<_> = (0..3000)
        .map(|index| (Key::Name(name(index)), ZapValue::from_u64(index)))
        .collect();
    let mut blocks = FatWriter::plain(10).write(&entries);
    let header = blocks.header();
    assert!(header.table_blocks > 1);
    blocks.unreadable = (header.table_block..header.table_block + header.table_blocks)
        .step_by(2)
        .collect();
    let object = MemoryObject::of(blocks);
    let zap = object.zap();
    let mut failed = 0;
    for index in 3000..4000 {
        let before = object.blocks();
        if zap.insert_u64(&name(index), 1).is_err() {
            failed += 1;
            assert_eq!(object.blocks().blocks, before.blocks);
        }
    }
    assert!(failed > 100, "{failed}");
}

#[derive(Debug, Clone)]
enum Step {
    Put(u16, ZapValue),
    Remove(u16),
    Count(u16, i8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let value = prop_oneof![
        6 => any::<u64>().prop_map(ZapValue::from_u64),
        1 => (prop_oneof![Just(1u8), Just(2), Just(4), Just(8)], 0usize..40, any::<u8>())
            .prop_map(|(width, count, fill)| ZapValue {
                integer_bytes: width,
                bytes: vec![fill; usize::from(width) * count],
            }),
    ];
    let step = prop_oneof![
        5 => (0u16..300, value).prop_map(|(key, value)| Step::Put(key, value)),
        3 => (0u16..300).prop_map(Step::Remove),
        1 => (0u16..300, any::<i8>()).prop_map(|(key, delta)| Step::Count(key, delta)),
    ];
    proptest::collection::vec(step, 1..400)
}

fn key_name(key: u16) -> Vec<u8> {
    // Some share their hash, some are long.
    match key % 8 {
        0 => vec![b'k'; usize::from(key) % 200 + 1],
        _ => format!("key {key}").into_bytes(),
    }
}

fn run(zap: &ZapMut<MemoryObject>, steps: &[Step]) {
    let mut model = Model::new();
    for step in steps {
        match step {
            Step::Put(key, value) => {
                let name = key_name(*key);
                let had = model.insert(name.clone(), value.clone()).is_some();
                let inserted = zap.insert(&name, value);
                assert_eq!(inserted.is_err(), had);
                if had {
                    zap.update(&name, value).unwrap();
                }
            }
            Step::Remove(key) => {
                let had = model.remove(&key_name(*key)).is_some();
                assert_eq!(zap.remove(&key_name(*key)).unwrap(), had);
            }
            Step::Count(key, delta) => {
                let name = key_name(*key);
                let old = model.get(&name).map(|value| value.first());
                if let Some(None) = old {
                    continue;
                }
                let sum = old
                    .flatten()
                    .unwrap_or(0)
                    .checked_add_signed(i64::from(*delta));
                let counted = zap.increment(&name, i64::from(*delta), AtZero::Remove);
                let Some(sum) = sum else {
                    assert!(counted.is_err());
                    continue;
                };
                assert_eq!(counted.unwrap(), sum);
                if sum == 0 {
                    model.remove(&name);
                } else if old != Some(Some(sum)) {
                    model.insert(name, ZapValue::from_u64(sum));
                }
            }
        }
        let reader = zap.view().unwrap();
        assert_eq!(reader.check().unwrap().entries, model.len() as u64);
    }
    same(zap.store(), &model);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_changes_leave_what_a_map_would_hold(steps in steps(), salt in any::<u64>(), shift in 10u32..13) {
        run(&MemoryObject::created(512, &NewZap::plain(salt)), &steps);
        run(&MemoryObject::created(512, &NewZap::plain(salt)).with_micro_bytes_max(1024), &steps);
        let fat = NewZap { flags: ZapFlags::HASH64, ..NewZap::plain(salt) };
        run(&MemoryObject::created(1 << shift, &fat), &steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn changing_a_zap_of_flipped_bytes_never_panics(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..1024, any::<u8>()), 1..12),
        near_heads in any::<bool>(),
        steps in steps(),
        is_micro in any::<bool>(),
    ) {
        let blocks = if is_micro {
            micro(7, 0, &[(b"one", 1), (b"two", 2)])
        } else {
            let entries: Vec<_> = (0..200)
                .map(|index| (Key::Name(key_name(index)), ZapValue::from_u64(index.into())))
                .collect();
            FatWriter::plain(10).write(&dedup(entries))
        };
        let mut blocks: MemoryBlocks = blocks;
        let ids: Vec<u64> = blocks.blocks.keys().copied().collect();
        for (id, at, byte) in flips {
            let block = blocks.blocks.get_mut(id.get(&ids)).unwrap();
            let at = if near_heads { at % 128 } else { at % block.len() };
            block[at] = byte;
        }
        let object = MemoryObject::of(blocks);
        let zap = object.zap();
        for step in steps.iter().take(60) {
            let _ = match step {
                Step::Put(key, value) => zap.update(&key_name(*key), value),
                Step::Remove(key) => zap.remove(&key_name(*key)).map(|_| ()),
                Step::Count(key, delta) => {
                    zap.increment(&key_name(*key), i64::from(*delta), AtZero::Remove).map(|_| ())
                }
            };
        }
    }
}

fn dedup(entries: Vec<(Key, ZapValue)>) -> Vec<(Key, ZapValue)> {
    let map: BTreeMap<_, _> = entries.into_iter().collect();
    map.into_iter().collect()
}
