//! The pool's command history: a ring buffer of name/value lists.
//!
//! The records are opaque bytes here. Page `docs/format/history.md`.

use core::ops::Range;

use crate::{DecodeError, Endian, Writer};

/// Size of the header in bytes.
pub const HISTORY_BYTES: usize = 40;
/// The maximum size of the ring in bytes.
pub const HISTORY_RING_BYTES_MAX: u64 = 1 << 30;

/// The header of the history: the bonus of its object. Page `docs/format/history.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HistoryPhys {
    /// End of the first part, which holds the pool's creation and is never overwritten.
    pub create_bytes: u64,
    /// Size of the ring, including the first part.
    pub ring_bytes: u64,
    /// Logical offset of the oldest record after the first part.
    pub begin: u64,
    /// Logical offset of the end of the newest record.
    pub end: u64,
    /// The number of overwritten records.
    pub records_lost: u64,
}

impl HistoryPhys {
    /// Reads a header.
    ///
    /// # Errors
    /// If there are fewer than 40 bytes, or the offsets contradict each other or exceed 1 GiB of ring.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let fail = |reason, offset| DecodeError::new("history", reason, offset);
        let [create_bytes, ring_bytes, begin, end, records_lost] =
            endian.words("history", bonus)?;
        if ring_bytes > HISTORY_RING_BYTES_MAX {
            return Err(fail("ring is larger than 1 GiB", 8));
        }
        let Some(capacity) = ring_bytes.checked_sub(create_bytes) else {
            return Err(fail("first part is larger than the ring", 0));
        };
        let Some(stored) = end.checked_sub(begin) else {
            return Err(fail("ends before it begins", 24));
        };
        if begin < create_bytes || stored > capacity {
            return Err(fail("records lie outside the ring", 16));
        }
        Ok(Self {
            create_bytes,
            ring_bytes,
            begin,
            end,
            records_lost,
        })
    }
    /// Encodes the header as 40 little-endian bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(HISTORY_BYTES);
        writer.put_words(&[
            self.create_bytes,
            self.ring_bytes,
            self.begin,
            self.end,
            self.records_lost,
        ]);
        writer.finish()
    }
    /// The byte ranges of all records in the object, oldest first.
    ///
    /// There are at most three ranges, together never longer than the ring. Concatenated, they hold whole
    /// records (see [`HistoryRecords`]).
    #[must_use]
    pub fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges = Vec::with_capacity(3);
        ranges.push(0..self.create_bytes);
        let capacity = self.ring_bytes.saturating_sub(self.create_bytes);
        if let Some(into) = self
            .begin
            .saturating_sub(self.create_bytes)
            .checked_rem(capacity)
        {
            let start = self.create_bytes.saturating_add(into);
            let stored = self.end.saturating_sub(self.begin).min(capacity);
            let first_end = start.saturating_add(stored).min(self.ring_bytes);
            let wrapped = stored.saturating_sub(first_end.saturating_sub(start));
            ranges.push(start..first_end);
            ranges.push(self.create_bytes..self.create_bytes.saturating_add(wrapped));
        }
        ranges.retain(|range| !range.is_empty());
        ranges
    }
}

/// Iterates over the records in the history's bytes; each is a name/value list in its native encoding. Page
/// `docs/format/history.md`.
#[derive(Debug, Clone)]
pub struct HistoryRecords<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> HistoryRecords<'a> {
    /// Starts at the first byte of `bytes`, which must begin a record.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }
}

