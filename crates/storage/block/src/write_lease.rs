//! How long a pool may still use its devices.
//!
//! A pool with multihost on tells other systems by heartbeats that it is in use. If none succeeded for a while, another
//! system may import the pool, and this one must not touch the devices any more. The lease ends at that time by itself:
//! also in a process that was stopped meanwhile, or on a machine that slept, before any thread finds out. Each request
//! asks right before it goes to a device.

use millpond_device::DeviceError;
use millpond_env::Clock;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, OnceLock};

/// The time until which requests to the devices of a pool are made. Without an end by default.
pub struct WriteLease {
    /// In nanoseconds of [`Clock::uptime_ns`]; `u64::MAX` for no end.
    until_ns: AtomicU64,
    clock: OnceLock<Arc<dyn Clock>>,
}

impl Default for WriteLease {
    fn default() -> Self {
        Self {
            until_ns: AtomicU64::new(u64::MAX),
            clock: OnceLock::new(),
        }
    }
}

impl std::fmt::Debug for WriteLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WriteLease").field(&self.until_ns).finish()
    }
}

impl WriteLease {
    /// Sets the end, in nanoseconds of [`Clock::uptime_ns`] of `clock`, which stays the one of the first call. A lease that
    /// has ended stays so.
    pub fn extend(&self, until_ns: u64, clock: &Arc<dyn Clock>) {
        let clock = self.clock.get_or_init(|| Arc::clone(clock));
        let now_ns = clock.uptime_ns();
        let extended = |end: u64| (end > now_ns).then_some(until_ns);
        // The outcome is unimportant: the pool asks for it when it writes.
        let _ = (self.until_ns).fetch_update(Ordering::SeqCst, Ordering::SeqCst, extended);
    }

    /// Ends the lease for good.
    pub fn end(&self) {
        self.until_ns.store(0, Ordering::SeqCst);
    }

    /// Whether the lease has ended. The clock is only read if there is an end.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let until_ns = self.until_ns.load(Ordering::SeqCst);
        let has_passed = |clock: &Arc<dyn Clock>| until_ns <= clock.uptime_ns();
        until_ns != u64::MAX && self.clock.get().is_none_or(has_passed)
    }

    /// # Errors
    /// If the lease has ended.
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        if !self.has_ended() {
            return Ok(());
        }
        Err(DeviceError::Io {
            action: "request",
            offset_bytes: 0,
            length_bytes: 0,
            errno: 0,
            message: "the pool has given its devices up".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Hand(AtomicU64);

    impl Clock for Hand {
        fn wall_ns(&self) -> u64 {
            0
        }
        fn monotonic_ns(&self) -> u64 {
            self.0.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn an_ended_lease_cannot_be_extended() {
        let hand = Arc::new(Hand::default());
        let clock: Arc<dyn Clock> = Arc::clone(&hand) as _;
        let lease = WriteLease::default();
        assert!(!lease.has_ended());
        let at = |now: u64| {
            hand.0.store(now, Ordering::SeqCst);
            lease.has_ended()
        };
        lease.extend(10, &clock);
        assert!(!at(9));
        lease.extend(20, &clock);
        assert!(!at(19) && lease.check().is_ok());
        assert!(at(20) && lease.check().is_err());
        lease.extend(u64::MAX, &clock);
        assert!(at(20));
        let lease = WriteLease::default();
        lease.end();
        lease.extend(u64::MAX, &clock);
        assert!(lease.has_ended());
    }
}
