//! Layer `admin`: what changed between two states of a file system (`zfs diff`).
//!
//! Only dnodes are compared. The traversal visits the blocks of dnodes that differ between the two states, so the work
//! is in proportion to what changed. Paths are found through the parents of files, a few thousand files at a
//! time: each directory with changed files is read once for all of them.
//!
//! Pages: `docs/format/dnode.md`, `docs/format/file-system.md`.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

mod changed;
mod compare;
mod state;

use changed::ChangedObjects;
use millpond_env::sync::Arc;
use millpond_ondisk::ObjectId;
use millpond_posix::{FileError, FileKind, FileSystem, Timestamp};

/// How a path changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It exists only in the older state.
    Removed,
    /// It exists only in the newer state.
    Created,
    /// Content or attributes changed.
    Modified {
        /// How many links more it has; 0 for directories.
        links: i64,
    },
    /// It has another path.
    Renamed {
        /// The path in the newer state, below the root.
        to: Vec<u8>,
    },
}

/// One changed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The path below the root, in the older state if there is one; empty for the root.
    pub path: Vec<u8>,
    /// How it changed.
    pub change: Change,
    /// The file type.
    pub kind: FileKind,
    /// The change time: that of the newer state, if it has the file.
    pub ctime: Timestamp,
}

/// Why two states could not be compared.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DiffError {
    /// One of them is not a committed state.
    #[error("only committed states of file systems can be compared")]
    NotCommitted,
    /// The older state is not one from which the newer one descends.
    #[error("not an earlier snapshot from the same file system")]
    NotEarlier,
    /// The file system is encrypted, and its key is not loaded.
    #[error("encryption key not loaded")]
    Locked,
    /// Dnodes could not be read.
    #[error("the objects of the file system cannot be read: {0}")]
    Unreadable(String),
    /// A file could not be read.
    #[error("object {id}: {error}")]
    File {
        /// The file.
        id: ObjectId,
        /// What happened.
        error: FileError,
    },
    /// Other content of the file system could not be read.
    #[error(transparent)]
    Files(#[from] FileError),
}

/// What to do after a difference.
pub type Flow = std::ops::ControlFlow<()>;

/// Calls `each` with what changed from one state of a file system to a newer one, in the order of object numbers.
/// Returns early if `each` says so.
///
/// The older state must be one from which the newer one descends: a snapshot of it or of its origin.
///
/// # Errors
/// If something cannot be read. Differences that were found before were passed to `each`.
pub fn differences(
    old: &Arc<FileSystem>,
    new: &Arc<FileSystem>,
    each: &mut dyn FnMut(Difference) -> Flow,
) -> Result<(), DiffError> {
    let sets = (old.committed(), new.committed());
    let (Some(old_set), Some(new_set)) = sets else {
        return Err(DiffError::NotCommitted);
    };
    let compare = compare::Compare::new(old, new, each)?;
    ChangedObjects::new(compare).run(old_set, new_set)
}
