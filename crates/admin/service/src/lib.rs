//! Answers the requests of `millpond-control` in this process.
//!
//! [`LocalService`] opens pools for one command. [`ImportedPools`] keeps them open. Neither
//! mounts anything, and neither stores state of its own on disk. Page `docs/daemon.md`.
#![forbid(unsafe_code)]

mod change;
mod delegation;
mod diff;
mod host;
mod imported;
mod info;
mod key_file;
mod local;
mod program;
mod receive;
mod send;

pub use diff::diff_view;
pub use imported::{
    AutoReplace, AutoReplaced, CacheFile, ImportedPool, ImportedPools, OneImport, Open,
    PoolRelease, PoolSuspension, Step,
};
pub use info::arc::arc_info;
pub use info::damaged::damaged_files;
pub use key_file::{read_key, read_key_file};
pub use local::{LocalChanges, LocalPools, LocalService};

/// The project of a file on the host, such as one in a mounted file system.
pub use millpond_device::FileProject;
/// A range of a file in a mounted file system that is to be stored again.
pub use millpond_device::RewriteRange;

use millpond_control::{DeviceFacts, DeviceProblem};

/// Inspects a path as a device for a new vdev.
///
/// # Errors
/// [`DeviceProblem`].
pub fn device_facts(path: &str) -> Result<DeviceFacts, DeviceProblem> {
    change::checks::facts(path)
}
