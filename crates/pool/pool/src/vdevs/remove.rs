//! Removes hot spares and cache devices (`zpool remove`). They hold nothing that the pool needs.

use crate::history::append::HistoryEvent;
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use crate::{CheckpointRefusal, PoolError};
use millpond_ondisk::Guid;
use millpond_ondisk::pool_directory::key;
use millpond_vdev::{VdevConfig, VdevType};

/// Why a device cannot be removed. The texts are those of `zpool remove`.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RemoveError {
    /// The pool has a checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointRefusal),
    /// The pool has no such spare or cache device.
    #[error("no such device in pool")]
    NoSuchDevice,
    /// The spare stands in for a device, or something on the log vdev does not leave it.
    #[error("Pool busy; removal may already be in progress")]
    InUse,
    /// A distributed spare belongs to its dRAID vdev.
    #[error("dRAID spares cannot be removed")]
    DistributedSpare,
    /// It is no log vdev, or only a part of one.
    #[error("operation not supported on this type of pool")]
    Unsupported,
    /// Pools of its version cannot lose log vdevs.
    #[error("pool must be upgraded to support log removal")]
    OldPool,
    /// The other vdevs have too little space for its data, or the pool would be too small.
    #[error("out of space")]
    OutOfSpace,
    /// The pool has a RAID-Z or dRAID vdev, or sectors of different sizes.
    #[error("invalid config; all top-level vdevs must have the same sector size and not be raidz.")]
    Layout,
    /// Space maps of a whole vdev cannot hold all of its offsets.
    #[error(
        "the device is too large for the space maps of this pool: run 'zpool set feature@spacemap_v2=enabled POOL' first"
    )]
    TooLarge,
    /// The vdev is being removed already.
    #[error("removal for this vdev is already in progress.")]
    AlreadyRemoving,
    /// No removal is under way.
    #[error("operation is not in progress")]
    NotRemoving,
    /// Intent logs wait to be replayed.
    #[error("Mount encrypted datasets to replay logs.")]
    LockedLogs,
    /// The pool could not be changed.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

impl Pool {
    /// Takes a hot spare or cache device out of the pool's list, and returns its configuration. The caller then clears
    /// the labels of the device.
    ///
    /// # Errors
    /// [`RemoveError`]. Except after [`RemoveError::Pool`], nothing has changed.
    pub fn remove_auxiliary(&self, device: Guid) -> Result<VdevConfig, RemoveError> {
        let removed = self.sync_task(|ctx| ctx.remove_auxiliary(device))??;
        self.stop_cache_device(device);
        self.spares.lock().forget(device);
        Ok(removed)
    }
}

impl SyncContext<'_> {
    /// The outer error suspends the pool; the inner error means that nothing changed.
    fn remove_auxiliary(&self, device: Guid) -> Result<Result<VdevConfig, RemoveError>, PoolError> {
        if let Some(refusal) = self.pool.checkpoint_refusal() {
            return Ok(Err(refusal.into()));
        }
        let topology = self.pool.store.topology();
        if topology.tree.find_leaf(device).is_some() {
            return Ok(Err(RemoveError::InUse));
        }
        for (key, kind) in [(key::SPARES, "spare"), (key::L2CACHE, "cache")] {
            let mut all = self.device_list(key)?;
            let Some(at) = all.iter().position(|vdev| vdev.guid == device) else {
                continue;
            };
            let removed = all.remove(at);
            if removed.kind == VdevType::DraidSpare {
                return Ok(Err(RemoveError::DistributedSpare));
            }
            self.write_device_list(key, &all)?;
            let (pool, path) = (self.pool.name(), removed.path.clone().unwrap_or_default());
            let text = format!("{pool} vdev ({kind}) {path}");
            self.history(&HistoryEvent::of_pool("vdev remove", text))?;
            return Ok(Ok(removed));
        }
        Ok(Err(RemoveError::NoSuchDevice))
    }
}
