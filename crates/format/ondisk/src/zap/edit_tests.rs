//! Changes of leaves: each step is compared with a model, and a refused change must not modify any byte.

use super::leaf::LeafShape;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn leaf(prefix: u64, prefix_bits: u32) -> Vec<u8> {
    let mut bytes = vec![0xaa; 4096];
    ZapLeafMut::format(&mut bytes, prefix, prefix_bits, true).unwrap();
    bytes
}

/// The chunk of the entry with this name.
fn chunk_of(bytes: &[u8], name: &[u8]) -> u16 {
    let leaf = ZapLeaf::decode(bytes, Endian::Little).unwrap();
    let mut entries = leaf.entries().map(Result::unwrap);
    let found = entries.find(|entry| leaf.name(entry).unwrap() == name);
    found.unwrap().chunk
}

fn hash_of(name: &[u8]) -> u64 {
    // Few hash values, so that chains are long and some hashes are equal.
    ZapHashing::plain(5).name(name) & (0b1011 << 57)
}

fn insert(bytes: &mut [u8], name: &[u8], cd: u32, value: &ZapValue) -> Result<(), LeafInsertError> {
    let mut leaf = ZapLeafMut::open(bytes)?;
    leaf.insert(hash_of(name), cd, ZapKey::Name(name), value)
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u8, usize),
    Replace(u8, usize),
    Remove(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0u8..24;
    prop_oneof![
        (name.clone(), 0usize..150).prop_map(|(name, length)| Step::Insert(name, length)),
        (name.clone(), 0usize..150).prop_map(|(name, length)| Step::Replace(name, length)),
        name.prop_map(Step::Remove),
    ]
}

/// Compares the header counts, the free list and the entries with `model`.
fn agrees(bytes: &[u8], model: &BTreeMap<Vec<u8>, (u32, ZapValue)>) {
    let leaf = ZapLeaf::decode(bytes, Endian::Little).unwrap();
    let used: u16 = model
        .iter()
        .map(|(name, (_, value))| leaf_entry_chunks(ZapKey::Name(name), value).unwrap())
        .sum();
    assert_eq!(leaf.free_chunks, leaf.chunk_count() - used);
    assert_eq!(leaf.count_free(), Ok(leaf.free_chunks));
    assert_eq!(usize::from(leaf.entry_count), model.len());
    let mut read = BTreeMap::new();
    for entry in leaf.entries() {
        let entry = entry.unwrap();
        let name = leaf.name(&entry).unwrap();
        assert_eq!(entry.hash, hash_of(&name));
        let chain: Vec<_> = leaf.chain(entry.hash).map(Result::unwrap).collect();
        assert!(chain.contains(&entry) && chain.is_sorted_by_key(|entry| entry.cd));
        read.insert(name, (entry.cd, leaf.value(&entry).unwrap()));
    }
    assert_eq!(read, *model);
}

proptest! {
    #[test]
    fn a_leaf_changed_step_by_step_matches_a_map(
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut bytes = leaf(0, 0);
        let mut model = BTreeMap::new();
        for step in steps {
            let before = bytes.clone();
            let name_of = |number: u8| vec![b'a' + number; usize::from(number) * 3 + 1];
            let free = ZapLeaf::decode(&bytes, Endian::Little).unwrap().free_chunks;
            match step {
                Step::Insert(number, length) => {
                    let name = name_of(number);
                    if model.contains_key(&name) {
                        continue;
                    }
                    let value = ZapValue::from_bytes(&vec![number; length]);
                    let needed = leaf_entry_chunks(ZapKey::Name(&name), &value).unwrap();
                    let done = insert(&mut bytes, &name, u32::from(number), &value);
                    prop_assert_eq!(done.is_ok(), needed <= free);
                    if done.is_ok() {
                        model.insert(name, (u32::from(number), value));
                    } else {
                        prop_assert_eq!(done, Err(LeafInsertError::Full));
                        prop_assert_eq!(&bytes, &before);
                    }
                }
                Step::Replace(number, length) => {
                    let name = name_of(number);
                    let Some((_, old)) = model.get_mut(&name) else {
                        continue;
                    };
                    let value = ZapValue::from_u64s(&vec![u64::from(number); length / 8]);
                    let takes = |value: &ZapValue| value.bytes.len().div_ceil(21);
                    let fits = takes(&value) <= usize::from(free) + takes(old);
                    let chunk = chunk_of(&bytes, &name);
                    let done = ZapLeafMut::open(&mut bytes).unwrap().replace_value(chunk, &value);
                    prop_assert_eq!(done.is_ok(), fits);
                    if fits {
                        *old = value;
                    } else {
                        prop_assert_eq!(done, Err(LeafInsertError::Full));
                        prop_assert_eq!(&bytes, &before);
                    }
                }
                Step::Remove(number) => {
                    let name = name_of(number);
                    if model.remove(&name).is_some() {
                        let chunk = chunk_of(&bytes, &name);
                        ZapLeafMut::open(&mut bytes).unwrap().remove(chunk).unwrap();
                    }
                }
            }
            agrees(&bytes, &model);
        }
    }
}

