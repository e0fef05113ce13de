//! Going through a claimed log once more, record by record.

use crate::{ChainEnd, IntentLog, LoggedRecord, RecordFate};
use millpond_dataset::live::{LiveDataset, header_words};
use millpond_env::sync::Arc;
use millpond_object::{Block, BlockError, ObjectError};
use millpond_ondisk::{BlockPointer, IntentLogHeader, ObjectId, Txg};

/// A record to be done again.
pub struct ReplayStep<'l> {
    /// The record.
    pub record: &'l LoggedRecord,
    /// The header that must be stored in the transaction that completes it.
    pub header: [u64; 24],
    log: &'l IntentLog,
}

impl core::fmt::Debug for ReplayStep<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ReplayStep")
            .field("sequence", &self.record.sequence)
            .field("type", &self.record.type_name())
            .finish_non_exhaustive()
    }
}

impl ReplayStep<'_> {
    /// The block that a record points to.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(
        &self,
        pointer: &BlockPointer,
        object: ObjectId,
        offset_bytes: u64,
    ) -> Result<Arc<Block>, ObjectError> {
        let block = self.log.read_indirect(pointer, object, offset_bytes);
        block.map_err(ObjectError::from)
    }
}

/// Hands out the pending records of a head's log in order. The log must be claimed, and what was claimed
/// committed. Holds one log block's records at a time.
///
/// # Errors
/// The first of `step`, or if the object set cannot be read.
pub fn replay<E: From<ObjectError>>(
    head: &LiveDataset,
    step: &mut dyn FnMut(&ReplayStep<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let set = head.set().committed()?;
    let Some(log) = IntentLog::open(&set) else {
        return Ok(());
    };
    let mut header: IntentLogHeader = *log.header();
    // A claimed log counts from its claim, whatever is synced.
    let mut records = log.records(Txg(0));
    for record in records.by_ref() {
        if record.fate != RecordFate::Pending {
            continue;
        }
        header.replay_sequence = record.sequence;
        step(&ReplayStep {
            record: &record,
            header: header_words(&header),
            log: &log,
        })?;
    }
    // The log goes on behind a block that its devices did not give.
    if let Some(ChainEnd::Unreadable(error @ BlockError::Missing { .. })) = records.end() {
        return Err(ObjectError::from(error.clone()).into());
    }
    Ok(())
}
