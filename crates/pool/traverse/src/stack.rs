//! The work stack of a traversal, shared by several threads.
//!
//! The order is last in, first out. The traversal thus goes depth first, and memory stays bounded: each level of a
//! tree adds at most one block of pointers per thread.

use millpond_env::rank;
use millpond_env::sync::{Condvar, Mutex};

/// A work stack. Work ends when the stack is empty and no thread is processing an item.
pub(crate) struct Stack<T> {
    state: Mutex<State<T>, rank::Leaf>,
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

    /// Processes items until all work is done. Each thread calls this.
    pub(crate) fn work(&self, perform: impl Fn(T)) {
        while let Some(item) = self.take() {
            let _busy = BusyGuard(self);
            perform(item);
        }
    }

    /// The next item, or `None` when all work is done. Each item taken must be ended with [`Stack::finish`];
    /// [`BusyGuard`] does so.
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

    /// Adds items. The last one is taken first.
    pub(crate) fn push(&self, items: impl IntoIterator<Item = T>) {
        self.state.lock().items.extend(items);
        self.changed.notify_all();
    }

    /// Marks an item that was taken as done.
    fn finish(&self) {
        let mut state = self.state.lock();
        state.busy -= 1;
        if state.busy == 0 {
            self.changed.notify_all();
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().is_stopped
    }

    /// Stops the work. Items left on the stack are not processed.
    pub(crate) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }
}

/// Finishes an item on drop, also during a panic. Otherwise the other threads would wait for it forever.
struct BusyGuard<'s, T>(&'s Stack<T>);

impl<T> Drop for BusyGuard<'_, T> {
    fn drop(&mut self) {
        self.0.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_env::sync::atomic::{AtomicU64, Ordering};
    use millpond_env::thread;

    #[test]
    fn several_threads_end_together_after_all_work_is_done() {
        // Each item n pushes two items n - 1, which makes 2^12 - 1 items.
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

    #[test]
    fn a_panic_in_one_thread_does_not_block_the_others() {
        let stack = Stack::new(vec![0, 1, 2]);
        let done = AtomicU64::new(0);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        stack.work(|item| {
                            assert_ne!(item, 2, "this one breaks");
                            done.fetch_add(1, Ordering::Relaxed);
                        });
                    });
                }
            });
        }));
        assert!(outcome.is_err());
        assert_eq!(done.load(Ordering::Relaxed), 2);
    }
}
