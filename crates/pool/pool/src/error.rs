use millpond_object::ObjectError;
use millpond_ondisk::{DecodeError, ObjectId};
use millpond_zap::ZapError;

/// Why a pool, or something that belongs to it as a whole, could not be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// An object of the pool could not be read.
    #[error("{what}: {error}")]
    Object {
        /// What it holds.
        what: &'static str,
        /// What went wrong.
        error: ObjectError,
    },
    /// A table of the pool could not be read.
    #[error("{what}: {error}")]
    Zap {
        /// What it holds.
        what: &'static str,
        /// What went wrong.
        error: ZapError,
    },
    /// A structure cannot be what a correct writer wrote.
    #[error("{what}: {error}")]
    Invalid {
        /// What it is.
        what: &'static str,
        /// What is wrong.
        error: DecodeError,
    },
    /// The object directory lacks an entry that every pool has.
    #[error("the pool's object directory has no entry '{key}'")]
    NoEntry {
        /// The entry.
        key: String,
    },
    /// Space maps contradict each other or the configuration.
    #[error(transparent)]
    Space(#[from] millpond_alloc::AllocError),
    /// Writing met an error that it could not get past: nothing is written any more, and what was not
    /// acknowledged is lost when the pool is closed.
    #[error("the pool is suspended: {reason}")]
    Suspended {
        /// What was met.
        reason: String,
    },
    /// A block could not be read or written.
    #[error("{what}: {error}")]
    Block {
        /// What it belongs to.
        what: &'static str,
        /// What went wrong.
        error: millpond_block::BlockError,
    },
    /// Something is asked for that this program does not do (yet).
    #[error("{what} is not supported")]
    Unsupported {
        /// What.
        what: &'static str,
    },
    /// A txg dirties the MOS again in every pass.
    #[error("txg {txg} does not converge within {passes} passes")]
    NoConvergence {
        /// The txg.
        txg: millpond_ondisk::Txg,
        /// Passes made.
        passes: u32,
    },
    /// This part is not built yet.
    #[error("not built yet")]
    NotReady,
    /// A feature's count cannot be changed.
    #[error(transparent)]
    Feature(#[from] crate::live::FeatureError),
    /// A txg could not be made durable; whether it is, is not known.
    #[error("commit: {0}")]
    Commit(#[from] crate::live::CommitError),
    /// Devices lost more writes than redundancy can bear.
    #[error(transparent)]
    Flush(#[from] millpond_block::FlushError),
    /// A packed list claims a size that no correct writer would store.
    #[error("object {object}: packed list of {bytes} bytes")]
    TooLarge {
        /// The object.
        object: ObjectId,
        /// The size claimed.
        bytes: u64,
    },
}

impl From<millpond_txg::TxgError> for PoolError {
    fn from(error: millpond_txg::TxgError) -> Self {
        Self::Suspended {
            reason: error.to_string(),
        }
    }
}

/// Attaches what was being read to errors from below.
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
