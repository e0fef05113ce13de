use super::*;
use proptest::prelude::*;

fn bucket_vector_leaf() -> Vec<u8> {
    let mut leaf = ZapLeafBuilder::new(14, 0, 0, false).unwrap();
    let hashing = ZapHashing::plain(0x5bed9);
    let value = ZapValue::from_u64s(&[0x0102_0304_0506_0708, 9, 10]);
    leaf.insert(hashing.name(b"u64arr"), 0, ZapKey::Name(b"u64arr"), &value)
        .unwrap();
    leaf.finish()
}

#[test]
fn the_crc_and_hashes_equal_the_published_vectors() {
    assert_eq!(zap_crc64(1, b"a"), 0x9f81_69ba_49a5_4b33);
    assert_eq!(zap_crc64(1, b"foo"), 0x4dde_58a0_9a1a_a3d5);
    assert_eq!(
        zap_crc64(0x2_f52a_b2ab, b"features_for_read"),
        0x735e_2bb2_4f3c_b3d1
    );
    let plain = ZapHashing::plain(0xad0c3);
    assert_eq!(plain.name(b"alpha"), 0x93ca_8c90_0000_0000);
    assert_eq!(plain.name(b"beta"), 0x2b6d_0650_0000_0000);
    assert_eq!(
        ZapHashing::plain(0x5bed9).name(b"u8arr"),
        0x0133_c560_0000_0000
    );
    let long = ZapHashing {
        salt: 0x1e_cbdd,
        bits: 48,
        is_prehashed: false,
    };
    assert_eq!(
        long.words(&[0x1111_1111_1111_1111, 2, 3]),
        0x0eb8_01ec_c7bf_0000
    );
    assert_eq!(long.words(&[0xdead_beef, 2]), 0x837b_07c4_35d7_0000);
    let prehashed = ZapHashing {
        is_prehashed: true,
        ..long
    };
    assert_eq!(
        prehashed.words(&[0x1234_5678_9abc_def0, 2]),
        0x1234_5678_9abc_0000
    );
}

#[test]
fn a_real_microzap_round_trips() {
    let entries = [
        MicroZapEntry {
            value: 0x1122_3344_5566_7788,
            cd: 0,
            name: b"alpha",
        },
        MicroZapEntry {
            value: 2,
            cd: 0,
            name: b"beta",
        },
    ];
    let block = encode_micro_zap(512, 0xad0c3, 0, &entries).unwrap();
    assert_eq!(
        block[..16],
        [3, 0, 0, 0, 0, 0, 0, 0x80, 0xc3, 0xd0, 0x0a, 0, 0, 0, 0, 0]
    );
    assert_eq!(
        block[0x40..0x54],
        [
            0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 0, 0, 0, 0, 0, 0x61, 0x6c, 0x70,
            0x68, 0x61, 0
        ]
    );
    let zap = MicroZap::decode(&block, Endian::Little).unwrap();
    let read: Vec<_> = zap.entries().map(|e| e.unwrap().1).collect();
    assert_eq!(read, entries);
    assert_eq!(zap.slots(), 7);
    assert_eq!(zap.entry(2).unwrap(), None);
    assert_eq!(zap.entry(usize::MAX).unwrap(), None);
}

#[test]
fn a_microzap_of_a_big_endian_writer_reads_equal() {
    let mut block = vec![0u8; 512];
    block[..8].copy_from_slice(&BLOCK_MICRO.to_be_bytes());
    block[8..16].copy_from_slice(&77u64.to_be_bytes());
    block[64..72].copy_from_slice(&5u64.to_be_bytes());
    block[72..76].copy_from_slice(&3u32.to_be_bytes());
    block[78..82].copy_from_slice(b"name");
    let zap = MicroZap::decode(&block, Endian::Big).unwrap();
    assert_eq!(zap.salt, 77);
    let entry = zap.entry(0).unwrap().unwrap();
    assert_eq!((entry.value, entry.cd, entry.name), (5, 3, &b"name"[..]));
    assert!(MicroZap::decode(&block, Endian::Little).is_err());
}

