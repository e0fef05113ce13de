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
    /// One of the tables could not be read.
    #[error(transparent)]
    Zap(#[from] ZapError),
    /// The object set's tables cannot be what a correct writer wrote.
    #[error("dataset {dataset}: system attributes: {reason}")]
    Registry {
        /// The dataset's object number in the MOS.
        dataset: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// A file's attributes cannot be what a correct writer wrote.
    #[error("dataset {dataset}, object {object}: {error}")]
    Corrupt {
        /// The dataset's object number in the MOS.
        dataset: u64,
        /// The file.
        object: ObjectId,
        /// What is wrong.
        error: DecodeError,
    },
    /// An attribute that every file has is not there.
    #[error("dataset {dataset}, object {object}: it has no {attribute}")]
    Missing {
        /// The dataset's object number in the MOS.
        dataset: u64,
        /// The file.
        object: ObjectId,
        /// The attribute's registered name.
        attribute: &'static str,
    },
    /// A file cannot have what was asked for.
    #[error("dataset {dataset}, object {object}: {reason}")]
    Refused {
        /// The dataset's object number in the MOS.
        dataset: u64,
        /// The file, 0 for one that is still to be made.
        object: ObjectId,
        /// Why not.
        reason: &'static str,
    },
    /// So many or so long attributes that neither bonus nor spill block can hold them.
    #[error("dataset {dataset}, object {object}: attributes need more than 128 KiB")]
    TooLarge {
        /// The dataset's object number in the MOS.
        dataset: u64,
        /// The file, 0 for one that is still to be made.
        object: ObjectId,
    },
    /// The object has no attributes: it is no file.
    #[error("dataset {dataset}, object {object} is no file: its bonus is a {}", .bonus_type.name())]
    NotAFile {
        /// The dataset's object number in the MOS.
        dataset: u64,
        /// The object.
        object: ObjectId,
        /// What its bonus holds.
        bonus_type: ObjectType,
    },
}

impl SaError {
    /// Whether it failed because devices were missing or did not answer: it may succeed once they are back.
    #[must_use]
    pub fn needs_devices(&self) -> bool {
        match self {
            Self::Object(error) => error.needs_devices(),
            Self::Zap(error) => error.needs_devices(),
            _ => false,
        }
    }
    /// Whether the dataset's key would help.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        match self {
            Self::Object(error) => error.is_locked(),
            Self::Zap(error) => error.is_locked(),
            _ => false,
        }
    }
}
