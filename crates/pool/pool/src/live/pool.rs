//! A pool open for changes.

use super::context::SyncContext;
use super::failure::{FailMode, FailureState, Suspension};
use super::port::DatasetPort;
use super::tasks::TaskQueue;
use crate::import::PoolCandidate;
use crate::{Features, OpenError, OpenOptions, Pool, PoolError};
use millpond_alloc::{PoolFigures, PoolLimit, SlopShare};
use millpond_block::BlockStore;
use millpond_env::Env;
use millpond_env::sync::{Arc, RwLock};
use millpond_object::LiveObjectSet;
use millpond_ondisk::{BlockPointer, Guid, Txg, Uberblock};
use millpond_txg::{Transaction, TxgGroups};

/// A pool open for changes: its devices, its free space, its meta object set, its transaction groups,
/// and the port to the datasets above.
///
/// Dropped without [`LivePool::export`] it leaves the devices as a crash would: at the last committed
/// txg.
pub struct LivePool {
    pub(crate) env: Env,
    pub(crate) store: Arc<BlockStore>,
    pub(crate) mos: Arc<LiveObjectSet>,
    pub(crate) groups: Arc<TxgGroups>,
    /// Changed in syncing context only; read by anybody.
    pub(crate) state: RwLock<PoolState>,
    pub(crate) tasks: TaskQueue,
    pub(crate) failure: FailureState,
    pub(crate) drive: Drive,
}

/// Who writes txgs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Drive {
    /// A thread of the pool's own.
    #[default]
    Thread,
    /// Whoever calls [`LivePool::sync_one`], [`LivePool::sync`] or [`LivePool::sync_task`], in the
    /// calling thread: for tests and the simulator, where the same input must give the same bytes.
    Caller,
}

/// What a pool knows about itself, as of the txg that is being written.
#[derive(Debug, Clone)]
pub(crate) struct PoolState {
    pub(crate) name: String,
    pub(crate) guid: Guid,
    pub(crate) uberblock: Uberblock,
    pub(crate) features: Features,
    pub(crate) failmode: FailMode,
    pub(crate) is_config_dirty: bool,
}

impl std::fmt::Debug for LivePool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LivePool")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

