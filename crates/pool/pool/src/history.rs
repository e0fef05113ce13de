//! The command and event history of a pool.
//!
//! Page `docs/format/history.md`.

pub(crate) mod append;

use crate::error::Reading;
use crate::{PoolError, PoolView};
use millpond_nvlist::NvList;
use millpond_object::ObjectView;
use millpond_ondisk::HistoryPhys;
use millpond_ondisk::pool_directory::key;

/// The largest record in bytes. Writers buffer at most this much, so a longer record is damage.
const RECORD_BYTES_MAX: u64 = 64 << 20;

/// Reads the records of a pool's history, oldest first, one at a time.
#[derive(Debug)]
pub struct History {
    object: ObjectView,
    phys: HistoryPhys,
    /// Logical offset of the next record; `None` at the end or after an error.
    at: Option<u64>,
}

impl PoolView {
    /// Opens the pool's history; `None` if the pool keeps none (before version 4).
    ///
    /// # Errors
    /// If the history object cannot be opened.
    pub fn history(&self) -> Result<Option<History>, PoolError> {
        let what = "history";
        let Some(id) = self.find_directory_object(key::HISTORY)? else {
            return Ok(None);
        };
        let object = self.mos().object(id).reading(what)?;
        let bonus = object.bonus().reading(what)?;
        let phys = HistoryPhys::decode(bonus, object.dnode().endian).reading(what)?;
        Ok(Some(History {
            object,
            phys,
            at: Some(0),
        }))
    }
}

impl History {
    /// The number of records that newer ones have overwritten.
    #[must_use]
    pub fn records_lost(&self) -> u64 {
        self.phys.records_lost
    }

    /// Reads `buffer.len()` bytes of the ring, starting at a logical offset.
    fn read(&self, logical: u64, buffer: &mut [u8]) -> Result<(), PoolError> {
        let (create, ring) = (self.phys.create_bytes, self.phys.ring_bytes);
        let mut at = logical;
        let mut rest = buffer;
        while !rest.is_empty() {
            let physical = if at < create || ring <= create {
                at
            } else {
                create + (at - create) % (ring - create)
            };
            let until_end = usize::try_from(ring.saturating_sub(physical))
                .unwrap_or(usize::MAX)
                .max(1);
            let count = rest.len().min(until_end);
            let (now, later) = rest.split_at_mut(count);
            self.object.read(physical, now).reading("history")?;
            at += count as u64;
            rest = later;
        }
        Ok(())
    }

    fn next_record(&mut self, at: u64) -> Result<Option<(NvList, u64)>, PoolError> {
        // The ring's oldest record follows the part that is never overwritten.
        let at = if at >= self.phys.create_bytes {
            at.max(self.phys.begin)
        } else {
            at
        };
        if at.saturating_add(8) > self.phys.end {
            return Ok(None);
        }
        let mut head = [0u8; 8];
        self.read(at, &mut head)?;
        let length = u64::from_le_bytes(head);
        let end = at
            .checked_add(8)
            .and_then(|start| start.checked_add(length));
        let end = end.filter(|end| *end <= self.phys.end && length <= RECORD_BYTES_MAX);
        let Some(end) = end else {
            let error = millpond_ondisk::DecodeError::new("history", "record is too long", 0);
            return Err(error).reading("history");
        };
        let mut bytes = vec![0u8; length as usize];
        self.read(at + 8, &mut bytes)?;
        Ok(Some((
            NvList::decode(&bytes).reading("history record")?,
            end,
        )))
    }
}

impl Iterator for History {
    type Item = Result<NvList, PoolError>;

    /// Returns the next record. After an error the following records cannot be located, so the iteration
    /// ends.
    fn next(&mut self) -> Option<Self::Item> {
        let at = self.at.take()?;
        match self.next_record(at) {
            Ok(Some((record, end))) => {
                self.at = Some(end);
                Some(Ok(record))
            }
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        }
    }
}
