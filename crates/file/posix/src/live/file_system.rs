//! A file system that is open for changes.

use super::attributes::AttributeTables;
use super::cache::NodeCache;
use super::names::NameRules;
use super::node::{LiveNode, NodeInner};
use super::quota::Quotas;
use super::records::ReplayState;
use super::settings::{Atime, Settings};
use super::state::{Lists, NodeState};
use super::transaction_source::{Estimate, TransactionError, TransactionSource};
use super::unlinked::Reaper;
use crate::error::FileError;
use crate::{Case, FileKind};
use millpond_env::Env;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex, RwLock, Weak};
use millpond_object::{Object, ObjectSet};
use millpond_ondisk::dsl::keys::master_node as key;
use millpond_ondisk::{DecodeError, ObjectId, ObjectSetKind};
use millpond_sa::{FileFlags, Timestamp};
use millpond_txg::{BeginWait, Transaction};
use millpond_zap::{NameMatch, Zap};

/// The object id of the master node in every file system.
pub(crate) const MASTER_NODE: ObjectId = ObjectId(1);
/// The only file system version that is written. It is also the newest version.
pub const VERSION: u64 = 5;
/// The most bytes that changing one node's attributes dirties: its block of dnodes and a spill block.
pub(crate) const NODE_BYTES: u64 = 48 << 10;
/// The most bytes that adding or removing one entry dirties: two leaves, the header, a block of a table.
pub(crate) const ENTRY_BYTES: u64 = 128 << 10;

/// The files of one object set, open for changes. All threads share it.
///
/// Each operation makes its changes in one txg, unless it says otherwise. Locks: see the table in
/// `ARCHITECTURE.md`.
pub struct LiveFileSystem {
    weak: Weak<LiveFileSystem>,
    set: Arc<ObjectSet>,
    begin: Arc<dyn TransactionSource>,
    env: Env,
    settings: RwLock<Settings>,
    version: AtomicU64,
    root: ObjectId,
    normalisation: u64,
    is_utf8_only: bool,
    case: Case,
    pub(crate) tables: AttributeTables,
    pub(crate) quotas: Quotas,
    cache: NodeCache,
    reaper: Reaper,
    /// Held while a directory gets another parent. The chain of parents thus does not change during a walk.
    pub(crate) moves: Mutex<()>,
    /// Held while the master node changes, from before the transaction begins.
    pub(crate) master: Mutex<()>,
    pub(crate) replay: ReplayState,
}

impl std::fmt::Debug for LiveFileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveFileSystem")
            .field("dataset", &self.set.dataset())
            .finish_non_exhaustive()
    }
}

impl LiveFileSystem {
    /// Opens the file system of an object set. Writes nothing.
    ///
    /// Call [`LiveFileSystem::free_unlinked`] soon, to free the files that the last use left unlinked. A file
    /// system of a version below 5 is read-only until [`LiveFileSystem::raise_version`].
    ///
    /// # Errors
    /// If the set is not a file system, has an unsupported version, or its tables cannot be read.
    pub fn open(
        set: Arc<ObjectSet>,
        begin: Arc<dyn TransactionSource>,
        env: &Env,
        settings: Settings,
    ) -> Result<Arc<Self>, FileError> {
        let dataset = set.dataset();
        if set.kind() != ObjectSetKind::FileSystem {
            return Err(FileError::NotAFileSystem { dataset });
        }
        let master = Zap::from_source(set.object(MASTER_NODE)?)?;
        let number = |name: &str| master.lookup_u64(name.as_bytes());
        let invalid = |reason| FileError::Corrupt {
            dataset,
            object: MASTER_NODE,
            error: DecodeError::new("master node", reason, 0),
        };
        let version = number(key::VERSION)?.ok_or_else(|| invalid("no VERSION"))?;
        if version == 0 || version > VERSION {
            return Err(FileError::Version { dataset, version });
        }
        let root = number(key::ROOT)?.ok_or_else(|| invalid("no ROOT"))?;
        let unlinked = number(key::DELETE_QUEUE)?.ok_or_else(|| invalid("no DELETE_QUEUE"))?;
        let case = match number(key::CASE_SENSITIVITY)?.unwrap_or(0) {
            0 => Case::Sensitive,
            1 => Case::Insensitive,
            2 => Case::Mixed,
            _ => return Err(invalid("casesensitivity has a value that does not exist")),
        };
        let normalisation = number(key::NORMALIZATION)?.unwrap_or(0);
        let is_utf8_only = number(key::UTF8_ONLY)?.unwrap_or(0) != 0;
        let quotas = Quotas::read(&set, &master)?;
        let tables = AttributeTables::open(&set, env)?;
        let unlinked = set.object(ObjectId(unlinked))?;
        drop(master);
        Ok(Arc::new_cyclic(|weak| Self {
            weak: Weak::clone(weak),
            begin,
            env: env.clone(),
            settings: RwLock::new(settings),
            version: AtomicU64::new(version),
            root: ObjectId(root),
            normalisation,
            is_utf8_only,
            case,
            tables,
            quotas,
            cache: NodeCache::default(),
            reaper: Reaper::new(unlinked),
            moves: Mutex::new(()),
            master: Mutex::new(()),
            replay: ReplayState::default(),
            set,
        }))
    }

