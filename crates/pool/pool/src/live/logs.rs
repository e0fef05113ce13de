//! Intent logs found when a pool is opened for changes.
//!
//! A log with records would have to be claimed and replayed; that is not done yet, and writing to such
//! a pool would destroy what was promised, so it is refused. A log without records (a dataset that had
//! synchronous writes and was closed in good order leaves one) holds nothing but the space of its blocks.
//!
//! Page `docs/format/intent-log.md`.

use crate::PoolError;
use crate::error::Reading;
use millpond_block::{BlockAddress, BlockError, BlockStore};
use millpond_ondisk::intent_log::{
    IntentLogBlock, IntentLogBlockForm, IntentLogFlags, IntentLogVerifier,
};
use millpond_ondisk::{BlockId, BlockPointer, IntentLogHeader, Level, ObjectId, Txg};
use std::collections::BTreeSet;

const WHAT: &str = "intent log";
/// Errors name blocks of logs by this level, and their place in the chain.
const LOG_LEVEL: Level = Level(254);
/// A chain of more blocks than this is no writer's. Bounds memory to some hundred megabytes.
const BLOCKS_MAX: usize = 1 << 20;

/// A dataset's intent log, as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLog {
    /// Its blocks that space maps count as allocated, the one included that was allocated for the
    /// next write and never written.
    pub allocated: Vec<BlockPointer>,
    /// Whether it holds anything to be replayed.
    pub has_records: bool,
}

impl FoundLog {
    /// Walks a log from its header. `first` is the first txg that will be written: blocks born in it or
    /// later are in no space map.
    ///
    /// # Errors
    /// If a device is missing that the log lies on: then it is not known what it holds.
    pub fn read(
        store: &BlockStore,
        dataset: u64,
        header: &IntentLogHeader,
        first: Txg,
    ) -> Result<Self, PoolError> {
        let mut found = Self {
            allocated: vec![],
            has_records: header.flags.contains(IntentLogFlags::REPLAY_NEEDED),
        };
        let is_claimed = header.claim_txg.0 != 0;
        let mut seen = BTreeSet::new();
        let mut next = header.log;
        while !next.is_hole() && found.allocated.len() < BLOCKS_MAX {
            let place = next.dvas().next().map(|dva| (dva.vdev, dva.offset_bytes));
            if !seen.insert(place) {
                break;
            }
            // What was claimed is in the space maps, whenever it was written.
            if is_claimed || next.birth() < first {
                found.allocated.push(next);
            }
            let address = BlockAddress {
                dataset,
                object: ObjectId(0),
                level: LOG_LEVEL,
                block: BlockId(IntentLogVerifier::of(&next).sequence),
            };
            let block = match store.read_log_block(&next, address, None) {
                Ok(block) => block,
                // A chain ends at the first block that does not verify.
                Err(BlockError::Corrupt { .. } | BlockError::Invalid { .. }) => break,
                Err(error) => return Err(error).reading(WHAT),
            };
            let Some(form) = IntentLogBlockForm::of(&next) else {
                break;
            };
            let Ok(parsed) = IntentLogBlock::parse(&block.bytes, form) else {
                break;
            };
            if !parsed.continues(&next) {
                break;
            }
            found.has_records |= !parsed.records.is_empty();
            // A claimed chain without records has one block.
            if is_claimed {
                break;
            }
            next = parsed.header.next;
        }
        Ok(found)
    }
}
