//! Opens a pool for changes, reads its committed state, and exports it.
//!
//! Opening for changes first opens the pool for reading, which validates uberblocks, devices and features.
//! Then it checks whether the pool may be written to, and loads free space from space maps and logs. The
//! first txg rewrites all labels, so that other programs see a pool in use.
//!
//! Pages `docs/format/import.md`, `docs/format/commit-order.md`.

use crate::checkpoint::{Checkpoint, rewound_uberblock};
use crate::clones::CloneTables;
use crate::config::PoolConfig;
use crate::dedup::DedupTables;
use crate::error::Reading;
use crate::failure::FailMode;
use crate::features::counts::FeatureCounts;
use crate::history::append::Opening;
use crate::import::{
    ActivitySettings, Assembly, LeafState, PoolCandidate, Trust, assemble, scan_devices,
};
use crate::import_notes::ImportNotes;
use crate::labels::{self, CommitError};
use crate::multihost::WatchedPool;
use crate::object_directory::ObjectDirectory;
use crate::pins::TxgPin;
use crate::pool::{Pool, PoolParts, PoolState, SyncMode};
use crate::port::DatasetPort;
use crate::properties::PropertyValue;
use crate::removal::RemovalControl;
use crate::space::maps::{self, SpaceMapObjects};
use crate::space::store::geometry_of;
use crate::vdevs::activity::PATIENCE;
use crate::vdevs::dtl::missed_txgs;
use crate::vdevs::leaf_monitor::LeafWatch;
use crate::vdevs::leaf_states::judge;
use crate::vdevs::split::{SplitHalf, log_vdevs, space_objects};
use crate::writability::{WritabilityError, check_writable};
use crate::{Features, OpenError, OpenOptions, PoolError, PoolView};
use millpond_alloc::{PoolAllocator, UnflushedLogs, VdevGeometry};
use millpond_block::{RequestDeadline, Topology};
use millpond_device::Candidate;
use millpond_env::Env;
use millpond_env::sync::atomic::Ordering;
use millpond_env::sync::{Arc, OnceLock};
use millpond_object::{ObjectSet, ObjectSetView, WritePolicy};
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{Txg, Uberblock, VdevId};
use millpond_txg::{DirtyLimits, TxgError, TxgGroups};
use millpond_vdev::{Health, LeafHealth, VdevKind};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Options for opening a pool for changes, in addition to those for reading.
#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    /// The host id for labels, 0 for none.
    pub hostid: u64,
    /// Whether an administrator has set the host id, which `multihost` demands.
    pub is_hostid_set: bool,
    /// The host name for labels.
    pub hostname: Option<String>,
    /// The running system as recorded in the history: node, release, version, machine. If set, the history
    /// records the opening; otherwise it records nothing.
    pub system: Option<String>,
    /// The sync mode: which thread writes txgs.
    pub sync_mode: SyncMode,
    /// Limits on dirty data.
    pub limits: DirtyLimits,
    /// Whether the program calls [`Pool::resume`] after device failures. The property `failmode` then
    /// decides what happens meanwhile. Otherwise a failed txg suspends the pool permanently, and all
    /// callers get the error. Only for pools with their own sync thread.
    pub can_be_resumed: bool,
    /// The name that devices and the pool store, if the pool has a temporary name while it is open.
    pub stored_name: Option<String>,
    /// What to do with intent logs that were not replayed.
    pub found_logs: crate::logs::FoundLogs,
    /// uid and gid that own the root directories of new file systems.
    pub owner: (u32, u32),
    /// How long a device may take to answer before the pool continues without it, if redundancy allows. A
    /// pool in caller-driven sync mode waits for devices without limit.
    pub deadline: RequestDeadline,
    /// That the pool was watched already ([`PoolCandidate::watch_activity`]). Otherwise opening watches it, if another system
    /// with `multihost` may have it.
    pub watched: Option<WatchedPool>,
    /// Gets the steps of opening.
    pub notes: ImportNotes,
}

/// How often a view is opened again that expires meanwhile.
const VIEW_TRIES: u32 = 4;

impl Pool {
    /// Opens a pool for changes. Its first txg is committed when this returns, and the labels then show
    /// that the pool is in use.
    ///
    /// The devices of `candidate` must be open for writing and locked.
    ///
    /// A rewind is committed by the uberblock that opening writes, before anything else is written: it gets a txg after
    /// those that are given up.
    ///
    /// # Errors
    /// [`OpenError::ReadOnly`] if the write path does not support something in the pool; otherwise as for
    /// [`PoolView::open`]. In these cases nothing is written. If the first txg fails, [`OpenError::State`].
    pub fn open(
        env: &Env,
        candidate: &PoolCandidate,
        options: &OpenOptions,
        writing: &WriteOptions,
        port: Arc<dyn DatasetPort>,
    ) -> Result<Arc<Self>, OpenError> {
        Self::open_as(env, candidate, options, writing, port, None)
    }

