//! Changes to ZAPs, compared with a map.

mod collisions;
mod fill;
mod model;

use super::testing::MemoryObject;
use super::*;
use crate::ZapForm;
use crate::testing::{FatWriter, Key, MemoryBlocks, micro};
use millpond_env::mark;
use millpond_ondisk::Endian;
use std::collections::BTreeMap;

type Model = BTreeMap<Vec<u8>, ZapValue>;

/// Reads everything with the reader, checks consistency, and compares with the model.
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
fn a_microzap_grows_in_512_bytes_and_upgrades_at_entry_2048() {
    let _mark = mark::expect("microzap-becomes-fat");
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
    // 2048 entries of three chunks need at least 16 leaves.
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
fn an_entry_too_large_for_a_microzap_upgrades_it() {
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

#[test]
fn many_entries_are_added_and_removed() {
    let _mark = mark::expect("zap-table-leaves-header");
    let _mark = mark::expect("zap-leaves-merged");
    let _mark = mark::expect("zap-leaf-split");
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
fn counters_are_removed_at_zero_and_never_negative() {
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
fn word_keys_are_added_and_removed() {
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

/// A partly grown table: another writer continues the growth, and readers are not affected.
#[test]
fn a_growth_left_half_done_is_carried_on() {
    let _mark = mark::expect("zap-table-doubled");
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
fn a_listing_under_changes_returns_stable_entries_once() {
    let zap = MemoryObject::created(512, &NewZap::plain(0x51));
    for index in 0..3000 {
        zap.insert_u64(&name(index), index).unwrap();
    }
    let mut seen = BTreeMap::new();
    let mut next = 10_000u64;
    for entry in zap.iter_from(0).unwrap() {
        let entry = entry.unwrap();
        *seen.entry(entry.value.first().unwrap()).or_insert(0) += 1;
        // At every step, several entries are added, and half of the returned ones are removed.
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
