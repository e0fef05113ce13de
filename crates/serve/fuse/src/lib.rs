//! Layer `serve`: file systems mounted through the kernel's FUSE.
//!
//! A [`FuseServer`] runs a bounded set of threads. Each mounted file system is a *session*, and all threads
//! serve all sessions. A session ([`session::Session`]) does no I/O on the connection: it takes the bytes of
//! a request and returns the bytes of the reply. It can thus be tested and fuzzed without a kernel. Files
//! come from a [`Vfs`](millpond_posix::vfs::Vfs); this crate does not depend on pools or datasets.
//!
//! ```no_run
//! # fn example(files: std::sync::Arc<dyn millpond_posix::vfs::Vfs>) -> Result<(), millpond_fuse::FuseError> {
//! use millpond_fuse::{FuseServer, MountOptions, MountTarget};
//! let server = FuseServer::start(4)?;
//! let target = MountTarget { files, source: "tank/home".into(), mountpoint: "/mnt".into(), root: None };
//! let mount = server.mount(target, &MountOptions::default())?;
//! mount.unmount(false)?;
//! # Ok(()) }
//! ```
//!
//! What FUSE supports and what it cannot: `docs/mount.md`.
#![deny(unsafe_code)]

pub mod abi;
mod busy_poll;
mod error;
mod mount;
mod rings;
mod server;
pub mod session;
mod shares;
// The kernel fills memory while a thread waits; see `transport/ring.rs`.
#[allow(unsafe_code)]
mod transport;
mod write_back;

pub use error::FuseError;
pub use mount::{
    Mount, MountOptions, MountTarget, MountUser, MountUsers, SuspendedMount, clear_dead_mount,
    mounted_dataset, prepare_mountpoint, remove_mountpoint,
};
pub use server::FuseServer;
pub use session::Trouble;