#[test]
fn a_microzap_name_without_an_end_is_an_error() {
    let mut block = encode_micro_zap(512, 1, 0, &[]).unwrap();
    block[64 + 14..128].fill(b'x');
    let zap = MicroZap::decode(&block, Endian::Little).unwrap();
    assert_eq!(zap.entry(0).unwrap_err().reason, "name has no NUL");
}

#[test]
fn a_leaf_holds_an_array_of_words_as_a_real_one_does() {
    let block = bucket_vector_leaf();
    assert_eq!(block.len(), 16384);
    let leaf = ZapLeaf::decode(&block, Endian::Little).unwrap();
    assert_eq!(leaf.chunk_count(), 638);
    assert_eq!(leaf.free_chunks, 634);
    // In the published leaf this entry is in bucket 25.
    let bucket = &block[48 + 50..48 + 52];
    assert_eq!(bucket, [0, 0]);
    let chunk = |n: usize| &block[48 + 1024 + 24 * n..48 + 1024 + 24 * (n + 1)];
    assert_eq!(
        chunk(0),
        [
            0xfc, 8, 0xff, 0xff, 1, 0, 7, 0, 2, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x70, 0x3d, 0x8e,
            0x0c
        ]
    );
    assert_eq!(&chunk(1)[..8], b"\xfbu64arr\0");
    assert_eq!(
        chunk(2),
        [
            0xfb, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 3, 0
        ]
    );
    assert_eq!(&chunk(3)[..4], [0xfb, 0, 0, 0x0a]);
    let entry = leaf.entries().next().unwrap().unwrap();
    assert_eq!(leaf.name(&entry).unwrap(), b"u64arr");
    assert_eq!(
        leaf.value(&entry).unwrap().integers().collect::<Vec<_>>(),
        [0x0102_0304_0506_0708, 9, 10]
    );
    assert_eq!(leaf.count_free().unwrap(), leaf.free_chunks);
}

/// Converts to the bytes that a writer of the other byte order stores.
pub(super) fn swap_leaf(bytes: &mut [u8]) {
    let shape = leaf::LeafShape::of(bytes.len()).unwrap();
    let mut fields = vec![(0, 8), (16, 8), (24, 4), (28, 2), (30, 2), (32, 2), (34, 2)];
    fields.extend((0..shape.buckets).map(|b| (48 + 2 * b, 2)));
    for chunk in 0..shape.chunks {
        let at = shape.chunk_offset(chunk).unwrap();
        if bytes[at] == 252 {
            fields.extend([2, 4, 6, 8, 10].map(|o| (at + o, 2)));
            fields.extend([(at + 12, 4), (at + 16, 8)]);
        } else {
            fields.push((at + 22, 2));
        }
    }
    for (at, length) in fields {
        bytes[at..at + length].reverse();
    }
}

#[test]
fn chain_order_is_by_differentiator() {
    let mut builder = ZapLeafBuilder::new(12, 0, 0, true).unwrap();
    for cd in [3u32, 0, 2, 1] {
        let name = format!("n{cd}");
        builder
            .insert(
                7 << 36,
                cd,
                ZapKey::Name(name.as_bytes()),
                &ZapValue::from_u64(1),
            )
            .unwrap();
    }
    let block = builder.finish();
    let leaf = ZapLeaf::decode(&block, Endian::Little).unwrap();
    assert!(leaf.is_cd_sorted);
    let order: Vec<u32> = leaf.chain(7 << 36).map(|e| e.unwrap().cd).collect();
    assert_eq!(order, [0, 1, 2, 3]);
}

#[test]
fn a_chain_of_entries_that_loops_is_an_error_and_ends() {
    let mut block = bucket_vector_leaf();
    let at = 48 + 1024;
    block[at + 2..at + 4].copy_from_slice(&[0, 0]);
    let leaf = ZapLeaf::decode(&block, Endian::Little).unwrap();
    let all: Vec<_> = leaf.entries().collect();
    assert_eq!(all.len(), 639);
    assert_eq!(
        all.last().unwrap().unwrap_err().reason,
        "chain of entries loops"
    );
}

