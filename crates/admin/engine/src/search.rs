//! The search for pools.

use crate::Error;
use millpond_device::{DeviceError, open_regular};
use millpond_nvlist::NvList;
use millpond_pool::import::{
    Found, PoolCandidate, ScanOptions, cached_pools, find_pools, leaf_paths, pool_from_config, scan,
};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The largest cache file that is read, in bytes. This is enough for thousands of pools.
const CACHE_FILE_BYTES_MAX: u64 = 64 << 20;

/// Reads a cache file, which must be a regular file.
///
/// # Errors
/// If the file cannot be read, is not a regular file, or is larger than 64 MiB.
pub fn read_cache_file(path: &Path) -> Result<Vec<u8>, Error> {
    let fail = |reason: String| Error::CacheFile {
        path: path.to_owned(),
        reason,
    };
    let failed = |error: std::io::Error| fail(error.to_string());
    let file = open_regular(path).map_err(failed)?;
    let file = file.ok_or_else(|| Error::CacheFileKind {
        path: path.to_owned(),
    })?;
    let mut bytes = vec![];
    file.take(CACHE_FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    match bytes.len() as u64 > CACHE_FILE_BYTES_MAX {
        true => Err(fail("it is larger than 64 MiB".into())),
        false => Ok(bytes),
    }
}

/// Where to look for pools, as with `zpool import -d`.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// Files, devices, and directories that contain them. If empty, the search uses the system's device
    /// directories.
    pub paths: Vec<PathBuf>,
    /// This system's host id, 0 if it has none. Used only to decide whether another system used a pool last.
    pub hostid: u64,
    /// Pool configurations from a cache file. If there are any, or none in an empty file, the search finds only these pools.
    pub configs: Option<Vec<NvList>>,
}

impl Search {
    /// A search for the pools in a cache file (`zpool.cache`), at the device paths in the file. The caller
    /// may add more to `paths`. An empty file lists no pools: so it is left when the last pool is exported.
    ///
    /// # Errors
    /// As [`read_cache_file`], or if it is not a cache file.
    pub fn in_cache_file(path: &Path) -> Result<Self, Error> {
        let bytes = read_cache_file(path)?;
        let pools = match bytes.is_empty() {
            true => vec![],
            false => cached_pools(&bytes).map_err(|error| Error::CacheFile {
                path: path.to_owned(),
                reason: error.to_string(),
            })?,
        };
        let configs = pools.into_iter().map(|(_, config)| config);
        Ok(Self {
            configs: Some(configs.collect()),
            ..Self::default()
        })
    }

    /// Adds the folders of the devices that the cache file names: a device may have another name there by now.
    pub fn widen_to_folders(&mut self) {
        let named = self.configs.iter().flatten().flat_map(leaf_paths);
        let folders = named.filter_map(|(_, path)| path.parent().map(Path::to_owned));
        let folders: BTreeSet<PathBuf> = folders.filter(|folder| folder.is_absolute()).collect();
        self.paths.extend(folders);
    }

    /// A search in these files, devices and directories.
    pub fn new(paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            paths: paths.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }

    /// Reads the labels of all devices that the search finds.
    #[must_use]
    pub fn scan(&self) -> Found {
        self.scan_with(ScanOptions::default())
    }

    fn scan_with(&self, options: ScanOptions) -> Found {
        if let Some(configs) = &self.configs {
            let named = configs.iter().flat_map(leaf_paths).map(|(_, path)| path);
            let paths: Vec<PathBuf> = named.chain(self.paths.iter().cloned()).collect();
            return scan(&paths, options);
        }
        if self.paths.is_empty() {
            let paths = millpond_device::default_search_paths();
            return scan(&paths, options);
        }
        scan(&self.paths, options)
    }

    /// The pools found by the search, including destroyed ones.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolCandidate> {
        self.pools_with(ScanOptions::default())
    }

    /// The system's error message for the first device that cannot be opened for writing because it, or its
    /// file system, is read-only.
    #[must_use]
    pub fn read_only_device(&self) -> Option<String> {
        use rustix::io::Errno;
        let found = self.scan_with(crate::SCAN_FOR_WRITING);
        found.failures.iter().find_map(|(path, error)| {
            let DeviceError::Open { errno, message, .. } = error else {
                return None;
            };
            let is_read_only = [Errno::ROFS, Errno::ACCESS, Errno::PERM]
                .iter()
                .any(|one| one.raw_os_error() == *errno);
            is_read_only.then(|| format!("{} cannot be written: {message}", path.display()))
        })
    }

    /// Like [`Search::pools`], but opens devices as `options` says. If it opens them for writing, the devices
    /// of all pools found stay locked while the result lives.
    #[must_use]
    pub fn pools_with(&self, options: ScanOptions) -> Vec<PoolCandidate> {
        let found = self.scan_with(options);
        let Some(configs) = &self.configs else {
            return find_pools(&found, self.hostid);
        };
        configs
            .iter()
            .filter_map(|config| pool_from_config(config, &found, self.hostid).ok())
            .collect()
    }
}
