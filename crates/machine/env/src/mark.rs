//! Coverage marks: a rare branch reports that it ran, and a test asserts that it reached that branch.
//!
//! The branch calls [`hit`] with a name that is used nowhere else. The test begins with
//! `let _mark = mark::expect("that-name");` and fails if it ends without a hit.
//!
//! A [`Watch`] counts the hits of its own thread and of all threads started from it by
//! [`crate::thread::spawn`], directly or indirectly. Tests that run in parallel in the same process do not
//! affect each other. A thread of [`crate::thread::scope`] is counted if it takes up what [`inherited`] returned.
//! While no watch exists, a mark costs one relaxed atomic load.
//!
//! `cargo xtask check` verifies that a test expects each mark, and that the engine contains each expected
//! mark.

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex};
use std::cell::RefCell;
use std::collections::BTreeMap;

static WATCHES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static WATCHED: RefCell<Vec<Hits>> = const { RefCell::new(vec![]) };
}

/// Hit counts by name, shared by the threads of one watch.
type Hits = Arc<Mutex<BTreeMap<&'static str, u64>>>;

/// Reports that a rare branch runs.
#[inline]
pub fn hit(name: &'static str) {
    if WATCHES.load(Ordering::Relaxed) > 0 {
        note(name);
    }
}

#[cold]
fn note(name: &'static str) {
    WATCHED.with_borrow(|watched| {
        for hits in watched {
            *hits.lock().entry(name).or_default() += 1;
        }
    });
}

/// Returns a watch that panics on drop unless the mark was hit by this thread or by threads that it
/// started.
#[must_use = "it demands only as long as it lives"]
pub fn expect(name: &'static str) -> Watch {
    let mut watch = Watch::start();
    watch.expected = Some(name);
    watch
}

/// Counts hits of marks until it is dropped.
#[derive(Debug)]
pub struct Watch {
    hits: Hits,
    expected: Option<&'static str>,
}

impl Watch {
    /// Starts to watch this thread and the threads that it starts from now on.
    #[must_use]
    pub fn start() -> Self {
        let hits = Hits::default();
        WATCHES.fetch_add(1, Ordering::Relaxed);
        WATCHED.with_borrow_mut(|watched| watched.push(Arc::clone(&hits)));
        Self {
            hits,
            expected: None,
        }
    }

    /// The number of hits of a mark.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        self.hits.lock().get(name).copied().unwrap_or(0)
    }

    /// The number of hits of each mark that was hit.
    #[must_use]
    pub fn all(&self) -> BTreeMap<&'static str, u64> {
        self.hits.lock().clone()
    }
}

impl Drop for Watch {
    /// # Panics
    /// If the expected mark was not hit: the test no longer reaches the branch that it was written for.
    fn drop(&mut self) {
        WATCHES.fetch_sub(1, Ordering::Relaxed);
        WATCHED.with_borrow_mut(|watched| watched.retain(|hits| !Arc::ptr_eq(hits, &self.hits)));
        let Some(name) = self.expected.filter(|_| !std::thread::panicking()) else {
            return;
        };
        assert!(
            self.count(name) > 0,
            "the branch marked '{name}' was not reached; these were: {:?}",
            self.all()
        );
    }
}

/// The watches of this thread, to be passed to a thread that it starts.
#[must_use]
pub fn inherited() -> Inherited {
    Inherited(match WATCHES.load(Ordering::Relaxed) {
        0 => vec![],
        _ => WATCHED.with_borrow(Clone::clone),
    })
}

/// The watches of a thread, from [`inherited`].
#[derive(Debug, Clone)]
pub struct Inherited(Vec<Hits>);

impl Inherited {
    /// Makes the calling thread count for these watches, and for no others.
    pub fn take_up(self) {
        if !self.0.is_empty() {
            WATCHED.set(self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread;

    #[test]
    fn a_watch_sees_its_own_thread_and_those_that_it_started() {
        hit("before");
        let watch = Watch::start();
        hit("here");
        hit("here");
        let inner = || thread::spawn("inner", || hit("there")).unwrap().join();
        let outer = thread::spawn("outer", inner).unwrap();
        outer.join().unwrap().unwrap();
        assert_eq!(watch.all(), BTreeMap::from([("here", 2), ("there", 1)]));
    }

    #[test]
    fn a_watch_sees_no_other_threads() {
        let other = thread::spawn("other", || {
            let watch = Watch::start();
            hit("other");
            watch.count("other")
        });
        let watch = Watch::start();
        assert_eq!(other.unwrap().join().unwrap(), 1);
        assert!(watch.all().is_empty());
    }

    #[test]
    fn two_marks_can_be_expected_at_once() {
        let outer = expect("outer");
        let inner = expect("inner");
        hit("outer");
        hit("inner");
        drop(inner);
        drop(outer);
    }

    #[test]
    #[should_panic(expected = "'never' was not reached")]
    fn a_mark_that_was_not_hit_fails_the_test() {
        drop(expect("never"));
    }
}
