//! The datasets of a pool open for changes: the open heads, and the port for the pool's sync thread.

use crate::heads::admission::Admission;
use crate::heads::head::{DirtyHeads, HeadDataset};
use crate::heads::initializer::{DatasetInitializer, NewContents};
use crate::heads::lending::Lending;
use crate::heads::open::Heads;
use crate::heads::space::Use;
use crate::mos::MosView;
use crate::tasks::background::{Rest, SLICE_BLOCKS, StuckFreeing};
use crate::tasks::bookmarks::CountingTxgs;
use crate::tasks::context::SyncTaskContext;
use crate::tasks::deadlist_cache::DeadlistCache;
use crate::tasks::destroy_progress::DestroyProgress;
use crate::tasks::directories::Head;
use crate::tasks::receive::{Receives, raw_head};
use crate::{DatasetError, KeyRing, RootKey};
use millpond_alloc::{
    DirectoryLimits, HeadLimits, SlopShare, available_in_directory, available_in_head,
};
use millpond_crypt::DatasetKey;
use millpond_env::Tunable;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use millpond_object::{NewObjectSet, ObjectSet, WriteKey};
use millpond_ondisk::dsl::keys;
use millpond_ondisk::{ObjectId, ObjectSetKind, PoolVersion, Txg, VdevId};
use millpond_pool::{DatasetPort, FoundBlock, FoundLogs, Pool, SpaceChange, SyncContext};
use millpond_pool::{PoolError, PoolView};
use millpond_stream::RawKeys;
use std::collections::{BTreeMap, BTreeSet};

/// The datasets of a pool that is open for changes.
///
/// Pass it as the port to [`Pool::create`] or [`Pool::open`], and use it to change datasets.
pub struct Datasets {
    pub(crate) pool: Arc<OnceLock<Weak<Pool>>>,
    pub(crate) contents: Arc<dyn DatasetInitializer>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) dirty: Arc<DirtyHeads>,
    pub(crate) lending: Lending,
    pub(crate) counting_txgs: CountingTxgs,
    pub(crate) deadlists: DeadlistCache,
    /// The destroys of many datasets that are under way.
    pub(crate) destroying: DestroyProgress,
    /// Intent logs found when the pool was opened. The first txg claims or frees them.
    pub(crate) found_logs: Mutex<Vec<crate::writability::HeadLogFound>, rank::Leaf>,
    pub(crate) found_logs_choice: Mutex<FoundLogs, rank::Leaf>,
    /// The receives under way.
    pub(crate) receives: Arc<Receives>,
    /// Names of datasets with an unfinished receive, to be destroyed.
    pub(crate) half_received: Mutex<Vec<String>, rank::Leaf>,
    /// Names of datasets whose log waits to be replayed, and whether its records refer to other files.
    pub(crate) to_replay: Mutex<BTreeMap<String, bool>, rank::Leaf>,
    /// The blocks of logs that were claimed when the pool was opened and are not replayed yet, by head.
    pub(crate) claimed_logs: Mutex<BTreeMap<ObjectId, Vec<FoundBlock>>, rank::Leaf>,
    /// Heads whose claimed logs wait for their keys.
    pub(crate) waiting_logs: Mutex<BTreeSet<ObjectId>, rank::Leaf>,
    /// The loaded keys of the pool.
    pub(crate) keys: Arc<KeyRing>,
    /// The key of the root dataset of a pool that is being created.
    pub(crate) root_key: Mutex<Option<RootKey>, rank::Leaf>,
    /// The last txg in which a snapshot was destroyed.
    pub(crate) last_destroyed: AtomicU64,
    /// The last birth txg of a claimed block.
    pub(crate) last_claimed_birth: AtomicU64,
    pub(crate) heads: Mutex<Heads, rank::OpenHeads>,
    /// Write-locked while an operation changes tables of names, read-locked while a name is looked up.
    pub(crate) names: RwLock<(), rank::DatasetNames>,
    /// Whether the next txg must free in the background.
    has_background_work: AtomicBool,
    /// What cannot be freed in the background.
    stuck: Mutex<Option<StuckFreeing>, rank::Leaf>,
    slice_blocks: AtomicU64,
    /// Whether leftovers of earlier imports have been removed.
    is_swept: AtomicBool,
    /// Whether `filesystem_limit` and `snapshot_limit` are enforced.
    has_limits: AtomicBool,
}

impl std::fmt::Debug for Datasets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Datasets").finish_non_exhaustive()
    }
}

pub(crate) fn closed() -> PoolError {
    PoolError::Suspended {
        reason: "the pool was closed".into(),
    }
}

