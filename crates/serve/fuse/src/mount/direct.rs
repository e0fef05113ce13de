//! Mounts with the system call, as root.

use super::MountOptions;
use super::mount_point::{MountPoint, Parent, handle, mount_id_of};
use super::table::find_mount;
use crate::error::FuseError;
use crate::transport::Channel;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::path::Path;

pub(super) fn mount(
    channel: &Channel,
    source: &str,
    place: &MountPoint,
    options: &MountOptions,
) -> Result<(), FuseError> {
    let flags = flags(options);
    // The kernel must check permissions: requests do not include the supplementary groups of a process.
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
    let (handle, data) = (place.handle(), data.as_c_str());
    rustix::mount::mount(source, handle, "fuse.zfs", flags, data).map_err(|error| {
        FuseError::Mount {
            path: place.path().to_owned(),
            error,
        }
    })
}

fn flags(options: &MountOptions) -> MountFlags {
    let all = [
        (options.read_only, MountFlags::RDONLY),
        (!options.exec, MountFlags::NOEXEC),
        (!options.suid, MountFlags::NOSUID),
        (!options.devices, MountFlags::NODEV),
        (!options.atime, MountFlags::NOATIME),
    ];
    let set = all.into_iter().filter(|(is_set, _)| *is_set);
    set.fold(MountFlags::empty(), |flags, (_, flag)| flags | flag)
}

/// Changes the options of the mount with this id, while it is in use.
pub(super) fn change_options(
    path: &Path,
    id: Option<u64>,
    options: &MountOptions,
) -> Result<(), FuseError> {
    let failed = |error| FuseError::Remount {
        path: path.to_owned(),
        error,
    };
    // Symbolic links are not followed: the path leads to the opened directory itself.
    let root = Parent::open(path)?.open_child().map_err(failed)?;
    if mount_id_of(root.as_fd()) != id {
        return Err(failed(Errno::INVAL));
    }
    let changed = rustix::mount::mount_remount(handle(root.as_fd()), flags(options), "");
    changed.map_err(|error| match error {
        Errno::BUSY => FuseError::Busy(path.to_owned()),
        error => failed(error),
    })
}

/// The id of the mount that is now at a mount point.
pub(super) fn mount_id(place: &MountPoint) -> Option<u64> {
    Parent::open(place.path()).ok()?.mount_id()
}

pub(super) fn unmount(path: &Path, id: Option<u64>) -> Result<(), FuseError> {
    with_path(path, unmount_at(path, id, UnmountFlags::empty())?)
}

/// Cuts off the connection, then removes the mount.
pub(super) fn unmount_forced(path: &Path, id: Option<u64>) -> Result<(), FuseError> {
    match unmount_at(path, id, UnmountFlags::FORCE)? {
        Err(Errno::BUSY) => detach(path, id),
        other => with_path(path, other),
    }
}

pub(super) fn detach(path: &Path, id: Option<u64>) -> Result<(), FuseError> {
    with_path(path, unmount_at(path, id, UnmountFlags::DETACH)?)
}

/// Unmounts the mount with this id, and no other.
fn unmount_at(
    path: &Path,
    id: Option<u64>,
    flags: UnmountFlags,
) -> Result<Result<(), Errno>, FuseError> {
    Ok(find(path, id)?
        .and_then(|parent| rustix::mount::unmount(parent.path(), flags | UnmountFlags::NOFOLLOW)))
}

/// Finds the mount with this id. Another mount may be at its path by now.
fn find(path: &Path, id: Option<u64>) -> Result<Result<Parent, Errno>, FuseError> {
    let is_there = |parent: &Parent| id.is_none() || parent.mount_id() == id;
    match Parent::open(path) {
        Ok(parent) if is_there(&parent) => Ok(Ok(parent)),
        first => {
            // Without an id the mount cannot be searched for.
            let Some(moved) = id.and_then(find_mount) else {
                first?;
                return Ok(Err(Errno::INVAL));
            };
            let parent = Parent::open(&moved)?;
            match is_there(&parent) {
                true => Ok(Ok(parent)),
                // Another mount covers it.
                false => Ok(Err(Errno::BUSY)),
            }
        }
    }
}

/// Opens the root directory of the mount with this id. The descriptor keeps it busy.
pub(super) fn open_root(path: &Path, id: Option<u64>) -> Result<OwnedFd, Errno> {
    let parent = find(path, id).map_err(|_| Errno::NOENT)??;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(parent.path(), flags, Mode::empty())
}

/// Whether there is a dead mount: its server was killed.
pub(super) fn is_dead(parent: &Parent) -> bool {
    // `statfs` always reaches the server, while attributes may still be in the kernel's cache.
    let asked = parent.open_child().and_then(rustix::fs::fstatfs);
    matches!(asked, Err(Errno::NOTCONN | Errno::CONNABORTED))
}

fn with_path(path: &Path, outcome: Result<(), Errno>) -> Result<(), FuseError> {
    outcome.map_err(|error| match error {
        Errno::BUSY => FuseError::Busy(path.to_owned()),
        error => FuseError::Unmount {
            path: path.to_owned(),
            error,
        },
    })
}