    /// Opens the sides that were split from a pool as a new pool, named as the candidate. Its first txg, with a new
    /// guid, is committed when this returns.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub fn open_split(
        env: &Env,
        candidate: &PoolCandidate,
        options: &OpenOptions,
        writing: &WriteOptions,
        port: Arc<dyn DatasetPort>,
        half: &SplitHalf,
    ) -> Result<Arc<Self>, OpenError> {
        Self::open_as(env, candidate, options, writing, port, Some(half))
    }

    fn open_as(
        env: &Env,
        candidate: &PoolCandidate,
        options: &OpenOptions,
        writing: &WriteOptions,
        port: Arc<dyn DatasetPort>,
        half: Option<&SplitHalf>,
    ) -> Result<Arc<Self>, OpenError> {
        let options = OpenOptions {
            // Opening reads blocks too, and in caller-driven mode it must be deterministic.
            prefetch: options.prefetch && writing.sync_mode == SyncMode::Thread,
            deadline: match writing.sync_mode {
                SyncMode::Thread => writing.deadline,
                SyncMode::Caller => RequestDeadline(None),
            },
            // The first txg could not write the labels of such a vdev, after it wrote blocks and labels of others.
            allow_missing_tops: false,
            ..options.clone()
        };
        let copies = candidate.undecided_copies();
        if !copies.is_empty() {
            return Err(OpenError::Copies { copies });
        }
        let activity = ActivitySettings::of(env, writing.hostid, writing.is_hostid_set);
        candidate.check_activity(env, activity, writing.watched.as_ref())?;
        writing.notes.note("Loading the configuration");
        let rewound = |found: &PoolView| rewound_uberblock(found, candidate, &options);
        let read = PoolView::open_as(env, candidate, &options, rewound)?;
        let txg = read.uberblock().txg;
        let at = |error| OpenError::State { txg, error };
        check_writable(&read).map_err(|error| match error {
            WritabilityError::ReadOnly(why) => OpenError::ReadOnly(why),
            WritabilityError::Pool(error) => at(error),
        })?;
        port.check_writable(&read).map_err(at)?;
        writing.notes.note("Loading space maps and tables");
        let dropped = half.map_or_else(BTreeSet::new, |_| log_vdevs(&read));
        let parts = parts(env, &read, candidate, writing, port, &dropped).map_err(at)?;
        let pool = Self::from_parts(parts);
        pool.load_scan(&read).map_err(at)?;
        pool.load_activities(&read);
        pool.load_rebuilds(&read);
        let half = match half {
            Some(half) => {
                let objects = space_objects(&read, &dropped).map_err(at)?;
                let left = pool.become_split(half).map_err(at)?;
                Some((left.with_objects(objects), &half.from))
            }
            None => None,
        };
        writing.notes.note("Claiming the pool");
        pool.claim_from_others(candidate, activity)?;
        pool.restore_end_labels(&candidate.leaves_without_end_labels());
        pool.finish_scratch_copy().map_err(at)?;
        pool.write_opened_uberblock().map_err(at)?;
        // The first txg claims the intent logs, which takes time. Others who watch meanwhile must see that the pool is in use.
        pool.keep_heartbeat();
        pool.start().map_err(at)?;
        writing.notes.note("Claiming intent logs");
        pool.port.attach(&pool).map_err(at)?;
        pool.complete_vdev_zaps().map_err(at)?;
        if let Some((left, from)) = half {
            let finished = pool.sync_task(|ctx| ctx.finish_split(&left, from));
            finished.map_err(at)?;
        }
        if options.at_checkpoint {
            let noted = pool.sync_task(|ctx| ctx.note_rewind(read.uberblock().checkpoint_txg));
            noted.map_err(at)?;
        }
        writing.notes.note("Writing the first txg");
        match &writing.system {
            Some(system) => pool.record_opening(Opening::Open, system).map_err(at)?,
            None => {
                pool.sync().map_err(at)?;
            }
        }
        pool.wait_for_devices(writing);
        pool.grow_if_automatic();
        tracing::debug!(pool = %pool.name(), txg = txg.0, "open for writing");
        Ok(pool)
    }

    /// Rewrites the uberblock that the pool was opened at, and flushes it.
    ///
    /// After an earlier failed flush the uberblock that was read may exist only in the system's page cache.
    /// The disks then hold an older txg, and the first txg would overwrite space that the older txg still
    /// needs.
    fn write_opened_uberblock(&self) -> Result<(), PoolError> {
        let topology = self.store.topology();
        let (uberblock, multihost) = {
            let state = self.state.read();
            (state.uberblock, state.multihost)
        };
        let tops = labels::all_tops(&topology);
        let round =
            labels::write_uberblock(&topology, &uberblock, &tops, multihost, self.write_order());
        match labels::is_committed(&topology, &tops, &round) {
            true => Ok(()),
            false => Err(CommitError::NoUberblock.into()),
        }
    }

    pub(crate) fn wait_for_devices(self: &Arc<Self>, writing: &WriteOptions) {
        if writing.can_be_resumed && self.sync_mode == SyncMode::Thread {
            self.failure.wait_for_devices(self);
        }
    }

    /// Opens a view of the last committed state, on the same devices and cache.
    ///
    /// Blocks that the view refers to are not reused while it is open, for at most an hour, unless the pool
    /// needs the space or too many freed ranges are held back. The view has then expired, and reading it may
    /// fail. It never returns wrong data, except of blocks written with `checksum=off`.
    /// [`PoolView::check_not_expired`] tells the two kinds of failure apart.
    ///
    /// # Errors
    /// [`PoolError::ViewExpired`] if the view expired each time while it was opened; if that state cannot be
    /// read.
    pub fn committed(&self) -> Result<Arc<PoolView>, PoolError> {
        let mut tries_left = VIEW_TRIES;
        loop {
            let uberblock = self.uberblock();
            let (txg, now_ns) = (uberblock.txg, self.env.clock.monotonic_ns());
            // Not possible if a newer txg was committed meanwhile.
            let Some(pin) = self.pins.pin(txg, now_ns) else {
                continue;
            };
            self.allocator.set_pinned(&self.pins.txgs());
            let expiry = pin.expiry();
            let view = self.view_of(uberblock, pin, tries_left > 1);
            match view {
                Ok(Some(view)) => return Ok(view),
                Err(error) if !expiry.has_expired() => return Err(error),
                _ => {}
            }
            tries_left -= 1;
            if tries_left == 0 {
                return Err(PoolError::ViewExpired { txg });
            }
        }
    }

    /// `None` if newer labels were written meanwhile, and `may_retry`.
    fn view_of(
        &self,
        uberblock: Uberblock,
        pin: TxgPin,
        may_retry: bool,
    ) -> Result<Option<Arc<PoolView>>, PoolError> {
        let store = Arc::new(self.store.view(pin.expiry()));
        let mos = ObjectSetView::open(Arc::clone(&store), 0, uberblock.root, None)
            .reading("pool metadata")?;
        let directory = ObjectDirectory::open(&mos)?;
        let config = directory.config()?;
        let features = directory.features(uberblock.version)?;
        let spares = directory.auxiliaries(key::SPARES)?;
        let caches = directory.auxiliaries(key::L2CACHE)?;
        let Some(mut assembly) = self.assembly(&config, uberblock.txg, may_retry)? else {
            return Ok(None);
        };
        judge(&store.topology(), &mut assembly, uberblock.txg);
        Ok(Some(Arc::new(PoolView {
            env: self.env.clone(),
            name: self.name(),
            store,
            mos,
            directory,
            config,
            uberblock,
            features,
            assembly,
            spares,
            caches,
            load_guid: self.load_guid,
            pin: Some(pin),
            space: OnceLock::new(),
            caching_cells: Arc::clone(&self.caching_cells),
        })))
    }

    /// The vdevs with the devices of their leaves. Cached until the tree changes.
    ///
    /// The labels that it reads are those of the last txg. If that is not `txg`, its tree may be another one than that of
    /// `config`: then the outcome is `None` if `may_retry`, and else it is not cached.
    fn assembly(
        &self,
        config: &millpond_nvlist::NvList,
        txg: Txg,
        may_retry: bool,
    ) -> Result<Option<Assembly>, PoolError> {
        if let Some(assembly) = &self.state.read().assembly {
            return Ok(Some(assembly.clone()));
        }
        // Labels must not change while they are read. A suspended pool does not change its labels.
        let _one = loop {
            let lock = self.syncing.try_lock_for(Duration::from_millis(100));
            if lock.is_some() || self.suspension().is_some() {
                break lock;
            }
        };
        let is_current = self.uberblock().txg == txg;
        if !is_current && may_retry {
            return Ok(None);
        }
        // A copy of its own, as views keep it: see `BlockStore::uses_former_topology`.
        let topology = Arc::new(Topology::clone(&self.store.topology()));
        let candidates = topology
            .tree
            .leaves()
            .filter(|(leaf, _)| topology.condition(*leaf).is_usable())
            .filter_map(|(leaf, node)| {
                let device = topology.tried_device(leaf)?;
                let path = node.config.path.clone().unwrap_or_default();
                Some(Candidate {
                    path: path.into(),
                    aliases: vec![],
                    partition: None,
                    device,
                    is_live: false,
                })
            })
            .collect();
        let candidates: Vec<Candidate> = candidates;
        let count = candidates.len();
        let found = scan_devices(candidates);
        let invalid = |error: crate::import::ConfigError| PoolError::Suspended {
            reason: error.to_string(),
        };
        let assembly = assemble(config, &found, Trust::Trusted { txg }).map_err(invalid)?;
        // Do not cache if a device did not answer: it may answer next time.
        if is_current && found.leaves().len() == count {
            self.state.write().assembly = Some(assembly.clone());
        }
        Ok(Some(assembly))
    }

    /// Writes all changes, marks the pool as exported and stops it. A frozen pool is left as after a crash.
    ///
    /// Callers must finish their changes first. Afterwards no handle can change the pool.
    ///
    /// # Errors
    /// [`PoolError::Suspended`]; the devices are then in the same state as after a crash.
    pub fn export(&self) -> Result<(), PoolError> {
        self.leave(LeafState::Exported)
    }

    /// Like [`Pool::export`], but the labels mark the pool as destroyed. Its data stays on the devices.
    ///
    /// # Errors
    /// As [`Pool::export`].
    pub fn destroy(&self) -> Result<(), PoolError> {
        self.leave(LeafState::Destroyed)
    }

    fn leave(&self, as_what: LeafState) -> Result<(), PoolError> {
        if let Some(suspension) = self.suspension() {
            // Waiting here would never end.
            return Err(PoolError::Suspended {
                reason: suspension.reason,
            });
        }
        if self.is_frozen() {
            return self.leave_frozen(as_what);
        }
        // Nobody may write to the devices when the labels say that they are free.
        let _pause = self.activities.pause(PATIENCE)?;
        self.sync()?;
        self.sync_task(|ctx| ctx.pool.port.end_logs(ctx))?;
        self.allocator.flush_all_in_next_txg();
        self.sync_task(|ctx| {
            ctx.pool.state.write().config.state = as_what;
            ctx.mark_config_dirty();
            Ok(())
        })?;
        self.is_exported.store(true, Ordering::Relaxed);
        self.end_threads();
        tracing::debug!(pool = %self.name(), state = ?as_what, "closed");
        Ok(())
    }

    /// Ends the pool's threads without writing anything more, and waits for them. The devices are then in
    /// the same state as after a crash, and only the callers' handles keep them open.
    ///
    /// A txg that is being written is completed if its devices accept it. A device that does not answer is not
    /// waited for longer than its deadline.
    pub fn close(&self) {
        self.abandon();
        self.end_threads();
    }

    fn end_threads(&self) {
        self.store.topology().monitor.end();
        self.heartbeat.end();
        self.scan.end();
        self.activities.end();
        self.cache_feed.end();
        self.store.remove_cache_devices();
        self.groups.end_all();
        // Before the wait for threads: one of them may have queued a task that no txg runs any more.
        self.fail_tasks(&TxgError::Ended.into());
        self.threads
            .wait(&|| self.store.topology().unanswered().is_some());
        self.store.stop_prefetch();
    }
}