#[test]
fn an_entry_takes_chunks_for_itself_its_name_and_its_value() {
    let value = |bytes: usize| ZapValue::from_bytes(&vec![1; bytes]);
    let chunks = |name: usize, bytes: usize| {
        leaf_entry_chunks(ZapKey::Name(&vec![b'n'; name]), &value(bytes)).ok()
    };
    assert_eq!(chunks(1, 0), Some(2));
    assert_eq!(chunks(20, 21), Some(3));
    assert_eq!(chunks(21, 22), Some(5));
    assert_eq!(chunks(1023, 8192), Some(1 + 49 + 391));
    assert_eq!((chunks(1024, 1), chunks(1, 8193)), (None, None));
    let key = |words: usize| leaf_entry_chunks(ZapKey::Words(&vec![1; words]), &value(1)).ok();
    assert_eq!((key(1), key(5), key(128)), (Some(3), Some(4), Some(51)));
    assert_eq!((key(0), key(129)), (None, None));
    assert!(leaf_entry_chunks(ZapKey::Name(b"a\0b"), &value(1)).is_err());
    for (integer_bytes, bytes, is_good) in [
        (1, 3, true),
        (2, 4, true),
        (2, 3, false),
        (4, 8, true),
        (8, 16, true),
        (8, 12, false),
        (3, 3, false),
        (0, 0, false),
    ] {
        let value = ZapValue {
            integer_bytes,
            bytes: vec![0; bytes],
        };
        let taken = leaf_entry_chunks(ZapKey::Name(b"n"), &value);
        assert_eq!(taken.is_ok(), is_good, "{integer_bytes} {bytes}");
    }
}

#[test]
fn a_value_may_reuse_its_chunks_and_the_last_free_one() {
    let mut bytes = vec![0; 512];
    ZapLeafMut::format(&mut bytes, 0, 0, false).unwrap();
    // 18 chunks: an entry, a name and 16 for the value.
    let value = |chunks: usize| ZapValue::from_bytes(&vec![7; chunks * 21]);
    insert(&mut bytes, b"n", 0, &value(4)).unwrap();
    let mut change = |chunks| {
        let mut leaf = ZapLeafMut::open(&mut bytes).unwrap();
        let done = leaf.replace_value(0, &value(chunks));
        (done, leaf.free_chunks())
    };
    assert_eq!(change(17), (Err(LeafInsertError::Full), 12));
    assert_eq!(change(16), (Ok(()), 0));
    assert_eq!(change(0), (Ok(()), 16));
    assert_eq!(change(1), (Ok(()), 15));
    // An entry too large for any leaf of this size is refused; the leaf is not just full.
    let done = insert(&mut bytes, b"m", 0, &value(17));
    assert!(matches!(done, Err(LeafInsertError::Refused(_))));
    assert_eq!(
        insert(&mut bytes, b"m", 0, &value(16)),
        Err(LeafInsertError::Full)
    );
}

/// A small leaf with two entries in one chain, chunks 0 to 2 and 3 to 5, changed at one byte.
fn broken(at: usize, byte: u8) -> Vec<u8> {
    let mut bytes = leaf(0, 0);
    for name in [b"one", b"two"] {
        let mut leaf = ZapLeafMut::open(&mut bytes).unwrap();
        leaf.insert(0, 0, ZapKey::Name(name), &ZapValue::from_u64(1))
            .unwrap();
    }
    bytes[at] = byte;
    bytes
}

