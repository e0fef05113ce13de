//! The error of this crate.

use millpond_engine::{
    BlockError, CreateError, DatasetError, DeviceError, Errno, FileError, NewVdevError, OpenError,
    PoolError, ReceiveProblem, Refusal, RewindError, VolumeError,
};
use std::fmt::{self, Display};
use std::io;

/// What went wrong, in a few kinds that programs tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A pool, dataset, file or attribute does not exist.
    NotFound,
    /// It exists already.
    AlreadyExists,
    /// It is in use: open, mounted, held, used by another system, or others depend on it.
    Busy,
    /// The permissions, flags or a policy forbid it.
    PermissionDenied,
    /// The pool, dataset or device can only be read.
    ReadOnly,
    /// The key of an encrypted dataset is not loaded, or is wrong.
    Locked,
    /// There is no space left.
    NoSpace,
    /// A quota, or a limit on the number of datasets, is reached.
    QuotaExceeded,
    /// The path leads through something that is not a directory.
    NotADirectory,
    /// The operation does not work on a directory.
    IsADirectory,
    /// The directory has entries.
    DirectoryNotEmpty,
    /// A name, value or argument is not valid.
    InvalidInput,
    /// The pool uses a feature that this version cannot handle, or the operation is not implemented.
    Unsupported,
    /// Devices are missing, or fail.
    Device,
    /// The pool takes no changes: it has stopped writing because devices failed (see `zpool clear`), or it was
    /// exported.
    Suspended,
    /// Data on the devices is damaged and cannot be repaired by reading another copy.
    Damaged,
    /// A view of a committed state was open for too long; open it again.
    Expired,
}

/// Why an operation failed, and on what.
///
/// Its text is for people. Programs decide by [`Error::kind`].
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    /// What the operation was about, if the cause does not name it.
    subject: Option<String>,
    cause: Box<dyn std::error::Error + Send + Sync>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            subject: None,
            cause: text.into().into(),
        }
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Names what the operation was about, unless that is known already.
    pub(crate) fn about(mut self, subject: impl Display) -> Self {
        self.subject.get_or_insert_with(|| subject.to_string());
        self
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(subject) = &self.subject {
            write!(f, "{subject}: ")?;
        }
        self.cause.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The text has the cause already.
        self.cause.source()
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind {
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
            ErrorKind::Busy => io::ErrorKind::ResourceBusy,
            ErrorKind::PermissionDenied | ErrorKind::Locked => io::ErrorKind::PermissionDenied,
            ErrorKind::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
            ErrorKind::NoSpace => io::ErrorKind::StorageFull,
            ErrorKind::QuotaExceeded => io::ErrorKind::QuotaExceeded,
            ErrorKind::NotADirectory => io::ErrorKind::NotADirectory,
            ErrorKind::IsADirectory => io::ErrorKind::IsADirectory,
            ErrorKind::DirectoryNotEmpty => io::ErrorKind::DirectoryNotEmpty,
            ErrorKind::InvalidInput => io::ErrorKind::InvalidInput,
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            ErrorKind::Damaged => io::ErrorKind::InvalidData,
            ErrorKind::Device | ErrorKind::Suspended | ErrorKind::Expired => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

impl From<millpond_engine::Error> for Error {
    fn from(error: millpond_engine::Error) -> Self {
        Self {
            kind: kind_of(&error),
            subject: None,
            cause: error.into(),
        }
    }
}

/// Errors of the layers below become errors of the engine, which has a text for each.
macro_rules! from_below {
    ($($error:ty),*) => { $(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                millpond_engine::Error::from(error).into()
            }
        }
    )* };
}

from_below!(FileError, DatasetError, PoolError, VolumeError);

