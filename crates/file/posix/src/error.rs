//! Why an operation on files was refused or failed, and the matching `errno`.

use crate::transaction_source::TransactionError;
use millpond_object::ObjectError;
use millpond_ondisk::{DecodeError, ObjectId};
use millpond_sa::SaError;
use millpond_zap::ZapError;

/// Error numbers by name. The values are those of Linux; front ends of other systems map by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[repr(i32)]
pub enum Errno {
    EPERM = 1,
    ENOENT = 2,
    EIO = 5,
    ENXIO = 6,
    E2BIG = 7,
    EACCES = 13,
    EBUSY = 16,
    EEXIST = 17,
    EXDEV = 18,
    ENOTDIR = 20,
    EISDIR = 21,
    EINVAL = 22,
    EFBIG = 27,
    ENOSPC = 28,
    EROFS = 30,
    EMLINK = 31,
    ERANGE = 34,
    ENAMETOOLONG = 36,
    ENOTEMPTY = 39,
    ELOOP = 40,
    ENODATA = 61,
    EILSEQ = 84,
    EOPNOTSUPP = 95,
    ESTALE = 116,
    EDQUOT = 122,
}

impl Errno {
    /// The number on Linux.
    #[must_use]
    pub fn linux(self) -> i32 {
        self as i32
    }
}

