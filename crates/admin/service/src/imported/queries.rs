//! Answers queries from the last committed state.

use super::*;
use millpond_control::{ChangeProgress, DatasetPermissions};

impl ImportedPools {
    /// Names of the pools, in byte order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.pools.read().keys().cloned().collect()
    }

    /// Answers [`millpond_control::Request::Pool`].
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn pool(&self, name: &str) -> Result<PoolInfo, ControlError> {
        let mut info = self.find(name)?.info()?;
        let hostid = self.host().number;
        info.system_hostid = hostid;
        info.config_hostid = hostid;
        self.mark_spares_elsewhere(name, &mut info);
        Ok(info)
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
        self.find(pool)?.read_again(|view| {
            let found = vdev_properties::properties(view.inner(), &info, vdev_guid);
            found.ok_or(ControlError::NoSuchVdev)
        })
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
        let imported_pool = self.find(pool_of(&query.root))?;
        let altroot = imported_pool.altroot.clone();
        imported_pool.read(|view| {
            dataset::walk(view, query, &mut |mut info| {
                match (&altroot, &self.home) {
                    (Some(root), _) => below(root, &mut info, &|_| true),
                    (None, Some(home)) => {
                        below(home, &mut info, &|source| *source == Source::Default);
                    }
                    (None, None) => {}
                }
                each(info)
            })
        })
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
        self.find(pool)?.read(|view| info::records(view, each))
    }

    /// Answers [`millpond_control::Request::Holds`].
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn holds(&self, snapshot: &str) -> Result<Vec<(String, u64)>, ControlError> {
        let pool = self.find(pool_of(snapshot))?;
        pool.read_again(|view| info::holds(view, snapshot))
    }

    /// Answers [`millpond_control::Request::Permissions`].
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn permissions(&self, dataset: &str) -> Result<Vec<DatasetPermissions>, ControlError> {
        let pool = self.find(pool_of(dataset))?;
        pool.read_again(|view| info::permissions(view, dataset))
    }

    /// Answers [`millpond_control::Request::SpaceByOwner`].
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn space_by_owner(
        &self,
        dataset: &str,
        owners: millpond_engine::OwnerKind,
    ) -> Result<Vec<millpond_engine::OwnerSpace>, ControlError> {
        let pool = self.find(pool_of(dataset))?;
        pool.read_again(|view| info::space_by_owner(view, dataset, owners))
    }

    /// Answers [`millpond_control::Request::ChangeProgress`].
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn change_progress(&self, pool: &str) -> Result<Vec<ChangeProgress>, ControlError> {
        let pool = self.find(pool)?;
        let destroyed = pool
            .live()
            .and_then(|live| live.datasets().destroy_progress());
        let destroyed = destroyed.map(|(done, total)| ChangeProgress {
            action: "Destroying datasets".into(),
            done: u64::try_from(done).unwrap_or(u64::MAX),
            total: u64::try_from(total).unwrap_or(u64::MAX),
        });
        Ok(destroyed.into_iter().collect())
    }

    /// Answers [`millpond_control::Request::DeleteQueue`].
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn delete_queue(&self, dataset: &str) -> Result<u64, ControlError> {
        let pool = self.find(pool_of(dataset))?;
        match pool.live() {
            Some(live) => live.delete_queue(dataset).map_err(info::missing),
            None => Ok(0),
        }
    }
}

/// Prepends a directory to the dataset's mount point, if it comes from a wanted source.
fn below(directory: &str, info: &mut DatasetInfo, is_wanted: &dyn Fn(&Source) -> bool) {
    let mountpoint = info.properties.iter_mut().find(|p| p.name == "mountpoint");
    if let Some(Property {
        value: Some(Value::Text(path)),
        source,
        ..
    }) = mountpoint
        && path.starts_with('/')
        && is_wanted(source)
    {
        let root = directory.trim_end_matches('/');
        *path = match path.as_str() {
            "/" if root.is_empty() => "/".to_owned(),
            "/" => root.to_owned(),
            path => format!("{root}{path}"),
        };
    }
}
