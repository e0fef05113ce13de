//! Puts changes on stable storage.

use crate::error::FileError;
use crate::{FileSystem, Node};

impl FileSystem {
    /// Waits until everything that was changed before the call is on stable storage. A committed state is.
    ///
    /// # Errors
    /// If the pool is suspended before that.
    pub fn sync(&self) -> Result<(), FileError> {
        match self.writing() {
            Ok(writing) => Ok(writing.source().wait_open_synced()?),
            Err(_) => Ok(()),
        }
    }

    /// Puts all earlier changes of a file on stable storage, and everything they depend on: the names created
    /// and removed until then.
    ///
    /// # Errors
    /// If the pool is suspended before that.
    pub fn fsync(&self, node: &Node) -> Result<(), FileError> {
        match self.writing().ok().and_then(|w| w.source().log()) {
            Some(log) => Ok(log.commit(Some(node.id()))?),
            None => self.sync(),
        }
    }

    /// Puts everything that was changed before the call on stable storage.
    ///
    /// # Errors
    /// If the pool is suspended before that.
    pub fn commit_log(&self) -> Result<(), FileError> {
        match self.writing().ok().and_then(|w| w.source().log()) {
            Some(log) => Ok(log.commit(None)?),
            None => self.sync(),
        }
    }

    /// Drops cached nodes that are not in use, and frees those whose last name is removed.
    ///
    /// # Errors
    /// As [`FileSystem::free_unlinked`].
    pub fn close_unused(&self) -> Result<(), FileError> {
        self.writing()?.cache().clear();
        self.reap()
    }
}
