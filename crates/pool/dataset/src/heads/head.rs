//! A head open for changes.

use crate::heads::admission::{Admission, Request, Verdict};
use crate::heads::log::{AttachedLog, HeadLog, OtherLog};
use crate::heads::settings::Settings;
use crate::tasks::receive::ResumePoint;
use crate::{DatasetError, Refusal};
use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use millpond_object::ObjectSet;
use millpond_ondisk::{ObjectId, ObjectSetKind, Txg};
use millpond_pool::Pool;
use millpond_txg::Estimate;
use millpond_txg::{BeginWait, Transaction, TxgRequest};
use std::collections::{BTreeMap, BTreeSet};

/// Heads with changes, by txg.
#[derive(Debug, Default)]
pub(crate) struct DirtyHeads(Mutex<BTreeMap<Txg, BTreeSet<ObjectId>>, rank::Leaf>);

impl DirtyHeads {
    pub(crate) fn mark(&self, txg: Txg, head: ObjectId) {
        self.0.lock().entry(txg).or_default().insert(head);
    }
    pub(crate) fn of(&self, txg: Txg) -> Vec<ObjectId> {
        let dirty = self.0.lock();
        dirty.get(&txg).into_iter().flatten().copied().collect()
    }
    /// Removes the record of a committed txg.
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

/// Used and available space of a dataset, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DatasetSpace {
    /// The bytes that it references.
    pub referenced_bytes: u64,
    /// The bytes that it may still write, considering quotas and reservations.
    pub available_bytes: u64,
}

/// A live file system or volume, open for changes. It cannot be destroyed or rolled back while it is held.
///
/// Its object set must be changed only inside transactions of [`HeadDataset::begin`], which record the txgs
/// in which the dataset must be written.
pub struct HeadDataset {
    id: ObjectId,
    directory: ObjectId,
    set: Arc<ObjectSet>,
    settings: RwLock<Arc<Settings>, rank::Leaf>,
    /// Set once the pool exists; its first heads are created earlier.
    pool: Arc<OnceLock<Weak<Pool>>>,
    admission: Arc<Admission>,
    dirty: Arc<DirtyHeads>,
    /// The txgs in which it is marked dirty, by slot, so that marking is cheap.
    marked: [AtomicU64; 4],
    needed_features: Mutex<BTreeSet<&'static str>, rank::Leaf>,
    has_needed_features: AtomicBool,
    log: OnceLock<AttachedLog>,
    /// How far a resumable receive is, by txg.
    pub(crate) resume: Mutex<BTreeMap<Txg, ResumePoint>, rank::Leaf>,
}

impl std::fmt::Debug for HeadDataset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeadDataset")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// How often a request waits for a txg before the pool counts as full. Each txg clears all promises, but
/// other requests may promise the space again first.
const RETRIES_MAX: u32 = 1000;

