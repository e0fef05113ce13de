//! Adds and removes directory entries.

use crate::FileSystem;
use crate::attributes::zap;
use crate::error::FileError;
use crate::names::NAME_BYTES_MAX;
use crate::open_node::{NodeInner, OpenNode};
use crate::state::NodeState;
use crate::version::ENTRY_TYPES;
use crate::{DirectoryEntry, FileKind};
use millpond_ondisk::ObjectId;
use millpond_sa::{FileFlags, Timestamp};
use millpond_txg::Transaction;
use millpond_zap::Zap;

impl FileSystem {
    /// Like [`crate::Node::find`], in a directory that is open for change.
    pub(crate) fn find(
        &self,
        directory: &OpenNode,
        name: &[u8],
    ) -> Result<Option<DirectoryEntry>, FileError> {
        if !directory.is_directory() {
            return Err(FileError::NotADirectory);
        }
        let shared = directory.entries.read();
        self.entry_in(&directory.content, Some(&shared), name)
    }

    /// Whether a directory has no entries. The caller holds its change lock.
    pub(crate) fn is_empty(&self, directory: &NodeInner) -> Result<bool, FileError> {
        let _shared = directory.entries.read();
        Ok(Zap::of_object(&directory.object)?.entry_count()? == 0)
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
        let writing = self.writing()?;
        let mut index = directory.entries.write();
        let value = self.entry_value(tx, id, kind);
        let mut table = zap(&directory.object, tx);
        if name.len() > NAME_BYTES_MAX {
            table = table.with_long_names();
            writing.source().note_long_name(tx);
        }
        index.change(|index| Ok(table.insert_u64_by(index, name, value)?))
    }
    /// The value of a directory entry. In version 1 it does not have the file's type.
    pub(crate) fn entry_value(&self, tx: &Transaction, id: ObjectId, kind: FileKind) -> u64 {
        match self.version_in(tx) {
            0..ENTRY_TYPES => id.0,
            _ => id.0 | kind.entry_type() << 60,
        }
    }
    /// Removes the entry with exactly this stored name.
    pub(crate) fn remove_entry(
        &self,
        tx: &Transaction,
        directory: &NodeInner,
        stored_name: &[u8],
    ) -> Result<(), FileError> {
        let mut index = directory.entries.write();
        let table = zap(&directory.object, tx);
        let is_removed = index.change(|index| Ok(table.remove_by(index, stored_name)?))?;
        if !is_removed {
            return Err(self.corrupt(directory.id, "an entry to remove does not exist"));
        }
        Ok(())
    }

    /// Whether a file has one of these flags, which forbid a change.
    ///
    /// Replay repeats changes that were allowed when they were made. What allowed them, such as `chattr -i`, may not be in
    /// the log: records of attributes are only written with the file that is synced.
    pub(crate) fn forbids(&self, file: &NodeState, flags: FileFlags) -> bool {
        file.flags.intersects(flags) && !self.is_replaying()
    }

    /// Checks that entries may be added to a directory, or removed from it.
    pub(crate) fn check_directory(
        &self,
        directory: &NodeState,
        is_adding: bool,
    ) -> Result<(), FileError> {
        if directory.links == 0 {
            return Err(FileError::NotFound);
        }
        let mut forbidding = FileFlags::IMMUTABLE;
        forbidding |= if is_adding {
            FileFlags::READONLY
        } else {
            FileFlags::APPENDONLY
        };
        if self.forbids(directory, forbidding) {
            return Err(FileError::NotPermitted);
        }
        Ok(())
    }
    /// Checks that a file may lose a name, by removal or rename.
    pub(crate) fn check_removal(&self, file: &NodeState) -> Result<(), FileError> {
        let forbidding = FileFlags::IMMUTABLE | FileFlags::NOUNLINK | FileFlags::APPENDONLY;
        if self.forbids(file, forbidding) {
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
