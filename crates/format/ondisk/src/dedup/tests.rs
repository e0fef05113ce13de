use super::*;
use crate::testing::{hex, swapped_words};
use crate::{
    BlockPointer, ChecksumKind, CompressionKind, Dva, Endian, ObjectId, ObjectType, Txg, VdevId,
};
use proptest::prelude::*;

const KEY: [u64; 5] = [
    0x5374_0662_f088_f81f,
    0xc5e4_5c2b_9099_ae4c,
    0x3d9e_ee7b_62de_0f97,
    0x5161_8616_30a2_8954,
    0x0000_0002_001f_001f,
];

/// Zero-length encoding with parameter 64, sufficient for the vectors here.
fn unzle(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let n = usize::from(bytes[at]);
        at += 1;
        if n >= 64 {
            out.resize(out.len() + n - 63, 0);
        } else {
            out.extend(&bytes[at..=at + n]);
            at += n + 1;
        }
    }
    out
}

#[test]
fn a_real_legacy_value_holds_one_block_with_two_references() {
    let value = hex("8e 7f 00 20 46 01 d5 01 65 00 02 46 00 1a c6");
    let parsed = DedupValue::parse(&value).unwrap();
    assert_eq!(
        (parsed.compression, parsed.endian),
        (CompressionKind::Zle, Endian::Little)
    );
    let key = DedupKey::from_words(KEY);
    let entry = DedupEntry::decode(key, &unzle(parsed.body), parsed.endian).unwrap();
    let slot = *entry.used_slots().next().unwrap();
    assert_eq!(entry.used_slots().count(), 1);
    assert_eq!((slot.reference_count, slot.birth), (2, Txg(26)));
    let dva = slot.dvas(false).next().unwrap();
    assert_eq!(
        (dva.vdev, dva.offset_bytes, dva.asize_bytes),
        (VdevId(0), 0x3aa00, 0x4000)
    );
    assert_eq!(entry.class(), Some(DedupClass::Duplicate));
    assert_eq!((key.lsize_bytes(), key.psize_bytes()), (16384, 16384));
    assert_eq!(key.compression(), Some(CompressionKind::Off));
    let pointer = entry.block_pointer(&slot, ChecksumKind::Sha256);
    assert_eq!(pointer.validate(), Ok(()));
    assert_eq!(DedupKey::of(&pointer), key);
    assert!(pointer.is_dedup() && pointer.checksum_kind() == Some(ChecksumKind::Sha256));
    assert_eq!(entry.encode_body(), unzle(parsed.body));
}

#[test]
fn a_real_flat_dedup_value_has_its_creation_time() {
    let mut value = hex("82 2000000000000000 d401000000000000");
    value.resize(1 + 48, 0);
    value.extend(hex("0200000000000000 1a00000000000000 b066016b00000000"));
    let parsed = DedupValue::parse(&value).unwrap();
    assert_eq!(parsed.compression, CompressionKind::Off);
    let entry = DedupEntry::decode(DedupKey::from_words(KEY), parsed.body, parsed.endian).unwrap();
    let DedupSlots::Flat { slot, class_start } = entry.slots else {
        panic!("not flat")
    };
    assert_eq!((slot.birth, class_start), (Txg(26), 1_795_253_936));
    assert_eq!(entry.encode_body(), parsed.body);
    let swapped = swapped_words(parsed.body);
    assert_eq!(
        DedupEntry::decode(entry.key, &swapped, Endian::Big).unwrap(),
        entry
    );
}

#[test]
fn values_of_other_compression_or_length_are_refused() {
    assert!(DedupValue::parse(&[]).is_err());
    assert!(DedupValue::parse(&[0x8f, 1]).is_err());
    assert!(DedupValue::parse(&[0x80, 1]).is_err());
    let foreign = DedupValue::parse(&[0x0e, 1]).unwrap();
    assert_eq!(
        (foreign.compression, foreign.endian, foreign.body),
        (CompressionKind::Zle, Endian::Big, &[1][..])
    );
    for length in [0, 71, 73, 255, 257] {
        assert!(DedupEntry::decode(DedupKey::default(), &vec![0; length], Endian::Little).is_err());
    }
}

