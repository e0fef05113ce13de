//! The syncing context: the operations allowed while a txg is written.

use crate::history::append::HistoryEvent;
use crate::pool::Pool;
use crate::{FoundBlock, FoundBlockKind, PoolError};
use millpond_alloc::AllocError;
use millpond_block::BlockError;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use millpond_env::sync::{Arc, Mutex};
use millpond_object::{Leak, ObjectSet};
use millpond_ondisk::{BlockPointer, IntentLogHeader, Txg};
use millpond_txg::Transaction;
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};

/// A change of the space charged to an owner, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceChange {
    /// Deflated allocated bytes ("dsize").
    pub used: i64,
    /// Physical bytes, each block counted once.
    pub compressed: i64,
    /// Logical bytes, each block counted once; for metadata, the physical bytes.
    pub uncompressed: i64,
}

impl SpaceChange {
    /// Whether the change is zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// The space of a block whose deflated bytes are `used`.
    ///
    /// Page `docs/format/space-accounting.md`.
    #[must_use]
    pub fn of(pointer: &BlockPointer, used: u64) -> Self {
        if pointer.is_hole() {
            return Self::default();
        }
        let is_metadata = pointer.level().0 > 0 || pointer.object_type().is_metadata();
        if pointer.is_embedded() {
            let lsize = if is_metadata {
                0
            } else {
                pointer.lsize_bytes()
            };
            return Self {
                used: 0,
                compressed: 0,
                uncompressed: lsize as i64,
            };
        }
        let psize = pointer.psize_bytes();
        let lsize = if is_metadata {
            psize
        } else {
            pointer.lsize_bytes()
        };
        Self {
            used: used as i64,
            compressed: psize as i64,
            uncompressed: lsize as i64,
        }
    }
}

impl Add for SpaceChange {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            used: self.used.wrapping_add(other.used),
            compressed: self.compressed.wrapping_add(other.compressed),
            uncompressed: self.uncompressed.wrapping_add(other.uncompressed),
        }
    }
}
impl Neg for SpaceChange {
    type Output = Self;
    fn neg(self) -> Self {
        Self {
            used: self.used.wrapping_neg(),
            compressed: self.compressed.wrapping_neg(),
            uncompressed: self.uncompressed.wrapping_neg(),
        }
    }
}
impl Sub for SpaceChange {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self + -other
    }
}
impl AddAssign for SpaceChange {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}
impl SubAssign for SpaceChange {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

/// The sync state of one txg.
pub(crate) struct TxgSyncState {
    pub(crate) txg: Txg,
    pub(crate) pass: AtomicU32,
    pub(crate) tx: Transaction,
    /// Dead blocks that are freed or deferred after the MOS and before the space maps are written in this
    /// pass, each with the oldest txg whose state may contain it.
    pub(crate) dead: Mutex<Vec<(BlockPointer, Txg)>, rank::Leaf>,
    /// Blocks that got a further reference. They are entered into the clone tables before blocks are freed.
    pub(crate) cloned: Mutex<Vec<BlockPointer>, rank::Leaf>,
    /// Net change of the MOS size that `$MOS` has not been charged for yet.
    pub(crate) mos_change: Mutex<SpaceChange, rank::Leaf>,
    /// Blocks that could not be freed, to be recorded in the history.
    pub(crate) leaks: Mutex<Leaks, rank::Leaf>,
    /// Whether this txg wrote or freed anything.
    pub(crate) has_changes: AtomicBool,
}

impl TxgSyncState {
    /// The state before the first pass.
    pub(crate) fn new(txg: Txg, tx: Transaction) -> Self {
        Self {
            txg,
            pass: AtomicU32::new(1),
            tx,
            dead: Mutex::default(),
            cloned: Mutex::default(),
            mos_change: Mutex::default(),
            leaks: Mutex::default(),
            has_changes: AtomicBool::new(false),
        }
    }

    /// Whether blocks wait to be freed, to get a further reference or to be recorded as leaked.
    pub(crate) fn owes_blocks(&self) -> bool {
        !self.dead.lock().is_empty()
            || !self.cloned.lock().is_empty()
            || !self.leaks.lock().first.is_empty()
    }
}

/// The blocks leaked in one txg.
#[derive(Default)]
pub(crate) struct Leaks {
    /// The texts of the first leaks, recorded one by one.
    first: Vec<String>,
    /// The number of further leaks, and of their data blocks.
    more: (u64, u64),
}

/// The most leaks of one txg that are recorded one by one. Further leaks are only counted, since a forged
/// pool may have any number.
const LEAKS_REPORTED_MAX: usize = 16;

/// The name of leak events in the history.
const LEAK_EVENT: &str = "leak";

/// Permission to change the MOS while the sync thread writes one txg.
///
/// At most one thread holds it at any time: the sync thread itself or the caller whose sync task is
/// running.
pub struct SyncContext<'p> {
    pub(crate) pool: &'p Pool,
    pub(crate) sync_state: Arc<TxgSyncState>,
}

