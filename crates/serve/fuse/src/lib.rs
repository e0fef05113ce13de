//! Layer `serve`: file systems mounted through the kernel's FUSE.
//!
//! A [`FuseServer`] holds a bounded set of threads; each mounted file system is a *session* that all of them
//! serve. The session itself ([`session::Session`]) does no I/O on the connection: it is handed the bytes of a
//! request and hands back those of the reply, so that it can be tested, and fed with nonsense, without a kernel.
//! Files come from a [`Vfs`](millpond_posix::vfs::Vfs); this crate knows no pool and no dataset.
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
//! What FUSE gives and what it cannot: `docs/mount.md`.
#![deny(unsafe_code)]

pub mod abi;
mod error;
mod linger;
mod mount;
mod rings;
mod server;
pub mod session;
mod shares;
// Memory that the kernel fills while a thread waits: `transport/ring.rs`.
#[allow(unsafe_code)]
mod transport;

pub use error::FuseError;
pub use mount::{Mount, MountOptions, MountTarget, clear_dead_mount, prepare_mountpoint};
pub use server::FuseServer;
pub use session::Trouble;
