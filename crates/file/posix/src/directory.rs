//! Reads directories.

use crate::error::FileError;
use crate::node::Node;
use crate::stat::FileKind;
use millpond_ondisk::ObjectId;
use millpond_zap::{Zap, ZapCursor, ZapEntry};

/// One directory entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name as stored: up to 1023 bytes, not always UTF-8.
    pub name: Vec<u8>,
    /// The file's object id.
    pub id: ObjectId,
    /// The file type; `None` in file systems of version 1, which do not store it.
    pub kind: Option<FileKind>,
}

impl DirectoryEntry {
    pub(crate) fn from_zap(entry: ZapEntry) -> Option<Self> {
        // Only the first integer is used; its bits 48 to 59 are reserved.
        let value = entry.value.first()?;
        Some(Self {
            name: entry.name,
            id: ObjectId(value & 0xffff_ffff_ffff),
            kind: FileKind::from_entry_type(value >> 60),
        })
    }
}

/// The entries of a directory, without `.` and `..`, in no particular order.
///
/// One block of the directory is in memory at a time. After an error, iteration continues with the entries
/// that can be read.
#[derive(Debug)]
pub struct DirectoryEntries {
    cursor: ZapCursor,
}

impl DirectoryEntries {
    /// The position after the entry just returned. It stays valid after this listing ends.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.cursor.cookie()
    }
}

impl Iterator for DirectoryEntries {
    type Item = Result<DirectoryEntry, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.cursor.next()? {
                Err(error) => return Some(Err(error.into())),
                Ok(entry) => {
                    if let Some(entry) = DirectoryEntry::from_zap(entry) {
                        return Some(Ok(entry));
                    }
                }
            }
        }
    }
}

impl Node {
    pub(crate) fn directory_zap(&self) -> Result<Zap, FileError> {
        if self.kind() != FileKind::Directory {
            return Err(FileError::NotADirectory);
        }
        Ok(Zap::open(self.object().clone())?)
    }

    /// The entries of a directory.
    ///
    /// # Errors
    /// If this is not a directory, or it cannot be read.
    pub fn entries(&self) -> Result<DirectoryEntries, FileError> {
        self.entries_from(0)
    }
    /// The entries of a directory from a cookie on.
    ///
    /// # Errors
    /// As [`Node::entries`].
    pub fn entries_from(&self, cookie: u64) -> Result<DirectoryEntries, FileError> {
        Ok(DirectoryEntries {
            cursor: self.directory_zap()?.iter_from(cookie),
        })
    }

    /// Finds the entry with this name, by the file system's rules for comparing names.
    ///
    /// Returns `None` if there is none.
    ///
    /// # Errors
    /// If this is not a directory, or it cannot be read.
    pub fn find(&self, name: &[u8]) -> Result<Option<DirectoryEntry>, FileError> {
        let zap = self.directory_zap()?;
        // Extended attribute directories always compare bytes.
        let name_match = self.file_system().name_match();
        Ok(zap
            .lookup_entry(name, name_match)?
            .and_then(DirectoryEntry::from_zap))
    }

    /// The file with this name. `.` and `..` work too.
    ///
    /// # Errors
    /// [`FileError::NotFound`], or if something cannot be read.
    pub fn child(&self, name: &[u8]) -> Result<Node, FileError> {
        match name {
            b"." => return Ok(self.clone()),
            b".." => return self.file_system().node(self.parent_id()?),
            _ => {}
        }
        let entry = self.find(name)?.ok_or(FileError::NotFound)?;
        self.file_system().node(entry.id)
    }
}