impl LivePool {
    /// Opens a pool for changes.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(
        env: &Env,
        candidate: &PoolCandidate,
        options: &OpenOptions,
        drive: Drive,
        port: Arc<dyn DatasetPort>,
    ) -> Result<Arc<Self>, OpenError> {
        let _ = (env, candidate, options, drive, port);
        Err(OpenError::State {
            txg: Txg(0),
            error: PoolError::NotReady,
        })
    }
    /// The name that it has in its labels.
    #[must_use]
    pub fn name(&self) -> String {
        self.state.read().name.clone()
    }
    /// Its identity.
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.state.read().guid
    }
    /// Version 1 to 28, or 5000 with feature flags.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.state.read().uberblock.version
    }
    /// Clock and randomness.
    #[must_use]
    pub fn env(&self) -> &Env {
        &self.env
    }
    /// Where its blocks are read and written.
    #[must_use]
    pub fn store(&self) -> &Arc<BlockStore> {
        &self.store
    }
    /// Its meta object set. Changed in syncing context only.
    #[must_use]
    pub fn mos(&self) -> &Arc<LiveObjectSet> {
        &self.mos
    }
    /// Its transaction groups.
    #[must_use]
    pub fn groups(&self) -> &Arc<TxgGroups> {
        &self.groups
    }
    /// The uberblock of the last committed txg.
    #[must_use]
    pub fn uberblock(&self) -> Uberblock {
        self.state.read().uberblock
    }
    /// Why it is suspended; `None` while all is well.
    #[must_use]
    pub fn suspension(&self) -> Option<Suspension> {
        self.failure.suspension()
    }
    /// What front ends are to do while it is suspended.
    #[must_use]
    pub fn failmode(&self) -> FailMode {
        self.state.read().failmode
    }
    /// A copy of what it knows about its features.
    #[must_use]
    pub fn features(&self) -> Features {
        self.state.read().features.clone()
    }

    /// Enters the open txg; waits while too much is dirty.
    ///
    /// # Errors
    /// [`PoolError::Suspended`].
    pub fn begin(&self, estimate_bytes: u64) -> Result<Transaction, PoolError> {
        self.failure.check()?;
        Ok(self.groups.begin(estimate_bytes)?)
    }

    /// Runs a change of the MOS inside a txg, after the txg's datasets were written, and returns when
    /// that txg is committed. The closure runs in the calling thread while the sync loop waits.
    ///
    /// An `Err` of the closure says that the change may be half made: the pool suspends, the txg is
    /// never committed. A refusal that changed nothing is an `Ok` whose value says so.
    ///
    /// # Errors
    /// That of the closure; [`PoolError::Suspended`] if the txg could not be committed.
    pub fn sync_task<R>(
        &self,
        run: impl FnOnce(&SyncContext<'_>) -> Result<R, PoolError>,
    ) -> Result<R, PoolError> {
        self.failure.check()?;
        if self.drive == Drive::Caller {
            return Err(PoolError::NotReady);
        }
        let entry = self.groups.begin(0)?;
        let ticket = self.tasks.enter(entry.txg());
        let txg = entry.txg();
        drop(entry);
        if let Err(error) = self.failure.check() {
            self.tasks.fail_all(&error);
        }
        self.groups.ask(txg);
        let (value, txg) = ticket.run(self, run)?;
        self.wait_synced(txg)?;
        Ok(value)
    }

    /// Puts everything that happened before the call on stable storage. Returns the txg that holds it.
    ///
    /// # Errors
    /// [`PoolError::Suspended`].
    pub fn sync(&self) -> Result<Txg, PoolError> {
        self.failure.check()?;
        if self.drive == Drive::Caller {
            return self.sync_one();
        }
        let txg = self.groups.open_txg();
        self.wait_synced(txg)?;
        Ok(txg)
    }

    /// Closes the open txg and writes it, in the calling thread. For pools driven by their callers.
    ///
    /// # Errors
    /// [`PoolError::Suspended`], with what went wrong.
    pub fn sync_one(&self) -> Result<Txg, PoolError> {
        Err(PoolError::NotReady)
    }

    pub(crate) fn wait_synced(&self, txg: Txg) -> Result<(), PoolError> {
        self.groups.wait_synced(txg).map_err(|error| {
            // Why it failed says more than that it did.
            match self.failure.check() {
                Err(suspended) => suspended,
                Ok(()) => error.into(),
            }
        })
    }

    /// A read-only pool of the last committed state, over the same devices and cache.
    ///
    /// # Errors
    /// If that state cannot be read.
    pub fn committed(&self) -> Result<Arc<Pool>, PoolError> {
        Err(PoolError::NotReady)
    }

    /// Writes everything, marks the pool as exported and stops. The pool cannot be used afterwards.
    ///
    /// # Errors
    /// [`PoolError::Suspended`].
    pub fn export(self: Arc<Self>) -> Result<(), PoolError> {
        Err(PoolError::NotReady)
    }

    pub(crate) fn mark_config_dirty(&self) {
        self.state.write().is_config_dirty = true;
    }

    /// What a pointer charges, in deflated bytes.
    #[must_use]
    pub fn deflated_bytes(&self, pointer: &BlockPointer) -> u64 {
        let _ = pointer;
        0
    }

    /// The pool's figures of space as of now; what was freed a short time ago counts as used until it
    /// may be used again.
    #[must_use]
    pub fn space(&self) -> PoolFigures {
        PoolFigures::default()
    }

    /// What datasets may use in all, under which requests of this kind are admitted. Page
    /// `docs/format/space-accounting.md`.
    #[must_use]
    pub fn limit(&self, share: SlopShare) -> PoolLimit {
        self.space().limit(share)
    }

    /// The most bytes that `logical_bytes` of changes can take: three copies, RAID-Z and gangs.
    #[must_use]
    pub fn worst_case_bytes(&self, logical_bytes: u64) -> u64 {
        let topology = self.store.topology();
        let shifts = topology.tree.tops().map(|(_, top)| top.ashift.0);
        logical_bytes
            .max(1 << shifts.max().unwrap_or(9).min(16))
            .saturating_mul(24)
    }
}
