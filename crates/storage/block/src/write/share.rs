//! Blocks that are already stored: the write pipeline's interface to dedup tables.
//!
//! Page `docs/format/dedup-table.md`.

use super::place::Placer;
use super::prepare::{Prepared, Stored};
use super::{BlockProgress, BlockWrite, Run, UnderWay, WrittenBlock, WrittenForm};
use crate::{BlockAddress, BlockError};
use millpond_ondisk::BlockPointer;

/// That a block belongs into a dedup table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dedup {
    /// Whether the stored block is read and compared before it is referred to.
    pub is_verified: bool,
}

/// A block about to be written.
#[derive(Debug, Clone, Copy)]
pub struct WantedBlock<'a> {
    /// Its pointer with the dedup bit, without addresses.
    pub pointer: &'a BlockPointer,
    /// The bytes to be stored.
    pub stored: &'a [u8],
    /// The number of copies wanted.
    pub copies: u8,
    /// Whether the bytes of a stored block must be compared.
    pub is_verified: bool,
    /// The address for error messages.
    pub address: BlockAddress,
}

/// What is known of a [`WantedBlock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoundBlock {
    /// It is stored. This is its new pointer, whose reference is counted.
    Stored(BlockPointer),
    /// It is new: [`SharedBlocks::written`] follows.
    New,
    /// It is the same as a block that is [`FoundBlock::New`] and not written yet.
    UnderWay,
    /// It is written without an entry.
    Unshared,
}

/// The dedup tables, as the thread that writes a txg uses them.
pub trait SharedBlocks {
    /// Looks up blocks, and takes a reference to each that is found. Outcomes are in the order of `wanted`.
    fn find(&self, wanted: &[WantedBlock<'_>]) -> Vec<FoundBlock>;
    /// A new block of which `copies` copies were wanted is written, with its first reference.
    fn written(&self, pointer: &BlockPointer, copies: u8);
}

impl BlockProgress {
    pub(super) fn shared(pointer: BlockPointer) -> Self {
        let form = WrittenForm::Shared;
        Self::Over(Ok(WrittenBlock { pointer, form }))
    }
}

impl Run<'_> {
    pub(super) fn is_looked_up(&self, job: &BlockWrite) -> bool {
        self.shared.is_some() && job.dedup.is_some()
    }

    /// Looks up the blocks of a chunk that belong into dedup tables, all at once.
    pub(super) fn look_up(
        &self,
        prepared: &[(BlockWrite, Result<Prepared, String>)],
    ) -> Vec<FoundBlock> {
        let stored = prepared
            .iter()
            .filter_map(|(job, prepared)| match prepared {
                Ok(Prepared::Stored(stored)) if self.is_looked_up(job) => Some((job, stored)),
                _ => None,
            });
        self.find(stored.collect())
    }

    fn find(&self, blocks: Vec<(&BlockWrite, &Stored)>) -> Vec<FoundBlock> {
        let Some(shared) = self.shared.filter(|_| !blocks.is_empty()) else {
            return vec![];
        };
        let pointers = blocks.iter().map(|(job, stored)| {
            let mut pointer = self.placer.pointer(job, stored, &[]);
            pointer.set_dedup_bit();
            pointer
        });
        let pointers: Vec<BlockPointer> = pointers.collect();
        let wanted = blocks.iter().zip(&pointers);
        let wanted = wanted.map(|((job, stored), pointer)| WantedBlock {
            pointer,
            stored: &stored.bytes,
            copies: job.copies,
            is_verified: job.dedup.is_some_and(|dedup| dedup.is_verified),
            address: job.address,
        });
        shared.find(&wanted.collect::<Vec<_>>())
    }

    /// Refers to the block that was under way. If that is not there or has other bytes, the block is written without an
    /// entry.
    pub(super) fn end_wait(&self, block: UnderWay) -> Result<WrittenBlock, BlockError> {
        let UnderWay {
            mut job, stored, ..
        } = block;
        let address = job.address;
        if let Some(FoundBlock::Stored(pointer)) = self.find(vec![(&job, &stored)]).first() {
            return Ok(WrittenBlock {
                pointer: *pointer,
                form: WrittenForm::Shared,
            });
        }
        job.dedup = None;
        let Placer { txg, allocator, .. } = self.placer;
        let written = self
            .store
            .write_as(self.how, txg, allocator, None, vec![job]);
        written.into_iter().next().unwrap_or_else(|| {
            let reason = "the outcome of a block was lost".to_owned();
            Err(BlockError::Write { address, reason })
        })
    }
}
