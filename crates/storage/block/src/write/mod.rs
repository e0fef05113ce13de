//! The write pipeline: zero detection or compression, checksum, allocation, issue.
//!
//! Pages: `docs/format/block-pointer.md`, `docs/format/compression.md`, `docs/format/gang-header.md`.

mod allocate;
mod behind;
mod finish;
mod flush;
pub(crate) mod heal;
mod issue;
mod job;
mod log;
mod outstanding;
mod place;
mod prepare;
mod protect;
mod repair;
mod rewrite;
mod share;
mod unchanged;
mod workers;

pub use allocate::{Allocate, NoSpace, SpaceRequest};
pub(crate) use flush::Writing;
pub(crate) use issue::Batch;
pub use job::{BlockWrite, EncodedContent, FlushError, Missed, Seal, WrittenBlock, WrittenForm};
pub(crate) use log::ExtentWrite;
pub use log::LogWrite;
pub use protect::WriteKey;
pub use repair::WriteBackErrors;
pub(crate) use repair::{RangeWrite, ReadStart, write_leaf_range, write_over};
pub use share::{Dedup, FoundBlock, SharedBlocks, WantedBlock};

use crate::io_stats::IoClass;
use crate::topology::Topology;
use crate::{BlockError, BlockStore};
use finish::ExtentOutcome;
use issue::{Durability, How, Issued, issue};
use millpond_checksum::Checksummer;
use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, CompressionKind, Dva, Txg};
use place::{Extent, NoPlace, Placed, Placer};
use prepare::{Prepared, Stored, allocation_units, prepare};
use std::iter::Peekable;
use std::vec::IntoIter;

/// The size of a chunk. While one chunk is written to the devices the next is compressed, so twice this
/// much, with its parity, is in memory.
const CHUNK_BYTES: usize = 8 << 20;
/// The most blocks in a chunk.
const CHUNK_JOBS: usize = 4096;
/// How often a block gets new space after its writes failed.
const RETRIES_MAX: u32 = 2;

impl BlockStore {
    /// Writes blocks born in `txg`; outcomes are in the order of `jobs`. The writes are durable after
    /// [`BlockStore::flush`].
    ///
    /// All processors compute compression, checksums and parity; space is allocated in the order of `jobs`.
    /// A block counts as written when every copy can be read back without the leaves that missed it
    /// ([`BlockStore::take_missed`]). If one cannot, all space of the block is released and the block is
    /// written elsewhere, up to two times.
    ///
    /// # Errors
    /// For each block: [`BlockError::NoSpace`], [`BlockError::Write`]; its space is released then.
    pub fn write(
        &self,
        txg: Txg,
        allocator: &dyn Allocate,
        jobs: Vec<BlockWrite>,
    ) -> Vec<Result<WrittenBlock, BlockError>> {
        let how = How {
            class: IoClass::AsyncWrite,
            durability: Durability::WhenFlushed,
            in_background: false,
        };
        self.write_as(how, txg, allocator, None, jobs)
    }

    /// Like [`BlockStore::write`]. Blocks with [`BlockWrite::dedup`] are looked up in `shared` first, and become
    /// entries there if they are new.
    ///
    /// # Errors
    /// As [`BlockStore::write`].
    pub fn write_shared(
        &self,
        txg: Txg,
        allocator: &dyn Allocate,
        shared: &dyn SharedBlocks,
        jobs: Vec<BlockWrite>,
    ) -> Vec<Result<WrittenBlock, BlockError>> {
        let how = How {
            class: IoClass::AsyncWrite,
            durability: Durability::WhenFlushed,
            in_background: false,
        };
        self.write_as(how, txg, allocator, Some(shared), jobs)
    }

    /// Like [`BlockStore::write`], for blocks that a caller waits for: they count as synchronous writes,
    /// and are durable without a flush.
    ///
    /// # Errors
    /// As [`BlockStore::write`].
    pub fn write_durable(
        &self,
        txg: Txg,
        allocator: &dyn Allocate,
        jobs: Vec<BlockWrite>,
    ) -> Vec<Result<WrittenBlock, BlockError>> {
        let how = How {
            class: IoClass::SyncWrite,
            durability: Durability::AtOnce,
            in_background: false,
        };
        self.write_as(how, txg, allocator, None, jobs)
    }

