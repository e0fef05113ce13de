//! Adds names to files and removes them.

use crate::FileSystem;
use crate::create::LINKS_MAX;
use crate::error::FileError;
use crate::open_node::{NodeInner, OpenNode, lock_changes_of};
use crate::state::{Lists, NodeState};
use crate::writing::{ENTRY_BYTES, NODE_BYTES};
use crate::{DirectoryEntry, Node};
use millpond_ondisk::ObjectId;
use millpond_ondisk::intent_log::LogRecordBody;
use millpond_sa::{FileFlags, Timestamp};
use millpond_txg::Transaction;

/// The file type that a removal expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    Directory,
    Other,
}

impl FileSystem {
    /// Adds a name to a file.
    ///
    /// A file that was created without a name gets its first one this way. A caller that needs that name on
    /// stable storage calls [`FileSystem::fsync`].
    ///
    /// # Errors
    /// [`FileError::NotPermitted`] for directories, [`FileError::CrossProject`], [`FileError::TooManyLinks`],
    /// [`FileError::NotFound`] if its last name is gone; and what [`FileError`] lists for names, flags and
    /// space.
    pub fn link(&self, node: &Node, directory: &Node, name: &[u8]) -> Result<(), FileError> {
        let (node, directory) = (node.for_change()?, directory.for_change()?);
        if !directory.is_directory() {
            return Err(FileError::NotADirectory);
        }
        if node.is_directory() {
            return Err(FileError::NotPermitted);
        }
        self.check_new_name(directory.id(), name)?;
        self.check_writable()?;
        self.try_link(node, directory, name)?;
        self.settle()
    }

    fn try_link(
        &self,
        node: &OpenNode,
        directory: &OpenNode,
        name: &[u8],
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        let _changes = lock_changes_of(&[node, directory]);
        let mut parent = directory.state();
        let mut state = node.state();
        if self.find(directory, name)?.is_some() {
            return Err(FileError::Exists);
        }
        self.check_directory(&parent, true)?;
        let forbidding = FileFlags::IMMUTABLE | FileFlags::APPENDONLY;
        if self.forbids(&state, forbidding) {
            return Err(FileError::NotPermitted);
        }
        if state.flags.contains(FileFlags::XATTR) != parent.flags.contains(FileFlags::XATTR) {
            return Err(FileError::invalid("an extended attribute is no file"));
        }
        let is_first = state.links == 0;
        if is_first && !node.is_linkable() {
            return Err(FileError::NotFound);
        }
        if state.links >= LINKS_MAX {
            return Err(FileError::TooManyLinks);
        }
        self.check_project(&parent, &state)?;
        let now = writing.now();
        self.check_attributes(&[node, directory])?;
        let _unlinked = is_first.then(|| writing.unlinked().lock_table());
        let tx = self.begin(2 * NODE_BYTES + 2 * ENTRY_BYTES)?;
        let old = state;
        state.links += 1;
        state.parent = directory.id();
        state.attributes_changed(now);
        self.store(&tx, node, state, &Lists::default())?;
        self.add_entry(&tx, directory, name, node.id(), node.kind())
            .map_err(|error| self.undo_store(&tx, node, old, error))?;
        let unfinished = tx.unfinished();
        if is_first {
            writing.unlinked().remove(&tx, node.id())?;
            node.set_linkable(false);
        }
        parent.entries_changed(1, 0, now);
        self.store(&tx, directory, parent, &Lists::default())?;
        if is_first {
            // A file that was created without a name has no record.
            self.record_nothing(&tx, None);
        } else {
            let body = LogRecordBody::Link {
                directory: directory.id(),
                object: node.id(),
                name,
            };
            self.record(&tx, None, body);
        }
        unfinished.done();
        Ok(())
    }

    /// A directory that passes on its project accepts no files of other projects.
    pub(crate) fn check_project(
        &self,
        parent: &NodeState,
        file: &NodeState,
    ) -> Result<(), FileError> {
        let hands_down = self.forbids(parent, FileFlags::PROJECT_INHERIT);
        if hands_down && parent.project_or_zero() != file.project_or_zero() {
            return Err(FileError::CrossProject);
        }
        Ok(())
    }

