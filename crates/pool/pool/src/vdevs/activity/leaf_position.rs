//! Where the space of a top-level vdev lies on one of its leaves.

use millpond_ondisk::{Ashift, Guid, VdevId};
use millpond_vdev::{DraidGeometry, VdevKind, VdevTree};
use std::ops::Range;
use std::sync::Arc;

/// The position of a leaf in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LeafPosition {
    pub(super) top: VdevId,
    ashift: Ashift,
    spread: Spread,
}

/// How the space of a vdev is spread over its children.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Spread {
    /// All have the same.
    Copied,
    /// RAID-Z: sectors are laid out row by row.
    Columns {
        columns: u64,
        /// Which of them the leaf is.
        column: u64,
    },
    /// dRAID.
    Groups {
        geometry: Arc<DraidGeometry>,
        child: u64,
    },
}

impl LeafPosition {
    /// `None` if there is no such leaf, or it cannot be said where its space lies: on a RAID-Z that is being expanded, and
    /// on distributed spares.
    pub(super) fn of(tree: &VdevTree, leaf: Guid) -> Option<Self> {
        let mut id = tree.find(leaf)?;
        let leaf = tree.node(id).filter(|node| node.is_device())?;
        let (mut above, mut spread) = (leaf.parent?, Spread::Copied);
        loop {
            let vdev = tree.node(above)?;
            let child = || {
                let at = vdev.children.iter().position(|child| *child == id);
                u64::try_from(at?).ok()
            };
            match &vdev.kind {
                VdevKind::Root => break,
                VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => {}
                VdevKind::Raidz(geometry) if !geometry.is_expanding() => {
                    spread = Spread::Columns {
                        columns: geometry.children(),
                        column: child()?,
                    };
                }
                VdevKind::Draid(geometry) => {
                    spread = Spread::Groups {
                        geometry: Arc::clone(geometry),
                        child: child()?,
                    };
                }
                _ => return None,
            }
            (id, above) = (above, vdev.parent?);
        }
        let ashift = leaf.ashift;
        (9..=16).contains(&ashift.0).then_some(Self {
            top: leaf.top?,
            ashift,
            spread,
        })
    }

    fn sector_bytes(&self) -> u64 {
        1 << self.ashift.0
    }

    /// What to hold at a time, of about `bytes`: on dRAID, free space is divided between stripes only.
    pub(super) fn whole_units(&self, bytes: u64) -> u64 {
        let unit_bytes = match &self.spread {
            Spread::Copied | Spread::Columns { .. } => self.sector_bytes(),
            Spread::Groups { geometry, .. } => {
                (self.sector_bytes()).saturating_mul(geometry.group_width())
            }
        };
        (bytes.checked_next_multiple_of(unit_bytes)).unwrap_or(bytes)
    }

    /// The leaf's parts of a range of the top-level vdev, in order, in bytes from the start of the leaf's space.
    pub(super) fn leaf_ranges(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut ranges = match &self.spread {
            Spread::Copied => vec![range.clone()],
            Spread::Columns { columns, column } => {
                // The first row whose sector of the leaf is at `offset` or behind it.
                let row = |offset: u64| {
                    let sector = offset.div_ceil(self.sector_bytes());
                    sector.saturating_sub(*column).div_ceil((*columns).max(1))
                };
                let bytes = |offset| row(offset).saturating_mul(self.sector_bytes());
                let range = bytes(range.start)..bytes(range.end);
                vec![range]
            }
            Spread::Groups { geometry, child } => {
                (geometry.child_ranges(*child, range, self.ashift)).unwrap_or_default()
            }
        };
        ranges.retain(|range| !range.is_empty());
        ranges
    }

