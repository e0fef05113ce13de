//! Directories: names to files.

use crate::error::PosixError;
use crate::node::Node;
use crate::stat::FileKind;
use millpond_ondisk::ObjectId;
use millpond_zap::{Zap, ZapCursor, ZapEntry};

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name as stored: up to 1023 bytes, not always UTF-8.
    pub name: Vec<u8>,
    /// The file's object number.
    pub id: ObjectId,
    /// What it is; `None` in file systems of version 1, which do not note it.
    pub kind: Option<FileKind>,
}

impl DirectoryEntry {
    pub(crate) fn from_zap(entry: ZapEntry) -> Option<Self> {
        // Only the first integer counts; bits 48 to 59 are reserved.
        let value = entry.value.first()?;
        Some(Self {
            name: entry.name,
            id: ObjectId(value & 0xffff_ffff_ffff),
            kind: FileKind::from_entry_type(value >> 60),
        })
    }
}

/// The entries of a directory, without `.` and `..`, in no useful order. Holds one block of the
/// directory, however many entries it has. After an error it goes on with what can be read.
#[derive(Debug)]
pub struct DirectoryEntries {
    cursor: ZapCursor,
}

impl DirectoryEntries {
    /// Where the entry after the one just returned stands; lasts beyond this listing.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.cursor.cookie()
    }
}

impl Iterator for DirectoryEntries {
    type Item = Result<DirectoryEntry, PosixError>;

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
    pub(crate) fn directory_zap(&self) -> Result<Zap, PosixError> {
        if self.kind() != FileKind::Directory {
            let name = format!("object {}", self.id()).into_bytes();
            return Err(PosixError::NotADirectory { name });
        }
        Ok(Zap::open(self.object().clone())?)
    }

    /// The entries of a directory.
    ///
    /// # Errors
    /// If it is no directory or cannot be read.
    pub fn entries(&self) -> Result<DirectoryEntries, PosixError> {
        self.entries_from(0)
    }
    /// The entries of a directory from a cookie on.
    ///
    /// # Errors
    /// As [`Node::entries`].
    pub fn entries_from(&self, cookie: u64) -> Result<DirectoryEntries, PosixError> {
        Ok(DirectoryEntries {
            cursor: self.directory_zap()?.iter_from(cookie),
        })
    }

    /// The entry with this name, compared as the file system compares names.
    ///
    /// # Errors
    /// If it is no directory or cannot be read; a name that is not there is `None`.
    pub fn find(&self, name: &[u8]) -> Result<Option<DirectoryEntry>, PosixError> {
        let zap = self.directory_zap()?;
        // Directories of extended attributes compare bytes, whatever the file system does.
        let name_match = self.file_system().name_match();
        Ok(zap
            .lookup_entry(name, name_match)?
            .and_then(DirectoryEntry::from_zap))
    }

    /// The file with this name; `.` and `..` work too.
    ///
    /// # Errors
    /// [`PosixError::NotFound`], or if something cannot be read.
    pub fn child(&self, name: &[u8]) -> Result<Node, PosixError> {
        match name {
            b"." => return Ok(self.clone()),
            b".." => return self.file_system().node(self.parent_id()?),
            _ => {}
        }
        let missing = || PosixError::NotFound {
            name: name.to_vec(),
        };
        let entry = self.find(name)?.ok_or_else(missing)?;
        self.file_system().node(entry.id)
    }
}