#[test]
fn a_broken_leaf_is_refused_by_name_and_not_touched() {
    let chunk = |number: usize| 48 + 256 + number * 24;
    let (free_count, entry_count, freelist) = (28, 30, 34);
    // (byte, its new value, why removing chunk 3 fails)
    for (at, byte, reason) in [
        (free_count, 255, "free chunks miscounted"),
        (entry_count, 0, "entries miscounted"),
        (chunk(3) + 4, 5, "chunk is used twice"),
        (chunk(3) + 8, 9, "chunk is no array"),
        (chunk(3) + 1, 3, "integers are not 1, 2, 4 or 8 bytes"),
        (chunk(0) + 2, 0xff, "entry is in no chain"),
    ] {
        let mut bytes = broken(at, byte);
        if reason == "entry is in no chain" {
            // The bucket's first entry is now the only one.
            bytes[chunk(0) + 3] = 0xff;
        }
        let before = bytes.clone();
        let mut leaf = ZapLeafMut::open(&mut bytes).unwrap();
        assert_eq!(leaf.remove(3).unwrap_err().reason, reason);
        assert_eq!(bytes, before);
    }
    for (at, byte, reason) in [
        (freelist, 0, "chunk is not free"),
        (freelist + 1, 0x7f, "free chunks end too early"),
        (chunk(7) + 22, 6, "chunk is used twice"),
    ] {
        let mut bytes = broken(at, byte);
        let before = bytes.clone();
        let done = insert(&mut bytes, b"three", 0, &ZapValue::from_u64(1));
        let Err(LeafInsertError::Corrupt(error)) = done else {
            panic!("{reason}: {done:?}")
        };
        assert_eq!(error.reason, reason);
        assert_eq!(bytes, before);
    }
    // Names and values may be long, and a loop in their chunks is detected.
    let mut bytes = broken(chunk(4) + 22, 4);
    bytes[chunk(4) + 23] = 0;
    let mut leaf = ZapLeafMut::open(&mut bytes).unwrap();
    assert_eq!(leaf.remove(3).unwrap_err().reason, "array loops");
    let leaf = ZapLeaf::decode(&bytes, Endian::Little).unwrap();
    let entry = leaf.entry(3).unwrap();
    assert!(leaf.name(&entry).is_err());
}

#[test]
fn a_free_list_that_is_broken_is_not_counted() {
    let chunk = |number: usize| 48 + 256 + number * 24;
    let reason = |bytes: &[u8]| {
        let leaf = ZapLeaf::decode(bytes, Endian::Little).unwrap();
        leaf.count_free().map_err(|error| error.reason)
    };
    assert_eq!(reason(&broken(0, 0)), Ok(158 - 6));
    assert_eq!(reason(&broken(34, 1)), Err("chunk is not free"));
    let mut looped = broken(chunk(157) + 22, 6);
    looped[chunk(157) + 23] = 0;
    assert_eq!(reason(&looped), Err("free list loops"));
    assert_eq!(reason(&broken(35, 0x7f)), Err("no such chunk"));
}

#[test]
fn only_an_empty_leaf_takes_another_prefix() {
    let mut bytes = leaf(0b101, 3);
    let mut open = ZapLeafMut::open(&mut bytes).unwrap();
    for (prefix, bits) in [(0b100, 2), (0, 49), (1, 0)] {
        assert_eq!(
            open.set_prefix(prefix, bits).unwrap_err().reason,
            "prefix too long"
        );
    }
    open.set_prefix(0b10, 2).unwrap();
    let seen = open.view().unwrap();
    assert_eq!((seen.prefix, seen.prefix_bits), (0b10, 2));
    let hash = 0b10 << 62;
    let key = ZapKey::Name(b"n");
    let value = ZapValue::from_u64(1);
    assert!(matches!(
        open.insert(0b11 << 62, 0, key, &value),
        Err(LeafInsertError::Refused("hash belongs into another leaf"))
    ));
    open.insert(hash, 0, key, &value).unwrap();
    assert_eq!(open.entry_count(), 1);
    assert_eq!(
        open.set_prefix(0b1, 1).unwrap_err().reason,
        "leaf is not empty"
    );
    open.set_prefix(0, 48).unwrap_err();
    for (prefix, bits, is_good) in [
        (1 << 47, 48, true),
        (1 << 48, 49, false),
        (1 << 48, 48, false),
    ] {
        let mut bytes = vec![0; 512];
        let made = ZapLeafMut::format(&mut bytes, prefix, bits, false);
        assert_eq!(made.is_ok(), is_good);
        assert_eq!(ZapLeaf::decode(&bytes, Endian::Little).is_ok(), is_good);
    }
}

#[test]
fn the_bucket_is_the_bits_after_the_prefix() {
    let shape = LeafShape::of(4096).unwrap();
    assert_eq!((shape.buckets, shape.chunks), (128, 158));
    assert_eq!(shape.bucket(0xfe << 56, 0), 127);
    assert_eq!(shape.bucket(0xff << 56, 1), 127);
    assert_eq!(shape.bucket(0b1010_0000_0100 << 52, 3), 1);
    assert_eq!(shape.chunk_offset(157), Some(48 + 256 + 157 * 24));
    assert_eq!(shape.chunk_offset(158), None);
    let sizes = |bytes: usize| LeafShape::of(bytes).map(|shape| shape.chunks).ok();
    assert_eq!((sizes(512), sizes(1 << 20)), (Some(18), Some(40_958)));
    for bytes in [0, 256, 511, 768, 1 << 21] {
        assert_eq!(sizes(bytes), None);
    }
}

