use std::sync::Arc;

/// Why a transaction could not begin, or a group's commit cannot be waited for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TxgError {
    /// Syncing met something it could not get past. Nothing is acknowledged until
    /// [`crate::TxgGroups::resume`].
    #[error("writing is suspended: {reason}")]
    Suspended {
        /// What was met.
        reason: Arc<str>,
    },
    /// It would have to wait, and was not to.
    #[error("writing is held up just now")]
    WouldWait,
    /// The pool is being closed: no further group will be synced.
    #[error("the pool is closed for writing")]
    Ended,
}
