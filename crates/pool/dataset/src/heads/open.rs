//! Opens heads for changes, and closes them.

use crate::datasets::Datasets;
use crate::heads::admission::Admission;
use crate::heads::head::{DirtyHeads, HeadDataset};
use crate::mos::{During, MosView};
use crate::{DatasetError, DatasetName, KeyRefusal, NameTail, Refusal};
use millpond_env::sync::Arc;
use millpond_object::{ObjectSet, WriteKey};
use millpond_ondisk::{DslDatasetFlags, DslDatasetPhys, ObjectId, ObjectSetKind, Txg};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(crate) struct Heads {
    pub(crate) open: BTreeMap<ObjectId, Arc<HeadDataset>>,
    /// Heads destroyed or swapped in a txg that is not committed.
    pub(crate) gone: BTreeSet<ObjectId>,
    /// The number of open heads at which idle heads are closed again.
    pub(crate) shed_at: usize,
}

/// With which key a head is opened.
enum OpenKey {
    /// With this one; `None` if it is not encrypted.
    Loaded(Option<Arc<WriteKey>>),
    /// With none, although it is encrypted: for a raw stream.
    Unknown,
}

/// The remainder of a head that was closed permanently.
pub(crate) struct ClosedHead {
    /// Its intent log, whose blocks must be freed.
    pub(crate) log: Option<Arc<dyn crate::heads::log::HeadLog>>,
}

/// Idle heads are closed once this many heads are open, or twice the number that remained after the last
/// check, if that is more.
const IDLE_HEADS_MAX: usize = 64;

