//! Why a mount or unmount failed.

use std::path::PathBuf;

/// An error outside of the mounted files.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FuseError {
    /// The kernel's FUSE device cannot be used.
    #[error("/dev/fuse cannot be opened: {0} (is the kernel's module `fuse` there?)")]
    Device(rustix::io::Errno),
    /// The mount point does not exist or is not a directory.
    #[error("{}: {error}", path.display())]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// The kernel's error.
        error: rustix::io::Errno,
    },
    /// The path of the mount point contains `..`.
    #[error("{}: a mount point's path has no '..'", .0.display())]
    Upwards(PathBuf),
    /// The path contains a symbolic link that another user could redirect.
    #[error(
        "{}: user {user} decides where a symbolic link in {} leads: put a directory in its place, or set another mountpoint",
        path.display(), link.display()
    )]
    Link {
        /// The mount point.
        path: PathBuf,
        /// The directory that holds the link.
        link: PathBuf,
        /// The user that made the link, or may replace it.
        user: u32,
    },
    /// The mount point contains files, and mounting over them was not requested.
    #[error("{}: directory is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// The kernel refused to mount.
    #[error("{}: cannot be mounted: {error}", path.display())]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// The kernel's error.
        error: rustix::io::Errno,
    },
    /// The helper that mounts for unprivileged users failed or is missing.
    #[error("fusermount3: {0}")]
    Helper(String),
    /// The mounted file system is in use.
    #[error("{}: in use", .0.display())]
    Busy(PathBuf),
    /// The kernel refused to unmount for another reason.
    #[error("{}: cannot be unmounted: {error}", path.display())]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// The kernel's error.
        error: rustix::io::Errno,
    },
    /// What programs changed in mapped memory was not written.
    #[error("{}: changes in mapped memory are not written: {error}", path.display())]
    WriteBack {
        /// The mount point.
        path: PathBuf,
        /// The kernel's error, or `ETIMEDOUT` if the files do not take the changes.
        error: rustix::io::Errno,
    },
    /// The kernel refused to change the options of a mount.
    #[error("{}: the mount options cannot be changed: {error}", path.display())]
    Remount {
        /// The mount point.
        path: PathBuf,
        /// The kernel's error.
        error: rustix::io::Errno,
    },
    /// Threads or descriptors could not be created.
    #[error("the server cannot be started: {0}")]
    Start(String),
    /// A name or option that is invalid for a mount.
    #[error("{0}")]
    Invalid(&'static str),
}
