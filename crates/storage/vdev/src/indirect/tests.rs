use millpond_ondisk::{Dva, Endian, Guid, IndirectBirthEntry, IndirectMappingEntry, Txg, VdevId};
use proptest::prelude::*;

use super::*;
use crate::twin::{Twin, leaf, over};
use crate::{LeafId, PlanError, ReadPlan, Reflow, VdevConfig, VdevType};

/// The first entry of a real mapping, and two more.
const ENTRY: [u8; 24] = [
    0x28, 0, 0, 0, 0, 0, 0, 0, 0x08, 0, 0, 0, 0x03, 0, 0, 0, 0x70, 0x18, 0, 0, 0, 0, 0, 0,
];

#[test]
fn a_known_entry_is_decoded() {
    let births = [0xf7u8, 0x87, 0, 0, 0, 0, 0, 0, 0xbf, 3, 0, 0, 0, 0, 0, 0];
    let mapping = IndirectMapping::decode(&ENTRY, 1, &births, Endian::Little).unwrap();
    let expected = entry(0x28, 8, 3, 0x1870);
    assert_eq!(mapping.entries(), [expected]);
    assert_eq!(mapping.birth(0x5000), Some(Txg(959)));
    assert_eq!(mapping.birth(0x9000), None);
    let mut swapped = ENTRY;
    swapped.chunks_exact_mut(8).for_each(<[u8]>::reverse);
    let big = IndirectMapping::decode(&swapped, 1, &[], Endian::Big).unwrap();
    assert_eq!(big.entries(), [expected]);
}

#[test]
fn damaged_mappings_are_refused() {
    let decode = |bytes: &[u8], count| IndirectMapping::decode(bytes, count, &[], Endian::Little);
    assert!(decode(&ENTRY, 2).is_err());
    assert!(decode(&ENTRY[..23], 1).is_err());
    assert!(decode(&ENTRY, u64::MAX).is_err());
    assert!(
        decode(&[ENTRY, ENTRY].concat(), 2).is_err(),
        "the same entry twice overlaps"
    );
    assert!(decode(&[0; 24], 1).is_err(), "no destination");
    let births = [
        9u8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0,
        0, 0,
    ];
    assert!(IndirectMapping::decode(&[], 0, &births, Endian::Little).is_err());
    assert!(IndirectMapping::decode(&[], 0, &births[..31], Endian::Little).is_err());
}

/// All values are in sectors.
fn entry(source: u64, size: u64, vdev: u32, offset: u64) -> IndirectMappingEntry {
    IndirectMappingEntry {
        source_offset_bytes: source * 512,
        destination: Dva {
            vdev: VdevId(vdev),
            offset_bytes: offset * 512,
            asize_bytes: size * 512,
            is_gang: false,
        },
    }
}

fn mapping(entries: Vec<IndirectMappingEntry>) -> IndirectMapping {
    let birth = |end_offset_bytes, txg| IndirectBirthEntry {
        end_offset_bytes,
        birth: Txg(txg),
    };
    let births = vec![birth(20 * 512, 90), birth(1 << 40, 95)];
    IndirectMapping::from_entries(entries, births).unwrap()
}

#[test]
fn a_range_is_found_in_the_pieces_that_cover_it() {
    let mapping = mapping(vec![
        entry(8, 8, 1, 100),
        entry(16, 8, 0, 300),
        entry(40, 8, 1, 8),
    ]);
    let resolve = |offset: u64, size: u64| mapping.resolve(offset * 512, size * 512);
    let segment = |source: u64, vdev: u32, offset: u64, size: u64, birth: u64| Segment {
        source_bytes: source * 512,
        vdev: VdevId(vdev),
        offset_bytes: offset * 512,
        size_bytes: size * 512,
        birth: Some(Txg(birth)),
    };
    assert_eq!(resolve(10, 2), Some(vec![segment(10, 1, 102, 2, 90)]));
    assert_eq!(
        resolve(12, 10),
        Some(vec![segment(12, 1, 104, 4, 90), segment(16, 0, 300, 6, 90)])
    );
    assert_eq!(resolve(20, 4), Some(vec![segment(20, 0, 304, 4, 95)]));
    assert_eq!(resolve(20, 5), None, "a gap within the range");
    assert_eq!(resolve(0, 9), None);
    assert_eq!(resolve(47, 2), None);
    assert_eq!(mapping.resolve(u64::MAX - 5, 100), None);
}

