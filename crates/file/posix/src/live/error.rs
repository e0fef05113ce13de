//! Why an operation on files was refused or failed, and the matching `errno`.

use super::transaction_source::TransactionError;
use crate::PosixError;
use millpond_object::ObjectError;
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
/// After any of these except [`FileError::Failed`], nothing has changed, unless the operation says otherwise.
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
    /// A flag of the file forbids it, or the caller lacks the privilege.
    #[error("operation not permitted")]
    NotPermitted,
    /// The file is quarantined.
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
    /// The file system's version is below 5. Such file systems are read-only.
    #[error(
        "the file system is of version {version}, which can only be read; zfs upgrade raises it"
    )]
    OldVersion {
        /// The file system's version, 1 to 4.
        version: u64,
    },
    /// No transaction could begin.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// A lower layer could not read or write. Changes that the operation made before that may remain.
    #[error(transparent)]
    Failed(#[from] PosixError),
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
            Self::NotUtf8 => Errno::EILSEQ,
            Self::NotPermitted => Errno::EPERM,
            Self::AccessDenied => Errno::EACCES,
            Self::Invalid { .. } => Errno::EINVAL,
            Self::NotSupported => Errno::EOPNOTSUPP,
            Self::TooLarge => Errno::EFBIG,
            Self::CrossProject => Errno::EXDEV,
            Self::TooManyLinks => Errno::EMLINK,
            Self::NoAttribute => Errno::ENODATA,
            Self::ValueTooLong => Errno::E2BIG,
            Self::NoData => Errno::ENXIO,
            Self::Stale => Errno::ESTALE,
            Self::OwnerQuota | Self::Transaction(TransactionError::Quota) => Errno::EDQUOT,
            Self::Transaction(TransactionError::NoSpace) => Errno::ENOSPC,
            Self::Transaction(TransactionError::ReadOnly) | Self::OldVersion { .. } => Errno::EROFS,
            Self::Transaction(TransactionError::Suspended { .. }) => Errno::EIO,
            Self::Failed(PosixError::NotFound { .. }) => Errno::ENOENT,
            Self::Failed(PosixError::NotADirectory { .. }) => Errno::ENOTDIR,
            Self::Failed(error) if error.is_locked() => Errno::EACCES,
            Self::Failed(_) => Errno::EIO,
        }
    }
}

impl From<ObjectError> for FileError {
    fn from(error: ObjectError) -> Self {
        Self::Failed(error.into())
    }
}
impl From<ZapError> for FileError {
    fn from(error: ZapError) -> Self {
        Self::Failed(error.into())
    }
}
impl From<SaError> for FileError {
    fn from(error: SaError) -> Self {
        Self::Failed(error.into())
    }
}
