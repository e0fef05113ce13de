//! The datasets of a pool open for changes: the open heads, and the port for the pool's sync thread.

use crate::heads::admission::Admission;
use crate::heads::head::{DirtyHeads, HeadDataset};
use crate::heads::initializer::{DatasetInitializer, NewContents};
use crate::heads::lending::Lending;
use crate::heads::space::Use;
use crate::mos::{During, MosView};
use crate::tasks::background::{Rest, SLICE_BLOCKS};
use crate::tasks::bookmarks::CountingTxgs;
use crate::tasks::context::SyncTaskContext;
use crate::{DatasetError, DatasetName, NameTail, Refusal};
use millpond_alloc::{
    DirectoryLimits, HeadLimits, SlopShare, available_in_directory, available_in_head,
};
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use millpond_object::{NewObjectSet, ObjectSet};
use millpond_ondisk::dsl::keys;
use millpond_ondisk::{DslDatasetFlags, ObjectId, ObjectSetKind, Txg, VdevId};
use millpond_pool::{DatasetPort, FoundLogs, Pool, SpaceChange, SyncContext};
use millpond_pool::{PoolError, PoolView};
use std::collections::{BTreeMap, BTreeSet};

/// The datasets of a pool that is open for changes.
///
/// Pass it as the port to [`Pool::create`] or [`Pool::open`], and use it to change datasets.
pub struct Datasets {
    pub(crate) pool: Arc<OnceLock<Weak<Pool>>>,
    pub(crate) contents: Arc<dyn DatasetInitializer>,
    pub(crate) admission: Arc<Admission>,
    dirty: Arc<DirtyHeads>,
    pub(crate) lending: Lending,
    pub(crate) counting_txgs: CountingTxgs,
    /// Intent logs found when the pool was opened. The first txg claims or frees them.
    pub(crate) found_logs: Mutex<Vec<crate::writability::HeadLogFound>, rank::Leaf>,
    pub(crate) found_logs_choice: Mutex<FoundLogs, rank::Leaf>,
    /// Names of datasets with an unfinished receive, to be destroyed.
    pub(crate) half_received: Mutex<Vec<String>, rank::Leaf>,
    /// Names of datasets whose log waits to be replayed, and whether its records refer to other files.
    pub(crate) to_replay: Mutex<BTreeMap<String, bool>, rank::Leaf>,
    /// Whether claimed logs wait for the keys of their datasets.
    pub(crate) has_locked_logs: AtomicBool,
    /// The last birth txg of a claimed block.
    pub(crate) last_claimed_birth: AtomicU64,
    heads: Mutex<Heads, rank::OpenHeads>,
    /// Write-locked while an operation changes tables of names, read-locked while a name is looked up.
    pub(crate) names: RwLock<(), rank::DatasetNames>,
    /// Whether the next txg must free in the background.
    has_background_work: AtomicBool,
    slice_blocks: AtomicU64,
    /// Whether leftovers of earlier imports have been removed.
    is_swept: AtomicBool,
    /// Whether `filesystem_limit` and `snapshot_limit` are enforced.
    has_limits: AtomicBool,
}

#[derive(Default)]
struct Heads {
    open: BTreeMap<ObjectId, Arc<HeadDataset>>,
    /// Heads destroyed or swapped in a txg that is not committed.
    gone: BTreeSet<ObjectId>,
    /// The number of open heads at which idle heads are closed again.
    shed_at: usize,
}

/// The remainder of a head that was closed permanently.
pub(crate) struct ClosedHead {
    /// Its intent log, whose blocks must be freed.
    pub(crate) log: Option<Arc<dyn crate::heads::log::HeadLog>>,
}

