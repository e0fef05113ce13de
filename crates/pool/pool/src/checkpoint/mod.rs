//! The pool's checkpoint: takes it, discards it, and keeps the blocks that only it refers to.
//!
//! Taking stores the last committed uberblock in the object directory, before anything else of the txg. From then
//! on a block that the checkpointed state contains stays allocated when it is freed; a space map per top-level vdev
//! records it. Discarding removes the uberblock. Then each txg frees some of the recorded ranges, from the end of
//! the maps, until none is left. A crash or export between continues there.
//!
//! Page `docs/format/checkpoint.md`.

mod maps;
mod rewind;

pub(crate) use rewind::rewound_uberblock;

use crate::history::append::HistoryEvent;
use crate::pool::Pool;
use crate::space::maps::SPACE_MAP_V2;
use crate::space::vdev_map::{VdevMap, holds_all_offsets};
use crate::sync::context::SyncContext;
use crate::{OpenError, PoolError, PoolView};
use millpond_alloc::{AllocError, MetaslabId, RangeSet};
use millpond_ondisk::pool_directory::{self, key, vdev_key};
use millpond_ondisk::{Dva, Txg, Uberblock, VdevId};
use std::collections::BTreeMap;

pub(crate) const FEATURE: &str = "com.delphix:zpool_checkpoint";
/// The name of events in the history.
const TAKEN: &str = "spa checkpoint";
const DISCARDED: &str = "spa discard checkpoint";

/// Why a request is refused on account of a checkpoint. The texts are those of `zpool`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointRefusal {
    /// The pool has one.
    #[error("checkpoint exists")]
    Exists,
    /// The pool has none.
    #[error("checkpoint does not exist")]
    Missing,
    /// It is being discarded.
    #[error("currently discarding checkpoint")]
    Discarding,
    /// A vdev is being removed.
    #[error("device removal in progress")]
    Removing,
    /// A RAID-Z vdev is being expanded.
    #[error("raidz expansion in progress")]
    Expanding,
    /// Space maps of a whole vdev cannot hold all offsets of one of the vdevs.
    #[error(
        "a device is too large for the space maps of this pool: run 'zpool set feature@spacemap_v2=enabled POOL' first"
    )]
    TooLarge,
    /// The feature is not enabled, or vdevs have no place to note the map.
    #[error("operation not supported on this type of pool")]
    Unsupported,
}

/// How far the checkpoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is none.
    None,
    /// The state of this txg is kept.
    Kept(Txg),
    /// Its space is freed in txgs after this one.
    Discarding(Txg),
}

/// The checkpoint of a pool that is open for changes.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    phase: Phase,
    /// The maps of what it alone keeps allocated.
    maps: BTreeMap<VdevId, VdevMap>,
    /// What was freed in the txg that is being written, and is in no map yet.
    freed: BTreeMap<MetaslabId, RangeSet>,
    /// Whether a map cannot be read: discarding stops until the pool is opened again.
    is_stuck: bool,
    /// The most ranges that one txg frees.
    ranges_at_once: usize,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            phase: Phase::None,
            maps: BTreeMap::new(),
            freed: BTreeMap::new(),
            is_stuck: false,
            ranges_at_once: maps::RANGES_AT_ONCE,
        }
    }
}

impl Checkpoint {
    /// The checkpoint that a pool has when it is opened.
    pub(crate) fn load(read: &PoolView) -> Result<Self, PoolError> {
        let phase = match read.checkpoint() {
            Ok(Some(uberblock)) => Phase::Kept(uberblock.txg),
            Ok(None) if read.features().is_active(FEATURE) => Phase::Discarding(Txg(0)),
            Ok(None) => Phase::None,
            Err(OpenError::State { error, .. }) => return Err(error),
            Err(other) => {
                let reason = other.to_string();
                return Err(PoolError::Suspended { reason });
            }
        };
        let mut maps = BTreeMap::new();
        if phase != Phase::None {
            let topology = read.store().topology();
            for (id, node) in topology.tree.tops() {
                let map = VdevMap::load(read, node, vdev_key::CHECKPOINT_SPACE_MAP)?;
                maps.extend(map.map(|map| (id, map)));
            }
        }
        Ok(Self {
            phase,
            maps,
            ..Self::default()
        })
    }
}

impl Pool {
    /// Why changes of the vdev tree are refused on account of a checkpoint, if they are.
    #[must_use]
    pub fn checkpoint_refusal(&self) -> Option<CheckpointRefusal> {
        match self.checkpoint.lock().phase {
            Phase::None => None,
            Phase::Kept(_) => Some(CheckpointRefusal::Exists),
            Phase::Discarding(_) => Some(CheckpointRefusal::Discarding),
        }
    }

    /// The bytes that only the checkpoint keeps allocated.
    pub(crate) fn checkpoint_bytes(&self) -> u64 {
        let checkpoint = self.checkpoint.lock();
        // The maps have frees only.
        let kept = |map: &VdevMap| u64::try_from(map.allocated_bytes.saturating_neg()).unwrap_or(0);
        let bytes = checkpoint.maps.values().map(kept);
        bytes.fold(0, u64::saturating_add)
    }

