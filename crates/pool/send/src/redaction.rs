//! What a redacted stream leaves out, and what the reader of a redacted snapshot lacks.

use crate::error::SendError;
use millpond_dataset::RedactionList;
use millpond_ondisk::{ObjectId, RedactionEntry};
use std::collections::VecDeque;
use std::ops::Range;

/// Goes through a redaction list in the order of the stream.
struct Listed<'a> {
    list: Option<&'a RedactionList>,
    /// The number of the next entry to read.
    next: u64,
    ahead: VecDeque<RedactionEntry>,
    /// Where the last entry began: others come behind it.
    last: (u64, u64),
}

impl<'a> Listed<'a> {
    fn new(list: Option<&'a RedactionList>) -> Self {
        Self {
            list,
            next: 0,
            ahead: VecDeque::new(),
            last: (0, 0),
        }
    }

    fn fill(&mut self) -> Result<(), SendError> {
        let Some(list) = self.list.filter(|_| self.ahead.is_empty()) else {
            return Ok(());
        };
        let found = list.entries(self.next)?;
        self.next = self.next.saturating_add(found.len() as u64);
        for entry in found {
            let at = (entry.object.0, entry.block_id);
            if at < self.last {
                // What is listed there would be sent.
                return Err(SendError::Invalid {
                    object: entry.object,
                    reason: "the redaction list is not in order".to_owned(),
                });
            }
            self.last = at;
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
            let entry_bytes = u128::from(entry.block_sectors) << 9;
            let first = u128::from(entry.block_id);
            let start = first.saturating_mul(entry_bytes);
            let end = first
                .saturating_add(entry.block_count.into())
                .saturating_mul(entry_bytes);
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
            redacted: Listed::new(redacted),
            lacked: Listed::new(lacked),
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
