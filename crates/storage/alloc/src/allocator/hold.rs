//! Takes free space out of use, while something else than a block is written to it.

use core::ops::Range;
use core::time::Duration;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_ondisk::VdevId;

use super::PoolAllocator;
use super::metaslab::MetaslabAllocator;
use super::state::MetaslabState;

/// How much to take at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldLimits {
    /// The most bytes.
    pub bytes: u64,
    /// The most ranges.
    pub ranges: usize,
    /// The smallest range that counts, in bytes.
    pub least_bytes: u64,
}

/// What a search for free space found.
#[derive(Debug)]
pub enum Hold {
    /// Space that nothing else uses until it is dropped.
    Space(HeldSpace),
    /// An allocation finds no space and waits for what was held: try again later.
    Wanted,
    /// There is no more free space behind the offset.
    End,
}

/// Free space of one metaslab that is not allocated while this exists.
///
/// Space that is waiting after a free is not part of it: neither the last committed states nor open views need it.
#[derive(Debug)]
pub struct HeldSpace {
    metaslab: Arc<MetaslabAllocator>,
    ranges: Vec<Range<u64>>,
    holds: Arc<Holds>,
}

/// Counts what is held.
///
/// Lock: one, held for a few instructions. No other is taken under it.
#[derive(Debug, Default)]
pub(super) struct Holds {
    state: Mutex<Counts, rank::Leaf>,
    ended: Condvar,
    /// Holds that ended since the pool was opened.
    count_ended: AtomicU64,
}

#[derive(Debug, Default)]
struct Counts {
    held: usize,
    /// Allocations that wait for held space.
    wanting: usize,
    /// Whether an allocation waited in vain: others do not wait until nothing is held.
    is_stuck: bool,
}

impl HeldSpace {
    /// The ranges on the top-level vdev in bytes, ascending.
    #[must_use]
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }
    /// The end of the last range.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        self.ranges.last().map_or(0, |range| range.end)
    }
    /// Whether an allocation finds no other space and waits. The holder gives this space back as soon as its request
    /// under way has ended.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.holds.state.lock().wanting > 0
    }
}

impl Drop for HeldSpace {
    fn drop(&mut self) {
        self.metaslab.with(|state| state.end_hold(&self.ranges));
        self.holds.end();
    }
}

impl Holds {
    /// Notes a hold; returns whether one may begin.
    fn begin(&self) -> bool {
        let mut counts = self.state.lock();
        if counts.wanting > 0 {
            return false;
        }
        counts.held = counts.held.saturating_add(1);
        true
    }
    fn end(&self) {
        let mut counts = self.state.lock();
        counts.held = counts.held.saturating_sub(1);
        counts.is_stuck &= counts.held > 0;
        self.count_ended.fetch_add(1, Ordering::Release);
        drop(counts);
        self.ended.notify_all();
    }
    /// How many holds have ended: a mark for [`Holds::wait`].
    pub(super) fn mark(&self) -> u64 {
        self.count_ended.load(Ordering::Acquire)
    }
    /// For an allocation that found no space. If anything is held, or was held since the mark, waits until nothing is,
    /// and runs `again` before anything is held again. `None` if waiting does not help.
    ///
    /// The holder gives way after one request. If its device does not answer, the wait ends after `at_most`.
    pub(super) fn wait<R>(
        &self,
        since: u64,
        at_most: Duration,
        again: impl FnOnce() -> R,
    ) -> Option<R> {
        let mut counts = self.state.lock();
        if counts.held == 0 && self.mark() == since || counts.is_stuck {
            return None;
        }
        counts.wanting = counts.wanting.saturating_add(1);
        while counts.held > 0 && !counts.is_stuck {
            let has_waited = self.ended.wait_for(&mut counts, at_most).timed_out();
            counts.is_stuck |= has_waited && counts.held > 0;
        }
        let is_stuck = counts.is_stuck;
        drop(counts);
        let result = (!is_stuck).then(again);
        let mut counts = self.state.lock();
        counts.wanting = counts.wanting.saturating_sub(1);
        result
    }
}

impl PoolAllocator {
    /// Holds the next free space of a vdev, in one metaslab, from an offset on. Metaslabs that cannot be loaded are
    /// skipped and reported.
    ///
    /// An allocation that finds no other space waits for it, so the holder asks [`HeldSpace::is_wanted`] between
    /// requests. The thread that holds it must not allocate or wait for a txg.
    #[must_use]
    pub fn hold_free(&self, vdev: VdevId, from_bytes: u64, limits: &HoldLimits) -> Hold {
        let behind = |metaslab: &MetaslabAllocator| metaslab.place.range.end > from_bytes;
        self.hold(vdev, &behind, &|state| state.hold(from_bytes, limits))
    }

    /// Holds space of a vdev that was freed since this was called the last time, in one metaslab, as
    /// [`PoolAllocator::hold_free`] does. Pieces that are too small are forgotten.
    ///
    /// [`PoolAllocator::note_frees`] begins it.
    #[must_use]
    pub fn hold_freed(&self, vdev: VdevId, limits: &HoldLimits) -> Hold {
        let has_freed = |metaslab: &MetaslabAllocator| metaslab.with(|state| state.has_freed());
        self.hold(vdev, &has_freed, &|state| state.hold_freed(limits))
    }

    /// Begins or ends to remember what is freed.
    pub fn note_frees(&self, notes: bool) {
        if self.notes_frees.swap(notes, Ordering::Relaxed) && !notes {
            for vdev in self.vdevs().values() {
                for metaslab in &vdev.metaslabs {
                    metaslab.with(|state| state.forget_freed());
                }
            }
        }
    }

    fn hold(
        &self,
        vdev: VdevId,
        is_chosen: &dyn Fn(&MetaslabAllocator) -> bool,
        take: &dyn Fn(&mut MetaslabState) -> Option<Vec<Range<u64>>>,
    ) -> Hold {
        let vdevs = self.vdevs();
        let Some(vdev) = vdevs.get(&vdev) else {
            return Hold::End;
        };
        for metaslab in vdev.metaslabs.iter().filter(|one| is_chosen(one)) {
            if let Err(error) = metaslab.load(&*self.store) {
                self.report(error);
                continue;
            }
            if !self.holds.begin() {
                return Hold::Wanted;
            }
            // Not loaded any more if another thread needed the memory: the next call loads it again.
            let ranges = match metaslab.with(take) {
                Some(ranges) if !ranges.is_empty() => ranges,
                found => {
                    self.holds.end();
                    match found {
                        None => return Hold::Wanted,
                        Some(_) => continue,
                    }
                }
            };
            return Hold::Space(HeldSpace {
                metaslab: Arc::clone(metaslab),
                ranges,
                holds: Arc::clone(&self.holds),
            });
        }
        Hold::End
    }
}
