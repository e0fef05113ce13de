//! Threads for every crate above.

pub use std::thread::{JoinHandle, Scope, ScopedJoinHandle, ThreadId};

/// Starts a named thread that may outlive the caller.
///
/// # Errors
/// If the operating system refuses another thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
}

/// Runs `body` with a scope whose threads end before it returns.
pub fn scope<'env, F, T>(body: F) -> T
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
{
    std::thread::scope(body)
}

/// How many threads can run at once here; at least 1.
#[must_use]
pub fn parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Lets others run.
pub fn yield_now() {
    std::thread::yield_now();
}

/// Which thread this is.
#[must_use]
pub fn current_id() -> ThreadId {
    std::thread::current().id()
}
