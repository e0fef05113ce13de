//! The way of a block to the devices: zero or compressed, checksummed, given space, issued.
//!
//! Pages: `docs/format/block-pointer.md`, `docs/format/compression.md`, `docs/format/gang-header.md`.

mod allocate;
mod job;

pub use allocate::{Allocate, NoSpace, SpaceRequest};
pub use job::{BlockWrite, FlushError, Missed, WrittenBlock, WrittenForm};

use crate::{BlockError, BlockStore};
use millpond_ondisk::Txg;

impl BlockStore {
    /// Writes blocks born in `txg`; outcomes come in the order of `jobs`. Durable after
    /// [`BlockStore::flush`].
    ///
    /// Compression, checksums and parity are reckoned on all processors; space is taken in the order
    /// of `jobs`. A block counts as written when every copy can be read back in spite of the
    /// leaves that missed it ([`BlockStore::take_missed`]).
    ///
    /// # Errors
    /// For each block: [`BlockError::NoSpace`], [`BlockError::Write`]; then none of its space is taken.
    pub fn write(
        &self,
        txg: Txg,
        allocator: &dyn Allocate,
        jobs: Vec<BlockWrite>,
    ) -> Vec<Result<WrittenBlock, BlockError>> {
        let _ = (txg, allocator);
        jobs.into_iter()
            .map(|job| {
                Err(BlockError::Write {
                    address: job.address,
                    reason: "the pipeline is not built yet".into(),
                })
            })
            .collect()
    }

    /// Makes everything written so far durable on every leaf that was written to. A leaf that cannot
    /// flush counts as having missed all it was given since its last flush.
    ///
    /// # Errors
    /// [`FlushError`] if a vdev lost more than its redundancy can bear: the txg must not commit.
    pub fn flush(&self) -> Result<(), FlushError> {
        Ok(())
    }

    /// What leaves missed since the last call, each leaf and txg once, sorted.
    #[must_use]
    pub fn take_missed(&self) -> Vec<Missed> {
        Vec::new()
    }
}
