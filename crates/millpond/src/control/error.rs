//! What can go wrong between a question and its answer.

/// Why a question could not be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ControlError {
    /// No open pool has this name.
    #[error("no such pool")]
    NoSuchPool,
    /// The pool exists, the dataset does not.
    #[error("dataset does not exist")]
    NoSuchDataset,
    /// The pool has no vdev with this guid.
    #[error("no such device in pool")]
    NoSuchVdev,
    /// The pool exists but could not be loaded.
    #[error("pool is unavailable")]
    Unavailable,
    /// The asker may not see this.
    #[error("permission denied")]
    Denied,
    /// A device or a block could not be read; the text says what and where.
    #[error("{0}")]
    Io(String),
    /// Whoever received the answers wants no more of them (a closed pipe, for instance).
    #[error("interrupted")]
    Stopped,
}
