//! Looks up names and lists directories.

use crate::FileSystem;
use crate::error::FileError;
use crate::node::Node;
use crate::stat::FileKind;
use millpond_object::ReadableObject;
use millpond_ondisk::ObjectId;
use millpond_zap::{Zap, ZapCursor, ZapEntry};
use std::collections::VecDeque;

/// The cookie after `.`.
const BEHIND_SELF: u64 = 1;
/// The cookie after `..`.
const BEHIND_PARENT: u64 = 2;
/// The cookie after `.zfs`. The cookies of entries are larger.
const BEHIND_SNAPSHOTS: u64 = 3;
/// The object id of the directory `.zfs` in every file system. It exists only in memory.
pub const SNAPSHOT_DIRECTORY_ID: ObjectId = ObjectId(0xffff_ffff_ffff);
/// The most entries that are read at once from a directory that is open for change.
const BATCH: usize = 256;

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
/// One block of a committed directory is in memory at a time. A directory that is open for change is locked only
/// while some entries are read: those that are added or removed during a listing may or may not appear, all
/// others appear exactly once. After an error, iteration continues with the entries that can be read.
#[derive(Debug)]
pub struct DirectoryEntries {
    source: Source,
    cookie: u64,
}

/// Entries, each with the position after it.
type Batch = VecDeque<(Result<DirectoryEntry, FileError>, u64)>;

#[derive(Debug)]
enum Source {
    Committed(Box<ZapCursor>),
    Open {
        directory: Node,
        /// Entries that are read already.
        read: Batch,
        /// Where the next batch begins; `None` at the end.
        next: Option<u64>,
    },
}

impl DirectoryEntries {
    /// The position after the entry just returned. It stays valid after this listing ends.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.cookie
    }
}

/// The next entry that a cursor finds.
fn next_of(cursor: &mut ZapCursor) -> Option<Result<DirectoryEntry, FileError>> {
    loop {
        match cursor.next()? {
            Err(error) => return Some(Err(error.into())),
            Ok(entry) => {
                if let Some(entry) = DirectoryEntry::from_zap(entry) {
                    return Some(Ok(entry));
                }
            }
        }
    }
}

impl Iterator for DirectoryEntries {
    type Item = Result<DirectoryEntry, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.source {
            Source::Committed(cursor) => {
                let next = next_of(cursor);
                self.cookie = cursor.cookie();
                next
            }
            Source::Open {
                directory,
                read,
                next,
            } => {
                if read.is_empty()
                    && let Some(from) = next.take()
                {
                    match directory.read_entries(from, BATCH) {
                        Ok(batch) => {
                            *next = (batch.len() == BATCH)
                                .then(|| batch.back().map(|(_, cookie)| *cookie))
                                .flatten();
                            *read = batch;
                        }
                        Err(error) => return Some(Err(error)),
                    }
                }
                let (entry, cookie) = read.pop_front()?;
                self.cookie = cookie;
                Some(entry)
            }
        }
    }
}

impl FileSystem {
    /// Finds an entry in a directory's object. The caller keeps the entries from changing.
    pub(crate) fn entry_in(
        &self,
        directory: &ReadableObject,
        name: &[u8],
    ) -> Result<Option<DirectoryEntry>, FileError> {
        self.names().check_lookup(name)?;
        let table = Zap::of_readable(directory)?;
        let entry = table.lookup_entry(name, self.names().name_match())?;
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

    /// Reads up to `count` entries of a directory that is open for change.
    fn read_entries(&self, from: u64, count: usize) -> Result<Batch, FileError> {
        let _shared = self.lock_entries();
        // A removed directory is empty.
        if self.is_unlinked() {
            return Ok(VecDeque::new());
        }
        let mut cursor = Zap::of_readable(self.object())?.iter_from(from);
        let mut batch = VecDeque::new();
        while batch.len() < count {
            let Some(entry) = next_of(&mut cursor) else {
                break;
            };
            batch.push_back((entry, cursor.cookie()));
        }
        Ok(batch)
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
        let source = match self.open_node() {
            None => {
                let table = Zap::of_readable(self.object())?;
                Source::Committed(Box::new(table.iter_from(cookie)))
            }
            Some(_) => Source::Open {
                directory: self.clone(),
                read: VecDeque::new(),
                next: Some(cookie),
            },
        };
        Ok(DirectoryEntries { source, cookie })
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
            listed.push(named(b".", self.id(), BEHIND_SELF));
            at = BEHIND_SELF;
        }
        if at == BEHIND_SELF && listed.len() < count {
            listed.push(named(b"..", self.parent_id()?, BEHIND_PARENT));
            at = BEHIND_PARENT;
        }
        let files = self.file_system();
        let shows_snapshots =
            self.id() == files.root_id() && files.settings().shows_snapshot_directory;
        if at == BEHIND_PARENT && shows_snapshots && listed.len() < count {
            let id = SNAPSHOT_DIRECTORY_ID;
            listed.push(named(b".zfs", id, BEHIND_SNAPSHOTS));
            at = BEHIND_SNAPSHOTS;
        }
        if listed.len() == count {
            return Ok(listed);
        }
        let from = if at <= BEHIND_SNAPSHOTS { 0 } else { at };
        for (entry, cookie) in self.read_entries(from, count - listed.len())? {
            let entry = entry?;
            listed.push(Listed { entry, cookie });
        }
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
        let _shared = self.lock_entries();
        self.file_system().entry_in(self.object(), name)
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