#[test]
fn wrong_leaf_headers_are_refused_with_the_field() {
    let reason = |at: usize, byte: u8| {
        let mut bytes = leaf(0b101, 3);
        bytes[at] = byte;
        let decoded = ZapLeaf::decode(&bytes, Endian::Little);
        decoded.err().map(|error| error.reason)
    };
    assert_eq!(reason(0, 1), Some("not a zap leaf"));
    assert_eq!(reason(24, 1), Some("wrong magic"));
    assert_eq!(reason(32, 48), None);
    assert_eq!(reason(32, 49), Some("prefix longer than 48 bits"));
    assert_eq!(reason(32, 2), Some("prefix longer than its length"));
    assert_eq!(reason(16, 0b111), None);
    assert_eq!(reason(16, 0b1000), Some("prefix longer than its length"));
    let flags = |byte| {
        let mut bytes = leaf(0, 0);
        bytes[36] = byte;
        ZapLeaf::decode(&bytes, Endian::Little)
            .unwrap()
            .is_cd_sorted
    };
    assert_eq!(
        (flags(0), flags(1), flags(2), flags(3)),
        (false, true, false, true)
    );
}

#[test]
fn keys_of_128_words_are_read_and_longer_ones_are_not() {
    let words: Vec<u64> = (0..128).collect();
    let mut bytes = vec![0; 4096];
    let mut leaf = ZapLeafMut::format(&mut bytes, 0, 0, false).unwrap();
    leaf.insert(0, 0, ZapKey::Words(&words), &ZapValue::from_u64(1))
        .unwrap();
    let read = |bytes: &[u8]| {
        let leaf = ZapLeaf::decode(bytes, Endian::Little).unwrap();
        let entry = leaf.entry(0).unwrap();
        leaf.words(&entry).map_err(|error| error.reason)
    };
    assert_eq!(read(&bytes), Ok(words));
    bytes[48 + 256 + 6] = 129;
    assert_eq!(read(&bytes), Err("key above 128 words"));
    // An array that needs more chunks than the leaf has is refused at once.
    bytes[48 + 256 + 10..48 + 256 + 12].copy_from_slice(&[0xff, 0xff]);
    let leaf = ZapLeaf::decode(&bytes, Endian::Little).unwrap();
    let value = leaf.value(&leaf.entry(0).unwrap());
    assert_eq!(value.unwrap_err().reason, "array longer than the leaf");
    // 158 chunks of 21 bytes are few enough to be read.
    bytes[48 + 256 + 1] = 1;
    bytes[48 + 256 + 10..48 + 256 + 12].copy_from_slice(&(158u16 * 21).to_le_bytes());
    let leaf = ZapLeaf::decode(&bytes, Endian::Little).unwrap();
    let value = leaf.value(&leaf.entry(0).unwrap());
    assert_ne!(value.unwrap_err().reason, "array longer than the leaf");
}

#[test]
fn invalid_entries_and_arrays_are_not_decoded() {
    let bytes = broken(0, 0);
    let leaf = ZapLeaf::decode(&bytes, Endian::Little).unwrap();
    let reason = |chunk| leaf.entry(chunk).unwrap_err().reason;
    assert_eq!(reason(1), "chunk is no entry");
    assert_eq!(reason(100), "chunk is no entry");
    assert_eq!(reason(158), "no such chunk");
    let mut entry = leaf.entry(0).unwrap();
    assert_eq!(leaf.name(&entry).unwrap(), b"one");
    entry.name_chunk = 3;
    assert_eq!(leaf.name(&entry).unwrap_err().reason, "chunk is no array");
}

