//! What a caller says about a transaction before it begins.

use crate::TxgError;
use millpond_ondisk::Txg;

/// What an operation will do, as far as admission needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Estimate {
    /// The most bytes that will become dirty, data and metadata together.
    pub bytes: u64,
    /// How many of them belong to the blocks that `block_bytes` counts.
    pub data_bytes: u64,
    /// The bytes of the large data blocks that will change: each whole, once, and without copies.
    pub block_bytes: u64,
    /// The txg in which all blocks that the operation writes are dirty already. If it begins in this one, it takes no
    /// further space.
    pub dirty_txg: Option<Txg>,
    /// How many of the dirty bytes the caller writes. The write throttle delays the transaction accordingly; 0 for a
    /// change of metadata only.
    pub written_bytes: u64,
    /// Whether the operation frees more space than it takes. Such an operation may use the reserve that keeps
    /// a full pool usable, and ignores a full quota.
    pub is_freeing: bool,
    /// The most blocks that the operation frees. Each txg frees a bounded number; if the limit is reached,
    /// the transaction waits for a later txg. 0 for operations that change only a few blocks.
    pub freed_blocks: u64,
    /// The bytes of blocks that get a further reference: they are charged to the dataset, and take neither memory nor
    /// space of the pool.
    pub cloned_bytes: u64,
    /// What the operation may wait for.
    pub wait: BeginWait,
}

/// What may delay the beginning of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BeginWait {
    /// Waits while too much is dirty and while writing is paused.
    #[default]
    Throttled,
    /// Waits only while writing is paused. For transactions that dirty nothing, such as those for intent log
    /// blocks.
    UnlessPaused,
    /// Never waits. The caller gets [`TxgError::WouldWait`] instead.
    Never,
}

impl BeginWait {
    pub(super) fn allowed(self) -> Result<(), TxgError> {
        match self {
            Self::Never => Err(TxgError::WouldWait),
            Self::Throttled | Self::UnlessPaused => Ok(()),
        }
    }
}

/// The parameters of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxgRequest {
    /// The number of bytes that it may dirty.
    pub estimate_bytes: u64,
    /// How many of them belong to blocks that `stored_bytes` counts.
    pub data_bytes: u64,
    /// What the large data blocks take that it may change: each whole, with its copies.
    pub stored_bytes: u64,
    /// How many of the dirty bytes the caller writes, for the write throttle.
    pub written_bytes: u64,
    /// The maximum number of blocks that it frees; 0 if there are only a few.
    pub freed_blocks: u64,
    /// What may delay it.
    pub wait: BeginWait,
}
