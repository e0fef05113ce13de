//! Error numbers, as the functions of a program return them.

use millpond_dataset::{DatasetError, Refusal};
use millpond_lua::{Error as LuaError, Lua, Value};
use rustix::io::Errno;

/// The global names of a program.
const NAMES: [(&str, Errno); 41] = [
    ("EPERM", Errno::PERM),
    ("ENOENT", Errno::NOENT),
    ("ESRCH", Errno::SRCH),
    ("EINTR", Errno::INTR),
    ("EIO", Errno::IO),
    ("ENXIO", Errno::NXIO),
    ("E2BIG", Errno::TOOBIG),
    ("ENOEXEC", Errno::NOEXEC),
    ("EBADF", Errno::BADF),
    ("ECHILD", Errno::CHILD),
    ("EAGAIN", Errno::AGAIN),
    ("ENOMEM", Errno::NOMEM),
    ("EACCES", Errno::ACCESS),
    ("EFAULT", Errno::FAULT),
    ("ENOTBLK", Errno::NOTBLK),
    ("EBUSY", Errno::BUSY),
    ("EEXIST", Errno::EXIST),
    ("EXDEV", Errno::XDEV),
    ("ENODEV", Errno::NODEV),
    ("ENOTDIR", Errno::NOTDIR),
    ("EISDIR", Errno::ISDIR),
    ("EINVAL", Errno::INVAL),
    ("ENFILE", Errno::NFILE),
    ("EMFILE", Errno::MFILE),
    ("ENOTTY", Errno::NOTTY),
    ("ETXTBSY", Errno::TXTBSY),
    ("EFBIG", Errno::FBIG),
    ("ENOSPC", Errno::NOSPC),
    ("ESPIPE", Errno::SPIPE),
    ("EROFS", Errno::ROFS),
    ("EMLINK", Errno::MLINK),
    ("EPIPE", Errno::PIPE),
    ("EDOM", Errno::DOM),
    ("ERANGE", Errno::RANGE),
    ("EDEADLK", Errno::DEADLK),
    ("ENAMETOOLONG", Errno::NAMETOOLONG),
    ("ENOLCK", Errno::NOLCK),
    ("ENOTSUP", Errno::NOTSUP),
    ("ECANCELED", Errno::CANCELED),
    ("ENOTEMPTY", Errno::NOTEMPTY),
    ("EDQUOT", Errno::DQUOT),
];

pub(super) fn register(lua: &mut Lua<'_>) -> Result<(), LuaError> {
    let mut names = NAMES.into_iter();
    names.try_for_each(|(name, number)| lua.set_global(name, value(number)))
}

/// A number as a value of Lua.
pub(super) fn value(number: Errno) -> Value {
    Value::Integer(number.raw_os_error().into())
}

/// The number for a refused change.
pub(super) fn of(error: &DatasetError) -> Errno {
    match error {
        DatasetError::NotFound { .. } => Errno::NOENT,
        DatasetError::InvalidName { reason, .. } if reason.contains("too long") => {
            Errno::NAMETOOLONG
        }
        DatasetError::InvalidName { .. } | DatasetError::InvalidProperty { .. } => Errno::INVAL,
        DatasetError::Refused { why, .. } => of_refusal(why),
        _ => Errno::IO,
    }
}

fn of_refusal(why: &Refusal) -> Errno {
    match why {
        Refusal::Exists
        | Refusal::HasChildren
        | Refusal::HasClones
        | Refusal::SnapshotExists(_)
        | Refusal::BookmarkExists(_)
        | Refusal::NotTheLatest
        | Refusal::TagExists => Errno::EXIST,
        Refusal::NoParent => Errno::NOENT,
        Refusal::Busy
        | Refusal::HasSnapshots
        | Refusal::IsHeld
        | Refusal::Inconsistent
        | Refusal::PartlyReceived => Errno::BUSY,
        Refusal::NoSuchTag => Errno::SRCH,
        Refusal::TagTooLong => Errno::TOOBIG,
        Refusal::NameTooLong | Refusal::TooDeep => Errno::NAMETOOLONG,
        Refusal::OtherPool => Errno::XDEV,
        Refusal::LimitReached | Refusal::OverQuota => Errno::DQUOT,
        Refusal::NoSpace | Refusal::AboveAvailable | Refusal::BelowUse => Errno::NOSPC,
        Refusal::NotPermitted | Refusal::Key(_) => Errno::PERM,
        Refusal::FeatureDisabled
        | Refusal::OldPool
        | Refusal::NeverLater
        | Refusal::Unsupported(_) => Errno::NOTSUP,
        _ => Errno::INVAL,
    }
}