impl Datasets {
    /// Opens a file system or volume for changes. All callers share the same object.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`]; [`Refusal::Inconsistent`] for an unfinished receive;
    /// [`DatasetError::Locked`] for an encrypted dataset whose key is not loaded; [`DatasetError::OldKey`].
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
        let phys = view.dataset(head.dataset)?;
        // One that is being received is open too.
        if phys.flags.contains(DslDatasetFlags::INCONSISTENT) {
            return Err(Refusal::error(name, Refusal::Inconsistent));
        }
        if let Some(open) = heads.open.get(&head.dataset) {
            return Ok(Arc::clone(open));
        }
        let key = OpenKey::Loaded(self.write_key(&view, name, phys.directory)?);
        self.open_closed(&view, &mut heads, (head.dataset, &phys), key)
    }

    /// Opens a dataset that is being received.
    pub(crate) fn open_incomplete(
        &self,
        id: ObjectId,
        name: &str,
        is_raw: bool,
    ) -> Result<Arc<HeadDataset>, DatasetError> {
        let pool = self.pool()?;
        let view = MosView { pool: &pool };
        let _names = self.names.read();
        let mut heads = self.heads.lock();
        if let Some(open) = heads.open.get(&id) {
            let is_meant = open.set().is_raw() == is_raw;
            return match is_meant {
                true => Ok(Arc::clone(open)),
                false => Err(Refusal::error(name, Refusal::Busy)),
            };
        }
        let phys = view.dataset(id)?;
        let key = match is_raw {
            true => OpenKey::Unknown,
            false => OpenKey::Loaded(self.write_key(&view, name, phys.directory)?),
        };
        self.open_closed(&view, &mut heads, (id, &phys), key)
    }

    fn open_closed(
        &self,
        view: &MosView<'_>,
        heads: &mut Heads,
        (id, phys): (ObjectId, &DslDatasetPhys),
        key: OpenKey,
    ) -> Result<Arc<HeadDataset>, DatasetError> {
        let directory = phys.directory;
        heads.shed(&self.dirty, &self.admission);
        let settings = view.settings(directory)?;
        let policy = view.write_policy(&settings, ObjectSetKind::FileSystem);
        let store = Arc::clone(view.pool.store());
        let root = phys.block_pointer;
        let set = match key {
            OpenKey::Loaded(key) => ObjectSet::open(store, id.0, root, policy, key),
            OpenKey::Unknown => ObjectSet::open_raw(store, id.0, root, policy),
        };
        let set = set.during("dataset")?;
        set.set_policy(view.write_policy(&settings, set.kind()));
        self.learn(view, id)?;
        let open = self.new_head((id, directory), set, settings);
        heads.open.insert(id, Arc::clone(&open));
        Ok(open)
    }

    /// The key with which a head's blocks are encrypted; `None` if it is not encrypted.
    pub(crate) fn write_key(
        &self,
        view: &MosView<'_>,
        name: &str,
        directory: ObjectId,
    ) -> Result<Option<Arc<WriteKey>>, DatasetError> {
        let name = || name.to_owned();
        let Some(found) = view.found_key(directory)? else {
            return Ok(None);
        };
        let key = self
            .keys
            .unwrap(&found)
            .map_err(|error| DatasetError::Key {
                name: name(),
                reason: error.to_string(),
            })?;
        let key = key.ok_or_else(|| DatasetError::Locked { name: name() })?;
        match key.version() {
            0 => Err(DatasetError::OldKey { name: name() }),
            _ => Ok(Some(WriteKey::new(key, view.pool.env()))),
        }
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

    /// Whether [`Datasets::close_for_good`] would close a head.
    pub(crate) fn is_closable(&self, head: ObjectId, txg: Txg) -> bool {
        let heads = self.heads.lock();
        let open = heads.open.get(&head);
        let is_held = open.is_some_and(|open| Arc::strong_count(open) > 1);
        !is_held && !self.dirty.is_dirty_after(head, txg)
    }

    /// Like [`Datasets::close_for_good`], for a dataset that only the caller holds. Returns whether it is closed.
    pub(crate) fn close_received(&self, head: &Arc<HeadDataset>, txg: Txg) -> bool {
        let id = head.id();
        let mut heads = self.heads.lock();
        let holders = match heads.open.contains_key(&id) {
            true => 2,
            false => 1,
        };
        if Arc::strong_count(head) > holders || self.dirty.is_dirty_after(id, txg) {
            return false;
        }
        heads.open.remove(&id);
        heads.gone.insert(id);
        self.admission.forget_head(id);
        true
    }

    /// Allows a head that was closed for a swap to be opened again.
    pub(crate) fn reopen(&self, head: ObjectId) {
        self.heads.lock().gone.remove(&head);
    }

    /// Closes the open heads with the keys of an encryption root and forgets these keys. Returns false if the root's
    /// key is not loaded. Logs that were not replayed wait for the key again.
    ///
    /// # Errors
    /// [`Refusal::Busy`] if one of the heads is in use; [`DatasetError::NotFound`].
    pub fn unload_key(&self, name: &str) -> Result<bool, DatasetError> {
        let busy = || Refusal::error(name, Refusal::Busy);
        let found = self.task(
            |s| {
                let directory = s.find_head(name)?.directory;
                let Some(root) = s.encryption_root(directory)? else {
                    return Err(Refusal::error(name, Refusal::Key(KeyRefusal::NotEncrypted)));
                };
                let open: Vec<_> = self.heads.lock().open.values().cloned().collect();
                let mut own = vec![];
                for head in open {
                    if s.encryption_root(head.directory())? == Some(root) {
                        // The map holds one, this list another.
                        if Arc::strong_count(&head) > 2 {
                            return Err(busy());
                        }
                        own.push(head);
                    }
                }
                Ok((root, own))
            },
            |s, (root, own)| {
                // The heads free the blocks of their logs, so the logs end before the heads are closed.
                own.iter().try_for_each(|head| s.end_log(head))?;
                let ids: Vec<ObjectId> = own.iter().map(|head| head.id()).collect();
                Ok((root, ids))
            },
        );
        let (root, ids) = found?;
        // A thread that opens a head looks its key up under the same lock.
        let mut heads = self.heads.lock();
        let may_close = |id: &ObjectId| match heads.open.get(id) {
            Some(head) => {
                Arc::strong_count(head) == 1
                    && !self.dirty.is_dirty(*id)
                    && (head.set().log_header() == [0; 24] || self.has_waiting_log(*id))
            }
            None => true,
        };
        if !ids.iter().all(may_close) {
            return Err(busy());
        }
        for id in &ids {
            heads.open.remove(id);
            self.admission.forget_head(*id);
        }
        Ok(self.keys.forget(root))
    }
}

impl Heads {
    /// Closes heads that are not in use and have nothing to write.
    pub(crate) fn shed(&mut self, dirty: &DirtyHeads, admission: &Admission) {
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