#[test]
fn the_statistics_of_the_real_ddt_follow_from_its_entries() {
    // Four blocks of 16 KiB: two referenced three times, two twice.
    let mut histogram = DedupHistogram::default();
    for references in [3, 3, 2, 2] {
        let entry = DedupEntry {
            key: DedupKey::from_words(KEY),
            slots: DedupSlots::Flat {
                slot: DedupSlot {
                    addresses: [[0x20, 0x1d4], [0; 2], [0; 2]],
                    reference_count: references,
                    birth: Txg(26),
                },
                class_start: 0,
            },
        };
        histogram.add(&entry, |dva: Dva| dva.asize_bytes);
    }
    let words = histogram.to_words();
    assert_eq!(words[..8], [0; 8]);
    assert_eq!(
        words[8..16],
        [4, 65536, 65536, 65536, 10, 163_840, 163_840, 163_840]
    );
    assert_eq!(DedupHistogram::from_words(&words).unwrap(), histogram);
    let total = histogram.total();
    assert_eq!((total.ratio_percent(), total.saved_bytes()), (250, 98304));
    assert_eq!(DedupStatistics::default().ratio_percent(), 100);
    assert!(DedupHistogram::from_words(&words[..511]).is_err());
}

#[test]
fn entries_without_references_have_no_class_and_count_nowhere() {
    let entry = DedupEntry {
        key: DedupKey::default(),
        slots: DedupSlots::Legacy([DedupSlot::default(); 4]),
    };
    assert_eq!(entry.class(), None);
    let mut histogram = DedupHistogram::default();
    histogram.add(&entry, |_| u64::MAX);
    assert_eq!(histogram, DedupHistogram::default());
}

#[test]
fn the_dedup_key_of_an_encrypted_block_omits_type_and_level() {
    let mut pointer = BlockPointer::default();
    pointer.words[0] = 8;
    pointer.words[6] = 0xe013_0802_001f_001f;
    assert!(pointer.is_encrypted() && pointer.is_dedup());
    let key = DedupKey::of(&pointer);
    assert!(key.is_encrypted());
    assert_eq!(key.properties, 0x0000_0082_001f_001f);
    assert_eq!(pointer.object_type(), ObjectType(0x13));
}

#[test]
fn a_real_clone_table_reads_as_its_words() {
    let words: [u64; 7] = [77, 15, 0, 4, 16_777_216, 65536, 131_072];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let table = CloneTablePhys::decode(&bytes, Endian::Little).unwrap();
    assert_eq!(table.entries, Some(ObjectId(77)));
    assert_eq!(table.encode(), bytes);
    assert_eq!(table.counter_index(0x1_8600), 0);
    assert_eq!(table.counter_index(CLONE_RANGE_BYTES), 1);
    assert_eq!(CloneTablePhys::ratio_percent(65536, 131_072), 300);
    assert_eq!(CloneTablePhys::ratio_percent(0, 0), 100);
    let counters = CloneCounters::new(&[4, 0, 0, 1, 9], table.counter_endian);
    assert_eq!(
        [
            counters.get(0),
            counters.get(1),
            counters.get(2),
            counters.get(u64::MAX)
        ],
        [4, 256, 0, 0]
    );
    assert_eq!(
        clone_entry_count(&[2, 0, 0, 0, 0, 0, 0, 0], 1, &table),
        Ok(2)
    );
    assert_eq!(
        clone_entry_count(&clone_entry_value(2, Endian::Little), 1, &table),
        Ok(2)
    );
    assert_eq!(
        clone_entry_count(&[0, 0, 0, 0, 0, 0, 0, 2], 8, &table),
        Ok(2)
    );
    assert!(clone_entry_count(&[2; 7], 1, &table).is_err());
    assert!(clone_entry_count(&[2; 8], 4, &table).is_err());
}

#[test]
fn each_class_has_its_number_and_word() {
    for (number, word) in (0..).zip(["ditto", "duplicate", "unique"]) {
        let class = DedupClass::from_number(number).unwrap();
        assert_eq!(class.name(), word);
    }
    assert_eq!(DedupClass::from_number(3), None);
}

