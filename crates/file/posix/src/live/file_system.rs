//! A file system open for change.

use super::attributes::AttributeTables;
use super::begin::{Begin, BeginError, Estimate};
use super::cache::NodeCache;
use super::error::FileError;
use super::names::NameRules;
use super::node::{LiveNode, NodeInner};
use super::quota::Quotas;
use super::records::ReplayState;
use super::settings::{Atime, Settings};
use super::state::{Lists, NodeState};
use super::unlinked::Reaper;
use crate::{Case, FileKind, PosixError};
use millpond_env::Env;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex, RwLock, Weak};
use millpond_object::{LiveObject, LiveObjectSet};
use millpond_ondisk::dsl::keys::master_node as key;
use millpond_ondisk::{DecodeError, ObjectId, ObjectSetKind};
use millpond_sa::{FileFlags, Timestamp};
use millpond_txg::{BeginWait, Transaction};
use millpond_zap::{NameMatch, Zap};

/// Object number of the master node in every file system.
pub(crate) const MASTER_NODE: ObjectId = ObjectId(1);
/// The only version of file systems that is written, and the newest that there is.
pub const VERSION: u64 = 5;
/// What the change of one node's attributes makes dirty at most: its block of dnodes and a spill
/// block.
pub(crate) const NODE_BYTES: u64 = 48 << 10;
/// What adding or removing one entry makes dirty at most: two leaves, the head, a block of a table.
pub(crate) const ENTRY_BYTES: u64 = 128 << 10;

