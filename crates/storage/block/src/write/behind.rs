//! Writes blocks behind their pointers: a pointer is returned when the block is placed, and its bytes follow.
//!
//! What refers to a block only needs its pointer, so the levels of a tree, and the objects and datasets of a txg, do not wait
//! for the devices one after the other. Blocks that are changed in several passes are written once. Before a flush
//! counts, every block is on the devices ([`BlockStore::flush`]).
//!
//! A block whose pointer was given out cannot move. If it cannot be written it is written again in its place, and until that
//! succeeds no flush does. From then on the store waits for each write before it returns the pointer, and failed blocks get other
//! space again.

use super::finish::ExtentOutcome;
use super::issue::{Durability, How, issue};
use super::outstanding::{BatchGuard, OutstandingBlock, Stage};
use super::place::Extent;
use super::{
    Allocate, BlockProgress, BlockWrite, FlushError, RETRIES_MAX, UnderWay, WrittenBlock,
    WrittenForm,
};
use crate::io_stats::IoClass;
use crate::topology::Topology;
use crate::{Block, BlockError, BlockStore};
use millpond_crypt::DatasetKey;
use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, Txg, VdevId};
use std::ops::Range;

/// From this many bytes on, held blocks are issued. Below, they wait for more, or for a flush.
const ISSUE_BYTES: usize = 1 << 20;
/// The most bytes of outstanding blocks, before the next chunk of blocks is added.
const OUTSTANDING_BYTES_MAX: usize = 16 << 20;

const HOW: How = How {
    class: IoClass::AsyncWrite,
    durability: Durability::WhenFlushed,
    in_background: true,
};

/// Where an extent is written.
fn place_of(topology: &Topology, txg: Txg, extent: &Extent) -> (VdevId, Range<u64>) {
    let (top, start) = (extent.dva.vdev, extent.dva.offset_bytes);
    let bytes = extent.range.len() as u64;
    let bytes = topology.tree.asize(top, bytes, txg).unwrap_or(bytes);
    (top, start..start.saturating_add(bytes))
}

impl BlockStore {
    /// Like [`BlockStore::write`], but returns a block's pointer as soon as the block has its place. Its bytes are kept until
    /// the devices have them, and reads wait for that or get them from memory. [`BlockStore::flush`] waits for all, and
    /// fails while one cannot be written.
    ///
    /// Up to 16 MiB are outstanding, and the blocks of a chunk. Unless [`BlockStore::set_write_behind`] asked for it, with one
    /// thread, and after a block could not be written, this is [`BlockStore::write`].
    ///
    /// # Errors
    /// For each block: [`BlockError::NoSpace`]; its space is released then.
    pub fn write_behind(
        &self,
        txg: Txg,
        allocator: &dyn Allocate,
        jobs: Vec<BlockWrite>,
    ) -> Vec<Result<WrittenBlock, BlockError>> {
        let is_wanted = self.writes_behind() && !self.is_single_threaded();
        if !is_wanted || self.writing.outstanding.has_failed() {
            return self.write(txg, allocator, jobs);
        }
        rank::check_io();
        self.with_run(HOW, txg, allocator, None, |run| {
            let mut outcomes = Vec::with_capacity(jobs.len());
            let mut jobs = jobs.into_iter().peekable();
            while let Some(chunk) = self.next_chunk(&mut jobs) {
                let mut extents = vec![];
                let blocks = run.lay_out(chunk, &mut extents);
                let mut extents = extents.into_iter();
                for progress in blocks {
                    outcomes.push(match progress {
                        BlockProgress::Over(outcome) => outcome,
                        BlockProgress::Waits(block) => run.end_wait(*block),
                        BlockProgress::Issued(block, count) => {
                            let own = extents.by_ref().take(count).collect();
                            Ok(self.hold(run.topology, txg, *block, own))
                        }
                    });
                }
                self.bound_outstanding();
                self.bound_unflushed();
            }
            outcomes
        })
    }

    /// Takes a block that has its place.
    fn hold(
        &self,
        topology: &Topology,
        txg: Txg,
        block: UnderWay,
        extents: Vec<Extent>,
    ) -> WrittenBlock {
        let UnderWay {
            job,
            stored,
            pointer,
            form,
            ..
        } = block;
        self.make_way(topology, txg, &extents);
        if form == WrittenForm::Rewritten {
            self.forget(&job.previous);
        }
        if job.retention.is_kept() {
            self.keep(&pointer, &job, &stored.bytes);
        }
        let places = extents
            .iter()
            .map(|extent| place_of(topology, txg, extent))
            .collect();
        let is_plain = job.key.is_none() && !job.is_raw;
        let block = OutstandingBlock {
            address: job.address,
            pointer,
            txg,
            bytes: job.content.len().max(stored.bytes.len()),
            content: is_plain.then_some(job.content),
            extents,
            places,
            stage: Stage::Held,
        };
        let outstanding = &self.writing.outstanding;
        outstanding.add(&mut outstanding.lock(), block);
        WrittenBlock { pointer, form }
    }

