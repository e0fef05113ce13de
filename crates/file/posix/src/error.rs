use millpond_object::ObjectError;
use millpond_ondisk::{DecodeError, ObjectId};
use millpond_sa::SaError;
use millpond_zap::ZapError;

/// Why a file could not be found or read.
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
    /// A stored structure is invalid.
    #[error("dataset {dataset}, object {object}: {error}")]
    Invalid {
        /// The dataset's object id in the MOS.
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
    /// A component of the path is not a directory.
    #[error("{}: not a directory", String::from_utf8_lossy(name))]
    NotADirectory {
        /// The name or path.
        name: Vec<u8>,
    },
    /// The path has too many symbolic links, or they form a cycle.
    #[error("{}: too many levels of symbolic links", String::from_utf8_lossy(name))]
    TooManyLinks {
        /// The path.
        name: Vec<u8>,
    },
    /// The object set is not a file system.
    #[error("dataset {dataset} is no file system")]
    NotAFileSystem {
        /// The dataset's object id in the MOS.
        dataset: u64,
    },
    /// The file system version is invalid or newer than this program supports.
    #[error("dataset {dataset}: file system version {version} is not supported")]
    Version {
        /// The dataset's object id in the MOS.
        dataset: u64,
        /// The version.
        version: u64,
    },
}

impl PosixError {
    /// Whether it failed because devices are missing or do not respond. A retry may succeed once they are
    /// back.
    #[must_use]
    pub fn needs_devices(&self) -> bool {
        match self {
            Self::Object(error) => error.needs_devices(),
            Self::Zap(error) => error.needs_devices(),
            Self::Attributes(error) => error.needs_devices(),
            _ => false,
        }
    }
    /// Whether loading the dataset's key would help.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        match self {
            Self::Object(error) => error.is_locked(),
            Self::Zap(error) => error.is_locked(),
            Self::Attributes(error) => error.is_locked(),
            _ => false,
        }
    }
    /// Whether the only problem is that the name does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}
