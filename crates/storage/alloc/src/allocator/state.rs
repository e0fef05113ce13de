//! The state of one metaslab of a writable pool, without locks.

mod held;
mod recent;

use core::ops::Range;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use millpond_ondisk::space_map::SpaceHistogram;
use millpond_ondisk::{SpaceAction, Txg};

use self::recent::RecentFrees;
use super::fit::Cursors;
use super::port::MapShape;
use crate::{
    AllocError, Metaslab, MetaslabSpace, RangeConflict, RangeSet, SpaceRecord, UnflushedChanges,
};

/// A metaslab's own map, as last written.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnMap {
    pub(super) shape: MapShape,
    pub(super) length_bytes: u64,
    pub(super) allocated_bytes: i64,
}

/// The free space of a loaded metaslab.
#[derive(Debug)]
struct Loaded {
    /// Allocatable space.
    free: RangeSet,
    /// Free space according to everything written so far, in the own map and logs: `free` plus deferred
    /// frees and later allocations.
    recorded: RangeSet,
    cursors: Cursors,
}

/// When a deferred free ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Deferral {
    /// The txg of the free, or an older one: pinned states of this txg and of newer ones do not contain the
    /// range.
    pub(super) freed: Txg,
    /// Pinned states of this txg and of older ones do not contain the range.
    pub(super) absent_until: Txg,
}

impl Deferral {
    /// The one deferral of all ranges that are contained in the same pinned states as this one. `None` if no
    /// pinned state contains it. `pinned` is ascending.
    ///
    /// Valid once no state older than the free can be pinned any more: pins can only disappear then.
    fn of_holders(&self, pinned: &[Txg]) -> Option<Self> {
        let first = pinned.partition_point(|txg| *txg <= self.absent_until);
        let (older, rest) = pinned.split_at(first);
        let last = rest.iter().take_while(|txg| **txg < self.freed).last()?;
        Some(Self {
            freed: Txg(last.0.saturating_add(1)),
            absent_until: older.last().copied().unwrap_or(Txg(0)),
        })
    }
}

/// What [`MetaslabState::release`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Released {
    /// The bytes that became allocatable.
    pub(super) bytes: u64,
    /// The number of ranges that only pinned states hold back.
    pub(super) held_ranges: usize,
    /// Whether nothing is pending.
    pub(super) is_idle: bool,
}

/// One metaslab. Every range of it is free, deferred or allocated; `changes` are those not yet in maps.
#[derive(Debug)]
pub(super) struct MetaslabState {
    pub(super) place: Metaslab,
    loaded: Option<Loaded>,
    /// Changes that are in no map yet, by txg.
    changes: BTreeMap<Txg, UnflushedChanges>,
    /// Ranges allocated in a txg that is not synced yet, and not freed since.
    born: BTreeMap<Txg, RangeSet>,
    /// Deferred frees: the trees of older uberblocks, or pinned states, still need the ranges. Those that
    /// only pinned states need have one set for each range of pinned states, however long the pins last.
    waiting: BTreeMap<Deferral, RangeSet>,
    /// Free space that is held: not allocatable, although recorded as free. Only while loaded.
    held: RangeSet,
    /// Recent frees, for who discards free space.
    recent: RecentFrees,
    pub(super) map: Option<OwnMap>,
    /// Of the recorded free space. Exact when loaded; otherwise frees are only added to it.
    pub(super) histogram: SpaceHistogram,
    /// The first txg whose changes the own map lacks; 0 if it never lacked any.
    pub(super) unflushed_since: Txg,
    /// Recorded changes that the own map lacks.
    pub(super) unflushed: UnflushedChanges,
    pub(super) last_used: Txg,
}

