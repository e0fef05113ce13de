//! The walk along a chain of log blocks.

use millpond_block::{BlockAddress, BlockError, LogBlock};
use millpond_ondisk::intent_log::{
    IntentLogBlock, IntentLogBlockForm, IntentLogVerifier, LogRecordFrame, LogRecordFrames,
};
use millpond_ondisk::{
    BlockId, BlockPointer, DecodeError, Endian, IntentLogFlags, IntentLogHeader, Level, ObjectId,
    Txg,
};

/// Why a log ended. All but [`ChainEnd::Unreadable`] with missing devices are ordinary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChainEnd {
    /// No chain hangs from the header.
    NoLog,
    /// The last block names no successor.
    NoSuccessor,
    /// The next block does not verify: it was allocated but never written. The usual end.
    Unreadable(BlockError),
    /// The next block verifies but does not continue this chain, or holds what no writer wrote.
    Broken(DecodeError),
    /// What follows was written after the log was claimed.
    ClaimLimit,
}

/// A verified block of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainBlock {
    /// Where it lies.
    pub pointer: BlockPointer,
    /// Its place in the chain.
    pub sequence: u64,
    /// Set when the records' bodies are still encrypted; their headers never are.
    pub has_ciphertext: bool,
    form: IntentLogBlockForm,
    bytes: Vec<u8>,
    endian: Endian,
    record_sequence_max: u64,
}

impl ChainBlock {
    /// The block's records, each still to be decoded. Those beyond what was claimed are left out.
    pub fn records(&self) -> impl Iterator<Item = LogRecordFrame<'_>> {
        let records = IntentLogBlock::parse(&self.bytes, self.form)
            .map(|block| block.records)
            .unwrap_or_default();
        LogRecordFrames::new(records, self.endian)
            .filter_map(Result::ok)
            .take_while(|record| record.sequence <= self.record_sequence_max)
    }
}

/// The address under which errors name a block of a dataset's log: object 0, level 254, its place
/// in the chain.
#[must_use]
pub fn log_block_address(dataset: u64, sequence: u64) -> BlockAddress {
    BlockAddress {
        dataset,
        object: ObjectId(0),
        level: Level(254),
        block: BlockId(sequence),
    }
}

/// Walks the log of a head dataset. A snapshot's header is stale and must not be walked.
///
/// Each block's checksum is bound to its place in the chain, so no block can verify twice; should
/// `read` not verify, a walk that comes back to a place ends there all the same. The walk thus ends
/// after at most as many blocks as the devices have sectors. One block (at most 16 MiB) is in
/// memory at a time. Page `docs/format/intent-log.md`.
pub struct Chain<F> {
    read: F,
    next: BlockPointer,
    /// Blocks walked, and the place of the last one whose number was a power of two: any loop comes
    /// back to such a place, and one place is all that must be remembered.
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
    /// Begins at the block that `header` leads to. `read` returns verified blocks.
    pub fn new(header: &IntentLogHeader, read: F) -> Self {
        // Once claimed, a log ends where it ended then, even if more becomes readable later.
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
    /// Why there are no more blocks; `None` while there may be.
    #[must_use]
    pub fn end(&self) -> Option<&ChainEnd> {
        self.end.as_ref()
    }
    /// Where the walk stands: the pointer to the next block, or, at the end, to the block that did not
    /// belong to the log any more (allocated, perhaps never written); a hole if there is none.
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
        // A block with an impossible record is no block of a log, whatever its checksum says.
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
    /// The next block, or `None` once [`Chain::end`] tells why.
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
