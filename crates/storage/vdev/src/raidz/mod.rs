//! RAID-Z: the columns of a block, on vdevs of constant width and on expanded ones.
//!
//! Page `docs/format/raidz-layout.md`.

mod expanded;
mod map;
mod moves;
#[cfg(test)]
mod tests;

use millpond_ondisk::Txg;

pub use expanded::{
    CellPlaces, ExpandedCell, ExpandedMap, RAIDZ_SCRATCH_BYTES, RAIDZ_SCRATCH_START_BYTES,
};
pub use map::{RaidzColumn, RaidzMap};
pub use moves::{ChildRun, RaidzMove};

use crate::units::Sector;

/// The most children of a RAID-Z vdev; parity is solvable up to this many columns.
pub const RAIDZ_CHILDREN_MAX: u64 = 255;

/// The validated geometry of a RAID-Z vdev: 1 to 3 parity columns, and at least one data column at every
/// width that it has had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaidzGeometry {
    children: u64,
    parity: u64,
    expand_txgs: Vec<Txg>,
    is_expanding: bool,
}

impl RaidzGeometry {
    /// Makes a geometry from the values of a configuration.
    ///
    /// # Errors
    /// A message that says which value is invalid.
    pub fn new(
        children: usize,
        nparity: u64,
        expand_txgs: &[Txg],
        is_expanding: bool,
    ) -> Result<Self, &'static str> {
        let children = u64::try_from(children).map_err(|_| "too many children")?;
        if children > RAIDZ_CHILDREN_MAX {
            return Err("more than 255 children");
        }
        if !(1..=3).contains(&nparity) {
            return Err("nparity is not between 1 and 3");
        }
        if !expand_txgs.is_sorted() {
            return Err("raidz_expand_txgs does not ascend");
        }
        let shape = Self {
            children,
            parity: nparity,
            expand_txgs: expand_txgs.to_vec(),
            is_expanding,
        };
        if shape.original_width().is_none_or(|width| width <= nparity) {
            return Err("fewer children than parity and one data column need");
        }
        Ok(shape)
    }

    /// Parity columns, 1 to 3.
    #[must_use]
    pub fn parity(&self) -> u64 {
        self.parity
    }

    /// Children, including one that is being added.
    #[must_use]
    pub fn children(&self) -> u64 {
        self.children
    }

    /// Whether an expansion is in progress.
    #[must_use]
    pub fn is_expanding(&self) -> bool {
        self.is_expanding
    }

    /// The number of columns of a block physically born in `birth`.
    #[must_use]
    pub fn logical_width(&self, birth: Txg) -> u64 {
        let done = self
            .expand_txgs
            .iter()
            .take_while(|txg| **txg <= birth)
            .count();
        let original = self.original_width().unwrap_or(self.children);
        original.saturating_add(u64::try_from(done).unwrap_or(0))
    }

    /// The original width of the vdev.
    pub(crate) fn first_width(&self) -> u64 {
        self.original_width().unwrap_or(self.children)
    }

    fn original_width(&self) -> Option<u64> {
        let grown = u64::try_from(self.expand_txgs.len()).ok()?;
        self.children
            .checked_sub(grown)?
            .checked_sub(u64::from(self.is_expanding))
    }

    /// The bytes that a block of `psize_bytes` born in `birth` takes: its data and a parity sector for each
    /// parity column and row, rounded up to a multiple of parity plus one sectors. `None` on overflow.
    pub(crate) fn asize(&self, psize_bytes: u64, sector: Sector, birth: Txg) -> Option<u64> {
        let data = sector.covering(psize_bytes);
        let per_row = self.logical_width(birth).checked_sub(self.parity)?;
        let rows = data.div_ceil(per_row.max(1));
        let sectors = data.checked_add(rows.checked_mul(self.parity)?)?;
        sector.to_bytes(sectors.checked_next_multiple_of(self.parity.checked_add(1)?)?)
    }

    /// The largest data size of a block born in `birth` that fits into `asize_bytes`.
    pub(crate) fn psize_max(&self, asize_bytes: u64, sector: Sector, birth: Txg) -> Option<u64> {
        let width = self.logical_width(birth);
        let mut sectors = sector.whole(asize_bytes);
        let whole = sectors.checked_sub(sectors.checked_rem(width)?)?;
        if sectors.checked_sub(whole)? <= self.parity {
            sectors = whole;
        }
        let parity = sectors.div_ceil(width.max(1)).checked_mul(self.parity)?;
        sector.to_bytes(sectors.checked_sub(parity)?)
    }
}