    fn write_as(
        &self,
        how: How,
        txg: Txg,
        allocator: &dyn Allocate,
        shared: Option<&dyn SharedBlocks>,
        jobs: Vec<BlockWrite>,
    ) -> Vec<Result<WrittenBlock, BlockError>> {
        rank::check_io();
        self.with_run(how, txg, allocator, shared, |run| {
            let mut outcomes = Vec::with_capacity(jobs.len());
            let mut jobs = jobs.into_iter().peekable();
            let mut under_way: Option<Chunk> = None;
            while let Some(chunk) = self.next_chunk(&mut jobs) {
                let begun = run.begin(chunk);
                if let Some(chunk) = under_way.replace(begun) {
                    run.finish(chunk, &mut outcomes);
                    self.bound_unflushed();
                }
            }
            if let Some(chunk) = under_way {
                run.finish(chunk, &mut outcomes);
                self.bound_unflushed();
            }
            outcomes
        })
    }

    fn with_run<R>(
        &self,
        how: How,
        txg: Txg,
        allocator: &dyn Allocate,
        shared: Option<&dyn SharedBlocks>,
        body: impl FnOnce(&Run<'_>) -> R,
    ) -> R {
        let topology = self.writing_topology();
        let checksummer = self.checksummer();
        let placer = Placer {
            store: self,
            txg,
            allocator,
            topology: &topology,
            checksummer: &checksummer,
        };
        body(&Run {
            store: self,
            how,
            topology: &topology,
            checksummer: &checksummer,
            placer,
            shared,
        })
    }

    /// Takes a chunk of jobs; `None` if none is left.
    fn next_chunk(&self, jobs: &mut Peekable<IntoIter<BlockWrite>>) -> Option<Vec<BlockWrite>> {
        let mut chunk = vec![];
        let mut bytes = 0;
        while let Some(job) = jobs.next_if(|_| bytes < CHUNK_BYTES && chunk.len() < CHUNK_JOBS) {
            bytes += job.content.len();
            chunk.push(job);
        }
        // Writers take memory too, which the cache has to give up.
        self.cache.count_new(bytes as u64);
        (!chunk.is_empty()).then_some(chunk)
    }
}

/// One call of [`BlockStore::write`].
struct Run<'a> {
    store: &'a BlockStore,
    how: How,
    topology: &'a Arc<Topology>,
    checksummer: &'a Arc<Checksummer>,
    placer: Placer<'a>,
    shared: Option<&'a dyn SharedBlocks>,
}

/// Blocks in the pipeline.
struct Chunk {
    blocks: Vec<BlockProgress>,
    issued: Issued,
    /// How often writing had been resumed when the chunk was issued.
    since: u64,
}

/// The progress of one block.
enum BlockProgress {
    /// Complete.
    Over(Result<WrittenBlock, BlockError>),
    /// It has its place, and is written with this number of extents.
    Issued(Box<UnderWay>, usize),
    /// A block with the same content is under way.
    Waits(Box<UnderWay>),
}

/// A block that has space.
struct UnderWay {
    job: BlockWrite,
    stored: Stored,
    pointer: BlockPointer,
    form: WrittenForm,
    taken: Vec<Dva>,
    /// Addresses where writing failed.
    avoid: Vec<Dva>,
    retries: u32,
    /// Whether it becomes an entry of a dedup table.
    is_entry: bool,
}

impl UnderWay {
    fn new(job: BlockWrite, stored: Stored) -> Self {
        Self {
            job,
            stored,
            pointer: BlockPointer::default(),
            form: WrittenForm::Contiguous,
            taken: vec![],
            avoid: vec![],
            retries: 0,
            is_entry: false,
        }
    }
}

