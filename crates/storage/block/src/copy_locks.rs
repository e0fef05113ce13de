//! Excludes other writes from a range that is being copied from one leaf to another.
//!
//! A copy reads a range from one side of a mirror and then writes it to another side. A write that comes between the two
//! would be overwritten with older bytes. So a copy waits until the writes of its range have ended, on all sides,
//! and later ones wait for the copy.
//!
//! While nothing is copied, a write costs two changes of a counter. A write holds its range until it is known which leaves
//! missed it: a leaf that failed a write is not a source any more.
//!
//! Ranges are those of the leaves of a top-level vdev, in bytes from the start of their space. All sides of a mirror have a block
//! in the same range. On dRAID, a range stands for that of all leaves: what is written there beside a copy waits too, though it
//! may belong to another group.
//!
//! No thread waits for a copy while it makes a request in a thread of a leaf, which the copy may need. Copies wait
//! while they hold nothing, and writes wait for copies that have begun only. So neither waits in a circle.
//!
//! Lock: one, held for a few instructions.

use crate::requests::Overdue;
use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicUsize, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_ondisk::{VDEV_DATA_START_BYTES, VdevId};
use std::collections::BTreeMap;
use std::ops::Range;

/// A range of the leaves of a top-level vdev.
pub(crate) type VdevRange = (VdevId, Range<u64>);

/// The writes and copies of one pool.
#[derive(Debug, Default)]
pub(crate) struct CopyLocks {
    /// How many passes of copies are open. Without one, writes are only counted.
    passes: AtomicUsize,
    /// Writes that began while no pass was open.
    counted: AtomicUsize,
    state: Mutex<State, rank::Leaf>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    /// The writes that began while a pass was open.
    writes: BTreeMap<u64, Vec<VdevRange>>,
    copies: BTreeMap<u64, Vec<VdevRange>>,
}

impl State {
    fn next(&mut self) -> u64 {
        self.last = self.last.wrapping_add(1);
        self.last
    }
    fn is_copied(&self, ranges: &[VdevRange]) -> bool {
        any_overlap(self.copies.values(), ranges)
    }
    fn is_written(&self, ranges: &[VdevRange]) -> bool {
        any_overlap(self.writes.values(), ranges)
    }
}

/// The range in its vdev of a range of a leaf's device. Where the leaf's space is not that of the vdev (RAID-Z), nothing is copied.
pub(crate) fn vdev_range(top: VdevId, device: &Range<u64>) -> VdevRange {
    let offset = |at: u64| at.saturating_sub(VDEV_DATA_START_BYTES);
    (top, offset(device.start)..offset(device.end))
}

fn any_overlap<'a>(all: impl Iterator<Item = &'a Vec<VdevRange>>, ranges: &[VdevRange]) -> bool {
    let overlap =
        |a: &VdevRange, b: &VdevRange| a.0 == b.0 && a.1.start < b.1.end && b.1.start < a.1.end;
    let mut all = all.flatten();
    all.any(|one| ranges.iter().any(|range| overlap(range, one)))
}

/// While it exists, copies may begin.
#[derive(Debug)]
pub(crate) struct CopyPass(Arc<CopyLocks>);

