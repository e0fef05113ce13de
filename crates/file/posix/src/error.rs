use millpond_object::ObjectError;
use millpond_ondisk::{DecodeError, ObjectId};
use millpond_sa::SaError;
use millpond_zap::ZapError;

/// Why something about a file could not be told.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PosixError {
    /// An object or block could not be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A directory could not be read.
    #[error(transparent)]
    Zap(#[from] ZapError),
    /// A file's attributes could not be read.
    #[error(transparent)]
    Attributes(#[from] SaError),
    /// A structure cannot be what a correct writer wrote.
    #[error("dataset {dataset}, object {object}: {error}")]
    Invalid {
        /// The dataset's object number in the MOS.
        dataset: u64,
        /// The object.
        object: ObjectId,
        /// What is wrong.
        error: DecodeError,
    },
    /// No file has this name.
    #[error("{}: no such file or directory", String::from_utf8_lossy(name))]
    NotFound {
        /// The name or path.
        name: Vec<u8>,
    },
    /// Something on the way is no directory.
    #[error("{}: not a directory", String::from_utf8_lossy(name))]
    NotADirectory {
        /// The name or path.
        name: Vec<u8>,
    },
    /// Symbolic links lead in circles.
    #[error("{}: too many levels of symbolic links", String::from_utf8_lossy(name))]
    TooManyLinks {
        /// The path.
        name: Vec<u8>,
    },
    /// The object set holds no files.
    #[error("dataset {dataset} is no file system")]
    NotAFileSystem {
        /// The dataset's object number in the MOS.
        dataset: u64,
    },
    /// The file system is of a version that does not exist, or is newer than this program.
    #[error("dataset {dataset}: file system version {version} is not supported")]
    Version {
        /// The dataset's object number in the MOS.
        dataset: u64,
        /// The version.
        version: u64,
    },
}

impl PosixError {
    /// Whether it failed because devices were missing or did not answer: it may succeed once they are back.
    #[must_use]
    pub fn needs_devices(&self) -> bool {
        match self {
            Self::Object(error) => error.needs_devices(),
            Self::Zap(error) => error.needs_devices(),
            Self::Attributes(error) => error.needs_devices(),
            _ => false,
        }
    }
    /// Whether the dataset's key would help.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        match self {
            Self::Object(error) => error.is_locked(),
            Self::Zap(error) => error.is_locked(),
            Self::Attributes(error) => error.is_locked(),
            _ => false,
        }
    }
    /// Whether nothing is wrong but the name.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}
