//! Detects whether a leaf's device answers at all.

use crate::io_stats::IoClock;
use millpond_env::sync::atomic::{AtomicU64, Ordering};

/// In-flight requests of a leaf's device, of all kinds, and when it last completed one.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    with_device: AtomicU64,
    /// When a request last completed, or when the first was issued to the idle device.
    since_ns: AtomicU64,
}

impl Progress {
    /// Counts requests issued to the device.
    pub(crate) fn went(&self, requests: u64, now_ns: u64) {
        if self.with_device.fetch_add(requests, Ordering::Relaxed) == 0 {
            self.since_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Counts requests that completed or, without a time, were dropped.
    pub(crate) fn came_back(&self, requests: u64, now_ns: Option<u64>) {
        if let Some(now_ns) = now_ns {
            self.since_ns.store(now_ns, Ordering::Relaxed);
        }
        self.with_device.fetch_sub(requests, Ordering::Relaxed);
    }

    /// When a request last completed, or when the first was issued to the idle device.
    pub(crate) fn since_ns(&self) -> u64 {
        self.since_ns.load(Ordering::Relaxed)
    }

    /// For how long the device has had requests in flight and completed none.
    pub(crate) fn stalled_ns(&self, clock: &IoClock) -> u64 {
        match self.with_device.load(Ordering::Relaxed) {
            0 => 0,
            _ => clock.now_ns().saturating_sub(self.since_ns()),
        }
    }

    /// Counts one request in flight while `work` runs.
    pub(crate) fn during<T>(&self, clock: &IoClock, work: impl FnOnce() -> T) -> T {
        struct Back<'a>(&'a Progress, &'a IoClock);
        impl Drop for Back<'_> {
            fn drop(&mut self) {
                self.0.came_back(1, Some(self.1.now_ns()));
            }
        }
        self.went(1, clock.now_ns());
        let _back = Back(self, clock);
        work()
    }
}
