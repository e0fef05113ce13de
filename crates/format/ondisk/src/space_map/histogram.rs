//! Histograms of the free segments of a space map.

/// The number of buckets of a stored histogram.
pub const SPACE_HISTOGRAM_BUCKETS: usize = 32;

/// Free segments by size. Page `docs/format/space-map.md`.
///
/// Bucket `i` counts the segments of at least `2^(i + shift)` bytes and less than twice that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceHistogram {
    /// The counts.
    pub buckets: [u64; SPACE_HISTOGRAM_BUCKETS],
}

impl SpaceHistogram {
    /// Counts one free segment of `size_bytes` in a map with a unit of `2^shift` bytes.
    ///
    /// A segment too large for the last bucket counts there as several segments of that bucket's size. A
    /// segment smaller than a unit counts in bucket 0. Counts saturate.
    pub fn add(&mut self, size_bytes: u64, shift: u8) {
        self.add_many(size_bytes, 1, shift);
    }
    /// Counts `segments` free segments of `size_bytes` each, as [`SpaceHistogram::add`] does.
    pub fn add_many(&mut self, size_bytes: u64, segments: u64, shift: u8) {
        let Some(log2) = size_bytes.checked_ilog2() else {
            return;
        };
        let bucket = log2.saturating_sub(u32::from(shift));
        let last = 31u32;
        let count = 1u64
            .checked_shl(bucket.saturating_sub(last))
            .unwrap_or(u64::MAX);
        let index = usize::try_from(bucket.min(last)).unwrap_or(0);
        if let Some(slot) = self.buckets.get_mut(index) {
            *slot = slot.saturating_add(count.saturating_mul(segments));
        }
    }
}
