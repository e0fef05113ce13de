//! The threads of a pool, and waiting for their end.
//!
//! A thread that writes a txg holds the pool, and with it the devices and their locks. Dropping the last handle
//! waits for it: otherwise the same process could not open the pool again at once.
//!
//! Lock: one mutex, held for a few instructions. Waiting happens on its condition variable.

use millpond_env::rank;
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_env::thread::{self, JoinHandle};
use std::time::Duration;

/// How often a waiting thread checks whether waiting still makes sense.
const LOOK: Duration = Duration::from_millis(100);

/// The threads that a pool started.
#[derive(Default)]
pub(crate) struct PoolThreads {
    state: Mutex<State, rank::Leaf>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Threads whose body has not returned.
    running: usize,
    handles: Vec<JoinHandle<()>>,
}

/// Uncounts a thread after its body has dropped everything it held.
struct Running(Arc<PoolThreads>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.state.lock().running -= 1;
        self.0.ended.notify_all();
    }
}

impl PoolThreads {
    /// Starts a thread.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        self.state.lock().running += 1;
        let running = Running(Arc::clone(self));
        let handle = thread::spawn(name, move || {
            let _running = running;
            body();
        })?;
        self.state.lock().handles.push(handle);
        Ok(())
    }

    /// Whether no thread is left.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().handles.is_empty()
    }

    /// Waits until all threads have ended, except when called from one of them. Gives up when `is_stalled`.
    ///
    /// The threads must have been told to end.
    pub(crate) fn wait(&self, is_stalled: &dyn Fn() -> bool) {
        let mut state = self.state.lock();
        let own = thread::current_id();
        if state.handles.iter().any(|one| one.thread().id() == own) {
            return;
        }
        while state.running > 0 {
            let has_waited = self.ended.wait_for(&mut state, LOOK).timed_out();
            if has_waited {
                drop(state);
                if is_stalled() {
                    return;
                }
                state = self.state.lock();
            }
        }
        let handles = std::mem::take(&mut state.handles);
        drop(state);
        for handle in handles {
            // The result is unimportant: waiting callers have already received any failure.
            let _ = handle.join();
        }
    }
}
