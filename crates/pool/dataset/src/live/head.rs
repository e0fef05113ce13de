//! A head open for changes.

use super::admission::{Admission, Request, Verdict};
use super::log::{AttachedLog, HeadLog, OtherLog};
use super::settings::Settings;
use crate::{DatasetError, Refusal};
use millpond_env::mark;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use millpond_object::LiveObjectSet;
use millpond_ondisk::{ObjectId, ObjectSetKind, Txg};
use millpond_pool::live::LivePool;
use millpond_txg::{BeginWait, Transaction, TxgRequest};
use std::collections::{BTreeMap, BTreeSet};

/// Heads with changes, by txg.
#[derive(Debug, Default)]
pub(crate) struct DirtyHeads(Mutex<BTreeMap<Txg, BTreeSet<ObjectId>>>);

impl DirtyHeads {
    pub(crate) fn mark(&self, txg: Txg, head: ObjectId) {
        self.0.lock().entry(txg).or_default().insert(head);
    }
    pub(crate) fn of(&self, txg: Txg) -> Vec<ObjectId> {
        let dirty = self.0.lock();
        dirty.get(&txg).into_iter().flatten().copied().collect()
    }
    /// Forgets a txg that is committed.
    pub(crate) fn forget(&self, txg: Txg) {
        self.0.lock().retain(|known, _| *known > txg);
    }
    /// Whether a head has changes in a txg after `txg`.
    pub(crate) fn is_dirty_after(&self, head: ObjectId, txg: Txg) -> bool {
        let dirty = self.0.lock();
        dirty
            .iter()
            .any(|(known, heads)| *known > txg && heads.contains(&head))
    }
    pub(crate) fn is_dirty(&self, head: ObjectId) -> bool {
        self.0.lock().values().any(|heads| heads.contains(&head))
    }
}

/// What a change is going to do, as far as admission needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Estimate {
    /// Logical bytes that will become dirty at most, data and metadata together.
    pub bytes: u64,
    /// Whether it gives back more space than it takes: quotas do not hold it up then, and it may use half
    /// of what keeps a full pool usable.
    pub is_freeing: bool,
    /// Blocks that it frees, at most: see [`LivePool::begin_as`].
    pub freed_blocks: u64,
    /// What it waits for.
    pub wait: BeginWait,
}

/// What a dataset takes and may still take, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DatasetSpace {
    /// What it refers to.
    pub referenced_bytes: u64,
    /// What it may still write, quotas and reservations counted.
    pub available_bytes: u64,
}

/// A live file system or volume, open for changes. As long as it is held it cannot be destroyed or
/// rolled back.
///
/// Changes go to its object set inside transactions of [`LiveDataset::begin`] only: they say which
/// txgs the dataset is to be written in.
pub struct LiveDataset {
    id: ObjectId,
    directory: ObjectId,
    set: Arc<LiveObjectSet>,
    settings: RwLock<Arc<Settings>>,
    /// Known once the pool is: its first heads come before.
    pool: Arc<OnceLock<Weak<LivePool>>>,
    admission: Arc<Admission>,
    dirty: Arc<DirtyHeads>,
    /// Txgs that it is marked dirty in, by slot, so that marking is cheap.
    marked: [AtomicU64; 4],
    needed_features: Mutex<BTreeSet<&'static str>>,
    has_needed_features: AtomicBool,
    log: OnceLock<AttachedLog>,
}

impl std::fmt::Debug for LiveDataset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveDataset")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// How often a request waits for a txg before the pool counts as full. Each txg ends all promises, but
/// others may be quicker to make new ones.
const PATIENCE: u32 = 1000;

impl LiveDataset {
    pub(crate) fn new(
        (id, directory): (ObjectId, ObjectId),
        set: Arc<LiveObjectSet>,
        settings: Settings,
        pool: Arc<OnceLock<Weak<LivePool>>>,
        admission: Arc<Admission>,
        dirty: Arc<DirtyHeads>,
    ) -> Self {
        Self {
            id,
            directory,
            set,
            settings: RwLock::new(Arc::new(settings)),
            pool,
            admission,
            dirty,
            marked: Default::default(),
            needed_features: Mutex::default(),
            has_needed_features: AtomicBool::new(false),
            log: OnceLock::new(),
        }
    }

