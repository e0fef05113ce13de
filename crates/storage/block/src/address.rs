//! Logical addresses of blocks.

use millpond_ondisk::{BlockId, Level, ObjectId, SPILL_BLOCK_ID};
use std::fmt;

/// The logical address of a block, used by errors, statistics and prefetch. It is the format's "bookmark"
/// of four numbers; the other bookmarks are those of datasets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct BlockAddress {
    /// The dataset's object id in the MOS; 0 is the MOS itself.
    pub dataset: u64,
    /// The object inside the dataset.
    pub object: ObjectId,
    /// Height in the block tree; 255 for the block that holds the object set itself.
    pub level: Level,
    /// Index at that level, or [`SPILL_BLOCK_ID`].
    pub block: BlockId,
}

impl BlockAddress {
    /// The block that holds the object set of `dataset`.
    #[must_use]
    pub fn object_set(dataset: u64) -> Self {
        Self {
            dataset,
            object: ObjectId(0),
            level: Level(255),
            block: BlockId(0),
        }
    }
    /// A block of the intent log of `dataset`: object 0, level 254, and its sequence number in the chain.
    #[must_use]
    pub fn log_block(dataset: u64, sequence: u64) -> Self {
        Self {
            dataset,
            object: ObjectId(0),
            level: Level(254),
            block: BlockId(sequence),
        }
    }
    /// Whether it is a block of an intent log.
    #[must_use]
    pub fn is_log_block(&self) -> bool {
        self.level == Level(254)
    }
}

impl fmt::Display for BlockAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dataset {
            0 => write!(f, "pool metadata")?,
            dataset => write!(f, "dataset {dataset}")?,
        }
        if self.level == Level(255) {
            return write!(f, ", object set");
        }
        write!(f, ", object {}", self.object)?;
        if self.block == SPILL_BLOCK_ID {
            write!(f, ", spill block")
        } else {
            write!(f, ", level {} block {}", self.level, self.block)
        }
    }
}