/// Idle heads are closed once this many heads are open, or twice the number that remained after the last
/// check, if that is more.
const IDLE_HEADS_MAX: usize = 64;

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
        Arc::new(Self {
            pool: Arc::default(),
            contents,
            admission: Arc::default(),
            dirty: Arc::default(),
            lending: Lending::default(),
            counting_txgs: CountingTxgs::default(),
            heads: Mutex::default(),
            names: RwLock::new(()),
            has_background_work: AtomicBool::new(true),
            slice_blocks: AtomicU64::new(SLICE_BLOCKS),
            is_swept: AtomicBool::new(false),
            has_limits: AtomicBool::new(true),
            found_logs: Mutex::default(),
            half_received: Mutex::default(),
            found_logs_choice: Mutex::default(),
            to_replay: Mutex::default(),
            has_locked_logs: AtomicBool::new(false),
            last_claimed_birth: AtomicU64::new(0),
        })
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

    // ---- open heads -----------------------------------------------------------------------------

    /// Opens a file system or volume for changes. All callers share the same object.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`]; [`Refusal::Inconsistent`] for an unfinished receive;
    /// [`DatasetError::Locked`] for an encrypted dataset, which cannot be written yet.
    pub fn open_head(&self, name: &str) -> Result<Arc<HeadDataset>, DatasetError> {
        let pool = self.pool()?;
        let parsed = DatasetName::parse(name)?;
        if parsed.tail != NameTail::Head {
            return Err(Refusal::error(name, Refusal::Invalid("not a live dataset")));
        }
        let view = MosView { pool: &pool };
        let _names = self.names.read();
        let head = view.find_head(name)?;
        let mut heads = self.heads.lock();
        if heads.gone.contains(&head.dataset) {
            return Err(DatasetError::NotFound {
                name: name.to_owned(),
            });
        }
        if let Some(open) = heads.open.get(&head.dataset) {
            return Ok(Arc::clone(open));
        }
        let phys = view.dataset(head.dataset)?;
        if phys.flags.contains(DslDatasetFlags::INCONSISTENT) {
            return Err(Refusal::error(name, Refusal::Inconsistent));
        }
        if view
            .extension(head.directory, keys::CRYPTO_KEY_OBJECT)?
            .is_some()
        {
            return Err(DatasetError::Locked {
                name: name.to_owned(),
            });
        }
        heads.shed(&self.dirty, &self.admission);
        let settings = view.settings(head.directory)?;
        let policy = view.write_policy(&settings, ObjectSetKind::FileSystem);
        let store = Arc::clone(pool.store());
        let set =
            ObjectSet::open(store, head.dataset.0, phys.block_pointer, policy).during("dataset")?;
        set.set_policy(view.write_policy(&settings, set.kind()));
        self.learn(&view, head.dataset)?;
        let open = self.new_head((head.dataset, head.directory), set, settings);
        heads.open.insert(head.dataset, Arc::clone(&open));
        Ok(open)
    }

    fn new_head(
        &self,
        ids: (ObjectId, ObjectId),
        set: Arc<ObjectSet>,
        settings: crate::Settings,
    ) -> Arc<HeadDataset> {
        Arc::new(HeadDataset::new(
            ids,
            set,
            settings,
            Arc::clone(&self.pool),
            Arc::clone(&self.admission),
            Arc::clone(&self.dirty),
        ))
    }

    /// Registers a head and its ancestor directories with admission control.
    fn learn(&self, view: &MosView<'_>, head: ObjectId) -> Result<(), PoolError> {
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

    /// The head with this object id, if it is open.
    #[must_use]
    pub fn head_if_open(&self, head: ObjectId) -> Option<Arc<HeadDataset>> {
        self.heads.lock().open.get(&head).map(Arc::clone)
    }

    /// The object set of a head, if it is open.
    pub(crate) fn open_set(&self, head: ObjectId) -> Option<Arc<ObjectSet>> {
        Some(self.heads.lock().open.get(&head)?.set())
    }

    /// Closes a head and prevents it from being opened until the txg is committed.
    ///
    /// Returns `None` if the head is in use or has changes in a later txg.
    pub(crate) fn close_for_good(&self, head: ObjectId, txg: Txg) -> Option<ClosedHead> {
        let mut heads = self.heads.lock();
        let is_held = heads
            .open
            .get(&head)
            .is_some_and(|open| Arc::strong_count(open) > 1);
        if is_held || self.dirty.is_dirty_after(head, txg) {
            return None;
        }
        let log = heads.open.remove(&head).and_then(|open| open.log());
        heads.gone.insert(head);
        self.admission.forget_head(head);
        Some(ClosedHead { log })
    }

    /// Allows a head that was closed for a swap to be opened again.
    pub(crate) fn reopen(&self, head: ObjectId) {
        self.heads.lock().gone.remove(&head);
    }

    // ---- syncing context ------------------------------------------------------------------------

    /// Creates the object set of a new head with its first objects. The next pass writes it.
    pub(crate) fn fill(
        &self,
        syncing: &SyncTaskContext<'_>,
        head: ObjectId,
        directory: ObjectId,
        new: &NewContents,
    ) -> Result<(), PoolError> {
        let settings = syncing.settings(directory)?;
        let policy = syncing.write_policy(&settings, new.kind());
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
        let shape = NewObjectSet {
            flags,
            ..NewObjectSet::default()
        };
        let tx = syncing.ctx.tx();
        let store = Arc::clone(syncing.ctx.pool().store());
        let set = ObjectSet::create(store, head.0, new.kind(), shape, policy, tx);
        self.contents
            .create(&set, tx, new)
            .map_err(|error| PoolError::Suspended {
                reason: format!("a new dataset could not be filled: {error}"),
            })?;
        self.adopt(syncing, (head, directory), set, settings)
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

impl Heads {
    /// Closes heads that are not in use and have nothing to write.
    fn shed(&mut self, dirty: &DirtyHeads, admission: &Admission) {
        if self.open.len() < self.shed_at.max(IDLE_HEADS_MAX) {
            return;
        }
        self.open.retain(|id, head| {
            let is_needed =
                Arc::strong_count(head) > 1 || dirty.is_dirty(*id) || head.log().is_some();
            if !is_needed {
                admission.forget_head(*id);
            }
            is_needed
        });
        // With thousands of heads in use, opening another one must not scan all of them each time.
        self.shed_at = self.open.len() * 2;
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
        self.has_locked_logs.load(Ordering::Acquire)
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

    fn end_logs(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let syncing = SyncTaskContext::new(self, ctx);
        let open: Vec<_> = self.heads.lock().open.values().cloned().collect();
        for head in open {
            syncing.end_log(&head)?;
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
        }
        Ok(was_anything)
    }

    fn background(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        if !self.has_background_work.load(Ordering::Acquire) {
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

    fn committed(&self, txg: Txg) {
        let heads: Vec<_> = self.dirty_heads(txg);
        for log in heads.iter().filter_map(|head| head.log()) {
            log.committed(txg);
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

impl SyncTaskContext<'_> {
    /// Records that something was queued for freeing in the background.
    pub(crate) fn wake_background(&self) {
        self.datasets
            .has_background_work
            .store(true, Ordering::Release);
    }
}
