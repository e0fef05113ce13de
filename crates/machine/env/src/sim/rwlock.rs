//! Locks that are shared by those who only look.

use super::baton::{Waiters, is_managed, point};
use super::lock::nanoseconds;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// As `parking_lot`'s, but that nobody who looks waits for somebody who waits to write.
#[derive(Default)]
pub struct RwLock<T: ?Sized> {
    waiters: Waiters,
    inner: parking_lot::RwLock<T>,
}

/// As `parking_lot`'s.
#[must_use = "if unused the lock is free at once"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    waiters: &'a Waiters,
    inner: Option<parking_lot::RwLockReadGuard<'a, T>>,
}

/// As `parking_lot`'s.
#[must_use = "if unused the lock is free at once"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    waiters: &'a Waiters,
    inner: Option<parking_lot::RwLockWriteGuard<'a, T>>,
}

impl<T> RwLock<T> {
    /// As `parking_lot`'s.
    pub const fn new(value: T) -> Self {
        Self {
            waiters: Waiters::new(),
            inner: parking_lot::RwLock::new(value),
        }
    }
    /// As `parking_lot`'s.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// As `parking_lot`'s.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        point();
        let inner = self.wait(|| self.inner.read(), || self.inner.try_read());
        self.reading(inner)
    }
    /// As `parking_lot`'s.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        point();
        let inner = self.wait(|| self.inner.write(), || self.inner.try_write());
        self.writing(inner)
    }
    /// As `parking_lot`'s.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        point();
        self.inner.try_read().map(|inner| self.reading(inner))
    }
    /// As `parking_lot`'s.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        point();
        self.inner.try_write().map(|inner| self.writing(inner))
    }
    /// As `parking_lot`'s.
    pub fn try_read_for(&self, limit: Duration) -> Option<RwLockReadGuard<'_, T>> {
        if !is_managed() {
            let inner = self.inner.try_read_for(limit);
            return inner.map(|inner| self.reading(inner));
        }
        point();
        loop {
            if let Some(inner) = self.inner.try_read() {
                return Some(self.reading(inner));
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
    fn wait<G>(&self, real: impl FnOnce() -> G, attempt: impl Fn() -> Option<G>) -> G {
        if !is_managed() {
            return real();
        }
        loop {
            if let Some(guard) = attempt() {
                return guard;
            }
            self.waiters.wait("a lock", None);
        }
    }
    fn reading<'a>(&'a self, inner: parking_lot::RwLockReadGuard<'a, T>) -> RwLockReadGuard<'a, T> {
        RwLockReadGuard {
            waiters: &self.waiters,
            inner: Some(inner),
        }
    }
    fn writing<'a>(
        &'a self,
        inner: parking_lot::RwLockWriteGuard<'a, T>,
    ) -> RwLockWriteGuard<'a, T> {
        RwLockWriteGuard {
            waiters: &self.waiters,
            inner: Some(inner),
        }
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        self.inner = None;
        self.waiters.wake_all();
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        self.inner = None;
        self.waiters.wake_all();
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("a guard holds its lock")
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("a guard holds its lock")
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("a guard holds its lock")
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}
