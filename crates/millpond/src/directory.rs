//! Iterates over directories.

use crate::{Error, FileSystem, FileType, Metadata};
use millpond_engine::{DirectoryEntries, DirectoryEntry};
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
        let entry = entry.map_err(|error| {
            let subject = format!("{}:{}", self.files.name(), self.path.display());
            Error::from(error).about(subject)
        });
        Some(entry.map(|entry| DirEntry::new(self.files.clone(), &self.path, entry)))
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
