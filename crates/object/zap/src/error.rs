use millpond_object::{BlockAddress, ObjectError};
use millpond_ondisk::DecodeError;

/// Why a ZAP could not be read or changed.
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
    /// What should be added is there already.
    #[error("{address}: the zap has such an entry already")]
    Exists {
        /// Block 0 of the ZAP.
        address: BlockAddress,
    },
    /// The name is too long for this ZAP.
    #[error("{address}: the name has more than {bytes_max} bytes")]
    NameTooLong {
        /// Block 0 of the ZAP.
        address: BlockAddress,
        /// The longest name, without NUL.
        bytes_max: usize,
    },
    /// No ZAP, or not this one, can hold what was asked for.
    #[error("{address}: {reason}")]
    Refused {
        /// Block 0 of the ZAP.
        address: BlockAddress,
        /// Why.
        reason: &'static str,
    },
    /// Hashes agree in so many bits that no leaf is left for the entry; other names still fit.
    #[error("{address}: too many entries have nearly equal hashes")]
    Full {
        /// Block 0 of the ZAP.
        address: BlockAddress,
    },
}

impl ZapError {
    /// Whether it failed because devices were missing or did not answer: it may succeed once they are back.
    #[must_use]
    pub fn needs_devices(&self) -> bool {
        matches!(self, Self::Object(error) if error.needs_devices())
    }
    /// Whether the dataset's key would help.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        matches!(self, Self::Object(error) if error.is_locked())
    }
}
