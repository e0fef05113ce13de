//! What may be done while a txg is written, and by whom.

use super::history::HistoryEvent;
use super::pool::LivePool;
use crate::PoolError;
use millpond_alloc::AllocError;
use millpond_env::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use millpond_env::sync::{Arc, Mutex};
use millpond_object::{Leak, LiveObjectSet};
use millpond_ondisk::{BlockPointer, Txg};
use millpond_txg::Transaction;
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};

/// How much a change adds to (or takes from) what somebody is charged for, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceChange {
    /// Deflated allocated bytes ("dsize").
    pub used: i64,
    /// Physical bytes, each block once.
    pub compressed: i64,
    /// Logical bytes, each block once; of metadata the physical ones.
    pub uncompressed: i64,
}

impl SpaceChange {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// What a block counts for whose deflated bytes are `used`. Page
    /// `docs/format/space-accounting.md`.
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

/// The state of one txg while it is written.
pub(crate) struct Round {
    pub(crate) txg: Txg,
    pub(crate) pass: AtomicU32,
    pub(crate) tx: Transaction,
    /// Dead blocks that are freed, or put off, between the MOS and the space maps of this pass.
    pub(crate) dead: Mutex<Vec<BlockPointer>>,
    /// Births less deaths of the MOS that `$MOS` was not charged for yet.
    pub(crate) mos_change: Mutex<SpaceChange>,
    /// Blocks that could not be freed, for the history.
    pub(crate) leaks: Mutex<Leaks>,
    /// Whether anything was written or freed in this txg.
    pub(crate) has_changes: AtomicBool,
}

/// What leaked in one txg.
#[derive(Default)]
pub(crate) struct Leaks {
    /// The first of them.
    first: Vec<Leak>,
    /// How many more there were, and data blocks below those.
    more: (u64, u64),
}

/// More leaks of one txg than these are told of as a sum: a forged pool may have any number.
const LEAKS_TOLD_MAX: usize = 16;

/// The name under which leaks are in the history.
const LEAK_EVENT: &str = "leak";

/// The right to change the MOS, while the sync loop writes one txg. At any time one thread at most
/// holds one: the sync loop itself, or whoever's sync task has its turn.
pub struct SyncContext<'p> {
    pub(crate) pool: &'p LivePool,
    pub(crate) round: Arc<Round>,
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
    /// The txg that is being written.
    #[must_use]
    pub fn txg(&self) -> Txg {
        self.round.txg
    }
    /// Which pass over the dirty state, from 1.
    #[must_use]
    pub fn pass(&self) -> u32 {
        self.round.pass.load(Ordering::Relaxed)
    }
    /// The witness for changes of the MOS.
    #[must_use]
    pub fn tx(&self) -> &Transaction {
        &self.round.tx
    }
    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &LivePool {
        self.pool
    }
    /// The meta object set.
    #[must_use]
    pub fn mos(&self) -> &Arc<LiveObjectSet> {
        &self.pool.mos
    }

    /// Frees a block that nothing refers to any more. Holes and embedded pointers own no space.
    ///
    /// A block born before this txg stays untouched until two more txgs were written. In pass 2 and
    /// later of pools without log space maps the block goes on `sync_bplist` and is freed in the next
    /// txg.
    ///
    /// # Errors
    /// [`PoolError::Unsupported`] for a deduplicated block.
    pub fn free_block(&self, pointer: &BlockPointer) -> Result<(), PoolError> {
        if pointer.is_hole() || pointer.is_embedded() {
            return Ok(());
        }
        if pointer.is_dedup() {
            return Err(PoolError::Unsupported {
                what: "freeing deduplicated blocks",
            });
        }
        self.push_dead(pointer);
        Ok(())
    }

    /// Frees a block of an intent log. Even if it was allocated in this very txg its space is not used again
    /// before this txg is committed: the chain that the last committed header leads to may lead there.
    ///
    /// # Errors
    /// If its space is free already.
    pub fn free_log_block(&self, pointer: &BlockPointer) -> Result<(), PoolError> {
        self.round.has_changes.store(true, Ordering::Relaxed);
        for dva in pointer.dvas() {
            self.pool.allocator.free(self.txg(), &dva, false)?;
        }
        Ok(())
    }

    /// Marks a block allocated that was written after the last committed txg, and is found by an intent
    /// log: before anything else is allocated. Of gangs every piece. Whether it could be claimed; if not,
    /// nothing of it was.
    ///
    /// # Errors
    /// If a gang header or a space map cannot be read.
    pub fn claim(&self, pointer: &BlockPointer) -> Result<bool, PoolError> {
        self.round.has_changes.store(true, Ordering::Relaxed);
        let dvas = self.pool.all_addresses(pointer)?;
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
                    self.pool.allocator.free(self.txg(), dva, true)?;
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What a pointer charges, in deflated bytes.
    #[must_use]
    pub fn deflated_bytes(&self, pointer: &BlockPointer) -> u64 {
        self.pool.deflated_bytes(pointer)
    }
    /// What a pointer counts for in every sum: deflated, physical and logical bytes.
    #[must_use]
    pub fn space_of(&self, pointer: &BlockPointer) -> SpaceChange {
        SpaceChange::of(pointer, self.deflated_bytes(pointer))
    }

    /// Notes blocks that could not be freed: they stay allocated, and charged to their dataset. The
    /// history of the pool tells of them, and so do the events.
    pub fn note_leak(&self, leak: Leak) {
        let mut leaks = self.round.leaks.lock();
        if leaks.first.len() < LEAKS_TOLD_MAX {
            leaks.first.push(leak);
        } else {
            leaks.more.0 += 1;
            leaks.more.1 = leaks.more.1.saturating_add(leak.blocks);
        }
    }

    /// Writes what was noted into the history.
    pub(crate) fn write_leaks(&self) -> Result<(), PoolError> {
        let leaks = std::mem::take(&mut *self.round.leaks.lock());
        for leak in leaks.first {
            let Leak {
                address,
                blocks,
                reason,
            } = leak;
            let text = format!("{address}: {blocks} blocks below it could not be freed: {reason}");
            self.history(&HistoryEvent::of_pool(LEAK_EVENT, text))?;
        }
        if leaks.more.0 > 0 {
            let (places, blocks) = leaks.more;
            let text = format!("{blocks} blocks below {places} more blocks could not be freed");
            self.history(&HistoryEvent::of_pool(LEAK_EVENT, text))?;
        }
        Ok(())
    }

    pub(crate) fn push_dead(&self, pointer: &BlockPointer) {
        self.round.has_changes.store(true, Ordering::Relaxed);
        // Lists rather than calls to the allocator: gangs must be read first.
        self.round.dead.lock().push(*pointer);
    }

    /// Adds to what `$MOS` will be charged for in this pass.
    pub(crate) fn account_mos(&self, change: SpaceChange) {
        *self.round.mos_change.lock() += change;
    }

    /// The configuration (vdevs, name, features needed to read the MOS) changed: its object and the
    /// labels of all vdevs are written with this txg.
    pub fn mark_config_dirty(&self) {
        self.pool.mark_config_dirty();
    }
}
