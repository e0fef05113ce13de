//! A pool open for changes.

use super::config::PoolConfig;
use super::context::SyncContext;
use super::dtl::MissedTxgs;
use super::failure::{FailMode, FailureState, Suspension};
use super::features::FeatureCounts;
use super::history::NotedEvents;
use super::leaf_monitor::LeafWatch;
use super::port::DatasetPort;
use super::space::LiveSpaceMaps;
use super::tasks::TaskQueue;
use crate::error::Reading;
use crate::import::Assembly;
use crate::{Features, PoolError};
use millpond_alloc::{PoolAllocator, PoolFigures, PoolLimit, SlopShare};
use millpond_block::{BlockAddress, BlockStore};
use millpond_env::sync::atomic::AtomicBool;
use millpond_env::sync::{Arc, Mutex, RwLock};
use millpond_env::{Env, thread};
use millpond_object::LiveObjectSet;
use millpond_ondisk::{BlockPointer, Dva, Guid, ObjectId, Txg, Uberblock, VdevId};
use millpond_txg::{Transaction, TxgError, TxgGroups, TxgRequest};
use millpond_vdev::VdevConfig;
use std::collections::{BTreeMap, BTreeSet};

/// A pool open for changes: its devices, its free space, its meta object set, its transaction groups,
/// and the port to the datasets above.
///
/// Dropped without [`LivePool::export`] it leaves the devices as a crash would: at the last committed
/// txg.
pub struct LivePool {
    pub(crate) env: Env,
    pub(crate) store: Arc<BlockStore>,
    pub(crate) allocator: PoolAllocator,
    pub(crate) maps: LiveSpaceMaps,
    pub(crate) mos: Arc<LiveObjectSet>,
    pub(crate) groups: Arc<TxgGroups>,
    pub(crate) port: Arc<dyn DatasetPort>,
    /// Changed in syncing context only; read by anybody.
    pub(crate) state: RwLock<PoolState>,
    pub(crate) tasks: TaskQueue,
    pub(crate) failure: Arc<FailureState>,
    pub(crate) drive: Drive,
    /// The first txg that this opening writes.
    pub(crate) first_txg: Txg,
    /// Whether space is accounted with the vdevs' deflate ratios.
    pub(crate) is_deflated: bool,
    /// Held while a txg is written: one at a time.
    pub(crate) syncing: Mutex<()>,
    pub(crate) sync_thread: Mutex<Option<thread::JoinHandle<()>>>,
    pub(crate) is_exported: AtomicBool,
    pub(crate) load_guid: u64,
    pub(crate) noted: NotedEvents,
    pub(crate) leaf_watch: Mutex<LeafWatch>,
    /// Held by whoever takes leaves out of use, or into it, on somebody's order.
    pub(crate) leaf_orders: Mutex<()>,
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
    /// Name, host, vdev tree: what labels and the configuration object say.
    pub(crate) config: PoolConfig,
    /// Goes up with each change of `config`.
    pub(crate) config_generation: u64,
    /// The generation that the configuration object in the MOS has.
    pub(crate) config_written: u64,
    /// The generation that labels have.
    pub(crate) config_committed: u64,
    /// Whether the tree or what leaves missed is not in the store's topology yet.
    pub(crate) is_topology_stale: bool,
    /// The last committed uberblock.
    pub(crate) uberblock: Uberblock,
    /// No uberblock is older than this, in seconds: what was rewound must lose against what is
    /// written in its place.
    pub(crate) timestamp_floor_s: u64,
    pub(crate) features: FeatureCounts,
    /// Vdevs with the device of each leaf, for read-only views; made when first needed.
    pub(crate) assembly: Option<Assembly>,
    pub(crate) multihost: bool,
    pub(crate) failmode: FailMode,
    /// By leaf: the txgs that it missed.
    pub(crate) missed: BTreeMap<Guid, MissedTxgs>,
    /// Leaves with changes of their own, which are left alone.
    pub(crate) diverged: BTreeSet<Guid>,
    /// Leaves whose labels could not be written, as of the last commit.
    pub(crate) label_failures: BTreeSet<Guid>,
    /// Deflated bytes on `sync_bplist`.
    pub(crate) put_off_bytes: u64,
}

impl PoolState {
    /// Whether labels have to be written.
    pub(crate) fn is_config_dirty(&self) -> bool {
        self.config_generation != self.config_committed
    }
}

