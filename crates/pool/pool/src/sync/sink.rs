//! Writes the blocks of the MOS, and the pool's part of writing dataset blocks.

use crate::dedup::Finder;
use crate::pool::Pool;
use crate::sync::context::{SpaceChange, SyncContext};
use crate::sync::space::SyncAllocator;
use millpond_block::{
    BlockAddress, BlockError, BlockWrite, Retention, SharedBlocks, WrittenBlock, WrittenForm,
};
use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_env::sync::atomic::Ordering;
use millpond_object::{BlockSink, Leak, ObjectError, WriteJob};
use millpond_ondisk::BlockPointer;
use millpond_txg::Transaction;
use millpond_vdev::AllocationClass;

impl SyncContext<'_> {
    /// Writes blocks of any object set: compresses them, allocates space and writes all copies. The devices may have them
    /// later, but before the txg is committed.
    ///
    /// Does no accounting and does not free the previous block. The sink does both, depending on
    /// [`WrittenBlock::is_rewritten`].
    pub fn write_blocks(&self, jobs: Vec<WriteJob>) -> Vec<Result<WrittenBlock, BlockError>> {
        self.sync_state.has_changes.store(true, Ordering::Relaxed);
        let is_deduplicated = |job: &WriteJob| job.policy.dedup.is_some() && !job.is_clone;
        if !jobs.iter().any(is_deduplicated) {
            return self.write_jobs(jobs, None);
        }
        let addresses: Vec<BlockAddress> = jobs.iter().map(|job| job.address).collect();
        let written = self.pool.change_dedup(|tables| {
            let finder = Finder::new(self, tables)?;
            let mut jobs = jobs;
            for job in jobs.iter_mut().filter(|job| is_deduplicated(job)) {
                if let Some(stored) = job.stored {
                    job.stored = Some(finder.adopt(job, stored));
                }
            }
            let written = self.write_jobs(jobs, Some(&finder));
            finder.finish()?;
            self.note_referred(&written);
            Ok(written)
        });
        written.unwrap_or_else(|error| {
            let reason = error.to_string();
            let failed = addresses.into_iter().map(|address| {
                let reason = reason.clone();
                Err(BlockError::Write { address, reason })
            });
            failed.collect()
        })
    }

    /// Notes new pointers to older blocks, for a resilver that may have passed the place of the new pointer, and comes
    /// too late to that of the old one.
    fn note_referred(&self, written: &[Result<WrittenBlock, BlockError>]) {
        let pointers = written.iter().flatten().map(|written| written.pointer);
        let is_older = |pointer: &BlockPointer| {
            pointer.is_dedup() && !pointer.is_hole() && pointer.physical_birth() != self.txg()
        };
        let referred: Vec<BlockPointer> = pointers.filter(is_older).collect();
        if !referred.is_empty() && self.pool.note_cloned(&referred, self.txg()) {
            self.mark_config_dirty();
        }
    }

    /// Writes the blocks that are not stored yet.
    fn write_jobs(
        &self,
        jobs: Vec<WriteJob>,
        shared: Option<&dyn SharedBlocks>,
    ) -> Vec<Result<WrittenBlock, BlockError>> {
        let takes_small_blocks = self.pool.allocator.takes_small_blocks();
        let stored: Vec<Option<BlockPointer>> = jobs.iter().map(|job| job.stored).collect();
        let jobs = jobs.into_iter().filter(|job| job.stored.is_none());
        let writes = jobs
            .map(|job| block_write(job, takes_small_blocks))
            .collect();
        let store = &self.pool.store;
        let allocator = SyncAllocator { pool: self.pool };
        let written = match shared {
            Some(shared) => store.write_shared(self.txg(), &allocator, shared, writes),
            None => store.write_behind(self.txg(), &allocator, writes),
        };
        if stored.iter().all(Option::is_none) {
            return written;
        }
        let mut written = written.into_iter();
        let lost = || {
            Err(BlockError::Write {
                address: BlockAddress::object_set(0),
                reason: "the outcome of a block was lost".to_owned(),
            })
        };
        let outcomes = stored.into_iter().map(|stored| match stored {
            Some(pointer) => Ok(WrittenBlock {
                pointer,
                form: WrittenForm::Contiguous,
            }),
            None => written.next().unwrap_or_else(lost),
        });
        outcomes.collect()
    }
}

