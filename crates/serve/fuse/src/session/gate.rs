//! Lets the requests of a session wait while its files are replaced.

use millpond_env::rank;
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_posix::vfs::Vfs;
use std::time::Duration;

/// Every request passes it, and keeps the files as they are until it is answered.
pub(super) struct Gate {
    state: Mutex<State, rank::Leaf>,
    changed: Condvar,
}

struct State {
    /// `None` while they are replaced, and after the end of the session.
    served: Option<Arc<dyn Vfs>>,
    /// The number of requests under way.
    inside: usize,
    is_closed: bool,
    /// No files come any more: requests fail.
    is_over: bool,
}

/// A request under way.
pub(super) struct Pass<'g> {
    gate: &'g Gate,
    served: Option<Arc<dyn Vfs>>,
}

impl Gate {
    pub(super) fn new(served: Arc<dyn Vfs>) -> Self {
        let state = State {
            served: Some(served),
            inside: 0,
            is_closed: false,
            is_over: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Waits while the files are replaced. `None` if there are none any more.
    pub(super) fn enter(&self) -> Option<Pass<'_>> {
        let mut state = self.state.lock();
        while state.is_closed && !state.is_over {
            self.changed.wait(&mut state);
        }
        let served = Arc::clone(state.served.as_ref()?);
        state.inside += 1;
        drop(state);
        Some(Pass {
            gate: self,
            served: Some(served),
        })
    }

    /// Keeps requests out, and waits until those under way are answered. Returns false if that takes longer than `limit`,
    /// if the files are being replaced already, or if there are none any more. The gate is then as before.
    pub(super) fn close(&self, limit: Duration) -> bool {
        let mut state = self.state.lock();
        if state.is_closed || state.is_over {
            return false;
        }
        state.is_closed = true;
        while state.inside > 0 && !state.is_over {
            if self.changed.wait_for(&mut state, limit).timed_out() {
                break;
            }
        }
        let is_done = state.inside == 0 && !state.is_over;
        state.is_closed = is_done;
        drop(state);
        self.changed.notify_all();
        is_done
    }

    /// Whether the session has ended or is ending.
    pub(super) fn is_over(&self) -> bool {
        self.state.lock().is_over
    }

    /// Takes the files out. Only after [`Gate::close`] or [`Gate::end`].
    pub(super) fn take(&self) -> Option<Arc<dyn Vfs>> {
        self.state.lock().served.take()
    }

    /// Lets requests continue with these files. Returns false if the session ended meanwhile: it serves no files.
    pub(super) fn open(&self, served: Arc<dyn Vfs>) -> bool {
        let mut state = self.state.lock();
        let unwanted = match state.is_over {
            true => Some(served),
            false => {
                state.served = Some(served);
                None
            }
        };
        state.is_closed = false;
        drop(state);
        self.changed.notify_all();
        unwanted.is_none()
    }

    /// Lets waiting requests fail, and all that follow if the files are taken out.
    pub(super) fn end(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }
}

impl Pass<'_> {
    pub(super) fn served(&self) -> Option<&dyn Vfs> {
        self.served.as_deref()
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        // The thread that waits at the gate must be the only holder of the files afterwards.
        drop(self.served.take());
        let mut state = self.gate.state.lock();
        state.inside -= 1;
        let is_awaited = state.inside == 0 && (state.is_closed || state.is_over);
        drop(state);
        if is_awaited {
            self.gate.changed.notify_all();
        }
    }
}
