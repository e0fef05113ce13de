//! Mounts through `fusermount3`, as any user.
//!
//! The helper mounts with its own privileges and passes the connection's descriptor back over a socket.

use super::MountOptions;
use crate::error::FuseError;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::{FdFlags, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use std::mem::MaybeUninit;
use std::path::Path;
use std::process::Command;

const PROGRAM: &str = "fusermount3";

fn failed(error: impl std::fmt::Display) -> FuseError {
    FuseError::Helper(error.to_string())
}

pub(super) fn mount(
    source: &str,
    path: &Path,
    options: &MountOptions,
) -> Result<OwnedFd, FuseError> {
    let source = source.replace('\\', "\\\\").replace(',', "\\,");
    let mut words = format!("fsname={source},subtype=zfs,default_permissions");
    for (is_set, word) in [
        (options.read_only, "ro"),
        (!options.exec, "noexec"),
        (!options.atime, "noatime"),
        (options.allow_other, "allow_other"),
    ] {
        if is_set {
            words.push(',');
            words.push_str(word);
        }
    }
    let (kind, flags) = (SocketType::STREAM, SocketFlags::empty());
    let pair = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None);
    let (ours, theirs) = pair.map_err(failed)?;
    rustix::io::fcntl_setfd(&ours, FdFlags::CLOEXEC).map_err(failed)?;
    let output = Command::new(PROGRAM)
        .args(["-o", &words, "--"])
        .arg(path)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .output()
        .map_err(failed)?;
    drop(theirs);
    if !output.status.success() {
        return Err(failed(said(&output.stderr)));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut data = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(&ours, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)
        .map_err(failed)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(descriptor) = descriptors.next()
        {
            return Ok(descriptor);
        }
    }
    Err(failed("it mounted and sent no connection"))
}

pub(super) fn unmount(path: &Path, is_lazy: bool) -> Result<(), FuseError> {
    let flags = if is_lazy { "-uz" } else { "-u" };
    let output = Command::new(PROGRAM)
        .args([flags, "--"])
        .arg(path)
        .output()
        .map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let text = said(&output.stderr);
    match text.contains("busy") {
        true => Err(FuseError::Busy(path.to_owned())),
        false => Err(failed(text)),
    }
}

/// What the program said, without its name: the error has that.
fn said(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim();
    let name = format!("{PROGRAM}: ");
    text.strip_prefix(&name).unwrap_or(text).to_owned()
}
