use millpond_ondisk::Ashift;
use proptest::prelude::*;

use super::*;

fn shape_a() -> DraidGeometry {
    DraidGeometry::new(9, 2, 2, 1, 2).unwrap()
}

fn shape_b() -> DraidGeometry {
    DraidGeometry::new(8, 1, 3, 2, 3).unwrap()
}

fn columns(geometry: &DraidGeometry, offset: u64, size: u64) -> Vec<Vec<(u64, u64, u64)>> {
    let rows = geometry.map(offset, size, Ashift(12)).unwrap();
    let tuple = |c: &DraidColumn| (c.child, c.offset_bytes, c.size_bytes);
    rows.iter()
        .map(|row| row.columns.iter().map(tuple).collect())
        .collect()
}

#[test]
fn columns_match_the_known_examples() {
    let (a, b) = (shape_a(), shape_b());
    let sector = 0x1000u64;
    assert_eq!(
        columns(&a, 0, 0x1000),
        [[(7, 0, sector), (3, 0, sector), (6, 0, sector), (5, 0, 0)]]
    );
    let at = 0x4e_0000;
    assert_eq!(
        columns(&a, 0x138_0000, 0x1000),
        [[
            (7, at, sector),
            (3, at, sector),
            (6, at, sector),
            (5, at, 0)
        ]]
    );
    let at = 0x90d_9000;
    assert_eq!(
        columns(&a, 0x4836_4000, 0x2000),
        [[
            (8, at, sector),
            (1, at, sector),
            (5, at, sector),
            (2, at, sector)
        ]]
    );
    let at = 0xff_f000;
    assert_eq!(
        columns(&a, 0x3ff_c000, 0x6000),
        [
            [
                (7, at, sector),
                (3, at, sector),
                (6, at, sector),
                (5, at, sector)
            ],
            [
                (0, 0, 0x2000),
                (2, 0, 0x2000),
                (8, 0, 0x2000),
                (4, 0, 0x2000)
            ],
        ]
    );
    let at = 0xc0d_9000;
    assert_eq!(
        columns(&b, 0x4836_4000, 0x2000),
        [[
            (3, at, sector),
            (4, at, sector),
            (7, at, sector),
            (6, at, 0)
        ]]
    );
    let at = 0xff_f000;
    assert_eq!(
        columns(&b, 0x3ff_c000, 0x6000),
        [
            [
                (5, at, sector),
                (6, at, sector),
                (1, at, sector),
                (0, at, sector)
            ],
            [
                (2, 0, sector),
                (4, 0, sector),
                (5, 0x100_0000, sector),
                (6, 0x100_0000, sector)
            ],
        ]
    );
}

#[test]
fn allocatable_space_is_that_of_the_known_examples() {
    // Devices of 256 MiB.
    let child = (256 << 20) - (4 << 20) - (512 << 10);
    assert_eq!(shape_a().asize_from_children(child), Some(1_744_830_464));
    assert_eq!(shape_b().asize_from_children(child), Some(1_275_068_416));
    assert_eq!(shape_a().asize_from_children(1 << 20), Some(0));
    assert_eq!(shape_a().name(), "draid2:2d:9c:1s");
}

#[test]
fn blocks_take_whole_rows_of_their_group() {
    let sector = Sector::new(Ashift(12)).unwrap();
    let b = shape_b();
    assert_eq!(b.asize(1, sector), Some(4 * 4096));
    assert_eq!(b.asize(3 * 4096, sector), Some(4 * 4096));
    assert_eq!(b.asize(3 * 4096 + 1, sector), Some(8 * 4096));
    assert_eq!(b.psize_max(8 * 4096 + 100, sector), Some(6 * 4096));
}

#[test]
fn impossible_shapes_are_refused() {
    let new = DraidGeometry::new;
    assert!(new(9, 2, 2, 1, 2).is_ok());
    assert!(new(256, 2, 2, 1, 2).is_err() && new(1, 1, 1, 0, 1).is_err());
    assert!(new(9, 0, 2, 1, 2).is_err() && new(9, 4, 2, 1, 2).is_err());
    assert!(new(9, 2, 0, 1, 2).is_err() && new(9, 2, u64::MAX, 1, 2).is_err());
    assert!(new(9, 2, 2, 6, 2).is_err() && new(9, 2, 2, 101, 2).is_err());
    assert!(new(9, 2, 2, 1, 0).is_err() && new(9, 2, 2, 1, 1 << 40).is_err());
    // Three groups of four columns do not fill whole rows of eight.
    assert!(new(9, 2, 2, 1, 3).is_err());
}

