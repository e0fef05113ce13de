//! Where the space of a top-level vdev lies on one of its leaves.

use crate::vdevs::rearrange::path_to;
use millpond_ondisk::{Guid, VdevId};
use millpond_vdev::{VdevConfig, VdevType};
use std::ops::Range;

/// The place of a leaf in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) top: VdevId,
    sector_bytes: u64,
    /// Of the RAID-Z vdevs above it: the number of columns, and which of them it is. At most one in a valid tree.
    columns: Vec<(u64, u64)>,
}

impl Place {
    /// `None` if there is no such leaf, or the vdev maps its space in another way: dRAID, a RAID-Z that is being
    /// expanded.
    pub(super) fn of(root: &VdevConfig, leaf: Guid) -> Option<Self> {
        let path = path_to(root, leaf)?;
        let (first, rest) = path.split_first()?;
        let top = root.children.get(*first)?;
        let ashift = u32::try_from(top.ashift).ok()?;
        if !(9..=16).contains(&ashift) {
            return None;
        }
        let (mut vdev, mut columns) = (top, vec![]);
        for index in rest {
            match vdev.kind {
                VdevType::Mirror | VdevType::Replacing | VdevType::Spare => {}
                VdevType::Raidz if !vdev.raidz_expanding => {
                    columns.push((vdev.children.len() as u64, *index as u64));
                }
                _ => return None,
            }
            vdev = vdev.children.get(*index)?;
        }
        (vdev.kind.is_device() && columns.len() <= 1).then_some(Self {
            top: VdevId(u32::try_from(*first).ok()?),
            sector_bytes: 1 << ashift,
            columns,
        })
    }

    /// The leaf's part of a range of the top-level vdev, in bytes from the start of the leaf's space. Empty if it has
    /// none.
    pub(super) fn leaf_range(&self, range: &Range<u64>) -> Range<u64> {
        self.leaf_bytes(range.start)..self.leaf_bytes(range.end)
    }

    /// The first byte of the leaf whose place on the top-level vdev is at `offset` or behind it.
    fn leaf_bytes(&self, offset: u64) -> u64 {
        let Some((columns, column)) = self.columns.first() else {
            return offset;
        };
        // Sectors are laid out row by row.
        let sector = offset.div_ceil(self.sector_bytes);
        let rows = sector.saturating_sub(*column).div_ceil((*columns).max(1));
        rows.saturating_mul(self.sector_bytes)
    }

    /// Where to continue on the top-level vdev when the leaf is done up to `leaf_bytes`. Before it may lie space that is
    /// done already.
    pub(super) fn top_bytes(&self, leaf_bytes: u64) -> u64 {
        let columns = self.columns.first().map_or(1, |(columns, _)| *columns);
        let rows = leaf_bytes / self.sector_bytes;
        rows.saturating_mul(columns)
            .saturating_mul(self.sector_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vdev(kind: VdevType, guid: u64, children: Vec<VdevConfig>) -> VdevConfig {
        VdevConfig {
            children,
            ashift: 9,
            ..VdevConfig::new(kind, Guid(guid))
        }
    }
    fn file(guid: u64) -> VdevConfig {
        vdev(VdevType::File, guid, vec![])
    }

    #[test]
    fn each_sector_belongs_to_one_leaf() {
        let replacing = vdev(VdevType::Replacing, 20, vec![file(3), file(4)]);
        let raidz = vdev(VdevType::Raidz, 10, vec![file(1), file(2), replacing]);
        let mirror = vdev(VdevType::Mirror, 11, vec![file(5), file(6)]);
        let root = vdev(VdevType::Root, 9, vec![mirror, raidz]);
        let side = Place::of(&root, Guid(6)).unwrap();
        assert_eq!(side.top, VdevId(0));
        assert_eq!(side.leaf_range(&(512..4096)), 512..4096);
        assert_eq!(side.top_bytes(4096), 4096);
        for (column, guid) in [(0, 1), (1, 2), (2, 4)] {
            let place = Place::of(&root, Guid(guid)).unwrap();
            assert_eq!(place.top, VdevId(1));
            for start in 0..14u64 {
                for end in start..14 {
                    let mine: Vec<u64> = (start..end).filter(|at| at % 3 == column).collect();
                    let range = place.leaf_range(&(start * 512..end * 512));
                    let rows: Vec<u64> = (range.start / 512..range.end / 512).collect();
                    let expected: Vec<u64> = mine.iter().map(|at| at / 3).collect();
                    assert_eq!(rows, expected, "{column}: {start}..{end}");
                    // Nothing of the leaf behind the end is skipped.
                    let next = place.top_bytes(range.end) / 512;
                    assert!(
                        (end..next).all(|at| at % 3 != column),
                        "{column}: {end}, {next}"
                    );
                }
            }
        }
    }

    #[test]
    fn vdevs_with_other_layouts_are_refused() {
        let expanding = VdevConfig {
            raidz_expanding: true,
            ..vdev(VdevType::Raidz, 10, vec![file(1), file(2)])
        };
        let draid = vdev(VdevType::Draid, 11, vec![file(3), file(4)]);
        let strange = VdevConfig {
            ashift: 70,
            ..file(5)
        };
        let root = vdev(VdevType::Root, 9, vec![expanding, draid, strange]);
        for guid in [1, 3, 5, 77] {
            assert_eq!(Place::of(&root, Guid(guid)), None, "{guid}");
        }
    }
}
