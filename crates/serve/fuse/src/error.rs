//! Why something could not be mounted or unmounted.

use std::path::PathBuf;

/// What went wrong outside of the files themselves.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FuseError {
    /// The kernel's FUSE cannot be reached.
    #[error("/dev/fuse cannot be opened: {0} (is the kernel's module `fuse` there?)")]
    Device(rustix::io::Errno),
    /// The mount point is not there or is no directory.
    #[error("{}: {error}", path.display())]
    MountPoint {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        error: rustix::io::Errno,
    },
    /// The path of the mount point goes upwards.
    #[error("{}: a mount point's path has no '..'", .0.display())]
    Upwards(PathBuf),
    /// A link on the way that somebody else could turn elsewhere.
    #[error(
        "{}: user {user} decides where a symbolic link in {} leads: put a directory in its place, or set another mountpoint",
        path.display(), link.display()
    )]
    Link {
        /// The mount point.
        path: PathBuf,
        /// The directory that the link is in.
        link: PathBuf,
        /// Who made the link, or may replace it.
        user: u32,
    },
    /// The mount point has files in it, and mounting over them was not asked for.
    #[error("{}: directory is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// The kernel refused.
    #[error("{}: cannot be mounted: {error}", path.display())]
    Mount {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        error: rustix::io::Errno,
    },
    /// The helper that mounts for ordinary users failed or is not there.
    #[error("fusermount3: {0}")]
    Helper(String),
    /// Somebody uses the mounted file system.
    #[error("{}: in use", .0.display())]
    Busy(PathBuf),
    /// The kernel would not unmount for another reason.
    #[error("{}: cannot be unmounted: {error}", path.display())]
    Unmount {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        error: rustix::io::Errno,
    },
    /// Threads or descriptors are not to be had.
    #[error("the server cannot be started: {0}")]
    Start(String),
    /// A name or option that has no place in a mount.
    #[error("{0}")]
    Invalid(&'static str),
}
