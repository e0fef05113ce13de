//! How long a pool may still use its devices.
//!
//! A pool with multihost on tells other systems by heartbeats that it is in use. If none succeeded for a while, another
//! system may import the pool, and this one must not touch the devices any more. The lease ends at that time by itself:
//! also in a process that was stopped meanwhile, before any of its threads finds out.

use crate::io_stats::IoClock;
use millpond_env::sync::atomic::{AtomicU64, Ordering};

/// The time until which requests to the devices of a pool are made. Without an end by default.
#[derive(Debug)]
pub struct WriteLease {
    /// In nanoseconds of the monotonic clock; `u64::MAX` for no end.
    until_ns: AtomicU64,
}

impl Default for WriteLease {
    fn default() -> Self {
        Self {
            until_ns: AtomicU64::new(u64::MAX),
        }
    }
}

impl WriteLease {
    /// Sets the end, in nanoseconds of the monotonic clock. A lease that has ended stays so.
    pub fn extend(&self, until_ns: u64, now_ns: u64) {
        let extended = |end: u64| (end > now_ns).then_some(until_ns);
        // The outcome is unimportant: the pool asks for it when it writes.
        let _ = (self.until_ns).fetch_update(Ordering::SeqCst, Ordering::SeqCst, extended);
    }

    /// Ends the lease for good.
    pub fn end(&self) {
        self.until_ns.store(0, Ordering::SeqCst);
    }

    /// Whether the lease has ended.
    #[must_use]
    pub fn has_ended(&self, now_ns: u64) -> bool {
        self.until_ns.load(Ordering::SeqCst) <= now_ns
    }

    /// As [`WriteLease::has_ended`]; the clock is only read if there is an end.
    pub(crate) fn has_ended_by(&self, clock: &IoClock) -> bool {
        let until_ns = self.until_ns.load(Ordering::SeqCst);
        until_ns != u64::MAX && until_ns <= clock.now_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_lease_cannot_be_extended() {
        let lease = WriteLease::default();
        assert!(!lease.has_ended(u64::MAX - 1));
        lease.extend(10, 1);
        assert!(!lease.has_ended(9));
        lease.extend(20, 9);
        assert!(!lease.has_ended(19));
        assert!(lease.has_ended(20));
        lease.extend(u64::MAX, 20);
        assert!(lease.has_ended(20));
        let lease = WriteLease::default();
        lease.end();
        lease.extend(u64::MAX, 0);
        assert!(lease.has_ended(0));
    }
}
