//! A pool open for changes.

use crate::checkpoint::Checkpoint;
use crate::clones::{CloneTables, LogHolds};
use crate::config::PoolConfig;
use crate::dedup::DedupTables;
use crate::error::Reading;
use crate::failure::{FailMode, FailureState, Suspension, SuspensionCause};
use crate::features::counts::FeatureCounts;
use crate::history::append::NotedEvents;
use crate::import::Assembly;
use crate::multihost::Heartbeat;
use crate::pins::Pins;
use crate::port::DatasetPort;
use crate::removal::RemovalControl;
use crate::scan::ScanControl;
use crate::space::CloneTotals;
use crate::space::maps::SpaceMapObjects;
use crate::sync::context::SyncContext;
use crate::sync::tasks::{TaskQueue, TaskTime};
use crate::threads::PoolThreads;
use crate::vdevs::activity::ActivityControl;
use crate::vdevs::cache_devices::CacheFeed;
use crate::vdevs::dtl::{DirtyTimeLog, Refilled};
use crate::vdevs::leaf_monitor::LeafWatch;
use crate::vdevs::rebuild::RebuildControl;
use crate::vdevs::spares::Spares;
use crate::{Features, PoolError};
use millpond_alloc::PoolAllocator;
use millpond_block::{BlockAddress, BlockStore};
use millpond_device::WriteBehind;
use millpond_env::Env;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex, RwLock};
use millpond_object::{CachingCells, ObjectSet};
use millpond_ondisk::dedup::DedupStatistics;
use millpond_ondisk::{BlockPointer, Dva, Guid, ObjectId, Txg, Uberblock, VdevId};
use millpond_txg::{Transaction, TxgError, TxgGroups, TxgRequest};
use millpond_vdev::VdevConfig;
use std::collections::{BTreeMap, BTreeSet};

/// A pool open for changes: its devices, free space, meta object set and transaction groups, and the port
/// to the datasets above.
///
/// Dropping it without [`Pool::export`] has the effect of a crash: the devices stay at the last
/// committed txg.
pub struct Pool {
    pub(crate) env: Env,
    pub(crate) store: Arc<BlockStore>,
    pub(crate) allocator: PoolAllocator,
    pub(crate) maps: SpaceMapObjects,
    pub(crate) mos: Arc<ObjectSet>,
    pub(crate) groups: Arc<TxgGroups>,
    pub(crate) port: Arc<dyn DatasetPort>,
    /// Changed in syncing context only; readable at any time.
    pub(crate) state: RwLock<PoolState, rank::PoolState>,
    /// Changed in syncing context only.
    pub(crate) clones: Mutex<CloneTables, rank::Leaf>,
    /// Changed in syncing context only.
    pub(crate) log_holds: Mutex<LogHolds, rank::Leaf>,
    /// Changed in syncing context only.
    pub(crate) dedup: Mutex<DedupTables, rank::Leaf>,
    pub(crate) tasks: TaskQueue,
    /// Those that run before anything else of a txg.
    pub(crate) early_tasks: TaskQueue,
    /// Changed in syncing context only.
    pub(crate) checkpoint: Mutex<Checkpoint, rank::Leaf>,
    pub(crate) failure: Arc<FailureState>,
    pub(crate) sync_mode: SyncMode,
    /// The first txg written since the pool was opened.
    pub(crate) first_txg: Txg,
    /// Whether space accounting uses the vdevs' deflate ratios.
    pub(crate) is_deflated: AtomicBool,
    /// The running system as recorded in the history.
    pub(crate) system: String,
    /// Held by a caller that writes txgs in its own thread, from before it closes one until that is written. Two callers
    /// would be given the same one.
    pub(crate) driving: Mutex<(), rank::DrivenTxg>,
    /// Held while a txg is written, so that only one is written at a time.
    pub(crate) syncing: Mutex<(), rank::SyncedTxg>,
    pub(crate) threads: Arc<PoolThreads>,
    pub(crate) heartbeat: Arc<Heartbeat>,
    pub(crate) is_exported: AtomicBool,
    /// The txg of [`Pool::freeze`]; 0 if the pool is not frozen.
    pub(crate) frozen_at: AtomicU64,
    pub(crate) load_guid: u64,
    pub(crate) noted: NotedEvents,
    pub(crate) leaf_watch: Mutex<LeafWatch, rank::LeafMonitor>,
    /// Open views of committed states, whose blocks are not reused.
    pub(crate) pins: Arc<Pins>,
    /// Held while an administrator's request takes leaves offline or online.
    pub(crate) leaf_orders: Mutex<(), rank::LeafOrders>,
    pub(crate) caching_cells: Arc<CachingCells>,
    pub(crate) cache_feed: Arc<CacheFeed>,
    pub(crate) scan: ScanControl,
    pub(crate) activities: ActivityControl,
    pub(crate) rebuilds: RebuildControl,
    pub(crate) spares: Mutex<Spares, rank::PoolSpares>,
    /// Changed in syncing context only.
    pub(crate) removal: RemovalControl,
    /// Whether the last slice of an expansion could not read or write a row.
    pub(crate) has_expansion_failed: AtomicBool,
}

