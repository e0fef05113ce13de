//! Mounting with the system call, as the superuser.

use super::MountOptions;
use crate::error::FuseError;
use crate::transport::Channel;
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::path::Path;

pub(super) fn mount(
    channel: &Channel,
    source: &str,
    path: &Path,
    options: &MountOptions,
) -> Result<(), FuseError> {
    let mut flags = MountFlags::empty();
    for (is_set, flag) in [
        (options.read_only, MountFlags::RDONLY),
        (!options.exec, MountFlags::NOEXEC),
        (!options.suid, MountFlags::NOSUID),
        (!options.devices, MountFlags::NODEV),
        (!options.atime, MountFlags::NOATIME),
    ] {
        if is_set {
            flags |= flag;
        }
    }
    // The kernel checks permissions: requests do not say in which groups a process is.
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        channel.fd().as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(|_| FuseError::Invalid("a zero byte in options"))?;
    rustix::mount::mount(source, path, "fuse.zfs", flags, data.as_c_str()).map_err(|error| {
        FuseError::Mount {
            path: path.to_owned(),
            error,
        }
    })
}

pub(super) fn unmount(path: &Path) -> Result<(), FuseError> {
    told(path, rustix::mount::unmount(path, UnmountFlags::NOFOLLOW))
}

/// Cuts the connection off, then takes the mount away.
pub(super) fn unmount_forced(path: &Path) -> Result<(), FuseError> {
    let forced = rustix::mount::unmount(path, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
    match forced {
        Err(Errno::BUSY) => detach(path),
        other => told(path, other),
    }
}

pub(super) fn detach(path: &Path) -> Result<(), FuseError> {
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    told(path, rustix::mount::unmount(path, flags))
}

fn told(path: &Path, outcome: Result<(), Errno>) -> Result<(), FuseError> {
    outcome.map_err(|error| match error {
        Errno::BUSY => FuseError::Busy(path.to_owned()),
        error => FuseError::Unmount {
            path: path.to_owned(),
            error,
        },
    })
}