impl<'a> Iterator for HistoryRecords<'a> {
    type Item = Result<&'a [u8], DecodeError>;
    /// The next record; `None` after an error.
    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.position..)?;
        if rest.is_empty() {
            return None;
        }
        let at = self.position;
        // The length is little-endian, regardless of the writer's byte order.
        let record = rest.split_first_chunk::<8>().and_then(|(length, body)| {
            let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
            body.get(..length)
        });
        match record {
            Some(record) => {
                self.position = at.saturating_add(8).saturating_add(record.len());
                Some(Ok(record))
            }
            None => {
                self.position = self.bytes.len();
                Some(Err(DecodeError::new(
                    "history record",
                    "runs past the end",
                    at,
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(byte: u8, length: usize) -> Vec<u8> {
        let mut bytes = (length as u64).to_le_bytes().to_vec();
        bytes.resize(8 + length, byte);
        bytes
    }

    #[test]
    fn records_that_wrap_around_the_ring_are_joined() {
        let header = HistoryPhys {
            create_bytes: 100,
            ring_bytes: 1100,
            begin: 2000,
            end: 2400,
            records_lost: 7,
        };
        // 2000 is 1900 bytes after the first part: 900 bytes into a ring of 1000.
        assert_eq!(header.ranges(), [0..100, 1000..1100, 100..400]);
        assert_eq!(
            HistoryPhys::decode(&header.encode(), Endian::Little),
            Ok(header)
        );
    }

    #[test]
    fn a_fresh_history_has_one_range() {
        let header = HistoryPhys {
            create_bytes: 344,
            ring_bytes: 131072,
            begin: 344,
            end: 1000,
            records_lost: 0,
        };
        assert_eq!(header.ranges(), [0..344, 344..1000]);
        let none = HistoryPhys {
            ring_bytes: 131072,
            ..HistoryPhys::default()
        };
        assert!(none.ranges().is_empty());
        assert!(HistoryPhys::default().ranges().is_empty());
    }

    #[test]
    fn headers_whose_offsets_contradict_each_other_are_refused() {
        for [create, ring, begin, end] in [
            [10, 5, 10, 10],
            [0, 2 << 30, 0, 0],
            [0, 100, 50, 40],
            [0, 100, 0, 101],
            [50, 100, 40, 60],
            [50, 100, 50, 101],
        ] {
            let header = HistoryPhys {
                create_bytes: create,
                ring_bytes: ring,
                begin,
                end,
                records_lost: 0,
            };
            assert!(HistoryPhys::decode(&header.encode(), Endian::Little).is_err());
        }
        assert!(HistoryPhys::decode(&[0; 39], Endian::Little).is_err());
    }

    #[test]
    fn records_are_read_up_to_a_truncated_one() {
        let mut bytes = record(1, 16);
        bytes.extend(record(2, 0));
        bytes.extend(record(3, 5));
        let read: Vec<_> = HistoryRecords::new(&bytes).map(Result::unwrap).collect();
        assert_eq!(read, [&[1u8; 16][..], &[], &[3; 5]]);
        bytes.pop();
        let read: Vec<_> = HistoryRecords::new(&bytes).collect();
        assert_eq!(read.len(), 3);
        assert!(read[2].is_err());
        assert!(HistoryRecords::new(&[0xff; 16]).next().unwrap().is_err());
        assert!(HistoryRecords::new(&[0; 7]).next().unwrap().is_err());
    }

    #[test]
    fn a_ring_may_have_a_gibibyte_and_be_full_to_the_byte() {
        let full = HistoryPhys {
            create_bytes: 1000,
            ring_bytes: 1 << 30,
            begin: 1000,
            end: 1 << 30,
            records_lost: 0,
        };
        assert_eq!(
            HistoryPhys::decode(&full.encode(), Endian::Little),
            Ok(full)
        );
        for (change, reason) in [
            (
                HistoryPhys {
                    ring_bytes: (1 << 30) + 1,
                    ..full
                },
                "ring is larger than 1 GiB",
            ),
            (
                HistoryPhys {
                    end: (1 << 30) + 1,
                    ..full
                },
                "records lie outside the ring",
            ),
            (
                HistoryPhys {
                    begin: 999,
                    end: 1 << 20,
                    ..full
                },
                "records lie outside the ring",
            ),
        ] {
            let error = HistoryPhys::decode(&change.encode(), Endian::Little).unwrap_err();
            assert_eq!(error.reason, reason);
        }
    }

    proptest! {
        #[test]
        fn ranges_never_exceed_the_ring(words: [u64; 5], small: [u16; 4]) {
            for [create_bytes, ring_bytes, begin, end] in [[words[0], words[1], words[2], words[3]], small.map(u64::from)] {
                let header = HistoryPhys { create_bytes, ring_bytes, begin, end, records_lost: 0 };
                if let Ok(header) = HistoryPhys::decode(&header.encode(), Endian::Little) {
                    let ranges = header.ranges();
                    let total: u64 = ranges.iter().map(|range| range.end - range.start).sum();
                    prop_assert_eq!(total, create_bytes + (end - begin));
                    prop_assert!(ranges.iter().all(|range| range.end <= ring_bytes));
                }
            }
        }
        #[test]
        fn any_bytes_end_in_records_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(HistoryRecords::new(&bytes).count() <= bytes.len() / 8 + 1);
        }
    }
}
