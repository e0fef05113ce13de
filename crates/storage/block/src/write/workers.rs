//! Long-lived threads that share batches of work.

use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex, Sender, bounded};
use millpond_env::thread::{self, JoinHandle};

type Task = Box<dyn FnOnce() + Send>;

/// A pool of worker threads. A batch consists of items that one function processes. The calling thread
/// takes part, and the results are in the order of the items. With one thread the caller processes all
/// items itself, in order.
///
/// An item must not submit work to the same pool.
pub(crate) struct Workers {
    sender: Option<Sender<Task>>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// `count` threads, including the calling one. Fewer if the system refuses to create them.
    pub(crate) fn new(name: &str, count: usize) -> Self {
        let others = count.saturating_sub(1);
        if others == 0 {
            return Self {
                sender: None,
                threads: vec![],
            };
        }
        let (sender, receiver) = bounded::<Task>(others * 2);
        let spawned = (0..others).map(|number| {
            let receiver = receiver.clone();
            thread::spawn(&format!("{name}-{number}"), move || {
                while let Ok(task) = receiver.recv() {
                    task();
                }
            })
        });
        Self {
            threads: spawned.flatten().collect(),
            sender: Some(sender),
        }
    }

    /// Processes every item and waits.
    pub(crate) fn map<T, R>(
        &self,
        items: Vec<T>,
        treat: impl Fn(T) -> R + Send + Sync + 'static,
    ) -> Vec<R>
    where
        T: Send + 'static,
        R: Send + 'static,
    {
        // The caller processes one item itself.
        let helpers = items.len().saturating_sub(1);
        self.start(helpers, items, treat).finish()
    }

    /// Lets at most `helpers` threads start on the items; [`Running::finish`] processes the rest.
    pub(crate) fn start<T, R>(
        &self,
        helpers: usize,
        items: Vec<T>,
        treat: impl Fn(T) -> R + Send + Sync + 'static,
    ) -> Running<R>
    where
        T: Send + 'static,
        R: Send + 'static,
    {
        let count = items.len();
        let batch = Arc::new(Batch {
            items: items
                .into_iter()
                .map(|item| Mutex::new(Some(item)))
                .collect(),
            next: AtomicUsize::new(0),
            results: Mutex::new(Results {
                done: (0..count).map(|_| None).collect(),
                left: count,
            }),
            is_over: AtomicBool::new(count == 0),
            finished: Condvar::new(),
            treat: Mutex::new(Some(Arc::new(treat))),
        });
        if let Some(sender) = &self.sender {
            for _ in 0..self.threads.len().min(helpers) {
                let batch = Arc::clone(&batch);
                // A full queue means that all workers are busy; the caller does the work.
                if sender.try_send(Box::new(move || batch.work())).is_err() {
                    break;
                }
            }
        }
        Running { batch }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.sender = None;
        for handle in self.threads.drain(..) {
            // A thread may drop the last reference to the store itself.
            if handle.thread().id() != thread::current_id() {
                // A thread panics only if an item did, which the caller has already seen.
                let _ = handle.join();
            }
        }
    }
}

/// A batch in progress.
pub(crate) struct Running<R> {
    batch: Arc<dyn Work<R>>,
}

impl<R> Running<R> {
    /// Takes part until no item is left, and returns the results in the order of the items.
    ///
    /// # Panics
    /// If processing an item did.
    pub(crate) fn finish(self) -> Vec<R> {
        self.batch.work();
        self.batch.wait()
    }

    /// Whether all items are processed.
    pub(crate) fn is_over(&self) -> bool {
        self.batch.is_over()
    }
}

trait Work<R>: Send + Sync {
    fn work(&self);
    fn wait(&self) -> Vec<R>;
    fn is_over(&self) -> bool;
}