/// The files of one object set, open for change. Shared by all threads.
///
/// What an operation changes, it changes in one transaction group, unless it says otherwise. Locks:
/// the table in `ARCHITECTURE.md`.
pub struct LiveFileSystem {
    weak: Weak<LiveFileSystem>,
    set: Arc<LiveObjectSet>,
    begin: Arc<dyn Begin>,
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
    /// Held by whoever gives a directory another parent, so that the chain of parents stands still
    /// while it is walked.
    pub(crate) moves: Mutex<()>,
    /// Held by whoever changes the master node, from before its transaction begins.
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
    /// Opens the file system of an object set. Writes nothing; call
    /// [`LiveFileSystem::free_unlinked`] soon, for what was left unlinked by the last use. One of a version below
    /// 5 is only read until [`LiveFileSystem::raise_version`].
    ///
    /// # Errors
    /// If the set holds no file system, one of a version that does not exist, or its tables cannot be read.
    pub fn open(
        set: Arc<LiveObjectSet>,
        begin: Arc<dyn Begin>,
        env: &Env,
        settings: Settings,
    ) -> Result<Arc<Self>, FileError> {
        let dataset = set.dataset();
        if set.kind() != ObjectSetKind::FileSystem {
            return Err(PosixError::NotAFileSystem { dataset }.into());
        }
        let master = Zap::from_source(set.object(MASTER_NODE)?)?;
        let number = |name: &str| master.lookup_u64(name.as_bytes());
        let invalid = |reason| PosixError::Invalid {
            dataset,
            object: MASTER_NODE,
            error: DecodeError::new("master node", reason, 0),
        };
        let version = number(key::VERSION)?.ok_or_else(|| invalid("no VERSION"))?;
        if version == 0 || version > VERSION {
            return Err(PosixError::Version { dataset, version }.into());
        }
        let root = number(key::ROOT)?.ok_or_else(|| invalid("no ROOT"))?;
        let unlinked = number(key::DELETE_QUEUE)?.ok_or_else(|| invalid("no DELETE_QUEUE"))?;
        let case = match number(key::CASE_SENSITIVITY)?.unwrap_or(0) {
            0 => Case::Sensitive,
            1 => Case::Insensitive,
            2 => Case::Mixed,
            _ => return Err(invalid("casesensitivity has a value that does not exist").into()),
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

    /// The object set that the files lie in.
    #[must_use]
    pub fn object_set(&self) -> &Arc<LiveObjectSet> {
        &self.set
    }
    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> Settings {
        *self.settings.read()
    }
    /// Changes settings for operations from now on.
    pub fn set_settings(&self, settings: Settings) {
        *self.settings.write() = settings;
    }
    /// Whether case counts.
    #[must_use]
    pub fn case(&self) -> Case {
        self.case
    }
    /// The form that names are compared in: 0 none, 0x10 D, 0x20 KD, 0x50 C, 0x60 KC.
    #[must_use]
    pub fn normalisation(&self) -> u64 {
        self.normalisation
    }
    /// Object number of the root directory.
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

    /// The file with this object number.
    ///
    /// # Errors
    /// [`FileError::Stale`] if there is no such object, it is part of a file's extended attributes, or its
    /// last name is gone and nobody holds it; otherwise if it is no file or cannot be read.
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
        // What is hidden in extended attributes belongs to its file's locks: it is never a node.
        let is_hidden = state.flags.contains(FileFlags::XATTR) && !self.replay.is_on();
        if state.links == 0 || is_hidden {
            return Err(FileError::Stale);
        }
        let inner = Arc::new(NodeInner::new(self.weak(), object, kind, state));
        reservation.fill(&inner);
        Ok(LiveNode { inner })
    }

    /// The file with this object number and generation, as handles of network file systems name it.
    ///
    /// # Errors
    /// As [`LiveFileSystem::node`]; [`FileError::Stale`] also if the number belongs to another file now.
    pub fn node_of_generation(&self, id: ObjectId, generation: u64) -> Result<LiveNode, FileError> {
        let node = self.node(id)?;
        if node.generation() != generation || node.is_unlinked() {
            return Err(FileError::Stale);
        }
        Ok(node)
    }

    pub(crate) fn corrupt(&self, object: ObjectId, reason: &'static str) -> FileError {
        FileError::Failed(PosixError::Invalid {
            dataset: self.set.dataset(),
            object,
            error: DecodeError::new("file", reason, 0),
        })
    }

    pub(crate) fn now(&self) -> Timestamp {
        let ns = self.env.clock.wall_ns();
        Timestamp {
            seconds: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
            nanoseconds: ns % 1_000_000_000,
        }
    }

    /// Its version, 1 to 5.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether this may be its version from now on.
    ///
    /// # Errors
    /// [`FileError::Invalid`] for a version that does not exist or is below the present one.
    pub fn check_new_version(&self, to: u64) -> Result<(), FileError> {
        if to > VERSION {
            return Err(FileError::invalid("no file system is of this version"));
        }
        if to < self.version() {
            return Err(FileError::invalid("versions are not lowered"));
        }
        Ok(())
    }

    /// Raises the version; tells the one before. From version 5 on the file system can be changed; its files
    /// keep their old form until they are. It may be used meanwhile, and the property `readonly` does not count:
    /// this changes no file.
    ///
    /// # Errors
    /// [`FileError::Invalid`] for a version that does not exist or is below the present one; if the master node
    /// cannot be changed, or no transaction is to be had.
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
            return Err(BeginError::ReadOnly.into());
        }
        Ok(())
    }
    /// Begins a transaction. The caller holds every lock that it needs already.
    pub(crate) fn begin(&self, bytes: u64) -> Result<Transaction, FileError> {
        self.check_writable()?;
        // What was promised was admitted once.
        let is_freeing = self.replay.is_on();
        Ok(self.begin.begin(Estimate {
            bytes,
            is_freeing,
            ..Estimate::default()
        })?)
    }
    /// As [`LiveFileSystem::begin`], for a change that gives more space back than it takes: up to
    /// `freed_blocks` blocks of a file, 0 for a few.
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
    /// Begins a small transaction if that needs no waiting.
    fn begin_at_once(&self, bytes: u64) -> Result<Transaction, FileError> {
        self.check_writable()?;
        Ok(self.begin.begin(Estimate {
            bytes,
            wait: BeginWait::Never,
            ..Estimate::default()
        })?)
    }
    pub(crate) fn port(&self) -> &dyn Begin {
        &*self.begin
    }

    /// How names asked for are compared with stored ones.
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

    /// Stores what an operation made of a node's attributes and shows it. The caller holds the node's
    /// change lock since before the transaction began.
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

    /// Takes a change of attributes back, as the rest of an operation failed with `error`.
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

    /// Whether the attributes of these can be read, so that storing them later in a transaction does not fail: to be
    /// asked before the first change of an operation that changes several things.
    pub(crate) fn check_attributes(&self, nodes: &[&NodeInner]) -> Result<(), FileError> {
        for node in nodes {
            self.tables.read(&node.object)?;
        }
        Ok(())
    }

    /// As [`LiveFileSystem::store`], of an object that is no node in memory: hidden directories of
    /// extended attributes and what is in them.
    pub(crate) fn store_hidden(
        &self,
        tx: &Transaction,
        object: &Arc<LiveObject>,
        old: &NodeState,
        new: &NodeState,
    ) -> Result<(), FileError> {
        self.write_attributes(tx, object, old, *new, &Lists::default())
            .map(|_| ())
    }

    /// Stores attributes that differ; as they are then.
    fn write_attributes(
        &self,
        tx: &Transaction,
        object: &Arc<LiveObject>,
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

    /// Whether reading a file now is to set its access time.
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

    /// Notes that a file was read. Does nothing if settings or the file's times make it needless, and
    /// nothing if it would have to wait, for another change of the file or for a transaction: a read
    /// neither fails nor waits for this.
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
        // The time is a hint; what cannot be noted is not.
        let _ = self.store(&tx, &node.inner, state, &Lists::default());
    }

    /// Waits until everything that was changed before the call is on stable storage.
    ///
    /// # Errors
    /// If the pool is suspended before that.
    pub fn sync(&self) -> Result<(), FileError> {
        Ok(self.begin.wait_open_synced()?)
    }

    /// Puts on stable storage what was done to a file before the call, and what that depends on: the
    /// names made and removed until then.
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

    /// Drops what is held in memory of files that nobody uses, and frees those among them whose last
    /// name is gone.
    ///
    /// # Errors
    /// As [`LiveFileSystem::free_unlinked`].
    pub fn close_unused(&self) -> Result<(), FileError> {
        self.cache.clear();
        self.reap()
    }
}
