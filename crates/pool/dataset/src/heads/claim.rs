//! Claims the blocks of the intent logs that were found when a pool was opened.
//!
//! Page `docs/format/intent-log.md`, "Claiming".

use millpond_ondisk::{BlockPointer, Txg};
use millpond_pool::{FoundBlock, FoundBlockKind, FoundLog, PoolError, SyncContext};

/// The space of a pool in its first txg, before anything is allocated.
pub(super) trait Space {
    /// Marks the space of a block allocated. Returns false, and changes nothing, if it belongs to something.
    fn claim(&self, pointer: &BlockPointer) -> Result<bool, PoolError>;
    /// Adds a reference to a block.
    fn add_reference(&self, pointer: &BlockPointer);
}

impl Space for SyncContext<'_> {
    fn claim(&self, pointer: &BlockPointer) -> Result<bool, PoolError> {
        SyncContext::claim(self, pointer)
    }
    fn add_reference(&self, pointer: &BlockPointer) {
        SyncContext::add_reference(self, pointer);
        self.hold_for_log(pointer);
    }
}

/// Claims the blocks of all logs. `first` is the first txg that is written. Returns how many blocks each log has: it ends
/// before the others.
///
/// A clone record of a txg that was committed may point to a block that was freed since, and a later block of any log may
/// have its space. So what the logs own is claimed first, and only then what they refer to.
pub(super) fn claim_all(
    space: &dyn Space,
    first: Txg,
    logs: &[&FoundLog],
) -> Result<Vec<usize>, PoolError> {
    let counts = logs.iter().map(|log| claim_owned(space, first, log));
    let counts: Vec<usize> = counts.collect::<Result<_, _>>()?;
    for (log, count) in logs.iter().zip(&counts) {
        let blocks = log.blocks.iter().take(*count);
        for block in blocks.filter(|block| block.kind == FoundBlockKind::Cloned) {
            claim_cloned(space, &block.pointer)?;
        }
    }
    Ok(counts)
}

/// Claims what belongs to a log alone. Returns how many blocks it has.
fn claim_owned(space: &dyn Space, first: Txg, log: &FoundLog) -> Result<usize, PoolError> {
    for (count, block) in log.blocks.iter().enumerate() {
        let is_owned = block.kind != FoundBlockKind::Cloned && !is_known(block, first);
        if is_owned && !space.claim(&block.pointer)? {
            // It belongs to another owner: the log ended before it.
            return Ok(count);
        }
    }
    Ok(log.blocks.len())
}

/// How far a log extends of which the first blocks were claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClaimedEnd {
    /// The sequence number of its last block of the chain.
    pub(super) block_sequence: u64,
    /// The sequence number of its last record.
    pub(super) record_sequence: u64,
}

impl ClaimedEnd {
    /// The end of a log of which this many blocks were claimed; `None` if there were none.
    ///
    /// All records before the first block that was not claimed belong to the log: that of the last claimed block too, and
    /// those after it that own no block.
    pub(super) fn of(log: &FoundLog, count: usize) -> Option<Self> {
        let last = log.blocks.get(..count)?.last()?;
        let not_claimed = log.blocks.get(count);
        Some(Self {
            block_sequence: last.block_sequence,
            record_sequence: not_claimed.map_or(log.record_sequence, |block| block.record_sequence),
        })
    }
}

/// Whether the space maps have a block that a log owns.
fn is_known(block: &FoundBlock, first: Txg) -> bool {
    block.pointer.birth() < first
}

/// Takes a reference to a block that a clone record points to. The end of the log releases it, here or in another
/// program.
fn claim_cloned(space: &dyn Space, pointer: &BlockPointer) -> Result<(), PoolError> {
    // If nothing uses the space of a block that was freed, the record becomes its owner.
    if pointer.is_gang() || !space.claim(pointer)? {
        space.add_reference(pointer);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
