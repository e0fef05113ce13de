//! An open file system.

use crate::attributes::AttributeTables;
use crate::error::FileError;
use crate::names::{Case, LONG_NAME_BYTES_MAX, NAME_BYTES_MAX, NameRules};
use crate::node::Node;
use crate::open_node::{NodeInner, OpenNode};
use crate::quota::Quotas;
use crate::settings::Settings;
use crate::transaction_source::{TransactionError, TransactionSource};
use crate::unlinked::Unlinked;
use crate::version::Versions;
use crate::writing::Writing;
use millpond_env::Env;
use millpond_env::sync::{Arc, Weak};
use millpond_object::{ObjectError, ObjectSet, ObjectSetView, ReadableObject};
use millpond_ondisk::dsl::keys::master_node as key;
use millpond_ondisk::{DecodeError, ObjectId, ObjectSetKind};
use millpond_sa::{Attributes, FileFlags, SaRegistry};
use millpond_zap::Zap;

/// The object id of the master node in every file system.
pub(crate) const MASTER_NODE: ObjectId = ObjectId(1);
/// The newest file system version, and that of new file systems.
pub const VERSION: u64 = 5;

/// The files of one object set. All threads share it.
///
/// It is open for reading a committed state, such as a snapshot, or for change. Reading a committed state takes
/// no lock, and writing calls on it fail with [`TransactionError::ReadOnly`]. Each change is made in one txg,
/// unless the operation says otherwise. Locks: `docs/internals/locks.md`.
pub struct FileSystem {
    weak: Weak<FileSystem>,
    store: Store,
    names: NameRules,
    root: ObjectId,
    versions: Versions,
    /// The table of files without a name. Old file systems may have none.
    unlinked: Option<ObjectId>,
    /// The hidden directory of shares that other systems create.
    shares: Option<ObjectId>,
}

/// Where the objects of the files are.
enum Store {
    Committed {
        set: Arc<ObjectSetView>,
        attributes: Arc<SaRegistry>,
    },
    Open(Box<Writing>),
}

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSystem")
            .field("dataset", &self.dataset())
            .finish_non_exhaustive()
    }
}

/// What the master node says.
struct Master {
    table: Zap,
    names: NameRules,
    root: ObjectId,
    version: u64,
    unlinked: Option<ObjectId>,
    shares: Option<ObjectId>,
}

impl Master {
    fn read(
        dataset: u64,
        kind: ObjectSetKind,
        object: impl FnOnce() -> Result<ReadableObject, ObjectError>,
    ) -> Result<Self, FileError> {
        if kind != ObjectSetKind::FileSystem {
            return Err(FileError::NotAFileSystem { dataset });
        }
        let table = Zap::of_readable(&object()?)?;
        let number = |name: &str| table.lookup_u64(name.as_bytes());
        let version = number(key::VERSION)?.ok_or_else(|| invalid(dataset, "no VERSION"))?;
        if version == 0 || version > VERSION {
            return Err(FileError::Version { dataset, version });
        }
        let root = number(key::ROOT)?.ok_or_else(|| invalid(dataset, "no ROOT"))?;
        let case = match number(key::CASE_SENSITIVITY)?.unwrap_or(0) {
            0 => Case::Sensitive,
            1 => Case::Insensitive,
            2 => Case::Mixed,
            _ => {
                let reason = "casesensitivity has a value that does not exist";
                return Err(invalid(dataset, reason));
            }
        };
        let normalisation = number(key::NORMALIZATION)?.unwrap_or(0);
        let is_utf8_only = number(key::UTF8_ONLY)?.unwrap_or(0) != 0;
        let unlinked = number(key::DELETE_QUEUE)?.filter(|id| *id != 0);
        let shares = number(key::SHARES)?.filter(|id| *id != 0);
        Ok(Self {
            names: NameRules::new(case, normalisation, is_utf8_only),
            root: ObjectId(root),
            version,
            unlinked: unlinked.map(ObjectId),
            shares: shares.map(ObjectId),
            table,
        })
    }
}

fn invalid(dataset: u64, reason: &'static str) -> FileError {
    FileError::Corrupt {
        dataset,
        object: MASTER_NODE,
        error: DecodeError::new("master node", reason, 0),
    }
}

impl FileSystem {
    /// Opens the file system of a committed object set, for reading.
    ///
    /// # Errors
    /// If the set is not a file system, has an unsupported version, or is locked, or if its master node
    /// cannot be read.
    pub fn open(set: Arc<ObjectSetView>) -> Result<Arc<Self>, FileError> {
        let object = || set.object(MASTER_NODE).map(ReadableObject::Committed);
        let master = Master::read(set.dataset(), set.kind(), object)?;
        let attributes = SaRegistry::open(&set)?;
        Ok(Self::new(master, Store::Committed { set, attributes }))
    }