impl MetaslabState {
    /// A metaslab that is not loaded. Without a map it is empty and loading it is free.
    pub(super) fn new(
        place: Metaslab,
        map: Option<OwnMap>,
        histogram: Option<SpaceHistogram>,
        unflushed_since: Txg,
        unflushed: UnflushedChanges,
    ) -> Self {
        let mut state = Self {
            loaded: None,
            changes: BTreeMap::new(),
            born: BTreeMap::new(),
            waiting: BTreeMap::new(),
            held: RangeSet::new(),
            recent: RecentFrees::default(),
            map,
            histogram: histogram.unwrap_or_default(),
            unflushed_since,
            unflushed,
            last_used: Txg(0),
            place,
        };
        if histogram.is_none() {
            // Without a histogram assume that all free space is one piece, which is never too small.
            let size = state.place.size_bytes();
            let free = size.saturating_sub(state.allocated_bytes());
            state.histogram = SpaceHistogram::default();
            state.histogram.add(free, state.place.ashift.0);
        }
        state
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.loaded.is_some()
    }
    /// The number of ranges in memory while loaded.
    pub(super) fn loaded_ranges(&self) -> usize {
        self.loaded.as_ref().map_or(0, |loaded| {
            loaded.free.len().saturating_add(loaded.recorded.len())
        })
    }
    /// Bytes that are not allocatable: allocated or deferred.
    pub(super) fn allocated_bytes(&self) -> u64 {
        let mut bytes = self.map.map_or(0, |map| map.allocated_bytes);
        bytes = bytes.saturating_add(self.unflushed.allocated_bytes());
        for changes in self.changes.values() {
            bytes = bytes.saturating_add(changes.allocated_bytes());
        }
        let waiting = self.waiting.values().map(RangeSet::bytes);
        waiting.fold(u64::try_from(bytes).unwrap_or(0), u64::saturating_add)
    }
    /// An upper bound of the largest free piece. Exact when loaded.
    pub(super) fn largest_bytes(&self) -> u64 {
        if let Some(loaded) = &self.loaded {
            let largest = loaded.free.largest().unwrap_or_default();
            return largest.end.saturating_sub(largest.start);
        }
        let free = self
            .place
            .size_bytes()
            .saturating_sub(self.allocated_bytes());
        let buckets = (0u32..).zip(&self.histogram.buckets);
        let top = buckets
            .filter(|(_, count)| **count > 0)
            .map(|(bucket, _)| bucket)
            .max();
        let bound = match top {
            None => 0,
            Some(31) => u64::MAX,
            Some(bucket) => {
                let log2 = bucket.saturating_add(u32::from(self.place.ashift.0));
                1u64.checked_shl(log2.saturating_add(1))
                    .map_or(u64::MAX, |size| size.saturating_sub(1))
            }
        };
        bound.min(free)
    }

    /// Loads the free space of the own map and the unflushed changes.
    ///
    /// # Errors
    /// If it contradicts the known state.
    pub(super) fn load(&mut self, space: MetaslabSpace) -> Result<(), AllocError> {
        if self.loaded.is_some() {
            return Ok(());
        }
        let in_maps = self.map.map_or(0, |map| map.allocated_bytes);
        let stated_bytes = in_maps.saturating_add(self.unflushed.allocated_bytes());
        let counted_bytes = space.allocated_bytes();
        if u64::try_from(stated_bytes) != Ok(counted_bytes) {
            return Err(AllocError::Disagreement {
                metaslab: self.place.id,
                stated_bytes,
                counted_bytes,
            });
        }
        let recorded = space.free;
        let mut free = recorded.clone();
        for waiting in self.waiting.values() {
            for range in waiting.iter() {
                free.cut(&range);
            }
        }
        self.histogram = recorded.histogram(self.place.ashift.0);
        let cursors = Cursors::new(&recorded, &self.place);
        self.loaded = Some(Loaded {
            free,
            recorded,
            cursors,
        });
        Ok(())
    }
    /// Whether the metaslab may be unloaded: it has no unwritten changes and no allocations of a txg that
    /// is not synced.
    pub(super) fn can_unload(&self) -> bool {
        let is_still = self.born.is_empty() && self.changes.is_empty() && self.held.is_empty();
        self.loaded.is_some() && is_still
    }
    pub(super) fn unload(&mut self) {
        if self.can_unload() {
            self.loaded = None;
        }
    }

    /// Allocates `size_bytes` in `txg`; returns the offset. `None` if the metaslab is not loaded or has no
    /// such piece.
    pub(super) fn allocate(&mut self, txg: Txg, size_bytes: u64) -> Option<u64> {
        let loaded = self.loaded.as_mut()?;
        let piece = loaded
            .cursors
            .choose(&loaded.free, &self.place, size_bytes)?;
        loaded.free.remove(piece.clone()).ok()?;
        self.note_birth(txg, &piece);
        let born = self.born.entry(txg).or_default();
        born.cut(&piece);
        born.add(piece.clone()).ok()?;
        Some(piece.start)
    }
    /// Allocates exactly this range, which must be free. The metaslab must be loaded.
    pub(super) fn claim(&mut self, txg: Txg, range: &Range<u64>) -> Result<(), AllocError> {
        let id = self.place.id;
        let fail = |conflict| AllocError::Contradiction {
            metaslab: id,
            conflict,
        };
        let absent = RangeConflict::Absent {
            start: range.start,
            end: range.end,
        };
        let loaded = self.loaded.as_mut().ok_or(fail(absent))?;
        loaded.free.remove(range.clone()).map_err(fail)?;
        self.note_birth(txg, range);
        Ok(())
    }
    fn note_birth(&mut self, txg: Txg, range: &Range<u64>) {
        self.last_used = self.last_used.max(txg);
        // Cannot fail: the range was free, so no change has it as allocated.
        let _ = self.changes.entry(txg).or_default().apply(&SpaceRecord {
            action: SpaceAction::Allocate,
            range: range.clone(),
        });
    }

