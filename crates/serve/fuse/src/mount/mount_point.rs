//! Resolves the path of a mount point to a directory, even if other users own parts of the path.
//!
//! A user who may write to a parent directory can replace a directory by a symbolic link at any time.
//! Therefore this code walks the path one name at a time and follows links itself, instead of the kernel. It
//! then mounts over the directory that it opened, wherever the path leads by then.

use crate::error::FuseError;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// The most links that are followed in one path. The kernel has the same limit.
const LINKS_MAX: u32 = 40;
/// How often a directory that vanishes again is created.
const TRIES: u32 = 4;
const HANDLE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// An open directory to mount over.
#[derive(Debug)]
pub(super) struct MountPoint {
    directory: OwnedFd,
    path: PathBuf,
    /// Whether the directory was missing, and was created.
    is_made: bool,
}

/// Which links are followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    /// Links of root and of this process's user, in directories where no other user could have placed them.
    Trusted,
    /// All links. None can leave the directory where the walk began.
    Within,
}

impl MountPoint {
    /// Opens the directory at `path`. `create` creates missing directories.
    ///
    /// `root`, if given, is a prefix of `path`. No link below it can lead out of it.
    pub(super) fn open(root: Option<&Path>, path: &Path, create: bool) -> Result<Self, FuseError> {
        let wrong = |error| FuseError::MountPoint {
            path: path.to_owned(),
            error,
        };
        let top =
            rustix::fs::open("/", HANDLE | OFlags::DIRECTORY, Mode::empty()).map_err(wrong)?;
        let (directory, is_made) = match root {
            None => Walk::new(path, Links::Trusted, create).from(top, &names(path)?)?,
            Some(root) => {
                let below = path.strip_prefix(root).map_err(|_| wrong(Errno::INVAL))?;
                let (top, _) = Walk::new(path, Links::Trusted, create).from(top, &names(root)?)?;
                Walk::new(path, Links::Within, create).from(top, &names(below)?)?
            }
        };
        let path = real_path(directory.as_fd()).unwrap_or_else(|_| path.to_owned());
        Ok(Self {
            directory,
            path,
            is_made,
        })
    }

    /// Whether the directory was missing, and was created.
    pub(super) fn is_made(&self) -> bool {
        self.is_made
    }

    /// The directory's path, without symbolic links.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A path that always refers to the opened directory.
    pub(super) fn handle(&self) -> PathBuf {
        handle(self.directory.as_fd())
    }

    /// Whether the directory is empty.
    pub(super) fn is_empty(&self) -> Result<bool, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.directory, ".", flags, Mode::empty())?;
        for entry in Dir::new(opened)? {
            if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The opened parent of a path without links, and the last name.
pub(super) struct Parent {
    directory: OwnedFd,
    name: OsString,
}

impl Parent {
    pub(super) fn open(path: &Path) -> Result<Self, FuseError> {
        let wrong = |error| FuseError::MountPoint {
            path: path.to_owned(),
            error,
        };
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(wrong(Errno::BUSY));
        };
        // A remembered path has no links, and usually still has none.
        let no_links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = HANDLE | OFlags::DIRECTORY;
        let directory = match rustix::fs::openat2(CWD, above, flags, Mode::empty(), no_links) {
            Ok(directory) => directory,
            Err(_) => MountPoint::open(None, above, false)?.directory,
        };
        Ok(Self {
            directory,
            name: name.to_owned(),
        })
    }

    /// A path of which only the last name has to be looked up.
    pub(super) fn path(&self) -> PathBuf {
        handle(self.directory.as_fd()).join(&self.name)
    }

    /// Removes the child, if it is an empty directory and nothing is mounted there.
    pub(super) fn remove_child(&self) -> Result<(), Errno> {
        rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::REMOVEDIR)
    }

    /// Opens the child, mounted or not. The open descriptor keeps its file system busy.
    pub(super) fn open_child(&self) -> Result<OwnedFd, Errno> {
        let flags = HANDLE | OFlags::NOFOLLOW;
        rustix::fs::openat(&self.directory, &self.name, flags, Mode::empty())
    }

    /// The id of the mount at the child.
    pub(super) fn mount_id(&self) -> Option<u64> {
        mount_id_of(self.open_child().ok()?.as_fd())
    }
}

pub(super) fn handle(directory: BorrowedFd<'_>) -> PathBuf {
    format!("/proc/self/fd/{}", directory.as_raw_fd()).into()
}

fn real_path(directory: BorrowedFd<'_>) -> Result<PathBuf, Errno> {
    let path = rustix::fs::readlink(handle(directory), Vec::new())?;
    Ok(OsString::from_vec(path.into_bytes()).into())
}

