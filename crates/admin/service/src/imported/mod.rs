//! Pools that stay open from one command to the next.
//!
//! [`ImportedPools`] answers requests from the last committed state of each pool, and makes
//! changes on the open pools. It mounts nothing and stores no state of its own on disk; the process that uses
//! it does both. Statistics may lag by a txg. Page `docs/daemon.md`.

mod automatic;
mod auxiliary;
mod import;
mod keep;
mod last_use;
mod names;
mod pool;
mod progress;
mod queries;
mod search;
mod stopped;
mod suspended;

use crate::change::apply;
use crate::change::change_error;
use crate::change::checks::{self, Around};
use crate::change::create::{features_of, plan, set_root_quotas};
use crate::host::HostId;
use crate::info::{self, activity, dataset, io, pool_of, tree, vdev_properties};
pub use automatic::{AutoReplace, AutoReplaced};
use auxiliary::AuxiliaryDevices;
use millpond_control::{
    ChangeError, ChangeFailure, Changed, ControlError, DatasetInfo, DatasetQuery, EngineInfo,
    HistoryRecord, NewDevices, NewPoolRequest, PoolChange, PoolInfo, Property, Source, Value,
    VdevAux, VdevState,
};
use millpond_engine::{Creator, Error, Pool, RequestDeadline, View, WriteOptions};
use millpond_env::Env;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, Ordering};
use millpond_env::sync::{Arc, Mutex, RwLock};
use millpond_ondisk::Guid;
use millpond_pool::HistoryCommand;
use millpond_vdev::{AllocationClass, VdevConfig};
pub use pool::{CacheFile, ImportedPool, Open, PoolRelease, PoolSuspension};
use progress::Importing;
pub use progress::OneImport;
pub(crate) use search::search_of;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use stopped::StoppedPrograms;

/// All pools that this process has imported.
pub struct ImportedPools {
    env: Env,
    hostid: u64,
    /// Looks up the host id that an administrator has set, 0 if there is none; `None`: it is `hostid`.
    set_hostid: Option<fn() -> u64>,
    hostname: Option<String>,
    system: Option<String>,
    owner: (u32, u32),
    home: Option<String>,
    deadline: RequestDeadline,
    pools: RwLock<BTreeMap<String, Arc<ImportedPool>>, rank::Leaf>,
    auxiliaries: Mutex<AuxiliaryDevices, rank::AuxiliaryDevices>,
    /// Serializes creation, import, export and destruction of pools.
    changing: Mutex<(), rank::ImportChange>,
    /// Whether all pools were released, so that none is imported any more.
    is_over: AtomicBool,
    /// The imports that have not ended.
    importing: Arc<Importing>,
}

impl ImportedPools {
    /// Creates an empty set. `hostid` (0 for none) and `hostname` are this system's.
    #[must_use]
    pub fn new(env: &Env, hostid: u64, hostname: Option<String>) -> Self {
        Self {
            env: env.clone(),
            hostid,
            set_hostid: None,
            hostname,
            system: None,
            owner: (0, 0),
            home: None,
            deadline: RequestDeadline::default(),
            pools: RwLock::new(BTreeMap::new()),
            auxiliaries: Mutex::default(),
            changing: Mutex::new(()),
            is_over: AtomicBool::new(false),
            importing: Arc::default(),
        }
    }

    /// Sets the system identification for history records: node, release, version, machine. Opening and
    /// importing a pool are then recorded in its history.
    #[must_use]
    pub fn with_system(mut self, system: String) -> Self {
        self.system = Some(system);
        self
    }

    /// Sets how the host id that an administrator has set is looked up. It is asked each time that a host id is needed; if it
    /// is 0, the one given to [`ImportedPools::new`] counts, and `multihost` is refused.
    #[must_use]
    pub fn with_set_hostid(mut self, look_up: fn() -> u64) -> Self {
        self.set_hostid = Some(look_up);
        self
    }

    fn host(&self) -> HostId {
        match self.set_hostid.map(|look_up| look_up()) {
            None => HostId::of_system(self.hostid),
            Some(0) => HostId {
                number: self.hostid,
                is_set: false,
            },
            Some(number) => HostId::of_system(number),
        }
    }

    /// Sets the owner and group of the root directories of new file systems. The default is root.
    #[must_use]
    pub fn with_owner(mut self, user: u32, group: u32) -> Self {
        self.owner = (user, group);
        self
    }

    /// Sets the directory below which file systems are mounted whose mount point is the default, for a user who may not
    /// write to the root directory.
    #[must_use]
    pub fn with_home(mut self, home: Option<String>) -> Self {
        self.home = home;
        self
    }

