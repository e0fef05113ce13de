//! Answers requests about the pools that a search finds. Opens them for reading, imports nothing and writes
//! nothing.

use crate::host::HostId;
use crate::info::{self, dataset, importable, opened, pool_of, records, tree, vdev_properties};
use millpond_control::{
    ControlError, DatasetInfo, DatasetPermissions, DatasetQuery, HistoryRecord, ImportablePool,
    PoolInfo, Property,
};
use millpond_engine::{OpenOptions, OwnerKind, OwnerSpace, PoolCandidate, PoolState, Search, View};
use millpond_env::sync::{Arc, Mutex};
use millpond_env::{Env, rank};
use std::collections::HashMap;

/// The pools that a search finds.
///
/// Every pool that can be opened and is not destroyed counts as open. Each is opened at the first request
/// that concerns it. If several pools have the same name, only the first is reachable.
pub struct LocalPools {
    search: Search,
    candidates: Mutex<Option<Arc<Vec<PoolCandidate>>>, rank::Leaf>,
    hostid: u64,
    opened: Mutex<HashMap<String, Opened>, rank::OpenedPools>,
}

/// An open pool, or the reason why it cannot be opened.
type Opened = Result<View, String>;

impl LocalPools {
    /// Uses the pools of a search. Labels are read at the first request.
    #[must_use]
    pub fn search(search: &Search) -> LocalPools {
        LocalPools {
            search: search.clone(),
            candidates: Mutex::new(None),
            hostid: search.hostid,
            opened: Mutex::new(HashMap::new()),
        }
    }

    /// This system's host id, 0 if it has none.
    pub(super) fn hostid(&self) -> u64 {
        self.hostid
    }

    /// Closes all pools and releases their locks. The next request searches again.
    pub fn forget(&self) {
        self.opened.lock().clear();
        *self.candidates.lock() = None;
    }

    fn candidates(&self) -> Arc<Vec<PoolCandidate>> {
        if let Some(known) = &*self.candidates.lock() {
            return Arc::clone(known);
        }
        // Done without the lock, because it reads devices.
        let found = Arc::new(self.search.pools());
        *self.candidates.lock() = Some(Arc::clone(&found));
        found
    }

    fn candidate(&self, name: &str) -> Result<PoolCandidate, ControlError> {
        self.candidates()
            .iter()
            .find(|pool| pool.name == name && pool.state != PoolState::Destroyed)
            .cloned()
            .ok_or(ControlError::NoSuchPool)
    }

    fn open(&self, name: &str) -> Result<Opened, ControlError> {
        let candidate = self.candidate(name)?;
        if let Some(opened) = self.opened.lock().get(name) {
            return Ok(opened.clone());
        }
        // Done without the lock, because opening reads devices. Two concurrent callers may both open the
        // pool; one copy is kept.
        let opened = View::open_candidate(&candidate, &OpenOptions::default())
            .map_err(|error| error.to_string());
        Ok(self
            .opened
            .lock()
            .entry(name.to_owned())
            .or_insert(opened)
            .clone())
    }

    pub(crate) fn view(&self, name: &str) -> Result<View, ControlError> {
        self.open(name)?.map_err(ControlError::Io)
    }
}

impl LocalPools {
    /// Names of the pools, in byte order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .candidates()
            .iter()
            .filter(|pool| pool.state != PoolState::Destroyed)
            .map(|pool| pool.name.clone())
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// Answers [`millpond_control::Request::Pool`].
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn pool(&self, name: &str) -> Result<PoolInfo, ControlError> {
        let candidate = self.candidate(name)?;
        match self.open(name)? {
            Ok(pool) => opened(&pool, &|vdev| {
                tree::locate(vdev, &|guid| tree::located(candidate.found(), guid));
            }),
            Err(_) => Ok(info::found(&candidate, self.hostid)),
        }
    }

    /// Answers [`millpond_control::Request::VdevProperties`].
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn vdev_properties(
        &self,
        pool: &str,
        vdev_guid: u64,
    ) -> Result<Vec<Property>, ControlError> {
        let info = self.pool(pool)?;
        let found = match self.open(pool)? {
            Ok(pool) => vdev_properties::properties(pool.inner(), &info, vdev_guid),
            Err(_) => vdev_properties::statistics(&info, vdev_guid),
        };
        found.ok_or(ControlError::NoSuchVdev)
    }

    /// Answers [`millpond_control::Request::Datasets`].
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn datasets(
        &self,
        query: &DatasetQuery,
        each: &mut dyn FnMut(DatasetInfo) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        dataset::walk(&self.view(pool_of(&query.root))?, query, each)
    }

    /// Answers [`millpond_control::Request::History`].
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn history(
        &self,
        pool: &str,
        each: &mut dyn FnMut(HistoryRecord) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        records(&self.view(pool)?, each)
    }

    /// Answers [`millpond_control::Request::Holds`].
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn holds(&self, snapshot: &str) -> Result<Vec<(String, u64)>, ControlError> {
        info::holds(&self.view(pool_of(snapshot))?, snapshot)
    }

    /// Answers [`millpond_control::Request::Permissions`].
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn permissions(&self, dataset: &str) -> Result<Vec<DatasetPermissions>, ControlError> {
        info::permissions(&self.view(pool_of(dataset))?, dataset)
    }

    /// Answers [`millpond_control::Request::SpaceByOwner`].
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn space_by_owner(
        &self,
        dataset: &str,
        owners: OwnerKind,
    ) -> Result<Vec<OwnerSpace>, ControlError> {
        info::space_by_owner(&self.view(pool_of(dataset))?, dataset, owners)
    }

    /// All pools of the search, in the order of discovery, as pools that can be imported.
    #[must_use]
    pub fn importable(&self) -> Vec<ImportablePool> {
        let host = HostId::of_system(self.hostid);
        importable(&Env::real(), &self.candidates(), host)
    }
}
