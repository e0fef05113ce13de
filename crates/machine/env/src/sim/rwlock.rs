//! Reader-writer locks.

use super::guard::Held;
use super::lock::nanoseconds;
use super::scheduler::{Waiters, is_managed, point};
use std::fmt;
use std::time::Duration;

/// As `parking_lot`'s, except that readers do not wait for blocked writers.
#[derive(Default)]
pub struct RwLock<T: ?Sized> {
    waiters: Waiters,
    inner: parking_lot::RwLock<T>,
}

/// As `parking_lot`'s.
pub type RwLockReadGuard<'a, T> = Held<'a, parking_lot::RwLockReadGuard<'a, T>>;

/// As `parking_lot`'s.
pub type RwLockWriteGuard<'a, T> = Held<'a, parking_lot::RwLockWriteGuard<'a, T>>;

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
        Held::new(&self.waiters, inner)
    }
    /// As `parking_lot`'s.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        point();
        let inner = self.wait(|| self.inner.write(), || self.inner.try_write());
        Held::new(&self.waiters, inner)
    }
    /// As `parking_lot`'s.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        point();
        self.inner
            .try_read()
            .map(|inner| Held::new(&self.waiters, inner))
    }
    /// As `parking_lot`'s.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        point();
        self.inner
            .try_write()
            .map(|inner| Held::new(&self.waiters, inner))
    }
    /// As `parking_lot`'s.
    pub fn try_read_for(&self, limit: Duration) -> Option<RwLockReadGuard<'_, T>> {
        if !is_managed() {
            let inner = self.inner.try_read_for(limit);
            return inner.map(|inner| Held::new(&self.waiters, inner));
        }
        point();
        loop {
            if let Some(inner) = self.inner.try_read() {
                return Some(Held::new(&self.waiters, inner));
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
