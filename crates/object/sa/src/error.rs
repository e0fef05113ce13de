use millpond_object::ObjectError;
use millpond_ondisk::{DecodeError, ObjectId, ObjectType};
use millpond_zap::ZapError;

/// Why attributes could not be read or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SaError {
    /// An object or block could not be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// One of the tables could not be read or changed.
    #[error(transparent)]
    Zap(#[from] ZapError),
    /// The object set's tables are not valid: no correct writer wrote them.
    #[error("dataset {dataset}: system attributes: {reason}")]
    Registry {
        /// The dataset's object id in the MOS.
        dataset: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// A file's attributes are not valid: no correct writer wrote them.
    #[error("dataset {dataset}, object {object}: {error}")]
    Corrupt {
        /// The dataset's object id in the MOS.
        dataset: u64,
        /// The file.
        object: ObjectId,
        /// What is wrong.
        error: DecodeError,
    },
    /// A mandatory attribute is missing.
    #[error("dataset {dataset}, object {object}: it has no {attribute}")]
    Missing {
        /// The dataset's object id in the MOS.
        dataset: u64,
        /// The file.
        object: ObjectId,
        /// The attribute's registered name.
        attribute: &'static str,
    },
    /// The requested change is not possible for this file.
    #[error("dataset {dataset}, object {object}: {reason}")]
    Refused {
        /// The dataset's object id in the MOS.
        dataset: u64,
        /// The file; 0 if it is not created yet.
        object: ObjectId,
        /// The reason for the refusal.
        reason: &'static str,
    },
    /// The attributes fit neither into the bonus nor into a spill block.
    #[error("dataset {dataset}, object {object}: attributes need more than 128 KiB")]
    TooLarge {
        /// The dataset's object id in the MOS.
        dataset: u64,
        /// The file; 0 if it is not created yet.
        object: ObjectId,
    },
    /// The object has no attributes, so it is not a file.
    #[error("dataset {dataset}, object {object} is no file: its bonus is a {}", .bonus_type.name())]
    NotAFile {
        /// The dataset's object id in the MOS.
        dataset: u64,
        /// The object.
        object: ObjectId,
        /// The type of its bonus.
        bonus_type: ObjectType,
    },
}

impl SaError {
    /// Whether devices were missing or did not answer. A retry may succeed once they are back.
    #[must_use]
    pub fn needs_devices(&self) -> bool {
        match self {
            Self::Object(error) => error.needs_devices(),
            Self::Zap(error) => error.needs_devices(),
            _ => false,
        }
    }
    /// Whether the error is due to the dataset's key not being loaded.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        match self {
            Self::Object(error) => error.is_locked(),
            Self::Zap(error) => error.is_locked(),
            _ => false,
        }
    }
}