    /// Where to continue on the top-level vdev when the leaf is done up to `leaf_bytes`. Before it may lie space that is
    /// done already.
    pub(super) fn top_bytes(&self, leaf_bytes: u64) -> u64 {
        match &self.spread {
            Spread::Copied => leaf_bytes,
            Spread::Columns { columns, .. } => {
                let rows = leaf_bytes / self.sector_bytes();
                rows.saturating_mul(*columns)
                    .saturating_mul(self.sector_bytes())
            }
            // A value beyond the end of the leaf only ends the work.
            Spread::Groups { geometry, child } => geometry
                .offset_behind(*child, leaf_bytes, self.ashift)
                .unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_vdev::{Reflow, VdevConfig, VdevType};

    fn vdev(kind: VdevType, guid: u64, children: Vec<VdevConfig>) -> VdevConfig {
        VdevConfig {
            children,
            ashift: 9,
            ..VdevConfig::new(kind, Guid(guid))
        }
    }
    fn files(guids: std::ops::Range<u64>) -> Vec<VdevConfig> {
        guids
            .map(|guid| vdev(VdevType::File, guid, vec![]))
            .collect()
    }
    fn tree(tops: Vec<VdevConfig>) -> VdevTree {
        VdevTree::new(vdev(VdevType::Root, 9, tops), Reflow::default()).unwrap()
    }

    #[test]
    fn each_sector_belongs_to_one_leaf() {
        let mut children = files(1..3);
        children.push(vdev(VdevType::Replacing, 20, files(3..5)));
        let raidz = VdevConfig {
            nparity: Some(1),
            ..vdev(VdevType::Raidz, 10, children)
        };
        let mirror = vdev(VdevType::Mirror, 11, files(5..7));
        let tree = tree(vec![mirror, raidz]);
        let side = LeafPosition::of(&tree, Guid(6)).unwrap();
        assert_eq!(side.top, VdevId(0));
        let range = 512..4096;
        assert_eq!(side.leaf_ranges(&range), std::slice::from_ref(&range));
        assert_eq!(side.top_bytes(4096), 4096);
        for (column, guid) in [(0, 1), (1, 2), (2, 4)] {
            let position = LeafPosition::of(&tree, Guid(guid)).unwrap();
            assert_eq!(position.top, VdevId(1));
            for start in 0..14u64 {
                for end in start..14 {
                    let mine: Vec<u64> = (start..end).filter(|at| at % 3 == column).collect();
                    let ranges = position.leaf_ranges(&(start * 512..end * 512));
                    let rows = ranges
                        .iter()
                        .flat_map(|range| range.start / 512..range.end / 512);
                    let rows: Vec<u64> = rows.collect();
                    let expected: Vec<u64> = mine.iter().map(|at| at / 3).collect();
                    assert_eq!(rows, expected, "{column}: {start}..{end}");
                    // Nothing of the leaf behind the end is skipped.
                    let Some(last) = ranges.last() else { continue };
                    let next = position.top_bytes(last.end) / 512;
                    assert!(
                        (end..next).all(|at| at % 3 != column),
                        "{column}: {end}, {next}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_children_of_a_draid_share_its_stripes() {
        let mut children = files(1..5);
        children.push(vdev(VdevType::Spare, 20, files(5..7)));
        let draid = VdevConfig {
            nparity: Some(1),
            draid_ndata: Some(2),
            draid_nspares: Some(1),
            draid_ngroups: Some(4),
            ..vdev(VdevType::Draid, 10, children)
        };
        let tree = tree(vec![draid]);
        let position = |guid| LeafPosition::of(&tree, Guid(guid)).unwrap();
        let stripe = 3 * 512;
        assert_eq!(position(1).whole_units(stripe + 1), 2 * stripe);
        let of = |guid| position(guid).leaf_ranges(&(0..stripe * 8));
        let found: Vec<_> = (1..6).flat_map(of).collect();
        assert_eq!(found, vec![0..8 * 512; 3]);
        // Both sides of a child have the same.
        assert_eq!(of(5), of(6));
    }

    #[test]
    fn vdevs_with_other_layouts_are_refused() {
        let expanding = VdevConfig {
            nparity: Some(1),
            raidz_expanding: true,
            ..vdev(VdevType::Raidz, 10, files(1..4))
        };
        let tree = tree(vec![expanding]);
        for guid in [1, 10, 77] {
            assert_eq!(LeafPosition::of(&tree, Guid(guid)), None, "{guid}");
        }
    }
}
