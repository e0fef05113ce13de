//! Raises the version of a file system.

use crate::FileSystem;
use crate::attributes::zap;
use crate::error::FileError;
use crate::file_system::{MASTER_NODE, VERSION};
use crate::writing::{ENTRY_BYTES, NODE_BYTES};
use millpond_env::rank;
use millpond_env::sync::RwLock;
use millpond_ondisk::Txg;
use millpond_ondisk::dsl::keys::master_node as key;
use millpond_txg::{Estimate, Transaction};

/// The first version whose directory entries have the types of files.
pub(crate) const ENTRY_TYPES: u64 = 2;
/// The first version with identities of foreign domains, further flags of files, and rules for names.
pub(crate) const FUIDS: u64 = 3;
/// The first version with quotas of owners.
pub(crate) const OWNER_QUOTAS: u64 = 4;

/// The version of a file system, which only grows.
///
/// A txg older than the one in which the version was raised may commit without it, so what it writes has the form of
/// the version before.
#[derive(Debug)]
pub(crate) struct Versions(RwLock<VersionHistory, rank::Leaf>);

#[derive(Debug)]
struct VersionHistory {
    current: u64,
    /// The txgs in which the version was raised, and the versions before, in their order.
    raised: Vec<(Txg, u64)>,
}

impl Versions {
    pub(crate) fn new(current: u64) -> Self {
        let raised = vec![];
        Self(RwLock::new(VersionHistory { current, raised }))
    }
    pub(crate) fn current(&self) -> u64 {
        self.0.read().current
    }
    fn at(&self, txg: Txg) -> u64 {
        let history = self.0.read();
        let later = history.raised.iter().find(|(raised, _)| txg < *raised);
        later.map_or(history.current, |(_, before)| *before)
    }
    fn raise(&self, txg: Txg, to: u64) {
        let mut history = self.0.write();
        let before = std::mem::replace(&mut history.current, to);
        history.raised.push((txg, before));
    }
}

impl FileSystem {
    /// The version in which a transaction writes.
    pub(crate) fn version_in(&self, tx: &Transaction) -> u64 {
        self.versions().at(tx.txg())
    }
    /// Checks that the file system has this version or a later one.
    pub(crate) fn check_version(&self, needed: u64) -> Result<(), FileError> {
        let version = self.version();
        if version < needed {
            return Err(FileError::OldVersion { version, needed });
        }
        Ok(())
    }
    /// Whether files can have projects: the pool accounts for them, and the version has a place for them.
    pub(crate) fn has_projects(&self) -> bool {
        self.settings().has_projects && self.version() >= VERSION
    }

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
    /// A file keeps its old format until it changes. The file system may be in use during this call. The property `readonly` does not prevent it, because no
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
        self.versions().raise(tx.txg(), to);
        Ok(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_txg_before_the_raise_keeps_its_version() {
        let versions = Versions::new(1);
        versions.raise(Txg(20), 4);
        versions.raise(Txg(20), 5);
        assert_eq!([19, 20, 21].map(|txg| versions.at(Txg(txg))), [1, 5, 5]);
        let versions = Versions::new(2);
        versions.raise(Txg(20), 3);
        versions.raise(Txg(30), 5);
        let at = [19, 20, 29, 30].map(|txg| versions.at(Txg(txg)));
        assert_eq!((at, versions.current()), ([2, 3, 3, 5], 5));
    }
}