    /// Sets the deadline of device requests, after which a pool continues without the device.
    #[must_use]
    pub fn with_deadline(mut self, deadline: RequestDeadline) -> Self {
        self.deadline = deadline;
        self
    }

    /// The imported pool with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<ImportedPool>> {
        self.pools.read().get(name).map(Arc::clone)
    }

    /// Whether the pool with this guid is imported.
    #[must_use]
    pub fn is_imported(&self, guid: u64) -> bool {
        self.is_open(Guid(guid))
    }

    /// All imported pools, by name.
    #[must_use]
    pub fn all(&self) -> Vec<(String, Arc<ImportedPool>)> {
        let pools = self.pools.read();
        let pairs = pools.iter();
        pairs.map(|(n, p)| (n.clone(), Arc::clone(p))).collect()
    }

    fn writing(&self) -> WriteOptions {
        let host = self.host();
        WriteOptions {
            hostid: host.number,
            is_hostid_set: host.is_set,
            hostname: self.hostname.clone(),
            system: self.system.clone(),
            can_be_resumed: true,
            owner: self.owner,
            deadline: self.deadline,
            ..WriteOptions::default()
        }
    }

    fn now_s(&self) -> u64 {
        self.env.clock.wall_ns() / 1_000_000_000
    }

    fn add_imported(&self, name: &str, pool: ImportedPool) -> Arc<ImportedPool> {
        let pool = Arc::new(pool);
        pool.remember();
        self.pools
            .write()
            .insert(name.to_owned(), Arc::clone(&pool));
        self.hold_auxiliaries(name);
        pool
    }

    fn find(&self, name: &str) -> Result<Arc<ImportedPool>, ControlError> {
        self.get(name).ok_or(ControlError::NoSuchPool)
    }

    /// Creates a pool and keeps it open.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub fn create(
        &self,
        request: &NewPoolRequest,
        command: &HistoryCommand,
    ) -> Result<(), ChangeError> {
        let _changing = self.changing.lock();
        let temporary = request.temporary_name.as_deref();
        let name = temporary.unwrap_or(&request.name);
        for name in [name, &request.name] {
            millpond_pool::check_pool_name(name)
                .map_err(|reason| ChangeError::PoolName(reason.into()))?;
        }
        let features = features_of(request, self.host())?;
        if request.only_check {
            return checks::check_all(self, &request.devices, None);
        }
        checks::check(self, &request.devices, None)?;
        if self.get(name).is_some() {
            return Err(ChangeError::PoolExists);
        }
        let given = |wanted: &str| {
            let mut pairs = request.properties.iter();
            pairs
                .find(|(name, _)| name == wanted)
                .map(|(_, v)| v.clone())
        };
        let altroot = given("altroot");
        let is_visitor = altroot.is_some() || temporary.is_some();
        let cache_file = cache_file(given("cachefile").as_deref(), is_visitor);
        let writing = WriteOptions {
            stored_name: temporary.map(|_| request.name.clone()),
            ..self.writing()
        };
        let mut request = request.clone();
        let shared = checks::take_shared_spares(&mut request.devices);
        let live = plan(&request, features, writing)?
            .env(self.env.clone())
            .create()
            .map_err(change_error)?;
        for spare in &shared {
            live.inner().share_spare(spare)?;
        }
        live.datasets().enforce_limits(false);
        set_root_quotas(&live, &request)?;
        start_scanner(&live)?;
        live.inner().record_command(command)?;
        let imported_pool = ImportedPool {
            open: Open::Live(live),
            located: None,
            altroot,
            cache_file: Mutex::new(cache_file),
            imported_since_s: self.now_s(),
            last: Mutex::new(None),
            stopped_programs: StoppedPrograms::default(),
        };
        self.add_imported(name, imported_pool);
        Ok(())
    }

    /// Checks whether devices could be added.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub fn check_add(&self, pool: &str, devices: &NewDevices) -> Result<(), ChangeError> {
        checks::check_all(self, devices, Some(pool))
    }

    /// Wipes the labels of a device.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub fn clear_labels(&self, path: &str, force: bool) -> Result<(), ChangeError> {
        checks::check_clearing(self, path, force)?;
        checks::clear(path)
    }

    /// A pool that is open for writing.
    ///
    /// # Errors
    /// [`ChangeError::NoSuchPool`], [`ChangeError::ReadOnlyPool`].
    pub fn writable(&self, name: &str) -> Result<Pool, ChangeError> {
        let pool = self.get(name).ok_or(ChangeError::NoSuchPool)?;
        match pool.opened() {
            Open::Live(live) => Ok(live.clone()),
            Open::ReadOnly(_, why) => Err(ChangeError::ReadOnlyPool(why.clone())),
        }
    }

    /// Makes one change, except destroying or exporting a pool.
    ///
    /// # Errors
    /// [`ChangeFailure`].
    pub fn apply(
        &self,
        pool: &str,
        change: &PoolChange,
        changed: &mut Changed,
    ) -> Result<(), ChangeError> {
        self.apply_by(pool, change, changed, None)
    }

    fn apply_by(
        &self,
        pool: &str,
        change: &PoolChange,
        changed: &mut Changed,
        user: Option<&Creator>,
    ) -> Result<(), ChangeError> {
        if let PoolChange::Set { name, value } = change
            && name == "cachefile"
        {
            let imported_pool = self.get(pool).ok_or(ChangeError::NoSuchPool)?;
            *imported_pool.cache_file.lock() = CacheFile::parse(value);
            return Ok(());
        }
        if *change == PoolChange::Abandon
            && self
                .get(pool)
                .is_some_and(|imported_pool| imported_pool.live().is_none())
        {
            // A read-only pool has no changes waiting to be written.
            return Ok(());
        }
        if let Open::Live(live) = self.get(pool).ok_or(ChangeError::NoSuchPool)?.opened()
            && live.inner().is_frozen()
            && !matches!(
                change,
                PoolChange::Dataset(_)
                    | PoolChange::Sync { .. }
                    | PoolChange::Freeze
                    | PoolChange::Abandon
                    | PoolChange::KeepCacheFile
            )
        {
            let why = "it is frozen: only files and datasets change, until it is exported and imported again";
            return Err(ChangeError::Failed(why.into()));
        }
        if let PoolChange::Set { name, value } = change {
            let host = self.host();
            host.refuse_multihost(name, value)?;
            if name == "multihost" {
                // Other systems compare it with theirs. It may have been set since the import.
                self.writable(pool)?.inner().set_hostid(host.number)?;
            }
        }
        if let PoolChange::Add(devices) = change {
            checks::check(self, devices, Some(pool))?;
        }
        if let PoolChange::Attach(side) = change {
            checks::check_use(self, &side.devices(), Some(pool))?;
        }
        if let PoolChange::Clear { leaves } = change {
            // The pool continues without those that do not open, or stays suspended.
            apply::reopen_lost(&self.writable(pool)?, leaves.as_deref())?;
        }
        let listed = match change {
            PoolChange::Detach { .. } => self.spares_of(pool),
            _ => BTreeSet::new(),
        };
        let is_shared = |spare: Guid| self.is_listed(spare);
        apply::apply(&self.writable(pool)?, change, changed, &is_shared, user)?;
        if matches!(change, PoolChange::Detach { .. }) {
            let now = self.spares_of(pool);
            self.unlist_spares(listed.difference(&now));
        }
        if let PoolChange::RemoveAuxiliary { guid } = change {
            self.clear_auxiliary(*guid);
        }
        if matches!(
            change,
            PoolChange::Add(_) | PoolChange::RemoveAuxiliary { .. } | PoolChange::Detach { .. }
        ) {
            self.hold_auxiliaries(pool);
        }
        Ok(())
    }

    /// Exports or destroys a pool: marks its labels and closes its devices. Users of its file systems must
    /// have stopped.
    ///
    /// # Errors
    /// If the labels cannot be written; the pool then stays imported. [`ChangeError::Suspended`] if the pool
    /// is suspended and can be resumed. A pool that is suspended for good is closed without writing.
    /// [`ChangeError::Busy`] while a snapshot is being sent.
    pub fn leave(
        &self,
        name: &str,
        destroy: bool,
        command: Option<&HistoryCommand>,
    ) -> Result<(), ChangeError> {
        let _changing = self.changing.lock();
        let imported_pool = self.get(name).ok_or(ChangeError::NoSuchPool)?;
        if let Some(live) = imported_pool.live() {
            let engine = live.inner();
            imported_pool.refuse_if_waiting()?;
            let datasets = live.datasets();
            if datasets.has_snapshots_in_use() || datasets.is_receiving() {
                return Err(ChangeError::Busy);
            }
            if engine.suspension().is_none() {
                if let Some(command) = command {
                    engine.record_command(command)?;
                }
                match destroy {
                    true => engine.destroy()?,
                    false => engine.export()?,
                }
            }
        } else if destroy {
            return Err(ChangeError::ReadOnlyPool(None));
        }
        self.pools.write().remove(name);
        self.auxiliaries.lock().release_all(name);
        Ok(())
    }

    /// Syncs and closes all pools. Their labels still mark them as in use. None is imported any more.
    pub fn release_all(&self) -> Vec<(String, Error)> {
        let _changing = self.changing.lock();
        self.is_over.store(true, Ordering::Release);
        let pools = std::mem::take(&mut *self.pools.write());
        *self.auxiliaries.lock() = AuxiliaryDevices::default();
        let mut failures = vec![];
        for (name, pool) in pools {
            if let Some(live) = pool.live()
                && let Err(error) = live.sync()
            {
                failures.push((name, error));
            }
        }
        failures
    }

    /// Makes changes of one pool in order, as [`millpond_control::Request::Change`] says. `around` runs before and after
    /// each change, and can refuse it or add notes. `user` is the one who makes them, if not the superuser.
    ///
    /// # Errors
    /// [`ChangeFailure`].
    pub fn change(
        &self,
        pool: &str,
        changes: &[PoolChange],
        (command, user): (&HistoryCommand, Option<&Creator>),
        around: &mut dyn FnMut(Step<'_>, &mut Changed) -> Result<(), ChangeError>,
    ) -> Result<Changed, ChangeFailure> {
        let at = |done| move |error| ChangeFailure { done, error };
        if self.get(pool).is_none() {
            return Err(at(0)(ChangeError::NoSuchPool));
        }
        for change in changes {
            if let PoolChange::Add(devices) = change {
                self.check_add(pool, devices).map_err(at(0))?;
            }
        }
        let mut changed = Changed::default();
        for (done, change) in changes.iter().enumerate() {
            self.refuse_if_suspended(pool, change).map_err(at(done))?;
            checks::check_new_guid(self, change, pool).map_err(at(done))?;
            around(Step::Before(change), &mut changed).map_err(at(done))?;
            if change.leaves() {
                // The history record must be written before the pool is destroyed or exported.
                let destroy = *change == PoolChange::Destroy;
                if let Err(error) = self.leave(pool, destroy, Some(command)) {
                    // What was unmounted for it is mounted again.
                    let _ = around(Step::Failed(change), &mut changed);
                    return Err(at(done)(error));
                }
                around(Step::After(change), &mut changed).map_err(at(done))?;
                return Ok(changed);
            }
            if let Err(error) = self.apply_by(pool, change, &mut changed, user) {
                // Undoes what `around` prepared for the change, such as unmounting.
                let _ = around(Step::Failed(change), &mut changed);
                return Err(at(done)(error));
            }
            around(Step::After(change), &mut changed).map_err(at(done))?;
        }
        if !matches!(changes, [PoolChange::Sync { .. }])
            && let Ok(live) = self.writable(pool)
            && live.inner().suspension().is_none()
        {
            let noted = live.inner().record_command(command);
            noted.map_err(|error| at(changes.len())(error.into()))?;
        }
        Ok(changed)
    }
}

