use super::*;
use crate::testing::{hex, swapped_words};
use crate::{Txg, VdevId};
use proptest::prelude::*;

fn entries(bytes: &[u8], endian: Endian) -> Vec<SpaceMapEntry> {
    SpaceMapEntries::new(bytes, endian)
        .collect::<Result<_, _>>()
        .unwrap()
}

#[test]
fn a_real_metaslab_map_decodes_as_debug_word_and_allocations() {
    let bytes = hex("0500000000000480 0a00000000000000 08000c0000000000");
    let read = entries(&bytes, Endian::Little);
    assert_eq!(
        read,
        [
            SpaceMapEntry::Debug {
                txg: Txg(5),
                sync_pass: 1,
                action: SpaceAction::Allocate
            },
            SpaceMapEntry::Range {
                action: SpaceAction::Allocate,
                vdev: None,
                offset_units: 0,
                run_units: 11
            },
            SpaceMapEntry::Range {
                action: SpaceAction::Allocate,
                vdev: None,
                offset_units: 12,
                run_units: 9
            },
        ]
    );
    assert_eq!(entries(&swapped_words(&bytes), Endian::Big), read);
}

#[test]
fn a_real_log_space_map_decodes_as_two_word_entries() {
    let bytes = hex(
        "2900000000000480 0000001f000000c0 9806010000000000 2900000000000490 00000007000000c0 c038010000000080",
    );
    let read = entries(&bytes, Endian::Little);
    let SpaceMapEntry::Range {
        action,
        vdev,
        offset_units,
        run_units,
    } = read[1]
    else {
        panic!("not a range")
    };
    assert_eq!((action, vdev), (SpaceAction::Allocate, Some(VdevId(0))));
    assert_eq!(
        SpaceMapUnits::LOG.range_bytes(offset_units, run_units),
        Ok(0x20d_3000..0x20d_7000)
    );
    let SpaceMapEntry::Range {
        action,
        offset_units,
        run_units,
        ..
    } = read[3]
    else {
        panic!("not a range")
    };
    assert_eq!(action, SpaceAction::Free);
    assert_eq!(
        SpaceMapUnits::LOG.range_bytes(offset_units, run_units),
        Ok(0x271_8000..0x271_9000)
    );

    let mut writer = SpaceMapWriter::new(0, 131072, true);
    writer.put_debug(Txg(41), 1, SpaceAction::Allocate);
    writer
        .put_vdev_range(SpaceAction::Allocate, VdevId(0), 0x10698, 32)
        .unwrap();
    writer.put_debug(Txg(41), 1, SpaceAction::Free);
    writer
        .put_vdev_range(SpaceAction::Free, VdevId(0), 0x138c0, 8)
        .unwrap();
    assert_eq!(writer.finish(), bytes);
}

#[test]
fn a_real_log_header_is_negative_and_keeps_its_histogram() {
    let bytes = hex("a200000000000000 a002000000000000 00a0ffffffffffff");
    let header = SpaceMapPhys::decode(&bytes, Endian::Little).unwrap();
    assert_eq!(
        header,
        SpaceMapPhys {
            object: Some(ObjectId(162)),
            length_bytes: 0x2a0,
            allocated_bytes: -0x6000,
            histogram: None
        }
    );
    assert_eq!(header.encode(), bytes);
    assert_eq!(
        SpaceMapPhys::decode(&swapped_words(&bytes), Endian::Big).unwrap(),
        header
    );

    let mut with = hex("8a00000000000000 1804000000000000 00201c0000000000");
    with.resize(64, 0);
    for count in [0x12u64, 8, 2, 5, 0xb, 2, 0, 0, 0, 0, 0, 1] {
        with.extend(count.to_le_bytes());
    }
    with.resize(320, 0);
    let header = SpaceMapPhys::decode(&with, Endian::Little).unwrap();
    assert_eq!(header.histogram.unwrap().buckets[11], 1);
    assert_eq!(header.encode(), with);
}

#[test]
fn a_header_that_is_short_or_odd_is_refused() {
    assert!(SpaceMapPhys::decode(&[0; 23], Endian::Little).is_err());
    let mut bytes = [0; 24];
    bytes[8] = 7;
    assert!(SpaceMapPhys::decode(&bytes, Endian::Little).is_err());
}

#[test]
fn a_word_of_zero_allocates_the_first_unit() {
    assert_eq!(
        entries(&[0; 8], Endian::Little),
        [SpaceMapEntry::Range {
            action: SpaceAction::Allocate,
            vdev: None,
            offset_units: 0,
            run_units: 1
        }]
    );
}

#[test]
fn an_invalid_entry_gives_one_error_and_ends() {
    for bytes in [
        hex("0500000000000480 0a00"),
        hex("00000000000000c0"),
        hex("00000000000000f0 0000000000000000"),
        hex("05000000000000a0"),
    ] {
        let read: Vec<_> = SpaceMapEntries::new(&bytes, Endian::Little).collect();
        assert!(read.last().unwrap().is_err(), "{bytes:?}");
        assert_eq!(read.iter().filter(|entry| entry.is_err()).count(), 1);
    }
}

