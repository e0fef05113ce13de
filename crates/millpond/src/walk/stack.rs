//! A walk's unfinished work: a stack that several threads share.
//!
//! Last in, first out, so that the walk goes deep before it goes wide and memory stays bounded: each
//! level of a tree adds at most one block of pointers for each thread.

use millpond_env::sync::{Condvar, Mutex};

/// A stack of work that ends when it is empty and nobody is making more.
pub(crate) struct Stack<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    items: Vec<T>,
    busy: usize,
    is_stopped: bool,
}

impl<T> Stack<T> {
    pub(crate) fn new(items: Vec<T>) -> Self {
        let state = State {
            items,
            busy: 0,
            is_stopped: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Has items performed until all is done. Called by each thread.
    pub(crate) fn work(&self, perform: impl Fn(T)) {
        while let Some(item) = self.take() {
            perform(item);
            self.finish();
        }
    }

    /// The next item, or `None` when all is done. Each item taken must be ended with
    /// [`Stack::finish`].
    fn take(&self) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            if state.is_stopped {
                return None;
            }
            if let Some(item) = state.items.pop() {
                state.busy += 1;
                return Some(item);
            }
            if state.busy == 0 {
                self.changed.notify_all();
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Adds work; of several items the last is taken first.
    pub(crate) fn push(&self, items: impl IntoIterator<Item = T>) {
        self.state.lock().items.extend(items);
        self.changed.notify_all();
    }

    /// Ends an item that was taken.
    fn finish(&self) {
        let mut state = self.state.lock();
        state.busy -= 1;
        if state.busy == 0 {
            self.changed.notify_all();
        }
    }

    /// Ends all work.
    pub(crate) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_env::sync::atomic::{AtomicU64, Ordering};
    use millpond_env::thread;

    #[test]
    fn several_threads_end_together_after_all_work_is_done() {
        // Each item n makes two items n - 1: 2^12 - 1 in all.
        let stack = Stack::new(vec![11u32]);
        let done = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    stack.work(|item| {
                        if item > 0 {
                            stack.push([item - 1, item - 1]);
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    });
                });
            }
        });
        assert_eq!(done.load(Ordering::Relaxed), (1 << 12) - 1);
    }
}
