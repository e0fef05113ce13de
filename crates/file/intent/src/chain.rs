//! Walks a chain of log blocks.

use millpond_block::{BlockError, LogBlock};
use millpond_ondisk::intent_log::{
    IntentLogBlock, IntentLogBlockForm, IntentLogVerifier, LogRecordFrame, LogRecordFrames,
};
use millpond_ondisk::{BlockPointer, DecodeError, Endian, IntentLogFlags, IntentLogHeader, Txg};

/// Why a log ended.
///
/// Every variant is ordinary, except [`ChainEnd::Unreadable`] because of missing devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChainEnd {
    /// The header has no chain.
    NoLog,
    /// The last block has no successor.
    NoSuccessor,
    /// The next block does not verify: it was allocated but never written. This is the usual end.
    Unreadable(BlockError),
    /// The next block verifies but does not belong to this chain, or it cannot be parsed.
    Broken(DecodeError),
    /// The next block was written after the log was claimed.
    ClaimLimit,
}

/// A verified block of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainBlock {
    /// The pointer to the block.
    pub pointer: BlockPointer,
    /// The block's sequence number in the chain.
    pub sequence: u64,
    /// Whether the records' bodies are still encrypted. Record headers are never encrypted.
    pub has_ciphertext: bool,
    form: IntentLogBlockForm,
    bytes: Vec<u8>,
    endian: Endian,
    record_sequence_max: u64,
}

impl ChainBlock {
    /// The block's records, not decoded yet. Records beyond the claimed sequence number are left out.
    pub fn records(&self) -> impl Iterator<Item = LogRecordFrame<'_>> {
        let records = IntentLogBlock::parse(&self.bytes, self.form)
            .map(|block| block.records)
            .unwrap_or_default();
        LogRecordFrames::new(records, self.endian)
            .filter_map(Result::ok)
            .take_while(|record| record.sequence <= self.record_sequence_max)
    }
}

/// Walks the log of a head dataset. Do not walk a snapshot's log: its header is stale.
///
/// Each block's checksum is bound to its sequence number, so no block verifies twice. If `read` does not
/// verify checksums, loop detection ends the walk instead: it stops when a device offset repeats. The walk
/// therefore ends after at most as many blocks as the devices have sectors. It keeps one block (at most 16
/// MiB) in memory at a time. Page `docs/format/intent-log.md`.
pub struct Chain<F> {
    read: F,
    next: BlockPointer,
    /// The number of blocks walked, and the device offset of the last block whose number was a power of two.
    /// Any loop returns to that offset, so remembering one offset is enough to detect it.
    walked: u64,
    landmark: [u64; 2],
    block_sequence_max: u64,
    record_sequence_max: u64,
    end: Option<ChainEnd>,
}

impl<F> Chain<F>
where
    F: FnMut(&BlockPointer) -> Result<LogBlock, BlockError>,
{
    /// Starts at the block that `header` points to. `read` returns verified blocks.
    pub fn new(header: &IntentLogHeader, read: F) -> Self {
        // A claimed log ends where it ended when it was claimed, even if more blocks become readable later.
        let is_claimed = header.claim_txg != Txg(0);
        let records_limited = is_claimed
            && header
                .flags
                .contains(IntentLogFlags::CLAIM_RECORD_SEQUENCE_VALID);
        let limit = |limited: bool, sequence: u64| if limited { sequence } else { u64::MAX };
        Self {
            read,
            next: header.log,
            walked: 0,
            landmark: [0; 2],
            block_sequence_max: limit(is_claimed, header.claim_block_sequence),
            record_sequence_max: limit(records_limited, header.claim_record_sequence),
            end: (!header.has_chain()).then_some(ChainEnd::NoLog),
        }
    }
    /// Why the walk ended; `None` while it can continue.
    #[must_use]
    pub fn end(&self) -> Option<&ChainEnd> {
        self.end.as_ref()
    }
    /// The pointer to the next block.
    ///
    /// At the end of the walk, it points to the block that is not part of the log (allocated, perhaps never
    /// written). It is a hole if there is no such block.
    #[must_use]
    pub fn next_pointer(&self) -> &BlockPointer {
        &self.next
    }
    fn step(&mut self) -> Result<ChainBlock, ChainEnd> {
        let pointer = self.next;
        if pointer.is_hole() {
            return Err(ChainEnd::NoSuccessor);
        }
        let broken = |reason| ChainEnd::Broken(DecodeError::new("intent log block", reason, 0));
        let sequence = IntentLogVerifier::of(&pointer).sequence;
        if sequence > self.block_sequence_max {
            return Err(ChainEnd::ClaimLimit);
        }
        let [place @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _] = pointer.words;
        if self.walked > 0 && place == self.landmark {
            return Err(broken("the chain is a loop"));
        }
        self.walked = self.walked.saturating_add(1);
        if self.walked.is_power_of_two() {
            self.landmark = place;
        }
        let form = IntentLogBlockForm::of(&pointer)
            .ok_or_else(|| broken("pointer is not that of a log block"))?;
        let read = (self.read)(&pointer).map_err(ChainEnd::Unreadable)?;
        let block = IntentLogBlock::parse(&read.bytes, form).map_err(ChainEnd::Broken)?;
        if !block.continues(&pointer) {
            return Err(broken("next block belongs to another chain"));
        }
        // A block with an invalid record is not a log block, even if its checksum is correct.
        for record in LogRecordFrames::new(block.records, block.header.endian) {
            record.map_err(ChainEnd::Broken)?;
        }
        let (next, endian) = (block.header.next, block.header.endian);
        self.next = next;
        Ok(ChainBlock {
            pointer,
            sequence,
            has_ciphertext: read.has_ciphertext,
            form,
            bytes: read.bytes,
            endian,
            record_sequence_max: self.record_sequence_max,
        })
    }
}

impl<F> Iterator for Chain<F>
where
    F: FnMut(&BlockPointer) -> Result<LogBlock, BlockError>,
{
    type Item = ChainBlock;
    /// The next block, or `None` at the end; [`Chain::end`] then returns the reason.
    fn next(&mut self) -> Option<ChainBlock> {
        if self.end.is_some() {
            return None;
        }
        self.step().map_err(|end| self.end = Some(end)).ok()
    }
}

impl<F> core::fmt::Debug for Chain<F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Chain")
            .field("next", &self.next)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