    /// Its object number in the MOS.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.id
    }
    /// The object number of its directory.
    #[must_use]
    pub fn directory(&self) -> ObjectId {
        self.directory
    }
    /// Whether it is a file system or a volume.
    #[must_use]
    pub fn kind(&self) -> ObjectSetKind {
        self.set.kind()
    }
    /// Its objects.
    #[must_use]
    pub fn set(&self) -> Arc<LiveObjectSet> {
        Arc::clone(&self.set)
    }
    /// The settings in force. A change of properties makes others; ask again.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read())
    }
    pub(crate) fn set_settings(&self, settings: Settings) {
        *self.settings.write() = Arc::new(settings);
    }

    /// The pool that it belongs to.
    ///
    /// # Errors
    /// If it was closed.
    pub fn pool(&self) -> Result<Arc<LivePool>, DatasetError> {
        self.pool
            .get()
            .and_then(Weak::upgrade)
            .ok_or_else(|| DatasetError::Pool(super::datasets::closed()))
    }

    /// Enters the open txg. Waits while too much is dirty, or while what is under way might use up a
    /// quota or the pool.
    ///
    /// # Errors
    /// [`Refusal::OverQuota`], [`Refusal::NoSpace`]; or the pool is suspended.
    pub fn begin(&self, estimate: Estimate) -> Result<Transaction, DatasetError> {
        let pool = self.pool()?;
        let mut request = Request {
            bytes: pool.worst_case_bytes(estimate.bytes),
            under_way_max: 0,
            is_freeing: estimate.is_freeing,
            pool_limit: 0,
        };
        let mut patience = match estimate.wait {
            BeginWait::Never => 0,
            _ => PATIENCE,
        };
        loop {
            request.pool_limit = self.admission.limit(estimate.is_freeing);
            request.under_way_max = pool.worst_case_bytes(pool.groups().dirty_bytes());
            let why = match self.admission.judge(self.id, request) {
                Verdict::Admitted => break,
                // Removed files give back their space when their txg is written.
                Verdict::NoSpace | Verdict::OverQuota
                    if patience > 0 && self.admission.is_freeing(pool.groups().synced_txg()) =>
                {
                    mark::hit("space-known-after-frees");
                    patience -= 1;
                    pool.sync()?;
                    continue;
                }
                Verdict::Later if patience > 0 => {
                    mark::hit("space-known-after-txg");
                    patience -= 1;
                    pool.sync()?;
                    continue;
                }
                Verdict::Later | Verdict::NoSpace => {
                    mark::hit("pool-full");
                    Refusal::NoSpace
                }
                Verdict::OverQuota => {
                    mark::hit("quota-full");
                    Refusal::OverQuota
                }
            };
            return Err(Refusal::error(&format!("dataset {}", self.id), why));
        }
        let tx = pool.begin_as(TxgRequest {
            estimate_bytes: estimate.bytes,
            freed_blocks: estimate.freed_blocks,
            wait: estimate.wait,
        })?;
        if !estimate.is_freeing {
            self.admission.promise(self.id, tx.txg(), request.bytes);
        } else if estimate.bytes > 0 {
            self.admission.note_freeing(tx.txg());
        }
        self.mark(tx.txg());
        Ok(tx)
    }

    /// Notes that something in it changes in `txg`.
    pub(crate) fn mark(&self, txg: Txg) {
        let slot = &self.marked[(txg.0 % 4) as usize];
        if slot.swap(txg.0, Ordering::AcqRel) != txg.0 {
            self.dirty.mark(txg, self.id);
        }
    }

    /// Counts the dataset in a per-dataset feature, with the txg that is written next. For what shows
    /// in no block: a name above 255 bytes, a large microzap.
    pub fn use_feature(&self, tx: &Transaction, guid: &'static str) {
        self.needed_features.lock().insert(guid);
        self.has_needed_features.store(true, Ordering::Release);
        self.mark(tx.txg());
    }
    /// Stops counting a dataset in a feature with each txg.
    pub(crate) fn forget_feature(&self, guid: &str) {
        self.needed_features.lock().remove(guid);
    }
    /// Its intent log, if one was given to it.
    #[must_use]
    pub fn log(&self) -> Option<Arc<dyn HeadLog>> {
        self.log.get().map(AttachedLog::log)
    }
    /// Gives it an intent log, unless it has one; returns the one that it has then. The dataset stays open with it.
    ///
    /// # Errors
    /// [`OtherLog`] if the one that it has is of another kind.
    pub fn log_or<L: HeadLog + 'static>(
        &self,
        log: impl FnOnce() -> L,
    ) -> Result<Arc<L>, OtherLog> {
        self.log.get_or_init(|| AttachedLog::new(log())).kind()
    }
    pub(crate) fn needed_features(&self) -> Vec<&'static str> {
        if !self.has_needed_features.load(Ordering::Acquire) {
            return vec![];
        }
        self.needed_features.lock().iter().copied().collect()
    }

    /// Waits until everything begun so far is on stable storage.
    ///
    /// # Errors
    /// If the pool is suspended.
    pub fn sync(&self) -> Result<(), DatasetError> {
        self.pool()?.sync()?;
        Ok(())
    }

    /// What it takes and may still take, as of the last txg written.
    ///
    /// # Errors
    /// If its figures cannot be read.
    pub fn space(&self) -> Result<DatasetSpace, DatasetError> {
        let pool = self.pool()?;
        let view = super::view::MosView { pool: &pool };
        let phys = view.dataset(self.id)?;
        Ok(DatasetSpace {
            referenced_bytes: phys.referenced_bytes,
            available_bytes: view.available_in_head(self.id)?,
        })
    }
}
