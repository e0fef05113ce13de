//! File systems that are open for changes.
//!
//! [`create_file_system`] fills a new object set. [`LiveFileSystem`] is an open file system: it creates,
//! finds, reads, writes, renames and removes files. It follows Linux's rules for names, times, links and
//! modes, and OpenZFS's rules for stored data. It does not depend on datasets or front ends: transactions
//! come from [`TransactionSource`], and properties are passed as plain values ([`Settings`]).
//!
//! Locks: see the table in `ARCHITECTURE.md`. The rule behind it: an operation that changes a file first
//! takes the file's locks and then begins its transaction, so that changes of one object happen in txg order.

mod accounting;
mod attributes;
mod cache;
mod content;
mod create;
mod directory;
mod drain;
mod file_system;
mod link;
mod names;
mod new;
mod nfs4_acl;
mod node;
mod posix_acl;
mod quota;
mod range_lock;
mod record_write;
mod records;
mod rename;
mod replay;
mod set_attributes;
mod settings;
mod state;
mod statfs;
mod transaction_source;
mod unlinked;
mod xattr;
mod xattr_directory;

pub use content::{Allocate, FILE_BYTES_MAX, Seek, WriteAt};
pub use create::{NewMode, SpecialFile, TARGET_BYTES_MAX};
pub use directory::{Listed, SNAPSHOT_DIRECTORY_ID};
pub use drain::BackgroundDrain;
pub use file_system::{LiveFileSystem, VERSION};
pub use names::{LONG_NAME_BYTES_MAX, NAME_BYTES_MAX};
pub use new::{NewFileSystem, create_file_system};
pub use node::LiveNode;
pub use posix_acl::{POSIX_ACL_ACCESS, POSIX_ACL_DEFAULT, PosixAcl, PosixAclWho};
pub use quota::{QuotaMeasure, QuotaOwner};
pub use range_lock::{RangeGuard, RangeLocks};
pub use record_write::record_write;
pub use rename::{DirEntryRef, RenameMode};
pub use replay::ReplayBlock;
pub use set_attributes::{SETTABLE_FLAGS, SetAttributes, SetTime};
pub use settings::{AclInherit, AclKind, AclMode, Atime, Caller, Settings, XattrPlace};
pub use statfs::FileSystemStat;
pub use transaction_source::{ChangeLog, Estimate, Space, TransactionError, TransactionSource};
pub use xattr::{VALUE_BYTES_MAX, XattrMode};