impl Datasets {
    /// Creates the datasets of a pool that will be created or opened. `contents` creates the first objects
    /// of new file systems and volumes.
    #[must_use]
    pub fn new(contents: Arc<dyn DatasetInitializer>) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            pool: Arc::default(),
            contents,
            admission: Arc::default(),
            dirty: Arc::default(),
            lending: Lending::default(),
            counting_txgs: CountingTxgs::default(),
            deadlists: DeadlistCache::default(),
            destroying: DestroyProgress::default(),
            heads: Mutex::default(),
            names: RwLock::new(()),
            has_background_work: AtomicBool::new(true),
            stuck: Mutex::default(),
            slice_blocks: AtomicU64::new(SLICE_BLOCKS),
            is_swept: AtomicBool::new(false),
            has_limits: AtomicBool::new(true),
            found_logs: Mutex::default(),
            receives: Arc::default(),
            half_received: Mutex::default(),
            found_logs_choice: Mutex::default(),
            to_replay: Mutex::default(),
            claimed_logs: Mutex::default(),
            waiting_logs: Mutex::default(),
            keys: Arc::new(KeyRing::of_changing(own)),
            root_key: Mutex::default(),
            last_destroyed: AtomicU64::new(0),
            last_claimed_birth: AtomicU64::new(0),
        })
    }

    /// The keys that are loaded. All committed states of the pool share them.
    #[must_use]
    pub fn keys(&self) -> &Arc<KeyRing> {
        &self.keys
    }

    /// How many datasets are gone of those that calls under way destroy, and how many these are; `None` if nothing is
    /// destroyed.
    #[must_use]
    pub fn destroy_progress(&self) -> Option<(usize, usize)> {
        self.destroying.now()
    }

    /// Sets the key of the root dataset of a pool that will be created with `encryption`.
    pub fn set_root_key(&self, key: RootKey) {
        *self.root_key.lock() = Some(key);
    }

    /// The pool.
    ///
    /// # Errors
    /// If the pool was closed or never created.
    pub fn pool(&self) -> Result<Arc<Pool>, DatasetError> {
        let pool = self.pool.get().and_then(Weak::upgrade);
        pool.ok_or_else(|| DatasetError::Pool(closed()))
    }

    /// Sets whether `filesystem_limit` and `snapshot_limit` are enforced; initially they are.
    ///
    /// They do not apply to a user who may change them. Counting continues in any case.
    pub fn enforce_limits(&self, enforce: bool) {
        self.has_limits.store(enforce, Ordering::Relaxed);
    }

    pub(crate) fn has_limits(&self) -> bool {
        self.has_limits.load(Ordering::Relaxed)
    }

    /// The last txg in which a snapshot was destroyed since the pool was opened. It is known while that txg is written, and so
    /// before the snapshot's blocks can be used again.
    #[must_use]
    pub fn last_snapshot_destroyed(&self) -> Txg {
        Txg(self.last_destroyed.load(Ordering::Acquire))
    }

    /// Sets what to do with intent logs. Call this before the pool is opened.
    pub fn choose_found_logs(&self, choice: FoundLogs) {
        *self.found_logs_choice.lock() = choice;
    }
    /// Writes txgs until the open txg is newer than every claimed block.
    ///
    /// # Errors
    /// If the pool is suspended.
    pub fn pass_claimed_births(&self) -> Result<(), DatasetError> {
        let pool = self.pool()?;
        while pool.groups().open_txg().0 <= self.last_claimed_birth.load(Ordering::Acquire) {
            pool.sync()?;
        }
        Ok(())
    }

    /// Limits the number of blocks that each txg frees in the background.
    pub fn limit_background(&self, blocks: u64) {
        self.slice_blocks.store(blocks.max(1), Ordering::Relaxed);
    }
    pub(crate) fn slice_blocks(&self) -> u64 {
        self.slice_blocks.load(Ordering::Relaxed)
    }

    /// Runs a change in syncing context: first `check`, then `apply`. Returns when the change is on stable
    /// storage.
    pub(crate) fn task<P: Send, R: Send>(
        &self,
        check: impl FnOnce(&SyncTaskContext<'_>) -> Result<P, DatasetError> + Send,
        apply: impl FnOnce(&SyncTaskContext<'_>, P) -> Result<R, PoolError> + Send,
    ) -> Result<R, DatasetError> {
        let pool = self.pool()?;
        pool.sync_task(|ctx| {
            let syncing = SyncTaskContext::new(self, ctx);
            match check(&syncing) {
                // An unreadable object during the check has not changed anything either, so it is a
                // refusal.
                Err(refused) => Ok(Err(refused)),
                Ok(plan) => {
                    let _names = self.names.write();
                    apply(&syncing, plan).map(Ok)
                }
            }
        })?
    }

    /// Registers a head and its ancestor directories with admission control.
    pub(crate) fn learn(&self, view: &MosView<'_>, head: ObjectId) -> Result<(), PoolError> {
        let phys = view.dataset(head)?;
        let mut at = Some(phys.directory);
        for _ in 0..crate::directory::DEPTH_MAX {
            let Some(id) = at else { break };
            let directory = view.directory(id)?;
            if !self.admission.knows_directory(id) {
                self.admission.learn_directory(id, &directory);
            }
            at = directory.parent;
        }
        let ref_quota = view.ref_quota(phys.directory)?;
        let ref_reserved = view.ref_reservation(phys.directory)?;
        self.admission
            .learn_head(head, &phys, ref_quota, ref_reserved);
        Ok(())
    }

    /// Updates the settings of the open heads in a directory and its descendants, and what the cache keeps of
    /// committed states that are open.
    pub(crate) fn refresh(&self, view: &MosView<'_>, within: ObjectId) -> Result<(), PoolError> {
        view.refresh_caching(within);
        let open: Vec<_> = self.heads.lock().open.values().cloned().collect();
        for head in open {
            if !view.is_within(head.directory(), within)? {
                continue;
            }
            let settings = view.settings(head.directory())?;
            head.set()
                .set_policy(view.write_policy(&settings, head.kind()));
            head.set_settings(settings);
            self.learn(view, head.id())?;
        }
        Ok(())
    }

    // ---- syncing context ------------------------------------------------------------------------

    /// Creates the object set of a new head with its first objects. The next pass writes it.
    pub(crate) fn fill(
        &self,
        syncing: &SyncTaskContext<'_>,
        head: &Head,
        new: &NewContents,
        key: Option<Arc<DatasetKey>>,
    ) -> Result<(), PoolError> {
        let (set, settings) = self.new_set(syncing, head, new.kind(), key)?;
        self.contents
            .create(&set, syncing.ctx.tx(), new)
            .map_err(|error| PoolError::Suspended {
                reason: format!("a new dataset could not be filled: {error}"),
            })?;
        self.adopt(syncing, (head.dataset, head.directory), set, settings)
    }

    /// Creates the object set of a new head without objects. The next pass writes it.
    pub(crate) fn fill_empty(
        &self,
        syncing: &SyncTaskContext<'_>,
        head: &Head,
        kind: ObjectSetKind,
        key: Option<Arc<DatasetKey>>,
    ) -> Result<(), PoolError> {
        let (set, settings) = self.new_set(syncing, head, kind, key)?;
        self.adopt(syncing, (head.dataset, head.directory), set, settings)
    }

    /// Creates the object set of a new encrypted head that a raw stream fills.
    pub(crate) fn fill_raw(
        &self,
        syncing: &SyncTaskContext<'_>,
        head: &Head,
        kind: ObjectSetKind,
        raw: &RawKeys,
    ) -> Result<(), PoolError> {
        let settings = syncing.settings(head.directory)?;
        let policy = syncing.write_policy(&settings, kind);
        let shape = NewObjectSet {
            raw: Some(raw_head(raw)),
            ..NewObjectSet::default()
        };
        let tx = syncing.ctx.tx();
        let store = Arc::clone(syncing.ctx.pool().store());
        let set = ObjectSet::create(store, head.dataset.0, kind, shape, policy, tx);
        self.adopt(syncing, (head.dataset, head.directory), set, settings)
    }

    fn new_set(
        &self,
        syncing: &SyncTaskContext<'_>,
        head: &Head,
        kind: ObjectSetKind,
        key: Option<Arc<DatasetKey>>,
    ) -> Result<(Arc<ObjectSet>, crate::Settings), PoolError> {
        let (head, directory) = (head.dataset, head.directory);
        let settings = syncing.settings(directory)?;
        let policy = syncing.write_policy(&settings, kind);
        let mut flags = 0;
        let mut guids = vec![];
        for (is_on, flag, guid) in [
            (policy.accounts_users, 1, None),
            (
                policy.accounts_objects,
                2,
                Some(crate::heads::features::USEROBJ_ACCOUNTING),
            ),
            (
                policy.accounts_projects,
                4,
                Some(crate::heads::features::PROJECT_QUOTA),
            ),
        ] {
            if is_on {
                flags |= flag;
                guids.extend(guid);
            }
        }
        for guid in guids {
            syncing.activate_feature(head, guid, &[0])?;
        }
        let env = syncing.ctx.pool().env();
        let shape = NewObjectSet {
            flags,
            key: key.map(|key| WriteKey::new(key, env)),
            ..NewObjectSet::default()
        };
        let tx = syncing.ctx.tx();
        let store = Arc::clone(syncing.ctx.pool().store());
        let set = ObjectSet::create(store, head.0, kind, shape, policy, tx);
        Ok((set, settings))
    }

    /// Adds a set that is dirty in the txg being written to the open heads.
    pub(crate) fn adopt(
        &self,
        syncing: &SyncTaskContext<'_>,
        (head, directory): (ObjectId, ObjectId),
        set: Arc<ObjectSet>,
        settings: crate::Settings,
    ) -> Result<(), PoolError> {
        self.learn(syncing, head)?;
        let open = Arc::new(HeadDataset::new(
            (head, directory),
            set,
            settings,
            Arc::clone(&self.pool),
            Arc::clone(&self.admission),
            Arc::clone(&self.dirty),
        ));
        open.mark(syncing.txg());
        let mut heads = self.heads.lock();
        heads.shed(&self.dirty, &self.admission);
        heads.gone.remove(&head);
        heads.open.insert(head, open);
        Ok(())
    }

    fn dirty_heads(&self, txg: Txg) -> Vec<Arc<HeadDataset>> {
        let ids = self.dirty.of(txg);
        let heads = self.heads.lock();
        ids.iter()
            .filter_map(|id| heads.open.get(id).cloned())
            .collect()
    }
}

impl MosView<'_> {
    /// Bytes that a directory may still use.
    pub(crate) fn available(&self, directory: ObjectId) -> Result<u64, PoolError> {
        let mut path = vec![];
        let mut at = Some(directory);
        while let Some(id) = at
            && path.len() < crate::directory::DEPTH_MAX
        {
            let phys = self.directory(id)?;
            at = phys.parent;
            path.push(phys);
        }
        let mut available = None;
        for phys in path.iter().rev() {
            let limits = DirectoryLimits {
                used_bytes: phys.used_bytes,
                quota_bytes: phys.quota_bytes,
                reserved_bytes: phys.reserved_bytes,
            };
            let above = match available {
                Some(above) => above,
                None => self
                    .pool
                    .limit(SlopShare::All)
                    .limit_bytes
                    .saturating_sub(phys.used_bytes),
            };
            available = Some(available_in_directory(above, limits));
        }
        Ok(available.unwrap_or(0))
    }

    pub(crate) fn root_available(&self) -> Result<u64, PoolError> {
        self.available(self.root_directory()?)
    }

    pub(crate) fn available_in_head(&self, head: ObjectId) -> Result<u64, PoolError> {
        let phys = self.dataset(head)?;
        let limits = HeadLimits {
            referenced_bytes: phys.referenced_bytes,
            unique_bytes: phys.unique_bytes,
            ref_quota_bytes: self.ref_quota(phys.directory)?,
            ref_reserved_bytes: self.ref_reservation(phys.directory)?,
        };
        Ok(available_in_head(self.available(phys.directory)?, limits))
    }
}

