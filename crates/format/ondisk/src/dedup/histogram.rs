//! Statistics of dedup tables: histograms of blocks by reference count.

use super::table::DedupEntry;
use crate::{DecodeError, Dva};

/// The number of words of a stored histogram.
pub const DEDUP_STATISTICS_WORDS: usize = 512;

/// Sums over entries: the stored blocks, and the same weighted by references.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DedupStatistics {
    /// Stored blocks.
    pub blocks: u64,
    /// Their logical bytes.
    pub lsize_bytes: u64,
    /// Their physical bytes.
    pub psize_bytes: u64,
    /// Their deflated allocated bytes.
    pub dsize_bytes: u64,
    /// References.
    pub referenced_blocks: u64,
    /// Logical bytes of all references.
    pub referenced_lsize_bytes: u64,
    /// Physical bytes of all references.
    pub referenced_psize_bytes: u64,
    /// Deflated allocated bytes of all references.
    pub referenced_dsize_bytes: u64,
}

impl DedupStatistics {
    fn words(&self) -> [u64; 8] {
        [
            self.blocks,
            self.lsize_bytes,
            self.psize_bytes,
            self.dsize_bytes,
            self.referenced_blocks,
            self.referenced_lsize_bytes,
            self.referenced_psize_bytes,
            self.referenced_dsize_bytes,
        ]
    }
    fn from_words(words: [u64; 8]) -> Self {
        let [
            blocks,
            lsize_bytes,
            psize_bytes,
            dsize_bytes,
            referenced_blocks,
            referenced_lsize_bytes,
            referenced_psize_bytes,
            referenced_dsize_bytes,
        ] = words;
        Self {
            blocks,
            lsize_bytes,
            psize_bytes,
            dsize_bytes,
            referenced_blocks,
            referenced_lsize_bytes,
            referenced_psize_bytes,
            referenced_dsize_bytes,
        }
    }
    /// The sum of both; saturates.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut words = self.words();
        for (word, more) in words.iter_mut().zip(other.words()) {
            *word = word.saturating_add(more);
        }
        Self::from_words(words)
    }
    /// The difference of both; saturates.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        let mut words = self.words();
        for (word, less) in words.iter_mut().zip(other.words()) {
            *word = word.saturating_sub(less);
        }
        Self::from_words(words)
    }
    /// Deflated bytes saved by dedup.
    #[must_use]
    pub fn saved_bytes(&self) -> u64 {
        self.referenced_dsize_bytes.saturating_sub(self.dsize_bytes)
    }
    /// The pool's dedup ratio times 100; 100 if nothing is stored.
    #[must_use]
    pub fn ratio_percent(&self) -> u64 {
        let ratio = u128::from(self.referenced_dsize_bytes)
            .saturating_mul(100)
            .checked_div(u128::from(self.dsize_bytes))
            .unwrap_or(100);
        u64::try_from(ratio).unwrap_or(u64::MAX)
    }
}

/// Statistics by reference count: bucket `i` counts entries with `2^i` to `2^(i+1) - 1` references. Page
/// `docs/format/dedup-table.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DedupHistogram {
    /// The 64 buckets.
    pub buckets: [DedupStatistics; 64],
}

impl Default for DedupHistogram {
    fn default() -> Self {
        Self {
            buckets: [DedupStatistics::default(); 64],
        }
    }
}

impl DedupHistogram {
    /// Reads a histogram from its 512 words (native integers, as read from a ZAP).
    ///
    /// # Errors
    /// If the number of words is wrong.
    pub fn from_words(words: &[u64]) -> Result<Self, DecodeError> {
        if words.len() != DEDUP_STATISTICS_WORDS {
            return Err(DecodeError::new("dedup statistics", "not 512 words", 0));
        }
        let mut histogram = Self::default();
        for (bucket, words) in histogram.buckets.iter_mut().zip(words.as_chunks::<8>().0) {
            *bucket = DedupStatistics::from_words(*words);
        }
        Ok(histogram)
    }
    /// Encodes the histogram as 512 words.
    #[must_use]
    pub fn to_words(&self) -> Vec<u64> {
        self.buckets
            .iter()
            .flat_map(DedupStatistics::words)
            .collect()
    }
    /// The sum of all buckets.
    #[must_use]
    pub fn total(&self) -> DedupStatistics {
        self.buckets
            .iter()
            .fold(DedupStatistics::default(), |sum, bucket| sum.plus(bucket))
    }
    /// Counts an entry; `deflated` returns the deflated size of an address in bytes.
    pub fn add(&mut self, entry: &DedupEntry, deflated: impl Fn(Dva) -> u64) {
        let (bucket, sum) = Self::of(entry, deflated);
        if let Some(bucket) = self.buckets.get_mut(bucket) {
            *bucket = bucket.plus(&sum);
        }
    }
    /// No longer counts an entry.
    pub fn remove(&mut self, entry: &DedupEntry, deflated: impl Fn(Dva) -> u64) {
        let (bucket, sum) = Self::of(entry, deflated);
        if let Some(bucket) = self.buckets.get_mut(bucket) {
            *bucket = bucket.minus(&sum);
        }
    }
    /// The bucket and the sums of an entry. The bucket of one without references does not exist.
    fn of(entry: &DedupEntry, deflated: impl Fn(Dva) -> u64) -> (usize, DedupStatistics) {
        let mut sum = DedupStatistics::default();
        for slot in entry.used_slots() {
            let dsize = slot
                .dvas(entry.key.is_encrypted())
                .map(&deflated)
                .fold(0, u64::saturating_add);
            let (lsize, psize) = (entry.key.lsize_bytes(), entry.key.psize_bytes());
            let times = |bytes: u64| bytes.saturating_mul(slot.reference_count);
            sum = sum.plus(&DedupStatistics {
                blocks: 1,
                lsize_bytes: lsize,
                psize_bytes: psize,
                dsize_bytes: dsize,
                referenced_blocks: slot.reference_count,
                referenced_lsize_bytes: times(lsize),
                referenced_psize_bytes: times(psize),
                referenced_dsize_bytes: times(dsize),
            });
        }
        let log2 = sum.referenced_blocks.checked_ilog2();
        let bucket = log2.and_then(|log2| usize::try_from(log2).ok());
        (bucket.unwrap_or(usize::MAX), sum)
    }
}