#[test]
fn an_array_that_loops_or_leaves_the_block_is_an_error() {
    let mut block = bucket_vector_leaf();
    let at = 48 + 1024 + 24 * 3 + 22;
    block[at..at + 2].copy_from_slice(&2u16.to_le_bytes());
    let leaf = ZapLeaf::decode(&block, Endian::Little).unwrap();
    let entry = leaf.entry(0).unwrap();
    assert_eq!(
        leaf.value(&entry).unwrap_err().reason,
        "array does not end where it should"
    );
    block[at..at + 2].copy_from_slice(&[0xff, 0xff]);
    let mid = 48 + 1024 + 24 * 2 + 22;
    block[mid..mid + 2].copy_from_slice(&638u16.to_le_bytes());
    let leaf = ZapLeaf::decode(&block, Endian::Little).unwrap();
    assert_eq!(leaf.value(&entry).unwrap_err().reason, "no such chunk");
}

#[test]
fn names_with_no_length_no_end_or_too_long_are_errors() {
    let block = bucket_vector_leaf();
    let at = 48 + 1024;
    for (length, reason) in [
        (0u16, "name has no length"),
        (3, "name has no NUL"),
        (1025, "name above 1023 bytes"),
        (8, "name has a NUL inside"),
    ] {
        let mut bad = block.clone();
        bad[at + 6..at + 8].copy_from_slice(&length.to_le_bytes());
        let leaf = ZapLeaf::decode(&bad, Endian::Little).unwrap();
        let outcome = leaf.entry(0).and_then(|entry| leaf.name(&entry));
        assert_eq!(outcome.unwrap_err().reason, reason, "{length}");
    }
}

#[test]
fn an_entry_in_the_wrong_bucket_is_an_error() {
    let mut block = bucket_vector_leaf();
    block[48..50].copy_from_slice(&[0, 0]);
    let leaf = ZapLeaf::decode(&block, Endian::Little).unwrap();
    let first = leaf.entries().next().unwrap();
    assert_eq!(
        first.unwrap_err().reason,
        "entry is not where its hash belongs"
    );
}

#[test]
fn a_leaf_takes_a_name_of_1023_bytes_and_refuses_one_more() {
    let mut builder = ZapLeafBuilder::new(14, 0, 0, false).unwrap();
    let name = vec![b'n'; 1023];
    let before = builder.free_chunks();
    builder
        .insert(0, 0, ZapKey::Name(&name), &ZapValue::from_u64(1))
        .unwrap();
    assert_eq!(before - builder.free_chunks(), 1 + 49 + 1);
    let longer = vec![b'n'; 1024];
    assert!(matches!(
        builder.insert(0, 1, ZapKey::Name(&longer), &ZapValue::from_u64(1)),
        Err(LeafInsertError::Refused(_))
    ));
    let block = builder.finish();
    let leaf = ZapLeaf::decode(&block, Endian::Little).unwrap();
    assert_eq!(leaf.name(&leaf.entry(0).unwrap()).unwrap(), name);
}

#[test]
fn a_full_leaf_refuses_entries_and_stays_unchanged() {
    let mut builder = ZapLeafBuilder::new(9, 0, 0, false).unwrap();
    let mut added = 0;
    loop {
        let name = format!("{added}");
        let hash = ZapHashing::plain(1).name(name.as_bytes());
        match builder.insert(
            hash,
            0,
            ZapKey::Name(name.as_bytes()),
            &ZapValue::from_u64(9),
        ) {
            Ok(()) => added += 1,
            Err(error) => {
                assert_eq!(error, LeafInsertError::Full);
                break;
            }
        }
    }
    assert_eq!(added, 6); // 18 chunks, three for each entry
    assert_eq!((builder.entry_count(), builder.free_chunks()), (6, 0));
    let block = builder.finish();
    let leaf = ZapLeaf::decode(&block, Endian::Little).unwrap();
    assert_eq!(leaf.entries().count(), 6);
    assert_eq!(leaf.count_free().unwrap(), 0);
}

