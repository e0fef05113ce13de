//! Looking for pools.

use millpond_pool::import::{Found, PoolCandidate, ScanOptions, find_pools, scan};
use std::path::PathBuf;

/// Where to look for pools, as with `zpool import -d`.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// Files, devices and directories of them. Empty: the directories of devices that the system
    /// keeps.
    pub paths: Vec<PathBuf>,
    /// This system's host id, 0 if it has none; only for telling whether a pool was last used
    /// elsewhere.
    pub hostid: u64,
}

impl Search {
    /// A search in these files, devices and directories.
    pub fn new(paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            paths: paths.into_iter().map(Into::into).collect(),
            hostid: 0,
        }
    }

    /// Reads the labels of everything found there.
    #[must_use]
    pub fn scan(&self) -> Found {
        if self.paths.is_empty() {
            let paths = millpond_device::default_search_paths();
            return scan(&paths, ScanOptions::default());
        }
        scan(&self.paths, ScanOptions::default())
    }

    /// The pools found there, destroyed ones included.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolCandidate> {
        find_pools(&self.scan(), self.hostid)
    }
}
