//! Layer `file`: files, directories and their attributes.
//!
//! A [`FileSystem`] is opened on an object set; a [`Node`] is one of its files, by object id. This crate
//! implements names, attributes, holes, extended attributes and access control lists. It does not depend on
//! datasets, properties or front ends. [`vfs`] is the interface to front ends.
//!
//! ```no_run
//! # fn example(set: std::sync::Arc<millpond_object::ObjectSetView>) -> Result<(), millpond_posix::FileError> {
//! use millpond_posix::{FileSystem, Symlinks};
//! let files = FileSystem::open(set)?;
//! let node = files.resolve(b"etc/passwd", Symlinks::Follow)?;
//! let mut head = vec![0u8; 4096];
//! let count = node.read(0, &mut head)?;
//! # let _ = count;
//! # Ok(()) }
//! ```
//!
//! Pages: `docs/format/file-system.md`, `docs/format/znode.md`, `docs/format/acl.md`.
#![forbid(unsafe_code)]

mod content;
mod directory;
mod error;
mod file_system;
mod live;
mod node;
mod path;
mod stat;
pub mod vfs;
mod xattr;

pub use content::Extent;
pub use directory::{DirectoryEntries, DirectoryEntry};
pub use error::{Errno, FileError};
pub use file_system::{Case, FileSystem};
pub use live::{
    AclInherit, AclKind, AclMode, Allocate, Atime, BackgroundDrain, Caller, ChangeLog, DirEntryRef,
    Estimate, FILE_BYTES_MAX, FileSystemStat, LONG_NAME_BYTES_MAX, Listed, LiveFileSystem,
    LiveNode, NAME_BYTES_MAX, NewFileSystem, NewMode, POSIX_ACL_ACCESS, POSIX_ACL_DEFAULT,
    PosixAcl, PosixAclWho, QuotaMeasure, QuotaOwner, RangeGuard, RangeLocks, RenameMode,
    ReplayBlock, SETTABLE_FLAGS, SNAPSHOT_DIRECTORY_ID, Seek, SetAttributes, SetTime, Settings,
    Space, SpecialFile, TARGET_BYTES_MAX, TransactionError, TransactionSource, VALUE_BYTES_MAX,
    VERSION, WriteAt, XattrMode, XattrPlace, create_file_system, record_write,
};
pub use millpond_object::CacheHint;
pub use millpond_sa::{Ace, FileFlags, Fuid, Timestamp};
pub use node::Node;
pub use path::Symlinks;
pub use stat::{FileKind, Stat};
