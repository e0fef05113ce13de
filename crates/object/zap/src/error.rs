use millpond_object::{BlockAddress, ObjectError};
use millpond_ondisk::DecodeError;

/// Why a ZAP could not be read or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ZapError {
    /// One of its blocks could not be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A block is not valid: no correct writer wrote it.
    #[error("{address}: {error}")]
    Corrupt {
        /// The block.
        address: BlockAddress,
        /// What is wrong.
        error: DecodeError,
    },
    /// The ZAP is intact but of the wrong kind for the request.
    #[error("{address}: {reason}")]
    Invalid {
        /// Block 0 of the ZAP.
        address: BlockAddress,
        /// The mismatch, for example "keys are words, not names".
        reason: &'static str,
    },
    /// The entry to be added already exists.
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
    /// The request cannot be stored in this ZAP, or in any.
    #[error("{address}: {reason}")]
    Refused {
        /// Block 0 of the ZAP.
        address: BlockAddress,
        /// The reason for the refusal.
        reason: &'static str,
    },
    /// Too many entries have nearly equal hashes, so that no leaf has space for the entry. Other names still fit.
    #[error("{address}: too many entries have nearly equal hashes")]
    Full {
        /// Block 0 of the ZAP.
        address: BlockAddress,
    },
}

impl ZapError {
    /// Whether devices were missing or did not answer. A retry may succeed once they are back.
    #[must_use]
    pub fn needs_devices(&self) -> bool {
        matches!(self, Self::Object(error) if error.needs_devices())
    }
    /// Whether blocks of the ZAP are lost on all devices, or are not valid.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Object(error) => error.is_damage(),
            Self::Corrupt { .. } => true,
            _ => false,
        }
    }
    /// Whether the error is due to the dataset's key not being loaded.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        matches!(self, Self::Object(error) if error.is_locked())
    }
}