impl DatasetPort for Datasets {
    fn create_root(
        &self,
        ctx: &SyncContext<'_>,
        root_properties: &BTreeMap<String, String>,
    ) -> Result<(), PoolError> {
        SyncTaskContext::new(self, ctx).create_root_dataset(root_properties)
    }

    fn check_writable(&self, committed: &Arc<PoolView>) -> Result<(), PoolError> {
        let choice = *self.found_logs_choice.lock();
        let found = crate::writability::check_writable(committed, choice)?;
        *self.found_logs.lock() = found.logs;
        *self.half_received.lock() = found.half_received;
        Ok(())
    }

    fn claim_logs(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        self.claim_found_logs(&SyncTaskContext::new(self, ctx))
    }

    fn has_locked_logs(&self) -> bool {
        !self.waiting_logs.lock().is_empty()
    }

    fn logs_use(&self, vdev: VdevId) -> bool {
        let open: Vec<_> = self.heads.lock().open.values().cloned().collect();
        let mut logs = open.iter().filter_map(|head| head.log());
        logs.any(|log| log.uses(vdev))
    }

    fn feature_enabled(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        if self.heads.lock().open.is_empty() {
            return Ok(());
        }
        let syncing = SyncTaskContext::new(self, ctx);
        self.refresh(&syncing, syncing.root_directory()?)
    }

