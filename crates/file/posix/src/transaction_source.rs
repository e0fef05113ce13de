//! The interface to the layer that provides transactions.

use millpond_env::sync::Arc;
use millpond_object::{LoggedBlock, ObjectSet, ObjectSetView};
use millpond_ondisk::{ObjectId, Txg};
use millpond_txg::{Estimate, Transaction};

/// The used and available space of a dataset, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// The referenced bytes.
    pub referenced_bytes: u64,
    /// The bytes that can still be written, after quotas and reservations.
    pub available_bytes: u64,
}

/// Why no transaction was started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransactionError {
    /// The pool has not enough space.
    #[error("no space is left")]
    NoSpace,
    /// A dataset's quota is exhausted.
    #[error("the quota of a dataset is used up")]
    Quota,
    /// The dataset is read-only.
    #[error("the file system is read-only")]
    ReadOnly,
    /// The pool is suspended after errors.
    #[error("the pool is suspended: {reason}")]
    Suspended {
        /// Why the pool is suspended.
        reason: String,
    },
}

/// The files whose blocks are cloned.
#[derive(Debug, Clone, Copy)]
pub enum CloneOrigin<'a> {
    /// Files that are open for change.
    Open(&'a Arc<ObjectSet>),
    /// Files of a committed state, such as a snapshot.
    Committed(&'a Arc<ObjectSetView>),
}

/// The transaction source: admission to transaction groups. The dataset layer implements it with its quotas.
///
/// A file system locks its nodes *before* it begins a transaction. Operations that hold the same lock one
/// after the other thus get txgs in the same order. An implementation must therefore never wait for a node.
pub trait TransactionSource: Send + Sync {
    /// Joins the open txg. May wait while too much is dirty.
    ///
    /// # Errors
    /// See [`TransactionError`].
    fn begin(&self, estimate: Estimate) -> Result<Transaction, TransactionError>;

    /// Waits until the currently open txg, and all before it, are on stable storage.
    ///
    /// # Errors
    /// [`TransactionError::Suspended`].
    fn wait_open_synced(&self) -> Result<(), TransactionError>;

    /// The used and available space of the dataset.
    fn space(&self) -> Space;

    /// The intent log, if changes are logged. Without one, a caller that needs stable storage waits for its
    /// txg.
    fn log(&self) -> Option<&dyn ChangeLog> {
        None
    }

    /// The newest txg whose blocks can be cloned, which is the last one on stable storage. `None` if blocks cannot be
    /// cloned.
    fn clonable_until(&self) -> Option<Txg> {
        None
    }
    /// Keeps the dataset of `origin` from being destroyed before the txg of `tx`, in which blocks of it are cloned into
    /// this one. Returns false if blocks cannot be cloned from there.
    fn borrow_from(&self, tx: &Transaction, origin: CloneOrigin<'_>) -> bool {
        let _ = (tx, origin);
        false
    }

    /// Called for each name above 255 bytes that is stored in the txg of `tx`. The dataset must have the
    /// feature `longname` active from that txg on.
    fn note_long_name(&self, tx: &Transaction);

    /// Called when file counts or project accounting have become complete in the txg of `tx`. The dataset
    /// must have the features `userobj_accounting` or `project_quota` active from that txg on.
    fn note_accounting(&self, tx: &Transaction, counts_objects: bool, has_projects: bool);
}

/// The intent log as files and volumes use it. An implementation must never wait for a node, and only
/// [`ChangeLog::commit`] may wait for a txg.
pub trait ChangeLog: Send + Sync {
    /// Whether records are kept (property `sync` is not `disabled`).
    fn is_wanted(&self) -> bool;
    /// Whether each operation is committed before it returns (`sync=always`).
    fn commits_always(&self) -> bool;
    /// Decides which part of a block-aligned write of this many bytes is written as separate blocks that
    /// records point to, instead of into the log.
    ///
    /// Returns the smallest block size of a file for which this applies; `None` if everything goes into the
    /// log.
    fn separate_from(&self, write_bytes: u64) -> Option<u64>;
    /// Whether extended attribute records may be written.
    fn takes_xattrs(&self) -> bool;
    /// Appends the record of a change made in `tx`. With an `object`, the record is needed only when that
    /// object is committed. With `None`, all later records may depend on it.
    fn append(&self, tx: &Transaction, object: Option<ObjectId>, record: Vec<u8>);
    /// Appends the record of a write that covers a whole block, with space for the pointer to it.
    fn append_block(&self, tx: &Transaction, object: ObjectId, record: Vec<u8>, block: LoggedBlock);
    /// Notes a change that has no record.
    fn append_unlogged(&self, tx: &Transaction, object: Option<ObjectId>);
    /// Marks the records of an object as needed by all later records.
    fn promote(&self, object: ObjectId);
    /// Drops the records of a removed object.
    fn forget(&self, object: ObjectId);
    /// Returns when the changes of an object (with `None`: of all objects) are on stable storage. Do not call
    /// this while holding a transaction.
    ///
    /// # Errors
    /// [`TransactionError::Suspended`].
    fn commit(&self, object: Option<ObjectId>) -> Result<(), TransactionError>;
}