impl Pool {
    /// Writes blocks for an intent log into the txg of `tx`. Each block is contiguous and durable when this
    /// returns.
    ///
    /// The caller must free a block in that txg ([`SyncContext::free_log_block`]) unless the sync of the
    /// txg takes it over.
    ///
    /// # Errors
    /// For each block: out of space, or a device failure. That block is then not allocated.
    pub fn write_log_data(
        &self,
        tx: &Transaction,
        jobs: Vec<WriteJob>,
    ) -> Vec<Result<BlockPointer, BlockError>> {
        let takes_small_blocks = self.allocator.takes_small_blocks();
        let writes = jobs.into_iter().map(|job| {
            let mut write = block_write(job, takes_small_blocks);
            write.may_gang = false;
            write
        });
        let written = self
            .store
            .write_durable(tx.txg(), &self.allocator, writes.collect());
        let pointers = written.into_iter();
        pointers.map(|written| Ok(written?.pointer)).collect()
    }
}

fn block_write(job: WriteJob, takes_small_blocks: bool) -> BlockWrite {
    let may_rewrite = job.may_rewrite();
    let mut policy = job.policy;
    let is_data = job.level.0 == 0 && !job.object_type.is_metadata();
    if is_data && policy.class == AllocationClass::Special && !takes_small_blocks {
        policy.class = AllocationClass::Normal;
    }
    let mut write = BlockWrite::new(job.address, job.object_type, job.content);
    write.level = job.level;
    write.checksum = policy.checksum;
    write.compression = policy.compression;
    write.zstd_level = policy.zstd_level;
    write.encoded = job.encoded;
    write.copies = policy.copies;
    write.fill = job.fill;
    write.class = policy.class;
    write.may_embed = policy.may_embed;
    write.has_hole_birth = policy.has_hole_birth;
    write.previous = job.previous;
    write.may_rewrite = may_rewrite;
    // Written blocks are read again soon: indirect blocks and dnodes by the next txg at the latest.
    write.retention = match job.is_raw {
        // The content is not known.
        true => Retention::Drop,
        false => policy.retention,
    };
    write.key = job.key;
    write.is_raw = job.is_raw;
    write.dedup = policy.dedup;
    write
}

/// The sink of the MOS. Blocks born and freed are charged to `$MOS` in the next pass.
pub(crate) struct MosSink<'a> {
    pub(crate) ctx: &'a SyncContext<'a>,
    /// The first block that could not be freed, for callers that cannot return the error themselves.
    failure: Mutex<Option<ObjectError>, rank::Leaf>,
}

impl<'a> MosSink<'a> {
    pub(crate) fn new(ctx: &'a SyncContext<'a>) -> Self {
        Self {
            ctx,
            failure: Mutex::new(None),
        }
    }
    /// Returns the first failure that `write` could not report.
    ///
    /// # Errors
    /// The first failure inside [`BlockSink::write`] that does not belong to a written block.
    pub(crate) fn finish(self) -> Result<(), ObjectError> {
        self.failure.into_inner().map_or(Ok(()), Err)
    }
}

impl BlockSink for MosSink<'_> {
    fn write(&self, jobs: Vec<WriteJob>) -> Vec<Result<BlockPointer, BlockError>> {
        let previous: Vec<BlockPointer> = jobs.iter().map(|job| job.previous).collect();
        let outcomes = self.ctx.write_blocks(jobs);
        let mut born = SpaceChange::default();
        let pointers = outcomes
            .into_iter()
            .zip(previous)
            .map(|(outcome, previous)| {
                let written = outcome?;
                if !written.keeps_space() {
                    born += self.ctx.space_of(&written.pointer);
                    if let Err(error) = self.kill(&previous) {
                        self.failure.lock().get_or_insert(error);
                    }
                }
                Ok(written.pointer)
            })
            .collect();
        self.ctx.account_mos(born);
        pointers
    }

    fn kill(&self, pointer: &BlockPointer) -> Result<(), ObjectError> {
        if pointer.is_hole() {
            return Ok(());
        }
        self.ctx.account_mos(-self.ctx.space_of(pointer));
        // The MOS is never deduplicated, so freeing cannot fail.
        self.ctx.push_dead(pointer);
        Ok(())
    }

    fn leak(&self, leak: Leak) {
        self.ctx.note_leak(leak);
    }

    fn deflated_bytes(&self, pointer: &BlockPointer) -> u64 {
        self.ctx.deflated_bytes(pointer)
    }
}
