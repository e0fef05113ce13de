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

/// Runs `body` with a scope. The threads of the scope end before this returns.
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

/// The number of threads that can run at once, at least 1. It is 1 inside [`alone`].
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

/// Runs `body` in single-threaded mode.
///
/// Code that distributes work among threads does all of it in the calling thread, in order, and pools
/// opened in `body` start no threads. The seed of a simulated world then determines its requests and their
/// order.
///
/// This is a request to code that distributes work; it does not prevent [`spawn`].
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

/// Whether this thread runs inside [`alone`].
#[must_use]
pub fn is_alone() -> bool {
    ALONE.get()
}

/// Waits in real time. Under the seeded scheduler it only lets other threads run.
pub fn sleep(duration: std::time::Duration) {
    #[cfg(millpond_sim)]
    {
        let _ = duration;
        yield_now();
    }
    #[cfg(not(millpond_sim))]
    std::thread::sleep(duration);
}

/// Yields to other threads.
pub fn yield_now() {
    #[cfg(millpond_sim)]
    crate::sim::yield_now();
    #[cfg(not(millpond_sim))]
    std::thread::yield_now();
}

/// The id of the calling thread.
#[must_use]
pub fn current_id() -> ThreadId {
    std::thread::current().id()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_thread_mode_ends_with_its_body_or_its_panic() {
        let before = parallelism();
        let inside = alone(|| (is_alone(), parallelism(), alone(is_alone), is_alone()));
        assert_eq!(inside, (true, 1, true, true));
        let panicked = std::panic::catch_unwind(|| alone(|| panic!("as it should")));
        assert!(panicked.is_err());
        assert_eq!((is_alone(), parallelism()), (false, before));
    }
}
