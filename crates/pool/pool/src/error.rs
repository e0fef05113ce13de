use millpond_object::ObjectError;
use millpond_ondisk::{DecodeError, ObjectId};
use millpond_zap::ZapError;

/// Why a pool, or pool-wide data, could not be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// An object of the pool could not be read.
    #[error("{}", placed(what, error))]
    Object {
        /// The object's content.
        what: &'static str,
        /// The underlying error.
        error: ObjectError,
    },
    /// A table of the pool could not be read.
    #[error("{}", placed(what, error))]
    Zap {
        /// The table's content.
        what: &'static str,
        /// The underlying error.
        error: ZapError,
    },
    /// A structure is invalid: no correct writer produces it.
    #[error("{what}: {error}")]
    Invalid {
        /// The structure.
        what: &'static str,
        /// The underlying error.
        error: DecodeError,
    },
    /// The object directory lacks an entry that every pool has.
    #[error("the pool's object directory has no entry '{key}'")]
    NoEntry {
        /// The entry's key.
        key: String,
    },
    /// Space maps contradict each other or the configuration.
    #[error(transparent)]
    Space(#[from] millpond_alloc::AllocError),
    /// The pool is suspended after a write error. It writes nothing more; unacknowledged changes are lost
    /// when the pool is closed.
    #[error("the pool is suspended: {reason}")]
    Suspended {
        /// The error that suspended the pool.
        reason: String,
    },
    /// The root file system of a new pool cannot have a property. The pool is not made.
    #[error("the root file system: {property}: {reason}")]
    RootProperty {
        /// The property.
        property: String,
        /// The reason, as text for the user.
        reason: String,
    },
    /// A block could not be read or written.
    #[error("{}", placed(what, error))]
    Block {
        /// The owner of the block.
        what: &'static str,
        /// The underlying error.
        error: millpond_block::BlockError,
    },
    /// The requested operation is not supported (yet).
    #[error("{what} is not supported")]
    Unsupported {
        /// The operation.
        what: &'static str,
    },
    /// The pool refuses a request.
    #[error("{why}")]
    Refused {
        /// Why, and what to do.
        why: &'static str,
    },
    /// The changes of a txg in memory are not consistent, so it was not committed. This is a bug.
    #[error("txg {txg} was not committed: {what}; this is a bug, please report it")]
    Inconsistent {
        /// The txg.
        txg: millpond_ondisk::Txg,
        /// What is wrong.
        what: &'static str,
    },
    /// A txg still dirties the MOS in its last sync pass.
    #[error("txg {txg} does not converge within {passes} passes")]
    NoConvergence {
        /// The txg.
        txg: millpond_ondisk::Txg,
        /// The number of passes made.
        passes: u32,
    },
    /// A view of a committed state expired while it was open: its blocks may be in use again.
    #[error("the view of txg {txg} expired while the pool changed; run the command again")]
    ViewExpired {
        /// The txg of the state.
        txg: millpond_ondisk::Txg,
    },
    /// A request about a scrub or resilver is refused.
    #[error(transparent)]
    Scan(crate::scan::ScanRefusal),
    /// A request about a checkpoint is refused, or another on account of one.
    #[error(transparent)]
    Checkpoint(crate::CheckpointRefusal),
    /// A request of an initialization to a device does not end.
    #[error(
        "a device does not answer a request of 'zpool initialize' or 'zpool trim'; stop that with '-s' and try again"
    )]
    Initializing,
    /// This part is not implemented yet.
    #[error("not implemented yet")]
    NotReady,
    /// A feature's count cannot be changed.
    #[error(transparent)]
    Feature(#[from] crate::FeatureError),
    /// A txg could not be committed; it is unknown whether it is durable.
    #[error("commit: {0}")]
    Commit(#[from] crate::CommitError),
    /// Devices lost more writes than redundancy covers.
    #[error(transparent)]
    Flush(#[from] millpond_block::FlushError),
    /// A packed list claims a size that no correct writer stores.
    #[error("object {object}: packed list of {bytes} bytes")]
    TooLarge {
        /// The object that holds the list.
        object: ObjectId,
        /// The claimed size in bytes.
        bytes: u64,
    },
}

impl PoolError {
    /// Whether devices were missing or did not answer. A retry may succeed once they are back.
    #[must_use]
    pub fn needs_devices(&self) -> bool {
        match self {
            Self::Object { error, .. } => error.needs_devices(),
            Self::Zap { error, .. } => error.needs_devices(),
            Self::Block { error, .. } => error.needs_devices(),
            Self::Commit(_) | Self::Flush(_) => true,
            _ => false,
        }
    }
    /// Whether what was read is lost on all devices, or is not valid. A retry finds the same.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Object { error, .. } => error.is_damage(),
            Self::Zap { error, .. } => error.is_damage(),
            Self::Block { error, .. } => error.is_damage(),
            Self::Invalid { .. } => true,
            _ => false,
        }
    }
}

impl From<millpond_txg::TxgError> for PoolError {
    fn from(error: millpond_txg::TxgError) -> Self {
        Self::Suspended {
            reason: error.to_string(),
        }
    }
}

/// The lower error with its place in front, unless it begins with the same place.
fn placed(what: &str, error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    match text.starts_with(what) {
        true => text,
        false => format!("{what}: {text}"),
    }
}

/// Adds to a lower-level error what was being read.
pub(crate) trait Reading<T> {
    fn reading(self, what: &'static str) -> Result<T, PoolError>;
}

impl<T> Reading<T> for Result<T, ObjectError> {
    fn reading(self, what: &'static str) -> Result<T, PoolError> {
        self.map_err(|error| PoolError::Object { what, error })
    }
}

impl<T> Reading<T> for Result<T, millpond_block::BlockError> {
    fn reading(self, what: &'static str) -> Result<T, PoolError> {
        self.map_err(|error| PoolError::Block { what, error })
    }
}

impl<T> Reading<T> for Result<T, ZapError> {
    fn reading(self, what: &'static str) -> Result<T, PoolError> {
        self.map_err(|error| PoolError::Zap { what, error })
    }
}

impl<T> Reading<T> for Result<T, DecodeError> {
    fn reading(self, what: &'static str) -> Result<T, PoolError> {
        self.map_err(|error| PoolError::Invalid { what, error })
    }
}
