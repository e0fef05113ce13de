//! What the pool needs of the datasets above it.

use super::context::{SpaceChange, SyncContext};
use super::pool::LivePool;
use crate::{Pool, PoolError};
use millpond_env::sync::Arc;
use std::collections::BTreeMap;

/// The datasets of a pool, as its sync loop sees them. Implemented one layer up.
pub trait DatasetPort: Send + Sync {
    /// Makes the datasets' skeleton of a new pool: root directory, `$MOS`, `$FREE`, `$ORIGIN`, root
    /// dataset. In the pool's first txg, once its object directory and features exist.
    ///
    /// # Errors
    /// If the MOS cannot be changed.
    fn create_root(
        &self,
        ctx: &SyncContext<'_>,
        root_properties: &BTreeMap<String, String>,
    ) -> Result<(), PoolError>;

    /// May refuse to have the pool opened for writing, before anything was written.
    ///
    /// # Errors
    /// Why not.
    fn may_write(&self, committed: &Arc<Pool>) -> Result<(), PoolError> {
        let _ = committed;
        Ok(())
    }

    /// The pool is open (or just made). Not in syncing context; sync tasks can be started.
    ///
    /// # Errors
    /// If the datasets cannot be used.
    fn attach(&self, pool: &Arc<LivePool>) -> Result<(), PoolError>;

    /// In the first txg after opening, before anything is allocated: takes the space of intent logs
    /// ([`SyncContext::claim`]).
    ///
    /// # Errors
    /// If a log cannot be claimed.
    fn claim_logs(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let _ = ctx;
        Ok(())
    }

    /// A feature was enabled: what is open is written as it allows from now on.
    ///
    /// # Errors
    /// If the MOS cannot be read.
    fn feature_enabled(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let _ = ctx;
        Ok(())
    }

    /// Before the pool is exported, in a txg of its own: lets go of intent logs, of which nothing is needed any more.
    ///
    /// # Errors
    /// If something cannot be changed; the pool suspends.
    fn leaving(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let _ = ctx;
        Ok(())
    }

    /// Writes what is dirty in the datasets, with deadlists and accounting. In pass 1, and in pass 2
    /// for what sync tasks made. Returns whether anything was written.
    ///
    /// # Errors
    /// If something cannot be written; the pool suspends.
    fn sync_datasets(&self, ctx: &SyncContext<'_>) -> Result<bool, PoolError>;

    /// In pass 1, after sync tasks: frees in the background for a slice of time.
    ///
    /// # Errors
    /// If something cannot be read or written; the pool suspends.
    fn background(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError>;

    /// Charges `$MOS` for blocks of the MOS born and dead since the last call.
    ///
    /// # Errors
    /// If the MOS cannot be changed.
    fn charge_mos(&self, ctx: &SyncContext<'_>, change: SpaceChange) -> Result<(), PoolError>;

    /// The txg is on stable storage.
    fn committed(&self, txg: millpond_ondisk::Txg) {
        let _ = txg;
    }
}
