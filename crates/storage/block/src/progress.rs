//! Whether a leaf's device answers at all.

use crate::waits::IoClock;
use millpond_env::sync::atomic::{AtomicU64, Ordering};

/// Requests that are with a leaf's device, of all kinds, and when it last answered one.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    with_device: AtomicU64,
    /// When a request was last answered, or the first one was made since there were none.
    since_ns: AtomicU64,
}

impl Progress {
    /// Requests go to the device.
    pub(crate) fn went(&self, requests: u64, now_ns: u64) {
        if self.with_device.fetch_add(requests, Ordering::Relaxed) == 0 {
            self.since_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Requests were answered, or (without a time) forgotten.
    pub(crate) fn came_back(&self, requests: u64, now_ns: Option<u64>) {
        if let Some(now_ns) = now_ns {
            self.since_ns.store(now_ns, Ordering::Relaxed);
        }
        self.with_device.fetch_sub(requests, Ordering::Relaxed);
    }

    /// When a request was last answered, or the first one made.
    pub(crate) fn since_ns(&self) -> u64 {
        self.since_ns.load(Ordering::Relaxed)
    }

    /// For how long requests have been with the device and none was answered.
    pub(crate) fn stalled_ns(&self, clock: &IoClock) -> u64 {
        match self.with_device.load(Ordering::Relaxed) {
            0 => 0,
            _ => clock.now_ns().saturating_sub(self.since_ns()),
        }
    }

    /// One request is with the device while `work` runs.
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