/// The sync mode: which thread writes txgs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SyncMode {
    /// The pool's own sync thread.
    #[default]
    Thread,
    /// The thread that calls [`Pool::sync_one`], [`Pool::sync`] or [`Pool::sync_task`]. For
    /// tests and the simulator, where the same input must produce the same bytes.
    Caller,
}

/// Pool-wide state as of the txg that is being written.
#[derive(Debug, Clone)]
pub(crate) struct PoolState {
    /// Name, host and vdev tree: the content of labels and the configuration object.
    pub(crate) config: PoolConfig,
    /// Incremented with each change of `config`.
    pub(crate) config_generation: u64,
    /// The generation stored in the configuration object of the MOS.
    pub(crate) config_written: u64,
    /// The generation stored in the labels.
    pub(crate) config_committed: u64,
    /// Whether the store's topology lacks changes of the tree or of the dirty time logs.
    pub(crate) is_topology_stale: bool,
    /// The last committed uberblock.
    pub(crate) uberblock: Uberblock,
    /// The one that is being written, or was last.
    pub(crate) committing: Option<Uberblock>,
    pub(crate) features: FeatureCounts,
    /// Vdevs with the device of each leaf, for read-only views. Built on first use.
    pub(crate) assembly: Option<Assembly>,
    pub(crate) multihost: bool,
    pub(crate) failmode: FailMode,
    /// By leaf: the txgs that it missed.
    pub(crate) missed: BTreeMap<Guid, DirtyTimeLog>,
    /// By leaf: what resilvers wrote to it since the pool was opened. Older copies of its device lack that.
    pub(crate) refilled: BTreeMap<Guid, Refilled>,
    /// Diverged leaves, which are not used.
    pub(crate) diverged: BTreeSet<Guid>,
    /// Leaves whose labels could not be written, as of the last commit.
    pub(crate) label_failures: BTreeSet<Guid>,
    /// Deflated bytes on `sync_bplist`.
    pub(crate) deferred_free_bytes: u64,
    /// The sums of the clone tables.
    pub(crate) clones: CloneTotals,
    /// The sums of the dedup tables.
    pub(crate) dedup: DedupStatistics,
}

impl PoolState {
    /// Whether the labels must be written.
    pub(crate) fn is_config_dirty(&self) -> bool {
        self.config_generation != self.config_committed
    }
}

