//! How much may be dirty, and what happens near the limit.

use std::time::Duration;

/// Limits on changes that are in memory only. They influence no format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyLimits {
    /// Transactions wait while this many bytes are dirty.
    pub limit_bytes: u64,
    /// Share of the limit, in percent, above which each transaction is delayed by a growing time.
    pub delay_percent: u8,
    /// Share of the limit, in percent, at which the open group closes.
    pub close_percent: u8,
    /// How long after its first transaction a group closes at the latest.
    pub period: Duration,
    /// How long after its last transaction a group closes at the latest.
    pub idle_period: Duration,
    /// The delay of one transaction when half of the way from `delay_percent` to the limit is gone.
    pub delay_scale: Duration,
    /// No single delay is longer.
    pub delay_max: Duration,
    /// Blocks of files that one group may free. Their pointers are in memory while the group is written, and
    /// everybody who waits for the group waits for all of them.
    pub freed_blocks_max: u64,
}

impl Default for DirtyLimits {
    fn default() -> Self {
        Self {
            limit_bytes: 512 << 20,
            delay_percent: 60,
            close_percent: 20,
            period: Duration::from_secs(5),
            idle_period: Duration::from_secs(1),
            delay_scale: Duration::from_micros(500),
            delay_max: Duration::from_millis(100),
            freed_blocks_max: 100_000,
        }
    }
}

impl DirtyLimits {
    fn share(&self, percent: u8) -> u64 {
        self.limit_bytes / 100 * u64::from(percent.min(100))
    }
    /// Dirty bytes of one group at which it closes.
    pub(crate) fn close_bytes(&self) -> u64 {
        self.share(self.close_percent)
    }
    /// How long a transaction that begins with so many dirty bytes is held back: zero up to
    /// `delay_percent`, then along a hyperbola that would be infinite at the limit.
    pub(crate) fn delay(&self, dirty_bytes: u64) -> Duration {
        let from = self.share(self.delay_percent);
        let Some(over) = dirty_bytes.checked_sub(from).filter(|over| *over > 0) else {
            return Duration::ZERO;
        };
        let left = self.limit_bytes.saturating_sub(dirty_bytes).max(1);
        let scale = u128::from(u64::try_from(self.delay_scale.as_nanos()).unwrap_or(u64::MAX));
        let ns = scale * u128::from(over) / u128::from(left);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)).min(self.delay_max)
    }
}