    fn raise(&self, ctx: &SyncContext<'_>, from: PoolVersion) -> Result<(), PoolError> {
        SyncTaskContext::new(self, ctx).raise(from)
    }

    fn end_logs(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let syncing = SyncTaskContext::new(self, ctx);
        let open: Vec<_> = self.heads.lock().open.values().cloned().collect();
        for head in open {
            syncing.end_log(&head)?;
        }
        Ok(())
    }

    fn write_logs(&self) -> Result<(), PoolError> {
        let open: Vec<_> = self.heads.lock().open.values().cloned().collect();
        for head in open {
            if let Some(log) = head.log() {
                log.write_out(&head)?;
            }
        }
        Ok(())
    }

    fn attach(&self, pool: &Arc<Pool>) -> Result<(), PoolError> {
        // Heads created before the pool existed do not refer to it. They are opened again on demand.
        self.heads.lock().open.clear();
        self.admission.set_limits(pool);
        // Attach only once; a second pool would mix the datasets of two pools.
        self.pool
            .set(Arc::downgrade(pool))
            .map_err(|_| PoolError::Unsupported {
                what: "two pools with the same datasets",
            })
    }

    fn sync_datasets(&self, ctx: &SyncContext<'_>) -> Result<bool, PoolError> {
        let syncing = SyncTaskContext::new(self, ctx);
        let mut was_anything = false;
        for head in self.dirty_heads(ctx.txg()) {
            if ctx.pass() == 1 {
                syncing.trim_log(&head)?;
            }
            was_anything |= syncing.write_head(&head)?;
        }
        if ctx.pass() == 1 {
            self.admission.settle(ctx.txg());
            self.admission.set_limits(ctx.pool());
            self.admission.set_savings_known(false);
        }
        Ok(was_anything)
    }

