use super::*;
use crate::testing::swapped_words;
use crate::{BlockBookmark, BlockPointer, Endian, ObjectId, Txg};
use proptest::prelude::*;

fn pointer(offset_sectors: u64) -> BlockPointer {
    let mut pointer = BlockPointer::default();
    pointer.words[0] = 8;
    pointer.words[1] = offset_sectors;
    pointer.words[6] = 0x8013_070f_0007_0007;
    pointer.words[10] = 30;
    pointer.words[11] = 1;
    pointer.words[12..].copy_from_slice(&[1, 2, 3, 4]);
    pointer
}

fn entry(offset_sectors: u64, is_freed: bool) -> BpObjectEntry {
    BpObjectEntry {
        pointer: pointer(offset_sectors),
        is_freed,
    }
}

#[test]
fn the_length_of_the_bonus_decides_which_fields_a_list_has() {
    let bytes: Vec<u8> = (1u64..8).flat_map(|word| word.to_le_bytes()).collect();
    for (length, form) in [
        (16, BpObjectForm::Count),
        (32, BpObjectForm::Sizes),
        (48, BpObjectForm::SubObjects),
        (56, BpObjectForm::Freed),
    ] {
        let header = BpObjectPhys::decode(&bytes[..length], Endian::Little).unwrap();
        assert_eq!(header.form, form);
        assert_eq!(header.encode(), bytes[..length]);
        assert_eq!(
            BpObjectPhys::decode(&swapped_words(&bytes[..length]), Endian::Big).unwrap(),
            header
        );
    }
    let shortest = BpObjectPhys::decode(&bytes[..16], Endian::Little).unwrap();
    assert_eq!((shortest.compressed_bytes, shortest.sub_objects), (0, None));
    let longest = BpObjectPhys::decode(&bytes, Endian::Little).unwrap();
    assert_eq!(
        (longest.sub_objects, longest.freed_count),
        (Some(ObjectId(5)), 7)
    );
    assert!(!longest.is_empty() && BpObjectPhys::empty(BpObjectForm::Count).is_empty());
    assert!(BpObjectPhys::decode(&bytes[..15], Endian::Little).is_err());
    for (pointer_count, sub_object_count) in [(1, 0), (0, 1)] {
        let header = BpObjectPhys {
            pointer_count,
            sub_object_count,
            ..BpObjectPhys::empty(BpObjectForm::Freed)
        };
        assert!(!header.is_empty());
    }
}

#[test]
fn an_entry_keeps_its_checksum_only_with_the_dedup_bit() {
    let mut full = entry(5, true);
    full.pointer.words[11] = 0xdead_beef_0000_0001;
    let kept = BpObjectEntry::decode(&full.encode().unwrap(), Endian::Little).unwrap();
    assert!(kept.is_freed);
    assert_eq!(kept.pointer.words[11..], [0, 0, 0, 0, 0]);
    assert_eq!(kept.pointer.words[..11], pointer(5).words[..11]);
    let mut dedup = entry(5, false);
    dedup.pointer.words[6] |= 1 << 62;
    let kept = BpObjectEntry::decode(&dedup.encode().unwrap(), Endian::Little).unwrap();
    assert_eq!(kept.pointer.words[12..], [1, 2, 3, 4]);
    assert!(!kept.is_freed);
}

#[test]
fn an_embedded_entry_keeps_only_properties_and_birth() {
    let mut embedded = BpObjectEntry {
        pointer: BlockPointer { words: [7; 16] },
        is_freed: false,
    };
    embedded.pointer.words[6] = 0x8013_008f_3600_01ff;
    let bytes = embedded.encode().unwrap();
    let kept = BlockPointer::decode(&bytes, Endian::Little).unwrap();
    assert_eq!((kept.words[6], kept.words[10]), (0x8013_008f_3600_01ff, 7));
    assert_eq!(kept.words.iter().filter(|word| **word != 0).count(), 2);
    let hole = BpObjectEntry {
        pointer: BlockPointer::default(),
        is_freed: false,
    };
    assert_eq!(hole.encode(), None);
}

