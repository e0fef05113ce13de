//! Files by path.

use crate::directory::{ReadDir, Walk};
use crate::metadata::timestamp;
use crate::pin::Pin;
use crate::{Error, ErrorKind, File, FileType, Metadata};
use millpond_engine::{
    Caller, DirEntryRef, FileKind, NewMode, Node, ObjectId, RenameMode, SetAttributes, SetTime,
    Symlinks, XattrMode,
};
use millpond_posix::vfs::Vfs;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// How much of a file is read at once into memory.
const PIECE_BYTES: usize = 1 << 20;
/// The permissions of new files and directories.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// The files of a file system or snapshot, by path. Cheap to clone. It keeps the pool open, as do its files.
///
/// Paths are relative to the root of the file system, with or without a leading slash. Names are bytes, as on
/// Unix. Symbolic links are followed within the file system; an absolute target starts at its root.
#[derive(Debug, Clone)]
pub struct FileSystem {
    name: Arc<str>,
    files: Arc<millpond_engine::FileSystem>,
    caller: Arc<Caller>,
    pin: Pin,
}

impl FileSystem {
    pub(crate) fn new(name: &str, files: Arc<millpond_engine::FileSystem>, pin: Pin) -> Self {
        Self {
            name: name.into(),
            files,
            caller: Arc::new(Caller::root()),
            pin,
        }
    }

    /// The same files for a user without privileges: new files belong to the user, and quotas and flags apply.
    /// Permissions of existing files are not checked.
    #[must_use]
    pub fn as_user(&self, uid: u32, gid: u32) -> Self {
        Self {
            caller: Arc::new(Caller::user(uid, gid)),
            ..self.clone()
        }
    }

    /// The name of the dataset.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The interface for servers, by inode number. It is borrowed, because this handle keeps the pool open.
    #[must_use]
    pub fn vfs(&self) -> &dyn Vfs {
        &*self.files
    }

    /// Runs an operation and names the path in its error.
    pub(crate) fn at<T>(
        &self,
        path: &Path,
        run: impl FnOnce() -> Result<T, millpond_engine::FileError>,
    ) -> Result<T, Error> {
        run().map_err(|error| self.error_at(path, error))
    }

    fn error_at(&self, path: &Path, error: millpond_engine::FileError) -> Error {
        // The reader of the message knows the path; some errors name only a part of it.
        let error = match error {
            millpond_engine::FileError::Path { error, .. } => *error,
            error => error,
        };
        self.about(self.pin.explained(error.into()), path)
    }

    /// Names the path in an error.
    fn about(&self, error: Error, path: &Path) -> Error {
        error.about(format_args!("{}:{}", self.name, path.display()))
    }

    /// The error of a structure that no correct writer makes.
    pub(crate) fn damaged(&self, text: &str, path: &Path) -> Error {
        let error = Error::new(ErrorKind::Damaged, text);
        self.about(self.pin.explained(error), path)
    }

    fn node(&self, path: &Path, symlinks: Symlinks) -> Result<Node, Error> {
        self.at(path, || {
            self.files.resolve(path.as_os_str().as_bytes(), symlinks)
        })
    }

