//! Chooses a piece of a metaslab's free space.

use core::ops::Range;

use crate::{Metaslab, RangeSet};

/// How far after the last block of its kind a new one may lie before best fit is preferred.
const NEAR_BYTES: u64 = 16 << 20;
/// The most pieces to check within that distance.
const TRIES_MAX: usize = 128;
/// Below this size of the largest piece, or this share of free space, always use best fit.
const SCARCE_BYTES: u64 = 128 << 10;
const SCARCE_PERCENT: u64 = 4;

/// The end of the last allocation, by the largest power of two that divides the block size. Blocks of one
/// kind are adjacent, and small ones do not break up the space for large ones.
#[derive(Debug)]
pub(super) struct Cursors {
    ends: [Option<u64>; 64],
    /// Where a kind begins that has no cursor yet: behind everything allocated so far. Space that was freed
    /// is used last, so older states of the pool stay readable for longer.
    frontier: u64,
}

impl Cursors {
    /// The cursors of a metaslab that was just loaded.
    pub(super) fn new(free: &RangeSet, place: &Metaslab) -> Self {
        let last = free.iter().next_back();
        let last = last.filter(|range| range.end == place.range.end);
        Self {
            ends: [None; 64],
            frontier: last.map_or(place.range.start, |range| range.start),
        }
    }

    /// Chooses a piece of `size_bytes`; does not remove it from `free`.
    pub(super) fn choose(
        &mut self,
        free: &RangeSet,
        place: &Metaslab,
        size_bytes: u64,
    ) -> Option<Range<u64>> {
        let largest = free.largest()?;
        let largest_bytes = largest.end.saturating_sub(largest.start);
        if size_bytes == 0 || largest_bytes < size_bytes {
            return None;
        }
        let kind = usize::try_from(size_bytes.trailing_zeros()).ok()?;
        let cursor = self.ends.get_mut(kind)?;
        let share = u128::from(free.bytes()).saturating_mul(100);
        let scarce = u128::from(place.size_bytes()).saturating_mul(u128::from(SCARCE_PERCENT));
        let near = if largest_bytes < SCARCE_BYTES || share < scarce {
            None
        } else {
            let from = cursor.unwrap_or(self.frontier);
            free.first_fit(from, from.saturating_add(NEAR_BYTES), size_bytes, TRIES_MAX)
        };
        let piece = near.or_else(|| {
            let best = free.best_fit(size_bytes)?;
            Some(best.start..best.start.saturating_add(size_bytes))
        })?;
        *cursor = Some(piece.end);
        self.frontier = self.frontier.max(piece.end);
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MetaslabId;
    use millpond_ondisk::{Ashift, VdevId};

    fn place(size: u64) -> Metaslab {
        Metaslab {
            id: MetaslabId {
                vdev: VdevId(0),
                index: 0,
            },
            range: 0..size,
            ashift: Ashift(9),
        }
    }

    fn take(cursors: &mut Cursors, free: &mut RangeSet, place: &Metaslab, size: u64) -> u64 {
        let piece = cursors.choose(free, place, size).unwrap();
        free.remove(piece.clone()).unwrap();
        piece.start
    }

    #[test]
    fn blocks_of_one_kind_are_adjacent() {
        let place = place(64 << 20);
        let mut free = RangeSet::from_range(0..64 << 20);
        let mut cursors = Cursors::new(&free, &place);
        assert_eq!(take(&mut cursors, &mut free, &place, 4096), 0);
        assert_eq!(take(&mut cursors, &mut free, &place, 4096), 4096);
        free.add(0..4096).unwrap();
        // A hole before the cursor is skipped while there is space after it.
        assert_eq!(take(&mut cursors, &mut free, &place, 4096), 8192);
    }

    #[test]
    fn far_from_the_cursor_the_smallest_piece_that_fits_is_taken() {
        let place = place(64 << 20);
        let mut free = RangeSet::from_range(40 << 20..63 << 20);
        free.add(20 << 20..(20 << 20) + 8192).unwrap();
        let mut cursors = Cursors::new(&free, &place);
        assert_eq!(take(&mut cursors, &mut free, &place, 4096), 20 << 20);
    }

    #[test]
    fn scarce_space_is_taken_by_best_fit() {
        let place = place(64 << 20);
        let mut free = RangeSet::from_range(0..65536);
        free.add(1 << 20..(1 << 20) + 4096).unwrap();
        let mut cursors = Cursors::new(&free, &place);
        assert_eq!(take(&mut cursors, &mut free, &place, 4096), 1 << 20);
        assert_eq!(cursors.choose(&free, &place, 65537), None);
        assert_eq!(cursors.choose(&free, &place, 0), None);
    }

    #[test]
    fn freed_space_is_used_last() {
        let place = place(64 << 20);
        let mut free = RangeSet::from_range(0..64 << 20);
        let mut cursors = Cursors::new(&free, &place);
        assert_eq!(take(&mut cursors, &mut free, &place, 128 << 10), 0);
        assert_eq!(take(&mut cursors, &mut free, &place, 4096), 128 << 10);
        free.add(0..128 << 10).unwrap();
        // The first block of its kind.
        assert_eq!(
            take(&mut cursors, &mut free, &place, 512),
            (128 << 10) + 4096
        );
        // Also after the metaslab is loaded again.
        let mut cursors = Cursors::new(&free, &place);
        let next = (128 << 10) + 4096 + 512;
        assert_eq!(take(&mut cursors, &mut free, &place, 4096), next);
        // A metaslab whose end is allocated begins at its start.
        let cursors = Cursors::new(&RangeSet::from_range(0..8192), &place);
        assert_eq!(cursors.frontier, 0);
    }
}
