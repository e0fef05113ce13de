//! Mutual exclusion.

use super::guard::Held;
use super::scheduler::{Waiters, is_managed, point};
use std::fmt;
use std::time::Duration;

/// As `parking_lot`'s.
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    waiters: Waiters,
    inner: parking_lot::Mutex<T>,
}

/// As `parking_lot`'s.
pub type MutexGuard<'a, T> = Held<'a, parking_lot::MutexGuard<'a, T>>;

/// As `parking_lot`'s.
pub type MappedMutexGuard<'a, T> = Held<'a, parking_lot::MappedMutexGuard<'a, T>>;

impl<T> Mutex<T> {
    /// As `parking_lot`'s.
    pub const fn new(value: T) -> Self {
        Self {
            waiters: Waiters::new(),
            inner: parking_lot::Mutex::new(value),
        }
    }
    /// As `parking_lot`'s.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// As `parking_lot`'s.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        point();
        self.guard(self.take())
    }
    /// As `parking_lot`'s.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        point();
        self.inner.try_lock().map(|inner| self.guard(inner))
    }
    /// As `parking_lot`'s.
    pub fn try_lock_for(&self, limit: Duration) -> Option<MutexGuard<'_, T>> {
        if !is_managed() {
            return self
                .inner
                .try_lock_for(limit)
                .map(|inner| self.guard(inner));
        }
        point();
        loop {
            if let Some(inner) = self.inner.try_lock() {
                return Some(self.guard(inner));
            }
            if self
                .waiters
                .wait("a lock, not for ever", Some(nanoseconds(limit)))
            {
                return None;
            }
        }
    }
    /// As `parking_lot`'s.
    pub fn is_locked(&self) -> bool {
        self.inner.is_locked()
    }
    /// As `parking_lot`'s.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
    fn guard<'a>(&'a self, inner: parking_lot::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        Held::new(&self.waiters, inner)
    }
    fn take(&self) -> parking_lot::MutexGuard<'_, T> {
        match is_managed() {
            true => take(&self.inner, &self.waiters),
            false => self.inner.lock(),
        }
    }
}

/// Acquires a lock as soon as this thread is scheduled and the lock is free.
fn take<'a, T: ?Sized>(
    mutex: &'a parking_lot::Mutex<T>,
    waiters: &Waiters,
) -> parking_lot::MutexGuard<'a, T> {
    loop {
        if let Some(inner) = mutex.try_lock() {
            return inner;
        }
        waiters.wait("a lock", None);
    }
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// As `parking_lot`'s.
    pub fn map<U: ?Sized>(
        guard: Self,
        part: impl FnOnce(&mut T) -> &mut U,
    ) -> MappedMutexGuard<'a, U> {
        guard.turned(|inner| parking_lot::MutexGuard::map(inner, part))
    }
    /// Releases the lock during `wait` and acquires it again.
    pub(super) fn during<R>(&mut self, wait: impl FnOnce() -> R) -> R {
        let mutex = parking_lot::MutexGuard::mutex(self.real());
        let waiters = self.waiters();
        self.without(wait, || take(mutex, waiters))
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}
