//! Interface to the layer that stores blocks.

use crate::BlockPolicy;
use crate::{BlockAddress, BlockError, ObjectError};
use millpond_block::{EncodedContent, WriteKey};
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, Level, ObjectType, Txg};

/// Stores the finished blocks of one object set while it syncs, and frees dead ones.
///
/// The sink accounts for births and deaths itself: each block of `write` and `kill` exactly once.
pub trait BlockSink: Sync {
    /// Compresses, checksums, allocates and writes blocks, possibly in parallel. Results are in the order of
    /// `jobs`.
    ///
    /// A block that is already stored ([`WriteJob::stored`]) keeps its location or is written again. In the
    /// second case nothing refers to the earlier location, and its writer must free it. A block of zeros
    /// becomes a hole; a tiny block is embedded in its pointer.
    ///
    /// The sink itself kills `previous` of each job that succeeds, so [`BlockSink::kill`] is not called for
    /// it. From pass 2 on it may instead overwrite in place a block that was born in this txg.
    fn write(&self, jobs: Vec<WriteJob>) -> Vec<Result<BlockPointer, BlockError>>;

    /// Notes that this set no longer refers to a pointer and that no new pointer replaces it. Called once for
    /// each pointer, including holes and embedded pointers, which own no space.
    ///
    /// # Errors
    /// If the death cannot be recorded.
    fn kill(&self, pointer: &BlockPointer) -> Result<(), ObjectError>;

    /// Reports an indirect block of a freed tree that cannot be read. The blocks below it stay allocated and
    /// stay charged to the dataset, but the set no longer refers to them.
    fn leak(&self, leak: Leak);

    /// Space in bytes that datasets are charged for a block (deflated). 0 for holes and embedded pointers.
    fn deflated_bytes(&self, pointer: &BlockPointer) -> u64;
}

/// Blocks that could not be freed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leak {
    /// The indirect block that points to them.
    pub address: BlockAddress,
    /// The number of data blocks below it, according to its pointer's fill count.
    pub blocks: u64,
    /// Why it could not be read.
    pub reason: String,
}

/// One block to be written.
#[derive(Debug, Clone)]
pub struct WriteJob {
    /// The address of the block.
    pub address: BlockAddress,
    /// Its logical bytes; final.
    pub content: Arc<Vec<u8>>,
    /// The object type stored in the pointer.
    pub object_type: ObjectType,
    /// Height in the tree; 0 for data, spill blocks and the object set block.
    pub level: Level,
    /// How to store it.
    pub policy: BlockPolicy,
    /// The form to store instead of what the policy's compression function makes.
    pub encoded: Option<EncodedContent>,
    /// The pointer's fill count, unless the block becomes a hole.
    pub fill: u64,
    /// The pointer that the new one replaces; zeros if there is none.
    pub previous: BlockPointer,
    /// The txg being synced.
    pub txg: Txg,
    /// The sync pass, from 1.
    pub pass: u32,
    /// Where an intent log has already written the content in this txg. The block was born there and need not
    /// be written again.
    ///
    /// Or the pointer of a clone ([`WriteJob::is_clone`]).
    pub stored: Option<BlockPointer>,
    /// Whether `stored` refers to a block of another owner. It gets a further reference.
    pub is_clone: bool,
    /// Whether the content is that of `previous`, and the new pointer keeps its logical birth
    /// ([`BlockPointer::rewritten_from`]).
    pub keeps_birth: bool,
    /// The key with which to encrypt the block; `None` outside encrypted datasets.
    pub key: Option<Arc<WriteKey>>,
    /// Whether the dataset is encrypted and its key is not known: the block comes with its codes, or needs no key.
    pub is_raw: bool,
}

impl WriteJob {
    /// Whether `previous` may be overwritten in place if the size stays the same. This is so from pass 2 on
    /// for a block born in this txg, because nothing committed refers to it. A clone was written earlier.
    #[must_use]
    pub fn may_rewrite(&self) -> bool {
        self.pass >= 2 && is_born_in(&self.previous, self.txg)
    }

    /// Whether the block's size must stop changing: it was already written in this txg, and the pass is late.
    pub(crate) fn is_rewritten_late(&self) -> bool {
        self.may_rewrite() && self.pass >= crate::writer::LATE_PASS
    }
}

/// Whether a block was written in this txg, and is not only referred to since.
pub(crate) fn is_born_in(pointer: &BlockPointer, txg: Txg) -> bool {
    let is_clone = !pointer.is_embedded() && pointer.physical_birth() != txg;
    !pointer.is_hole() && pointer.birth() == txg && !is_clone
}
