//! Blocks that have a pointer and are not on the devices yet.
//!
//! A block goes through three stages. It is *held* in memory, until enough blocks are held for one large write or someone needs
//! it on the devices. It is *issued* with others, as a batch. If the batch could not write it, it has *failed*, and stays until
//! it is written. What the devices have taken is removed here.
//!
//! Space that is used again within a txg would let an older write land after a newer one. So who writes to a place asks
//! first what is outstanding there: a block that no device is writing yet is dropped, as nothing refers to it any more, and
//! one that is being written is waited for.
//!
//! Lock: one, held for look-ups and insertions, never across I/O.

use super::issue::Issued;
use super::place::Extent;
use crate::BlockAddress;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex, MutexGuard};
use millpond_ondisk::{BlockPointer, Txg, VdevId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The outstanding blocks of one store.
pub(crate) struct Outstanding {
    state: Mutex<State, rank::Leaf>,
    /// A batch was issued, or is over.
    pub(super) changed: Condvar,
    /// The oldest txg of a block, for a look without the lock; [`NONE`] if there is no block.
    oldest: AtomicU64,
    has_failed: AtomicBool,
}

/// No block is outstanding.
const NONE: u64 = u64::MAX;

impl Default for Outstanding {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            oldest: AtomicU64::new(NONE),
            has_failed: AtomicBool::new(false),
        }
    }
}

/// The locked part.
#[derive(Default)]
pub(super) struct State {
    last: u64,
    blocks: BTreeMap<u64, OutstandingBlock>,
    /// Start of each place, to its end and the number of its block. Places do not overlap.
    places: BTreeMap<(VdevId, u64), (u64, u64)>,
    held: BTreeSet<u64>,
    /// What the held blocks write, in bytes.
    pub(super) held_bytes: usize,
    /// What the blocks take in memory, in bytes.
    pub(super) bytes: usize,
    /// By number. `None` while a thread issues or finishes it.
    pub(super) batches: BTreeMap<u64, Option<IssuedBatch>>,
}

/// A batch that the devices write.
pub(super) struct IssuedBatch {
    pub(super) issued: Issued,
    /// The numbers of its blocks, and how many extents each has.
    pub(super) members: Vec<(u64, usize)>,
}

/// A batch that is about to be issued: its number, txg, members and extents.
pub(super) type BegunBatch = (u64, Txg, Vec<(u64, usize)>, Vec<Extent>);

/// A block that is not on the devices yet.
pub(super) struct OutstandingBlock {
    pub(super) address: BlockAddress,
    pub(super) pointer: BlockPointer,
    pub(super) txg: Txg,
    /// The content, if a reader may have it without a key.
    pub(super) content: Option<Arc<Vec<u8>>>,
    pub(super) extents: Vec<Extent>,
    /// The place of each extent.
    pub(super) places: Vec<(VdevId, Range<u64>)>,
    /// What it takes in memory, in bytes.
    pub(super) bytes: usize,
    pub(super) stage: Stage,
}

/// How far a block is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stage {
    Held,
    /// In the batch of this number.
    Issued(u64),
    /// For this reason.
    Failed(String),
}

impl OutstandingBlock {
    fn written_bytes(&self) -> usize {
        self.extents.iter().map(|extent| extent.range.len()).sum()
    }
}

impl Outstanding {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
    /// Whether there is none. A thread sees the blocks that it added itself, and those whose pointers it was given.
    pub(crate) fn is_empty(&self) -> bool {
        self.oldest.load(Ordering::SeqCst) == NONE
    }
    /// Blocks that were born before this txg are on the devices.
    pub(crate) fn oldest(&self) -> Txg {
        Txg(self.oldest.load(Ordering::SeqCst))
    }
    /// Whether a block may be outstanding.
    pub(super) fn may_have(&self, pointer: &BlockPointer) -> bool {
        pointer.physical_birth() >= self.oldest()
    }
    /// Whether a block could not be written, since the store is open.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }
    pub(super) fn note_failed(&self) {
        self.has_failed.store(true, Ordering::SeqCst);
    }
    /// Adds a held block. Nothing is outstanding at its places.
    pub(super) fn add(&self, state: &mut State, block: OutstandingBlock) {
        let number = state.next();
        for (vdev, range) in &block.places {
            state
                .places
                .insert((*vdev, range.start), (range.end, number));
        }
        state.bytes = state.bytes.saturating_add(block.bytes);
        state.held_bytes = state.held_bytes.saturating_add(block.written_bytes());
        state.held.insert(number);
        self.oldest.fetch_min(block.txg.0, Ordering::SeqCst);
        state.blocks.insert(number, block);
    }
    /// Removes a block that is written or dead.
    pub(super) fn remove(&self, state: &mut State, number: u64) {
        let Some(block) = state.blocks.remove(&number) else {
            return;
        };
        for (vdev, range) in &block.places {
            state.places.remove(&(*vdev, range.start));
        }
        state.bytes = state.bytes.saturating_sub(block.bytes);
        if state.held.remove(&number) {
            state.held_bytes = state.held_bytes.saturating_sub(block.written_bytes());
        }
        if state.blocks.is_empty() {
            self.oldest.store(NONE, Ordering::SeqCst);
        }
    }
}

