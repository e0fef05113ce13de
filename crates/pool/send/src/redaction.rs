//! What a redacted stream leaves out, and what the reader of a redacted snapshot lacks.

use crate::error::SendError;
use millpond_dataset::{DatasetError, RedactionList};
use millpond_ondisk::{ObjectId, RedactionEntry};
use std::collections::VecDeque;
use std::ops::Range;

/// The entries of a redaction list.
trait Entries {
    /// Some entries from number `first` on; none at the end.
    fn entries(&self, first: u64) -> Result<Vec<RedactionEntry>, DatasetError>;
}

impl Entries for RedactionList {
    fn entries(&self, first: u64) -> Result<Vec<RedactionEntry>, DatasetError> {
        RedactionList::entries(self, first)
    }
}

/// Goes through a redaction list in the order of the stream.
struct Listed<'a> {
    list: Option<&'a dyn Entries>,
    /// The number of the next entry to read.
    next: u64,
    ahead: VecDeque<RedactionEntry>,
    /// The object and the byte where the last entry ended. The next one comes behind it, so a list of holes or of
    /// repeated blocks, which takes no space on disk, cannot go on for ever.
    end: (u64, u128),
}

impl<'a> Listed<'a> {
    fn new(list: Option<&'a dyn Entries>) -> Self {
        Self {
            list,
            next: 0,
            ahead: VecDeque::new(),
            end: (0, 0),
        }
    }

    fn fill(&mut self) -> Result<(), SendError> {
        let Some(list) = self.list.filter(|_| self.ahead.is_empty()) else {
            return Ok(());
        };
        let found = list.entries(self.next)?;
        self.next = self.next.saturating_add(found.len() as u64);
        for entry in found {
            let (start, end) = bytes_of(&entry);
            let refuse = |reason: &str| {
                Err(SendError::Invalid {
                    object: entry.object,
                    reason: reason.to_owned(),
                })
            };
            if entry.object.0 == 0 || end == start {
                return refuse("the redaction list has an entry of no blocks");
            }
            if (entry.object.0, start) < self.end {
                // What is listed there would be sent.
                return refuse("the redaction list is not in order, or has blocks twice");
            }
            self.end = (entry.object.0, end);
            self.ahead.push_back(entry);
        }
        Ok(())
    }

    /// Whether objects of a range are listed. Later calls ask for what comes behind its start.
    fn has_objects(&mut self, range: &Range<u64>) -> Result<bool, SendError> {
        loop {
            self.fill()?;
            match self.ahead.front() {
                None => return Ok(false),
                Some(entry) if entry.object.0 >= range.start => {
                    return Ok(entry.object.0 < range.end);
                }
                Some(_) => self.ahead.pop_front(),
            };
        }
    }

    /// The next listed bytes of an object within a range, in whole blocks of `block_bytes`. Later calls ask for what
    /// comes behind its start.
    fn next_within(
        &mut self,
        object: ObjectId,
        within: &Range<u128>,
        block_bytes: u64,
    ) -> Result<Option<Range<u128>>, SendError> {
        let size = u128::from(block_bytes.max(1));
        loop {
            self.fill()?;
            let Some(entry) = self.ahead.front() else {
                return Ok(None);
            };
            let (start, end) = bytes_of(entry);
            let (start, end) = (
                start.div_euclid(size).saturating_mul(size),
                end.div_ceil(size).saturating_mul(size),
            );
            if entry.object < object || entry.object == object && end <= within.start {
                self.ahead.pop_front();
                continue;
            }
            if entry.object > object || start >= within.end {
                return Ok(None);
            }
            return Ok(Some(start.max(within.start)..end.min(within.end)));
        }
    }
}

/// The bytes of an object from the start of an entry's first block to the end of its last one.
fn bytes_of(entry: &RedactionEntry) -> (u128, u128) {
    let size = u128::from(entry.block_sectors) << 9;
    let first = u128::from(entry.block_id);
    let end = first.saturating_add(entry.block_count.into());
    (first.saturating_mul(size), end.saturating_mul(size))
}

/// What becomes of a part of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is sent if it is new: no list has it.
    IfNew,
    /// It is sent although it may be old: the reader lacks it.
    Lacked,
    /// It is left out.
    Redacted,
    /// It is left out, and the reader lacks it already.
    Unmentioned,
}

/// The redaction lists of a stream.
pub(crate) struct Lists<'a> {
    /// The blocks that are not sent, although they are here.
    redacted: Listed<'a>,
    /// The blocks of the older snapshot that the reader does not have.
    lacked: Listed<'a>,
}

