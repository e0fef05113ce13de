//! Pools, datasets, snapshots and files of ZFS without a kernel module. This is the crate that programs use.
//!
//! Paths lead from a [`Pool`] to a [`FileSystem`] to a [`File`], or to a [`Volume`]. Calls block. Handles are
//! `Send + Sync`, and each keeps what it was opened from open. There is no global state: one process can open two
//! pools, or one pool at two states.
//!
//! A pool is opened for reading unless [`OpenOptions::write`] says otherwise. A reader writes nothing to the
//! devices. A writer locks them against other processes of this system. A change is on stable storage after
//! [`Pool::sync`], [`FileSystem::sync`] or [`File::sync_all`], and otherwise after a few seconds. Changes of
//! datasets return when they are. A pool that is closed without [`Pool::export`] is left as after a crash:
//! consistent, at its last committed transaction group.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("millpond-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! let image = folder.join("disk.img");
//! std::fs::File::create(&image)?.set_len(64 << 20)?;
//!
//! let pool = millpond::PoolBuilder::new("tank").single(&image).create()?;
//! let home = pool.create_file_system("tank/home").property("compression", "zstd").create()?;
//! home.write("note.txt", "kept")?;
//! pool.snapshot(["tank/home@first"])?;
//! home.write("note.txt", "changed")?;
//! assert_eq!(pool.file_system("tank/home@first")?.read("note.txt")?, b"kept");
//! drop(home);
//! pool.export()?;
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(()) }
//! ```
//!
//! More programs are in the folder `examples`. Servers that hand out files by inode number use [`vfs`].
#![forbid(unsafe_code)]

/// The example of the README is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

mod builder;
mod dataset;
mod directory;
mod error;
mod file;
mod file_system;
mod metadata;
mod open;
mod pin;
mod pool;
mod stream;
mod volume;

pub use builder::{PoolBuilder, VdevClass};
pub use dataset::{Dataset, DatasetKind, NewFileSystem, NewVolume, Property, PropertyValue};
pub use directory::{DirEntry, ReadDir, Walk};
pub use error::{Error, ErrorKind};
pub use file::File;
pub use file_system::FileSystem;
pub use metadata::{FileType, Metadata};
pub use open::OpenOptions;
pub use pool::{CheckSummary, LostFile, Pool, PoolSpace, Progress, VerifySummary};
pub use volume::Volume;

/// Files by inode number, for servers such as a mount.
pub use millpond_posix::vfs;
