//! What a file system asks of the layer that hands out transactions.

use millpond_object::LoggedBlock;
use millpond_ondisk::ObjectId;
use millpond_txg::{BeginWait, Transaction};

/// What an operation is going to do, as far as admission needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Estimate {
    /// Bytes that will become dirty, data and metadata together, at most.
    pub bytes: u64,
    /// Whether the operation gives more space back than it takes: such a one may use the reserve
    /// that keeps a full pool usable, and passes over a full dataset quota.
    pub is_freeing: bool,
    /// Blocks that it frees, at most. Each txg frees a bounded number; the transaction waits for a later
    /// txg where there is no room. 0 for what changes a few blocks only.
    pub freed_blocks: u64,
    /// What it waits for.
    pub wait: BeginWait,
}

/// What a dataset takes and may still take, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// What it refers to.
    pub referenced_bytes: u64,
    /// What it may still write: quotas and reservations counted.
    pub available_bytes: u64,
}

/// Why no transaction was handed out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BeginError {
    /// The pool has no room for what was asked.
    #[error("no space is left")]
    NoSpace,
    /// The quota of a dataset is used up.
    #[error("the quota of a dataset is used up")]
    Quota,
    /// Nothing may be written.
    #[error("the file system is read-only")]
    ReadOnly,
    /// The pool is suspended after errors.
    #[error("the pool is suspended: {reason}")]
    Suspended {
        /// What happened to it.
        reason: String,
    },
}

/// Admission to transaction groups. The dataset layer implements it with its quotas.
///
/// A file system takes the locks of its nodes *before* it begins: so those who hold the same lock one
/// after the other get groups in the same order. An implementation must therefore never wait for a
/// node.
pub trait Begin: Send + Sync {
    /// Enters the open group. May wait while too much is dirty.
    ///
    /// # Errors
    /// See [`BeginError`].
    fn begin(&self, estimate: Estimate) -> Result<Transaction, BeginError>;

    /// Waits until the group that is open now is on stable storage, with all before it.
    ///
    /// # Errors
    /// [`BeginError::Suspended`].
    fn wait_open_synced(&self) -> Result<(), BeginError>;

    /// What the dataset takes and may still take.
    fn space(&self) -> Space;

    /// The intent log, if changes are to be logged. Without one whoever wants something to be on stable
    /// storage waits for its txg.
    fn log(&self) -> Option<&dyn ChangeLog> {
        None
    }

    /// Told of each name above 255 bytes that is stored in the group of `tx`: the dataset must have the
    /// feature `longname` active from that group on.
    fn note_long_name(&self, tx: &Transaction);

    /// Told when counting of files, or accounting of projects, has become complete in the group of `tx`: the dataset must have
    /// the features `userobj_accounting` or `project_quota` active from that group on.
    fn note_accounting(&self, tx: &Transaction, counts_objects: bool, has_projects: bool);
}

/// An intent log as files and volumes see it. An implementation must never wait for a node, and
/// only [`ChangeLog::commit`] may wait for a txg.
pub trait ChangeLog: Send + Sync {
    /// Whether records are kept at all (property `sync` is not `disabled`).
    fn is_wanted(&self) -> bool;
    /// Whether each operation is committed before it returns (`sync=always`).
    fn commits_always(&self) -> bool;
    /// How much of a block-aligned write of so many bytes goes to blocks of its own, to which records point, rather
    /// than into the log: blocks of the file from this size on; `None` for nothing.
    fn separate_from(&self, write_bytes: u64) -> Option<u64>;
    /// Whether records of extended attributes may be written.
    fn takes_xattrs(&self) -> bool;
    /// Takes in the record of a change made in `tx`: of `object` alone, which matters once somebody commits
    /// it, or of something that all later records may depend on.
    fn append(&self, tx: &Transaction, object: Option<ObjectId>, record: Vec<u8>);
    /// Takes in the record of a write that is the whole of a block, with room for the pointer to it.
    fn append_block(&self, tx: &Transaction, object: ObjectId, record: Vec<u8>, block: LoggedBlock);
    /// Notes a change that no record tells.
    fn append_unlogged(&self, tx: &Transaction, object: Option<ObjectId>);
    /// What follows depends on the records of an object.
    fn promote(&self, object: ObjectId);
    /// An object is gone, and its records with it.
    fn forget(&self, object: ObjectId);
    /// Returns when what was done to an object, or to all, is on stable storage. Not to be called with a
    /// transaction.
    ///
    /// # Errors
    /// [`BeginError::Suspended`].
    fn commit(&self, object: Option<ObjectId>) -> Result<(), BeginError>;
}
