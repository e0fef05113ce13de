//! Sets of byte ranges, ordered by offset and by size.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

use millpond_ondisk::space_map::SpaceHistogram;

/// A range to add was already present, or a range to remove was absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangeConflict {
    /// Part of it is already in the set.
    #[error("{start:#x}..{end:#x} is already there, in whole or in part")]
    Present {
        /// First byte.
        start: u64,
        /// Byte after the last.
        end: u64,
    },
    /// Part of it is not in the set.
    #[error("{start:#x}..{end:#x} is not there, in whole or in part")]
    Absent {
        /// First byte.
        start: u64,
        /// Byte after the last.
        end: u64,
    },
}

/// A set of disjoint byte ranges. Adjacent ranges are merged; empty ranges have no effect.
///
/// Each operation takes time logarithmic in the number of ranges, times the number of ranges that it
/// affects. Memory is about 100 bytes for each range.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RangeSet {
    /// From start to end.
    by_offset: BTreeMap<u64, u64>,
    /// Size, then start: to find space of a given size.
    by_size: BTreeSet<(u64, u64)>,
    /// How many ranges have a size of at least `2^i` and less than `2^(i+1)`; ends with the last non-zero
    /// count.
    by_magnitude: Vec<u64>,
    bytes: u64,
}

impl RangeSet {
    /// The empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
    /// A set of one range.
    #[must_use]
    pub fn from_range(range: Range<u64>) -> Self {
        let mut set = Self::new();
        set.put(range);
        set
    }
    /// The number of separate ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_offset.len()
    }
    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_offset.is_empty()
    }
    /// The total size of all ranges in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// The ranges by ascending offset.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.by_offset.iter().map(|(start, end)| *start..*end)
    }
    /// The largest range; among equals the one with the highest offset.
    #[must_use]
    pub fn largest(&self) -> Option<Range<u64>> {
        let (size, start) = *self.by_size.last()?;
        Some(start..start.saturating_add(size))
    }
    /// The smallest range of at least `size_bytes`; among equals the one with the lowest offset.
    #[must_use]
    pub fn best_fit(&self, size_bytes: u64) -> Option<Range<u64>> {
        let (size, start) = *self.by_size.range((size_bytes, 0)..).next()?;
        Some(start..start.saturating_add(size))
    }
    /// The first range that ends after `offset`.
    #[must_use]
    pub fn first_from(&self, offset: u64) -> Option<Range<u64>> {
        self.holder(offset).or_else(|| {
            let (start, end) = self.by_offset.range(offset..).next()?;
            Some(*start..*end)
        })
    }
    /// Whether the set contains all of `range`. True for an empty range.
    #[must_use]
    pub fn contains(&self, range: &Range<u64>) -> bool {
        range.is_empty()
            || self
                .holder(range.start)
                .is_some_and(|held| held.end >= range.end)
    }
    /// Whether the set contains any part of `range`.
    #[must_use]
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        !range.is_empty()
            && self
                .first_from(range.start)
                .is_some_and(|held| held.start < range.end)
    }
    /// Adds a range of which no part may be in the set.
    ///
    /// # Errors
    /// If part of it is; the set is unchanged then.
    pub fn add(&mut self, range: Range<u64>) -> Result<(), RangeConflict> {
        if self.overlaps(&range) {
            return Err(RangeConflict::Present {
                start: range.start,
                end: range.end,
            });
        }
        self.add_disjoint(range);
        Ok(())
    }
    /// Removes a range that must be entirely in the set.
    ///
    /// # Errors
    /// If part of it is not; the set is unchanged then.
    pub fn remove(&mut self, range: Range<u64>) -> Result<(), RangeConflict> {
        if range.is_empty() {
            return Ok(());
        }
        let held = self
            .holder(range.start)
            .filter(|held| held.end >= range.end)
            .ok_or(RangeConflict::Absent {
                start: range.start,
                end: range.end,
            })?;
        self.take(&held);
        self.put(held.start..range.start);
        self.put(range.end..held.end);
        Ok(())
    }
    /// Removes the parts of `range` that are in the set and returns them, by ascending offset.
    pub fn cut(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut gone = Vec::new();
        while let Some(held) = self
            .first_from(range.start)
            .filter(|held| held.start < range.end && !range.is_empty())
        {
            self.take(&held);
            self.put(held.start..range.start);
            self.put(range.end..held.end);
            gone.push(held.start.max(range.start)..held.end.min(range.end));
        }
        gone
    }
    /// The parts of `range` that are not in the set, by ascending offset.
    #[must_use]
    pub fn gaps(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let next = self
                .first_from(at)
                .filter(|held| held.start < range.end)
                .unwrap_or(range.end..range.end);
            if next.start > at {
                gaps.push(at..next.start);
            }
            at = next.end;
        }
        gaps
    }
    /// The histogram of the ranges by size, as in a space map's header with units of `2^shift` bytes.
    #[must_use]
    pub fn histogram(&self, shift: u8) -> SpaceHistogram {
        let mut histogram = SpaceHistogram::default();
        for (magnitude, count) in (0u32..).zip(&self.by_magnitude) {
            let size = 1u64.checked_shl(magnitude).unwrap_or(u64::MAX);
            histogram.add_many(size, *count, shift);
        }
        histogram
    }
    /// The number of ranges of `2^magnitude` bytes or more.
    #[must_use]
    pub fn count_from(&self, magnitude: u8) -> u64 {
        let longer = self.by_magnitude.iter().skip(usize::from(magnitude));
        longer.fold(0, |sum, count| sum.saturating_add(*count))
    }
    /// The first piece of `size_bytes` that starts at or after `from` in a range that starts before
    /// `until`, checking at most `tries` ranges. A range that contains `from` counts only from there.
    #[must_use]
    pub fn first_fit(
        &self,
        from: u64,
        until: u64,
        size_bytes: u64,
        tries: usize,
    ) -> Option<Range<u64>> {
        let held = self.holder(from).map(|held| from..held.end);
        let following = self.by_offset.range(from.saturating_add(1)..until);
        held.into_iter()
            .chain(following.map(|(start, end)| *start..*end))
            .take(tries)
            .find(|range| range.end.saturating_sub(range.start) >= size_bytes)
            .map(|range| range.start..range.start.saturating_add(size_bytes))
    }

    /// The range that contains the byte at `offset`.
    fn holder(&self, offset: u64) -> Option<Range<u64>> {
        let (start, end) = self.by_offset.range(..=offset).next_back()?;
        (*end > offset).then_some(*start..*end)
    }
    /// Adds a range that overlaps no other, and merges it with its neighbours.
    fn add_disjoint(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let before = self
            .by_offset
            .range(..range.start)
            .next_back()
            .map(|(start, end)| *start..*end)
            .filter(|held| held.end == range.start);
        let after = self
            .by_offset
            .get_key_value(&range.end)
            .map(|(start, end)| *start..*end);
        let mut merged = range;
        if let Some(held) = before {
            self.take(&held);
            merged.start = held.start;
        }
        if let Some(held) = after {
            self.take(&held);
            merged.end = held.end;
        }
        self.put(merged);
    }
    /// Removes an exact range of the set.
    fn take(&mut self, held: &Range<u64>) {
        let size = held.end.saturating_sub(held.start);
        self.by_offset.remove(&held.start);
        self.by_size.remove(&(size, held.start));
        self.bytes = self.bytes.saturating_sub(size);
        if let Some(count) = self.magnitude(size) {
            *count = count.saturating_sub(1);
        }
        while self.by_magnitude.last() == Some(&0) {
            self.by_magnitude.pop();
        }
    }
    /// Inserts a range that does not touch any other; does nothing if it is empty.
    fn put(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let size = range.end.saturating_sub(range.start);
        self.by_offset.insert(range.start, range.end);
        self.by_size.insert((size, range.start));
        self.bytes = self.bytes.saturating_add(size);
        if let Some(count) = self.magnitude(size) {
            *count = count.saturating_add(1);
        }
    }
    /// The counter for ranges of this magnitude.
    fn magnitude(&mut self, size: u64) -> Option<&mut u64> {
        let index = usize::try_from(size.checked_ilog2()?).ok()?;
        if self.by_magnitude.len() <= index {
            self.by_magnitude.resize(index.saturating_add(1), 0);
        }
        self.by_magnitude.get_mut(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_merge_and_the_middle_can_be_taken_out() {
        let mut set = RangeSet::new();
        set.add(0..10).unwrap();
        set.add(20..30).unwrap();
        assert_eq!(set.len(), 2);
        set.add(10..20).unwrap();
        assert_eq!(set, RangeSet::from_range(0..30));
        set.remove(5..6).unwrap();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0..5, 6..30]);
        assert_eq!((set.bytes(), set.largest()), (29, Some(6..30)));
        assert_eq!(set.best_fit(5), Some(0..5));
        assert_eq!(set.best_fit(6), Some(6..30));
        assert_eq!(set.best_fit(25), None);
    }

    #[test]
    fn invalid_adds_and_removes_change_nothing() {
        let mut set = RangeSet::from_range(10..20);
        let before = set.clone();
        assert!(set.add(19..25).is_err() && set.add(5..11).is_err() && set.add(12..13).is_err());
        assert!(set.remove(9..12).is_err() && set.remove(15..21).is_err());
        assert!(set.remove(30..31).is_err());
        assert_eq!(set, before);
        assert_eq!(set.add(7..7), Ok(()));
        assert_eq!(set.remove(70..70), Ok(()));
        assert_eq!(set, before);
    }

    #[test]
    fn the_whole_address_space_fits() {
        let mut set = RangeSet::from_range(0..u64::MAX);
        set.remove(1..2).unwrap();
        assert_eq!(set.bytes(), u64::MAX - 1);
        assert_eq!(set.gaps(&(0..u64::MAX)), vec![1..2]);
    }

    /// A set of small numbers, to compare with.
    struct Model([bool; 64]);
    impl Model {
        fn ranges(&self) -> Vec<Range<u64>> {
            let mut ranges: Vec<Range<u64>> = Vec::new();
            for at in (0..64u64).filter(|at| self.0[*at as usize]) {
                match ranges.last_mut() {
                    Some(last) if last.end == at => last.end += 1,
                    _ => ranges.push(at..at + 1),
                }
            }
            ranges
        }
    }

    proptest! {
        #[test]
        fn a_set_behaves_like_an_array_of_flags(steps in proptest::collection::vec((0u8..3, 0u64..64, 0u64..20), 0..60)) {
            let mut set = RangeSet::new();
            let mut model = Model([false; 64]);
            for (kind, start, length) in steps {
                let range = start..(start + length).min(64);
                let held: Vec<bool> = range.clone().map(|at| model.0[at as usize]).collect();
                prop_assert_eq!(set.contains(&range), held.iter().all(|held| *held));
                prop_assert_eq!(set.overlaps(&range), held.iter().any(|held| *held));
                let gaps: u64 = set.gaps(&range).iter().map(|gap| gap.end - gap.start).sum();
                prop_assert_eq!(gaps, held.iter().filter(|held| !**held).count() as u64);
                let value = match kind {
                    0 => set.add(range.clone()).is_ok().then_some(true),
                    1 => set.remove(range.clone()).is_ok().then_some(false),
                    _ => {
                        let cut: u64 = set.cut(&range).iter().map(|gone| gone.end - gone.start).sum();
                        prop_assert_eq!(cut, held.iter().filter(|held| **held).count() as u64);
                        Some(false)
                    }
                };
                let expected = match kind {
                    0 => !held.iter().any(|held| *held),
                    1 => held.iter().all(|held| *held),
                    _ => true,
                };
                prop_assert_eq!(value.is_some(), expected);
                if let Some(value) = value {
                    for at in range {
                        model.0[at as usize] = value;
                    }
                }
                let ranges = model.ranges();
                prop_assert_eq!(set.iter().collect::<Vec<_>>(), ranges.clone());
                prop_assert_eq!(set.bytes(), ranges.iter().map(|r| r.end - r.start).sum::<u64>());
                prop_assert_eq!(set.largest().map(|r| r.end - r.start), ranges.iter().map(|r| r.end - r.start).max());
                prop_assert_eq!(set.by_size.len(), set.by_offset.len());
                let mut histogram = SpaceHistogram::default();
                for range in &ranges {
                    histogram.add(range.end - range.start, 0);
                }
                prop_assert_eq!(set.histogram(0), histogram);
                let large = ranges.iter().filter(|r| r.end - r.start >= 4).count();
                prop_assert_eq!(set.count_from(2), large as u64);
                let fit = set.first_fit(start, 64, 3, 64);
                let expected = (start..62).find(|at| (*at..*at + 3).all(|at| model.0[at as usize]));
                prop_assert_eq!(fit, expected.map(|at| at..at + 3));
            }
        }
    }
}
