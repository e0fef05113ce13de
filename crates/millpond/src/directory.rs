//! Iterates over directories.

use crate::{Error, FileSystem, FileType, Metadata};
use millpond_engine::{DirectoryEntries, DirectoryEntry, ObjectId, Symlinks, is_safe_name};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Iterates over the entries of a directory; see [`FileSystem::read_dir`].
#[derive(Debug)]
pub struct ReadDir {
    files: FileSystem,
    path: PathBuf,
    entries: DirectoryEntries,
}

impl ReadDir {
    pub(crate) fn new(files: FileSystem, path: &Path, entries: DirectoryEntries) -> Self {
        Self {
            files,
            path: path.to_owned(),
            entries,
        }
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.entries.next()?;
        let entry = self.files.at(&self.path, || entry);
        Some(entry.and_then(|entry| {
            // Names are joined to paths, here and by callers on the host. A name that leads out of the directory
            // is only in a forged one.
            if !is_safe_name(&entry.name) {
                let text = "the directory has an impossible name";
                return Err(self.files.damaged(text, &self.path));
            }
            Ok(DirEntry::new(self.files.clone(), &self.path, entry))
        }))
    }
}

/// Iterates over everything below a directory; see [`FileSystem::walk`].
#[derive(Debug)]
pub struct Walk {
    files: FileSystem,
    /// The directory that is being listed.
    current: ReadDir,
    /// Directories that are not listed yet.
    waiting: Vec<PathBuf>,
    /// Every directory that was listed: a forged directory can contain one of those above it.
    seen: HashSet<ObjectId>,
}

impl Walk {
    /// `symlinks` says whether `path` itself may be a symbolic link to a directory.
    pub(crate) fn new(files: &FileSystem, path: &Path, symlinks: Symlinks) -> Result<Self, Error> {
        let (id, current) = files.listing(path, symlinks)?;
        Ok(Self {
            files: files.clone(),
            current,
            waiting: vec![],
            seen: HashSet::from([id]),
        })
    }

    fn list(&mut self, path: &Path) -> Result<(), Error> {
        // An entry may claim to be a directory and be a symbolic link.
        let (id, entries) = self.files.listing(path, Symlinks::Keep)?;
        if !self.seen.insert(id) {
            let text = "the directory is here a second time";
            return Err(self.files.damaged(text, path));
        }
        self.current = entries;
        Ok(())
    }
}

impl Iterator for Walk {
    type Item = Result<DirEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some(entry) = self.current.next() else {
                let path = self.waiting.pop()?;
                match self.list(&path) {
                    Ok(()) => continue,
                    Err(error) => return Some(Err(error)),
                }
            };
            return Some(entry.and_then(|entry| {
                // Now, because the caller may remove it.
                if entry.file_type()? == FileType::Directory {
                    self.waiting.push(entry.path());
                }
                Ok(entry)
            }));
        }
    }
}

/// An entry of a directory.
#[derive(Debug)]
pub struct DirEntry {
    files: FileSystem,
    directory: PathBuf,
    name: OsString,
    file_type: Option<FileType>,
}

impl DirEntry {
    fn new(files: FileSystem, directory: &Path, entry: DirectoryEntry) -> Self {
        Self {
            files,
            directory: directory.to_owned(),
            name: OsString::from_vec(entry.name),
            file_type: entry.kind.map(FileType::of),
        }
    }

    /// Its name.
    #[must_use]
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    /// The path of the directory and its name.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// Its type, as the directory says.
    ///
    /// # Errors
    /// As [`DirEntry::metadata`], in file systems of version 1, whose directories do not say it.
    pub fn file_type(&self) -> Result<FileType, Error> {
        match self.file_type {
            Some(known) => Ok(known),
            None => Ok(self.metadata()?.file_type()),
        }
    }

    /// Its attributes. Symbolic links are not followed.
    ///
    /// # Errors
    /// As [`FileSystem::metadata`].
    pub fn metadata(&self) -> Result<Metadata, Error> {
        self.files.symlink_metadata(self.path())
    }
}
