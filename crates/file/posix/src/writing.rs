//! What a file system that is open for change has in addition: the state for writing.

use crate::FileKind;
use crate::FileSystem;
use crate::attributes::{AttributeForm, AttributeTables};
use crate::cache::NodeCache;
use crate::error::FileError;
use crate::name_index::IndexBudget;
use crate::open_node::NodeInner;
use crate::quota::Quotas;
use crate::records::ReplayState;
use crate::settings::Settings;
use crate::state::{Lists, NodeState};
use crate::statistics::Counters;
use crate::transaction_source::{TransactionError, TransactionSource};
use crate::unlinked::Unlinked;
use millpond_env::Env;
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex, MutexGuard, RwLock};
use millpond_object::{Object, ObjectSet};
use millpond_sa::Timestamp;
use millpond_txg::Estimate;
use millpond_txg::Transaction;

/// The most bytes that changing one node's attributes dirties: its block of dnodes and a spill block.
pub(crate) const NODE_BYTES: u64 = 48 << 10;
/// The most bytes that adding or removing one entry dirties: two leaves, the header, a block of a table.
pub(crate) const ENTRY_BYTES: u64 = 128 << 10;

/// The state for writing of one file system. Each part is a type of its own.
pub(crate) struct Writing {
    set: Arc<ObjectSet>,
    source: Arc<dyn TransactionSource>,
    env: Env,
    settings: RwLock<Settings, rank::Leaf>,
    tables: AttributeTables,
    quotas: Quotas,
    cache: NodeCache,
    indexes: IndexBudget,
    unlinked: Unlinked,
    /// Held while a directory gets another parent. The chain of parents thus does not change during a walk.
    moves: Mutex<(), rank::Moves>,
    /// Held while the master node changes, from before the transaction begins.
    master: Mutex<(), rank::MasterNode>,
    replay: ReplayState,
    counters: Counters,
}

impl Writing {
    pub(crate) fn new(
        set: Arc<ObjectSet>,
        source: Arc<dyn TransactionSource>,
        env: &Env,
        settings: Settings,
        tables: AttributeTables,
        quotas: Quotas,
        unlinked: Unlinked,
    ) -> Self {
        Self {
            set,
            source,
            env: env.clone(),
            settings: RwLock::new(settings),
            tables,
            quotas,
            cache: NodeCache::default(),
            indexes: IndexBudget::default(),
            unlinked,
            moves: Mutex::new(()),
            master: Mutex::new(()),
            replay: ReplayState::default(),
            counters: Counters::default(),
        }
    }
    /// Counts the indexes of directories.
    pub(crate) fn indexes(&self) -> &IndexBudget {
        &self.indexes
    }
    pub(crate) fn set(&self) -> &Arc<ObjectSet> {
        &self.set
    }
    /// Where transactions come from.
    pub(crate) fn source(&self) -> &dyn TransactionSource {
        &*self.source
    }
    pub(crate) fn env(&self) -> &Env {
        &self.env
    }
    pub(crate) fn settings(&self) -> Settings {
        *self.settings.read()
    }
    pub(crate) fn set_settings(&self, settings: Settings) {
        *self.settings.write() = settings;
    }
    pub(crate) fn tables(&self) -> &AttributeTables {
        &self.tables
    }
    pub(crate) fn quotas(&self) -> &Quotas {
        &self.quotas
    }
    pub(crate) fn cache(&self) -> &NodeCache {
        &self.cache
    }
    /// The files without a name.
    pub(crate) fn unlinked(&self) -> &Unlinked {
        &self.unlinked
    }
    pub(crate) fn lock_moves(&self) -> MutexGuard<'_, ()> {
        self.moves.lock()
    }
    pub(crate) fn lock_master(&self) -> MutexGuard<'_, ()> {
        self.master.lock()
    }
    pub(crate) fn replay(&self) -> &ReplayState {
        &self.replay
    }
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }
    pub(crate) fn now(&self) -> Timestamp {
        let ns = self.env.clock.wall_ns();
        Timestamp {
            seconds: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
            nanoseconds: ns % 1_000_000_000,
        }
    }
}

impl FileSystem {
    /// Whether the intent log is being replayed.
    pub(crate) fn is_replaying(&self) -> bool {
        self.writing().is_ok_and(|writing| writing.replay().is_on())
    }
    pub(crate) fn check_writable(&self) -> Result<(), FileError> {
        if self.settings().is_read_only && !self.is_replaying() {
            return Err(TransactionError::ReadOnly.into());
        }
        Ok(())
    }
    /// Begins a transaction. The caller already holds every lock that it needs.
    pub(crate) fn begin(&self, bytes: u64) -> Result<Transaction, FileError> {
        self.begin_writing(bytes, 0)
    }
    /// Like [`FileSystem::begin`], for a change that writes `written_bytes` of content.
    pub(crate) fn begin_writing(
        &self,
        bytes: u64,
        written_bytes: u64,
    ) -> Result<Transaction, FileError> {
        let writing = self.writing()?;
        self.check_writable()?;
        // Replayed operations were admitted once already.
        let is_freeing = self.is_replaying();
        Ok(writing.source().begin(Estimate {
            bytes,
            written_bytes,
            is_freeing,
            ..Estimate::default()
        })?)
    }
    /// Like [`FileSystem::begin`], for a change that clones `blocks` blocks of `cloned_bytes` altogether. A txg changes
    /// as many references as it frees blocks, and each may replace a block.
    pub(crate) fn begin_cloning(
        &self,
        bytes: u64,
        blocks: u64,
        cloned_bytes: u64,
    ) -> Result<Transaction, FileError> {
        let writing = self.writing()?;
        self.check_writable()?;
        Ok(writing.source().begin(Estimate {
            bytes,
            freed_blocks: blocks,
            cloned_bytes,
            is_freeing: self.is_replaying(),
            ..Estimate::default()
        })?)
    }
    /// Like [`FileSystem::begin`], for a change that frees more space than it takes: up to `freed_blocks`
    /// blocks of a file, 0 for a few.
    pub(crate) fn begin_freeing(
        &self,
        bytes: u64,
        freed_blocks: u64,
    ) -> Result<Transaction, FileError> {
        let writing = self.writing()?;
        self.check_writable()?;
        Ok(writing.source().begin(Estimate {
            bytes,
            is_freeing: true,
            freed_blocks,
            ..Estimate::default()
        })?)
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
        let writing = self.writing()?;
        for node in nodes {
            writing.tables().read(&node.object)?;
        }
        Ok(())
    }

    /// Like [`FileSystem::store`], for an object that is never a node: hidden extended attribute
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
        let writing = self.writing()?;
        let version = self.version_in(tx);
        let form = AttributeForm::of_version(version);
        new.keep_to_version(version, old.flags);
        let mut changes = new.changes_from(old, lists);
        let is_link = new.kind() == Some(FileKind::Symlink);
        let is_converted = form == AttributeForm::System && AttributeTables::is_old(object);
        if !changes.is_empty() && !is_link && is_converted {
            new.leave_old_form(self.has_projects());
            changes = new.changes_from(old, lists);
        }
        writing.tables().write(tx, object, &changes, form)?;
        Ok(new)
    }
}
