//! Pools, datasets, snapshots and files of ZFS without a kernel module. This is the crate that programs use.
//!
//! Handles are `Send + Sync`, calls block, and dropping a handle closes it. There is no global state: one
//! process can open two pools, or one pool at two states. [`Pool`] only reads, and writes nothing to the
//! devices. [`live`] creates and changes pools.
//!
//! ```no_run
//! # fn main() -> Result<(), millpond::Error> {
//! use millpond::{OpenOptions, Pool, Search, Symlinks};
//!
//! let search = Search::new(["/images"]);
//! let pool = Pool::open(&search, "tank", &OpenOptions::default())?;
//! let files = pool.dataset("tank/home@monday")?.file_system()?;
//! let node = files.resolve(b"notes.txt", Symlinks::Follow)?;
//! let mut text = vec![0u8; node.size_bytes() as usize];
//! node.read(0, &mut text)?;
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]

/// The example of the README is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

pub mod control;
mod dataset;
mod error;
pub mod live;
mod pool;
mod properties;
mod search;

pub use dataset::Dataset;
pub use error::Error;
pub use millpond_check as check;
pub use millpond_dataset::properties::{DatasetKind, OwnerKind, OwnerSpace};
pub use millpond_dataset::{Bookmark, DatasetError, Hold, PropertySource, PropertyValue};
pub use millpond_inspect as inspect;
pub use millpond_object::{ObjectError, ObjectSetView, ObjectView, ReadableObject};
pub use millpond_ondisk::{ObjectId, Txg};
pub use millpond_pool::import::{Found, PoolCandidate, PoolState, Rewind};
pub use millpond_pool::{OpenError, OpenOptions, PoolError};
/// The newest version of file systems, and the only one that can be written.
pub use millpond_posix::VERSION as FILE_SYSTEM_VERSION;
pub use millpond_posix::vfs::{Vfs, ZfsCtlDir};
pub use millpond_posix::{
    Allocate, Caller, DirEntryRef, DirectoryEntries, DirectoryEntry, Errno, Extent, FileError,
    FileFlags, FileKind, FileSystem, NewMode, Node, QuotaMeasure, QuotaOwner, RenameMode, Seek,
    SetAttributes, SetTime, SpecialFile, Stat, Symlinks, Timestamp, WriteAt, XattrMode,
};
pub use millpond_verify as verify;
pub use millpond_volume::{Volume, VolumeError, VolumeExtent};
pub use pool::{DatasetIter, Pool};
pub use properties::LiteralProperty;
pub use search::Search;
