use millpond_object::{BlockAddress, ObjectError};
use millpond_ondisk::DecodeError;

/// Why a ZAP could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ZapError {
    /// One of its blocks could not be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A block cannot be what a correct writer wrote.
    #[error("{address}: {error}")]
    Corrupt {
        /// Which block.
        address: BlockAddress,
        /// What is wrong.
        error: DecodeError,
    },
    /// The ZAP is whole but not of the kind that was asked of it.
    #[error("{address}: {reason}")]
    Invalid {
        /// Block 0 of the ZAP.
        address: BlockAddress,
        /// What does not fit ("keys are words, not names").
        reason: &'static str,
    },
}

impl ZapError {
    /// Whether the dataset's key would help.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        matches!(self, Self::Object(error) if error.is_locked())
    }
}