fn kind_of(error: &millpond_engine::Error) -> ErrorKind {
    use millpond_engine::Error;
    match error {
        Error::NoSuchPool { .. } => ErrorKind::NotFound,
        Error::InUse { .. } | Error::OtherLog { .. } => ErrorKind::Busy,
        Error::ReadOnlyDevices { .. } => ErrorKind::ReadOnly,
        Error::Open { error, .. } => kind_of_open(error),
        Error::Create { error, .. } => kind_of_create(error),
        Error::Device { error, .. } => kind_of_device(error),
        Error::ReplayNeedsDevices { .. } => ErrorKind::Device,
        Error::Replay { .. } => ErrorKind::Damaged,
        Error::Pool(error) => kind_of_pool(error),
        Error::Dataset(error) => kind_of_dataset(error),
        Error::File(error) => kind_of_file(error),
        Error::Volume(error) => kind_of_volume(error),
        Error::Receive(problem) => kind_of_receive(problem),
        _ => ErrorKind::InvalidInput,
    }
}

fn kind_of_open(error: &OpenError) -> ErrorKind {
    match error {
        OpenError::Features { .. } | OpenError::Version { .. } => ErrorKind::Unsupported,
        OpenError::ReadOnly(_) => ErrorKind::ReadOnly,
        OpenError::InUseElsewhere { .. } => ErrorKind::Busy,
        OpenError::Devices { .. } | OpenError::GuidSum => ErrorKind::Device,
        OpenError::State { error, .. } => kind_of_pool(error),
        OpenError::NoCheckpoint
        | OpenError::NeedsHostid
        | OpenError::Rewind(
            RewindError::NoneSoOld { .. } | RewindError::NotKept { .. } | RewindError::AcrossReflow,
        ) => ErrorKind::InvalidInput,
        _ => ErrorKind::Damaged,
    }
}

fn kind_of_create(error: &CreateError) -> ErrorKind {
    match error {
        CreateError::Vdevs(NewVdevError::InUse(_)) => ErrorKind::Busy,
        CreateError::Feature(_) => ErrorKind::Unsupported,
        CreateError::Label { .. } => ErrorKind::Device,
        CreateError::Pool(error) => kind_of_pool(error),
        _ => ErrorKind::InvalidInput,
    }
}

fn kind_of_device(error: &DeviceError) -> ErrorKind {
    match error {
        DeviceError::InUse { .. } => ErrorKind::Busy,
        _ => ErrorKind::Device,
    }
}

fn kind_of_pool(error: &PoolError) -> ErrorKind {
    match error {
        error if error.needs_devices() => ErrorKind::Device,
        PoolError::Suspended { .. } => ErrorKind::Suspended,
        PoolError::Unsupported { .. } | PoolError::NotReady | PoolError::Feature(_) => {
            ErrorKind::Unsupported
        }
        PoolError::ViewExpired { .. } => ErrorKind::Expired,
        PoolError::Block { error, .. } => match error {
            BlockError::NoSpace { .. } => ErrorKind::NoSpace,
            BlockError::Write { .. } => ErrorKind::Device,
            _ => ErrorKind::Damaged,
        },
        _ => ErrorKind::Damaged,
    }
}

fn kind_of_dataset(error: &DatasetError) -> ErrorKind {
    match error {
        error if error.is_locked() => ErrorKind::Locked,
        error if error.needs_devices() => ErrorKind::Device,
        DatasetError::NotFound { .. } => ErrorKind::NotFound,
        DatasetError::InvalidName { .. } | DatasetError::InvalidProperty { .. } => {
            ErrorKind::InvalidInput
        }
        DatasetError::Key { .. } => ErrorKind::Locked,
        DatasetError::Pool(error) => kind_of_pool(error),
        DatasetError::Refused { why, .. } => match why {
            Refusal::Exists
            | Refusal::SnapshotExists(_)
            | Refusal::BookmarkExists(_)
            | Refusal::TagExists => ErrorKind::AlreadyExists,
            Refusal::NoParent | Refusal::NoSuchTag => ErrorKind::NotFound,
            Refusal::Busy
            | Refusal::HasChildren
            | Refusal::HasSnapshots
            | Refusal::HasClones
            | Refusal::IsHeld => ErrorKind::Busy,
            Refusal::OverQuota | Refusal::LimitReached => ErrorKind::QuotaExceeded,
            Refusal::NoSpace => ErrorKind::NoSpace,
            Refusal::NotPermitted => ErrorKind::PermissionDenied,
            Refusal::FeatureDisabled | Refusal::Unsupported(_) => ErrorKind::Unsupported,
            _ => ErrorKind::InvalidInput,
        },
        _ => ErrorKind::Damaged,
    }
}

