//! Condition variables.

use super::lock::{MutexGuard, nanoseconds};
use super::scheduler::{Waiters, is_managed, point};
use std::fmt;
use std::time::Duration;

/// As `parking_lot`'s.
#[derive(Default)]
pub struct Condvar {
    waiters: Waiters,
    inner: parking_lot::Condvar,
}

/// As `parking_lot`'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// As `parking_lot`'s.
    #[must_use]
    pub fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    /// As `parking_lot`'s.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            waiters: Waiters::new(),
            inner: parking_lot::Condvar::new(),
        }
    }
    /// As `parking_lot`'s.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        if is_managed() {
            guard.during(|| self.waiters.wait("a change", None));
        } else {
            self.inner.wait(guard.real_mut());
        }
    }
    /// As `parking_lot`'s; the timeout is in simulated time.
    pub fn wait_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        limit: Duration,
    ) -> WaitTimeoutResult {
        let has_timed_out = match is_managed() {
            true => {
                let limit = Some(nanoseconds(limit));
                guard.during(|| self.waiters.wait("a change, not for ever", limit))
            }
            false => self.inner.wait_for(guard.real_mut(), limit).timed_out(),
        };
        WaitTimeoutResult(has_timed_out)
    }
    /// As `parking_lot`'s; the seed chooses the thread.
    pub fn notify_one(&self) -> bool {
        point();
        self.waiters.wake_one() | self.inner.notify_one()
    }
    /// As `parking_lot`'s.
    pub fn notify_all(&self) -> usize {
        point();
        self.waiters.wake_all() + self.inner.notify_all()
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condvar")
    }
}
