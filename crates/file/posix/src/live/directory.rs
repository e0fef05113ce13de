//! Directories that change: finding names, adding and removing them, listing.

use super::attributes::zap;
use super::error::FileError;
use super::file_system::LiveFileSystem;
use super::names::NAME_BYTES_MAX;
use super::node::{LiveNode, NodeInner};
use super::state::NodeState;
use crate::{DirectoryEntry, FileKind};
use millpond_env::sync::Arc;
use millpond_ondisk::ObjectId;
use millpond_sa::{FileFlags, Timestamp};
use millpond_txg::Transaction;
use millpond_zap::Zap;

/// The cookie behind `.`.
const BEHIND_SELF: u64 = 1;
/// The cookie behind `..`.
const BEHIND_PARENT: u64 = 2;
/// The cookie behind `.zfs`; no entry's own cookie is so small.
const BEHIND_SNAPSHOTS: u64 = 3;
/// Number of the directory `.zfs` in every file system. Nothing of it is on disk.
pub const SNAPSHOT_DIRECTORY_ID: ObjectId = ObjectId(0xffff_ffff_ffff);

/// One line of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The name and what it stands for. `.` and `..` come first.
    pub entry: DirectoryEntry,
    /// Where the listing goes on behind it; good for ever.
    pub cookie: u64,
}

impl LiveFileSystem {
    /// The file with this name in a directory, compared as the file system compares names; `.` and
    /// `..` work too.
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::NotADirectory`], [`FileError::NameTooLong`], or if
    /// something cannot be read.
    pub fn lookup(&self, directory: &LiveNode, name: &[u8]) -> Result<LiveNode, FileError> {
        if !directory.is_directory() {
            return Err(FileError::NotADirectory);
        }
        match name {
            b"." => return Ok(directory.clone()),
            b".." => return self.node(directory.state().parent),
            _ => {}
        }
        // The file may be removed and freed between the look and the opening.
        loop {
            let entry = self.find(directory, name)?.ok_or(FileError::NotFound)?;
            match self.node(entry.id) {
                Err(FileError::Stale) if self.find(directory, name)?.as_ref() != Some(&entry) => {}
                Err(FileError::Stale) => {
                    return Err(self.corrupt(entry.id, "a directory names what does not exist"));
                }
                found => return found,
            }
        }
    }

    /// The entry of a name, as it is stored.
    ///
    /// # Errors
    /// As [`LiveFileSystem::lookup`], but a name that is not there is `None`.
    pub fn find(
        &self,
        directory: &LiveNode,
        name: &[u8],
    ) -> Result<Option<DirectoryEntry>, FileError> {
        if !directory.is_directory() {
            return Err(FileError::NotADirectory);
        }
        self.name_rules().check_lookup(name)?;
        let _shared = directory.entries.read();
        let table = Zap::from_source(Arc::clone(&directory.object) as _)?;
        let entry = table.lookup_entry(name, self.name_match())?;
        Ok(entry.and_then(DirectoryEntry::from_zap))
    }

    /// Whether a directory has no entries. The caller holds its change lock.
    pub(crate) fn is_empty(&self, directory: &NodeInner) -> Result<bool, FileError> {
        let _shared = directory.entries.read();
        let table = Zap::from_source(Arc::clone(&directory.object) as _)?;
        Ok(table.entry_count()? == 0)
    }

    /// Adds an entry. The caller holds the directory's change lock and knows that the name is free.
    pub(crate) fn add_entry(
        &self,
        tx: &Transaction,
        directory: &NodeInner,
        name: &[u8],
        id: ObjectId,
        kind: FileKind,
    ) -> Result<(), FileError> {
        let _exclusive = directory.entries.write();
        let value = id.0 | kind.entry_type() << 60;
        let mut table = zap(&directory.object, tx);
        if name.len() > NAME_BYTES_MAX {
            table = table.with_long_names();
            self.port().note_long_name(tx);
        }
        Ok(table.insert_u64(name, value)?)
    }
    /// Removes the entry that is stored under exactly this name.
    pub(crate) fn remove_entry(
        &self,
        tx: &Transaction,
        directory: &NodeInner,
        stored_name: &[u8],
    ) -> Result<(), FileError> {
        let _exclusive = directory.entries.write();
        if !zap(&directory.object, tx).remove(stored_name)? {
            return Err(self.corrupt(directory.id, "an entry vanished"));
        }
        Ok(())
    }

    /// Up to `count` entries of a directory from a cookie on; 0 is the start. An empty list is the
    /// end. Entries that come or go while a listing is under way may be in it or not; all others are in
    /// it once. A directory that was removed is empty.
    ///
    /// # Errors
    /// If it is no directory, or cannot be read.
    pub fn list(
        &self,
        directory: &LiveNode,
        cookie: u64,
        count: usize,
    ) -> Result<Vec<Listed>, FileError> {
        if !directory.is_directory() {
            return Err(FileError::NotADirectory);
        }
        let state = directory.state();
        if state.links == 0 {
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
            listed.push(named(b".", directory.id(), BEHIND_SELF));
            at = BEHIND_SELF;
        }
        if at == BEHIND_SELF && listed.len() < count {
            listed.push(named(b"..", state.parent, BEHIND_PARENT));
            at = BEHIND_PARENT;
        }
        let shows_snapshots =
            directory.id() == self.root_id() && self.settings().shows_snapshot_directory;
        if at == BEHIND_PARENT && shows_snapshots && listed.len() < count {
            let id = SNAPSHOT_DIRECTORY_ID;
            listed.push(named(b".zfs", id, BEHIND_SNAPSHOTS));
            at = BEHIND_SNAPSHOTS;
        }
        if listed.len() == count {
            return Ok(listed);
        }
        let from = if at <= BEHIND_SNAPSHOTS { 0 } else { at };
        let _shared = directory.entries.read();
        let table = Zap::from_source(Arc::clone(&directory.object) as _)?;
        let mut cursor = table.iter_from(from);
        while listed.len() < count {
            let Some(entry) = cursor.next() else { break };
            if let Some(entry) = DirectoryEntry::from_zap(entry?) {
                let cookie = cursor.cookie();
                listed.push(Listed { entry, cookie });
            }
        }
        Ok(listed)
    }

    /// Whether entries may be added to a directory, or taken from it.
    pub(crate) fn check_directory(directory: &NodeState, is_adding: bool) -> Result<(), FileError> {
        if directory.links == 0 {
            return Err(FileError::NotFound);
        }
        let mut forbidding = FileFlags::IMMUTABLE;
        forbidding |= if is_adding {
            FileFlags::READONLY
        } else {
            FileFlags::APPENDONLY
        };
        if directory.flags.intersects(forbidding) {
            return Err(FileError::NotPermitted);
        }
        Ok(())
    }
    /// Whether a file may lose a name, by removal or move.
    pub(crate) fn check_removal(file: &NodeState) -> Result<(), FileError> {
        let forbidding = FileFlags::IMMUTABLE | FileFlags::NOUNLINK | FileFlags::APPENDONLY;
        if file.flags.intersects(forbidding) {
            return Err(FileError::NotPermitted);
        }
        Ok(())
    }
}

impl NodeState {
    /// Notes that entries came to a directory or left it, and how many of them are directories.
    pub(crate) fn entries_changed(&mut self, entries: i64, directories: i64, now: Timestamp) {
        self.size = self.size.saturating_add_signed(entries);
        self.links = self.links.saturating_add_signed(directories);
        self.content_changed(now);
    }
}