fn kind_of_receive(problem: &ReceiveProblem) -> ErrorKind {
    match problem {
        ReceiveProblem::Denied => ErrorKind::PermissionDenied,
        ReceiveProblem::NoBase(_)
        | ReceiveProblem::NoParent(_)
        | ReceiveProblem::NoDestination(_)
        | ReceiveProblem::NoOrigin(_)
        | ReceiveProblem::NoGivenOrigin(_)
        | ReceiveProblem::NoSource(_) => ErrorKind::NotFound,
        ReceiveProblem::Exists(_)
        | ReceiveProblem::ResumeReplaces(_)
        | ReceiveProblem::HasSnapshots(..)
        | ReceiveProblem::SnapshotExists(_) => ErrorKind::AlreadyExists,
        ReceiveProblem::PartlyReceived(_)
        | ReceiveProblem::Mounted(..)
        | ReceiveProblem::Busy(_) => ErrorKind::Busy,
        ReceiveProblem::UnknownFeatures(..)
        | ReceiveProblem::Deduplicated
        | ReceiveProblem::FeatureDisabled
        | ReceiveProblem::Unsupported(_) => ErrorKind::Unsupported,
        ReceiveProblem::Locked => ErrorKind::Locked,
        ReceiveProblem::OverQuota(_) => ErrorKind::QuotaExceeded,
        ReceiveProblem::NoSpace => ErrorKind::NoSpace,
        ReceiveProblem::Failed(_) => ErrorKind::Device,
        _ => ErrorKind::InvalidInput,
    }
}

fn kind_of_file(error: &FileError) -> ErrorKind {
    if error.is_locked() {
        return ErrorKind::Locked;
    }
    if error.needs_devices() {
        return ErrorKind::Device;
    }
    match error {
        // A path names a file of the file system: only the error inside tells what failed.
        FileError::Path { error, .. } => return kind_of_file(error),
        FileError::NotAFileSystem { .. } => return ErrorKind::InvalidInput,
        FileError::Version { .. } => return ErrorKind::Unsupported,
        _ => {}
    }
    match error.errno() {
        Errno::ENOENT | Errno::ENODATA | Errno::ESTALE => ErrorKind::NotFound,
        Errno::EEXIST => ErrorKind::AlreadyExists,
        Errno::EPERM | Errno::EACCES => ErrorKind::PermissionDenied,
        Errno::ENOTDIR => ErrorKind::NotADirectory,
        Errno::EISDIR => ErrorKind::IsADirectory,
        Errno::ENOTEMPTY => ErrorKind::DirectoryNotEmpty,
        Errno::ENOSPC => ErrorKind::NoSpace,
        Errno::EDQUOT => ErrorKind::QuotaExceeded,
        Errno::EROFS => ErrorKind::ReadOnly,
        Errno::EOPNOTSUPP => ErrorKind::Unsupported,
        Errno::EIO if error.is_failure() => ErrorKind::Damaged,
        Errno::EIO => ErrorKind::Suspended,
        _ => ErrorKind::InvalidInput,
    }
}

