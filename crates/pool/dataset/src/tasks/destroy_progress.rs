//! How much is done of destroying many datasets, for others to see.

use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_env::sync::atomic::{AtomicUsize, Ordering};

/// The datasets that calls under way destroy: how many are gone, and how many there are.
#[derive(Debug, Default)]
pub(crate) struct DestroyProgress(Mutex<Counts, rank::Leaf>);

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    done: usize,
    total: usize,
}

/// One call. It has ended when this is dropped.
pub(crate) struct Destroying<'p> {
    progress: &'p DestroyProgress,
    done: AtomicUsize,
    total: usize,
}

impl DestroyProgress {
    /// Begins to destroy this many datasets.
    pub(crate) fn begin(&self, total: usize) -> Destroying<'_> {
        let mut counts = self.0.lock();
        counts.total = counts.total.saturating_add(total);
        Destroying {
            progress: self,
            done: AtomicUsize::new(0),
            total,
        }
    }

    /// How many are gone, and how many there are; `None` if nothing is destroyed.
    pub(crate) fn now(&self) -> Option<(usize, usize)> {
        let counts = *self.0.lock();
        (counts.total > 0).then_some((counts.done, counts.total))
    }
}

impl Destroying<'_> {
    /// One more is gone.
    pub(crate) fn one(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
        let mut counts = self.progress.0.lock();
        counts.done = counts.done.saturating_add(1);
    }
}

impl Drop for Destroying<'_> {
    fn drop(&mut self) {
        let mut counts = self.progress.0.lock();
        counts.done = counts
            .done
            .saturating_sub(self.done.load(Ordering::Relaxed));
        counts.total = counts.total.saturating_sub(self.total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_under_way_are_added_up() {
        let progress = DestroyProgress::default();
        assert_eq!(progress.now(), None);
        let first = progress.begin(10);
        first.one();
        let second = progress.begin(5);
        second.one();
        assert_eq!(progress.now(), Some((2, 15)));
        drop(first);
        assert_eq!(progress.now(), Some((1, 5)));
        drop(second);
        assert_eq!(progress.now(), None);
    }
}