/// What the pool is opened with. `dropped` are the top-level vdevs that it does not have from its first txg on.
fn parts(
    env: &Env,
    read: &Arc<PoolView>,
    candidate: &PoolCandidate,
    writing: &WriteOptions,
    port: Arc<dyn DatasetPort>,
    dropped: &BTreeSet<VdevId>,
) -> Result<PoolParts, PoolError> {
    let first = Txg(read.uberblock().txg.0.saturating_add(1));
    let store = Arc::clone(read.store());
    let policy = mos_policy(read.version(), read.features());
    let root = read.uberblock().root;
    let mos =
        ObjectSet::open(Arc::clone(&store), 0, root, policy, None).reading("pool metadata")?;
    let maps = SpaceMapObjects::load(Arc::clone(&mos), read)?;
    maps.forget_vdevs(dropped);
    let allocator = open_allocator(read, &maps)?;
    let invalid = |error: crate::import::ConfigError| PoolError::Suspended {
        reason: error.to_string(),
    };
    let features = FeatureCounts::new(read.features().clone());
    let mut config = PoolConfig::from_nvlist(read.config()).map_err(invalid)?;
    config.name.clone_from(&candidate.name);
    config.stored_name.clone_from(&writing.stored_name);
    config.state = LeafState::Active;
    config.hostid = writing.hostid;
    config.hostname.clone_from(&writing.hostname);
    // Use the paths at which the leaves were found.
    config.root = read.assembly().root.clone();
    // The version changes with the uberblock, and the configuration may be older.
    config.version = read.version();
    // Pools without features have an empty list.
    config.features_for_read = Some(features.label_features());
    let number = |name: &str| -> Result<u64, PoolError> {
        let property = read.property(name)?;
        Ok(match property.and_then(|property| property.value) {
            Some(PropertyValue::Number(number)) => number,
            _ => 0,
        })
    };
    let clones = CloneTables::load(read, &geometries_with_removed(read, &maps)?)?;
    let dedup = DedupTables::load(read)?;
    let state = PoolState {
        config,
        config_generation: 1,
        config_written: 0,
        config_committed: 0,
        is_topology_stale: true,
        uberblock: *read.uberblock(),
        committing: None,
        multihost: number("multihost")? == 1,
        failmode: FailMode::from_number(number("failmode")?),
        features,
        assembly: Some(read.assembly().clone()),
        missed: missed_txgs(read, first)?,
        refilled: BTreeMap::new(),
        diverged: (read.assembly().leaves.iter())
            .filter(|leaf| leaf.diverged_since.is_some() && leaf.device.is_none())
            .map(|leaf| leaf.guid)
            .collect(),
        label_failures: BTreeSet::new(),
        deferred_free_bytes: read.deferred_free_bytes()?,
        clones: clones.totals(),
        dedup: dedup.totals(),
    };
    let topology = store.topology();
    Ok(PoolParts {
        env: env.clone(),
        store,
        allocator,
        maps,
        mos,
        groups: TxgGroups::new(env, first, writing.limits),
        port,
        state,
        clones,
        checkpoint: Checkpoint::load(read)?,
        removal: RemovalControl::load(read)?,
        dedup,
        sync_mode: writing.sync_mode,
        leaf_watch: LeafWatch::load(&topology, &mut |vdev| read.stored_vdev_properties(vdev))?,
        system: writing
            .system
            .clone()
            .unwrap_or_else(|| "millpond".to_owned()),
        is_deflated: read.directory_number(key::DEFLATE)?.is_some_and(|n| n != 0),
    })
}

