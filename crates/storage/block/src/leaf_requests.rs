//! The threads of a leaf, which make its requests in the order of the queue.
//!
//! Requests that a caller waits for have a queue and threads of their own. The others wait in their threads until the
//! [leaf's queue](crate::leaf_queue) admits them, and would keep `fsync` and reads waiting.
//!
//! Lock: the queue's state, held for a few instructions and never with a request's.

use crate::io_stats::IoClass;
use millpond_env::rank;
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_env::thread::{self, JoinHandle};
use std::collections::VecDeque;
use std::fmt;

/// The most threads of one lane of a leaf.
const THREADS_MAX: usize = 8;

/// Which threads of a leaf make a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// A program waits for it: reads, the intent log, flushes, labels.
    Foreground,
    /// Writes of a txg, prefetch, scans.
    Background,
}

impl Lane {
    const COUNT: usize = 2;

    pub(crate) fn of(class: IoClass) -> Self {
        match class {
            IoClass::SyncRead | IoClass::SyncWrite => Self::Foreground,
            _ => Self::Background,
        }
    }
}

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
    /// For the threads of each lane.
    changed: [Condvar; Lane::COUNT],
}

#[derive(Default)]
struct QueueState {
    lanes: [LaneState; Lane::COUNT],
    under_way: Vec<Arc<dyn Request>>,
    is_closed: bool,
}

#[derive(Default)]
struct LaneState {
    waiting: VecDeque<Arc<dyn Request>>,
    threads: usize,
    idle: usize,
}

impl Queue {
    fn serve(&self, lane: Lane) {
        let lane = lane as usize;
        loop {
            let request = {
                let mut state = self.state.lock();
                loop {
                    if let Some(request) = state.lanes[lane].waiting.pop_front() {
                        state.under_way.push(Arc::clone(&request));
                        break request;
                    }
                    if state.is_closed {
                        return;
                    }
                    state.lanes[lane].idle += 1;
                    self.changed[lane].wait(&mut state);
                    state.lanes[lane].idle -= 1;
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
    pub(crate) fn submit(&self, lane: Lane, request: Arc<dyn Request>) {
        let needs_thread = {
            let mut state = self.queue.state.lock();
            let state = &mut state.lanes[lane as usize];
            state.waiting.push_back(Arc::clone(&request));
            let is_short = state.waiting.len() > state.idle && state.threads < THREADS_MAX;
            state.threads += usize::from(is_short);
            is_short
        };
        self.queue.changed[lane as usize].notify_one();
        if !needs_thread {
            return;
        }
        let queue = Arc::clone(&self.queue);
        match thread::spawn("block-leaf", move || queue.serve(lane)) {
            Ok(handle) => self.threads.lock().push(handle),
            Err(_) => {
                self.queue.state.lock().lanes[lane as usize].threads -= 1;
                // Another thread may have taken the request meanwhile; then this does nothing.
                request.perform();
            }
        }
    }

    /// Abandons all queued and running requests.
    pub(crate) fn abandon_all(&self) {
        let all: Vec<Arc<dyn Request>> = {
            let mut state = self.queue.state.lock();
            let waiting = state.lanes.iter_mut();
            let mut all: Vec<_> = waiting
                .flat_map(|lane| std::mem::take(&mut lane.waiting))
                .collect();
            all.extend(state.under_way.iter().cloned());
            all
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
        for changed in &self.queue.changed {
            changed.notify_all();
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_env::sync::{Receiver, Sender, bounded};

    /// Says that it has begun, and ends when it is told to.
    struct Held {
        begun: Sender<()>,
        go: Receiver<()>,
    }

    impl Request for Held {
        fn perform(&self) {
            self.begun.send(()).unwrap();
            self.go.recv().unwrap();
        }
        fn abandon(&self) {}
        fn is_abandoned(&self) -> bool {
            false
        }
    }

    #[test]
    fn requests_in_the_background_do_not_delay_others() {
        let requests = LeafRequests::default();
        let (begun, begins) = bounded(64);
        let (go, gate) = bounded(64);
        let count = 2 * THREADS_MAX;
        for _ in 0..count {
            let (begun, go) = (begun.clone(), gate.clone());
            requests.submit(Lane::Background, Arc::new(Held { begun, go }));
        }
        for _ in 0..THREADS_MAX {
            begins.recv().unwrap();
        }
        // All threads of the background are at work.
        let (begun, foreground) = bounded(1);
        let own = Arc::new(Held { begun, go: gate });
        requests.submit(Lane::Foreground, own);
        foreground.recv().unwrap();
        for _ in 0..=count {
            go.send(()).unwrap();
        }
        for _ in THREADS_MAX..count {
            begins.recv().unwrap();
        }
    }
}
