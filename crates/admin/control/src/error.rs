//! Errors of requests.

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ControlError {
    /// No open pool has this name.
    #[error("no such pool")]
    NoSuchPool,
    /// The pool exists, but the dataset does not.
    #[error("dataset does not exist")]
    NoSuchDataset,
    /// The pool has no vdev with this guid.
    #[error("no such device in pool")]
    NoSuchVdev,
    /// The pool exists but could not be loaded.
    #[error("pool is unavailable")]
    Unavailable,
    /// A snapshot is not one from which the other state of the file system descends.
    #[error("not an earlier snapshot from the same fs")]
    NotEarlier,
    /// The dataset is encrypted, and its key is not loaded.
    #[error("encryption key not loaded")]
    Locked,
    /// The caller may not see this.
    #[error("permission denied")]
    Denied,
    /// The process has no setting of this name.
    #[error("no such tunable")]
    NoSuchTunable,
    /// A setting cannot have this value.
    #[error("the value must be at most {max}")]
    TunableValue {
        /// The largest value.
        max: u64,
    },
    /// A device or a block could not be read. The text describes the error.
    #[error("{0}")]
    Io(String),
    /// These datasets are damaged so that nothing can be told about them. All others were reported.
    #[error("I/O error; see 'zpool status -v'")]
    Damaged(Vec<String>),
    /// The receiver of the answers stopped, for instance because a pipe was closed.
    #[error("interrupted")]
    Stopped,
}