pub(super) fn mount_id_of(opened: BorrowedFd<'_>) -> Option<u64> {
    let path = format!("/proc/self/fdinfo/{}", opened.as_raw_fd());
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    line.trim().parse().ok()
}

/// The names of a path that has no `..`.
fn names(path: &Path) -> Result<Vec<&OsStr>, FuseError> {
    let mut names = vec![];
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(FuseError::Upwards(path.to_owned()));
            }
        }
    }
    Ok(names)
}

struct Walk<'p> {
    /// The original path, for messages.
    path: &'p Path,
    links: Links,
    create: bool,
    followed: u32,
    /// Whether the last directory was created.
    is_made: bool,
}

impl<'p> Walk<'p> {
    fn new(path: &'p Path, links: Links, create: bool) -> Self {
        Self {
            path,
            links,
            create,
            followed: 0,
            is_made: false,
        }
    }

    fn wrong(&self, error: Errno) -> FuseError {
        FuseError::MountPoint {
            path: self.path.to_owned(),
            error,
        }
    }

    /// The directory at the end, and whether it was created.
    fn from(mut self, top: OwnedFd, names: &[&OsStr]) -> Result<(OwnedFd, bool), FuseError> {
        let mut todo: VecDeque<OsString> = names.iter().map(|name| (*name).to_owned()).collect();
        let (mut above, mut here) = (vec![], top);
        while let Some(name) = todo.pop_front() {
            if name == ".." {
                // Only links contain `..`. At the top, it stays there.
                if let Some(parent) = above.pop() {
                    here = parent;
                }
                continue;
            }
            let (found, stat) = self.step(&here, &name)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => above.push(std::mem::replace(&mut here, found)),
                FileType::Symlink => {
                    self.check_link(&here, &stat)?;
                    let target = rustix::fs::readlinkat(&found, "", Vec::new());
                    let target = target.map_err(|error| self.wrong(error))?.into_bytes();
                    if target.first() == Some(&b'/') && !above.is_empty() {
                        above.truncate(1);
                        if let Some(top) = above.pop() {
                            here = top;
                        }
                    }
                    let parts = target.split(|byte| *byte == b'/').rev();
                    for part in parts.filter(|part| !matches!(*part, b"" | b".")) {
                        todo.push_front(OsStr::from_bytes(part).to_owned());
                    }
                }
                _ => return Err(self.wrong(Errno::NOTDIR)),
            }
        }
        Ok((here, self.is_made))
    }

    fn step(&mut self, here: &OwnedFd, name: &OsStr) -> Result<(OwnedFd, Stat), FuseError> {
        let flags = HANDLE | OFlags::NOFOLLOW;
        self.is_made = false;
        for _ in 0..TRIES {
            match rustix::fs::openat(here, name, flags, Mode::empty()) {
                Ok(found) => {
                    let stat = rustix::fs::statat(&found, "", AtFlags::EMPTY_PATH);
                    return Ok((found, stat.map_err(|error| self.wrong(error))?));
                }
                Err(Errno::NOENT) if self.create => {
                    match rustix::fs::mkdirat(here, name, Mode::from_raw_mode(0o755)) {
                        Ok(()) => self.is_made = true,
                        Err(Errno::EXIST) => {}
                        Err(error) => return Err(self.wrong(error)),
                    }
                }
                Err(error) => return Err(self.wrong(error)),
            }
        }
        Err(self.wrong(Errno::AGAIN))
    }

    /// Checks that a link may be followed: no other user made it or could have moved it there.
    fn check_link(&mut self, directory: &OwnedFd, link: &Stat) -> Result<(), FuseError> {
        self.followed += 1;
        if self.followed > LINKS_MAX {
            return Err(self.wrong(Errno::LOOP));
        }
        if self.links == Links::Within {
            return Ok(());
        }
        let stat = rustix::fs::statat(directory, "", AtFlags::EMPTY_PATH);
        let stat = stat.map_err(|error| self.wrong(error))?;
        let own = rustix::process::geteuid().as_raw();
        let is_ours = |user: u32| user == 0 || user == own;
        let is_open = stat.st_mode & 0o022 != 0 && stat.st_mode & 0o1000 == 0;
        match is_ours(link.st_uid) && is_ours(stat.st_uid) && !is_open {
            true => Ok(()),
            false => Err(FuseError::Link {
                path: self.path.to_owned(),
                link: real_path(directory.as_fd()).unwrap_or_default(),
                user: if is_ours(link.st_uid) {
                    stat.st_uid
                } else {
                    link.st_uid
                },
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn stage() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        (folder, path)
    }

    #[test]
    fn missing_directories_are_made_and_upward_steps_refused() {
        let (_folder, path) = stage();
        let there = path.join("a/b c");
        assert!(MountPoint::open(None, &there, false).is_err());
        let place = MountPoint::open(None, &there, true).unwrap();
        assert_eq!(place.path(), there);
        assert!(place.is_empty().unwrap());
        std::fs::write(there.join("file"), b"").unwrap();
        assert!(!place.is_empty().unwrap());
        for upwards in ["a/../../etc", ".."] {
            let error = MountPoint::open(None, &path.join(upwards), true).unwrap_err();
            assert!(matches!(error, FuseError::Upwards(_)), "{error}");
        }
        let error = MountPoint::open(None, &there.join("file/x"), true).unwrap_err();
        assert!(error.to_string().contains("ot a directory"), "{error}");
    }

    #[test]
    fn own_symlinks_are_followed_in_private_directories() {
        let (_folder, path) = stage();
        std::fs::create_dir_all(path.join("real/below")).unwrap();
        symlink("../real", path.join("real/turn")).unwrap();
        symlink("real/turn/./turn", path.join("link")).unwrap();
        symlink(path.join("link"), path.join("absolute")).unwrap();
        let place = MountPoint::open(None, &path.join("absolute/below"), false).unwrap();
        assert_eq!(place.path(), path.join("real/below"));
        symlink("self", path.join("self")).unwrap();
        let error = MountPoint::open(None, &path.join("self"), true).unwrap_err();
        assert!(matches!(&error, FuseError::MountPoint { error, .. } if *error == Errno::LOOP));
        // Any user could replace a link in a world-writable directory.
        use std::os::unix::fs::PermissionsExt;
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&path, open).unwrap();
        let error = MountPoint::open(None, &path.join("link/below"), false).unwrap_err();
        assert!(matches!(error, FuseError::Link { .. }), "{error}");
    }

    #[test]
    fn links_of_other_users_are_refused() {
        if !rustix::process::geteuid().is_root() {
            println!("needs root; passed over");
            return;
        }
        let (_folder, path) = stage();
        std::fs::create_dir(path.join("home")).unwrap();
        symlink("/etc", path.join("home/mnt")).unwrap();
        std::os::unix::fs::lchown(path.join("home/mnt"), Some(65_534), None).unwrap();
        let error = MountPoint::open(None, &path.join("home/mnt"), true).unwrap_err();
        assert!(error.to_string().contains("user 65534"), "{error}");
        // A link that belongs to root, in a directory of another user.
        std::os::unix::fs::lchown(path.join("home/mnt"), Some(0), None).unwrap();
        std::os::unix::fs::chown(path.join("home"), Some(65_534), None).unwrap();
        let error = MountPoint::open(None, &path.join("home/mnt/x"), true).unwrap_err();
        assert!(error.to_string().contains("user 65534"), "{error}");
        assert!(!Path::new("/etc/x").exists());
    }

    #[test]
    fn below_a_root_no_link_leads_out() {
        let (_folder, path) = stage();
        let root = path.join("root");
        std::fs::create_dir_all(root.join("a")).unwrap();
        symlink("/outside", root.join("absolute")).unwrap();
        symlink("../../../../outside", root.join("a/relative")).unwrap();
        for way in ["absolute/x", "a/relative/x"] {
            let place = MountPoint::open(Some(&root), &root.join(way), true).unwrap();
            assert_eq!(place.path(), root.join("outside/x"));
        }
        assert!(!path.join("outside").exists());
        let error = MountPoint::open(Some(&root), &root.join("a/../../x"), true).unwrap_err();
        assert!(matches!(error, FuseError::Upwards(_)), "{error}");
        assert!(MountPoint::open(Some(&root), &path.join("x"), true).is_err());
        assert_eq!(
            MountPoint::open(Some(&root), &root, false).unwrap().path(),
            root
        );
    }

    #[test]
    fn an_opened_mount_point_survives_renames_of_its_path() {
        let (_folder, path) = stage();
        let place = MountPoint::open(None, &path.join("home/mnt"), true).unwrap();
        std::fs::rename(path.join("home/mnt"), path.join("elsewhere")).unwrap();
        symlink("/etc", path.join("home/mnt")).unwrap();
        std::fs::write(place.handle().join("file"), b"").unwrap();
        assert!(path.join("elsewhere/file").exists());
        let parent = Parent::open(&path.join("home/mnt")).unwrap();
        let found = parent.open_child().unwrap();
        let stat = rustix::fs::statat(&found, "", AtFlags::EMPTY_PATH).unwrap();
        assert_eq!(FileType::from_raw_mode(stat.st_mode), FileType::Symlink);
        assert!(parent.mount_id().is_some());
    }
}