proptest! {
    #[test]
    fn each_column_of_a_row_is_on_its_own_child(
        parity in 1u64..4, data in 1u64..9, spares in 0u64..5, more in 0u64..30,
        stripe in 0u64..1 << 30, sectors in 1u64..200,
    ) {
        let children = parity + data + spares + more;
        prop_assume!((2..=255).contains(&children));
        let (width, disks) = (parity + data, children - spares);
        let groups = (1..).find(|groups| groups * width % disks == 0).unwrap();
        let geometry = DraidGeometry::new(children as usize, parity, data, spares, groups).unwrap();
        let offset = stripe * width * 512;
        let rows = geometry.map(offset, sectors * 512, Ashift(9)).unwrap();
        prop_assert!(rows.len() <= 2);
        let mut total = 0;
        for row in &rows {
            prop_assert_eq!(row.columns.len() as u64, width);
            let mut seen: Vec<u64> = row.columns.iter().map(|c| c.child).collect();
            seen.sort_unstable();
            seen.dedup();
            prop_assert_eq!(seen.len() as u64, width);
            for column in &row.columns {
                prop_assert!(column.size_bytes <= row.column_bytes);
                for spare in 0..spares {
                    let holder = geometry.spare_child(spare, column.offset_bytes).unwrap();
                    prop_assert_ne!(holder, column.child);
                    // A column never crosses the end of its slice.
                    let last = column.offset_bytes + row.column_bytes - 1;
                    prop_assert_eq!(geometry.spare_child(spare, last), Some(holder));
                }
            }
            total += row.columns.iter().skip(parity as usize).map(|c| c.size_bytes).sum::<u64>();
        }
        prop_assert_eq!(total, sectors * 512);
    }

    /// Each stripe of the vdev is found again on exactly the children of its group, in the order of the offsets.
    #[test]
    fn ranges_of_children_are_those_of_their_columns(
        parity in 1u64..3, data in 1u64..4, spares in 0u64..3, more in 0u64..4,
        start in 0u64..80 << 10, length in 1u64..200 << 10,
    ) {
        let children = parity + data + spares + more;
        prop_assume!((2..=255).contains(&children));
        let geometry =
            DraidGeometry::with_fewest_groups(children as usize, parity, data, spares).unwrap();
        let ashift = Ashift(16);
        let stripe = geometry.group_width() << 16;
        let range = start << 12..(start + length) << 12;
        let stripes = range.start.div_ceil(stripe)..range.end / stripe;
        let mut expected = vec![vec![]; children as usize];
        for number in stripes {
            for row in geometry.map(number * stripe, data << 16, ashift).unwrap() {
                for column in row.columns {
                    expected[column.child as usize].push((number * stripe, column.offset_bytes));
                }
            }
        }
        for (child, expected) in (0u64..).zip(expected) {
            let ranges = geometry.child_ranges(child, &range, ashift).unwrap();
            let found: Vec<u64> = ranges.iter().flat_map(|one| one.clone().step_by(1 << 16)).collect();
            let places: Vec<u64> = expected.iter().map(|(_, place)| *place).collect();
            prop_assert_eq!(&found, &places);
            prop_assert!(found.is_sorted());
            for (done, place) in &expected {
                let at = geometry.offset_behind(child, *place, ashift).unwrap();
                prop_assert_eq!(at, *done);
                // Nothing behind is left out, wherever on the child one continues.
                let behind = geometry.offset_behind(child, place + (1 << 16), ashift).unwrap();
                let mut later = expected.iter().filter(|(_, other)| other > place);
                prop_assert!(later.all(|(offset, _)| *offset >= behind));
            }
        }
    }

    #[test]
    fn hostile_numbers_never_panic(offset in any::<u64>(), size in any::<u64>(), ashift in any::<u8>()) {
        for geometry in [shape_a(), shape_b()] {
            let _ = geometry.map(offset & !0x3fff, size & 0x1ff_ffff & !0xfff, Ashift(ashift));
            let _ = (geometry.spare_child(size % 3, offset), geometry.asize_from_children(offset));
            let _ = geometry.offset_behind(size % 10, offset, Ashift(ashift));
            let range = offset..offset.saturating_add(size & 0x1ff_ffff);
            let _ = geometry.child_ranges(size % 10, &range, Ashift(ashift));
            let sector = Sector::new(Ashift(9 + ashift % 8)).unwrap();
            let _ = (geometry.asize(size, sector), geometry.psize_max(size, sector));
        }
    }
}
