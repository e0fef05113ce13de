//! What a redacted stream leaves out.

use crate::error::SendError;
use millpond_dataset::RedactionList;
use millpond_ondisk::{ObjectId, RedactionEntry};
use std::collections::VecDeque;
use std::ops::Range;

/// Goes through a redaction list in the order of the stream.
pub(crate) struct LeftOut<'a> {
    list: Option<&'a RedactionList>,
    /// The number of the next entry to read.
    next: u64,
    ahead: VecDeque<RedactionEntry>,
    /// Where the last entry began: others come behind it.
    last: (u64, u64),
}

impl<'a> LeftOut<'a> {
    pub(crate) fn new(list: Option<&'a RedactionList>) -> Self {
        Self {
            list,
            next: 0,
            ahead: VecDeque::new(),
            last: (0, 0),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_none()
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

    /// The next bytes of an object to leave out within a range, in whole blocks of `block_bytes`. Later calls ask for
    /// what comes behind.
    pub(crate) fn next_within(
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
