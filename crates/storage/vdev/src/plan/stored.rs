//! Where each part of a range is stored.

use super::{BlockRange, Layout, PlanError};
use crate::health::Health;
use crate::indirect::NoIndirect;
use crate::tree::{LeafId, VdevTree};

/// A part of a range, parity included, that each of its copies holds as one run of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPart {
    /// Length in bytes: whole sectors.
    pub length_bytes: u64,
    /// Where it is, the best copy to read first.
    pub copies: Vec<StoredCopy>,
}

/// A place of a [`StoredPart`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCopy {
    /// The leaf.
    pub leaf: LeafId,
    /// The distributed spares whose space this is.
    pub spares: Vec<LeafId>,
    /// First byte on the device, including labels.
    pub offset_bytes: u64,
    /// Whether the leaf, and each of the spares, is in use and has the data.
    pub is_complete: bool,
}

impl VdevTree {
    /// The parts of a range that are stored as a whole: one for each column of a RAID-Z or dRAID vdev, otherwise one.
    ///
    /// # Errors
    /// [`PlanError`] if the range cannot hold a block. Removed vdevs store nothing themselves.
    pub fn stored_parts(
        &self,
        health: &dyn Health,
        range: BlockRange,
    ) -> Result<Vec<StoredPart>, PlanError> {
        let layout = Layout::new(self, health, &NoIndirect, range)?;
        let cells = layout.rows.into_iter().flat_map(|row| row.cells);
        let parts = cells.filter(|cell| cell.length > 0).map(|cell| {
            let copies = cell.sources.into_iter().map(|source| StoredCopy {
                leaf: source.leaf,
                spares: source.spares,
                offset_bytes: source.offset_bytes,
                is_complete: source.is_readable && !source.is_stale,
            });
            StoredPart {
                length_bytes: u64::try_from(cell.length).unwrap_or(u64::MAX),
                copies: copies.collect(),
            }
        });
        Ok(parts.collect())
    }
}