#[test]
fn a_key_is_read_in_both_orders_and_its_bits_are_apart() {
    let bytes: Vec<u8> = KEY.iter().flat_map(|word| word.to_le_bytes()).collect();
    for (bytes, endian) in [
        (bytes.clone(), Endian::Little),
        (swapped_words(&bytes), Endian::Big),
    ] {
        assert_eq!(
            DedupKey::decode(&bytes, endian),
            Ok(DedupKey::from_words(KEY))
        );
        assert!(DedupKey::decode(&bytes[..39], endian).is_err());
    }
    assert_eq!(DedupKey::from_words(KEY).to_words(), KEY);
    let key = |properties| DedupKey {
        checksum: [1, 2, 3, 4],
        properties,
    };
    let sizes = key(0x0000_000f_0003_00ff);
    assert_eq!((sizes.lsize_bytes(), sizes.psize_bytes()), (131_072, 2048));
    assert_eq!(sizes.compression(), Some(CompressionKind::Lz4));
    assert!(!sizes.is_encrypted() && !key(!(1 << 39)).is_encrypted());
    assert!(key(1 << 39).is_encrypted() && key(1 << 39).compression().is_some());
    assert_eq!(key(0x7f << 32).compression(), None);
}

#[test]
fn a_dedup_slot_of_an_encrypted_block_has_two_dvas() {
    let slot = DedupSlot {
        addresses: [[8, 1], [8, 2], [8, 3]],
        reference_count: 1,
        birth: Txg(5),
    };
    assert_eq!((slot.dvas(false).count(), slot.dvas(true).count()), (3, 2));
    assert!(slot.is_used() && !DedupSlot::default().is_used());
    let entry = DedupEntry {
        key: DedupKey {
            checksum: [1, 2, 3, 4],
            properties: 0x0000_008f_0003_00ff,
        },
        slots: DedupSlots::Flat {
            slot,
            class_start: 0,
        },
    };
    assert_eq!(entry.class(), Some(DedupClass::Unique));
    let pointer = entry.block_pointer(&slot, ChecksumKind::Sha512);
    assert_eq!(pointer.words[..6], [8, 1, 8, 2, 8, 3]);
    assert!(pointer.has_crypt_bit() && pointer.is_dedup() && !pointer.is_embedded());
    assert_eq!(
        (pointer.birth(), pointer.object_type()),
        (Txg(5), ObjectType::DEDUP)
    );
    assert_eq!(
        (pointer.lsize_bytes(), pointer.psize_bytes()),
        (131_072, 2048)
    );
    assert_eq!(pointer.compression(), Some(CompressionKind::Lz4));
    assert_eq!(pointer.checksum_words(), [1, 2, 3, 4]);
    assert_eq!(pointer.endian(), Endian::Little);
}

#[test]
fn big_endian_counters_and_counts_are_decoded() {
    let words: [u64; 7] = [0, 15, 1, 4, 512, 1, 2];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let table = CloneTablePhys::decode(&bytes, Endian::Little).unwrap();
    assert_eq!((table.entries, table.counter_endian), (None, Endian::Big));
    assert_eq!(table.encode(), bytes);
    let counters = CloneCounters::new(&[0, 4, 1, 0], table.counter_endian);
    assert_eq!([counters.get(0), counters.get(1)], [4, 256]);
    assert_eq!(
        clone_entry_count(&[0, 0, 0, 0, 0, 0, 1, 2], 1, &table),
        Ok(258)
    );
    assert_eq!(table.counter_index(1023), 1);
}

#[test]
fn clone_tables_of_unknown_order_or_without_ranges_are_refused() {
    let mut bytes = vec![0u8; 56];
    assert!(CloneTablePhys::decode(&bytes, Endian::Little).is_err());
    bytes[32] = 1;
    assert!(CloneTablePhys::decode(&bytes, Endian::Little).is_ok());
    bytes[16] = 2;
    assert!(CloneTablePhys::decode(&bytes, Endian::Little).is_err());
    assert!(CloneTablePhys::decode(&bytes[..55], Endian::Little).is_err());
}

proptest! {
    #[test]
    fn legacy_bodies_round_trip(words in proptest::collection::vec(any::<u64>(), 32)) {
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let entry = DedupEntry::decode(DedupKey::from_words(KEY), &body, Endian::Little).unwrap();
        prop_assert_eq!(entry.encode_body(), body);
        let mut histogram = DedupHistogram::default();
        histogram.add(&entry, |dva| dva.asize_bytes);
        let _ = histogram.total();
    }
    #[test]
    fn any_bytes_are_a_value_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(value) = DedupValue::parse(&bytes) {
            let _ = DedupEntry::decode(DedupKey::default(), value.body, value.endian);
        }
        let _ = CloneTablePhys::decode(&bytes, Endian::Big);
    }
}