    /// Issues held blocks if there are many, and waits while too much is outstanding.
    fn bound_outstanding(&self) {
        let outstanding = &self.writing.outstanding;
        if outstanding.lock().held_bytes >= ISSUE_BYTES {
            self.issue_held();
        }
        self.reap();
        loop {
            let oldest = {
                let state = outstanding.lock();
                if state.bytes <= OUTSTANDING_BYTES_MAX {
                    return;
                }
                state.batches.keys().next().copied()
            };
            match oldest {
                Some(batch) => {
                    mark::hit("too-much-outstanding");
                    self.finish_batch(batch);
                }
                None if outstanding.lock().held_bytes > 0 => self.issue_held(),
                // Only failed blocks are left.
                None => return,
            }
        }
    }

    /// Removes what the devices have taken, without waiting: it is no longer kept in memory, and its place can be copied.
    pub(crate) fn reap(&self) {
        let outstanding = &self.writing.outstanding;
        while !outstanding.is_empty() {
            let over = {
                let state = outstanding.lock();
                let mut batches = state.batches.iter();
                batches.find_map(|(number, batch)| {
                    let is_over = batch.as_ref().is_some_and(|batch| batch.issued.is_over());
                    is_over.then_some(*number)
                })
            };
            let Some(batch) = over else { return };
            self.finish_batch(batch);
        }
    }

    /// Hands the held blocks to the devices.
    fn issue_held(&self) {
        let outstanding = &self.writing.outstanding;
        loop {
            let begun = outstanding.lock().begin_batch();
            let Some((batch, txg, members, extents)) = begun else {
                return;
            };
            let guard = BatchGuard {
                outstanding,
                batch,
                members,
            };
            let topology = self.writing_topology();
            let pools = self.writing.pools(&topology);
            self.writing.measure_dirty(&topology);
            let (processors, queues) = (&pools.processors, &pools.queues);
            guard.issued(issue(&topology, txg, HOW, extents, processors, queues));
        }
    }

    /// Waits for a batch, and notes what leaves missed of it.
    fn finish_batch(&self, number: u64) {
        let outstanding = &self.writing.outstanding;
        let batch = {
            let mut state = outstanding.lock();
            loop {
                match state.batches.get_mut(&number).map(Option::take) {
                    None => return,
                    Some(Some(batch)) => break batch,
                    // Another thread issues or finishes it.
                    Some(None) => outstanding.changed.wait(&mut state),
                }
            }
        };
        let guard = BatchGuard {
            outstanding,
            batch: number,
            members: batch.members,
        };
        let (topology, txg) = (batch.issued.topology(), batch.issued.txg());
        let (outcomes, place) = batch.issued.finish(&self.writing);
        let mut outcomes = outcomes.into_iter();
        let mut failed = vec![];
        for (block, count) in &guard.members {
            let own: Vec<ExtentOutcome> = outcomes.by_ref().take(*count).collect();
            let failures: Vec<String> = own.iter().filter_map(|o| o.failure.clone()).collect();
            if !failures.is_empty() {
                failed.push((*block, failures.join("; ")));
                continue;
            }
            for outcome in own {
                self.note_missed(&topology, &outcome.missed, txg);
            }
        }
        guard.over(failed);
        drop(place);
    }

    /// Waits for the batches that the devices have. Failed blocks stay failed.
    pub(crate) fn finish_batches(&self) {
        let outstanding = &self.writing.outstanding;
        if outstanding.is_empty() {
            return;
        }
        let last = outstanding.lock().batches.keys().next_back().copied();
        while let Some(last) = last {
            let oldest = outstanding.lock().batches.keys().next().copied();
            match oldest.filter(|oldest| *oldest <= last) {
                Some(batch) => self.finish_batch(batch),
                None => return,
            }
        }
    }