#[test]
fn byteswapped_blocks_become_little_endian() {
    let micro = encode_micro_zap(
        512,
        0x0102,
        0x0304,
        &[MicroZapEntry {
            value: 0x0506,
            cd: 0x0708,
            name: b"name",
        }],
    )
    .unwrap();
    let mut foreign = micro.clone();
    for (at, length) in [(0, 8), (8, 8), (16, 8), (64, 8), (72, 4)] {
        foreign[at..at + length].reverse();
    }
    // Free slots are zeros, which are the same in both byte orders.
    assert_eq!(zap_block_to_little(&foreign, Endian::Big).unwrap(), micro);
    assert_eq!(zap_block_to_little(&micro, Endian::Little).unwrap(), micro);

    let leaf = broken(16, 0);
    let mut foreign = leaf.clone();
    tests::swap_leaf(&mut foreign);
    assert_ne!(foreign, leaf);
    assert_eq!(zap_block_to_little(&foreign, Endian::Big).unwrap(), leaf);
    let mut strange = foreign.clone();
    strange[48 + 256] = 250;
    assert_eq!(
        zap_block_to_little(&strange, Endian::Big)
            .unwrap_err()
            .reason,
        "chunk is of no kind"
    );
    let table = [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 3];
    assert_eq!(
        zap_block_to_little(&table, Endian::Big).unwrap(),
        [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]
    );
    assert!(zap_block_to_little(&table[..15], Endian::Big).is_err());
    assert!(zap_block_to_little(&table[..15], Endian::Little).is_ok());
}

#[test]
fn the_first_word_selects_the_table_format() {
    let micro = encode_micro_zap(512, 1, 0, &[]).unwrap();
    let fat = ZapHeader::new(9, 1, 0, ZapFlags::empty())
        .unwrap()
        .encode(&[1; 32])
        .unwrap();
    let form = |bytes: &[u8]| ZapForm::of_first_block(bytes, Endian::Little);
    assert_eq!(
        (form(&micro), form(&fat)),
        (Ok(ZapForm::Micro), Ok(ZapForm::Fat))
    );
    assert_eq!(
        form(&[0; 512]).unwrap_err().reason,
        "block 0 is no zap header"
    );
    assert_eq!(form(&[0; 7]).unwrap_err().reason, "too short");
    assert!(ZapForm::of_first_block(&micro, Endian::Big).is_err());
}

#[test]
fn values_are_read_with_their_width() {
    let words = ZapValue::from_u64s(&[5, 6]);
    assert_eq!((words.count(), words.first()), (2, Some(5)));
    assert!(words.as_bytes().is_err());
    let shorts = ZapValue::from_u16s(&[0x0102, 3]);
    assert_eq!(shorts.integers().collect::<Vec<_>>(), [0x0102, 3]);
    assert_eq!((shorts.integer_bytes, shorts.count()), (2, 2));
    let bytes = ZapValue::from_bytes(b"text");
    assert_eq!(bytes.as_bytes(), Ok(&b"text"[..]));
    assert_eq!(ZapValue::from_bytes(b"").first(), None);
    let impossible = ZapValue {
        integer_bytes: 0,
        bytes: vec![1],
    };
    assert_eq!(impossible.count(), 0);
}

#[test]
fn slots_of_a_microzap_are_written_and_emptied_one_by_one() {
    let mut block = encode_micro_zap(512, 1, 0, &[]).unwrap();
    let entry = |name: &'static [u8], cd| MicroZapEntry { value: 9, cd, name };
    let longest = [b'x'; MICRO_NAME_BYTES_MAX];
    let all = MicroZapEntry {
        value: 1,
        cd: 0xffff,
        name: &longest,
    };
    put_micro_zap_entry(&mut block, 6, Some(&all)).unwrap();
    let zap = MicroZap::decode(&block, Endian::Little).unwrap();
    assert_eq!(zap.entry(6), Ok(Some(all)));
    assert!(put_micro_zap_entry(&mut block, 7, Some(&entry(b"n", 0))).is_err());
    for bad in [
        entry(b"", 0),
        entry(b"a\0", 0),
        entry(b"n", 0x1_0000),
        entry(&[b'x'; 50], 0),
    ] {
        assert!(put_micro_zap_entry(&mut block, 0, Some(&bad)).is_err());
    }
    put_micro_zap_entry(&mut block, 6, None).unwrap();
    assert_eq!(block, encode_micro_zap(512, 1, 0, &[]).unwrap());
    assert_eq!(
        MicroZap::decode(&block[..100], Endian::Little)
            .unwrap_err()
            .reason,
        "length is no multiple of 64"
    );
    for bytes in [0, 100, 768, (16 << 20) + 512] {
        assert!(encode_micro_zap(bytes, 1, 0, &[]).is_err(), "{bytes}");
    }
    assert_eq!(
        encode_micro_zap(16 << 20, 1, 0, &[]).unwrap().len(),
        16 << 20
    );
    let names = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"];
    let of = |count: usize| {
        let entries: Vec<_> = names[..count].iter().map(|name| entry(*name, 0)).collect();
        encode_micro_zap(512, 1, 0, &entries)
    };
    assert_eq!(of(7).unwrap().len(), 512);
    assert!(of(8).is_err());
    assert!(encode_micro_zap(128, 1, 0, &[entry(b"a", 0), entry(b"b", 0)]).is_err());
}