/// The write policy for the MOS of a pool with these features.
pub(crate) fn mos_policy(version: u64, features: &Features) -> WritePolicy {
    WritePolicy {
        pool_version: version,
        has_lz4: features.is_active("org.illumos:lz4_compress"),
        has_hole_birth: features.is_active("com.delphix:hole_birth"),
        may_embed: features.count("com.delphix:embedded_data").is_some(),
        may_have_large_blocks: features.count("org.open-zfs:large_blocks").is_some(),
        may_have_large_dnodes: features.count("org.zfsonlinux:large_dnode").is_some(),
        has_project_quota: features.count("org.zfsonlinux:project_quota").is_some(),
        ..WritePolicy::mos()
    }
}

fn open_allocator(read: &PoolView, maps: &SpaceMapObjects) -> Result<PoolAllocator, PoolError> {
    let topology = read.store().topology();
    let tree = Arc::new(topology.tree.clone());
    let exists = |id| tree.top(id).is_some();
    let (mut vdevs, logs) = maps.opened(&tree)?;
    // A lost log device does not stop the pool. Do not allocate on it, since every log write would fail.
    let is_lost = |leaf| topology.leaf(leaf, Txg(u64::MAX)) == LeafHealth::Unreadable;
    for vdev in &mut vdevs {
        vdev.space.is_allocating &= tree.survives(vdev.space.vdev(), &is_lost);
    }
    let unflushed = UnflushedLogs::load(maps, &maps.geometries(), &exists)?;
    let forms = maps::forms(read.features());
    Ok(PoolAllocator::open(
        vdevs,
        logs,
        unflushed,
        Arc::new(maps.clone()),
        forms,
    )?)
}

/// The geometry of each vdev that has blocks, removed ones too.
fn geometries_with_removed(
    read: &PoolView,
    maps: &SpaceMapObjects,
) -> Result<BTreeMap<VdevId, VdevGeometry>, PoolError> {
    let mut geometries = maps.geometries();
    for (id, node) in read.store().topology().tree.tops() {
        if node.kind == VdevKind::Indirect {
            geometries.insert(id, geometry_of(id, node)?);
        }
    }
    Ok(geometries)
}