    /// Removes a name of a file. When its last name is removed, the file is freed once it is not in use.
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::IsADirectory`], [`FileError::NotPermitted`].
    pub fn unlink(&self, directory: &Node, name: &[u8]) -> Result<(), FileError> {
        self.remove(directory.for_change()?, name, Removal::Other)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::NotADirectory`], [`FileError::NotEmpty`],
    /// [`FileError::NotPermitted`].
    pub fn remove_directory(&self, directory: &Node, name: &[u8]) -> Result<(), FileError> {
        match name {
            b"." => Err(FileError::invalid("a directory cannot be removed as `.`")),
            b".." => Err(FileError::NotEmpty),
            _ => self.remove(directory.for_change()?, name, Removal::Directory),
        }
    }

    fn remove(&self, directory: &OpenNode, name: &[u8], removal: Removal) -> Result<(), FileError> {
        self.check_writable()?;
        loop {
            let entry = self.find(directory, name)?.ok_or(FileError::NotFound)?;
            let Some(node) = self.node_of_entry(directory, &entry)? else {
                continue;
            };
            if self.try_remove(directory, &entry, &node, removal)? {
                drop(node);
                self.reap()?;
                return self.settle();
            }
        }
    }

    /// The node of an entry; `None` if the entry no longer exists.
    pub(crate) fn node_of_entry(
        &self,
        directory: &OpenNode,
        entry: &DirectoryEntry,
    ) -> Result<Option<OpenNode>, FileError> {
        match self.open_node(entry.id) {
            Ok(node) => Ok(Some(node)),
            Err(FileError::Stale) => {
                if self.find(directory, &entry.name)?.as_ref() == Some(entry) {
                    return Err(self.corrupt(entry.id, "a directory names what does not exist"));
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the entry if it still refers to the node. Returns whether it did.
    fn try_remove(
        &self,
        directory: &OpenNode,
        entry: &DirectoryEntry,
        node: &OpenNode,
        removal: Removal,
    ) -> Result<bool, FileError> {
        let writing = self.writing()?;
        let _changes = lock_changes_of(&[directory, node]);
        if self.find(directory, &entry.name)?.as_ref() != Some(entry) {
            return Ok(false);
        }
        let mut parent = directory.state();
        let state = node.state();
        match (removal, node.is_directory()) {
            (Removal::Directory, false) => return Err(FileError::NotADirectory),
            (Removal::Other, true) => return Err(FileError::IsADirectory),
            _ => {}
        }
        self.check_directory(&parent, false)?;
        self.check_removal(&state)?;
        if node.is_directory() && !self.is_empty(node)? {
            return Err(FileError::NotEmpty);
        }
        self.check_attributes(&[directory, node])?;
        let now = writing.now();
        let is_last = node.is_directory() || state.links <= 1;
        let _unlinked = is_last.then(|| writing.unlinked().lock_table());
        let tx = self.begin_freeing(2 * NODE_BYTES + 2 * ENTRY_BYTES, 0)?;
        // This fails before anything is changed if the attributes cannot be stored.
        self.drop_link(&tx, node, now)?;
        let unfinished = tx.unfinished();
        self.remove_entry(&tx, directory, &entry.name)?;
        let directories = -i64::from(node.is_directory());
        parent.entries_changed(-1, directories, now);
        self.store(&tx, directory, parent, &Lists::default())?;
        let body = LogRecordBody::Remove {
            is_directory: node.is_directory(),
            directory: directory.id(),
            name: &entry.name,
        };
        self.record(&tx, None, body);
        if is_last {
            self.forget_records(node.id());
        }
        unfinished.done();
        Ok(true)
    }

    /// Removes one link from a node whose entry is being removed; for a directory, both links.
    ///
    /// On failure nothing has changed. The caller holds the node's change lock and, for the last link, the
    /// lock of the unlinked set.
    pub(crate) fn drop_link(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        now: Timestamp,
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        let mut state = node.state();
        state.links = if node.is_directory() {
            0
        } else {
            state.links.saturating_sub(1)
        };
        state.attributes_changed(now);
        let old = node.state();
        self.store(tx, node, state, &Lists::default())?;
        if state.links == 0 {
            let added = writing.unlinked().add(tx, node.id);
            added.map_err(|error| self.undo_store(tx, node, old, error))?;
            // From now on only users of the node keep it in memory.
            writing.cache().release(node.id);
        }
        Ok(())
    }

    /// Whether `ancestor` is `directory` or above it. The caller holds the lock on moves, so the chain of
    /// parents does not change.
    pub(crate) fn is_above(
        &self,
        ancestor: ObjectId,
        directory: &OpenNode,
    ) -> Result<bool, FileError> {
        let mut at = directory.clone();
        for _ in 0..DEPTH_MAX {
            if at.id() == ancestor {
                return Ok(true);
            }
            let parent = at.state().parent;
            if at.id() == self.root_id() || parent == at.id() {
                return Ok(false);
            }
            at = self.open_node(parent)?;
        }
        Err(self.corrupt(directory.id(), "its chain of parents has no end"))
    }
}

/// The maximum length of a chain of parents. A longer chain is a cycle.
const DEPTH_MAX: usize = 1 << 16;
