//! Raises the version of a file system.

use crate::FileSystem;
use crate::attributes::zap;
use crate::error::FileError;
use crate::file_system::{MASTER_NODE, VERSION};
use crate::writing::{ENTRY_BYTES, NODE_BYTES};
use millpond_ondisk::dsl::keys::master_node as key;
use millpond_txg::Estimate;

impl FileSystem {
    /// Checks that the version can be raised to `to`.
    ///
    /// # Errors
    /// [`FileError::Invalid`] for a version that does not exist or is below the current one.
    pub fn check_new_version(&self, to: u64) -> Result<(), FileError> {
        if to > VERSION {
            return Err(FileError::invalid("no file system is of this version"));
        }
        if to < self.version() {
            return Err(FileError::invalid("versions are not lowered"));
        }
        Ok(())
    }

    /// Raises the version. Returns the previous one.
    ///
    /// From version 5 on the file system can be changed. A file keeps its old format until it changes. The
    /// file system may be in use during this call. The property `readonly` does not prevent it, because no
    /// file changes.
    ///
    /// # Errors
    /// [`FileError::Invalid`] for a version that does not exist or is below the current one; if the master
    /// node cannot be changed, or no transaction can begin.
    pub fn raise_version(&self, to: u64) -> Result<u64, FileError> {
        let writing = self.writing()?;
        let _master = writing.lock_master();
        let from = self.version();
        self.check_new_version(to)?;
        if to == from {
            return Ok(from);
        }
        let tx = writing.source().begin(Estimate {
            bytes: 2 * NODE_BYTES + 2 * ENTRY_BYTES,
            ..Estimate::default()
        })?;
        self.record_nothing(&tx, None);
        let master = writing.set().object(MASTER_NODE)?;
        let master = zap(&master, &tx);
        let attributes = key::SYSTEM_ATTRIBUTES.as_bytes();
        if to == VERSION && master.lookup_u64(attributes)?.is_none_or(|id| id == 0) {
            let made = writing.tables().make(&tx, writing.env())?;
            master.update_u64(attributes, made.0)?;
        }
        master.update_u64(key::VERSION.as_bytes(), to)?;
        self.set_version(to);
        Ok(from)
    }
}