    fn background(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let has_work = self.has_background_work.load(Ordering::Acquire);
        let may_leak = self.leaks_unreadable(ctx.pool()) && self.stuck.lock().is_some();
        if !has_work && !may_leak {
            return Ok(());
        }
        let syncing = SyncTaskContext::new(self, ctx);
        if !self.is_swept.swap(true, Ordering::AcqRel) {
            syncing.release_temporary_holds()?;
        }
        let rest = syncing.free_in_background()?;
        self.has_background_work
            .store(rest == Rest::More, Ordering::Release);
        Ok(())
    }

    fn charge_mos(&self, ctx: &SyncContext<'_>, change: SpaceChange) -> Result<(), PoolError> {
        let syncing = SyncTaskContext::new(self, ctx);
        let directory = syncing.special_directory(keys::MOS_DIRECTORY)?;
        syncing.charge_space(directory, Use::Head, change)
    }

    fn counted(&self, pool: &Pool) {
        self.admission.set_limits(pool);
        self.admission.set_savings_known(true);
    }

    fn committed(&self, txg: Txg) {
        let pool = self.pool.get().and_then(Weak::upgrade);
        let stable = pool.map_or(txg, |pool| pool.stable_part_of(txg));
        let heads: Vec<_> = self.dirty_heads(txg);
        for log in heads.iter().filter_map(|head| head.log()) {
            log.committed(stable);
        }
        self.dirty.forget(txg);
        self.lending.committed(txg);
        self.heads.lock().gone.clear();
        if self.has_background_work.load(Ordering::Acquire)
            && let Some(pool) = self.pool.get().and_then(Weak::upgrade)
        {
            // Request the next txg, in case no other caller needs it soon.
            pool.groups().ask(Txg(txg.0.saturating_add(1)));
        }
    }
}

impl Datasets {
    /// The destroyed datasets whose space cannot be freed, as far as that was tried since the pool was opened.
    #[must_use]
    pub fn stuck_freeing(&self) -> Option<StuckFreeing> {
        self.stuck.lock().clone()
    }
    pub(crate) fn note_stuck(&self, stuck: Option<StuckFreeing>) {
        *self.stuck.lock() = stuck;
    }
    /// Whether what lies below unreadable metadata of destroyed datasets is given up.
    pub(crate) fn leaks_unreadable(&self, pool: &Pool) -> bool {
        pool.env().tunables.is_on(Tunable::FreeLeakOnEio)
    }
}

impl SyncTaskContext<'_> {
    /// Records that something was queued for freeing in the background.
    pub(crate) fn wake_background(&self) {
        self.datasets
            .has_background_work
            .store(true, Ordering::Release);
    }
}
