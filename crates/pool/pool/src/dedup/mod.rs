//! The dedup tables of a pool open for changes: blocks that are found by their checksum.
//!
//! Entries stay where they are stored until something changes their references. A changed entry is taken out, is
//! *pending* until the end of the sync pass, and is then stored again: a legacy table in its objects, a fast one at the end of
//! a log. The entries of the logs are in memory, which bounds their number; some of them go into the objects in
//! each txg, in the order of their keys.
//!
//! A block is returned to the allocator when its last reference is released. Its entry has no block from then on, and
//! is removed when it is stored.
//!
//! Page `docs/format/dedup-table.md`.

mod create;
mod filter;
mod load;
mod log;
mod prune;
mod quota;
mod references;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod view;
mod write;

pub use prune::{PruneBy, PrunedEntries};
pub(crate) use references::{Released, lookup_order};
pub(crate) use write::Finder;

use crate::sync::context::SyncContext;
use crate::{Pool, PoolError};
use millpond_ondisk::dedup::{DedupHistogram, DedupStatistics};
use millpond_ondisk::{ChecksumKind, DecodeError, Dva, ObjectId};
use std::collections::BTreeMap;
use table::Table;

const WHAT: &str = "dedup table";
/// The feature that counts the fast tables.
pub const FAST_DEDUP: &str = "com.klarasystems:fast_dedup";
/// The checksum functions that tables may have.
pub(crate) const CHECKSUMS: [ChecksumKind; 5] = [
    ChecksumKind::Sha256,
    ChecksumKind::Sha512,
    ChecksumKind::Skein,
    ChecksumKind::Edonr,
    ChecksumKind::Blake3,
];

/// All dedup tables of a pool, one for each checksum function that is in use.
#[derive(Debug, Default)]
pub(crate) struct DedupTables {
    tables: BTreeMap<u8, Table>,
    /// The object with the histograms of all tables.
    statistics: Option<ObjectId>,
}

fn invalid(reason: &'static str, offset: usize) -> PoolError {
    PoolError::Invalid {
        what: WHAT,
        error: DecodeError::new(WHAT, reason, offset),
    }
}

impl DedupTables {
    /// The sums over all entries.
    pub(crate) fn totals(&self) -> DedupStatistics {
        let histograms = self.tables.values().flat_map(Table::histograms);
        histograms.fold(DedupStatistics::default(), |sum, histogram| {
            sum.plus(&histogram.total())
        })
    }

    /// Whether entries changed that are not stored yet.
    pub(crate) fn has_pending(&self) -> bool {
        self.tables.values().any(|table| !table.pending.is_empty())
    }

    /// Whether logs have entries that can be flushed.
    pub(crate) fn has_logged(&self) -> bool {
        self.tables.values().any(Table::has_logged)
    }
}

/// Counts entries in a histogram, with the deflated sizes of their addresses.
struct Counting<'a, 'p> {
    ctx: &'a SyncContext<'p>,
}

impl Counting<'_, '_> {
    fn add(&self, histogram: &mut DedupHistogram, entry: &millpond_ondisk::dedup::DedupEntry) {
        histogram.add(entry, |dva| self.bytes(dva));
    }
    fn remove(&self, histogram: &mut DedupHistogram, entry: &millpond_ondisk::dedup::DedupEntry) {
        histogram.remove(entry, |dva| self.bytes(dva));
    }
    fn bytes(&self, dva: Dva) -> u64 {
        self.ctx.pool.deflated_address_bytes(&dva)
    }
}

impl Pool {
    /// Changes the tables.
    pub(crate) fn change_dedup<R>(
        &self,
        change: impl FnOnce(&mut DedupTables) -> Result<R, PoolError>,
    ) -> Result<R, PoolError> {
        // Only one thread syncs. It keeps the tables while it reads and writes entries, without the lock.
        let mut tables = std::mem::take(&mut *self.dedup.lock());
        let outcome = change(&mut tables);
        self.state.write().dedup = tables.totals();
        *self.dedup.lock() = tables;
        outcome
    }
}