/// A stage of a change.
pub enum Step<'a> {
    /// The change is about to be made.
    Before(&'a PoolChange),
    /// The change was made.
    After(&'a PoolChange),
    /// The change failed.
    Failed(&'a PoolChange),
}

fn cache_file(given: Option<&str>, is_visitor: bool) -> CacheFile {
    match given {
        Some(value) => CacheFile::parse(value),
        // With an altroot or a temporary name the import is temporary, so no cache file records it.
        None if is_visitor => CacheFile::None,
        None => CacheFile::Default,
    }
}

/// Lets scrubs, resilvers, initializations and trims run.
fn start_scanner(live: &Pool) -> Result<(), ChangeError> {
    let started = live
        .start_scanner()
        .and_then(|()| live.inner().start_leaf_activities());
    started.map_err(|error| ChangeError::Failed(format!("a thread could not be started: {error}")))
}

impl Around for ImportedPools {
    fn is_open(&self, pool: Guid) -> bool {
        self.all()
            .iter()
            .any(|(_, imported_pool)| match imported_pool.opened() {
                Open::Live(live) => live.inner().guid() == pool,
                Open::ReadOnly(read, _) => read.inner().guid() == pool,
            })
    }

    fn owner_of(&self, guid: Guid, is_spare: bool, first: Option<&str>) -> Option<String> {
        let mut all = self.all();
        all.sort_by_key(|(name, _)| Some(name.as_str()) != first);
        let owns = |imported_pool: &ImportedPool| {
            imported_pool.view().is_ok_and(|pool| {
                let inner = pool.inner();
                let listed = match is_spare {
                    true => inner.spares(),
                    false => inner.caches(),
                };
                listed.iter().any(|vdev| vdev.u64("guid") == Ok(guid.0))
            })
        };
        all.into_iter()
            .find(|(_, imported_pool)| owns(imported_pool))
            .map(|(name, _)| name)
    }

    fn tops_of(&self, pool: &str) -> Result<Vec<(VdevConfig, AllocationClass)>, ChangeError> {
        let imported_pool = self.get(pool).ok_or(ChangeError::NoSuchPool)?;
        Ok(checks::tops_of(
            &imported_pool.view().map_err(change_error)?,
        ))
    }
}
