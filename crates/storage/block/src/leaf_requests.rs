//! The threads of a leaf, which make its requests in the order of the queue.
//!
//! Lock: the queue's state, held for a few instructions and never with a request's.

use millpond_env::rank;
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_env::thread::{self, JoinHandle};
use std::collections::VecDeque;
use std::fmt;

/// The most threads of one leaf.
const THREADS_MAX: usize = 8;

/// A queued or running request.
pub(crate) trait Request: Send + Sync {
    fn perform(&self);
    /// Drops the outcome: no caller waits for it.
    fn abandon(&self);
    fn is_abandoned(&self) -> bool;
}

/// The threads that make a leaf's requests, started on first use.
#[derive(Default)]
pub(crate) struct LeafRequests {
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>, rank::Leaf>,
}

impl fmt::Debug for LeafRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeafRequests").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState, rank::LeafRequests>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<Arc<dyn Request>>,
    under_way: Vec<Arc<dyn Request>>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

impl Queue {
    fn serve(&self) {
        loop {
            let request = {
                let mut state = self.state.lock();
                loop {
                    if let Some(request) = state.waiting.pop_front() {
                        state.under_way.push(Arc::clone(&request));
                        break request;
                    }
                    if state.is_closed {
                        return;
                    }
                    state.idle += 1;
                    self.changed.wait(&mut state);
                    state.idle -= 1;
                }
            };
            request.perform();
            let mut state = self.state.lock();
            let same = |other: &Arc<dyn Request>| Arc::ptr_eq(other, &request);
            if let Some(at) = state.under_way.iter().position(same) {
                state.under_way.swap_remove(at);
            }
        }
    }
}

impl LeafRequests {
    pub(crate) fn submit(&self, request: Arc<dyn Request>) {
        let needs_thread = {
            let mut state = self.queue.state.lock();
            state.waiting.push_back(Arc::clone(&request));
            let is_short = state.waiting.len() > state.idle && state.threads < THREADS_MAX;
            state.threads += usize::from(is_short);
            is_short
        };
        self.queue.changed.notify_one();
        if !needs_thread {
            return;
        }
        let queue = Arc::clone(&self.queue);
        match thread::spawn("block-leaf", move || queue.serve()) {
            Ok(handle) => self.threads.lock().push(handle),
            Err(_) => {
                self.queue.state.lock().threads -= 1;
                // Another thread may have taken the request meanwhile; then this does nothing.
                request.perform();
            }
        }
    }

    /// Abandons all queued and running requests.
    pub(crate) fn abandon_all(&self) {
        let all: Vec<Arc<dyn Request>> = {
            let mut state = self.queue.state.lock();
            let waiting = std::mem::take(&mut state.waiting).into_iter();
            waiting.chain(state.under_way.iter().cloned()).collect()
        };
        all.iter().for_each(|request| request.abandon());
    }

    /// The number of abandoned requests that the device has not completed.
    pub(crate) fn abandoned(&self) -> usize {
        let state = self.queue.state.lock();
        let under_way = state.under_way.iter();
        under_way.filter(|request| request.is_abandoned()).count()
    }
}

impl Drop for LeafRequests {
    fn drop(&mut self) {
        let is_free = {
            let mut state = self.queue.state.lock();
            state.is_closed = true;
            state.under_way.is_empty()
        };
        self.queue.changed.notify_all();
        if !is_free {
            // These threads end when the device answers.
            return;
        }
        for handle in self.threads.lock().drain(..) {
            // The last reference to the leaf may be dropped by one of its requests.
            if handle.thread().id() != thread::current_id() {
                let _ = handle.join();
            }
        }
    }
}