    /// Checks that nothing of a range is known to be free, or to be allocated after `txg`.
    ///
    /// # Errors
    /// If part of it is.
    pub(super) fn check_allocated(&self, txg: Txg, range: &Range<u64>) -> Result<(), AllocError> {
        let free = self.loaded.as_ref().map(|loaded| &loaded.free);
        // While not loaded, a metaslab has no allocations since its last recorded change.
        let free = free.unwrap_or(&self.unflushed.freed);
        let is_free = free.overlaps(range)
            || self.held.overlaps(range)
            || self.waiting.values().any(|set| set.overlaps(range))
            || self
                .changes
                .range(txg..)
                .any(|(of, changes)| *of > txg && changes.allocated.overlaps(range));
        if is_free {
            let (start, end) = (range.start, range.end);
            return Err(AllocError::Contradiction {
                metaslab: self.place.id,
                conflict: RangeConflict::Present { start, end },
            });
        }
        Ok(())
    }

    /// Frees a range. Returns whether it is allocatable at once, which requires that `is_unreferenced` is set
    /// and that it was allocated in the txg of the free itself. Otherwise the free is deferred.
    ///
    /// # Errors
    /// If part of it is already free, or was allocated after `txg`.
    pub(super) fn free(
        &mut self,
        deferral: Deferral,
        range: &Range<u64>,
        is_unreferenced: bool,
    ) -> Result<bool, AllocError> {
        let txg = deferral.freed;
        self.check_allocated(txg, range)?;
        self.last_used = self.last_used.max(txg);
        let fail = |conflict| AllocError::Contradiction {
            metaslab: self.place.id,
            conflict,
        };
        let record = SpaceRecord {
            action: SpaceAction::Free,
            range: range.clone(),
        };
        let changes = self.changes.entry(txg).or_default();
        changes.apply(&record).map_err(fail)?;
        if changes.is_empty() {
            self.changes.remove(&txg);
        }
        let mut is_born = false;
        if let Some(born) = self.born.get_mut(&txg) {
            is_born = born.contains(range);
            born.cut(range);
            if born.is_empty() {
                self.born.remove(&txg);
            }
        }
        if let (true, true, Some(loaded)) = (is_unreferenced, is_born, self.loaded.as_mut()) {
            loaded.free.add(range.clone()).map_err(fail)?;
            return Ok(true);
        }
        let waiting = self.waiting.entry(deferral).or_default();
        waiting.add(range.clone()).map_err(fail)?;
        Ok(false)
    }

    /// Whether any change up to `txg` is not written yet.
    pub(super) fn has_changes(&self, txg: Txg) -> bool {
        self.changes
            .range(..=txg)
            .any(|(_, changes)| !changes.is_empty())
    }
    /// Takes the changes up to `txg` that are in no map yet. They count as recorded from now on.
    ///
    /// # Errors
    /// If they contradict the recorded free space.
    pub(super) fn take_changes(&mut self, txg: Txg) -> Result<UnflushedChanges, AllocError> {
        let id = self.place.id;
        let fail = |conflict| AllocError::Contradiction {
            metaslab: id,
            conflict,
        };
        let later = self.changes.split_off(&Txg(txg.0.saturating_add(1)));
        let mut taken = UnflushedChanges::default();
        for changes in core::mem::replace(&mut self.changes, later).into_values() {
            taken.merge(&changes).map_err(fail)?;
        }
        match &mut self.loaded {
            Some(loaded) => {
                for range in taken.allocated.iter() {
                    loaded.recorded.remove(range).map_err(fail)?;
                }
                for range in taken.freed.iter() {
                    loaded.recorded.add(range).map_err(fail)?;
                }
                self.histogram = loaded.recorded.histogram(self.place.ashift.0);
            }
            None => {
                for range in taken.freed.iter() {
                    let size = range.end.saturating_sub(range.start);
                    self.histogram.add(size, self.place.ashift.0);
                }
            }
        }
        Ok(taken)
    }
    /// The error to report if the own map, which must be complete, does not add up.
    pub(super) fn disagreement(&self) -> Option<AllocError> {
        let stated_bytes = self.map?.allocated_bytes;
        let free = self.recorded()?.bytes();
        let counted_bytes = self.place.size_bytes().saturating_sub(free);
        (u64::try_from(stated_bytes) != Ok(counted_bytes)).then_some(AllocError::Disagreement {
            metaslab: self.place.id,
            stated_bytes,
            counted_bytes,
        })
    }
    /// Checks that allocated, deferred and free bytes add up to the metaslab's size.
    ///
    /// # Errors
    /// [`AllocError::Disagreement`]: the space in memory is wrong, and must not be written.
    pub(super) fn check_sum(&self) -> Result<(), AllocError> {
        let Some(loaded) = &self.loaded else {
            return Ok(());
        };
        let stated = self.allocated_bytes();
        let free = loaded.free.bytes().saturating_add(self.held.bytes());
        let counted_bytes = self.place.size_bytes().saturating_sub(free);
        if stated == counted_bytes {
            return Ok(());
        }
        Err(AllocError::Disagreement {
            metaslab: self.place.id,
            stated_bytes: i64::try_from(stated).unwrap_or(i64::MAX),
            counted_bytes,
        })
    }
    /// The free space according to everything written so far, if loaded.
    pub(super) fn recorded(&self) -> Option<&RangeSet> {
        self.loaded.as_ref().map(|loaded| &loaded.recorded)
    }

