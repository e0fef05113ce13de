//! Finds pools that are not open.

use super::ImportedPools;
use crate::info::importable;
use millpond_control::{ImportError, ImportablePool, SearchPaths};
use millpond_engine::{Error, OpenOptions, Search, View};
use millpond_pool::import::{ImportCondition, PoolCandidate, VdevState, leaf_paths};
use std::path::{Path, PathBuf};

/// The search in these paths.
///
/// # Errors
/// [`ImportError::CacheFile`].
pub(crate) fn search_of(within: &SearchPaths, hostid: u64) -> Result<Search, ImportError> {
    let mut search = match &within.cache_file {
        Some(file) => Search::in_cache_file(Path::new(file)).map_err(|error| {
            ImportError::CacheFile(match error {
                Error::CacheFile { reason, .. } => format!("failed to open cache file: {reason}"),
                other => other.to_string(),
            })
        })?,
        None => Search::default(),
    };
    search.paths.extend(within.paths.iter().map(PathBuf::from));
    search.hostid = hostid;
    Ok(search)
}

impl ImportedPools {
    /// The pools found by `search` that are not imported. A label describes only its own top-level vdev. If
    /// others are missing, this opens the pool to learn their paths, adds these to `search`, and searches
    /// again.
    ///
    /// Devices that a cache file names and that are elsewhere by now are looked for in the same folders, but only if
    /// someone asked: a daemon that starts might take a copy of a missing device.
    pub(super) fn candidates(&self, search: &mut Search, is_asked: bool) -> Vec<PoolCandidate> {
        let mut found = self.closed_pools(search);
        if is_asked && search.configs.is_some() && found.iter().any(lacks_devices) {
            drop(found);
            search.widen_to_folders();
            found = self.closed_pools(search);
        }
        let mut more: Vec<PathBuf> = vec![];
        for candidate in &found {
            if !candidate.conditions.iter().any(is_top_missing) {
                continue;
            }
            let options = OpenOptions {
                allow_missing_tops: true,
                ..self.reading()
            };
            if let Ok(pool) = View::open_candidate(candidate, &options) {
                let named = leaf_paths(pool.inner().config());
                let named = named.into_iter().map(|(_, path)| path);
                more.extend(named.filter(|path| path.exists() && !candidate.found().is_met(path)));
            }
        }
        if more.is_empty() {
            return found;
        }
        if search.paths.is_empty() && search.configs.is_none() {
            search.paths = millpond_device::default_search_paths();
        }
        search.paths.extend(more);
        drop(found);
        self.closed_pools(search)
    }

    /// The pools found by `search` that are not imported.
    fn closed_pools(&self, search: &Search) -> Vec<PoolCandidate> {
        let mut found = search.pools();
        found.retain(|candidate| !super::Around::is_open(self, candidate.guid));
        found
    }

    /// Answers [`millpond_control::Request::Importable`].
    ///
    /// # Errors
    /// [`ImportError::CacheFile`].
    pub fn importable_from(
        &self,
        within: &SearchPaths,
    ) -> Result<Vec<ImportablePool>, ImportError> {
        let host = self.host();
        let found = self.candidates(&mut search_of(within, host.number)?, true);
        let mut pools = importable(&self.env, &found, host);
        // Devices are scanned in parallel, so their order is not deterministic.
        pools.sort_by(|a, b| a.info.name.cmp(&b.info.name));
        Ok(pools)
    }
}

/// Whether a top-level vdev has no usable devices, or was removed.
fn is_top_missing(condition: &ImportCondition) -> bool {
    matches!(
        condition,
        ImportCondition::UnknownTop { .. } | ImportCondition::MissingLog { .. }
    )
}

/// Whether not all devices of the pool were found.
fn lacks_devices(candidate: &PoolCandidate) -> bool {
    let is_lacking = |condition: &ImportCondition| match condition {
        ImportCondition::Device { state, .. } => *state == VdevState::CannotOpen,
        condition => is_top_missing(condition),
    };
    candidate.conditions.iter().any(is_lacking)
}
