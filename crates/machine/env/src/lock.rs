//! Locks that check the order in which a thread takes them.
//!
//! A lock's rank is a type parameter, from the table in [`rank`](crate::rank). In debug builds each thread
//! keeps the ranks that it holds. Waiting for a lock panics if the thread holds one of the same or a later
//! rank, so an order that could deadlock fails the first time it runs, and not only when two threads meet.
//! In release builds the rank costs nothing.

use crate::rank::{Held, LockRank, Unranked};
use crate::sync::base;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// `parking_lot`'s mutex with a rank.
pub struct Mutex<T: ?Sized, R = Unranked> {
    rank: PhantomData<fn() -> R>,
    inner: base::Mutex<T>,
}

/// `parking_lot`'s reader-writer lock with a rank.
pub struct RwLock<T: ?Sized, R = Unranked> {
    rank: PhantomData<fn() -> R>,
    inner: base::RwLock<T>,
}

/// `parking_lot`'s condition variable.
#[derive(Debug, Default)]
pub struct Condvar(base::Condvar);

/// A held lock: a guard of `parking_lot`, and the rank.
#[must_use = "if unused the lock is free at once"]
pub struct Guard<G> {
    inner: G,
    held: Held,
}

/// A held [`Mutex`].
pub type MutexGuard<'a, T> = Guard<base::MutexGuard<'a, T>>;
/// A part of what a [`Mutex`] protects, while it is held.
pub type MappedMutexGuard<'a, T> = Guard<base::MappedMutexGuard<'a, T>>;
/// An [`RwLock`] held for reading.
pub type RwLockReadGuard<'a, T> = Guard<base::RwLockReadGuard<'a, T>>;
/// An [`RwLock`] held for writing.
pub type RwLockWriteGuard<'a, T> = Guard<base::RwLockWriteGuard<'a, T>>;

impl<T, R> Mutex<T, R> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Self {
            rank: PhantomData,
            inner: base::Mutex::new(value),
        }
    }
    /// The protected value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized, R: LockRank> Mutex<T, R> {
    /// Waits for the lock. In debug builds, panics if the thread holds a lock that must be taken later.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = Held::waiting(R::RANK);
        Guard {
            inner: self.inner.lock(),
            held,
        }
    }
    /// Takes the lock if it is free. In any order, because it does not wait.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        Guard::tried(R::RANK, self.inner.try_lock())
    }
    /// Waits for the lock, but not longer than `limit`. In any order, because it does not wait for ever.
    pub fn try_lock_for(&self, limit: Duration) -> Option<MutexGuard<'_, T>> {
        Guard::tried(R::RANK, self.inner.try_lock_for(limit))
    }
}

impl<T: ?Sized, R> Mutex<T, R> {
    /// Whether some thread holds it.
    pub fn is_locked(&self) -> bool {
        self.inner.is_locked()
    }
    /// The protected value, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T, R> RwLock<T, R> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Self {
            rank: PhantomData,
            inner: base::RwLock::new(value),
        }
    }
    /// The protected value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized, R: LockRank> RwLock<T, R> {
    /// Waits until no thread writes. In debug builds, panics if the thread holds a lock that must be taken
    /// later, or this one: a writer that waits would keep the second reader out.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let held = Held::waiting(R::RANK);
        Guard {
            inner: self.inner.read(),
            held,
        }
    }
    /// Waits until no other thread reads or writes. In debug builds, panics as [`RwLock::read`].
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let held = Held::waiting(R::RANK);
        Guard {
            inner: self.inner.write(),
            held,
        }
    }
    /// Takes the lock for reading if no thread writes. In any order, because it does not wait.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        Guard::tried(R::RANK, self.inner.try_read())
    }
    /// Takes the lock for writing if it is free. In any order, because it does not wait.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        Guard::tried(R::RANK, self.inner.try_write())
    }
    /// Waits for reading, but not longer than `limit`. In any order, because it does not wait for ever.
    pub fn try_read_for(&self, limit: Duration) -> Option<RwLockReadGuard<'_, T>> {
        Guard::tried(R::RANK, self.inner.try_read_for(limit))
    }
}

impl<T: ?Sized, R> RwLock<T, R> {
    /// Whether some thread holds it.
    pub fn is_locked(&self) -> bool {
        self.inner.is_locked()
    }
    /// The protected value, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl Condvar {
    /// A condition variable that no thread waits on.
    #[must_use]
    pub const fn new() -> Self {
        Self(base::Condvar::new())
    }
    /// Releases the lock, waits for a notification, and takes the lock again. In debug builds, panics if the
    /// thread holds a lock that must be taken later than this one.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.held.check_again();
        self.0.wait(&mut guard.inner);
    }
    /// As [`Condvar::wait`], but not longer than `limit`.
    pub fn wait_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        limit: Duration,
    ) -> base::WaitTimeoutResult {
        guard.held.check_again();
        self.0.wait_for(&mut guard.inner, limit)
    }
    /// Wakes one thread; returns whether one waited.
    pub fn notify_one(&self) -> bool {
        self.0.notify_one()
    }
    /// Wakes all threads; returns how many waited.
    pub fn notify_all(&self) -> usize {
        self.0.notify_all()
    }
}

impl<G> Guard<G> {
    fn tried(rank: Option<crate::rank::Rank>, inner: Option<G>) -> Option<Self> {
        inner.map(|inner| Self {
            inner,
            held: Held::taken(rank),
        })
    }
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// Keeps the lock, and shows a part of what it protects.
    pub fn map<U: ?Sized>(
        guard: Self,
        part: impl FnOnce(&mut T) -> &mut U,
    ) -> MappedMutexGuard<'a, U> {
        Guard {
            inner: base::MutexGuard::map(guard.inner, part),
            held: guard.held,
        }
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

impl<G: Deref<Target: fmt::Debug>> fmt::Debug for Guard<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Default, R> Default for Mutex<T, R> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: Default, R> Default for RwLock<T, R> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug, R> fmt::Debug for Mutex<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug, R> fmt::Debug for RwLock<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

// Release builds do not check the order.
#[cfg(all(test, debug_assertions))]
mod tests;
