//! Limits on dirty data, and the throttle near them.

use std::time::Duration;

/// Limits on changes that exist only in memory. They do not affect the on-disk format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyLimits {
    /// Transactions wait while at least this many bytes are dirty.
    pub limit_bytes: u64,
    /// Share of the limit, in percent, above which each transaction is delayed. The delay grows with the
    /// dirty data.
    pub delay_percent: u8,
    /// Share of the limit, in percent, at which the open group closes.
    pub close_percent: u8,
    /// Maximum time from a group's first transaction until it closes.
    pub period: Duration,
    /// Maximum time from a group's last transaction until it closes.
    pub idle_period: Duration,
    /// The delay of one transaction when dirty data is halfway between `delay_percent` and the limit.
    pub delay_scale: Duration,
    /// Maximum delay of one transaction.
    pub delay_max: Duration,
    /// Number of file blocks that one group may free. Their pointers stay in memory while the group is
    /// written, and every caller that waits for the group waits for all of them.
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
    /// The delay of a transaction that begins with this much dirty data, in bytes. It is zero up to
    /// `delay_percent` and then follows a hyperbola that would reach infinity at the limit.
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
