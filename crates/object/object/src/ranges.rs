//! Sets of block ids stored as ranges.

use std::collections::BTreeMap;

/// Block ids as disjoint ranges that do not touch. Each range includes its first and its last block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    by_first: BTreeMap<u64, u64>,
}

impl Ranges {
    pub(crate) fn insert(&mut self, first: u64, last: u64) {
        let (mut first, mut last) = (first, last);
        // Ranges that overlap or touch the new one are merged into it.
        let reach = last.saturating_add(1);
        while let Some((&at, &end)) = self.by_first.range(..=reach).next_back() {
            if end < first.saturating_sub(1) {
                break;
            }
            self.by_first.remove(&at);
            (first, last) = (first.min(at), last.max(end));
        }
        self.by_first.insert(first, last);
    }

    pub(crate) fn contains(&self, id: u64) -> bool {
        self.range_from(id).is_some_and(|(first, _)| first <= id)
    }

    /// Returns the range that contains `id`, or else the next one after it.
    pub(crate) fn range_from(&self, id: u64) -> Option<(u64, u64)> {
        let before = self.by_first.range(..=id).next_back();
        let around = before.filter(|(_, last)| **last >= id);
        let next = || self.by_first.range(id..).next();
        around.or_else(next).map(|(first, last)| (*first, *last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn ranges_match_a_plain_set_and_never_touch(
            inserts in prop::collection::vec((0u64..60, 0u64..12), 0..20),
        ) {
            let (mut ranges, mut plain) = (Ranges::default(), BTreeSet::new());
            for (first, more) in inserts {
                ranges.insert(first, first + more);
                plain.extend(first..=first + more);
            }
            for id in 0..80 {
                prop_assert_eq!(ranges.contains(id), plain.contains(&id));
                let next = ranges.range_from(id).map(|(first, _)| first.max(id));
                prop_assert_eq!(next, plain.range(id..).next().copied());
            }
            let list: Vec<_> = ranges.by_first.iter().collect();
            prop_assert!(list.windows(2).all(|pair| *pair[0].1 + 1 < *pair[1].0));
        }
    }

    #[test]
    fn a_range_to_the_end_of_all_numbers_is_no_overflow() {
        let mut ranges = Ranges::default();
        ranges.insert(5, u64::MAX);
        ranges.insert(0, 3);
        ranges.insert(u64::MAX, u64::MAX);
        assert_eq!(ranges.range_from(4), Some((5, u64::MAX)));
        assert!(!ranges.contains(4) && ranges.contains(u64::MAX));
        ranges.insert(4, 4);
        assert_eq!(ranges.range_from(0), Some((0, u64::MAX)));
    }
}
