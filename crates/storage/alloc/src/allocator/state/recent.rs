//! Ranges of a metaslab that were freed a short time ago.

use core::ops::Range;
use std::collections::BTreeMap;

use millpond_ondisk::Txg;

use crate::RangeSet;
use crate::allocator::synced::DEFER_TXGS;

/// The most ranges to remember for who discards them. What is freed while there are more is not remembered.
const RANGES_MAX: usize = 1 << 14;

/// Recent frees of a metaslab.
#[derive(Debug, Default)]
pub(super) struct RecentFrees {
    /// Allocatable earlier than usual, by the txg of the free: an uberblock to which a pool can be rewound needs them.
    early: BTreeMap<Txg, RangeSet>,
    /// Freed and allocatable since it was asked for the last time. It may be allocated again.
    freed: RangeSet,
}

impl RecentFrees {
    /// Notes that a txg is on stable storage, before what it makes allocatable. `notes_frees`: whether what was freed is
    /// asked for.
    pub(super) fn passed(&mut self, synced: Txg, notes_frees: bool) {
        if !notes_frees {
            self.forget_freed();
        }
        let first = synced.0.saturating_add(1).saturating_sub(DEFER_TXGS);
        let later = self.early.split_off(&Txg(first));
        for set in core::mem::replace(&mut self.early, later).into_values() {
            self.note(&set, notes_frees);
        }
    }

    /// Notes that ranges freed in the txg `freed` become allocatable.
    pub(super) fn released(&mut self, set: &RangeSet, freed: Txg, synced: Txg, notes_frees: bool) {
        if freed.0.saturating_add(DEFER_TXGS) <= synced.0 {
            self.note(set, notes_frees);
            return;
        }
        let early = self.early.entry(freed).or_default();
        set.iter().for_each(|range| put(early, range));
    }

    fn note(&mut self, set: &RangeSet, notes_frees: bool) {
        if notes_frees && self.freed.len() < RANGES_MAX {
            set.iter().for_each(|range| put(&mut self.freed, range));
        }
    }

    /// Whether some ranges wait for later txgs.
    pub(super) fn is_waiting(&self) -> bool {
        !self.early.is_empty()
    }

    /// The parts of a range that no older uberblock needs, ascending.
    pub(super) fn without_early(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut pieces = vec![range.clone()];
        for early in self.early.values() {
            pieces = pieces.iter().flat_map(|piece| early.gaps(piece)).collect();
        }
        pieces
    }

    pub(super) fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }
    /// Takes the first range that was freed, or its first part if it is larger.
    pub(super) fn take_first(&mut self, bytes_max: u64) -> Option<Range<u64>> {
        let range = self.freed.iter().next()?;
        let range = range.start..range.end.min(range.start.saturating_add(bytes_max));
        self.freed.remove(range.clone()).ok()?;
        Some(range)
    }
    /// Takes back the rest of what was taken.
    pub(super) fn put_back(&mut self, range: Range<u64>) {
        put(&mut self.freed, range);
    }
    pub(super) fn forget_freed(&mut self) {
        self.freed = RangeSet::new();
    }
}

/// Adds a range of which parts may be in the set.
fn put(set: &mut RangeSet, range: Range<u64>) {
    set.cut(&range);
    // Cannot fail: no part is in the set now.
    let _ = set.add(range);
}