impl Run<'_> {
    fn begin(&self, jobs: Vec<BlockWrite>) -> Chunk {
        let mut extents = vec![];
        let blocks = self.lay_out(jobs, &mut extents);
        self.issue(blocks, extents)
    }

    /// Encodes blocks and finds space for them. What is to be written is appended to `extents`.
    fn lay_out(&self, jobs: Vec<BlockWrite>, extents: &mut Vec<Extent>) -> Vec<BlockProgress> {
        let units = allocation_units(&self.topology.tree);
        let checksummer = Arc::clone(self.checksummer);
        let cache = Arc::clone(&self.store.cache);
        let pools = self.store.writing.pools(self.topology);
        let prepared = pools.processors.map(jobs, move |job: BlockWrite| {
            let prepared = prepare(&job, units, &checksummer, &cache.buffers);
            (job, prepared)
        });
        let mut found = self.look_up(&prepared).into_iter();
        prepared
            .into_iter()
            .map(|(job, prepared)| match prepared {
                Ok(Prepared::Stored(stored)) if self.is_unchanged(&job, &stored) => {
                    mark::hit("write-without-change");
                    let (pointer, form) = (job.previous, WrittenForm::Unchanged);
                    BlockProgress::Over(Ok(WrittenBlock { pointer, form }))
                }
                Ok(Prepared::Stored(stored)) => {
                    let found = match self.is_looked_up(&job) {
                        true => found.next().unwrap_or(FoundBlock::Unshared),
                        false => FoundBlock::Unshared,
                    };
                    let mut block = Box::new(UnderWay::new(job, stored));
                    block.is_entry = found == FoundBlock::New;
                    match found {
                        FoundBlock::Stored(pointer) => BlockProgress::shared(pointer),
                        FoundBlock::UnderWay => BlockProgress::Waits(block),
                        FoundBlock::New | FoundBlock::Unshared => self.place(block, extents, None),
                    }
                }
                Ok(Prepared::Hole) => BlockProgress::Over(Ok(self.hole(&job))),
                Ok(Prepared::Embedded(payload, kind)) => {
                    BlockProgress::Over(self.embedded(&job, &payload, kind))
                }
                Err(reason) => BlockProgress::Over(Err(BlockError::Write {
                    address: job.address,
                    reason,
                })),
            })
            .collect()
    }

    fn hole(&self, job: &BlockWrite) -> WrittenBlock {
        let lsize = job.content.len() as u64;
        let pointer = if job.has_hole_birth {
            BlockPointer::hole(lsize, job.object_type, job.level, self.placer.txg)
        } else {
            BlockPointer::default()
        };
        WrittenBlock {
            pointer,
            form: WrittenForm::Hole,
        }
    }

    fn embedded(
        &self,
        job: &BlockWrite,
        payload: &[u8],
        kind: CompressionKind,
    ) -> Result<WrittenBlock, BlockError> {
        let (lsize, txg) = (job.content.len() as u64, self.placer.txg);
        let pointer = BlockPointer::embedded(payload, lsize, kind, job.object_type, txg);
        let pointer = pointer.ok_or_else(|| BlockError::Write {
            address: job.address,
            reason: "it does not fit in a pointer".into(),
        })?;
        Ok(WrittenBlock {
            pointer,
            form: WrittenForm::Embedded,
        })
    }

    /// Finds space. `failure` is the error of the last attempt.
    fn place(
        &self,
        block: Box<UnderWay>,
        extents: &mut Vec<Extent>,
        failure: Option<String>,
    ) -> BlockProgress {
        self.try_place(block, extents, failure)
            .unwrap_or_else(|(_, error)| BlockProgress::Over(Err(error)))
    }

    /// Like [`Run::place`], but returns the block if it gets no space.
    fn try_place(
        &self,
        mut block: Box<UnderWay>,
        extents: &mut Vec<Extent>,
        failure: Option<String>,
    ) -> Result<BlockProgress, (Box<UnderWay>, BlockError)> {
        match self.placer.place(&block.job, &block.stored, &block.avoid) {
            Ok(placed) => {
                let Placed {
                    pointer,
                    form,
                    extents: own,
                    taken,
                } = placed;
                (block.pointer, block.form, block.taken) = (pointer, form, taken);
                let count = own.len();
                extents.extend(own);
                Ok(BlockProgress::Issued(block, count))
            }
            Err(no_place) => {
                let address = block.job.address;
                let error = match (no_place, failure) {
                    (NoPlace::NoSpace, None) => BlockError::NoSpace { address },
                    (NoPlace::NoSpace, Some(reason)) | (NoPlace::Allocator(reason), _) => {
                        BlockError::Write { address, reason }
                    }
                };
                Err((block, error))
            }
        }
    }

    fn issue(&self, blocks: Vec<BlockProgress>, extents: Vec<Extent>) -> Chunk {
        let pools = self.store.writing.pools(self.topology);
        (self.store).make_way(self.topology, self.placer.txg, &extents);
        if self.how.class == IoClass::AsyncWrite {
            self.store.writing.measure_dirty(self.topology);
        }
        let since = self.store.retries.resumes();
        let issued = issue(
            self.topology,
            self.placer.txg,
            self.how,
            extents,
            &pools.processors,
            &pools.queues,
        );
        Chunk {
            blocks,
            issued,
            since,
        }
    }

    /// Waits for a chunk, writes failed blocks again elsewhere, and appends the outcomes in order.
    fn finish(&self, chunk: Chunk, outcomes: &mut Vec<Result<WrittenBlock, BlockError>>) {
        let Chunk {
            mut blocks,
            mut issued,
            mut since,
        } = chunk;
        loop {
            let (outcomes, place) = issued.finish(&self.store.writing);
            let mut extents = outcomes.into_iter();
            let mut again = vec![];
            let mut needs_more = false;
            blocks = blocks
                .into_iter()
                .map(|progress| match progress {
                    BlockProgress::Over(_) | BlockProgress::Waits(_) => progress,
                    BlockProgress::Issued(block, count) => {
                        let outcomes: Vec<ExtentOutcome> = extents.by_ref().take(count).collect();
                        let progress = self.judge(block, outcomes, since, &mut again);
                        needs_more |= matches!(progress, BlockProgress::Issued(..));
                        progress
                    }
                })
                .collect();
            drop(place);
            if !needs_more {
                break;
            }
            Chunk {
                blocks,
                issued,
                since,
            } = self.issue(blocks, again);
        }
        outcomes.extend(blocks.into_iter().filter_map(|progress| match progress {
            BlockProgress::Over(outcome) => Some(outcome),
            BlockProgress::Waits(block) => Some(self.end_wait(*block)),
            BlockProgress::Issued(..) => None,
        }));
    }

    fn judge(
        &self,
        mut block: Box<UnderWay>,
        outcomes: Vec<ExtentOutcome>,
        since: u64,
        extents: &mut Vec<Extent>,
    ) -> BlockProgress {
        let address = block.job.address;
        let failures: Vec<String> = outcomes.iter().filter_map(|o| o.failure.clone()).collect();
        if failures.is_empty() {
            for outcome in outcomes {
                self.store
                    .note_missed(self.topology, &outcome.missed, self.placer.txg);
            }
            if block.form == WrittenForm::Rewritten {
                self.store.forget(&block.job.previous);
            }
            if let (true, Some(shared)) = (block.is_entry, self.shared) {
                block.pointer.set_dedup_bit();
                shared.written(&block.pointer, block.job.copies);
            }
            if block.job.retention.is_kept() {
                (self.store).keep(&block.pointer, &block.job, &block.stored.bytes);
            }
            return BlockProgress::Over(Ok(WrittenBlock {
                pointer: block.pointer,
                form: block.form,
            }));
        }
        let mut reason = failures.join("; ");
        if let Err(NoPlace::Allocator(reason)) = self.placer.release(&block.taken) {
            return BlockProgress::Over(Err(BlockError::Write { address, reason }));
        }
        block.taken.clear();
        block.retries += 1;
        block.avoid.extend(block.pointer.dvas());
        if block.retries <= RETRIES_MAX {
            match self.try_place(block, extents, Some(reason)) {
                Ok(progress) => {
                    mark::hit("block-written-elsewhere");
                    return progress;
                }
                Err(failed) => (block, reason) = (failed.0, failed.1.to_string()),
            }
        }
        if self.store.waits_to_write(since, &reason) {
            block.retries = 0;
            block.avoid.clear();
            return self.place(block, extents, Some(reason));
        }
        BlockProgress::Over(Err(BlockError::Write { address, reason }))
    }
}
