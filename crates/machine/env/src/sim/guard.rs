//! Guards of held locks.

use super::scheduler::Waiters;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A held lock, around a guard of `parking_lot`. When it is dropped, all waiters of the lock become ready.
#[must_use = "if unused the lock is free at once"]
pub struct Held<'a, G> {
    waiters: &'a Waiters,
    /// Always `Some`, except while a condition variable waits.
    inner: Option<G>,
}

impl<'a, G> Held<'a, G> {
    pub(super) fn new(waiters: &'a Waiters, inner: G) -> Self {
        let inner = Some(inner);
        Self { waiters, inner }
    }
    /// Converts the guard and keeps the lock.
    pub(super) fn turned<H>(mut self, turn: impl FnOnce(G) -> H) -> Held<'a, H> {
        Held {
            waiters: self.waiters,
            inner: self.inner.take().map(turn),
        }
    }
    /// Releases the lock during `wait`; `take` acquires it again.
    pub(super) fn without<R>(&mut self, wait: impl FnOnce() -> R, take: impl FnOnce() -> G) -> R {
        self.inner = None;
        self.waiters.wake_all();
        let outcome = wait();
        self.inner = Some(take());
        outcome
    }
    /// The threads that wait for this lock.
    pub(super) fn waiters(&self) -> &'a Waiters {
        self.waiters
    }
    /// The real guard.
    pub(super) fn real(&self) -> &G {
        self.inner.as_ref().expect("a guard holds its lock")
    }
    /// The real guard.
    pub(super) fn real_mut(&mut self) -> &mut G {
        self.inner.as_mut().expect("a guard holds its lock")
    }
}

impl<G> Drop for Held<'_, G> {
    fn drop(&mut self) {
        if self.inner.take().is_some() {
            self.waiters.wake_all();
        }
    }
}

impl<G: Deref> Deref for Held<'_, G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        self.real()
    }
}

impl<G: DerefMut> DerefMut for Held<'_, G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        self.real_mut()
    }
}

impl<G: Deref<Target: fmt::Debug>> fmt::Debug for Held<'_, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
