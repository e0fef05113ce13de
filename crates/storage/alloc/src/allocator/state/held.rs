//! Free space that is not allocatable while something else than a block is written there.

use core::ops::Range;

use millpond_ondisk::Txg;

use super::MetaslabState;
use crate::allocator::hold::HoldLimits;
use crate::allocator::used::Collector;
use crate::{AllocError, RangeSet};

/// What may still be held.
struct HoldBudget {
    bytes: u64,
    ranges: usize,
    least_bytes: u64,
}

impl MetaslabState {
    /// Takes allocatable ranges from an offset on out of use, except those that an older uberblock may need. `None` if the
    /// metaslab is not loaded.
    pub(in crate::allocator) fn hold(
        &mut self,
        from: u64,
        limits: &HoldLimits,
    ) -> Option<Vec<Range<u64>>> {
        let loaded = self.loaded.as_mut()?;
        let mut room = HoldBudget::of(limits);
        let (mut at, mut found) = (from, vec![]);
        while room.is_left() {
            let Some(range) = loaded.free.first_from(at) else {
                break;
            };
            let range = range.start.max(at)..range.end;
            let pieces = self.recent.without_early(&range);
            at = range.end;
            for piece in pieces {
                room.take(piece, &mut loaded.free, &mut self.held, &mut found);
            }
        }
        Some(found)
    }

    /// Adds the space that cannot be allocated now, from the collector's offset on. Space that an older uberblock may
    /// need counts as such. Returns false if the metaslab is not loaded.
    pub(in crate::allocator) fn collect_used(&self, collector: &mut Collector) -> bool {
        let Some(loaded) = self.loaded.as_ref() else {
            return false;
        };
        let end = self.place.range.end;
        while collector.at() < end && !collector.is_full() {
            let at = collector.at();
            let free = loaded.free.first_from(at);
            let Some(free) = free.filter(|free| free.start < end) else {
                collector.take_to(end);
                break;
            };
            let free = free.start.max(at)..free.end.min(end);
            for piece in self.recent.without_early(&free) {
                collector.take_to(piece.start);
                collector.skip_to(piece.end);
            }
            collector.take_to(free.end);
        }
        true
    }

    /// The bytes that blocks own as of `txg`.
    pub(in crate::allocator) fn owned_bytes(&self, txg: Txg) -> u64 {
        let in_maps = self.map.map_or(0, |map| map.allocated_bytes);
        let changes = self.changes.range(..=txg).map(|(_, changes)| changes);
        let changes = changes
            .chain([&self.unflushed])
            .map(|one| one.allocated_bytes());
        u64::try_from(changes.fold(in_maps, i64::saturating_add)).unwrap_or(0)
    }

    /// Adds the space that blocks own as of `txg`, from the collector's offset on. Returns false if the metaslab is not
    /// loaded.
    ///
    /// # Errors
    /// If changes contradict the recorded free space.
    pub(in crate::allocator) fn collect_owned(
        &self,
        txg: Txg,
        collector: &mut Collector,
    ) -> Result<bool, AllocError> {
        let Some(recorded) = self.recorded() else {
            return Ok(false);
        };
        let contradiction = |conflict| AllocError::Contradiction {
            metaslab: self.place.id,
            conflict,
        };
        let mut free = recorded.clone();
        for (_, changes) in self.changes.range(..=txg) {
            for range in changes.allocated.iter() {
                free.remove(range).map_err(contradiction)?;
            }
            for range in changes.freed.iter() {
                free.add(range).map_err(contradiction)?;
            }
        }
        let end = self.place.range.end;
        while collector.at() < end && !collector.is_full() {
            let at = collector.at();
            let next = free.first_from(at).filter(|free| free.start < end);
            let Some(next) = next else {
                collector.take_to(end);
                break;
            };
            collector.take_to(next.start);
            collector.skip_to(next.end.min(end));
        }
        Ok(true)
    }

    /// Takes what became allocatable since this was called the last time, and still is, out of use. Pieces that are too
    /// small are forgotten. `None` if the metaslab is not loaded.
    pub(in crate::allocator) fn hold_freed(
        &mut self,
        limits: &HoldLimits,
    ) -> Option<Vec<Range<u64>>> {
        let loaded = self.loaded.as_mut()?;
        let mut room = HoldBudget::of(limits);
        let mut found = vec![];
        while room.is_left() {
            let Some(range) = self.recent.take_first(room.bytes) else {
                break;
            };
            let mut at = range.start;
            while let Some(free) = loaded.free.first_from(at) {
                let piece = free.start.max(at)..free.end.min(range.end);
                if piece.start >= piece.end {
                    break;
                }
                if !room.is_left() {
                    self.recent.put_back(piece.start..range.end);
                    break;
                }
                at = piece.end;
                // An older uberblock may need a part again.
                for piece in self.recent.without_early(&piece) {
                    room.take(piece, &mut loaded.free, &mut self.held, &mut found);
                }
            }
        }
        Some(found)
    }

    /// Makes ranges that were held allocatable again.
    pub(in crate::allocator) fn end_hold(&mut self, ranges: &[Range<u64>]) {
        for range in ranges {
            let is_held = self.held.remove(range.clone()).is_ok();
            if let (true, Some(loaded)) = (is_held, self.loaded.as_mut()) {
                // Cannot fail: what is held is not free.
                let _ = loaded.free.add(range.clone());
            }
        }
    }

    /// Whether [`MetaslabState::hold_freed`] may find something.
    pub(in crate::allocator) fn has_freed(&self) -> bool {
        self.recent.has_freed()
    }
    /// Forgets what was freed.
    pub(in crate::allocator) fn forget_freed(&mut self) {
        self.recent.forget_freed();
    }
}

impl HoldBudget {
    fn of(limits: &HoldLimits) -> Self {
        Self {
            bytes: limits.bytes,
            ranges: limits.ranges,
            least_bytes: limits.least_bytes.max(1),
        }
    }
    fn is_left(&self) -> bool {
        self.bytes >= self.least_bytes && self.ranges > 0
    }
    /// Moves a free range, or its first part if there is no room for more, from one set to the other.
    fn take(
        &mut self,
        range: Range<u64>,
        free: &mut RangeSet,
        held: &mut RangeSet,
        found: &mut Vec<Range<u64>>,
    ) {
        if !self.is_left() {
            return;
        }
        let range = range.start..range.end.min(range.start.saturating_add(self.bytes));
        let size = range.end.saturating_sub(range.start);
        if size < self.least_bytes {
            return;
        }
        // Neither can fail: the range is in the one set, so not in the other.
        if free.remove(range.clone()).is_err() || held.add(range.clone()).is_err() {
            return;
        }
        self.bytes = self.bytes.saturating_sub(size);
        self.ranges = self.ranges.saturating_sub(1);
        found.push(range);
    }
}