impl State {
    fn next(&mut self) -> u64 {
        self.last = self.last.wrapping_add(1);
        self.last
    }

    /// A block at this place.
    pub(super) fn at(&self, vdev: VdevId, range: &Range<u64>) -> Option<(u64, &OutstandingBlock)> {
        let before = self.places.range((vdev, 0)..(vdev, range.end));
        let (_, (end, number)) = before.last()?;
        let block = self.blocks.get(number)?;
        (*end > range.start).then_some((*number, block))
    }

    /// The stage of the block at an address.
    pub(super) fn stage_at(&self, vdev: VdevId, offset_bytes: u64) -> Option<&Stage> {
        let range = offset_bytes..offset_bytes.saturating_add(1);
        self.at(vdev, &range).map(|(_, block)| &block.stage)
    }

    /// Makes a batch of the held blocks of one txg. `None` if none is held.
    pub(super) fn begin_batch(&mut self) -> Option<BegunBatch> {
        let first = self.held.first()?;
        let txg = self.blocks.get(first)?.txg;
        let batch = self.next();
        let (mut members, mut extents, mut kept) = (vec![], vec![], BTreeSet::new());
        for number in std::mem::take(&mut self.held) {
            let Some(block) = self.blocks.get_mut(&number) else {
                continue;
            };
            if block.txg != txg {
                kept.insert(number);
                continue;
            }
            block.stage = Stage::Issued(batch);
            self.held_bytes = self.held_bytes.saturating_sub(block.written_bytes());
            members.push((number, block.extents.len()));
            extents.extend(block.extents.iter().cloned());
        }
        self.held = kept;
        self.batches.insert(batch, None);
        Some((batch, txg, members, extents))
    }

    /// Notes that a block could not be written.
    pub(super) fn fail(&mut self, number: u64, reason: String) {
        if let Some(block) = self.blocks.get_mut(&number) {
            block.stage = Stage::Failed(reason);
        }
    }

    /// The vdev of a failed block, and what happened.
    pub(super) fn first_failed(&self) -> Option<(VdevId, String)> {
        self.blocks.values().find_map(|block| match &block.stage {
            Stage::Failed(reason) => {
                let vdev = block.places.first().map_or(VdevId(0), |(vdev, _)| *vdev);
                Some((vdev, format!("{}: {reason}", block.address)))
            }
            Stage::Held | Stage::Issued(_) => None,
        })
    }

    /// Holds failed blocks, so that they are written again.
    pub(super) fn hold_failed(&mut self) {
        for (number, block) in &mut self.blocks {
            if matches!(block.stage, Stage::Failed(_)) {
                block.stage = Stage::Held;
                self.held.insert(*number);
                self.held_bytes = self.held_bytes.saturating_add(block.written_bytes());
            }
        }
    }
}

/// A batch that the calling thread issues or finishes. If the thread panics, its blocks have failed, so that no other waits for
/// ever and nothing is committed.
pub(super) struct BatchGuard<'a> {
    pub(super) outstanding: &'a Outstanding,
    pub(super) batch: u64,
    pub(super) members: Vec<(u64, usize)>,
}

impl BatchGuard<'_> {
    /// Returns the batch, now that the devices have it.
    pub(super) fn issued(mut self, issued: Issued) {
        let members = std::mem::take(&mut self.members);
        let mut state = self.outstanding.lock();
        let batch = IssuedBatch { issued, members };
        state.batches.insert(self.batch, Some(batch));
        drop(state);
        self.outstanding.changed.notify_all();
        // There is nothing left to fail.
        std::mem::forget(self);
    }

    /// Ends the batch. `failed` are the blocks that were not written.
    pub(super) fn over(mut self, failed: Vec<(u64, String)>) {
        let members = std::mem::take(&mut self.members);
        let mut state = self.outstanding.lock();
        if !failed.is_empty() {
            self.outstanding.note_failed();
        }
        let mut failed: BTreeMap<u64, String> = failed.into_iter().collect();
        for (number, _) in members {
            match failed.remove(&number) {
                Some(reason) => state.fail(number, reason),
                None => self.outstanding.remove(&mut state, number),
            }
        }
    }
}

impl Drop for BatchGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.outstanding.lock();
        for (number, _) in &self.members {
            self.outstanding.note_failed();
            state.fail(*number, "the outcome of its write was lost".to_owned());
        }
        state.batches.remove(&self.batch);
        drop(state);
        self.outstanding.changed.notify_all();
    }
}