    /// Makes space freed up to `until` allocatable, except ranges of pinned states, after `synced` reached
    /// stable storage. `until` is at most `synced`, and no state before it is pinned from now on.
    ///
    /// # Errors
    /// If a range is already free, or deferred twice.
    pub(super) fn release(
        &mut self,
        synced: Txg,
        until: Txg,
        pinned: &[Txg],
        notes_frees: bool,
    ) -> Result<Released, AllocError> {
        let id = self.place.id;
        let fail = |conflict| AllocError::Contradiction {
            metaslab: id,
            conflict,
        };
        self.born.retain(|txg, _| *txg > synced);
        self.recent.passed(synced, notes_frees);
        let later = self.waiting.split_off(&Deferral {
            freed: Txg(until.0.saturating_add(1)),
            absent_until: Txg(0),
        });
        let (mut bytes, mut held_ranges) = (0u64, 0usize);
        for (deferral, set) in core::mem::replace(&mut self.waiting, later) {
            if let Some(deferral) = deferral.of_holders(pinned) {
                // Never a deferral of `later`: it is not above the free, so not above `until`.
                match self.waiting.entry(deferral) {
                    Entry::Vacant(vacant) => drop(vacant.insert(set)),
                    Entry::Occupied(held) => merge(held.into_mut(), set).map_err(fail)?,
                }
                continue;
            }
            bytes = bytes.saturating_add(set.bytes());
            self.recent
                .released(&set, deferral.freed, synced, notes_frees);
            let Some(loaded) = &mut self.loaded else {
                continue;
            };
            for range in set.iter() {
                loaded.free.add(range).map_err(fail)?;
            }
        }
        for (deferral, set) in &self.waiting {
            if deferral.freed <= until {
                held_ranges = held_ranges.saturating_add(set.len());
            }
        }
        Ok(Released {
            bytes,
            held_ranges,
            is_idle: self.born.is_empty()
                && self.waiting.is_empty()
                && self.changes.is_empty()
                && !self.recent.is_waiting(),
        })
    }

    /// The number of sets of deferred frees.
    #[cfg(test)]
    pub(super) fn waiting_sets(&self) -> usize {
        self.waiting.len()
    }
}

/// Adds the ranges of one set to another. Each is moved to a set at least twice as long, so that merging
/// again and again moves no range often.
fn merge(into: &mut RangeSet, mut other: RangeSet) -> Result<(), RangeConflict> {
    if other.len() > into.len() {
        core::mem::swap(into, &mut other);
    }
    other.iter().try_for_each(|range| into.add(range))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MetaslabId;
    use millpond_ondisk::{Ashift, VdevId};

    #[test]
    fn space_that_does_not_add_up_is_refused() {
        let place = Metaslab {
            id: MetaslabId {
                vdev: VdevId(0),
                index: 3,
            },
            range: 0..1 << 20,
            ashift: Ashift(12),
        };
        let unflushed = UnflushedChanges::default();
        let mut state = MetaslabState::new(place.clone(), None, None, Txg(0), unflushed);
        // Nothing is known of a metaslab that is not loaded.
        assert_eq!(state.check_sum(), Ok(()));
        let mut free = RangeSet::new();
        free.add(place.range.clone()).unwrap();
        let space = MetaslabSpace {
            metaslab: place.clone(),
            free,
        };
        state.load(space).unwrap();
        let start = state.allocate(Txg(9), 8192).unwrap();
        assert_eq!(state.check_sum(), Ok(()));
        let loaded = state.loaded.as_mut().unwrap();
        loaded.free.add(start..start + 4096).unwrap();
        let error = AllocError::Disagreement {
            metaslab: place.id,
            stated_bytes: 8192,
            counted_bytes: 4096,
        };
        assert_eq!(state.check_sum(), Err(error));
    }
}