    /// The directory that contains the last name of a path, and that name.
    fn parent<'p>(&self, path: &'p Path) -> Result<(Node, &'p [u8]), Error> {
        let Some(name) = path.file_name() else {
            let error = Error::new(ErrorKind::InvalidInput, "the path has no last name");
            return Err(self.about(error, path));
        };
        let parent = path.parent().unwrap_or_else(|| Path::new(""));
        Ok((self.node(parent, Symlinks::Follow)?, name.as_bytes()))
    }

    /// Opens a file for reading, and for writing if the file system is open for writing.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::IsADirectory`], [`ErrorKind::Damaged`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        let path = path.as_ref();
        let node = self.node(path, Symlinks::Follow)?;
        self.file(path, node)
    }

    /// Opens a file for writing. Creates it if it does not exist, and empties it if it does.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`], [`ErrorKind::NoSpace`], [`ErrorKind::NotFound`] for the directory.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        let path = path.as_ref();
        let file = self.file(path, self.made(path, false)?)?;
        file.set_len(0)?;
        Ok(file)
    }

    /// Creates a file that does not exist yet.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`]; as [`FileSystem::create`].
    pub fn create_new(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        let path = path.as_ref();
        self.file(path, self.made(path, true)?)
    }

    fn made(&self, path: &Path, is_new: bool) -> Result<Node, Error> {
        if !is_new {
            match self.node(path, Symlinks::Follow) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                found => return found,
            }
        }
        let (parent, name) = self.parent(path)?;
        let mode = NewMode::exactly(FILE_MODE);
        let (files, caller) = (&self.files, &self.caller);
        let made = self.at(path, || files.create(caller, &parent, name, mode, is_new));
        made.map(|(node, _)| node)
    }

    fn file(&self, path: &Path, node: Node) -> Result<File, Error> {
        let kind = match node.kind() {
            FileKind::Regular => return Ok(File::new(self, path, node)),
            FileKind::Directory => ErrorKind::IsADirectory,
            _ => ErrorKind::InvalidInput,
        };
        let error = Error::new(kind, "not a regular file");
        Err(self.about(error, path))
    }

    pub(crate) fn files(&self) -> &Arc<millpond_engine::FileSystem> {
        &self.files
    }

    pub(crate) fn pin(&self) -> &Pin {
        &self.pin
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Reads a whole file into memory.
    ///
    /// # Errors
    /// As [`FileSystem::open`].
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        let path = path.as_ref();
        let file = self.open(path)?;
        let mut content = vec![];
        loop {
            // In pieces: a damaged length must not become one large allocation.
            let start = content.len();
            let left = file.len().saturating_sub(start as u64);
            let piece = usize::try_from(left)
                .unwrap_or(usize::MAX)
                .clamp(1, PIECE_BYTES);
            content.resize(start + piece, 0);
            let count = file.read_at(content.get_mut(start..).unwrap_or_default(), start as u64)?;
            content.truncate(start + count);
            if count == 0 {
                return Ok(content);
            }
        }
    }

    /// Writes a whole file. Creates it if it does not exist, and replaces its content if it does. A reader
    /// may see a part of the new content.
    ///
    /// # Errors
    /// As [`FileSystem::create`].
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<(), Error> {
        self.create(path)?.write_all_at(content.as_ref(), 0)
    }

    /// The entries of a directory, in no particular order, without `.` and `..`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::NotADirectory`], [`ErrorKind::Damaged`].
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir, Error> {
        let (_, entries) = self.listing(path.as_ref(), Symlinks::Follow)?;
        Ok(entries)
    }

    /// The object id of a directory and its entries.
    pub(crate) fn listing(
        &self,
        path: &Path,
        symlinks: Symlinks,
    ) -> Result<(ObjectId, ReadDir), Error> {
        let directory = self.node(path, symlinks)?;
        let entries = self.at(path, || directory.entries())?;
        Ok((directory.id(), ReadDir::new(self.clone(), path, entries)))
    }

    /// Iterates over everything below a directory, directories before their entries. Symbolic links are not
    /// followed. A directory that cannot be read yields an error, and the iteration continues. So does one that
    /// appears a second time: the file system is damaged, or another caller moved it meanwhile.
    ///
    /// # Errors
    /// As [`FileSystem::read_dir`].
    pub fn walk(&self, path: impl AsRef<Path>) -> Result<Walk, Error> {
        Walk::new(self, path.as_ref(), Symlinks::Follow)
    }

    /// The attributes of a file. Symbolic links are followed.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Damaged`].
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata, Error> {
        self.metadata_of(path.as_ref(), Symlinks::Follow)
    }

    /// The attributes of a file or symbolic link.
    ///
    /// # Errors
    /// As [`FileSystem::metadata`].
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata, Error> {
        self.metadata_of(path.as_ref(), Symlinks::Keep)
    }

    fn metadata_of(&self, path: &Path, symlinks: Symlinks) -> Result<Metadata, Error> {
        let node = self.node(path, symlinks)?;
        self.at(path, || node.stat()).map(Metadata)
    }

    /// Whether a path leads to a file.
    ///
    /// # Errors
    /// If this cannot be determined, for instance because a directory is damaged.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool, Error> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::InvalidInput`] for other files.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf, Error> {
        let path = path.as_ref();
        let node = self.node(path, Symlinks::Keep)?;
        let target = self.at(path, || node.link_target())?;
        let target = target.ok_or_else(|| {
            let error = Error::new(ErrorKind::InvalidInput, "not a symbolic link");
            self.about(error, path)
        })?;
        Ok(PathBuf::from(OsString::from_vec(target)))
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`], [`ErrorKind::ReadOnly`], [`ErrorKind::NoSpace`].
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let (parent, name) = self.parent(path)?;
        let mode = NewMode::exactly(DIRECTORY_MODE);
        self.at(path, || {
            self.files.make_directory(&self.caller, &parent, name, mode)
        })?;
        Ok(())
    }

    /// Creates a directory and those above it, as far as they do not exist.
    ///
    /// # Errors
    /// As [`FileSystem::create_dir`], but not for directories that exist. [`ErrorKind::AlreadyExists`] is that of a
    /// symbolic link that leads nowhere.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let mut missing = vec![];
        for directory in path.ancestors() {
            match self.metadata(directory) {
                Ok(found) if found.is_dir() => break,
                Err(error) if error.kind() == ErrorKind::NotFound => missing.push(directory),
                Ok(_) => {
                    let error = Error::new(ErrorKind::NotADirectory, "not a directory");
                    return Err(self.about(error, directory));
                }
                Err(error) => return Err(error),
            }
        }
        missing.into_iter().rev().try_for_each(|directory| {
            let made = self.create_dir(directory);
            match made {
                // Another caller was faster.
                Err(error)
                    if error.kind() == ErrorKind::AlreadyExists
                        && self.metadata(directory).is_ok_and(|found| found.is_dir()) =>
                {
                    Ok(())
                }
                made => made,
            }
        })
    }

    /// Creates a symbolic link at `path`.
    ///
    /// # Errors
    /// As [`FileSystem::create_dir`].
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<(), Error> {
        let (target, path) = (target.as_ref().as_os_str().as_bytes(), path.as_ref());
        let (parent, name) = self.parent(path)?;
        self.at(path, || {
            self.files.make_symlink(&self.caller, &parent, name, target)
        })?;
        Ok(())
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// As [`FileSystem::create_dir`]; [`ErrorKind::PermissionDenied`] for a directory.
    pub fn hard_link(&self, file: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let node = self.node(file.as_ref(), Symlinks::Keep)?;
        let (parent, name) = self.parent(path)?;
        self.at(path, || self.files.link(&node, &parent, name))
    }

    /// Renames a file or directory. A file at the new name, or an empty directory, is replaced.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::DirectoryNotEmpty`], [`ErrorKind::InvalidInput`] for a move of a
    /// directory below itself.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Error> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let ((from_directory, from_name), (to_directory, to_name)) =
            (self.parent(from)?, self.parent(to)?);
        let entry = |directory, name| DirEntryRef { directory, name };
        self.at(from, || {
            let (from, to) = (
                entry(&from_directory, from_name),
                entry(&to_directory, to_name),
            );
            self.files
                .rename(&self.caller, from, to, RenameMode::Replace)
        })
    }

    /// Removes a name of a file. The file is freed with its last name, after its last handle is closed.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::IsADirectory`].
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let (parent, name) = self.parent(path)?;
        self.at(path, || self.files.unlink(&parent, name))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::DirectoryNotEmpty`].
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let (parent, name) = self.parent(path)?;
        self.at(path, || self.files.remove_directory(&parent, name))
    }

    /// Removes a directory with everything in it. A symbolic link is not followed.
    ///
    /// # Errors
    /// [`ErrorKind::NotADirectory`], also for a symbolic link; as [`FileSystem::remove_file`]. A part may then be
    /// removed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        // A directory that cannot be removed itself, such as the root, keeps its entries.
        self.parent(path)?;
        let mut directories = vec![path.to_owned()];
        for entry in Walk::new(self, path, Symlinks::Keep)? {
            let entry = entry?;
            match entry.file_type()? {
                FileType::Directory => directories.push(entry.path()),
                _ => self.remove_file(entry.path())?,
            }
        }
        // Children follow their parents in the list.
        directories
            .iter()
            .rev()
            .try_for_each(|path| self.remove_dir(path))
    }

    /// Sets the permissions: twelve bits.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::ReadOnly`].
    pub fn set_permissions(&self, path: impl AsRef<Path>, permissions: u32) -> Result<(), Error> {
        let set = SetAttributes {
            permissions: Some(permissions),
            ..SetAttributes::default()
        };
        self.set(path.as_ref(), Symlinks::Follow, &set)
    }

    /// Sets the owner and group. A symbolic link is not followed.
    ///
    /// # Errors
    /// As [`FileSystem::set_permissions`].
    pub fn set_owner(&self, path: impl AsRef<Path>, uid: u32, gid: u32) -> Result<(), Error> {
        let set = SetAttributes {
            uid: Some(uid),
            gid: Some(gid),
            ..SetAttributes::default()
        };
        self.set(path.as_ref(), Symlinks::Keep, &set)
    }

    /// Sets the modification time. A symbolic link is not followed.
    ///
    /// # Errors
    /// As [`FileSystem::set_permissions`].
    pub fn set_modified(&self, path: impl AsRef<Path>, time: SystemTime) -> Result<(), Error> {
        let set = SetAttributes {
            mtime: Some(SetTime::To(timestamp(time))),
            ..SetAttributes::default()
        };
        self.set(path.as_ref(), Symlinks::Keep, &set)
    }

    fn set(&self, path: &Path, symlinks: Symlinks, set: &SetAttributes) -> Result<(), Error> {
        let node = self.node(path, symlinks)?;
        self.at(path, || self.files.set_attributes(&self.caller, &node, set))
    }

    /// The names of the extended attributes of a file or symbolic link.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Damaged`].
    pub fn xattr_names(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>, Error> {
        let path = path.as_ref();
        let node = self.node(path, Symlinks::Keep)?;
        let names = self.at(path, || node.xattr_names())?;
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    /// An extended attribute of a file or symbolic link, named as `user.comment`; `None` if it has none.
    ///
    /// # Errors
    /// As [`FileSystem::xattr_names`].
    pub fn xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let path = path.as_ref();
        let node = self.node(path, Symlinks::Keep)?;
        self.at(path, || node.xattr(name.as_ref().as_bytes()))
    }

    /// Sets an extended attribute of a file or symbolic link.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`], [`ErrorKind::NoSpace`], [`ErrorKind::InvalidInput`].
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        let path = path.as_ref();
        let node = self.node(path, Symlinks::Keep)?;
        let (name, value) = (name.as_ref().as_bytes(), value.as_ref());
        self.at(path, || {
            self.files
                .set_xattr(&self.caller, &node, name, value, XattrMode::default())
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::ReadOnly`].
    pub fn remove_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
    ) -> Result<(), Error> {
        let path = path.as_ref();
        let node = self.node(path, Symlinks::Keep)?;
        self.at(path, || {
            self.files.remove_xattr(&node, name.as_ref().as_bytes())
        })
    }

    /// Waits until all changes of the file system so far are on stable storage.
    ///
    /// # Errors
    /// [`ErrorKind::Suspended`], [`ErrorKind::Device`].
    pub fn sync(&self) -> Result<(), Error> {
        Ok(self.files.commit_log()?)
    }
}
