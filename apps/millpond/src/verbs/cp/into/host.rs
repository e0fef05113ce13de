//! Files of the host as sources.
//!
//! Each is opened relative to an open directory, and no symbolic link is followed.

use super::source::{Entry, Facts, Source, Xattrs};
use millpond_engine::{FileKind, Timestamp};
use millpond_env::sync::{Arc, OnceLock};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, SeekFrom, Stat, fgetxattr, flistxattr, fstat,
    lgetxattr, llistxattr, major, minor, open, openat, readlinkat, seek, statat,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A file of the host.
pub struct HostFile {
    directory: Arc<OwnedFd>,
    name: Vec<u8>,
    facts: Facts,
    fd: OnceLock<Arc<OwnedFd>>,
}

fn errno_text(error: Errno) -> String {
    std::io::Error::from(error).to_string()
}

impl HostFile {
    /// Opens the file at a host path.
    ///
    /// Symbolic links on the way are followed; a final link only if `follows`.
    ///
    /// # Errors
    /// If the file cannot be examined.
    pub fn at(path: &Path, follows: bool) -> Result<Self, String> {
        let (parent, name) = match (path.parent(), path.file_name()) {
            // Rust treats `a/.` and `a/` like `a`, but for a symbolic link they mean its target.
            (Some(parent), Some(name))
                if !follows
                    && !path.as_os_str().as_bytes().ends_with(b"/")
                    && !path.as_os_str().as_bytes().ends_with(b"/.") =>
            {
                (parent.to_owned(), name.as_bytes().to_vec())
            }
            _ => {
                let whole = std::fs::canonicalize(path).map_err(|error| error.to_string())?;
                match (whole.parent(), whole.file_name()) {
                    (Some(parent), Some(name)) => (parent.to_owned(), name.as_bytes().to_vec()),
                    _ => (whole, b".".to_vec()),
                }
            }
        };
        let parent = match parent.as_os_str().is_empty() {
            true => Path::new(".").to_owned(),
            false => parent,
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(&parent, flags, Mode::empty()).map_err(errno_text)?;
        Self::below(Arc::new(directory), name)
    }

    fn below(directory: Arc<OwnedFd>, name: Vec<u8>) -> Result<Self, String> {
        let found =
            statat(&directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW).map_err(errno_text)?;
        Ok(Self {
            facts: facts(&found)?,
            directory,
            name,
            fd: OnceLock::new(),
        })
    }

    /// Opens a directory or a regular file, once.
    fn open(&self) -> Result<&Arc<OwnedFd>, String> {
        if let Some(fd) = self.fd.get() {
            return Ok(fd);
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = |flags| openat(&self.directory, self.name.as_slice(), flags, Mode::empty());
        // A copy should not update access times, but only the owner may open a file with this flag.
        let opened = match open(flags | OFlags::NOATIME) {
            Err(Errno::PERM) => open(flags),
            opened => opened,
        };
        let fd = opened.map_err(errno_text)?;
        let found = fstat(&fd).map_err(errno_text)?;
        if facts(&found)?.id != self.facts.id {
            return Err("it was replaced while it was copied".into());
        }
        Ok(self.fd.get_or_init(|| Arc::new(fd)))
    }

    fn has_content(&self) -> bool {
        matches!(self.facts.kind, FileKind::Regular | FileKind::Directory)
    }
}

fn facts(found: &Stat) -> Result<Facts, String> {
    let file_type = FileType::from_raw_mode(found.st_mode);
    let kind = kind_of(file_type).ok_or("a file of an unknown kind")?;
    let time = |seconds, nanoseconds: u64| Timestamp {
        seconds,
        nanoseconds,
    };
    let is_device = matches!(kind, FileKind::BlockDevice | FileKind::CharacterDevice);
    Ok(Facts {
        kind,
        permissions: found.st_mode & 0o7777,
        uid: found.st_uid,
        gid: found.st_gid,
        size_bytes: u64::try_from(found.st_size).unwrap_or(0),
        atime: time(found.st_atime, found.st_atime_nsec),
        mtime: time(found.st_mtime, found.st_mtime_nsec),
        device: is_device.then(|| (major(found.st_rdev), minor(found.st_rdev))),
        links: found.st_nlink,
        id: (found.st_dev, found.st_ino),
    })
}

fn kind_of(file_type: FileType) -> Option<FileKind> {
    Some(match file_type {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharacterDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return None,
    })
}

impl Source for HostFile {
    fn facts(&self) -> Facts {
        self.facts
    }

    fn entries(&self) -> Result<Vec<Entry>, String> {
        let directory = Dir::read_from(self.open()?).map_err(errno_text)?;
        let mut entries = vec![];
        for entry in directory {
            let entry = entry.map_err(errno_text)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                entries.push(Entry {
                    name: name.to_vec(),
                    kind: kind_of(entry.file_type()),
                    number: entry.ino(),
                });
            }
        }
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    fn child(&self, entry: &Entry) -> Result<Arc<dyn Source>, String> {
        let child = Self::below(Arc::clone(self.open()?), entry.name.clone())?;
        Ok(Arc::new(child))
    }

    fn link_target(&self) -> Result<Vec<u8>, String> {
        let target = readlinkat(&self.directory, self.name.as_slice(), Vec::new());
        Ok(target.map_err(errno_text)?.into_bytes())
    }

    fn xattrs(&self) -> Result<Xattrs, String> {
        let listed = if self.has_content() {
            let fd = self.open()?.as_fd();
            of_names(
                |buffer| flistxattr(fd, buffer),
                |name, buffer| fgetxattr(fd, name, buffer),
            )
        } else {
            let path = by_name(self.directory.as_fd(), &self.name);
            let path = path.as_slice();
            of_names(
                |buffer| llistxattr(path, buffer),
                |name, buffer| lgetxattr(path, name, buffer),
            )
        };
        match listed {
            Ok(xattrs) => Ok(xattrs),
            Err(Errno::OPNOTSUPP) => Ok(vec![]),
            Err(error) => Err(errno_text(error)),
        }
    }

    fn next_data(&self, from_bytes: u64) -> Result<Option<(u64, u64)>, String> {
        let size = self.facts.size_bytes;
        if from_bytes >= size {
            return Ok(None);
        }
        let fd = self.open()?;
        let start = match seek(fd, SeekFrom::Data(from_bytes)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // A file system that does not report holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((from_bytes, size))),
            Err(error) => return Err(errno_text(error)),
        };
        if start >= size {
            return Ok(None);
        }
        let end = seek(fd, SeekFrom::Hole(start)).unwrap_or(size);
        Ok(Some((start, end.min(size))))
    }

    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<usize, String> {
        let fd = self.open()?;
        let mut done = 0;
        while done < buffer.len() {
            match rustix::io::pread(fd, &mut buffer[done..], offset_bytes + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(errno_text(error)),
            }
        }
        Ok(done)
    }
}

/// Reads the values for the names of a list. Names removed in the meantime are left out.
fn of_names(
    list: impl Fn(&mut [u8]) -> Result<usize, Errno>,
    get: impl Fn(&OsStr, &mut [u8]) -> Result<usize, Errno>,
) -> Result<Xattrs, Errno> {
    // Most files have no attributes, or few.
    let mut small = [0; 256];
    match list(&mut small) {
        Ok(0) => return Ok(vec![]),
        Ok(_) | Err(Errno::RANGE) => {}
        Err(error) => return Err(error),
    }
    let mut buffer = vec![0; XATTR_BYTES_MAX];
    let length = list(&mut buffer)?;
    let mut xattrs = vec![];
    let names = buffer[..length]
        .split(|byte| *byte == 0)
        .map(<[u8]>::to_vec);
    let names: Vec<Vec<u8>> = names.filter(|name| !name.is_empty()).collect();
    for name in names {
        match get(OsStr::from_bytes(&name), &mut buffer) {
            Ok(length) => xattrs.push((name, buffer[..length].to_vec())),
            Err(Errno::NODATA) => {}
            Err(error) => return Err(error),
        }
    }
    xattrs.sort_unstable();
    Ok(xattrs)
}

fn by_name(directory: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    path
}

/// Linux limits lists and values to this size.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Opens a host file to copy its bytes into a volume.
pub fn open_plain(path: &Path) -> Result<OwnedFd, String> {
    openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(errno_text)
}