#[test]
fn the_mapped_parts_of_a_range_leave_out_gaps() {
    let mapping = mapping(vec![
        entry(8, 8, 1, 100),
        entry(16, 8, 0, 300),
        entry(40, 8, 1, 8),
    ]);
    let parts = |range: core::ops::Range<u64>| {
        let parts = mapping.mapped_parts(&(range.start * 512..range.end * 512));
        let sectors = parts.iter().map(|part| {
            let at = (part.source_bytes / 512, part.size_bytes / 512);
            (at, part.vdev.0, part.offset_bytes / 512)
        });
        sectors.collect::<Vec<_>>()
    };
    assert_eq!(
        parts(0..60),
        [((8, 8), 1, 100), ((16, 8), 0, 300), ((40, 8), 1, 8)]
    );
    assert_eq!(parts(12..18), [((12, 4), 1, 104), ((16, 2), 0, 300)]);
    assert_eq!(parts(22..41), [((22, 2), 0, 306), ((40, 1), 1, 8)]);
    assert!(parts(24..40).is_empty() && parts(0..8).is_empty() && parts(48..90).is_empty());
}

#[test]
fn a_mapping_grows_at_its_end_only() {
    let mut mapping = IndirectMapping::default();
    assert_eq!(mapping.end_bytes(), 0);
    assert!(mapping.append(&[], Txg(5)));
    assert!(mapping.births().is_empty());
    assert!(mapping.append(&[entry(8, 8, 1, 100), entry(16, 4, 1, 300)], Txg(7)));
    assert!(mapping.append(&[entry(24, 4, 1, 400)], Txg(7)));
    assert!(mapping.append(&[entry(40, 8, 1, 500)], Txg(9)));
    let before = mapping.clone();
    for wrong in [
        entry(44, 8, 1, 600),
        entry(0, 4, 1, 600),
        entry(48, 0, 1, 600),
    ] {
        assert!(!mapping.append(&[wrong], Txg(9)));
        assert_eq!(mapping, before);
    }
    assert_eq!(mapping.end_bytes(), 48 * 512);
    let births = mapping.births().iter();
    let births: Vec<_> = births
        .map(|one| (one.end_offset_bytes / 512, one.birth.0))
        .collect();
    assert_eq!(births, [(28, 7), (48, 9)]);
    assert_eq!(mapping.birth(27 * 512), Some(Txg(7)));
    assert_eq!(mapping.birth(28 * 512), Some(Txg(9)));
}

/// A pool with a removed vdev, of which a block of 9 sectors was split over two mirrors.
fn split() -> Twin {
    let mirror = |guid: u64, sides: u64| VdevConfig {
        ashift: 9,
        ..over(
            VdevType::Mirror,
            guid,
            (1..=sides).map(|at| leaf(guid + at)).collect(),
        )
    };
    let removed = VdevConfig {
        ashift: 9,
        ..VdevConfig::new(VdevType::Indirect, Guid(90))
    };
    let mut twin = Twin::over_all(
        vec![removed, mirror(10, 2), mirror(20, 3)],
        Reflow::default(),
    );
    let map = mapping(vec![
        entry(0, 12, 1, 50),
        entry(12, 4, 2, 70),
        entry(16, 8, 1, 80),
    ]);
    twin.indirect.insert(VdevId(0), map);
    twin.range.offset_bytes = 10 * 512;
    twin.range.size_bytes = 8 * 512 + 100;
    twin.data = (0..8 * 512 + 100)
        .map(|at: usize| (at * 31 % 251) as u8)
        .collect();
    let mut whole = twin.data.clone();
    whole.resize(9 * 512, 0);
    for side in [0, 1] {
        twin.device(side)
            .write((4 << 20) + 60 * 512, &whole[..2 * 512]);
        twin.device(side)
            .write((4 << 20) + 80 * 512, &whole[6 * 512..]);
    }
    for side in [2, 3, 4] {
        twin.device(side)
            .write((4 << 20) + 70 * 512, &whole[2 * 512..6 * 512]);
    }
    twin
}

