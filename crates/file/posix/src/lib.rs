//! Layer `file`: files, directories and everything that hangs on them.
//!
//! A [`FileSystem`] is opened on an object set; a [`Node`] is one file of it, by object number. This
//! crate knows names, attributes, holes, extended attributes and access control lists; it knows no
//! dataset, no property and no front end. Files that change are in [`live`]; what front ends see of either is in [`vfs`].
//!
//! ```no_run
//! # fn example(set: std::sync::Arc<millpond_object::ObjectSet>) -> Result<(), millpond_posix::PosixError> {
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
pub use millpond_object::Keeping;
pub use millpond_sa::{Ace, FileFlags, Fuid, Timestamp};
pub use node::Node;
pub use path::Symlinks;
pub use stat::{FileKind, Stat};
