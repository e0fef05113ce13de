use millpond_block::BlockError;
use millpond_ondisk::{DecodeError, ObjectId};

/// Why an object could not be read or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// A block of the object could not be read.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// No object has this id.
    #[error("dataset {dataset}: object {object} does not exist")]
    NotFound {
        /// The dataset's object id in the MOS; 0 is the MOS itself.
        dataset: u64,
        /// The requested object id.
        object: ObjectId,
    },
    /// The dnode, or a pointer in its tree, is not valid: no correct writer wrote it.
    #[error("dataset {dataset}, object {object}: {error}")]
    Invalid {
        /// The dataset's object id in the MOS; 0 is the MOS itself.
        dataset: u64,
        /// The object.
        object: ObjectId,
        /// What is wrong.
        error: DecodeError,
    },
    /// The bonus bytes are encrypted and the dataset's key is not loaded.
    #[error(
        "dataset {dataset}, object {object}: the dataset is locked: its encryption key is not loaded"
    )]
    Locked {
        /// The dataset's object id in the MOS.
        dataset: u64,
        /// The object.
        object: ObjectId,
    },
    /// The object does not permit this change.
    #[error("dataset {dataset}, object {object}: {reason}")]
    Refused {
        /// The dataset's object id in the MOS; 0 is the MOS itself.
        dataset: u64,
        /// The object.
        object: ObjectId,
        /// The reason for the refusal.
        reason: &'static str,
    },
}

impl ObjectError {
    /// Whether devices were missing or did not answer. A retry may succeed once they are back.
    #[must_use]
    pub fn needs_devices(&self) -> bool {
        matches!(self, Self::Block(error) if error.needs_devices())
    }
    /// Whether blocks of the object are lost on all devices, or are not valid.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Block(error) => error.is_damage(),
            Self::Invalid { .. } => true,
            _ => false,
        }
    }
    /// Whether the error is due to the dataset's key not being loaded.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        match self {
            Self::Block(error) => error.is_locked(),
            Self::Locked { .. } => true,
            _ => false,
        }
    }
}
