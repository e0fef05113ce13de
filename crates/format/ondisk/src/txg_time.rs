//! Times of txgs: three rings that OpenZFS 2.4 maintains.
//!
//! Page `docs/format/pool-directory.md`, "Times of txgs".

use crate::{DecodeError, Txg};

/// Entries of a ring.
const RING_ENTRIES: usize = 256;
/// Words of a ring as stored.
const RING_WORDS: usize = 515;

/// A ring of (time, txg) entries, oldest first. Page `docs/format/pool-directory.md`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TxgTimes {
    /// Time in seconds since 1970, and txg; at most 256 entries.
    pub notes: Vec<(u64, Txg)>,
}

impl TxgTimes {
    /// Reads a ring from its 515 words (native integers, as read from a ZAP).
    ///
    /// # Errors
    /// If the number of words is wrong, or an index or the count is out of range.
    pub fn from_words(words: &[u64]) -> Result<Self, DecodeError> {
        let fail = |reason, offset| DecodeError::new("txg times", reason, offset);
        let [head, tail, count, notes @ ..] = words else {
            return Err(fail("not 515 words", 0));
        };
        let (pairs, []) = notes.as_chunks::<2>() else {
            return Err(fail("not 515 words", 0));
        };
        if words.len() != RING_WORDS {
            return Err(fail("not 515 words", 0));
        }
        let head = usize::try_from(*head)
            .ok()
            .filter(|head| *head < RING_ENTRIES);
        let head = head.ok_or_else(|| fail("oldest entry is out of range", 0))?;
        if *tail >= 256 {
            return Err(fail("next entry is out of range", 8));
        }
        let count = usize::try_from(*count)
            .ok()
            .filter(|count| *count <= RING_ENTRIES);
        let count = count.ok_or_else(|| fail("more entries than the ring has", 16))?;
        let notes = pairs
            .iter()
            .cycle()
            .skip(head)
            .take(count)
            .map(|[time, txg]| (*time, Txg(*txg)))
            .collect();
        Ok(Self { notes })
    }
    /// Encodes the ring as 515 words, oldest entry first. Of more than 256 entries the oldest are dropped.
    #[must_use]
    pub fn to_words(&self) -> Vec<u64> {
        let kept = self
            .notes
            .get(self.notes.len().saturating_sub(RING_ENTRIES)..)
            .unwrap_or(&[]);
        let count = u64::try_from(kept.len()).unwrap_or(0);
        let mut words = vec![0, count % 256, count];
        words.extend(kept.iter().flat_map(|(time, txg)| [*time, txg.0]));
        words.resize(RING_WORDS, 0);
        words
    }
    /// The last entry at or before `time`.
    #[must_use]
    pub fn last_until(&self, time: u64) -> Option<(u64, Txg)> {
        self.notes
            .iter()
            .rev()
            .find(|(noted, _)| *noted <= time)
            .copied()
    }
    /// The first entry at or after `time`.
    #[must_use]
    pub fn first_from(&self, time: u64) -> Option<(u64, Txg)> {
        self.notes.iter().find(|(noted, _)| *noted >= time).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_full_ring_begins_at_its_head() {
        let mut words = vec![5, 5, 256];
        for index in 0..256u64 {
            // Entry 5 is the oldest, entry 4 the newest.
            let age = (index + 256 - 5) % 256;
            words.extend([1000 + age, age + 1]);
        }
        let ring = TxgTimes::from_words(&words).unwrap();
        assert_eq!(ring.notes[0], (1000, Txg(1)));
        assert_eq!(ring.notes[255], (1255, Txg(256)));
        assert_eq!(ring.last_until(1003), Some((1003, Txg(4))));
        assert_eq!(ring.last_until(999), None);
        assert_eq!(ring.first_from(1255), Some((1255, Txg(256))));
        assert_eq!(ring.first_from(1256), None);
    }

    #[test]
    fn rings_with_numbers_out_of_range_are_refused() {
        for (index, value) in [(0, 256), (1, 256), (2, 257), (0, u64::MAX)] {
            let mut words = vec![0; 515];
            words[index] = value;
            assert!(TxgTimes::from_words(&words).is_err());
        }
        assert!(TxgTimes::from_words(&[0; 514]).is_err());
        assert!(TxgTimes::from_words(&[0; 517]).is_err());
        assert!(TxgTimes::from_words(&[]).is_err());
    }

    proptest! {
        #[test]
        fn rings_round_trip(notes in proptest::collection::vec(any::<(u64, u64)>(), 0..=256)) {
            let ring = TxgTimes { notes: notes.into_iter().map(|(time, txg)| (time, Txg(txg))).collect() };
            prop_assert_eq!(TxgTimes::from_words(&ring.to_words()).unwrap(), ring);
        }
    }
}