/// Everything that a [`LivePool`] is made from.
pub(crate) struct PoolParts {
    pub(crate) env: Env,
    pub(crate) store: Arc<BlockStore>,
    pub(crate) allocator: PoolAllocator,
    pub(crate) maps: LiveSpaceMaps,
    pub(crate) mos: Arc<LiveObjectSet>,
    pub(crate) groups: Arc<TxgGroups>,
    pub(crate) port: Arc<dyn DatasetPort>,
    pub(crate) state: PoolState,
    pub(crate) drive: Drive,
    pub(crate) is_deflated: bool,
    pub(crate) leaf_watch: LeafWatch,
}

impl std::fmt::Debug for LivePool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LivePool")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

impl LivePool {
    /// The pool, not yet driven.
    pub(crate) fn from_parts(parts: PoolParts) -> Arc<Self> {
        if parts.drive == Drive::Caller {
            parts.store.set_write_threads(1);
        }
        parts.store.set_repair(true);
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
            tasks: TaskQueue::default(),
            failure,
            drive: parts.drive,
            is_deflated: parts.is_deflated,
            syncing: Mutex::new(()),
            sync_thread: Mutex::new(None),
            is_exported: AtomicBool::new(false),
            noted: NotedEvents::default(),
            leaf_watch: Mutex::new(parts.leaf_watch),
            leaf_orders: Mutex::new(()),
        })
    }

    /// The name that it has in its labels.
    #[must_use]
    pub fn name(&self) -> String {
        self.state.read().config.name.clone()
    }
    /// Its identity.
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.state.read().config.guid
    }
    /// Version 1 to 28, or 5000 with feature flags.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.state.read().config.version
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
        self.failure.suspension().or_else(|| self.stall())
    }
    /// A device that the pool cannot do without does not answer: writing goes on as soon as it does.
    fn stall(&self) -> Option<Suspension> {
        let topology = self.store.topology();
        let (leaf, since) = topology.unanswered()?;
        let (name, since_s) = (topology.leaf_name(leaf), since.as_secs());
        Some(Suspension {
            txg: self.groups.open_txg(),
            reason: format!("{name} has not answered for {since_s} s"),
            can_resume: true,
        })
    }
    /// What front ends are to do while it is suspended.
    #[must_use]
    pub fn failmode(&self) -> FailMode {
        self.state.read().failmode
    }
    /// Goes on after devices failed and were put right: what could not be written is written now, nothing
    /// else is done again. What was written and not flushed before the devices failed is written again before the txg
    /// commits. Returns when the txg is committed; `Ok` also for a pool that is not suspended.
    ///
    /// # Errors
    /// [`PoolError::Suspended`] if the devices fail again (the pool is suspended as before), or if it was
    /// suspended for good ([`Suspension::can_resume`]).
    pub fn resume(&self) -> Result<(), PoolError> {
        self.failure.resume()?;
        // Nobody can make a device answer.
        match self.stall() {
            Some(Suspension { reason, .. }) => Err(PoolError::Suspended { reason }),
            None => Ok(()),
        }
    }

    /// From now on devices that fail are an error and no reason to wait: a pool that is suspended, or will
    /// be, is so for good, and whoever waits for it gets the error. For the end of a process, which
    /// nobody will resume. A pool that is well is not disturbed.
    pub fn stop_waiting(&self) {
        match self.suspension() {
            Some(_) => self.abandon(),
            None => self.failure.abandon(),
        }
    }

    /// Ends at once, as a crash would: what is not on stable storage is lost, whoever waits gets an error,
    /// and nothing can be changed any more. For suspended pools that nobody will resume.
    pub fn abandon(&self) {
        self.failure.abandon();
        self.groups.end_all();
        self.tasks.fail_all(&TxgError::Ended.into());
    }

    /// A copy of what it knows about its features.
    #[must_use]
    pub fn features(&self) -> Features {
        self.state.read().features.features().clone()
    }
    /// What labels and the configuration object say, as of the txg that is being written.
    #[must_use]
    pub fn config(&self) -> PoolConfig {
        self.state.read().config.clone()
    }
    /// Its free space.
    #[must_use]
    pub fn allocator(&self) -> &PoolAllocator {
        &self.allocator
    }

    /// Enters the open txg; waits while too much is dirty.
    ///
    /// # Errors
    /// [`PoolError::Suspended`].
    pub fn begin(&self, estimate_bytes: u64) -> Result<Transaction, PoolError> {
        self.begin_as(TxgRequest {
            estimate_bytes,
            ..TxgRequest::default()
        })
    }

    /// As [`LivePool::begin`], for a transaction that frees many blocks, or may not wait.
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
            return self.sync_with(run);
        }
        let entry = self.groups.begin(0)?;
        let ticket = self.tasks.enter(entry.txg());
        let txg = entry.txg();
        drop(entry);
        // Whoever suspends or closes the pool empties the queue afterwards; if that was before we
        // entered it, it is on us.
        if let Err(error) = self.failure.check() {
            self.tasks.fail_all(&error);
        } else if self.groups.has_ended() {
            self.tasks.fail_all(&TxgError::Ended.into());
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

    pub(crate) fn wait_synced(&self, txg: Txg) -> Result<(), PoolError> {
        self.groups.wait_synced(txg).map_err(|error| {
            // Why it failed says more than that it did.
            match self.failure.check() {
                Err(suspended) => suspended,
                Ok(()) => error.into(),
            }
        })
    }

    pub(crate) fn mark_config_dirty(&self) {
        self.state.write().config_generation += 1;
    }

    /// Changes a top-level vdev's configuration; labels and the configuration object follow.
    pub(crate) fn change_top(&self, vdev: VdevId, change: impl FnOnce(&mut VdevConfig)) {
        let mut state = self.state.write();
        let Some(top) = state.config.root.children.get_mut(vdev.0 as usize) else {
            return;
        };
        change(top);
        state.config_generation += 1;
        state.is_topology_stale = true;
    }
    /// Changes a leaf's configuration; labels and the configuration object follow.
    pub(crate) fn change_leaf(&self, leaf: Guid, change: impl FnOnce(&mut VdevConfig)) {
        let mut state = self.state.write();
        let Some(config) = find_leaf(&mut state.config.root, leaf) else {
            return;
        };
        change(config);
        state.config_generation += 1;
        state.is_topology_stale = true;
    }
    /// Looks at a leaf's configuration; `None` if the tree has no such leaf.
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

    /// Every address whose space belongs to a block: its own and, of gangs, those of all pieces.
    pub(crate) fn all_addresses(&self, pointer: &BlockPointer) -> Result<Vec<Dva>, PoolError> {
        self.store
            .extents(pointer, BlockAddress::default())
            .reading("dead block")
    }

    /// Brings tree and missed txgs of the state into the store's topology.
    pub(crate) fn refresh_topology(&self) -> Result<(), PoolError> {
        let mut state = self.state.write();
        if !state.is_topology_stale {
            return Ok(());
        }
        let PoolState { config, missed, .. } = &*state;
        let mut outcome = Ok(());
        // Under the lock of the topology: what leaves miss meanwhile is noted in the new one.
        self.store.change_topology(|topology| {
            let mut missed = missed.clone();
            for one in self.store.noted_missed() {
                let entry = missed.entry(one.guid).or_default();
                entry.add(one.txg.0..one.txg.0.saturating_add(1));
            }
            let added = super::topology::Added::default();
            match super::topology::renewed(topology, &config.root, &missed, &added) {
                Ok(new) => *topology = new,
                Err(error) => outcome = Err(error),
            }
        });
        outcome?;
        state.is_topology_stale = false;
        state.assembly = None;
        Ok(())
    }

    /// What a pointer charges, in deflated bytes.
    #[must_use]
    pub fn deflated_bytes(&self, pointer: &BlockPointer) -> u64 {
        let topology = self.store.topology();
        millpond_alloc::deflated_pointer_bytes(pointer, |vdev| {
            self.is_deflated
                .then(|| crate::space::ratio_of(&topology.tree, vdev))
        })
    }

    /// The pool's figures of space as of now; what was freed a short time ago counts as used until it
    /// may be used again.
    #[must_use]
    pub fn space(&self) -> PoolFigures {
        let mut figures = self.allocator.figures();
        figures.deferred_free_bytes = self.state.read().put_off_bytes;
        figures
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

impl Drop for LivePool {
    fn drop(&mut self) {
        // Whoever still holds the groups gets an answer, and the pool's threads end.
        self.groups.end_all();
        self.store.topology().monitor.end();
        self.store.end_ahead();
    }
}

/// Trees nest at most as deep as `VdevTree` allows.
fn find_leaf(vdev: &mut VdevConfig, guid: Guid) -> Option<&mut VdevConfig> {
    if vdev.children.is_empty() {
        return (vdev.guid == guid && vdev.kind.is_leaf()).then_some(vdev);
    }
    vdev.children
        .iter_mut()
        .find_map(|child| find_leaf(child, guid))
}
