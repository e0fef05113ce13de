//! Totals of the dedup tables: their histograms, and the entries that are still only in the logs.
//!
//! Page `docs/format/space-accounting.md`, "Deduplicated blocks".

mod log;

use crate::error::Reading;
use crate::{PoolError, PoolView};
use millpond_object::ObjectView;
use millpond_ondisk::pool_directory::{dedup_directory_key, dedup_log_key, dedup_table_key, key};
use millpond_ondisk::{ChecksumKind, ObjectId};
use millpond_zap::Zap;

/// The number of rows of a histogram.
pub const DEDUP_BUCKETS: usize = 64;

/// The checksums that deduplication may use.
const CHECKSUMS: [ChecksumKind; 5] = [
    ChecksumKind::Sha256,
    ChecksumKind::Sha512,
    ChecksumKind::Skein,
    ChecksumKind::Edonr,
    ChecksumKind::Blake3,
];
const CLASSES: [&str; 3] = ["ditto", "duplicate", "unique"];

/// One row of the histogram: blocks with at least `2^row` and fewer than `2^(row + 1)` references.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DedupBucket {
    /// Distinct blocks.
    pub blocks: u64,
    /// Their logical bytes.
    pub logical_bytes: u64,
    /// Their physical bytes.
    pub physical_bytes: u64,
    /// Their deflated allocated bytes.
    pub allocated_bytes: u64,
    /// References to them.
    pub referenced_blocks: u64,
    /// Logical bytes of all references.
    pub referenced_logical_bytes: u64,
    /// Physical bytes of all references.
    pub referenced_physical_bytes: u64,
    /// Deflated bytes that datasets are charged for all references.
    pub referenced_allocated_bytes: u64,
}

impl DedupBucket {
    fn add(&mut self, words: [u64; 8]) {
        let slots = [
            &mut self.blocks,
            &mut self.logical_bytes,
            &mut self.physical_bytes,
            &mut self.allocated_bytes,
            &mut self.referenced_blocks,
            &mut self.referenced_logical_bytes,
            &mut self.referenced_physical_bytes,
            &mut self.referenced_allocated_bytes,
        ];
        for (slot, word) in slots.into_iter().zip(words) {
            *slot = slot.saturating_add(word);
        }
    }
}

/// Totals of all dedup tables of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DedupTotals {
    /// The histogram, by log2 of the number of references.
    pub buckets: [DedupBucket; DEDUP_BUCKETS],
    /// Deflated bytes of the objects of tables and logs: `dedup_table_size`.
    pub disk_bytes: u64,
    /// In-memory size of the tables' blocks in bytes, as `zpool status -D` counts it.
    pub core_bytes: u64,
}

impl Default for DedupTotals {
    fn default() -> Self {
        Self {
            buckets: [DedupBucket::default(); DEDUP_BUCKETS],
            disk_bytes: 0,
            core_bytes: 0,
        }
    }
}

impl DedupTotals {
    /// The sum of all rows.
    #[must_use]
    pub fn total(&self) -> DedupBucket {
        let mut total = DedupBucket::default();
        for bucket in &self.buckets {
            total.add([
                bucket.blocks,
                bucket.logical_bytes,
                bucket.physical_bytes,
                bucket.allocated_bytes,
                bucket.referenced_blocks,
                bucket.referenced_logical_bytes,
                bucket.referenced_physical_bytes,
                bucket.referenced_allocated_bytes,
            ]);
        }
        total
    }
    /// `dedupratio` in hundredths: 100 without entries.
    #[must_use]
    pub fn ratio_percent(&self) -> u64 {
        let total = self.total();
        let percent = (u128::from(total.referenced_allocated_bytes) * 100)
            .checked_div(u128::from(total.allocated_bytes));
        percent.map_or(100, |percent| u64::try_from(percent).unwrap_or(u64::MAX))
    }
    /// Deflated bytes that datasets are charged for but that are not allocated.
    #[must_use]
    pub fn saved_bytes(&self) -> u64 {
        let total = self.total();
        total
            .referenced_allocated_bytes
            .saturating_sub(total.allocated_bytes)
    }

    fn add(&mut self, row: usize, words: [u64; 8]) {
        if let Some(bucket) = self.buckets.get_mut(row) {
            bucket.add(words);
        }
    }
    fn add_histogram(&mut self, words: &[u64]) {
        for (row, words) in words.chunks_exact(8).enumerate() {
            if let Ok(words) = words.try_into() {
                self.add(row, words);
            }
        }
    }
    fn add_object(&mut self, object: &ObjectView, is_table: bool) {
        self.disk_bytes = self.disk_bytes.saturating_add(object.dnode().used_bytes());
        if is_table {
            self.core_bytes = self.core_bytes.saturating_add(object.length_bytes());
        }
    }
}

pub(crate) fn measure(pool: &PoolView) -> Result<DedupTotals, PoolError> {
    let what = "dedup table";
    let mut totals = DedupTotals::default();
    let statistics = match pool.find_directory_object(key::DEDUP_STATISTICS)? {
        None => None,
        Some(id) => Some(Zap::open(pool.mos().object(id).reading(what)?).reading(what)?),
    };
    for checksum in CHECKSUMS {
        let directory = match pool.find_directory_object(&dedup_directory_key(checksum))? {
            None => None,
            Some(id) => Some(Zap::open(pool.mos().object(id).reading(what)?).reading(what)?),
        };
        let find = |name: &str| -> Result<Option<ObjectView>, PoolError> {
            let id = match &directory {
                None => pool.find_directory_object(name)?,
                Some(zap) => zap
                    .lookup_u64(name.as_bytes())
                    .reading(what)?
                    .and_then(|id| ObjectId(id).some()),
            };
            id.map(|id| pool.mos().object(id).reading(what)).transpose()
        };
        for class in CLASSES {
            let name = dedup_table_key(checksum, class);
            let Some(table) = find(&name)? else { continue };
            totals.add_object(&table, true);
            if let Some(statistics) = &statistics {
                let histogram = statistics.lookup(name.as_bytes()).reading(what)?;
                let words: Vec<u64> = histogram.map_or(vec![], |h| h.integers().collect());
                totals.add_histogram(&words);
            }
        }
        if directory.is_some() {
            let mut logs = vec![];
            for number in [0, 1] {
                if let Some(log) = find(&dedup_log_key(checksum, number))? {
                    totals.add_object(&log, false);
                    logs.push(log);
                }
            }
            log::add(pool, &logs, &mut totals)?;
        }
    }
    Ok(totals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_histogram_gives_ratio_and_savings() {
        // Two blocks of 16 KiB with three references each, two with two.
        let mut words = vec![0; 512];
        words[8..16].copy_from_slice(&[4, 65536, 65536, 65536, 10, 163_840, 163_840, 163_840]);
        let mut totals = DedupTotals::default();
        totals.add_histogram(&words);
        assert_eq!(totals.buckets[1].blocks, 4);
        assert_eq!(totals.ratio_percent(), 250);
        assert_eq!(totals.saved_bytes(), 163_840 - 65536);
        assert_eq!(DedupTotals::default().ratio_percent(), 100);
    }

    #[test]
    fn sums_that_no_pool_has_saturate() {
        let mut totals = DedupTotals::default();
        totals.add_histogram(&[u64::MAX; 1024]);
        totals.add_histogram(&[u64::MAX; 512]);
        assert_eq!(totals.total().blocks, u64::MAX);
        assert_eq!(totals.ratio_percent(), 100);
    }
}
