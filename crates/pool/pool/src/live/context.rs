//! What may be done while a txg is written, and by whom.

use super::pool::LivePool;
use crate::PoolError;
use millpond_alloc::AllocError;
use millpond_env::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use millpond_env::sync::{Arc, Mutex};
use millpond_object::LiveObjectSet;
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
    /// Whether anything was written or freed in this txg.
    pub(crate) has_changes: AtomicBool,
}

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