    /// The object set that holds the files.
    #[must_use]
    pub fn object_set(&self) -> &Arc<ObjectSet> {
        &self.set
    }
    /// The current settings.
    #[must_use]
    pub fn settings(&self) -> Settings {
        *self.settings.read()
    }
    /// Changes the settings for later operations.
    pub fn set_settings(&self, settings: Settings) {
        *self.settings.write() = settings;
    }
    /// How names compare upper and lower case.
    #[must_use]
    pub fn case(&self) -> Case {
        self.case
    }
    /// The Unicode normalization form for comparing names: 0 none, 0x10 D, 0x20 KD, 0x50 C, 0x60 KC.
    #[must_use]
    pub fn normalisation(&self) -> u64 {
        self.normalisation
    }
    /// The object id of the root directory.
    #[must_use]
    pub fn root_id(&self) -> ObjectId {
        self.root
    }
    pub(crate) fn cache(&self) -> &NodeCache {
        &self.cache
    }
    pub(crate) fn reaper(&self) -> &Reaper {
        &self.reaper
    }
    pub(crate) fn env(&self) -> &Env {
        &self.env
    }
    pub(crate) fn weak(&self) -> Weak<Self> {
        Weak::clone(&self.weak)
    }

    /// The root directory.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn root(&self) -> Result<LiveNode, FileError> {
        self.node(self.root)
    }

    /// The file with this object id.
    ///
    /// # Errors
    /// [`FileError::Stale`] if there is no such object, if it is part of a file's extended attributes, or if
    /// its last name is removed and it is not in use. Otherwise if it is not a file or cannot be read.
    pub fn node(&self, id: ObjectId) -> Result<LiveNode, FileError> {
        let reservation = match self.cache.get(id) {
            Ok(inner) => return Ok(LiveNode { inner }),
            Err(reservation) => reservation,
        };
        let object = match self.set.object(id) {
            Ok(object) => object,
            Err(millpond_object::ObjectError::NotFound { .. }) => return Err(FileError::Stale),
            Err(error) => return Err(error.into()),
        };
        let state = self.tables.read(&object)?;
        let kind = state
            .kind()
            .ok_or_else(|| self.corrupt(id, "mode is of no kind of file"))?;
        // Hidden objects of extended attributes are protected by their file's locks, so they never become
        // nodes.
        let is_hidden = state.flags.contains(FileFlags::XATTR) && !self.replay.is_on();
        if state.links == 0 || is_hidden {
            return Err(FileError::Stale);
        }
        let inner = Arc::new(NodeInner::new(self.weak(), object, kind, state));
        reservation.fill(&inner);
        Ok(LiveNode { inner })
    }

    /// The file with this object id and generation, as handles of network file systems name it.
    ///
    /// # Errors
    /// As [`LiveFileSystem::node`]; [`FileError::Stale`] also if the id belongs to another file now.
    pub fn node_of_generation(&self, id: ObjectId, generation: u64) -> Result<LiveNode, FileError> {
        let node = self.node(id)?;
        if node.generation() != generation || node.is_unlinked() {
            return Err(FileError::Stale);
        }
        Ok(node)
    }

    pub(crate) fn corrupt(&self, object: ObjectId, reason: &'static str) -> FileError {
        FileError::Corrupt {
            dataset: self.set.dataset(),
            object,
            error: DecodeError::new("file", reason, 0),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let ns = self.env.clock.wall_ns();
        Timestamp {
            seconds: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
            nanoseconds: ns % 1_000_000_000,
        }
    }

    /// The file system version, 1 to 5.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Checks that the version can be raised to `to`.
    ///
    /// # Errors
    /// [`FileError::Invalid`] for a version that does not exist or is below the current one.
    pub fn check_new_version(&self, to: u64) -> Result<(), FileError> {
        if to > VERSION {
            return Err(FileError::invalid("no file system is of this version"));
        }
        if to < self.version() {
            return Err(FileError::invalid("versions are not lowered"));
        }
        Ok(())
    }

    /// Raises the version. Returns the previous one.
    ///
    /// From version 5 on the file system can be changed. A file keeps its old format until it changes. The
    /// file system may be in use during this call. The property `readonly` does not prevent it, because no
    /// file changes.
    ///
    /// # Errors
    /// [`FileError::Invalid`] for a version that does not exist or is below the current one; if the master
    /// node cannot be changed, or no transaction can begin.
    pub fn raise_version(&self, to: u64) -> Result<u64, FileError> {
        let _master = self.master.lock();
        let from = self.version();
        self.check_new_version(to)?;
        if to == from {
            return Ok(from);
        }
        let tx = self.begin.begin(Estimate {
            bytes: 2 * NODE_BYTES + 2 * ENTRY_BYTES,
            ..Estimate::default()
        })?;
        self.record_nothing(&tx, None);
        let master = self.set.object(MASTER_NODE)?;
        let master = super::attributes::zap(&master, &tx);
        let attributes = key::SYSTEM_ATTRIBUTES.as_bytes();
        if to == VERSION && master.lookup_u64(attributes)?.is_none_or(|id| id == 0) {
            let made = self.tables.make(&tx, &self.env)?;
            master.update_u64(attributes, made.0)?;
        }
        master.update_u64(key::VERSION.as_bytes(), to)?;
        self.version.store(to, Ordering::Release);
        Ok(from)
    }

    pub(crate) fn check_writable(&self) -> Result<(), FileError> {
        let version = self.version();
        if version < VERSION {
            return Err(FileError::OldVersion { version });
        }
        if self.settings.read().is_read_only && !self.replay.is_on() {
            return Err(TransactionError::ReadOnly.into());
        }
        Ok(())
    }
    /// Begins a transaction. The caller already holds every lock that it needs.
    pub(crate) fn begin(&self, bytes: u64) -> Result<Transaction, FileError> {
        self.check_writable()?;
        // Replayed operations were admitted once already.
        let is_freeing = self.replay.is_on();
        Ok(self.begin.begin(Estimate {
            bytes,
            is_freeing,
            ..Estimate::default()
        })?)
    }
    /// Like [`LiveFileSystem::begin`], for a change that frees more space than it takes: up to `freed_blocks`
    /// blocks of a file, 0 for a few.
    pub(crate) fn begin_freeing(
        &self,
        bytes: u64,
        freed_blocks: u64,
    ) -> Result<Transaction, FileError> {
        self.check_writable()?;
        Ok(self.begin.begin(Estimate {
            bytes,
            is_freeing: true,
            freed_blocks,
            ..Estimate::default()
        })?)
    }
    /// Begins a small transaction if that is possible without waiting.
    fn begin_at_once(&self, bytes: u64) -> Result<Transaction, FileError> {
        self.check_writable()?;
        Ok(self.begin.begin(Estimate {
            bytes,
            wait: BeginWait::Never,
            ..Estimate::default()
        })?)
    }
    pub(crate) fn port(&self) -> &dyn TransactionSource {
        &*self.begin
    }

    /// How requested names are compared with stored names.
    pub(crate) fn name_match(&self) -> NameMatch {
        match (self.case, self.normalisation) {
            (Case::Insensitive, _) => NameMatch::Normalised,
            (Case::Mixed, _) => NameMatch::NormalisedKeepingCase,
            (Case::Sensitive, 0) => NameMatch::Exact,
            (Case::Sensitive, _) => NameMatch::Normalised,
        }
    }
    pub(crate) fn name_rules(&self) -> NameRules {
        NameRules {
            is_utf8_only: self.is_utf8_only,
            allows_long_names: self.settings.read().allows_long_names,
        }
    }

    /// Stores the new attributes of a node and makes them visible. The caller has held the node's change lock
    /// since before the transaction began.
    pub(crate) fn store(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        state: NodeState,
        lists: &Lists,
    ) -> Result<(), FileError> {
        let state = self.write_attributes(tx, &node.object, &node.state(), state, lists)?;
        node.show(state);
        Ok(())
    }

    /// Restores a node's attributes after the rest of an operation failed with `error`. Returns `error`.
    pub(crate) fn undo_store(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        old: NodeState,
        error: FileError,
    ) -> FileError {
        let unfinished = tx.unfinished();
        if self.store(tx, node, old, &Lists::default()).is_ok() {
            unfinished.done();
        }
        error
    }

    /// Checks that the attributes of these nodes can be read, so that storing them later in a transaction
    /// does not fail.
    ///
    /// An operation that changes several objects calls this before its first change.
    pub(crate) fn check_attributes(&self, nodes: &[&NodeInner]) -> Result<(), FileError> {
        for node in nodes {
            self.tables.read(&node.object)?;
        }
        Ok(())
    }

    /// Like [`LiveFileSystem::store`], for an object that is never a node: hidden extended attribute
    /// directories and their entries.
    pub(crate) fn store_hidden(
        &self,
        tx: &Transaction,
        object: &Arc<Object>,
        old: &NodeState,
        new: &NodeState,
    ) -> Result<(), FileError> {
        self.write_attributes(tx, object, old, *new, &Lists::default())
            .map(|_| ())
    }

    /// Stores the attributes that differ. Returns the resulting state.
    fn write_attributes(
        &self,
        tx: &Transaction,
        object: &Arc<Object>,
        old: &NodeState,
        mut new: NodeState,
        lists: &Lists,
    ) -> Result<NodeState, FileError> {
        let mut changes = new.changes_from(old, lists);
        let is_link = new.kind() == Some(FileKind::Symlink);
        if !changes.is_empty() && !is_link && AttributeTables::is_old(object) {
            new.leave_old_form(self.settings.read().has_projects);
            changes = new.changes_from(old, lists);
        }
        self.tables.write(tx, object, &changes)?;
        Ok(new)
    }

    /// Whether reading a file now must update its access time.
    pub(crate) fn wants_atime(&self, state: &NodeState, now: Timestamp) -> bool {
        let settings = self.settings.read();
        let day = 24 * 60 * 60;
        !settings.is_read_only
            && match settings.atime {
                Atime::Off => false,
                Atime::Always => true,
                Atime::Relative => {
                    state.atime <= state.mtime
                        || state.atime <= state.ctime
                        || now.seconds.saturating_sub(state.atime.seconds) >= day
                }
            }
    }

    /// Updates the access time after a read, if the settings and the file's times require it.
    ///
    /// Does nothing if it would have to wait for another change of the file or for a transaction. Reads
    /// therefore neither fail nor wait because of it.
    pub fn touch_atime(&self, node: &LiveNode) {
        let now = self.now();
        if !self.wants_atime(&node.state(), now) {
            return;
        }
        let Some(_change) = node.try_lock_changes() else {
            return;
        };
        let Ok(tx) = self.begin_at_once(NODE_BYTES) else {
            return;
        };
        let mut state = node.state();
        state.atime = now;
        // The access time is best effort, so errors are ignored.
        let _ = self.store(&tx, &node.inner, state, &Lists::default());
    }

    /// Waits until everything that was changed before the call is on stable storage.
    ///
    /// # Errors
    /// If the pool is suspended before that.
    pub fn sync(&self) -> Result<(), FileError> {
        Ok(self.begin.wait_open_synced()?)
    }

    /// Puts all earlier changes of a file on stable storage, and everything they depend on: the names created
    /// and removed until then.
    ///
    /// # Errors
    /// If the pool is suspended before that.
    pub fn fsync(&self, node: &LiveNode) -> Result<(), FileError> {
        match self.begin.log() {
            Some(log) => Ok(log.commit(Some(node.id()))?),
            None => self.sync(),
        }
    }

    /// Puts everything that was changed before the call on stable storage.
    ///
    /// # Errors
    /// If the pool is suspended before that.
    pub fn commit_log(&self) -> Result<(), FileError> {
        match self.begin.log() {
            Some(log) => Ok(log.commit(None)?),
            None => self.sync(),
        }
    }

    /// Drops cached nodes that are not in use, and frees those whose last name is removed.
    ///
    /// # Errors
    /// As [`LiveFileSystem::free_unlinked`].
    pub fn close_unused(&self) -> Result<(), FileError> {
        self.cache.clear();
        self.reap()
    }
}