    /// Whether the next txg frees more of what a checkpoint kept.
    #[must_use]
    pub fn has_more_to_discard(&self) -> bool {
        let checkpoint = self.checkpoint.lock();
        matches!(checkpoint.phase, Phase::Discarding(_)) && !checkpoint.is_stuck
    }

    /// For tests: each txg frees at most this many ranges of a discarded checkpoint.
    pub fn set_discarded_at_once(&self, ranges: usize) {
        self.checkpoint.lock().ranges_at_once = ranges.max(1);
    }

    /// Takes a checkpoint: the state that was committed when this was called, with everything that this call synced.
    ///
    /// # Errors
    /// [`PoolError::Checkpoint`] if there is one or the pool cannot have one; as [`Pool::sync_task`].
    pub fn take_checkpoint(&self) -> Result<(), PoolError> {
        self.sync()?;
        self.early_sync_task(|ctx| ctx.take_checkpoint())?
            .map_err(PoolError::Checkpoint)
    }

    /// Begins to discard the checkpoint. Its space is freed in the following txgs.
    ///
    /// # Errors
    /// [`PoolError::Checkpoint`] if there is none; as [`Pool::sync_task`].
    pub fn discard_checkpoint(&self) -> Result<(), PoolError> {
        self.early_sync_task(|ctx| ctx.discard_checkpoint())?
            .map_err(PoolError::Checkpoint)
    }

    /// Frees an address of a block in `txg`, which is being synced, as [`millpond_alloc::PoolAllocator::free`] does.
    /// If the checkpointed state contains the block, its space stays allocated. States before `since` do not contain
    /// it.
    pub(crate) fn free_or_keep(
        &self,
        txg: Txg,
        dva: &Dva,
        since: Txg,
        is_unreferenced: bool,
    ) -> Result<(), PoolError> {
        let is_kept = match self.checkpoint.lock().phase {
            Phase::Kept(kept) => since <= kept && kept < txg,
            Phase::None | Phase::Discarding(_) => false,
        };
        if !is_kept {
            return Ok(self.allocator.free(txg, dva, since, is_unreferenced)?);
        }
        let (metaslab, range) = self.allocator.kept(txg, dva)?;
        let mut checkpoint = self.checkpoint.lock();
        let freed = checkpoint.freed.entry(metaslab).or_default();
        let added = freed.add(range);
        added.map_err(|conflict| AllocError::Contradiction { metaslab, conflict })?;
        Ok(())
    }
}

type Taken = Result<Result<(), CheckpointRefusal>, PoolError>;

impl SyncContext<'_> {
    /// The outer error suspends the pool; the inner error means that nothing changed.
    fn take_checkpoint(&self) -> Taken {
        let pool = self.pool;
        if let Some(refusal) = pool.checkpoint_refusal() {
            return Ok(Err(refusal));
        }
        if pool.removal.removing_vdev().is_some() {
            return Ok(Err(CheckpointRefusal::Removing));
        }
        if pool.store.topology().tree.expanding().is_some() {
            return Ok(Err(CheckpointRefusal::Expanding));
        }
        let vdevs = pool.maps.geometries();
        let has_places = vdevs.keys().all(|vdev| pool.top_zap(*vdev).is_some());
        if !self.feature_is_enabled(FEATURE) || !has_places {
            return Ok(Err(CheckpointRefusal::Unsupported));
        }
        let has_two_words = self.feature_count(SPACE_MAP_V2) > 0;
        if !vdevs
            .values()
            .all(|vdev| holds_all_offsets(vdev, has_two_words))
        {
            return Ok(Err(CheckpointRefusal::TooLarge));
        }
        let last = pool.uberblock();
        let kept = Uberblock {
            checkpoint_txg: last.txg,
            ..last
        };
        let words = pool_directory::checkpoint_words(&kept);
        self.set_directory_words(key::CHECKPOINT, &words)?;
        self.feature_increment(FEATURE)?;
        pool.checkpoint.lock().phase = Phase::Kept(last.txg);
        let text = format!("checkpointed uberblock txg={}", last.txg);
        self.history(&HistoryEvent::of_pool(TAKEN, text))?;
        Ok(Ok(()))
    }

    /// As [`SyncContext::take_checkpoint`].
    fn discard_checkpoint(&self) -> Taken {
        let pool = self.pool;
        match pool.checkpoint_refusal() {
            Some(CheckpointRefusal::Exists) => {}
            refusal => return Ok(Err(refusal.unwrap_or(CheckpointRefusal::Missing))),
        }
        self.remove_directory_entry(key::CHECKPOINT)?;
        pool.checkpoint.lock().phase = Phase::Discarding(self.txg());
        let text = "started discarding checkpointed state from the pool";
        self.history(&HistoryEvent::of_pool(DISCARDED, text))?;
        Ok(Ok(()))
    }
}