#[test]
fn a_split_block_uses_the_right_copy_of_each_piece() {
    let mut twin = split();
    assert_eq!(twin.read().unwrap().data, twin.data);
    assert!(twin.audit().is_clean());
    // Every set of corrupted leaves that leaves one good copy of each segment.
    for liars in [
        vec![0u32],
        vec![1],
        vec![2, 3],
        vec![2, 4],
        vec![3, 4],
        vec![0, 2, 3],
        vec![1, 3, 4],
    ] {
        let mut twin = split();
        for liar in &liars {
            twin.device(*liar).rot(*liar as u8);
        }
        let resolved = twin.read().unwrap();
        assert_eq!(resolved.data, twin.data, "{liars:?}");
        let named = Twin::named(&resolved);
        // If a leaf that was read is corrupted, all are read and every corrupted one is named.
        if !named.is_empty() {
            assert_eq!(named, liars.iter().map(|leaf| LeafId(*leaf)).collect());
        }
    }
    // Both sides are corrupted, in different segments.
    let mut twin = split();
    for (side, at) in [(0u32, 60u64), (1, 80)] {
        let at = (4 << 20) + at * 512;
        let mut bytes = twin.device(side).read(at, 512).unwrap();
        bytes[0] ^= 1;
        twin.device(side).write(at, &bytes);
    }
    assert_eq!(twin.read().unwrap().data, twin.data);
    let mut twin = split();
    twin.device(0).rot(1);
    twin.device(1).rot(2);
    assert!(twin.read().is_err());
}

#[test]
fn indirect_mappings_may_nest_but_not_cycle() {
    let removed = |guid| VdevConfig {
        ashift: 9,
        ..VdevConfig::new(VdevType::Indirect, Guid(guid))
    };
    let tops = vec![
        removed(90),
        removed(91),
        VdevConfig {
            ashift: 9,
            ..leaf(3)
        },
        removed(92),
    ];
    let mut twin = Twin::over_all(tops, Reflow::default());
    twin.indirect.insert(
        VdevId(0),
        mapping(vec![entry(0, 8, 1, 8), entry(8, 8, 1, 4)]),
    );
    twin.indirect.insert(
        VdevId(1),
        mapping(vec![entry(0, 10, 2, 100), entry(10, 30, 2, 200)]),
    );
    twin.indirect
        .insert(VdevId(3), mapping(vec![entry(0, 8, 3, 0)]));
    twin.range.size_bytes = 16 * 512;
    twin.data = (0..16 * 512).map(|at: usize| (at / 512) as u8).collect();
    let data = twin.data.clone();
    // 0..2 at 108, 2..8 at 200; 8..14 at 104, 14..16 at 200 (the same bytes as 2..4).
    let mut data2 = data.clone();
    data2.copy_within(2 * 512..4 * 512, 14 * 512);
    twin.data = data2.clone();
    for (at, part) in [(108u64, 0..2usize), (200, 2..8), (104, 8..12)] {
        let bytes = data2[part.start * 512..part.end * 512].to_vec();
        twin.device(0).write((4 << 20) + at * 512, &bytes);
    }
    // 12 and 13 map to 108 and 109, which hold 0 and 1.
    twin.data.copy_within(0..2 * 512, 12 * 512);
    assert_eq!(twin.read().unwrap().data, twin.data);

    twin.range.vdev = VdevId(3);
    let plan = ReadPlan::new(&twin.tree, &twin.health, &twin.indirect, twin.range);
    assert!(matches!(plan, Err(PlanError::Unmapped { .. })));
    twin.range.size_bytes = 512;
    let plan = ReadPlan::new(&twin.tree, &twin.health, &twin.indirect, twin.range);
    assert!(matches!(plan, Err(PlanError::TooManyPieces)));
}

proptest! {
    #[test]
    fn any_bytes_decode_or_fail_and_resolve_without_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        births in proptest::collection::vec(any::<u8>(), 0..64),
        count in 0u64..9, offset in any::<u64>(), size in any::<u64>(),
    ) {
        if let Ok(mapping) = IndirectMapping::decode(&bytes, count, &births, Endian::Little) {
            let _ = mapping.resolve(offset, size);
            for entry in mapping.entries() {
                let pieces = mapping.resolve(entry.source_offset_bytes, entry.length_bytes());
                prop_assert!(pieces.is_none_or(|pieces| pieces.len() == 1));
            }
        }
    }
}
