//! Limits on dirty data, and the throttle near them.

use millpond_env::memory::{Memory, memory};
use std::time::Duration;

/// Limits on changes that exist only in memory. They do not affect the on-disk format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyLimits {
    /// Transactions wait while at least this many bytes are dirty; those that write at most 64 KiB, while an
    /// eighth more is dirty.
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
    /// The delay of a transaction that writes 1 MiB or more, when dirty data is halfway between
    /// `delay_percent` and the limit. Others are delayed in proportion.
    pub delay_scale: Duration,
    /// Maximum delay of one transaction.
    pub delay_max: Duration,
    /// Number of file blocks that one group may free. Their pointers stay in memory while the group is
    /// written, and every caller that waits for the group waits for all of them.
    pub freed_blocks_max: u64,
}

/// The limit on dirty data of a machine with much memory.
const LIMIT_BYTES_MAX: u64 = 512 << 20;
/// The limit on dirty data of a machine with very little memory. Less would close a txg with every few writes.
const LIMIT_BYTES_MIN: u64 = 16 << 20;

/// A transaction that writes this many bytes or more is delayed fully.
const DELAYED_BYTES_MAX: u64 = 1 << 20;
/// A transaction is delayed as if it wrote at least this much: its metadata.
const DELAYED_BYTES_MIN: u64 = 16 << 10;
/// Up to this many bytes, a transaction is small.
const SMALL_BYTES: u64 = 64 << 10;

/// A tenth of the memory of the machine or control group, within bounds.
fn limit_bytes(memory: Option<Memory>) -> u64 {
    memory.map_or(LIMIT_BYTES_MAX, |memory| {
        (memory.total_bytes / 10).clamp(LIMIT_BYTES_MIN, LIMIT_BYTES_MAX)
    })
}

impl Default for DirtyLimits {
    /// Reads how much memory the machine or control group has.
    fn default() -> Self {
        Self {
            limit_bytes: limit_bytes(memory()),
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
    /// The same for a pool into which this much dirty data fits in the worst case. Small transactions may exceed
    /// the limit by an eighth, which has to fit, too.
    pub(crate) fn within(self, room_bytes: u64) -> Self {
        let room = (room_bytes / 9 * 8).max(LIMIT_BYTES_MIN);
        Self {
            limit_bytes: self.limit_bytes.min(room),
            ..self
        }
    }
    fn share(&self, percent: u8) -> u64 {
        self.limit_bytes / 100 * u64::from(percent.min(100))
    }
    /// Dirty bytes of one group at which it closes.
    pub(crate) fn close_bytes(&self) -> u64 {
        self.share(self.close_percent)
    }
    /// The most dirty bytes with which a transaction that writes `written_bytes` may begin. Small ones may
    /// exceed the limit by an eighth, so that they do not wait behind a program that writes a stream.
    pub(crate) fn limit_for(&self, written_bytes: u64) -> u64 {
        match written_bytes <= SMALL_BYTES {
            true => self.limit_bytes.saturating_add(self.limit_bytes / 8),
            false => self.limit_bytes,
        }
    }
    /// The delay of a transaction that writes `written_bytes` and begins with this much dirty data. It is zero
    /// up to `delay_percent` and then follows a hyperbola that would reach infinity at the limit. Less than
    /// 1 MiB is delayed less, in proportion, but at least as much as 16 KiB.
    pub(crate) fn delay(&self, dirty_bytes: u64, written_bytes: u64) -> Duration {
        let share = written_bytes.clamp(DELAYED_BYTES_MIN, DELAYED_BYTES_MAX);
        let ns = self.full_delay(dirty_bytes).as_nanos() * u128::from(share);
        let ns = ns / u128::from(DELAYED_BYTES_MAX);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
    /// The delay of a transaction that writes 1 MiB or more.
    fn full_delay(&self, dirty_bytes: u64) -> Duration {
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