#[test]
fn a_two_word_entry_is_padded_to_the_next_block() {
    let mut writer = SpaceMapWriter::new(4088, 4096, true);
    writer
        .put_vdev_range(SpaceAction::Free, VdevId(3), 9, 4)
        .unwrap();
    let bytes = writer.finish();
    assert_eq!(bytes.len(), 24);
    assert_eq!(
        entries(&bytes[..8], Endian::Little),
        [SpaceMapEntry::Padding]
    );
    assert_eq!(
        entries(&bytes[8..], Endian::Little),
        [SpaceMapEntry::Range {
            action: SpaceAction::Free,
            vdev: Some(VdevId(3)),
            offset_units: 9,
            run_units: 4
        }]
    );
}

#[test]
fn without_two_word_entries_long_runs_are_split() {
    let mut writer = SpaceMapWriter::new(0, 4096, false);
    writer
        .put_range(SpaceAction::Allocate, 5, (1 << 15) + 2)
        .unwrap();
    assert_eq!(writer.length_bytes(), 16);
    assert!(writer.put_range(SpaceAction::Allocate, 1 << 47, 1).is_err());
    assert!(writer.put_range(SpaceAction::Allocate, 5, 0).is_err());
}

#[test]
fn one_word_entries_are_used_if_the_range_fits() {
    let bytes = |two_words, offset, run| {
        let mut writer = SpaceMapWriter::new(0, 4096, two_words);
        let done = writer.put_range(SpaceAction::Free, offset, run);
        done.map(|()| writer.finish().len()).ok()
    };
    let (run, end) = (1 << 15, 1u64 << 47);
    assert_eq!(bytes(true, 0, run), Some(8));
    assert_eq!(bytes(true, 0, run + 1), Some(16));
    assert_eq!(bytes(true, end - 1, 1), Some(8));
    assert_eq!(bytes(true, end, 1), Some(16));
    assert_eq!(bytes(true, end, run + 1), Some(16));
    // Without the feature, a longer run is cut, and a run that ends after the last unit is refused.
    assert_eq!(bytes(false, 0, run + 1), Some(16));
    assert_eq!(bytes(false, end - 1, 1), Some(8));
    assert_eq!(bytes(false, end - run - 1, run + 1), Some(16));
    assert_eq!(bytes(false, end - 1, 2), None);
    // Two words reach up to 2^63.
    assert_eq!(bytes(true, (1 << 63) - 1, 1), Some(16));
    assert_eq!(bytes(true, (1 << 63) - 1, 2), None);
    assert_eq!(bytes(true, 1 << 63, 1), None);
    assert_eq!(bytes(true, 0, 1 << 36), Some(16));
    assert_eq!(bytes(true, 0, (1 << 36) + 1), Some(32));
}

#[test]
fn ranges_outside_the_map_or_beyond_64_bits_are_refused() {
    let units = SpaceMapUnits {
        shift: 12,
        start_bytes: 1 << 24,
        size_bytes: Some(1 << 24),
    };
    assert_eq!(units.range_bytes(0, 1), Ok(1 << 24..(1 << 24) + 4096));
    assert_eq!(units.range_bytes(4095, 1).unwrap().end, 2 << 24);
    assert!(units.range_bytes(4095, 2).is_err());
    assert!(units.range_bytes(1, 0).is_err());
    assert!(SpaceMapUnits::LOG.range_bytes(u64::MAX, 1).is_err());
    assert!(SpaceMapUnits::LOG.range_bytes(1, u64::MAX).is_err());
}

#[test]
fn histograms_count_by_powers_of_two_and_scale() {
    let mut histogram = SpaceHistogram::default();
    histogram.add(4096, 12);
    histogram.add(8191, 12);
    histogram.add(8192, 12);
    histogram.add(1 << 45, 12);
    histogram.add(0, 12);
    assert_eq!(histogram.buckets[0], 2);
    assert_eq!(histogram.buckets[1], 1);
    assert_eq!(histogram.buckets[31], 4);
}

proptest! {
    #[test]
    fn space_map_entries_round_trip(
        start in 0u64..5000,
        two_words: bool,
        ranges in proptest::collection::vec((any::<bool>(), 0u64..1 << 46, 1u64..1 << 20), 0..40),
    ) {
        let start = start * 8;
        let mut writer = SpaceMapWriter::new(start, 512, two_words);
        for (free, offset, run) in &ranges {
            let action = if *free { SpaceAction::Free } else { SpaceAction::Allocate };
            writer.put_range(action, *offset, *run).unwrap();
        }
        let mut merged: Vec<(bool, u64, u64)> = Vec::new();
        for entry in entries(&writer.finish(), Endian::Little) {
            if let SpaceMapEntry::Range { action, offset_units, run_units, .. } = entry {
                let free = action == SpaceAction::Free;
                match merged.last_mut() {
                    Some(last) if last.0 == free && last.1 + last.2 == offset_units && run_units != 0
                        && ranges.iter().all(|r| r.1 != offset_units) => last.2 += run_units,
                    _ => merged.push((free, offset_units, run_units)),
                }
            }
        }
        prop_assert_eq!(merged, ranges);
    }

    #[test]
    fn any_bytes_end_in_entries_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for endian in [Endian::Little, Endian::Big] {
            prop_assert!(SpaceMapEntries::new(&bytes, endian).count() <= bytes.len() / 8 + 1);
            let _ = SpaceMapPhys::decode(&bytes, endian);
        }
    }
}
