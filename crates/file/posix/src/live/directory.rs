//! Directories that change: finds, adds, removes and lists entries.

use super::attributes::zap;
use super::file_system::LiveFileSystem;
use super::names::NAME_BYTES_MAX;
use super::node::{LiveNode, NodeInner};
use super::state::NodeState;
use crate::error::FileError;
use crate::{DirectoryEntry, FileKind};
use millpond_env::sync::Arc;
use millpond_ondisk::ObjectId;
use millpond_sa::{FileFlags, Timestamp};
use millpond_txg::Transaction;
use millpond_zap::Zap;

/// The cookie after `.`.
const BEHIND_SELF: u64 = 1;
/// The cookie after `..`.
const BEHIND_PARENT: u64 = 2;
/// The cookie after `.zfs`. The cookies of entries are larger.
const BEHIND_SNAPSHOTS: u64 = 3;
/// The object id of the directory `.zfs` in every file system. It exists only in memory.
pub const SNAPSHOT_DIRECTORY_ID: ObjectId = ObjectId(0xffff_ffff_ffff);

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The name and the file it refers to. `.` and `..` come first.
    pub entry: DirectoryEntry,
    /// The position after this entry. It stays valid forever.
    pub cookie: u64,
}

impl LiveFileSystem {
    /// Looks up a name in a directory, by the file system's rules for comparing names. `.` and `..` work too.
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::NotADirectory`], [`FileError::NameTooLong`], or if something
    /// cannot be read.
    pub fn lookup(&self, directory: &LiveNode, name: &[u8]) -> Result<LiveNode, FileError> {
        if !directory.is_directory() {
            return Err(FileError::NotADirectory);
        }
        match name {
            b"." => return Ok(directory.clone()),
            b".." => return self.node(directory.state().parent),
            _ => {}
        }
        // The file may be removed and freed between finding its entry and opening it.
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

    /// Finds the entry of a name, as it is stored. Returns `None` if there is none.
    ///
    /// # Errors
    /// As [`LiveFileSystem::lookup`], except for a missing name.
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

    /// Adds an entry. The caller holds the directory's change lock and has checked that the name is free.
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
    /// Removes the entry with exactly this stored name.
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

    /// Lists up to `count` entries of a directory from a cookie on; 0 is the start. An empty list is the end.
    ///
    /// Entries that are added or removed during a listing may or may not appear. All others appear exactly
    /// once. A removed directory is empty.
    ///
    /// # Errors
    /// If it is not a directory, or cannot be read.
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

    /// Checks that entries may be added to a directory, or removed from it.
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
    /// Checks that a file may lose a name, by removal or rename.
    pub(crate) fn check_removal(file: &NodeState) -> Result<(), FileError> {
        let forbidding = FileFlags::IMMUTABLE | FileFlags::NOUNLINK | FileFlags::APPENDONLY;
        if file.flags.intersects(forbidding) {
            return Err(FileError::NotPermitted);
        }
        Ok(())
    }
}

impl NodeState {
    /// Updates a directory's attributes after entries were added or removed. `directories` is the change in
    /// the number of subdirectories.
    pub(crate) fn entries_changed(&mut self, entries: i64, directories: i64, now: Timestamp) {
        self.size = self.size.saturating_add_signed(entries);
        self.links = self.links.saturating_add_signed(directories);
        self.content_changed(now);
    }
}