impl<'a> Lists<'a> {
    pub(crate) fn new(
        redacted: Option<&'a RedactionList>,
        lacked: Option<&'a RedactionList>,
    ) -> Self {
        Self {
            redacted: Listed::new(redacted.map(|list| list as &dyn Entries)),
            lacked: Listed::new(lacked.map(|list| list as &dyn Entries)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.redacted.list.is_none() && self.lacked.list.is_none()
    }

    /// Whether one of them has objects of a range. Later calls ask for what comes behind its start.
    pub(crate) fn have_objects(&mut self, range: &Range<u64>) -> Result<bool, SendError> {
        // Both move on.
        let (one, other) = (
            self.redacted.has_objects(range)?,
            self.lacked.has_objects(range)?,
        );
        Ok(one || other)
    }

    /// Whether one of them has blocks of a range of an object. Later calls ask for what comes behind its start.
    pub(crate) fn have_blocks(
        &mut self,
        object: ObjectId,
        within: &Range<u128>,
        block_bytes: u64,
    ) -> Result<bool, SendError> {
        let redacted = self.redacted.next_within(object, within, block_bytes)?;
        let lacked = self.lacked.next_within(object, within, block_bytes)?;
        Ok(redacted.is_some() || lacked.is_some())
    }

    /// What becomes of the first part of a range that has one fate, and the end of the part.
    pub(crate) fn first_part(
        &mut self,
        object: ObjectId,
        rest: &Range<u128>,
        block_bytes: u64,
    ) -> Result<(Fate, u128), SendError> {
        let redacted = self.redacted.next_within(object, rest, block_bytes)?;
        let lacked = self.lacked.next_within(object, rest, block_bytes)?;
        let has_start = |found: &Option<Range<u128>>| {
            found
                .as_ref()
                .is_some_and(|found| found.start <= rest.start)
        };
        let end = |found: &Option<Range<u128>>| match found {
            None => rest.end,
            Some(found) if found.start > rest.start => found.start,
            Some(found) => found.end,
        };
        let fate = match (has_start(&redacted), has_start(&lacked)) {
            (true, true) => Fate::Unmentioned,
            (true, false) => Fate::Redacted,
            (false, true) => Fate::Lacked,
            (false, false) => Fate::IfNew,
        };
        Ok((fate, end(&redacted).min(end(&lacked))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list that is read in pieces. A forged one says the same again and again.
    struct Forged {
        entries: Vec<RedactionEntry>,
        is_endless: bool,
    }

    impl Entries for Forged {
        fn entries(&self, first: u64) -> Result<Vec<RedactionEntry>, DatasetError> {
            match first > 0 && !self.is_endless {
                true => Ok(vec![]),
                false => Ok(self.entries.clone()),
            }
        }
    }

    fn entry(object: u64, block_id: u64, block_count: u64, block_sectors: u16) -> RedactionEntry {
        RedactionEntry {
            object: ObjectId(object),
            block_id,
            block_count,
            block_sectors,
        }
    }

    /// Asks for each part of some objects, as a stream does, up to the first error.
    fn walk(entries: &[RedactionEntry], is_endless: bool) -> Result<usize, String> {
        let list = Forged {
            entries: entries.to_vec(),
            is_endless,
        };
        let mut lists = Lists {
            redacted: Listed::new(Some(&list)),
            lacked: Listed::new(None),
        };
        let mut parts = 0;
        for object in 0..10 {
            let text = |error: SendError| error.to_string();
            lists.have_objects(&(object..object + 1)).map_err(text)?;
            let mut rest = 0..1 << 40;
            while !rest.is_empty() {
                let (_, end) = lists
                    .first_part(ObjectId(object), &rest, 512)
                    .map_err(text)?;
                assert!(end > rest.start, "each step comes further");
                (rest.start, parts) = (end, parts + 1);
            }
        }
        Ok(parts)
    }

    #[test]
    fn a_list_in_order_is_gone_through_once() {
        let list = [
            entry(3, 0, 2, 8),
            entry(3, 2, 1, 8),
            entry(3, 7, 1, 8),
            entry(5, 1, 1, 1),
        ];
        let hole_and_rest = 2;
        assert_eq!(
            walk(&list, false),
            Ok(8 + (list.len() - 1 + hole_and_rest) + 3)
        );
        assert_eq!(walk(&[], false), Ok(10));
        // Up to the end of all objects.
        assert_eq!(walk(&[entry(3, 0, 1 << 48, u16::MAX)], false), Ok(10));
    }

    #[test]
    fn forged_lists_are_refused_at_once() {
        let refused = |entries: &[RedactionEntry], is_endless, words: &str| {
            let error = walk(entries, is_endless).unwrap_err();
            assert!(error.contains(words), "{entries:?}: {error}");
        };
        // Holes in the list's object read as zeros.
        refused(&[entry(0, 0, 1, 0); 4096], true, "no blocks");
        refused(&[entry(3, 0, 1, 0)], true, "no blocks");
        refused(&[entry(9, 0, 1, 8)], true, "twice");
        refused(&[entry(9, 0, 2, 8), entry(9, 1, 1, 8)], false, "twice");
        refused(
            &[entry(9, 2, 1, 8), entry(9, 1, 1, 8)],
            false,
            "not in order",
        );
        refused(
            &[entry(9, 0, 1, 8), entry(8, 0, 1, 8)],
            false,
            "not in order",
        );
        // Blocks of another size that begin before the end.
        refused(&[entry(9, 0, 2, 256), entry(9, 4, 1, 8)], false, "twice");
        refused(&[entry(9, u64::MAX, 1 << 48, u16::MAX); 2], false, "twice");
    }
}
