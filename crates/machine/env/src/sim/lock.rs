//! Mutual exclusion.

use super::baton::{Waiters, is_managed, point};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// As `parking_lot`'s.
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    waiters: Waiters,
    inner: parking_lot::Mutex<T>,
}

/// As `parking_lot`'s.
#[must_use = "if unused the lock is free at once"]
pub struct MutexGuard<'a, T: ?Sized> {
    pub(super) mutex: &'a Mutex<T>,
    /// Always there but while a condition variable waits.
    inner: Option<parking_lot::MutexGuard<'a, T>>,
}

/// As `parking_lot`'s.
#[must_use = "if unused the lock is free at once"]
pub struct MappedMutexGuard<'a, T: ?Sized> {
    waiters: &'a Waiters,
    inner: Option<parking_lot::MappedMutexGuard<'a, T>>,
}

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
        MutexGuard {
            mutex: self,
            inner: Some(inner),
        }
    }
    fn take(&self) -> parking_lot::MutexGuard<'_, T> {
        if !is_managed() {
            return self.inner.lock();
        }
        loop {
            if let Some(inner) = self.inner.try_lock() {
                return inner;
            }
            self.waiters.wait("a lock", None);
        }
    }
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// As `parking_lot`'s.
    pub fn map<U: ?Sized>(
        mut guard: Self,
        part: impl FnOnce(&mut T) -> &mut U,
    ) -> MappedMutexGuard<'a, U> {
        let inner = guard.inner.take();
        MappedMutexGuard {
            waiters: &guard.mutex.waiters,
            inner: inner.map(|inner| parking_lot::MutexGuard::map(inner, part)),
        }
    }
    /// Gives the lock back for the time of `wait`, which gets the lock's own guard.
    pub(super) fn without<R>(&mut self, wait: impl FnOnce() -> R) -> R {
        self.inner = None;
        self.mutex.waiters.wake_all();
        let outcome = wait();
        self.inner = Some(self.mutex.take());
        outcome
    }
    /// The real guard, for a real condition variable.
    pub(super) fn real(&mut self) -> &mut parking_lot::MutexGuard<'a, T> {
        self.inner.as_mut().expect("a guard holds its lock")
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        if self.inner.take().is_some() {
            self.mutex.waiters.wake_all();
        }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("a guard holds its lock")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("a guard holds its lock")
    }
}

impl<T: ?Sized> Drop for MappedMutexGuard<'_, T> {
    fn drop(&mut self) {
        if self.inner.take().is_some() {
            self.waiters.wake_all();
        }
    }
}

impl<T: ?Sized> Deref for MappedMutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("a guard holds its lock")
    }
}

impl<T: ?Sized> DerefMut for MappedMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("a guard holds its lock")
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}
