//! Layer `file`: files, directories and their attributes.
//!
//! A [`FileSystem`] is opened on an object set: a committed one for reading, or one that can be written. A
//! [`Node`] is one of its files. Reading is the same on both; a [`FileSystem`] also has the calls that change
//! files. It follows Linux's rules for names, times, links and modes, and OpenZFS's rules for stored data.
//! Transactions come from [`TransactionSource`], and properties are passed as plain values ([`Settings`]).
//!
//! Locks: `docs/internals/locks.md`. The rule behind it: an operation that changes a file first takes the file's
//! locks and then begins its transaction, so that changes of one object happen in txg order.
//!
//! It does not depend on datasets, properties or front ends. [`vfs`] is the interface to front ends.
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

mod accounting;
mod atime;
mod attributes;
mod cache;
mod content;
mod create;
mod directory;
mod drain;
mod entries;
mod error;
mod file_system;
mod link;
mod name_index;
mod names;
mod new;
mod nfs4_acl;
mod node;
mod open_node;
mod path;
mod path_finder;
mod posix_acl;
mod quota;
mod range_lock;
mod record_write;
mod records;
mod rename;
mod replay;
mod set_attributes;
mod settings;
mod stat;
mod state;
mod statfs;
mod statistics;
mod sync;
mod transaction_source;
mod unlinked;
mod version;
pub mod vfs;
mod writing;
mod xattr;

pub use content::{
    Allocate, CHUNK_BYTES, Extent, FILE_BYTES_MAX, FREE_BLOCKS_MAX, FREE_DIRTY_BYTES, Seek, WriteAt,
};
pub use create::{NewMode, SpecialFile, TARGET_BYTES_MAX};
pub use directory::{DirectoryEntries, DirectoryEntry, Listed, SNAPSHOT_DIRECTORY_ID};
pub use drain::BackgroundDrain;
pub use error::{Errno, FileError};
pub use file_system::{FileSystem, VERSION};
pub use millpond_object::CacheHint;
pub use millpond_sa::{Ace, FileFlags, Fuid, Timestamp};
pub use millpond_txg::Estimate;
pub use names::{Case, LONG_NAME_BYTES_MAX, NAME_BYTES_MAX, is_safe_name};
pub use new::{NewFileSystem, create_file_system};
pub use node::Node;
pub use path::Symlinks;
pub use path_finder::PathFinder;
pub use posix_acl::{POSIX_ACL_ACCESS, POSIX_ACL_DEFAULT, PosixAcl, PosixAclWho};
pub use quota::{QuotaMeasure, QuotaOwner};
pub use range_lock::{RangeGuard, RangeLocks};
pub use record_write::record_write;
pub use rename::{DirEntryRef, RenameMode};
pub use replay::ReplayBlock;
pub use set_attributes::{SETTABLE_FLAGS, SetAttributes, SetTime};
pub use settings::{
    AclInherit, AclKind, AclMode, Atime, Caller, Settings, SnapshotDirectory, XattrPlace,
};
pub use stat::{FileKind, Stat};
pub use statfs::FileSystemStat;
pub use statistics::FileStatistics;
pub use transaction_source::{ChangeLog, CloneOrigin, Space, TransactionError, TransactionSource};
pub use xattr::{VALUE_BYTES_MAX, XattrMode};
