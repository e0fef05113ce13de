//! The interface that the pool requires of the dataset layer above it.

use crate::pool::Pool;
use crate::sync::context::{SpaceChange, SyncContext};
use crate::{PoolError, PoolView};
use millpond_env::sync::Arc;
use millpond_ondisk::{PoolVersion, VdevId};
use std::collections::BTreeMap;

/// The datasets of a pool, as used by its sync thread. The dataset layer implements this trait.
pub trait DatasetPort: Send + Sync {
    /// Creates the initial datasets of a new pool: root directory, `$MOS`, `$FREE`, `$ORIGIN`, root
    /// dataset.
    ///
    /// Called in the pool's first txg, once its object directory and features exist.
    ///
    /// # Errors
    /// If the MOS cannot be changed.
    fn create_root(
        &self,
        ctx: &SyncContext<'_>,
        root_properties: &BTreeMap<String, String>,
    ) -> Result<(), PoolError>;

    /// Checks whether the pool may be opened for writing, before anything is written.
    ///
    /// # Errors
    /// The reason against it.
    fn check_writable(&self, committed: &Arc<PoolView>) -> Result<(), PoolError> {
        let _ = committed;
        Ok(())
    }

    /// Called when the pool is open or has just been created. Not in syncing context; sync tasks can be
    /// started.
    ///
    /// # Errors
    /// If the datasets cannot be used.
    fn attach(&self, pool: &Arc<Pool>) -> Result<(), PoolError>;

    /// Claims the blocks of intent logs ([`SyncContext::claim`]). Called in the first txg after opening,
    /// before any allocation.
    ///
    /// # Errors
    /// If a log cannot be claimed.
    fn claim_logs(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let _ = ctx;
        Ok(())
    }

    /// Called after a feature was enabled. Open datasets must use the new write policy from now on.
    ///
    /// # Errors
    /// If the MOS cannot be read.
    fn feature_enabled(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let _ = ctx;
        Ok(())
    }

    /// Brings the datasets into the form of the pool's version, which was just raised from `from`. Part of
    /// the txg that raises it.
    ///
    /// # Errors
    /// If the MOS cannot be read or changed.
    fn raise(&self, ctx: &SyncContext<'_>, from: PoolVersion) -> Result<(), PoolError> {
        let _ = (ctx, from);
        Ok(())
    }

    /// Frees intent logs that no thread uses just now. Called before the pool is exported, and while a log vdev is
    /// emptied, each time in a separate txg.
    ///
    /// # Errors
    /// If something cannot be changed; the pool then suspends.
    fn end_logs(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let _ = ctx;
        Ok(())
    }

    /// Whether intent logs wait to be replayed, because the keys of their datasets are not loaded.
    fn has_locked_logs(&self) -> bool {
        false
    }

    /// Whether an intent log that is in use has blocks on a vdev.
    fn logs_use(&self, vdev: VdevId) -> bool {
        let _ = vdev;
        false
    }

    /// Writes all records of intent logs that are only in memory. Not in syncing context.
    ///
    /// # Errors
    /// If the pool is suspended.
    fn write_logs(&self) -> Result<(), PoolError> {
        Ok(())
    }

    /// Writes the dirty data of the datasets, with deadlists and accounting. Returns whether anything was
    /// written.
    ///
    /// Called in pass 1, and in pass 2 for changes made by sync tasks.
    ///
    /// # Errors
    /// If something cannot be written; the pool then suspends.
    fn sync_datasets(&self, ctx: &SyncContext<'_>) -> Result<bool, PoolError>;

    /// Frees in the background for a limited time. Called in pass 1, after sync tasks.
    ///
    /// # Errors
    /// If something cannot be read or written; the pool then suspends.
    fn background(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError>;

    /// Charges `$MOS` for MOS blocks born and freed since the last call.
    ///
    /// # Errors
    /// If the MOS cannot be changed.
    fn charge_mos(&self, ctx: &SyncContext<'_>, change: SpaceChange) -> Result<(), PoolError>;

    /// Called when the txg's counts of space are final, before callers that wait for the txg continue.
    fn counted(&self, pool: &Pool) {
        let _ = pool;
    }

    /// Called when the txg is on stable storage; in a frozen pool, when its blocks are.
    fn committed(&self, txg: millpond_ondisk::Txg) {
        let _ = txg;
    }
}
