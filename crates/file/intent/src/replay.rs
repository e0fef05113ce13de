//! Iterates over the pending records of a claimed log.

use crate::{ChainEnd, IntentLog, LoggedRecord, RecordFate};
use millpond_dataset::{HeadDataset, header_words};
use millpond_env::sync::Arc;
use millpond_object::{Block, BlockError, ObjectError};
use millpond_ondisk::{BlockPointer, IntentLogFlags, IntentLogHeader, ObjectId, Txg};

/// A record to replay.
pub struct ReplayStep<'l> {
    /// The record.
    pub record: &'l LoggedRecord,
    /// The header to store in the transaction that completes the record.
    pub header: [u64; 24],
    /// How many records were replayed before.
    pub number: u64,
    /// About how many records there are; 0 if that is not known.
    pub total: u64,
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
    /// Reads the block that a record points to.
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

/// Calls `step` for each pending record of a head's log, in order.
///
/// The log must be claimed, and the claim committed. One log block's records are in memory at a time.
///
/// # Errors
/// The first error of `step`, or if the object set cannot be read.
pub fn replay<E: From<ObjectError>>(
    head: &HeadDataset,
    step: &mut dyn FnMut(&ReplayStep<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let set = head.set().committed()?;
    let Some(log) = IntentLog::open(&set) else {
        return Ok(());
    };
    let mut header: IntentLogHeader = *log.header();
    // In a claimed log, pending records are determined by the claim txg, not by the last synced txg.
    let mut records = log.records(Txg(0));
    let last = header
        .flags
        .contains(IntentLogFlags::CLAIM_RECORD_SEQUENCE_VALID);
    let last = last.then_some(header.claim_record_sequence);
    let (mut number, mut total) = (0, 0);
    for record in records.by_ref() {
        if record.fate != RecordFate::Pending {
            continue;
        }
        header.replay_sequence = record.sequence;
        if number == 0 {
            let more = last.and_then(|last| last.checked_sub(record.sequence));
            total = more.map_or(0, |more| more.saturating_add(1));
        }
        step(&ReplayStep {
            record: &record,
            header: header_words(&header),
            number,
            total,
            log: &log,
        })?;
        number = number.saturating_add(1);
    }
    // The log continues after a block whose devices are missing: that is an error, not the end.
    if let Some(ChainEnd::Unreadable(error @ BlockError::Missing { .. })) = records.end() {
        return Err(ObjectError::from(error.clone()).into());
    }
    Ok(())
}
