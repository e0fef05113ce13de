//! Open directories of the destination.
//!
//! Everything is created relative to an open directory by a single name, and no symbolic link is followed.
//! So no name in an image can cause a write outside the destination.

use super::attributes::Attributes;
use super::report::Report;
use millpond_env::sync::Arc;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;

/// A directory that is being filled.
///
/// When the last handle is dropped, everything below it is complete and it gets its attributes.
pub struct Directory {
    fd: OwnedFd,
    /// The source as `DATASET:/PATH`, for messages.
    source: Vec<u8>,
    /// The path relative to the destination; empty for the destination itself.
    below: Vec<u8>,
    depth: u32,
    attributes: Option<Attributes>,
    report: Arc<Report>,
    /// The last field, so that the parent gets its attributes after this directory.
    _parent: Option<Arc<Directory>>,
}

impl Directory {
    /// Opens the destination itself, which keeps its attributes.
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

    /// Creates a directory, or uses the existing one.
    ///
    /// An existing directory keeps its attributes except its times: the content of a pool must not decide
    /// who may use a directory of this system.
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

    /// Uses the destination itself as the copy of a directory.
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
    /// The source path of the entry `name`, for messages.
    pub fn source_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.source.clone();
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }
    /// The path of the entry `name`, relative to the destination.
    pub fn path_below(&self, name: &[u8]) -> Vec<u8> {
        if self.below.is_empty() {
            return name.to_vec();
        }
        [self.below.as_slice(), b"/", name].concat()
    }
    /// The path of the directory, relative to the destination.
    pub fn below(&self) -> &[u8] {
        &self.below
    }

    /// Creates a file of any kind with `make`.
    ///
    /// An existing file with this name is removed, never written through. With `is_kept` it stays and the
    /// result is `None`.
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

    /// Creates an empty file that no other user can open yet.
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

/// Flags for opening a directory of the destination.
pub const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Retry limit, because another program may take the name each time.
const TRIES_MAX: u32 = 8;
