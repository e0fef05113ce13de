//! Totals of the tables of cloned blocks.
//!
//! Page `docs/format/space-accounting.md`, "Cloned blocks".

use crate::error::Reading;
use crate::{PoolError, PoolView};
use millpond_ondisk::CloneTablePhys;
use millpond_ondisk::pool_directory::clone_table_key;

/// Totals of the clone tables of all vdevs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CloneTotals {
    /// The number of blocks with additional references.
    pub entries: u64,
    /// Deflated bytes of those blocks, each counted once.
    pub used_bytes: u64,
    /// Deflated bytes saved by the additional references.
    pub saved_bytes: u64,
}

impl CloneTotals {
    pub(crate) fn add(&mut self, table: &CloneTablePhys) {
        self.entries = self.entries.saturating_add(table.entry_count);
        self.used_bytes = self.used_bytes.saturating_add(table.used_bytes);
        self.saved_bytes = self.saved_bytes.saturating_add(table.saved_bytes);
    }
    /// `bcloneratio` in hundredths: 100 without clones.
    #[must_use]
    pub fn ratio_percent(&self) -> u64 {
        let all = u128::from(self.used_bytes) + u128::from(self.saved_bytes);
        let percent = (all * 100).checked_div(u128::from(self.used_bytes));
        percent.map_or(100, |percent| u64::try_from(percent).unwrap_or(u64::MAX))
    }
}

pub(super) fn measure(pool: &PoolView) -> Result<CloneTotals, PoolError> {
    let what = "clone table";
    let mut totals = CloneTotals::default();
    let topology = pool.store().topology();
    for (vdev, _) in topology.tree.tops() {
        let Some(id) = pool.find_directory_object(&clone_table_key(vdev))? else {
            continue;
        };
        let object = pool.mos().object(id).reading(what)?;
        let bonus = object.bonus().reading(what)?;
        totals.add(&CloneTablePhys::decode(bonus, object.dnode().endian).reading(what)?);
    }
    Ok(totals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_counts_every_reference_against_the_blocks() {
        let totals = CloneTotals {
            entries: 4,
            used_bytes: 454_656,
            saved_bytes: 1_761_280,
        };
        assert_eq!(totals.ratio_percent(), 487);
        assert_eq!(CloneTotals::default().ratio_percent(), 100);
    }
}