impl HeadDataset {
    pub(crate) fn new(
        (id, directory): (ObjectId, ObjectId),
        set: Arc<ObjectSet>,
        settings: Settings,
        pool: Arc<OnceLock<Weak<Pool>>>,
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
            resume: Mutex::default(),
        }
    }

    /// The object id in the MOS.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.id
    }
    /// The object id of its directory.
    #[must_use]
    pub fn directory(&self) -> ObjectId {
        self.directory
    }
    /// Whether it is a file system or a volume.
    #[must_use]
    pub fn kind(&self) -> ObjectSetKind {
        self.set.kind()
    }
    /// Its object set.
    #[must_use]
    pub fn set(&self) -> Arc<ObjectSet> {
        Arc::clone(&self.set)
    }
    /// The current settings. A change of properties replaces them, so do not keep them.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read())
    }
    pub(crate) fn set_settings(&self, settings: Settings) {
        *self.settings.write() = Arc::new(settings);
    }

    /// The pool of the dataset.
    ///
    /// # Errors
    /// If the pool was closed.
    pub fn pool(&self) -> Result<Arc<Pool>, DatasetError> {
        self.pool
            .get()
            .and_then(Weak::upgrade)
            .ok_or_else(|| DatasetError::Pool(crate::datasets::closed()))
    }

    /// Starts a transaction in the open txg. Waits while too much data is dirty, or while unfinished
    /// transactions might exhaust a quota or the pool.
    ///
    /// # Errors
    /// [`Refusal::OverQuota`], [`Refusal::NoSpace`], or an error if the pool is suspended.
    pub fn begin(&self, estimate: Estimate) -> Result<Transaction, DatasetError> {
        let pool = self.pool()?;
        let mut request = Request {
            bytes: (pool.worst_case_bytes(estimate.bytes)).saturating_add(estimate.cloned_bytes),
            cloned_bytes: estimate.cloned_bytes,
            under_way_max: 0,
            is_freeing: estimate.is_freeing,
            pool_limit: 0,
        };
        let mut retries = match estimate.wait {
            BeginWait::Never => 0,
            _ => RETRIES_MAX,
        };
        loop {
            request.pool_limit = self.admission.limit(estimate.is_freeing);
            request.under_way_max = pool
                .worst_case_bytes(pool.groups().dirty_bytes())
                .saturating_add(pool.worst_case_of_rests(pool.groups().rest_bytes()))
                .saturating_add(self.admission.cloned_bytes());
            let why = match self.admission.judge(self.id, request) {
                Verdict::Admitted => break,
                // What clones and dedup save in a txg is known when it is complete.
                Verdict::NoSpace if retries > 0 && self.admission.may_rise() => {
                    retries -= 1;
                    pool.sync()?;
                    continue;
                }
                // The space of removed files becomes available when their txg is written.
                Verdict::NoSpace | Verdict::OverQuota
                    if retries > 0 && self.admission.is_freeing(pool.groups().synced_txg()) =>
                {
                    mark::hit("space-known-after-frees");
                    retries -= 1;
                    pool.sync()?;
                    continue;
                }
                Verdict::Later if retries > 0 => {
                    mark::hit("space-known-after-txg");
                    retries -= 1;
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
            written_bytes: estimate.written_bytes,
            freed_blocks: estimate.freed_blocks,
            wait: estimate.wait,
        })?;
        if !estimate.is_freeing {
            self.admission.promise(self.id, tx.txg(), request.bytes);
            (self.admission).promise_clones(tx.txg(), estimate.cloned_bytes);
        } else if estimate.bytes > 0 {
            self.admission.note_freeing(tx.txg());
        }
        self.mark(tx.txg());
        Ok(tx)
    }

    /// Records that the dataset changes in `txg`.
    pub(crate) fn mark(&self, txg: Txg) {
        let slot = &self.marked[(txg.0 % 4) as usize];
        if slot.swap(txg.0, Ordering::AcqRel) != txg.0 {
            self.dirty.mark(txg, self.id);
        }
    }

    /// Marks the dataset as using a per-dataset feature, starting with the next txg written. For features
    /// that do not show in blocks: a name above 255 bytes, a large microzap.
    pub fn use_feature(&self, tx: &Transaction, guid: &'static str) {
        self.needed_features.lock().insert(guid);
        self.has_needed_features.store(true, Ordering::Release);
        self.mark(tx.txg());
    }
    /// Stops marking the dataset as using a feature in each txg.
    pub(crate) fn forget_feature(&self, guid: &str) {
        self.needed_features.lock().remove(guid);
    }
    /// Its intent log, if it has one.
    #[must_use]
    pub fn log(&self) -> Option<Arc<dyn HeadLog>> {
        self.log.get().map(AttachedLog::log)
    }
    /// Attaches an intent log unless it already has one, and returns its log. The dataset stays open while
    /// it has a log.
    ///
    /// # Errors
    /// [`OtherLog`] if it has a log of another type.
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

    /// Waits until all changes started so far are on stable storage.
    ///
    /// # Errors
    /// If the pool is suspended.
    pub fn sync(&self) -> Result<(), DatasetError> {
        self.pool()?.sync()?;
        Ok(())
    }

    /// Used and available space, as of the last txg written.
    ///
    /// # Errors
    /// If its space accounting cannot be read.
    pub fn space(&self) -> Result<DatasetSpace, DatasetError> {
        let pool = self.pool()?;
        let view = crate::mos::MosView { pool: &pool };
        let phys = view.dataset(self.id)?;
        Ok(DatasetSpace {
            referenced_bytes: phys.referenced_bytes,
            available_bytes: view.available_in_head(self.id)?,
        })
    }
}