    /// Writes every outstanding block, and waits for the devices. A block that failed is written again in its place,
    /// up to two times.
    ///
    /// # Errors
    /// [`FlushError`] while a block cannot be written. It stays outstanding.
    pub(super) fn settle(&self) -> Result<(), FlushError> {
        let outstanding = &self.writing.outstanding;
        let mut retries = 0;
        while !outstanding.is_empty() {
            self.issue_held();
            self.finish_batches();
            let failed = outstanding.lock().first_failed();
            let Some((vdev, reason)) = failed else {
                continue;
            };
            if retries >= RETRIES_MAX {
                return Err(FlushError { vdev, reason });
            }
            retries += 1;
            mark::hit("outstanding-block-written-again");
            outstanding.lock().hold_failed();
        }
        Ok(())
    }

    /// Writes every outstanding block, and waits for the devices, so that it is known what each leaf missed. In retry mode the
    /// thread waits instead of returning an error. For changes of the leaves, and for what reads devices without asking
    /// which blocks are there.
    ///
    /// # Errors
    /// [`FlushError`] while a block cannot be written. It stays outstanding, and no flush succeeds.
    pub fn settle_outstanding(&self) -> Result<(), FlushError> {
        loop {
            let since = self.retries.resumes();
            match self.settle() {
                Err(error) if self.waits_to_write(since, &error) => {}
                outcome => return outcome,
            }
        }
    }

    /// Whether a block has a pointer and is not on the devices yet.
    #[must_use]
    pub fn has_outstanding(&self) -> bool {
        !self.writing.outstanding.is_empty()
    }

    /// Before a write to these places: nothing older is written there afterwards.
    pub(super) fn make_way(&self, topology: &Topology, txg: Txg, extents: &[Extent]) {
        let outstanding = &self.writing.outstanding;
        if outstanding.is_empty() {
            return;
        }
        for extent in extents {
            let (vdev, range) = place_of(topology, txg, extent);
            loop {
                let batch = {
                    let mut state = outstanding.lock();
                    let found = state.at(vdev, &range);
                    match found.map(|(number, block)| (number, block.stage.clone())) {
                        None => break,
                        Some((_, Stage::Issued(batch))) => batch,
                        Some((number, Stage::Held | Stage::Failed(_))) => {
                            mark::hit("outstanding-block-superseded");
                            outstanding.remove(&mut state, number);
                            continue;
                        }
                    }
                };
                mark::hit("write-waits-for-older-one");
                self.finish_batch(batch);
            }
        }
    }

    /// Before a read of a block from the devices: waits until they have it. Not for a block that could not be written.
    pub(crate) fn await_write(&self, pointer: &BlockPointer) {
        let outstanding = &self.writing.outstanding;
        if !outstanding.may_have(pointer) {
            return;
        }
        for dva in pointer.dvas() {
            loop {
                let stage = {
                    let state = outstanding.lock();
                    state.stage_at(dva.vdev, dva.offset_bytes).cloned()
                };
                match stage {
                    None | Some(Stage::Failed(_)) => break,
                    Some(Stage::Held) => self.issue_held(),
                    Some(Stage::Issued(batch)) => {
                        mark::hit("read-waits-for-write");
                        self.finish_batch(batch);
                    }
                }
            }
        }
    }

    /// Blocks that were born before this txg are on the devices.
    pub(crate) fn outstanding_since(&self) -> Txg {
        self.writing.outstanding.oldest()
    }

    /// Whether a block is not on the devices yet.
    pub(crate) fn is_outstanding(&self, pointer: &BlockPointer) -> bool {
        let outstanding = &self.writing.outstanding;
        outstanding.may_have(pointer) && {
            let state = outstanding.lock();
            let mut dvas = pointer.dvas();
            dvas.any(|dva| state.stage_at(dva.vdev, dva.offset_bytes).is_some())
        }
    }

    /// The content of an outstanding block.
    pub(crate) fn outstanding_content(
        &self,
        pointer: &BlockPointer,
        key: Option<&Arc<DatasetKey>>,
    ) -> Option<Arc<Block>> {
        let outstanding = &self.writing.outstanding;
        if !outstanding.may_have(pointer) || key.is_some() {
            return None;
        }
        let dva = pointer.dvas().next()?;
        let content = {
            let state = outstanding.lock();
            let range = dva.offset_bytes..dva.offset_bytes.saturating_add(1);
            let (_, block) = state.at(dva.vdev, &range)?;
            let content = block
                .content
                .as_ref()
                .filter(|_| block.pointer == *pointer)?;
            Arc::clone(content)
        };
        mark::hit("outstanding-block-read");
        Some(Arc::new(Block {
            bytes: content,
            endian: pointer.endian(),
            has_ciphertext: false,
        }))
    }
}