#[test]
fn an_encrypted_entry_keeps_the_end_of_its_iv() {
    let mut encrypted = entry(5, false);
    encrypted.pointer.words[6] |= 1 << 61;
    encrypted.pointer.words[11] = 0xdead_beef_0000_0001;
    assert!(encrypted.pointer.is_encrypted());
    let kept = BpObjectEntry::decode(&encrypted.encode().unwrap(), Endian::Little).unwrap();
    assert_eq!(kept.pointer.words[11], 0xdead_beef_0000_0000);
}

#[test]
fn entries_are_read_from_both_ends_and_a_cut_one_is_left_out() {
    let mut bytes = Vec::new();
    for at in 1..4 {
        bytes.extend(entry(at, false).encode().unwrap());
    }
    bytes.extend([0; 100]);
    let entries = BpObjectEntries::new(&bytes, Endian::Little);
    assert_eq!(entries.size_hint(), (3, Some(3)));
    let offsets = |entries: Vec<BpObjectEntry>| -> Vec<u64> {
        entries.iter().map(|e| e.pointer.words[1]).collect()
    };
    assert_eq!(
        offsets(BpObjectEntries::new(&bytes, Endian::Little).collect()),
        [1, 2, 3]
    );
    assert_eq!(
        offsets(BpObjectEntries::new(&bytes, Endian::Little).rev().collect()),
        [3, 2, 1]
    );
}

#[test]
fn a_livelist_free_cancels_one_allocation_of_its_address() {
    let entries = [
        entry(1, false),
        entry(2, false),
        entry(3, false),
        entry(2, true),
        entry(2, false),
        entry(3, false),
        entry(3, true),
    ];
    let live = live_pointers(&entries);
    let offsets: Vec<u64> = live.iter().map(|pointer| pointer.words[1]).collect();
    assert_eq!(offsets, [1, 3, 2]);
    assert!(live_pointers(&[]).is_empty());
}

#[test]
fn a_queue_that_ends_before_it_begins_is_refused() {
    let phys = BpTreePhys {
        begin: 3,
        end: 2,
        ..BpTreePhys::default()
    };
    assert!(BpTreePhys::decode(&phys.encode(), Endian::Little).is_err());
    let empty = BpTreePhys { end: 3, ..phys };
    assert_eq!(
        BpTreePhys::decode(&empty.encode(), Endian::Little),
        Ok(empty)
    );
    assert!(BpTreePhys::decode(&[0; 39], Endian::Little).is_err());
    assert!(DeadlistPhys::decode(&[0; 23], Endian::Little).is_err());
    assert!(BpTreeEntry::decode(&[0; 167], Endian::Little).is_err());
    assert_eq!(DeadlistPhys::default().encode().len(), DEADLIST_BYTES);
}

proptest! {
    #[test]
    fn headers_and_entries_round_trip_in_both_orders(words: [u64; 21]) {
        let entry = BpTreeEntry {
            pointer: BlockPointer { words: words[..16].try_into().unwrap() },
            birth: Txg(words[16]),
            resume: BlockBookmark::from_words(words[17..].try_into().unwrap()),
        };
        let bytes = entry.encode();
        prop_assert_eq!(BpTreeEntry::decode(&bytes, Endian::Little).unwrap(), entry);
        prop_assert_eq!(BpTreeEntry::decode(&swapped_words(&bytes), Endian::Big).unwrap(), entry);
        let tree = BpTreePhys { begin: words[0].min(words[1]), end: words[0].max(words[1]), bytes: words[2], compressed_bytes: words[3], uncompressed_bytes: words[4] };
        prop_assert_eq!(BpTreePhys::decode(&tree.encode(), Endian::Little).unwrap(), tree);
        let list = DeadlistPhys { used_bytes: words[0], compressed_bytes: words[1], uncompressed_bytes: words[2] };
        prop_assert_eq!(DeadlistPhys::decode(&swapped_words(&list.encode()), Endian::Big).unwrap(), list);
    }
}