    /// Opens the file system of an object set for reading and writing. Writes nothing.
    ///
    /// Call [`FileSystem::free_unlinked`] soon, to free the files that the last use left unlinked.
    ///
    /// # Errors
    /// As [`FileSystem::open`].
    pub fn open_for_change(
        set: Arc<ObjectSet>,
        source: Arc<dyn TransactionSource>,
        env: &Env,
        settings: Settings,
    ) -> Result<Arc<Self>, FileError> {
        let dataset = set.dataset();
        let object = || set.object(MASTER_NODE).map(ReadableObject::Open);
        let master = Master::read(dataset, set.kind(), object)?;
        let unlinked = master.unlinked;
        let unlinked = unlinked.ok_or_else(|| invalid(dataset, "no DELETE_QUEUE"))?;
        let unlinked = Unlinked::new(set.object(unlinked)?);
        let quotas = Quotas::read(&set, &master.table)?;
        let tables = AttributeTables::open(&set, env)?;
        let writing = Writing::new(set, source, env, settings, tables, quotas, unlinked);
        Ok(Self::new(master, Store::Open(Box::new(writing))))
    }

    fn new(master: Master, store: Store) -> Arc<Self> {
        Arc::new_cyclic(|weak| Self {
            weak: Weak::clone(weak),
            store,
            names: master.names,
            root: master.root,
            versions: Versions::new(master.version),
            unlinked: master.unlinked,
            shares: master.shares,
        })
    }

