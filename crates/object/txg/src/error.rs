use std::sync::Arc;

/// Why a transaction could not begin, or why waiting for a group's commit failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TxgError {
    /// The sync met an error that it cannot recover from. Nothing is acknowledged until
    /// [`crate::TxgGroups::resume`].
    #[error("writing is suspended: {reason}")]
    Suspended {
        /// The error.
        reason: Arc<str>,
    },
    /// The transaction would have to wait, but its request does not permit that.
    #[error("writing is held up just now")]
    WouldWait,
    /// The pool is being closed. No further group will be synced.
    #[error("the pool is closed for writing")]
    Ended,
}