fn kind_of_volume(error: &VolumeError) -> ErrorKind {
    match error {
        error if error.is_locked() => ErrorKind::Locked,
        error if error.needs_devices() => ErrorKind::Device,
        VolumeError::Object { .. } | VolumeError::Zap { .. } | VolumeError::NoSize { .. } => {
            ErrorKind::Damaged
        }
        VolumeError::Transaction { error, .. } => kind_of_file(&error.clone().into()),
        _ => ErrorKind::InvalidInput,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_engine::{ObjectError, Txg};
    use millpond_posix::TransactionError;

    fn missing() -> BlockError {
        BlockError::Missing {
            address: Default::default(),
            copies: vec![],
        }
    }

    #[test]
    fn volumes_tell_why_they_take_no_changes() {
        let suspended = TransactionError::Suspended { reason: "".into() };
        for (error, kind) in [
            (TransactionError::NoSpace, ErrorKind::NoSpace),
            (TransactionError::Quota, ErrorKind::QuotaExceeded),
            (TransactionError::ReadOnly, ErrorKind::ReadOnly),
            (suspended, ErrorKind::Suspended),
        ] {
            let name = "tank/disk".into();
            let error = Error::from(VolumeError::Transaction { name, error });
            assert_eq!(error.kind(), kind);
        }
        let name = "tank/disk".into();
        let error = Error::from(VolumeError::NoSize { name });
        assert_eq!(error.kind(), ErrorKind::Damaged);
    }

    #[test]
    fn a_pool_that_cannot_be_opened_says_whether_devices_are_missing() {
        let state = |error| OpenError::State { txg: Txg(5), error };
        let object = PoolError::Object {
            what: "MOS",
            error: ObjectError::Block(missing()),
        };
        let no_entry = PoolError::NoEntry { key: "root".into() };
        let oldest = RewindError::NoneSoOld { oldest: Txg(4) };
        for (error, kind) in [
            (state(object), ErrorKind::Device),
            (state(no_entry), ErrorKind::Damaged),
            (OpenError::GuidSum, ErrorKind::Device),
            (OpenError::Rewind(oldest), ErrorKind::InvalidInput),
            (RewindError::NoUberblock.into(), ErrorKind::Damaged),
        ] {
            let (name, error) = ("tank".into(), Box::new(error));
            let error = Error::from(millpond_engine::Error::Open { name, error });
            assert_eq!(error.kind(), kind, "{error}");
        }
    }

    #[test]
    fn missing_devices_are_no_damage() {
        let block = |error| PoolError::Block { what: "x", error };
        assert_eq!(Error::from(block(missing())).kind(), ErrorKind::Device);
        let reason = "no device took it".into();
        let address = Default::default();
        let write = block(BlockError::Write { address, reason });
        let error = Box::new(CreateError::Pool(write));
        let name = "tank".into();
        let error = Error::from(millpond_engine::Error::Create { name, error });
        assert_eq!(error.kind(), ErrorKind::Device);
        let object = |error| DatasetError::Object {
            name: "tank".into(),
            error: ObjectError::Block(error),
        };
        assert_eq!(Error::from(object(missing())).kind(), ErrorKind::Device);
        let locked = BlockError::Locked { address };
        assert_eq!(Error::from(object(locked)).kind(), ErrorKind::Locked);
    }

    #[test]
    fn the_error_of_a_path_is_that_of_its_file() {
        let path = |error| FileError::Path {
            path: b"a".to_vec(),
            error: Box::new(error),
        };
        let dataset = 54;
        let damaged = ObjectError::NotFound {
            dataset,
            object: millpond_engine::ObjectId(7),
        };
        for (error, kind) in [
            (FileError::Object(damaged), ErrorKind::Damaged),
            (
                FileError::NotAFileSystem { dataset },
                ErrorKind::InvalidInput,
            ),
            (
                FileError::Version {
                    dataset,
                    version: 9,
                },
                ErrorKind::Unsupported,
            ),
        ] {
            assert_eq!(Error::from(error.clone()).kind(), kind);
            assert_eq!(Error::from(path(error)).kind(), kind);
        }
    }
}