impl std::fmt::Debug for SyncContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SyncContext")
            .field("txg", &self.txg())
            .field("pass", &self.pass())
            .finish_non_exhaustive()
    }
}

impl SyncContext<'_> {
    /// The txg being written.
    #[must_use]
    pub fn txg(&self) -> Txg {
        self.sync_state.txg
    }
    /// The current sync pass, starting at 1.
    #[must_use]
    pub fn pass(&self) -> u32 {
        self.sync_state.pass.load(Ordering::Relaxed)
    }
    /// The transaction that changes of the MOS require.
    #[must_use]
    pub fn tx(&self) -> &Transaction {
        &self.sync_state.tx
    }
    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        self.pool
    }
    /// The meta object set.
    #[must_use]
    pub fn mos(&self) -> &Arc<ObjectSet> {
        &self.pool.mos
    }

    /// Frees a block that nothing references any more. Holes and embedded pointers own no space.
    ///
    /// The space of a block born before this txg is not reused until two more txgs have been written. In
    /// pass 2 and later, pools without log space maps put the block on `sync_bplist` and free it in the
    /// next txg.
    ///
    /// Of a deduplicated or cloned block it releases one reference.
    ///
    /// # Errors
    /// None at present.
    pub fn free_block(&self, pointer: &BlockPointer) -> Result<(), PoolError> {
        self.free_block_since(pointer, pointer.physical_birth())
    }

    /// Frees blocks that nothing references any more, like [`SyncContext::free_block`], but without
    /// remembering them until the end of the pass: for long lists, read part by part.
    ///
    /// # Errors
    /// If their space is already free.
    pub fn free_blocks_now(&self, pointers: &[BlockPointer]) -> Result<(), PoolError> {
        let owns_space = |pointer: &&BlockPointer| !pointer.is_hole() && !pointer.is_embedded();
        let dead = pointers.iter().filter(owns_space);
        let dead: Vec<(BlockPointer, Txg)> = dead
            .map(|pointer| (*pointer, pointer.physical_birth()))
            .collect();
        self.sync_state.has_changes.store(true, Ordering::Relaxed);
        // A block that was cloned just now has its reference entered first, and later passes may defer frees.
        if self.pass() > 1 || !self.sync_state.cloned.lock().is_empty() {
            self.sync_state.dead.lock().extend(dead);
            return Ok(());
        }
        self.pool.release_blocks(self, &[], &dead)
    }

    fn free_block_since(&self, pointer: &BlockPointer, since: Txg) -> Result<(), PoolError> {
        if pointer.is_hole() || pointer.is_embedded() {
            return Ok(());
        }
        self.push_dead_since(pointer, since);
        Ok(())
    }

    /// Frees a block of an intent log that was found when the pool was opened, or a block that a record of
    /// it points to. The log must be claimed, or the block known to the state that was opened. Of a cloned block it
    /// releases the reference that the claim added.
    ///
    /// A claimed block may be born in a later txg than the state that claimed it, so its birth does not tell
    /// which states contain it.
    ///
    /// # Errors
    /// As [`SyncContext::free_log_block`] or [`SyncContext::free_block`].
    pub fn free_found_block(
        &self,
        block: &FoundBlock,
        header: &IntentLogHeader,
    ) -> Result<(), PoolError> {
        let since = block.contained_since(header);
        match block.kind {
            FoundBlockKind::Chain => self.free_log_block_since(&block.pointer, since),
            FoundBlockKind::Written | FoundBlockKind::Cloned => {
                self.free_block_since(&block.pointer, since)
            }
        }
    }

    /// Frees a block of an intent log in use.
    ///
    /// Its space is not reused before this txg is committed, even if it was allocated in this txg, because
    /// the chain of the last committed header may include the block.
    ///
    /// # Errors
    /// If its space is already free.
    pub fn free_log_block(&self, pointer: &BlockPointer) -> Result<(), PoolError> {
        self.free_log_block_since(pointer, pointer.physical_birth())
    }

    fn free_log_block_since(&self, pointer: &BlockPointer, since: Txg) -> Result<(), PoolError> {
        self.sync_state.has_changes.store(true, Ordering::Relaxed);
        for dva in pointer.dvas() {
            self.pool.free_address(self.txg(), &dva, since, false)?;
        }
        Ok(())
    }

    /// Claims a block of an intent log, written after the last committed txg, by marking it allocated. Must
    /// run before any other allocation.
    ///
    /// For a gang block it claims every part. Returns whether the claim succeeded; on failure nothing of
    /// the block is claimed.
    ///
    /// # Errors
    /// If a space map cannot be read, or a gang header because devices are missing. A block without a good gang
    /// header is not claimed.
    pub fn claim(&self, pointer: &BlockPointer) -> Result<bool, PoolError> {
        self.sync_state.has_changes.store(true, Ordering::Relaxed);
        let dvas = match self.pool.all_addresses(pointer) {
            Err(PoolError::Block { error, .. }) if error.is_damage() => return Ok(false),
            dvas => dvas?,
        };
        for (count, dva) in dvas.iter().enumerate() {
            let claimed = self.pool.allocator.claim(self.txg(), dva);
            if let Err(error) = claimed {
                if !matches!(
                    error,
                    AllocError::Contradiction { .. } | AllocError::NoMetaslab { .. }
                ) {
                    return Err(error.into());
                }
                for dva in dvas.iter().take(count) {
                    self.pool
                        .allocator
                        .free(self.txg(), dva, self.txg(), true)?;
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The number of deflated bytes that a pointer charges.
    #[must_use]
    pub fn deflated_bytes(&self, pointer: &BlockPointer) -> u64 {
        self.pool.deflated_bytes(pointer)
    }
    /// The deflated, physical and logical bytes of a pointer.
    #[must_use]
    pub fn space_of(&self, pointer: &BlockPointer) -> SpaceChange {
        SpaceChange::of(pointer, self.deflated_bytes(pointer))
    }

    /// Records blocks that could not be freed. They stay allocated and charged to their dataset. The pool's
    /// history and its events report them.
    pub fn note_leak(&self, leak: Leak) {
        let Leak {
            address,
            blocks,
            reason,
        } = leak;
        self.record_leak(blocks, || {
            format!("{address}: {blocks} blocks below it could not be freed: {reason}")
        });
    }

    /// Records that what a place in a destroyed dataset leads to stays allocated.
    pub fn note_lost_tree(&self, place: &str, reason: &str) {
        self.record_leak(0, || {
            format!("{place}: what lies below it could not be freed: {reason}")
        });
    }

    /// Records that the pieces of a freed block stay allocated. Nothing is charged for them.
    pub(crate) fn note_lost_pieces(&self, pointer: &BlockPointer, error: &BlockError) {
        // The address in the error is not known here.
        let reason = match error {
            BlockError::Corrupt { copies, .. } => {
                let reasons: Vec<&str> = copies.iter().map(|copy| &*copy.reason).collect();
                format!("no good gang header: {}", reasons.join("; "))
            }
            BlockError::Invalid { error, .. } => error.to_string(),
            error => error.to_string(),
        };
        self.record_leak(1, || {
            let places: Vec<String> = pointer
                .dvas()
                .map(|dva| {
                    format!(
                        "<{}:{:x}:{:x}>",
                        dva.vdev, dva.offset_bytes, dva.asize_bytes
                    )
                })
                .collect();
            let kind = if pointer.is_gang() {
                "gang block"
            } else {
                "block"
            };
            let bytes = pointer.psize_bytes();
            let places = places.join(" ");
            format!("{kind} of {bytes} bytes at {places}: its pieces could not be freed: {reason}")
        });
    }

    fn record_leak(&self, blocks: u64, text: impl FnOnce() -> String) {
        let mut leaks = self.sync_state.leaks.lock();
        if leaks.first.len() < LEAKS_REPORTED_MAX {
            leaks.first.push(text());
        } else {
            leaks.more.0 += 1;
            leaks.more.1 = leaks.more.1.saturating_add(blocks);
        }
    }

    /// Writes the recorded leaks to the history.
    pub(crate) fn write_leaks(&self) -> Result<(), PoolError> {
        let leaks = std::mem::take(&mut *self.sync_state.leaks.lock());
        for text in leaks.first {
            self.history(&HistoryEvent::of_pool(LEAK_EVENT, text))?;
        }
        if leaks.more.0 > 0 {
            let (places, blocks) = leaks.more;
            let text = match blocks {
                0 => format!("what lies below {places} more places could not be freed"),
                blocks => format!("{blocks} blocks in {places} more places could not be freed"),
            };
            self.history(&HistoryEvent::of_pool(LEAK_EVENT, text))?;
        }
        Ok(())
    }

    pub(crate) fn push_dead(&self, pointer: &BlockPointer) {
        self.push_dead_since(pointer, pointer.physical_birth());
    }
    fn push_dead_since(&self, pointer: &BlockPointer, since: Txg) {
        self.sync_state.has_changes.store(true, Ordering::Relaxed);
        // Queue the block instead of freeing it now: gang headers must be read first.
        self.sync_state.dead.lock().push((*pointer, since));
    }

    /// Adds to the space that `$MOS` is charged for in this pass.
    pub(crate) fn account_mos(&self, change: SpaceChange) {
        *self.sync_state.mos_change.lock() += change;
    }

    /// Marks the configuration (vdevs, name, features required to read the MOS) dirty: this txg writes its
    /// object and the labels of all vdevs.
    pub fn mark_config_dirty(&self) {
        self.pool.mark_config_dirty();
    }
}
