//! Error numbers of Linux, as the functions of a program return them.

use millpond_dataset::{DatasetError, Refusal};
use millpond_lua::{Error as LuaError, Lua, Value};

pub(super) const E2BIG: i64 = 7;
pub(super) const EAGAIN: i64 = 11;
pub(super) const EBUSY: i64 = 16;
pub(super) const EEXIST: i64 = 17;
pub(super) const EXDEV: i64 = 18;
pub(super) const EINVAL: i64 = 22;
pub(super) const ENAMETOOLONG: i64 = 36;
const EPERM: i64 = 1;
const ENOENT: i64 = 2;
const ESRCH: i64 = 3;
const EIO: i64 = 5;
const ENOSPC: i64 = 28;
const ENOTSUP: i64 = 95;
const EDQUOT: i64 = 122;

/// The global names of a program.
const NAMES: [(&str, i64); 41] = [
    ("EPERM", EPERM),
    ("ENOENT", ENOENT),
    ("ESRCH", ESRCH),
    ("EINTR", 4),
    ("EIO", EIO),
    ("ENXIO", 6),
    ("E2BIG", E2BIG),
    ("ENOEXEC", 8),
    ("EBADF", 9),
    ("ECHILD", 10),
    ("EAGAIN", EAGAIN),
    ("ENOMEM", 12),
    ("EACCES", 13),
    ("EFAULT", 14),
    ("ENOTBLK", 15),
    ("EBUSY", EBUSY),
    ("EEXIST", EEXIST),
    ("EXDEV", EXDEV),
    ("ENODEV", 19),
    ("ENOTDIR", 20),
    ("EISDIR", 21),
    ("EINVAL", EINVAL),
    ("ENFILE", 23),
    ("EMFILE", 24),
    ("ENOTTY", 25),
    ("ETXTBSY", 26),
    ("EFBIG", 27),
    ("ENOSPC", ENOSPC),
    ("ESPIPE", 29),
    ("EROFS", 30),
    ("EMLINK", 31),
    ("EPIPE", 32),
    ("EDOM", 33),
    ("ERANGE", 34),
    ("EDEADLK", 35),
    ("ENAMETOOLONG", ENAMETOOLONG),
    ("ENOLCK", 37),
    ("ENOTSUP", ENOTSUP),
    ("ECANCELED", 125),
    ("ENOTEMPTY", 39),
    ("EDQUOT", EDQUOT),
];

pub(super) fn register(lua: &mut Lua<'_>) -> Result<(), LuaError> {
    let mut names = NAMES.into_iter();
    names.try_for_each(|(name, number)| lua.set_global(name, Value::Integer(number)))
}

/// The number for a refused change.
pub(super) fn of(error: &DatasetError) -> i64 {
    match error {
        DatasetError::NotFound { .. } => ENOENT,
        DatasetError::InvalidName { reason, .. } if reason.contains("too long") => ENAMETOOLONG,
        DatasetError::InvalidName { .. } | DatasetError::InvalidProperty { .. } => EINVAL,
        DatasetError::Refused { why, .. } => of_refusal(why),
        _ => EIO,
    }
}

fn of_refusal(why: &Refusal) -> i64 {
    match why {
        Refusal::Exists
        | Refusal::HasChildren
        | Refusal::HasClones
        | Refusal::SnapshotExists(_)
        | Refusal::BookmarkExists(_)
        | Refusal::NotTheLatest
        | Refusal::TagExists => EEXIST,
        Refusal::NoParent => ENOENT,
        Refusal::Busy
        | Refusal::HasSnapshots
        | Refusal::IsHeld
        | Refusal::Inconsistent
        | Refusal::PartlyReceived => EBUSY,
        Refusal::NoSuchTag => ESRCH,
        Refusal::TagTooLong => E2BIG,
        Refusal::NameTooLong | Refusal::TooDeep => ENAMETOOLONG,
        Refusal::OtherPool => EXDEV,
        Refusal::LimitReached | Refusal::OverQuota => EDQUOT,
        Refusal::NoSpace | Refusal::AboveAvailable | Refusal::BelowUse => ENOSPC,
        Refusal::NotPermitted | Refusal::Key(_) => EPERM,
        Refusal::FeatureDisabled
        | Refusal::OldPool
        | Refusal::NeverLater
        | Refusal::Unsupported(_) => ENOTSUP,
        _ => EINVAL,
    }
}