#[test]
fn a_new_header_equals_the_published_bytes() {
    let mut header = ZapHeader::new(14, 0x5bed9, 0, ZapFlags::empty()).unwrap();
    header.entry_count = 7;
    let block = header.encode(&vec![1; 1024]).unwrap();
    assert_eq!(
        block[..16],
        [
            1, 0, 0, 0, 0, 0, 0, 0x80, 0xab, 0xb2, 0x2a, 0xf5, 2, 0, 0, 0
        ]
    );
    assert_eq!(block[0x20], 10);
    assert_eq!(block[0x38], 2);
    assert_eq!(block[0x40], 1);
    assert_eq!(block[0x48], 7);
    assert_eq!(block[0x50..0x53], [0xd9, 0xbe, 5]);
    assert_eq!(block[0x2000], 1);
    assert_eq!(ZapHeader::decode(&block, Endian::Little).unwrap(), header);
    let place = header.table_location(u64::MAX);
    assert_eq!((place.block, place.word), (0, 2047));
    assert_eq!(
        pointer_table_entry(&block, Endian::Little, place.word).unwrap(),
        1
    );
    assert!(pointer_table_entry(&block, Endian::Little, 2048).is_err());
}

#[test]
fn wrong_table_sizes_in_headers_are_errors() {
    let good = ZapHeader::new(14, 1, 0, ZapFlags::empty())
        .unwrap()
        .encode(&vec![1; 1024])
        .unwrap();
    // (offset, value, reason)
    for (offset, value, reason) in [
        (8usize, 0u64, "wrong magic"),
        (24, 1, "embedded pointer table has blocks"),
        (32, 11, "embedded pointer table of wrong size"),
        (32, 29, "pointer table wider than the hash"),
        (16, 1, "pointer table of wrong size"),
        (56, u64::MAX, "more blocks than 2^64 bytes"),
        (96, 8, "unknown flags"),
        (96, 4, "names cannot be hashed already"),
    ] {
        let mut bad = good.clone();
        bad[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        let error = ZapHeader::decode(&bad, Endian::Little).unwrap_err();
        assert_eq!(error.reason, reason);
    }
    // An external table of one block (2048 entries) must lie below the free block.
    let mut bad = good.clone();
    for (offset, value) in [(16usize, 2u64), (24, 1), (32, 11)] {
        bad[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }
    assert_eq!(
        ZapHeader::decode(&bad, Endian::Little).unwrap_err().reason,
        "pointer table beyond the object"
    );
    bad[56] = 3;
    let header = ZapHeader::decode(&bad, Endian::Little).unwrap();
    let place = header.table_location(u64::MAX);
    assert_eq!((place.block, place.word), (2, 2047));
}

/// A header block of 16 KiB with an external table, modified by hand: (byte, word).
fn header_with(words: &[(usize, u64)]) -> Result<ZapHeader, DecodeError> {
    let header = ZapHeader::new(14, 1, 0, ZapFlags::empty()).unwrap();
    let mut block = header.encode(&vec![1; 1024]).unwrap();
    for (offset, value) in words {
        block[*offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }
    ZapHeader::decode(&block, Endian::Little)
}

#[test]
fn a_table_may_be_as_wide_as_the_hash() {
    let widest = [(16, 2), (24, 1 << 17), (32, 28), (56, (1 << 17) + 2)];
    assert_eq!(header_with(&widest).unwrap().table_shift, 28);
    let reason = |words: &[(usize, u64)]| header_with(words).unwrap_err().reason;
    assert_eq!(
        reason(&[(16, 2), (24, 1 << 18), (32, 29), (56, (1 << 18) + 2)]),
        "pointer table wider than the hash"
    );
    // The table's size in bytes overflows 64 bits, and the low bits match the expected size.
    assert_eq!(
        reason(&[(16, 2), (24, 1 << 60 | 1), (32, 11), (56, 3)]),
        "pointer table of wrong size"
    );
    assert_eq!(header_with(&[(56, 1 << 49)]).unwrap().free_block, 1 << 49);
    assert_eq!(reason(&[(56, 1 << 50)]), "more blocks than 2^64 bytes");
}

#[test]
fn each_hash_finds_its_word_in_any_table() {
    let header = header_with(&[(16, 5), (24, 4), (32, 13), (56, 9)]).unwrap();
    let place = |hash| {
        let place = header.table_location(hash);
        (place.block, place.word)
    };
    assert_eq!(place(0), (5, 0));
    assert_eq!(place(1 << 51), (5, 1));
    assert_eq!(place(2047 << 51), (5, 2047));
    assert_eq!(place(2048 << 51), (6, 0));
    assert_eq!(place(0x8000_0000_0000_0000 | 3 << 51), (7, 3));
    assert_eq!(place(u64::MAX), (8, 2047));
    let inside = header_with(&[]).unwrap();
    let place = inside.table_location(3 << 54);
    assert_eq!((place.block, place.word), (0, 1024 + 3));
    let mut block = inside.encode(&vec![1; 1024]).unwrap();
    put_pointer_table_entry(&mut block, place.word, 0x0102).unwrap();
    assert_eq!(block[8192 + 24..8192 + 32], [2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(
        pointer_table_entry(&block, Endian::Little, place.word),
        Ok(0x0102)
    );
    assert!(put_pointer_table_entry(&mut block, 2048, 1).is_err());
}

#[test]
fn the_head_of_a_header_is_replaced_and_its_table_stays() {
    let mut header = ZapHeader::new(14, 1, 0, ZapFlags::empty()).unwrap();
    let table: Vec<u64> = (0..1024).collect();
    let mut block = header.encode(&table).unwrap();
    header.entry_count = 77;
    header.put(&mut block).unwrap();
    assert_eq!(block, header.encode(&table).unwrap());
    let before = block.clone();
    header.entry_count = 78;
    block.push(0);
    assert!(header.put(&mut block).is_err());
    assert_eq!(block[..16384], before);
}

#[test]
fn cookies_name_places_and_any_number_is_one() {
    let hashing = ZapHashing::plain(1);
    let place = ZapPosition {
        hash: 0x93ca_8c90_0000_0000,
        cd: 5,
    };
    let cookie = place.to_cookie(&hashing);
    assert_eq!(cookie, 0x93c_a8c9 | (5 << 28));
    assert_eq!(ZapPosition::from_cookie(cookie, &hashing), Some(place));
    assert_eq!(ZapPosition::from_cookie(COOKIE_END, &hashing), None);
    assert_eq!(
        ZapPosition::from_cookie(0, &hashing),
        Some(ZapPosition::default())
    );
    let long = ZapHashing {
        bits: 48,
        ..hashing
    };
    let over = ZapPosition::from_cookie(0xffff_0000_0000_0001, &long).unwrap();
    assert_eq!((over.hash, over.cd), (1 << 16, 0));
}

#[test]
fn the_position_after_any_entry_has_an_increasing_cookie() {
    for bits in [28u32, 48] {
        let hashing = ZapHashing {
            bits,
            ..ZapHashing::plain(1)
        };
        let top = hashing.keep(u64::MAX);
        for hash in [0, 1 << 36, top] {
            for cd in [0u32, 1, 0xfffd, 0xfffe, 0xffff, u32::MAX - 1, u32::MAX] {
                let place = ZapPosition { hash, cd };
                match ZapPosition::after(hash, cd, &hashing) {
                    Some(after) => {
                        assert!(after > place);
                        let cookie = after.to_cookie(&hashing);
                        assert_eq!(ZapPosition::from_cookie(cookie, &hashing), Some(after));
                    }
                    None => assert_eq!(hash, top),
                }
            }
        }
    }
}

#[test]
fn the_last_leaf_has_no_next_hash() {
    let block = ZapLeafBuilder::new(9, 3, 2, false).unwrap().finish();
    let leaf = ZapLeaf::decode(&block, Endian::Little).unwrap();
    assert_eq!(leaf.first_hash(), 0xc000_0000_0000_0000);
    assert_eq!(leaf.next_hash(), None);
    let block = ZapLeafBuilder::new(9, 2, 2, false).unwrap().finish();
    let leaf = ZapLeaf::decode(&block, Endian::Little).unwrap();
    assert_eq!(leaf.next_hash(), Some(0xc000_0000_0000_0000));
    let block = ZapLeafBuilder::new(9, 0, 0, false).unwrap().finish();
    let leaf = ZapLeaf::decode(&block, Endian::Little).unwrap();
    assert_eq!(leaf.next_hash(), None);
    assert!(leaf.covers(u64::MAX));
}

proptest! {
    #[test]
    fn a_leaf_round_trips_in_both_byte_orders(
        entries in proptest::collection::btree_map(
            proptest::collection::vec(1u8..=255, 1..60),
            (prop_oneof![Just(1u8), Just(2), Just(4), Just(8)], 0usize..12, any::<u8>()),
            0..30,
        ),
        is_big in any::<bool>(),
        salt in any::<u64>(),
    ) {
        let hashing = ZapHashing::plain(salt);
        let mut builder = ZapLeafBuilder::new(14, 0, 0, false).unwrap();
        let mut model = std::collections::BTreeMap::new();
        for (name, (width, count, fill)) in &entries {
            let value = ZapValue {
                integer_bytes: *width,
                bytes: vec![*fill; usize::from(*width) * count],
            };
            builder.insert(hashing.name(name), 0, ZapKey::Name(name), &value).unwrap();
            model.insert(name.clone(), value);
        }
        let mut block = builder.finish();
        let endian = if is_big { swap_leaf(&mut block); Endian::Big } else { Endian::Little };
        let leaf = ZapLeaf::decode(&block, endian).unwrap();
        let mut read = std::collections::BTreeMap::new();
        for entry in leaf.entries() {
            let entry = entry.unwrap();
            read.insert(leaf.name(&entry).unwrap(), leaf.value(&entry).unwrap());
        }
        prop_assert_eq!(read, model);
        prop_assert_eq!(leaf.count_free().unwrap(), leaf.free_chunks);
        prop_assert_eq!(usize::from(leaf.entry_count), entries.len());
    }

    #[test]
    fn a_leaf_with_flipped_bytes_never_panics_and_ends(
        flips in proptest::collection::vec((0usize..4096, any::<u8>()), 1..40),
        is_big in any::<bool>(),
    ) {
        let mut builder = ZapLeafBuilder::new(12, 0, 0, false).unwrap();
        for index in 0..20u64 {
            builder.insert(index << 58, 0, ZapKey::Words(&[index, 2]), &ZapValue::from_u64(index)).unwrap();
        }
        let mut block = builder.finish();
        for (at, byte) in flips {
            block[at] = byte;
        }
        let endian = if is_big { Endian::Big } else { Endian::Little };
        if let Ok(leaf) = ZapLeaf::decode(&block, endian) {
            let _ = leaf.count_free();
            let mut steps = 0usize;
            for entry in leaf.entries() {
                steps += 1;
                if let Ok(entry) = entry {
                    let _ = (leaf.name(&entry), leaf.words(&entry), leaf.value(&entry));
                }
            }
            prop_assert!(steps <= 128 * 160);
        }
        let _ = ZapHeader::decode(&block, endian);
    }

    #[test]
    fn zap_headers_round_trip(
        shift in 9u32..=20,
        numbers in proptest::array::uniform5(0u64..1 << 40),
        external in proptest::option::of(0u32..8),
    ) {
        let mut header = ZapHeader::new(shift, numbers[0], 0, ZapFlags::HASH64 | ZapFlags::UINT64_KEY).unwrap();
        header.entry_count = numbers[1];
        header.leaf_count = numbers[2];
        if let Some(doublings) = external {
            header.table_block = numbers[3] + 1;
            header.table_blocks = 1 << doublings;
            header.table_shift = shift - 3 + doublings;
            header.next_table_block = numbers[4];
            header.free_block = header.table_block + header.table_blocks;
        }
        let block = header.encode(&vec![1; 1 << (shift - 4)]).unwrap();
        prop_assert_eq!(ZapHeader::decode(&block, Endian::Little).unwrap(), header);
    }

    #[test]
    fn a_microzap_block_of_any_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let mut bytes = bytes;
        if bytes.len() > 8 {
            bytes[..8].copy_from_slice(&BLOCK_MICRO.to_le_bytes());
        }
        if let Ok(zap) = MicroZap::decode(&bytes, Endian::Little) {
            let _ = zap.entries().count();
        }
    }
}
