use millpond_ondisk::{Ashift, Txg};
use proptest::prelude::*;

use super::*;
use crate::tree::Reflow;

/// Offset, size, ashift, children, parity; then child, offset, size of each column.
type Example = ((u64, u64, u8, u64, u64), &'static [(u64, u64, u64)]);

#[test]
fn columns_match_the_known_examples() {
    let cases: [Example; 6] = [
        (
            (0x1000, 0x2000, 12, 4, 1),
            &[(1, 0, 0x1000), (2, 0, 0x1000), (3, 0, 0x1000)],
        ),
        (
            (0x10_4000, 0x3000, 12, 4, 1),
            &[
                (1, 0x41000, 0x1000),
                (0, 0x41000, 0x1000),
                (2, 0x41000, 0x1000),
                (3, 0x41000, 0x1000),
            ],
        ),
        (
            (0x5200, 0xa00, 9, 5, 1),
            &[
                (1, 0x1000, 0x400),
                (2, 0x1000, 0x400),
                (3, 0x1000, 0x200),
                (4, 0x1000, 0x200),
                (0, 0x1200, 0x200),
            ],
        ),
        (
            (0x7000, 0x5000, 12, 5, 2),
            &[
                (2, 0x1000, 0x2000),
                (3, 0x1000, 0x2000),
                (4, 0x1000, 0x2000),
                (0, 0x2000, 0x2000),
                (1, 0x2000, 0x1000),
            ],
        ),
        (
            (0x10e00, 0x4000, 9, 7, 3),
            &[
                (2, 0x2600, 0x1000),
                (3, 0x2600, 0x1000),
                (4, 0x2600, 0x1000),
                (5, 0x2600, 0x1000),
                (6, 0x2600, 0x1000),
                (0, 0x2800, 0x1000),
                (1, 0x2800, 0x1000),
            ],
        ),
        (
            (0x2000, 0x1000, 12, 6, 3),
            &[
                (2, 0, 0x1000),
                (3, 0, 0x1000),
                (4, 0, 0x1000),
                (5, 0, 0x1000),
            ],
        ),
    ];
    for ((offset, size, ashift, children, parity), expected) in cases {
        let map = RaidzMap::new(offset, size, Ashift(ashift), children, parity).unwrap();
        let columns: Vec<_> = map
            .columns
            .iter()
            .map(|c| (c.child, c.offset_bytes, c.size_bytes))
            .collect();
        assert_eq!(columns, expected, "{offset:x}");
    }
}

#[test]
fn sizes_are_those_of_the_known_examples() {
    let cases = [
        (131_072u64, 12u8, 4usize, 1u64, 180_224u64),
        (131_072, 9, 5, 1, 163_840),
        (131_072, 12, 6, 2, 196_608),
        (131_072, 12, 8, 2, 184_320),
        (4096, 12, 5, 2, 12_288),
        (131_072, 12, 9, 3, 212_992),
        (512, 9, 4, 1, 1024),
    ];
    for (psize, ashift, children, parity, asize) in cases {
        let geometry = RaidzGeometry::new(children, parity, &[], false).unwrap();
        let sector = Sector::new(Ashift(ashift)).unwrap();
        assert_eq!(geometry.asize(psize, sector, Txg(0)), Some(asize));
        assert!(geometry.psize_max(asize, sector, Txg(0)).unwrap() >= psize);
    }
}

#[test]
fn a_blocks_width_is_that_of_the_last_expansion_before_birth() {
    let geometry = RaidzGeometry::new(6, 1, &[Txg(50), Txg(70)], true).unwrap();
    let width = |txg| geometry.logical_width(Txg(txg));
    assert_eq!([0, 49, 50, 69, 70, u64::MAX].map(width), [3, 3, 4, 4, 5, 5]);
}

#[test]
fn impossible_shapes_are_refused() {
    let new = RaidzGeometry::new;
    assert!(new(256, 1, &[], false).is_err());
    assert!(new(255, 3, &[], false).is_ok());
    assert!(new(4, 0, &[], false).is_err() && new(4, 4, &[], false).is_err());
    assert!(new(2, 2, &[], false).is_err() && new(0, 1, &[], false).is_err());
    assert!(new(3, 1, &[Txg(5), Txg(6)], false).is_err());
    assert!(new(3, 2, &[], true).is_err());
    assert!(new(5, 1, &[Txg(6), Txg(5)], false).is_err());
    assert!(new(3, 1, &[Txg(1), Txg(2), Txg(3), Txg(4)], true).is_err());
}

#[test]
fn rows_are_read_at_old_new_and_scratch_offsets() {
    let geometry = RaidzGeometry::new(4, 1, &[], true).unwrap();
    let map = |moved_sectors: u64, scratch_state: u16| {
        let reflow = Reflow {
            offset_bytes: moved_sectors << 9,
            scratch_state,
        };
        // Six data sectors in three rows of three, from raid sector 30.
        let places = CellPlaces::Read(reflow);
        ExpandedMap::new(30 << 9, 6 << 9, Ashift(9), &geometry, 3, places).unwrap()
    };
    let first_cells = |map: &ExpandedMap| -> Vec<(u64, u64)> {
        map.rows
            .iter()
            .map(|row| row[0].unwrap())
            .map(|c| (c.child, c.device_offset_bytes))
            .collect()
    };
    let start = 4u64 << 20;
    // Nothing moved: 30, 33, 36 at width 3.
    let old = [
        (0, start + 10 * 512),
        (0, start + 11 * 512),
        (0, start + 12 * 512),
    ];
    assert_eq!(first_cells(&map(32, 0)), old);
    // One row moved: 30 at width 4.
    assert_eq!(
        first_cells(&map(33, 0)),
        [(2, start + 7 * 512), old[1], old[2]]
    );
    assert_eq!(
        first_cells(&map(35, 0)),
        [(2, start + 7 * 512), old[1], old[2]]
    );
    let boot = 512u64 << 10;
    assert_eq!(
        first_cells(&map(33, 1)),
        [(2, boot + 7 * 512), old[1], old[2]]
    );
    assert_eq!(
        first_cells(&map(33, 2)),
        [(2, start + 7 * 512), old[1], old[2]]
    );
    // All rows: 30, 33, 36 at width 4.
    let new = [
        (2, start + 7 * 512),
        (1, start + 8 * 512),
        (0, start + 9 * 512),
    ];
    assert_eq!(first_cells(&map(39, 4)), new);
}

proptest! {
    #[test]
    fn columns_never_overlap_and_hold_all_of_the_block(
        first in 0u64..1 << 40, sectors in 1u64..3000, children in 2u64..40, parity in 1u64..4,
        ashift in 9u8..=16,
    ) {
        prop_assume!(children > parity);
        let map =
            RaidzMap::new(first << ashift, sectors << ashift, Ashift(ashift), children, parity).unwrap();
        let data: u64 = map.columns.iter().skip(parity as usize).map(|c| c.size_bytes).sum();
        prop_assert_eq!(data, sectors << ashift);
        let mut used: Vec<u64> = map.columns.iter().map(|c| c.child).collect();
        used.sort_unstable();
        used.dedup();
        prop_assert_eq!(used.len(), map.columns.len());
        // All of it lies within the space that the block takes.
        let sector = Sector::new(Ashift(ashift)).unwrap();
        let geometry = RaidzGeometry::new(children as usize, parity, &[], false).unwrap();
        let end = first + sector.whole(geometry.asize(sectors << ashift, sector, Txg(0)).unwrap());
        for column in &map.columns {
            let rows = column.offset_bytes >> ashift..(column.offset_bytes + column.size_bytes) >> ashift;
            for row in rows {
                let number = row * children + column.child;
                prop_assert!(number >= first && number < end);
            }
        }
    }

    #[test]
    fn hostile_numbers_never_panic(
        offset in any::<u64>(), size in 0u64..1 << 25, ashift in any::<u8>(),
        children in prop_oneof![any::<u64>(), 0u64..300], parity in prop_oneof![any::<u64>(), 0u64..5],
        reflow in any::<u64>(),
    ) {
        if children < 1000 {
            let _ = RaidzMap::new(offset, size, Ashift(ashift), children, parity);
        }
        if let Ok(geometry) = RaidzGeometry::new(children as usize % 300, parity, &[], true) {
            let reflow = Reflow::from_uberblock(reflow);
            let aligned = offset & !0xffff;
            let _ = ExpandedMap::new(
                aligned, size & !0xffff, Ashift(ashift), &geometry, geometry.logical_width(Txg(0)),
                CellPlaces::Read(reflow),
            );
            let _ = ExpandedMap::new(
                aligned, size & !0xffff, Ashift(ashift), &geometry, geometry.logical_width(Txg(0)),
                CellPlaces::Moved(offset),
            );
            let sector = Sector::new(Ashift(9 + ashift % 8)).unwrap();
            let _ = (geometry.asize(offset, sector, Txg(1)), geometry.psize_max(offset, sector, Txg(1)));
        }
    }
}