/// Why an operation on files failed.
///
/// After any of these nothing has changed, unless the operation says otherwise, or the error is of a lower layer
/// ([`FileError::is_failure`]): changes that were made before it may remain.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The name does not exist, or the directory itself was removed.
    #[error("no such file or directory")]
    NotFound,
    /// The name exists already.
    #[error("file exists")]
    Exists,
    /// The operation needs a directory.
    #[error("not a directory")]
    NotADirectory,
    /// The operation does not work on a directory.
    #[error("is a directory")]
    IsADirectory,
    /// The directory has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// The name, link target or attribute name is too long.
    #[error("name too long")]
    NameTooLong,
    /// The file system accepts only UTF-8 names.
    #[error("the name is not valid UTF-8")]
    NotUtf8,
    /// A snapshot cannot have this name.
    #[error("not a valid name of a snapshot")]
    SnapshotName,
    /// It is in use, or something holds it.
    #[error("device or resource busy")]
    Busy,
    /// A flag of the file forbids it, or the caller lacks the privilege.
    #[error("operation not permitted")]
    NotPermitted,
    /// The file is quarantined, or a setting of the process forbids it.
    #[error("permission denied")]
    AccessDenied,
    /// The request is invalid, or file systems refuse it.
    #[error("invalid argument: {reason}")]
    Invalid {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The file type or the file system's settings do not support the operation.
    #[error("operation not supported")]
    NotSupported,
    /// The file would exceed the maximum file size.
    #[error("file too large")]
    TooLarge,
    /// The link or rename would cross projects.
    #[error("the directory belongs to another project")]
    CrossProject,
    /// The file has the maximum number of links.
    #[error("too many links")]
    TooManyLinks,
    /// The extended attribute does not exist.
    #[error("no such attribute")]
    NoAttribute,
    /// An attribute's value or list is too long.
    #[error("attribute too long")]
    ValueTooLong,
    /// There is no data, or no file, at or after this position.
    #[error("no data at or after this offset")]
    NoData,
    /// The file with this object id is gone.
    #[error("stale file handle")]
    Stale,
    /// The quota of a user, group or project is exhausted.
    #[error("disk quota exceeded")]
    OwnerQuota,
    /// A file system of this version cannot store what is set.
    #[error(
        "the file system is of version {version}, and this needs version {needed}: zfs upgrade raises it"
    )]
    OldVersion {
        /// The file system's version, 1 to 4.
        version: u64,
        /// The first version that can store it.
        needed: u64,
    },
    /// The path has too many symbolic links, or they form a cycle.
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    /// A path cannot be resolved.
    #[error("{}: {error}", String::from_utf8_lossy(path))]
    Path {
        /// The whole path.
        path: Vec<u8>,
        /// Why.
        error: Box<FileError>,
    },
    /// No transaction could begin. Writing calls on files that are not open for change fail with
    /// [`TransactionError::ReadOnly`].
    #[error(transparent)]
    Transaction(#[from] TransactionError),
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
    /// An object or block could not be read or written.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A directory or another table could not be read or written.
    #[error(transparent)]
    Zap(#[from] ZapError),
    /// A file's attributes could not be read or written.
    #[error(transparent)]
    Attributes(#[from] SaError),
    /// A stored structure is invalid.
    #[error("dataset {dataset}, object {object}: {error}")]
    Corrupt {
        /// The dataset's object id in the MOS.
        dataset: u64,
        /// The object.
        object: ObjectId,
        /// What is wrong.
        error: DecodeError,
    },
}

impl FileError {
    pub(crate) fn invalid(reason: &'static str) -> Self {
        Self::Invalid { reason }
    }

    /// The number that a system call would return.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::NotFound => Errno::ENOENT,
            Self::Exists => Errno::EEXIST,
            Self::NotADirectory => Errno::ENOTDIR,
            Self::IsADirectory => Errno::EISDIR,
            Self::NotEmpty => Errno::ENOTEMPTY,
            Self::NameTooLong => Errno::ENAMETOOLONG,
            Self::NotUtf8 | Self::SnapshotName => Errno::EILSEQ,
            Self::Busy => Errno::EBUSY,
            Self::NotPermitted => Errno::EPERM,
            Self::AccessDenied => Errno::EACCES,
            Self::Invalid { .. } => Errno::EINVAL,
            Self::NotSupported | Self::OldVersion { .. } => Errno::EOPNOTSUPP,
            Self::TooLarge => Errno::EFBIG,
            Self::CrossProject => Errno::EXDEV,
            Self::TooManyLinks => Errno::EMLINK,
            Self::NoAttribute => Errno::ENODATA,
            Self::ValueTooLong => Errno::E2BIG,
            Self::NoData => Errno::ENXIO,
            Self::Stale => Errno::ESTALE,
            Self::OwnerQuota | Self::Transaction(TransactionError::Quota) => Errno::EDQUOT,
            Self::Transaction(TransactionError::NoSpace) => Errno::ENOSPC,
            // The directory has too many names that differ only in case or form.
            Self::Zap(ZapError::Full { .. }) => Errno::ENOSPC,
            Self::Transaction(TransactionError::ReadOnly) => Errno::EROFS,
            Self::Transaction(TransactionError::Suspended { .. }) => Errno::EIO,
            Self::SymlinkLoop => Errno::ELOOP,
            Self::Path { error, .. } => error.errno(),
            error if error.is_locked() => Errno::EACCES,
            Self::Object(_)
            | Self::Zap(_)
            | Self::Attributes(_)
            | Self::Corrupt { .. }
            | Self::NotAFileSystem { .. }
            | Self::Version { .. } => Errno::EIO,
        }
    }

    /// Whether a lower layer failed to read or write, or a stored structure is invalid.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(
            self,
            Self::Object(_) | Self::Zap(_) | Self::Attributes(_) | Self::Corrupt { .. }
        )
    }
    /// Whether it failed because devices are missing or do not respond. A retry may succeed once they are
    /// back.
    #[must_use]
    pub fn needs_devices(&self) -> bool {
        match self {
            Self::Object(error) => error.needs_devices(),
            Self::Zap(error) => error.needs_devices(),
            Self::Attributes(error) => error.needs_devices(),
            Self::Path { error, .. } => error.needs_devices(),
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
            Self::Path { error, .. } => error.is_locked(),
            _ => false,
        }
    }
    /// Whether the only problem is that the name does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        match self {
            Self::NotFound => true,
            Self::Path { error, .. } => error.is_not_found(),
            _ => false,
        }
    }
}
