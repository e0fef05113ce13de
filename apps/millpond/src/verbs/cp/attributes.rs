//! The attributes that a copy gets besides its content: owner, mode, times, extended attributes.

use super::report::Report;
use millpond_engine::{FileKind, Node, Stat, Timestamp};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chmod, chownat, fchmod,
    fchown, fsetxattr, fstat, futimens, openat, setxattr, utimensat,
};
use rustix::io::Errno;
use std::os::fd::AsRawFd;

/// Selects the attributes to copy.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Owner and group.
    pub has_owner: bool,
    /// Extended attributes.
    pub has_xattrs: bool,
    /// Attributes that grant rights to users who run or open the copy.
    pub is_trusted: bool,
}

impl Wanted {
    /// Whether attributes that grant rights are kept.
    ///
    /// They require the original owner, because they act on the owner's behalf.
    pub fn keeps_rights(self) -> bool {
        self.is_trusted && self.has_owner
    }
}

/// The attributes of one file.
#[derive(Debug, Clone)]
pub struct Attributes {
    owner: Option<(u32, u32)>,
    /// `None` leaves the mode unset.
    mode: Option<u32>,
    times: Timestamps,
    xattrs: Vec<Xattr>,
    /// Attributes that are dropped because they would grant rights.
    left_out: Vec<&'static str>,
}

/// Name and value of an extended attribute.
type Xattr = (Vec<u8>, Vec<u8>);

impl Attributes {
    /// Reads the attributes. Also returns the error if extended attributes cannot be read.
    pub fn of(node: &Node, stat: &Stat, wanted: Wanted) -> (Self, Option<String>) {
        let mut mode = stat.permissions;
        let mut left_out = vec![];
        if !wanted.keeps_rights() {
            // The set-group-ID bit of a directory passes on the directory's group. It grants nothing if the
            // group is preserved.
            let lending = match stat.kind == FileKind::Directory && wanted.has_owner {
                true => 0o4000,
                false => 0o6000,
            };
            if mode & lending != 0 {
                left_out.push("set-user and set-group bits");
            }
            mode &= !lending;
        }
        let (mut xattrs, trouble) = if wanted.has_xattrs {
            xattrs(node)
        } else {
            (vec![], None)
        };
        if !wanted.keeps_rights() {
            let before = xattrs.len();
            xattrs.retain(|(name, _)| !lends_rights(name));
            if xattrs.len() < before {
                left_out.push("capabilities and other security attributes");
            }
        }
        let attributes = Self {
            owner: wanted.has_owner.then_some((stat.uid, stat.gid)),
            mode: Some(mode),
            times: Timestamps {
                last_access: timespec(stat.atime),
                last_modification: timespec(stat.mtime),
            },
            xattrs,
            left_out,
        };
        (attributes, trouble)
    }

    /// Keeps only the times.
    #[must_use]
    pub fn times_only(self) -> Self {
        Self {
            owner: None,
            mode: None,
            times: self.times,
            xattrs: vec![],
            left_out: vec![],
        }
    }

    /// Records the dropped attributes in the report.
    pub fn tell_left_out(&self, path: &[u8], report: &Report) {
        for what in &self.left_out {
            report.note(format!("{what} left out (see --trusted)"), path);
        }
    }

    /// Sets the attributes of an open file or directory.
    ///
    /// The owner comes first, because a change of owner clears capabilities and the set-ID bits of the
    /// mode. Times come last.
    pub fn give(&self, fd: BorrowedFd<'_>, path: &[u8], report: &Report) {
        let report_failure =
            |what: &str, outcome: Result<(), Errno>| report_failure(report, path, what, outcome);
        let mut mode = self.mode;
        if let Some((uid, gid)) = self.owner {
            let outcome = fchown(fd, user(uid), group(gid));
            if outcome.is_err() {
                mode = mode.map(|mode| mode & !0o6000);
            }
            report_failure("owner", outcome);
        }
        for (name, value) in &self.xattrs {
            let outcome = fsetxattr(fd, name.as_slice(), value, XattrFlags::empty());
            report_failure(&xattr_text(name), outcome);
        }
        if let Some(mode) = mode {
            report_failure("mode", fchmod(fd, Mode::from_raw_mode(mode)));
        }
        report_failure("times", futimens(fd, &self.times));
    }

