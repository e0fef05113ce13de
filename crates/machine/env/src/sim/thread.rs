//! Scheduled threads.

use super::scheduler::{Waiters, point, with_mine};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Whether a thread has ended, and which threads wait for its end.
#[derive(Default)]
struct End {
    has_come: AtomicBool,
    waiters: Waiters,
}

impl End {
    fn come(&self) {
        self.has_come.store(true, Ordering::SeqCst);
        self.waiters.wake_all();
    }
    /// Threads outside of a run wait only in the real join.
    fn wait(&self) {
        point();
        while super::is_managed() && !self.has_come.load(Ordering::SeqCst) {
            self.waiters.wait("the end of a thread", None);
        }
    }
}

/// As the standard library's.
pub struct JoinHandle<T> {
    inner: std::thread::JoinHandle<T>,
    end: Arc<End>,
}

impl<T> JoinHandle<T> {
    /// As the standard library's.
    ///
    /// # Errors
    /// With the thread's panic.
    pub fn join(self) -> std::thread::Result<T> {
        self.end.wait();
        self.inner.join()
    }
    /// As the standard library's.
    pub fn is_finished(&self) -> bool {
        self.end.has_come.load(Ordering::SeqCst)
    }
    /// As the standard library's.
    pub fn thread(&self) -> &std::thread::Thread {
        self.inner.thread()
    }
}

impl<T> std::fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

/// Wraps a thread's body in its registration with the scheduler. Outside of a run the body stays
/// unscheduled.
///
/// The second closure undoes the registration if the thread could not be started.
fn with_turns<T, F: FnOnce() -> T>(
    name: &str,
    end: &Arc<End>,
    body: F,
) -> (impl FnOnce() -> T + use<T, F>, impl FnOnce() + use<T, F>) {
    let run = with_mine(|scheduler, _| (Arc::clone(scheduler), scheduler.enter(name)));
    let back = run.clone();
    let end = Arc::clone(end);
    let all = move || match run {
        None => {
            let outcome = catch_unwind(AssertUnwindSafe(body));
            end.has_come.store(true, Ordering::SeqCst);
            outcome.unwrap_or_else(|panic| resume_unwind(panic))
        }
        Some((scheduler, id)) => {
            let outcome = scheduler.live(id, || {
                let outcome = catch_unwind(AssertUnwindSafe(body));
                end.come();
                outcome
            });
            outcome.unwrap_or_else(|panic| resume_unwind(panic))
        }
    };
    let take_back = move || {
        if let Some((scheduler, id)) = back {
            scheduler.forget(id);
        }
    };
    (all, take_back)
}

pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    let end = Arc::<End>::default();
    let (all, take_back) = with_turns(name, &end, body);
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(all);
    match spawned {
        Ok(inner) => {
            point();
            Ok(JoinHandle { inner, end })
        }
        Err(error) => {
            take_back();
            Err(error)
        }
    }
}

/// As the standard library's.
pub struct Scope<'scope, 'env: 'scope> {
    inner: &'scope std::thread::Scope<'scope, 'env>,
    children: Arc<Children>,
}

#[derive(Default)]
struct Children {
    running: AtomicUsize,
    waiters: Waiters,
}

/// As the standard library's.
pub struct ScopedJoinHandle<'scope, T> {
    inner: std::thread::ScopedJoinHandle<'scope, T>,
    end: Arc<End>,
}

impl<T> ScopedJoinHandle<'_, T> {
    /// As the standard library's.
    ///
    /// # Errors
    /// With the thread's panic.
    pub fn join(self) -> std::thread::Result<T> {
        self.end.wait();
        self.inner.join()
    }
    /// As the standard library's.
    pub fn is_finished(&self) -> bool {
        self.end.has_come.load(Ordering::SeqCst)
    }
}

impl<'scope> Scope<'scope, '_> {
    /// As the standard library's.
    pub fn spawn<F, T>(&self, body: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let end = Arc::<End>::default();
        let children = Arc::clone(&self.children);
        children.running.fetch_add(1, Ordering::SeqCst);
        let counted = move || {
            let outcome = catch_unwind(AssertUnwindSafe(body));
            children.running.fetch_sub(1, Ordering::SeqCst);
            children.waiters.wake_all();
            outcome.unwrap_or_else(|panic| resume_unwind(panic))
        };
        // As in the standard library, failure to start a thread panics.
        let (all, _) = with_turns("scoped", &end, counted);
        let inner = self.inner.spawn(all);
        point();
        ScopedJoinHandle { inner, end }
    }
}

/// As the standard library's.
pub fn scope<'env, F, T>(body: F) -> T
where
    F: for<'scope> FnOnce(&Scope<'scope, 'env>) -> T,
{
    std::thread::scope(|inner| {
        let children = Arc::<Children>::default();
        let scope = Scope {
            inner,
            children: Arc::clone(&children),
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| body(&scope)));
        // The end of the real scope blocks without yielding to the scheduler. All threads must therefore
        // have ended before.
        while super::is_managed() && children.running.load(Ordering::SeqCst) > 0 {
            children.waiters.wait("the threads of a scope", None);
        }
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

pub(crate) fn yield_now() {
    if with_mine(|scheduler, me| scheduler.point(me, true)).is_none() {
        std::thread::yield_now();
    }
}
