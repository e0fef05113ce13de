//! Looks up names and lists directories.

use crate::FileSystem;
use crate::error::FileError;
use crate::name_index::NameIndex;
use crate::node::Node;
use crate::settings::SnapshotDirectory;
use crate::stat::FileKind;
use millpond_env::sync::Arc;
use millpond_object::ReadableObject;
use millpond_ondisk::ObjectId;
use millpond_zap::{Zap, ZapCursor, ZapEntry};

/// The cookie after `.`.
const AFTER_SELF: u64 = 1;
/// The cookie after `..`.
const AFTER_PARENT: u64 = 2;
/// The cookie after `.zfs`. The cookies of entries are larger.
const AFTER_SNAPSHOTS: u64 = 3;
/// The object id of the directory `.zfs` in every file system. It exists only in memory.
pub const SNAPSHOT_DIRECTORY_ID: ObjectId = ObjectId(0xffff_ffff_ffff);

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

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The name and the file it refers to. `.` and `..` come first.
    pub entry: DirectoryEntry,
    /// The position after this entry. It stays valid forever.
    pub cookie: u64,
}

/// The entries of a directory, without `.` and `..`, in no particular order.
///
/// One block is in memory at a time. A directory that is open for change is locked only while an entry is taken:
/// those that are added or removed during a listing may or may not appear, all others appear exactly once. After
/// an error, iteration continues with the entries that can be read.
#[derive(Debug)]
pub struct DirectoryEntries {
    directory: Node,
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
        let _shared = self.directory.lock_entries();
        // A removed directory is empty.
        if self.directory.is_unlinked() {
            return None;
        }
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

impl FileSystem {
    /// Finds an entry in a directory's object. The caller keeps the entries from changing; `index` is the
    /// directory's.
    pub(crate) fn entry_in(
        &self,
        directory: &ReadableObject,
        index: Option<&NameIndex>,
        name: &[u8],
    ) -> Result<Option<DirectoryEntry>, FileError> {
        if name.is_empty() {
            return Ok(None);
        }
        self.names().check_lookup(name)?;
        let table = Zap::of_readable(directory)?;
        let index = match index {
            Some(index) => index.get(&table, self.writing()?.indexes()),
            None => None,
        };
        let entry = table.lookup_entry_by(index, name, self.names().name_match())?;
        Ok(entry.and_then(DirectoryEntry::from_zap))
    }
}

impl Node {
    fn check_directory(&self) -> Result<(), FileError> {
        match self.kind() {
            FileKind::Directory => Ok(()),
            _ => Err(FileError::NotADirectory),
        }
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
        self.check_directory()?;
        let _shared = self.lock_entries();
        let cursor = match self.object() {
            ReadableObject::Committed(object) => Zap::open(object.clone())?.iter_from(cookie),
            ReadableObject::Open(object) => {
                ZapCursor::of_changing(Arc::clone(object) as _, cookie)?
            }
        };
        let directory = self.clone();
        Ok(DirectoryEntries { directory, cursor })
    }

    /// Lists up to `count` entries of a directory from a cookie on, including `.` and `..`; 0 is the start. An
    /// empty list is the end.
    ///
    /// Entries that are added or removed during a listing may or may not appear. All others appear exactly
    /// once. A removed directory is empty.
    ///
    /// # Errors
    /// If it is not a directory, or cannot be read.
    pub fn list(&self, cookie: u64, count: usize) -> Result<Vec<Listed>, FileError> {
        self.check_directory()?;
        if self.is_unlinked() {
            return Ok(vec![]);
        }
        let mut listed = vec![];
        let mut at = cookie;
        let named = |name: &[u8], id, cookie| Listed {
            entry: DirectoryEntry {
                name: name.to_vec(),
                id,
                kind: Some(FileKind::Directory),
            },
            cookie,
        };
        if at == 0 && listed.len() < count {
            listed.push(named(b".", self.id(), AFTER_SELF));
            at = AFTER_SELF;
        }
        if at == AFTER_SELF && listed.len() < count {
            listed.push(named(b"..", self.parent_id()?, AFTER_PARENT));
            at = AFTER_PARENT;
        }
        let files = self.file_system();
        let shows_snapshots = self.id() == files.root_id()
            && files.settings().snapshot_directory == SnapshotDirectory::Visible;
        if at == AFTER_PARENT && shows_snapshots && listed.len() < count {
            let id = SNAPSHOT_DIRECTORY_ID;
            listed.push(named(b".zfs", id, AFTER_SNAPSHOTS));
            at = AFTER_SNAPSHOTS;
        }
        if listed.len() == count {
            return Ok(listed);
        }
        let from = if at <= AFTER_SNAPSHOTS { 0 } else { at };
        let mut entries = self.entries_from(from)?;
        while listed.len() < count
            && let Some(entry) = entries.next()
        {
            let (entry, cookie) = (entry?, entries.cookie());
            listed.push(Listed { entry, cookie });
        }
        files.prefetch_files(listed.iter().map(|listed| listed.entry.id));
        Ok(listed)
    }

    /// Finds the entry with this name, by the file system's rules for comparing names.
    ///
    /// Returns `None` if there is none.
    ///
    /// # Errors
    /// [`FileError::NotADirectory`], [`FileError::NameTooLong`], or if it cannot be read.
    pub fn find(&self, name: &[u8]) -> Result<Option<DirectoryEntry>, FileError> {
        self.check_directory()?;
        let shared = self.lock_entries();
        self.file_system()
            .entry_in(self.object(), shared.as_deref(), name)
    }

    /// The file with this name. `.` and `..` work too.
    ///
    /// # Errors
    /// [`FileError::NotFound`], and as [`Node::find`]; or if the file cannot be read.
    pub fn lookup(&self, name: &[u8]) -> Result<Node, FileError> {
        self.check_directory()?;
        let files = self.file_system();
        match name {
            b"." => return Ok(self.clone()),
            b".." => return files.node(self.parent_id()?),
            _ => {}
        }
        // The file may be removed and freed between finding its entry and opening it.
        loop {
            let entry = self.find(name)?.ok_or(FileError::NotFound)?;
            match files.node(entry.id) {
                Err(FileError::Stale) if self.find(name)?.as_ref() != Some(&entry) => {}
                Err(FileError::Stale) => {
                    return Err(files.corrupt(entry.id, "a directory names what does not exist"));
                }
                found => return found,
            }
        }
    }
}