/// The parts of which a [`Pool`] is built.
pub(crate) struct PoolParts {
    pub(crate) env: Env,
    pub(crate) store: Arc<BlockStore>,
    pub(crate) allocator: PoolAllocator,
    pub(crate) maps: SpaceMapObjects,
    pub(crate) mos: Arc<ObjectSet>,
    pub(crate) groups: Arc<TxgGroups>,
    pub(crate) port: Arc<dyn DatasetPort>,
    pub(crate) state: PoolState,
    pub(crate) clones: CloneTables,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) removal: RemovalControl,
    pub(crate) dedup: DedupTables,
    pub(crate) sync_mode: SyncMode,
    pub(crate) is_deflated: bool,
    pub(crate) system: String,
    pub(crate) leaf_watch: LeafWatch,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Builds the pool without starting its sync thread.
    pub(crate) fn from_parts(parts: PoolParts) -> Arc<Self> {
        (parts.store).set_write_behind(WriteBehind::from_environment());
        if parts.sync_mode == SyncMode::Caller {
            parts.store.set_write_threads(1);
        }
        parts.store.space_is_reusable(parts.state.uberblock.txg);
        parts.store.set_repair(true);
        // A quarter: these contents are no longer dirty, but take as much memory again.
        (parts.store).set_unflushed_bytes_max(parts.groups.limits().limit_bytes / 4);
        let groups = Arc::downgrade(&parts.groups);
        (parts.store)
            .set_dirty_gauge(move || groups.upgrade().map_or(0, |groups| groups.dirty_percent()));
        let mut load_guid = [0; 8];
        parts.env.entropy.fill(&mut load_guid);
        let failure = FailureState::new(Arc::clone(&parts.groups), parts.state.failmode);
        Arc::new(Self {
            load_guid: u64::from_le_bytes(load_guid),
            env: parts.env,
            store: parts.store,
            allocator: parts.allocator,
            maps: parts.maps,
            mos: parts.mos,
            first_txg: parts.groups.open_txg(),
            groups: parts.groups,
            port: parts.port,
            state: RwLock::new(parts.state),
            clones: Mutex::new(parts.clones),
            log_holds: Mutex::default(),
            dedup: Mutex::new(parts.dedup),
            tasks: TaskQueue::default(),
            early_tasks: TaskQueue::default(),
            checkpoint: Mutex::new(parts.checkpoint),
            removal: parts.removal,
            failure,
            sync_mode: parts.sync_mode,
            is_deflated: AtomicBool::new(parts.is_deflated),
            system: parts.system,
            driving: Mutex::new(()),
            syncing: Mutex::new(()),
            threads: Arc::default(),
            heartbeat: Arc::default(),
            is_exported: AtomicBool::new(false),
            frozen_at: AtomicU64::new(0),
            has_expansion_failed: AtomicBool::new(false),
            noted: NotedEvents::default(),
            leaf_watch: Mutex::new(parts.leaf_watch),
            pins: Arc::default(),
            scan: ScanControl::default(),
            activities: ActivityControl::default(),
            rebuilds: RebuildControl::default(),
            spares: Mutex::default(),
            leaf_orders: Mutex::new(()),
            caching_cells: Arc::default(),
            cache_feed: Arc::default(),
        })
    }

    /// The name in the pool's labels.
    #[must_use]
    pub fn name(&self) -> String {
        self.state.read().config.name.clone()
    }
    /// The pool's guid.
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.state.read().config.guid
    }
    /// The pool's version: 1 to 28, or 5000 with feature flags.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.state.read().config.version
    }
    /// The pool's clock and randomness.
    #[must_use]
    pub fn env(&self) -> &Env {
        &self.env
    }
    /// The store that reads and writes the pool's blocks.
    #[must_use]
    pub fn store(&self) -> &Arc<BlockStore> {
        &self.store
    }
    /// What the cache keeps of the datasets that are open for reading, in committed states of this pool.
    #[must_use]
    pub fn caching_cells(&self) -> &Arc<CachingCells> {
        &self.caching_cells
    }
    /// The meta object set. Changed in syncing context only.
    #[must_use]
    pub fn mos(&self) -> &Arc<ObjectSet> {
        &self.mos
    }
    /// The pool's transaction groups.
    #[must_use]
    pub fn groups(&self) -> &Arc<TxgGroups> {
        &self.groups
    }
    /// The uberblock of the last committed txg.
    #[must_use]
    pub fn uberblock(&self) -> Uberblock {
        self.state.read().uberblock
    }
    /// Why the pool is suspended; `None` if it is not.
    #[must_use]
    pub fn suspension(&self) -> Option<Suspension> {
        self.failure.suspension().or_else(|| self.stall())
    }
    /// A suspension because a required device does not answer. Writing continues as soon as it does.
    fn stall(&self) -> Option<Suspension> {
        let topology = self.store.topology();
        let (leaf, since) = topology.unanswered()?;
        let (name, since_s) = (topology.leaf_name(leaf), since.as_secs());
        Some(Suspension {
            txg: self.groups.open_txg(),
            reason: format!("{name} has not answered for {since_s} s"),
            can_resume: true,
            cause: SuspensionCause::Devices,
        })
    }
    /// The `failmode` that callers must follow while the pool is suspended.
    #[must_use]
    pub fn failmode(&self) -> FailMode {
        self.state.read().failmode
    }
    /// Resumes a suspended pool after failed devices were repaired, and returns when the pending txg is
    /// committed.
    ///
    /// Retries the failed writes and repeats no other work. Writes that were not flushed before the failure
    /// are written again before the txg commits. Returns `Ok` for a pool that is not suspended.
    ///
    /// # Errors
    /// [`PoolError::Suspended`] if the devices fail again (the pool stays suspended), or if the suspension
    /// is permanent ([`Suspension::can_resume`]).
    pub fn resume(&self) -> Result<(), PoolError> {
        self.failure.resume()?;
        // Resuming cannot make a device answer.
        match self.stall() {
            Some(Suspension { reason, .. }) => Err(PoolError::Suspended { reason }),
            None => Ok(()),
        }
    }

    /// From now on device failures are errors instead of reasons to wait.
    ///
    /// A current or later suspension becomes permanent, and waiting callers get the error. Use this at
    /// process exit, when no caller will resume the pool. It does not affect a pool that is not suspended.
    pub fn stop_waiting(&self) {
        match self.suspension() {
            Some(_) => self.abandon(),
            None => self.failure.abandon(),
        }
    }

    /// Stops the pool immediately, with the effect of a crash.
    ///
    /// Data that is not on stable storage is lost, waiting callers get an error, and the pool cannot be
    /// changed any more. For suspended pools that will not be resumed.
    pub fn abandon(&self) {
        self.scan.end();
        self.activities.end();
        self.failure.abandon();
        self.groups.end_all();
        self.fail_tasks(&TxgError::Ended.into());
    }

    /// A copy of the pool's feature state.
    #[must_use]
    pub fn features(&self) -> Features {
        self.state.read().features.features().clone()
    }
    /// Whether a feature is enabled, active or not.
    #[must_use]
    pub fn feature_is_enabled(&self, guid: &str) -> bool {
        self.state.read().features.is_enabled(guid)
    }
    /// The content of labels and the configuration object, as of the txg that is being written.
    #[must_use]
    pub fn config(&self) -> PoolConfig {
        self.state.read().config.clone()
    }
    /// The pool's space allocator.
    #[must_use]
    pub fn allocator(&self) -> &PoolAllocator {
        &self.allocator
    }

    /// Starts a transaction in the open txg. Waits while too much data is dirty.
    ///
    /// # Errors
    /// [`PoolError::Suspended`].
    pub fn begin(&self, estimate_bytes: u64) -> Result<Transaction, PoolError> {
        self.begin_as(TxgRequest {
            estimate_bytes,
            written_bytes: estimate_bytes,
            ..TxgRequest::default()
        })
    }

    /// Like [`Pool::begin`], for a transaction that frees many blocks or must not wait.
    ///
    /// # Errors
    /// As [`TxgGroups::begin_as`].
    pub fn begin_as(&self, request: TxgRequest) -> Result<Transaction, PoolError> {
        self.failure.check()?;
        if self.failure.refuses_when_stalled()
            && let Some(Suspension { reason, .. }) = self.stall()
        {
            return Err(PoolError::Suspended { reason });
        }
        Ok(self.groups.begin_as(request)?)
    }

    /// Runs a sync task, and returns when its txg is committed.
    ///
    /// A sync task changes the MOS inside a txg, after the txg's datasets are written. The closure runs in
    /// the calling thread while the sync thread waits.
    ///
    /// An `Err` of the closure means that the change may be incomplete: the pool suspends, and the txg is
    /// never committed. To refuse without changing anything, return `Ok` with a value that says so.
    ///
    /// # Errors
    /// The closure's error, or [`PoolError::Suspended`] if the txg could not be committed.
    pub fn sync_task<R>(
        &self,
        run: impl FnOnce(&SyncContext<'_>) -> Result<R, PoolError>,
    ) -> Result<R, PoolError> {
        self.run_task(TaskTime::AfterDatasets, run)
    }

    pub(crate) fn run_task<R>(
        &self,
        time: TaskTime,
        run: impl FnOnce(&SyncContext<'_>) -> Result<R, PoolError>,
    ) -> Result<R, PoolError> {
        self.failure.check()?;
        if self.sync_mode == SyncMode::Caller {
            return self.sync_with(time, run);
        }
        let tasks = match time {
            TaskTime::First => &self.early_tasks,
            TaskTime::AfterDatasets => &self.tasks,
        };
        let entry = self.groups.begin(0)?;
        let ticket = tasks.enter(entry.txg());
        let txg = entry.txg();
        drop(entry);
        // The thread that suspends or closes the pool empties the queue afterwards. If it did so before
        // this task was queued, empty the queue here.
        if let Err(error) = self.failure.check() {
            self.fail_tasks(&error);
        } else if self.groups.has_ended() {
            self.fail_tasks(&TxgError::Ended.into());
        }
        self.groups.ask(txg);
        let (value, txg) = ticket.run(self, run)?;
        self.wait_synced(txg)?;
        Ok(value)
    }

    /// Syncs the pool: all changes made before the call are then on stable storage. Returns the txg that
    /// contains them.
    ///
    /// # Errors
    /// [`PoolError::Suspended`].
    pub fn sync(&self) -> Result<Txg, PoolError> {
        self.failure.check()?;
        if self.sync_mode == SyncMode::Caller {
            return self.sync_one();
        }
        let txg = self.groups.open_txg();
        self.wait_synced(txg)?;
        Ok(txg)
    }

    /// Like [`Self::sync`], and writes labels and an uberblock even if nothing has changed.
    ///
    /// # Errors
    /// [`PoolError::Suspended`].
    pub fn sync_forced(&self) -> Result<Txg, PoolError> {
        self.mark_config_dirty();
        self.sync()
    }

    pub(crate) fn wait_synced(&self, txg: Txg) -> Result<(), PoolError> {
        self.groups.wait_synced(txg).map_err(|error| {
            // Prefer the reason for the suspension over the bare failure.
            match self.failure.check() {
                Err(suspended) => suspended,
                Ok(()) => error.into(),
            }
        })
    }

    pub(crate) fn mark_config_dirty(&self) {
        self.state.write().config_generation += 1;
    }

    /// Changes a top-level vdev's configuration. Labels and the configuration object are updated with the
    /// txg.
    pub(crate) fn change_top(&self, vdev: VdevId, change: impl FnOnce(&mut VdevConfig)) {
        let mut state = self.state.write();
        let Some(top) = state.config.root.children.get_mut(vdev.0 as usize) else {
            return;
        };
        change(top);
        state.config_generation += 1;
        state.is_topology_stale = true;
    }
    /// Changes a leaf's configuration. Labels and the configuration object are updated with the txg.
    pub(crate) fn change_leaf(&self, leaf: Guid, change: impl FnOnce(&mut VdevConfig)) {
        let mut state = self.state.write();
        let Some(config) = find_leaf(&mut state.config.root, leaf) else {
            return;
        };
        change(config);
        state.config_generation += 1;
        state.is_topology_stale = true;
    }
    /// Passes a leaf's configuration to `look`; `None` if the tree has no such leaf.
    pub(crate) fn leaf_config<R>(
        &self,
        leaf: Guid,
        look: impl FnOnce(&VdevConfig) -> R,
    ) -> Option<R> {
        let mut root = self.state.read().config.root.clone();
        find_leaf(&mut root, leaf).map(|config| look(config))
    }
    /// A top-level vdev's ZAP.
    pub(crate) fn top_zap(&self, vdev: VdevId) -> Option<ObjectId> {
        let state = self.state.read();
        let top = state.config.root.children.get(vdev.0 as usize)?;
        top.zap_top.and_then(ObjectId::some)
    }

    /// All addresses of a block: its own and, for gang blocks, those of all parts.
    pub(crate) fn all_addresses(&self, pointer: &BlockPointer) -> Result<Vec<Dva>, PoolError> {
        self.store
            .extents(pointer, BlockAddress::default())
            .reading("dead block")
    }

    /// Updates the store's topology with the tree and the missed txgs of the state.
    pub(crate) fn refresh_topology(&self) -> Result<(), PoolError> {
        let mut state = self.state.write();
        if !state.is_topology_stale {
            return Ok(());
        }
        let PoolState { config, missed, .. } = &*state;
        let mut outcome = Ok(());
        // Hold the topology's lock, so that the new topology records the txgs that leaves miss meanwhile.
        self.store.change_topology(|topology| {
            let mut missed = missed.clone();
            for one in self.store.noted_missed() {
                let entry = missed.entry(one.guid).or_default();
                entry.add(one.txg.0..one.txg.0.saturating_add(1));
            }
            let added = crate::vdevs::topology::Added::default();
            match crate::vdevs::topology::renewed(topology, &config.root, &missed, &added) {
                Ok(new) => *topology = new,
                Err(error) => outcome = Err(error),
            }
        });
        outcome?;
        state.is_topology_stale = false;
        state.assembly = None;
        Ok(())
    }

    /// The number of deflated bytes that a pointer charges.
    #[must_use]
    pub fn deflated_bytes(&self, pointer: &BlockPointer) -> u64 {
        let topology = self.store.topology();
        millpond_alloc::deflated_pointer_bytes(pointer, |vdev| {
            self.is_deflated
                .load(Ordering::Relaxed)
                .then(|| crate::space::ratio_of(&topology.tree, vdev))
        })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Wake threads that wait on the transaction groups, and end the pool's threads.
        self.groups.end_all();
        self.store.topology().monitor.end();
        self.heartbeat.end();
        self.scan.end();
        self.activities.end();
        self.cache_feed.end();
        self.store.stop_prefetch();
    }
}

/// Recursion depth is bounded by the depth limit of `VdevTree`.
fn find_leaf(vdev: &mut VdevConfig, guid: Guid) -> Option<&mut VdevConfig> {
    if vdev.children.is_empty() {
        return (vdev.guid == guid && vdev.kind.is_leaf()).then_some(vdev);
    }
    vdev.children
        .iter_mut()
        .find_map(|child| find_leaf(child, guid))
}