impl Drop for CopyPass {
    fn drop(&mut self) {
        self.0.passes.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A write under way.
#[derive(Debug)]
pub(crate) struct WriteGuard {
    locks: Arc<CopyLocks>,
    /// `None` if it is only counted.
    number: Option<u64>,
}

impl Drop for WriteGuard {
    fn drop(&mut self) {
        let locks = &self.locks;
        match self.number {
            None => {
                locks.counted.fetch_sub(1, Ordering::SeqCst);
                if locks.passes.load(Ordering::SeqCst) == 0 {
                    return;
                }
                // A copy that looked before waits by now.
                drop(locks.state.lock());
            }
            Some(number) => {
                locks.state.lock().writes.remove(&number);
            }
        }
        locks.changed.notify_all();
    }
}

/// A copy under way.
#[derive(Debug)]
pub(crate) struct CopyGuard {
    locks: Arc<CopyLocks>,
    number: u64,
}

impl Drop for CopyGuard {
    fn drop(&mut self) {
        self.locks.state.lock().copies.remove(&self.number);
        self.locks.changed.notify_all();
    }
}

impl CopyLocks {
    /// Lets copies begin. Writes that began before are waited for by the first of them.
    pub(crate) fn pass(self: &Arc<Self>) -> CopyPass {
        self.passes.fetch_add(1, Ordering::SeqCst);
        CopyPass(Arc::clone(self))
    }

    /// Begins writes of these ranges, after the copies of them that are under way. The calling thread makes no request of
    /// a leaf meanwhile.
    pub(crate) fn write(self: &Arc<Self>, ranges: impl FnOnce() -> Vec<VdevRange>) -> WriteGuard {
        if let Some(guard) = self.count() {
            return guard;
        }
        let ranges = ranges();
        let mut state = self.state.lock();
        if state.is_copied(&ranges) {
            mark::hit("write-waits-for-copy");
        }
        while state.is_copied(&ranges) {
            self.changed.wait(&mut state);
        }
        self.list(&mut state, ranges)
    }

    /// Like [`CopyLocks::write`], but does not wait: `None` if one of the ranges is being copied.
    pub(crate) fn try_write(
        self: &Arc<Self>,
        ranges: impl FnOnce() -> Vec<VdevRange>,
    ) -> Option<WriteGuard> {
        if let Some(guard) = self.count() {
            return Some(guard);
        }
        let ranges = ranges();
        let mut state = self.state.lock();
        match state.is_copied(&ranges) {
            true => None,
            false => Some(self.list(&mut state, ranges)),
        }
    }

    /// Counts a write if no pass is open.
    fn count(self: &Arc<Self>) -> Option<WriteGuard> {
        self.counted.fetch_add(1, Ordering::SeqCst);
        let guard = WriteGuard {
            locks: Arc::clone(self),
            number: None,
        };
        (self.passes.load(Ordering::SeqCst) == 0).then_some(guard)
    }

    fn list(self: &Arc<Self>, state: &mut State, ranges: Vec<VdevRange>) -> WriteGuard {
        let number = state.next();
        state.writes.insert(number, ranges);
        WriteGuard {
            locks: Arc::clone(self),
            number: Some(number),
        }
    }

    /// Begins a copy of ranges, after the writes of them that are under way. `None` if they do not end in time.
    pub(crate) fn copy(
        self: &Arc<Self>,
        ranges: Vec<VdevRange>,
        limit: &Overdue,
    ) -> Option<CopyGuard> {
        let mut state = self.state.lock();
        loop {
            let is_counted = self.counted.load(Ordering::SeqCst) > 0;
            if !is_counted && !state.is_written(&ranges) && !state.is_copied(&ranges) {
                break;
            }
            mark::hit("copy-waits-for-write");
            if !limit.wait(&self.changed, &mut state) {
                return None;
            }
        }
        let number = state.next();
        state.copies.insert(number, ranges);
        Some(CopyGuard {
            locks: Arc::clone(self),
            number,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_env::thread;
    use std::time::Duration;

    const PAUSE: Duration = Duration::from_millis(20);

    fn vdev_0(range: Range<u64>) -> VdevRange {
        (VdevId(3), range)
    }

    #[test]
    fn writes_wait_for_a_copy_of_their_range_only() {
        let locks = Arc::new(CopyLocks::default());
        let _pass = locks.pass();
        let copy = locks
            .copy(vec![vdev_0(100..200)], &Overdue::never())
            .unwrap();
        drop(locks.write(|| vec![vdev_0(0..100), vdev_0(200..300)]));
        drop(locks.write(|| vec![(VdevId(4), 100..200)]));
        assert!(locks.try_write(|| vec![vdev_0(199..300)]).is_none());
        thread::scope(|scope| {
            let writing =
                scope.spawn(|| drop(locks.write(|| vec![vdev_0(0..10), vdev_0(150..160)])));
            thread::sleep(PAUSE);
            assert!(!writing.is_finished());
            drop(copy);
            writing.join().unwrap();
        });
        assert!(locks.try_write(|| vec![vdev_0(199..300)]).is_some());
    }

    #[test]
    fn a_copy_waits_for_writes_also_for_those_that_began_before_the_pass() {
        let locks = Arc::new(CopyLocks::default());
        let early = locks.write(|| panic!("not needed"));
        let _pass = locks.pass();
        let late = locks.write(|| vec![vdev_0(100..200)]);
        // One that only touches the range.
        let _other = locks.write(|| vec![vdev_0(200..300)]);
        thread::scope(|scope| {
            let copying = scope.spawn(|| {
                let copy = locks.copy(vec![vdev_0(150..200)], &Overdue::never());
                assert!(copy.is_some());
            });
            thread::sleep(PAUSE);
            assert!(!copying.is_finished());
            drop(late);
            thread::sleep(PAUSE);
            assert!(!copying.is_finished());
            drop(early);
            copying.join().unwrap();
        });
    }

    #[test]
    fn after_the_last_pass_writes_are_only_counted() {
        let locks = Arc::new(CopyLocks::default());
        drop(locks.pass());
        drop(locks.write(|| panic!("not needed")));
        assert_eq!(locks.counted.load(Ordering::SeqCst), 0);
    }
}
