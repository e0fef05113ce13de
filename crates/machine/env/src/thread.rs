//! Threads for every crate above.

#[cfg(millpond_sim)]
pub use crate::sim::{JoinHandle, Scope, ScopedJoinHandle};
use std::cell::Cell;
pub use std::thread::ThreadId;
#[cfg(not(millpond_sim))]
pub use std::thread::{JoinHandle, Scope, ScopedJoinHandle};

/// Starts a named thread that may outlive the caller.
///
/// # Errors
/// If the operating system refuses another thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    let watched = crate::mark::inherited();
    let body = move || {
        watched.take_up();
        body()
    };
    #[cfg(millpond_sim)]
    return crate::sim::spawn(name, body);
    #[cfg(not(millpond_sim))]
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
}

/// Runs `body` with a scope whose threads end before it returns.
#[cfg(not(millpond_sim))]
pub fn scope<'env, F, T>(body: F) -> T
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
{
    std::thread::scope(body)
}
#[cfg(millpond_sim)]
pub use crate::sim::scope;

/// Whether the calling thread is unwinding from a panic.
#[must_use]
pub fn is_panicking() -> bool {
    std::thread::panicking()
}

/// How many threads can run at once here; at least 1. It is 1 in [`alone`].
#[must_use]
pub fn parallelism() -> usize {
    if is_alone() {
        return 1;
    }
    #[cfg(millpond_sim)]
    if crate::sim::is_managed() {
        return crate::sim::PARALLELISM;
    }
    std::thread::available_parallelism().map_or(1, usize::from)
}

thread_local! {
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body` as if this thread were the only one there can be: whoever would share out work among threads
/// does all of it here, in order, and pools opened in it start none. So that what a simulated world is asked for, and in which
/// order, is decided by its seed.
///
/// It asks those who share out work to do so, it does not keep anybody from [`spawn`]ing.
pub fn alone<T>(body: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            ALONE.set(self.0);
        }
    }
    let _restore = Restore(ALONE.replace(true));
    body()
}

/// Whether this thread is in [`alone`].
#[must_use]
pub fn is_alone() -> bool {
    ALONE.get()
}

/// Lets others run.
pub fn yield_now() {
    #[cfg(millpond_sim)]
    crate::sim::yield_now();
    #[cfg(not(millpond_sim))]
    std::thread::yield_now();
}

/// Which thread this is.
#[must_use]
pub fn current_id() -> ThreadId {
    std::thread::current().id()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_there_is_one_thread_until_the_body_has_ended_or_panicked() {
        let before = parallelism();
        let inside = alone(|| (is_alone(), parallelism(), alone(is_alone), is_alone()));
        assert_eq!(inside, (true, 1, true, true));
        let panicked = std::panic::catch_unwind(|| alone(|| panic!("as it should")));
        assert!(panicked.is_err());
        assert_eq!((is_alone(), parallelism()), (false, before));
    }
}