    /// Sets the attributes of a newly created link, pipe, socket or device node.
    ///
    /// Never follows a symbolic link, even if another file has taken the name in the meantime.
    pub fn give_by_name(
        &self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        is_symlink: bool,
        path: &[u8],
        report: &Report,
    ) {
        let report_failure =
            |what: &str, outcome: Result<(), Errno>| report_failure(report, path, what, outcome);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match openat(directory, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(error) => return report_failure("attributes", Err(error)),
        };
        let mut mode = self.mode;
        if let Some((uid, gid)) = self.owner {
            let outcome = chownat(&fd, "", user(uid), group(gid), AtFlags::EMPTY_PATH);
            if outcome.is_err() {
                mode = mode.map(|mode| mode & !0o6000);
            }
            report_failure("owner", outcome);
        }
        let place = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        for (name, value) in &self.xattrs {
            let outcome = setxattr(place.as_str(), name.as_slice(), value, XattrFlags::empty());
            report_failure(&xattr_text(name), outcome);
        }
        if let (false, Some(mode)) = (is_symlink, mode) {
            let outcome = fstat(&fd).and_then(|found| {
                // Never through a symbolic link: that would change the mode of another file.
                match rustix::fs::FileType::from_raw_mode(found.st_mode) {
                    rustix::fs::FileType::Symlink => Err(Errno::LOOP),
                    _ => chmod(place.as_str(), Mode::from_raw_mode(mode)),
                }
            });
            report_failure("mode", outcome);
        }
        let outcome = utimensat(directory, name, &self.times, AtFlags::SYMLINK_NOFOLLOW);
        report_failure("times", outcome);
    }
}

/// Whether the kernel uses this attribute to decide what a program may do.
fn lends_rights(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}

fn report_failure(report: &Report, path: &[u8], what: &str, outcome: Result<(), Errno>) {
    if let Err(error) = outcome {
        let error = std::io::Error::from(error);
        report.note(format!("cannot set {what}: {error}"), path);
    }
}

fn xattr_text(name: &[u8]) -> String {
    // One note per class of names instead of one per name.
    let class = name.split(|byte| *byte == b'.').next().unwrap_or_default();
    let class = super::super::name_text::escaped(class);
    format!("extended attributes {class}.*")
}

fn xattrs(node: &Node) -> (Vec<Xattr>, Option<String>) {
    let names = match node.xattr_names() {
        Ok(names) => names,
        Err(error) => return (vec![], Some(error.to_string())),
    };
    let mut found = vec![];
    let mut trouble = None;
    let mut total = 0usize;
    for name in names {
        match node.xattr(&name) {
            Ok(Some(value)) => {
                total = total.saturating_add(value.len());
                if total > XATTRS_BYTES_MAX {
                    let error = format!("more than {XATTRS_BYTES_MAX} bytes of values");
                    return (found, trouble.or(Some(error)));
                }
                found.push((name, value));
            }
            Ok(None) => {}
            Err(error) => trouble = Some(error.to_string()),
        }
    }
    (found, trouble)
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.min(999_999_999).cast_signed(),
    }
}

fn user(uid: u32) -> Option<Uid> {
    (uid != u32::MAX).then(|| Uid::from_raw(uid))
}
fn group(gid: u32) -> Option<Gid> {
    (gid != u32::MAX).then(|| Gid::from_raw(gid))
}

/// Maximum bytes of extended attributes held for one file.
const XATTRS_BYTES_MAX: usize = 32 << 20;
