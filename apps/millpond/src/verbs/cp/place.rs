//! Directories of the destination, held open. Everything is made below an open directory by a
//! single name, and no link is ever followed: whatever an image's names say, nothing is written
//! outside.

use super::attributes::Attributes;
use super::report::Report;
use millpond_env::sync::Arc;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;

/// A directory that is being filled. It gets its attributes when the last handle goes: by then
/// everything below it is done.
pub struct Directory {
    fd: OwnedFd,
    /// Where it comes from, as `DATASET:/PATH`, for messages.
    source: Vec<u8>,
    /// Below the destination; empty for the destination itself.
    below: Vec<u8>,
    depth: u32,
    attributes: Option<Attributes>,
    report: Arc<Report>,
    /// Last, so that it gets its own attributes after this one.
    _parent: Option<Arc<Directory>>,
}

impl Directory {
    /// The destination itself, which keeps its attributes.
    pub fn top(fd: OwnedFd, report: &Arc<Report>) -> Arc<Self> {
        Arc::new(Self {
            fd,
            source: vec![],
            below: vec![],
            depth: 0,
            attributes: None,
            report: Arc::clone(report),
            _parent: None,
        })
    }

    /// Makes a directory, or takes the one that is there, which keeps its own but for its times: nothing from a pool
    /// decides who may use a directory of this system.
    pub fn make(
        self: &Arc<Self>,
        name: &[u8],
        source: Vec<u8>,
        attributes: Attributes,
    ) -> Result<Arc<Self>, Errno> {
        let is_new = match mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error),
        };
        let attributes = match is_new {
            true => attributes,
            false => attributes.times_only(),
        };
        let fd = openat(&self.fd, name, DIRECTORY_FLAGS, Mode::empty())?;
        Ok(self.child(fd, self.path_below(name), source, attributes))
    }

    /// Takes the destination itself as the copy of a directory.
    pub fn merged(
        self: &Arc<Self>,
        source: Vec<u8>,
        attributes: Attributes,
    ) -> Result<Arc<Self>, Errno> {
        let fd = openat(&self.fd, ".", DIRECTORY_FLAGS, Mode::empty())?;
        Ok(self.child(fd, self.below.clone(), source, attributes.times_only()))
    }

    fn child(
        self: &Arc<Self>,
        fd: OwnedFd,
        below: Vec<u8>,
        source: Vec<u8>,
        attributes: Attributes,
    ) -> Arc<Self> {
        Arc::new(Self {
            fd,
            source,
            below,
            depth: self.depth.saturating_add(1),
            attributes: Some(attributes),
            report: Arc::clone(&self.report),
            _parent: Some(Arc::clone(self)),
        })
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }
    pub fn depth(&self) -> u32 {
        self.depth
    }
    /// Where its entry `name` comes from, for messages.
    pub fn source_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.source.clone();
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }
    /// The path of its entry `name` below the destination.
    pub fn path_below(&self, name: &[u8]) -> Vec<u8> {
        if self.below.is_empty() {
            return name.to_vec();
        }
        [self.below.as_slice(), b"/", name].concat()
    }
    /// The path of the directory below the destination.
    pub fn below(&self) -> &[u8] {
        &self.below
    }

    /// Makes something with `make`. What has the name already is removed, never written through, unless
    /// `is_kept`: then the answer is `None`.
    pub fn place<T>(
        &self,
        name: &[u8],
        is_kept: bool,
        make: impl Fn() -> Result<T, Errno>,
    ) -> Result<Option<T>, Errno> {
        for _ in 0..TRIES_MAX {
            match make() {
                Ok(made) => return Ok(Some(made)),
                Err(Errno::EXIST) if is_kept => return Ok(None),
                Err(Errno::EXIST) => match unlinkat(&self.fd, name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => return Err(error),
                },
                Err(error) => return Err(error),
            }
        }
        Err(Errno::EXIST)
    }

    /// Makes an empty file that nobody else can open yet.
    pub fn place_file(&self, name: &[u8], is_kept: bool) -> Result<Option<OwnedFd>, Errno> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.place(name, is_kept, || {
            openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)
        })
    }

    /// Removes a file.
    pub fn remove(&self, name: &[u8]) -> Result<(), Errno> {
        unlinkat(&self.fd, name, AtFlags::empty())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(attributes) = &self.attributes {
            use rustix::fd::AsFd;
            attributes.tell_left_out(&self.source, &self.report);
            attributes.give(self.fd.as_fd(), &self.source, &self.report);
        }
    }
}

/// Whether a name can be made below a directory without leading elsewhere.
pub fn is_safe_name(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

/// How a directory of the destination is opened.
pub const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Somebody else may take the name again and again.
const TRIES_MAX: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/etc", b"a\0b", b"../x"] {
            assert!(!is_safe_name(name), "{name:?}");
        }
        for name in [&b"a"[..], b"...", b".a", b"\xff", b"-rf", b"a\n"] {
            assert!(is_safe_name(name), "{name:?}");
        }
    }
}
