//! Layer `file`: files, directories and their attributes.
//!
//! A [`FileSystem`] is opened on an object set; a [`Node`] is one of its files, by object id. This crate
//! implements names, attributes, holes, extended attributes and access control lists. It does not depend on
//! datasets, properties or front ends. [`live`] has files that are open for changes; [`vfs`] is the interface
//! to front ends.
//!
//! ```no_run
//! # fn example(set: std::sync::Arc<millpond_object::ObjectSetView>) -> Result<(), millpond_posix::PosixError> {
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
pub mod live;
mod node;
mod path;
mod stat;
pub mod vfs;
mod xattr;

pub use content::Extent;
pub use directory::{DirectoryEntries, DirectoryEntry};
pub use error::PosixError;
pub use file_system::{Case, FileSystem};
pub use millpond_object::CacheHint;
pub use millpond_sa::{Ace, FileFlags, Fuid, Timestamp};
pub use node::Node;
pub use path::Symlinks;
pub use stat::{FileKind, Stat};
