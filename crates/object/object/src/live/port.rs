//! Where blocks go to.

use super::BlockPolicy;
use crate::{BlockAddress, BlockError, ObjectError};
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, Level, ObjectType, Txg};

/// Where the finished blocks of one object set go and dead ones come from, while it is synced.
/// Births and deaths are accounted inside, each exactly once: those of `write` and of `kill`.
pub trait BlockSink: Sync {
    /// Compresses, checksums, allocates and writes, in parallel if it likes; outcomes come in the order
    /// of `jobs`. What is stored already ([`WriteJob::stored`]) keeps its place, or is written anew: then its
    /// place is nobody's, which its writer must know. A block that turns out to be zero becomes a hole, a tiny one stands in its pointer.
    ///
    /// The sink kills `previous` of each job that succeeds itself (it may instead overwrite in place
    /// what was born in this txg, from pass 2 on); [`BlockSink::kill`] is not called for it.
    fn write(&self, jobs: Vec<WriteJob>) -> Vec<Result<BlockPointer, BlockError>>;

    /// A pointer that this set referred to is no longer referred to and nothing takes its place. Called
    /// once for each; holes and embedded pointers come too and own no space.
    ///
    /// # Errors
    /// When the death cannot be noted.
    fn kill(&self, pointer: &BlockPointer) -> Result<(), ObjectError>;

    /// An indirect block of a tree that is freed cannot be read: the blocks below it stay allocated, and
    /// stay charged to the dataset. The set no longer refers to them.
    fn leak(&self, leak: Leak);

    /// Space that a block takes as datasets are charged for it, in bytes (deflated): 0 for holes and
    /// embedded pointers.
    fn deflated_bytes(&self, pointer: &BlockPointer) -> u64;
}

/// Blocks that could not be freed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leak {
    /// The indirect block that should name them.
    pub address: BlockAddress,
    /// How many data blocks hang below it, as its pointer says.
    pub blocks: u64,
    /// Why it could not be read.
    pub reason: String,
}

/// One block to be written.
#[derive(Debug, Clone)]
pub struct WriteJob {
    /// Which block it is.
    pub address: BlockAddress,
    /// Its logical bytes; final.
    pub content: Arc<Vec<u8>>,
    /// The type that the pointer names.
    pub object_type: ObjectType,
    /// Height in the tree; 0 for data, spill blocks and the object set block.
    pub level: Level,
    /// How to store it.
    pub policy: BlockPolicy,
    /// The pointer's fill, should it not become a hole.
    pub fill: u64,
    /// What the new pointer takes the place of; zeros if nothing.
    pub previous: BlockPointer,
    /// The txg being synced.
    pub txg: Txg,
    /// The sync pass, from 1.
    pub pass: u32,
    /// Where the content stands already, written in this txg by an intent log: it is born there and need not be
    /// written.
    pub stored: Option<BlockPointer>,
}

impl WriteJob {
    /// Whether `previous` may be overwritten in place if it takes as many bytes: it was born in this
    /// very txg, so nothing committed refers to it, and this is not the first pass.
    #[must_use]
    pub fn may_rewrite(&self) -> bool {
        self.pass >= 2 && !self.previous.is_hole() && self.previous.birth() == self.txg
    }

    /// Whether its size must stop changing: it was written in this txg already, and passes are many.
    pub(super) fn is_rewritten_late(&self) -> bool {
        self.may_rewrite() && self.pass >= super::writer::LATE_PASS
    }
}