    /// The committed object set that holds the files; `None` if the file system is open for change.
    #[must_use]
    pub fn committed(&self) -> Option<&Arc<ObjectSetView>> {
        match &self.store {
            Store::Committed { set, .. } => Some(set),
            Store::Open(_) => None,
        }
    }
    /// The object set that holds the files; `None` if the file system is open only for reading.
    #[must_use]
    pub fn object_set(&self) -> Option<&Arc<ObjectSet>> {
        self.writing().ok().map(Writing::set)
    }
    /// Prefetches the dnodes of files that a reader has just listed, and may look at next.
    pub(crate) fn prefetch_files(&self, ids: impl Iterator<Item = ObjectId>) {
        match &self.store {
            Store::Committed { set, .. } => set.prefetch_dnodes(ids),
            Store::Open(writing) => writing.set().prefetch_dnodes(ids),
        }
    }
    /// The state for writing.
    ///
    /// # Errors
    /// [`TransactionError::ReadOnly`] if the file system is open only for reading.
    pub(crate) fn writing(&self) -> Result<&Writing, FileError> {
        match &self.store {
            Store::Open(writing) => Ok(writing),
            Store::Committed { .. } => Err(TransactionError::ReadOnly.into()),
        }
    }
    /// The dataset's object id in the MOS.
    fn dataset(&self) -> u64 {
        match &self.store {
            Store::Committed { set, .. } => set.dataset(),
            Store::Open(writing) => writing.set().dataset(),
        }
    }
    /// The current settings. A committed state has those of a read-only file system.
    #[must_use]
    pub fn settings(&self) -> Settings {
        match &self.store {
            Store::Committed { .. } => Settings::COMMITTED,
            Store::Open(writing) => writing.settings(),
        }
    }
    /// Changes the settings for later operations. Has no effect on a committed state.
    pub fn set_settings(&self, settings: Settings) {
        if let Ok(writing) = self.writing() {
            writing.set_settings(settings);
        }
    }
    /// The file system version, 1 to 5.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.versions.current()
    }
    pub(crate) fn versions(&self) -> &Versions {
        &self.versions
    }
    /// How names compare upper and lower case.
    #[must_use]
    pub fn case(&self) -> Case {
        self.names.case()
    }
    /// The Unicode normalization form for comparing names: 0 none, 0x10 D, 0x20 KD, 0x50 C, 0x60 KC.
    #[must_use]
    pub fn normalisation(&self) -> u64 {
        self.names.normalisation()
    }
    /// Whether names must be valid UTF-8.
    #[must_use]
    pub fn is_utf8_only(&self) -> bool {
        self.names.is_utf8_only()
    }
    pub(crate) fn names(&self) -> NameRules {
        self.names
    }
    /// The longest name that can be created, in bytes. Existing names may be longer.
    #[must_use]
    pub fn name_bytes_max(&self) -> usize {
        match self.settings().allows_long_names {
            true => LONG_NAME_BYTES_MAX,
            false => NAME_BYTES_MAX,
        }
    }
    /// Checks that a name may be created in a directory.
    pub(crate) fn check_new_name(&self, directory: ObjectId, name: &[u8]) -> Result<(), FileError> {
        let is_root = directory == self.root;
        self.names.check_new(name, self.name_bytes_max(), is_root)
    }
    /// The object id of the root directory.
    #[must_use]
    pub fn root_id(&self) -> ObjectId {
        self.root
    }
    /// The object id of the hidden directory of shares (`.zfs/shares` on other systems), if there is one.
    #[must_use]
    pub fn shares_id(&self) -> Option<ObjectId> {
        self.shares
    }
    /// The files of a committed state that have no name any more, by their object ids. `None` for old file systems
    /// that have no such table, and for those that are open for change.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn unlinked_set(&self) -> Result<Option<Zap>, FileError> {
        match (&self.store, self.unlinked) {
            (Store::Committed { set, .. }, Some(id)) => {
                let table = ReadableObject::Committed(set.object(id)?);
                Ok(Some(Zap::of_readable(&table)?))
            }
            _ => Ok(None),
        }
    }
    pub(crate) fn weak(&self) -> Weak<Self> {
        Weak::clone(&self.weak)
    }
    pub(crate) fn shared(&self) -> Result<Arc<Self>, FileError> {
        // Fails only while the file system is being dropped.
        self.weak.upgrade().ok_or(FileError::Stale)
    }

    /// The root directory.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn root(&self) -> Result<Node, FileError> {
        self.node(self.root)
    }

    /// The file with this object id.
    ///
    /// # Errors
    /// If there is no such object, if it is not a file, or if its attributes cannot be read. In a file system
    /// that is open for change, [`FileError::Stale`] if there is no such object, if it is part of a file's
    /// extended attributes, or if its last name is removed and it is not in use.
    pub fn node(&self, id: ObjectId) -> Result<Node, FileError> {
        let files = self.shared()?;
        match &self.store {
            Store::Committed { set, attributes } => {
                let object = set.object(id)?;
                let attributes = attributes.attributes(&object)?;
                Node::committed(files, object, attributes)
            }
            Store::Open(_) => Ok(Node::open(files, self.open_node(id)?)),
        }
    }

    /// The file with this object id, open for change.
    pub(crate) fn open_node(&self, id: ObjectId) -> Result<OpenNode, FileError> {
        let writing = self.writing()?;
        let reservation = match writing.cache().get(id) {
            Ok(inner) => return Ok(OpenNode { inner }),
            Err(reservation) => reservation,
        };
        let object = match writing.set().object(id) {
            Ok(object) => object,
            Err(ObjectError::NotFound { .. }) => return Err(FileError::Stale),
            Err(error) => return Err(error.into()),
        };
        let state = writing.tables().read(&object)?;
        let kind = state
            .kind()
            .ok_or_else(|| self.corrupt(id, "mode is of no kind of file"))?;
        // Hidden objects of extended attributes are protected by their file's locks, so they never become
        // nodes.
        let is_hidden = state.flags.contains(FileFlags::XATTR) && !writing.replay().is_on();
        if state.links == 0 || is_hidden {
            return Err(FileError::Stale);
        }
        let inner = Arc::new(NodeInner::new(self.weak(), object, kind, state));
        reservation.fill(&inner);
        Ok(OpenNode { inner })
    }

    /// The file with this object id and generation, as handles of network file systems name it.
    ///
    /// # Errors
    /// As [`FileSystem::node`]; [`FileError::Stale`] also if the id belongs to another file now.
    pub fn node_of_generation(&self, id: ObjectId, generation: u64) -> Result<Node, FileError> {
        let node = self.node(id)?;
        if node.generation() != generation || node.is_unlinked() {
            return Err(FileError::Stale);
        }
        Ok(node)
    }

    /// An object of the file system, for reading.
    pub(crate) fn object(&self, id: ObjectId) -> Result<ReadableObject, FileError> {
        Ok(match &self.store {
            Store::Committed { set, .. } => set.object(id)?.into(),
            Store::Open(writing) => writing.set().object(id)?.into(),
        })
    }
    /// Reads the attributes of a file's object.
    pub(crate) fn attributes(&self, object: &ReadableObject) -> Result<Attributes, FileError> {
        match (object, &self.store) {
            (ReadableObject::Committed(object), Store::Committed { attributes, .. }) => {
                Ok(attributes.attributes(object)?)
            }
            (ReadableObject::Open(object), Store::Open(writing)) => {
                writing.tables().attributes(object)
            }
            // No caller mixes objects of two file systems.
            _ => Err(FileError::Stale),
        }
    }

    /// The object ids of files that were deleted while they were open and are not freed yet.
    ///
    /// # Errors
    /// If the unlinked set cannot be read.
    pub fn unlinked(&self) -> Result<Vec<ObjectId>, FileError> {
        if let Ok(writing) = self.writing() {
            return writing.unlinked().first_ids(usize::MAX);
        }
        let Some(id) = self.unlinked else {
            return Ok(vec![]);
        };
        let mut found = vec![];
        for entry in Zap::of_readable(&self.object(id)?)?.iter() {
            found.extend(entry?.value.first().map(ObjectId));
        }
        Ok(found)
    }

    pub(crate) fn corrupt(&self, object: ObjectId, reason: &'static str) -> FileError {
        self.undecodable(object, DecodeError::new("file", reason, 0))
    }
    pub(crate) fn undecodable(&self, object: ObjectId, error: DecodeError) -> FileError {
        FileError::Corrupt {
            dataset: self.dataset(),
            object,
            error,
        }
    }
}