struct Batch<T, R, F> {
    items: Vec<Mutex<Option<T>, rank::Leaf>>,
    next: AtomicUsize,
    results: Mutex<Results<R>, rank::Leaf>,
    is_over: AtomicBool,
    finished: Condvar,
    /// What processes an item; gone once the caller has the results. Threads may keep the batch longer, and this may own
    /// the store: its last reference closes the devices and ends the threads, which must not happen on one of them.
    treat: Mutex<Option<Arc<F>>, rank::Leaf>,
}

struct Results<R> {
    done: Vec<Option<R>>,
    left: usize,
}

impl<T: Send, R: Send, F: Fn(T) -> R + Send + Sync> Work<R> for Batch<T, R, F> {
    fn work(&self) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = self.items.get(index) else {
                return;
            };
            let item = item.lock().take();
            // Counts the item even if it panics, so that the caller does not wait for ever.
            let mut slot = Slot {
                results: &self.results,
                is_over: &self.is_over,
                finished: &self.finished,
                index,
                result: None,
            };
            // Dropped before the item counts as done.
            let treat = self.treat.lock().clone();
            if let (Some(item), Some(treat)) = (item, treat) {
                slot.result = Some(treat(item));
            }
        }
    }

    fn wait(&self) -> Vec<R> {
        let mut results = self.results.lock();
        while results.left > 0 {
            self.finished.wait(&mut results);
        }
        let done = std::mem::take(&mut results.done);
        drop(results);
        // Taken out of the lock: what it owns may take locks when it goes.
        let treat = self.treat.lock().take();
        drop(treat);
        done.into_iter()
            .map(|result| result.expect("a worker panicked"))
            .collect()
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }
}

struct Slot<'a, R> {
    results: &'a Mutex<Results<R>, rank::Leaf>,
    is_over: &'a AtomicBool,
    finished: &'a Condvar,
    index: usize,
    result: Option<R>,
}

impl<R> Drop for Slot<'_, R> {
    fn drop(&mut self) {
        let mut results = self.results.lock();
        if let Some(slot) = results.done.get_mut(self.index) {
            *slot = self.result.take();
        }
        results.left -= 1;
        if results.left == 0 {
            self.is_over.store(true, Ordering::SeqCst);
            self.finished.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_order_of_their_items() {
        for count in [0, 1, 2, 5] {
            let workers = Workers::new("test", count);
            for length in [0usize, 1, 3, 200] {
                let squares = workers.map((0..length).collect(), |n| n * n);
                assert_eq!(squares, (0..length).map(|n| n * n).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn several_batches_may_be_under_way() {
        let workers = Arc::new(Workers::new("test", 3));
        let running: Vec<_> = (0..20u64)
            .map(|k| workers.start(50, (0..50).collect(), move |n: u64| n + k))
            .collect();
        for (k, running) in (0u64..).zip(running) {
            assert_eq!(running.finish(), (k..k + 50).collect::<Vec<_>>());
        }
    }

    /// The function can own what owns the threads, which cannot end themselves.
    #[test]
    fn no_thread_has_the_function_once_the_results_are_there() {
        let workers = Workers::new("test", 3);
        for _ in 0..2000 {
            let owned = Arc::new(());
            let seen = Arc::clone(&owned);
            workers.map(vec![(); 3], move |()| drop(Arc::clone(&seen)));
            assert_eq!(Arc::strong_count(&owned), 1);
        }
    }

    #[test]
    fn with_one_thread_work_is_done_on_demand() {
        let workers = Workers::new("test", 1);
        let count = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&count);
        let running = workers.start(3, vec![0, 1, 2], move |n| {
            assert_eq!(seen.fetch_add(1, Ordering::SeqCst), n);
        });
        assert_eq!(count.load(Ordering::SeqCst), 0);
        running.finish();
        assert_eq!(count.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn a_panic_of_an_item_reaches_the_caller() {
        let workers = Workers::new("test", 3);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            workers.map((0..40).collect(), |n: u32| assert_ne!(n, 17, "seventeen"))
        }));
        assert!(outcome.is_err());
    }
}
