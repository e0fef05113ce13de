//! Pools that stay open from one command to the next.
//!
//! [`ImportedPools`] answers requests from the last committed state of each pool, and makes
//! changes on the open pools. It mounts nothing and stores no state of its own on disk; the process that uses
//! it does both. Statistics may lag by a txg. Page `docs/daemon.md`.

mod auxiliary;
mod import;
pub(crate) use import::search_of;
mod names;
mod suspended;

use crate::change::apply;
use crate::change::change_error;
use crate::change::checks::{self, Around};
use crate::change::create::{features_of, plan};
use crate::info::{self, activity, dataset, io, pool_of, tree, vdev_properties};
use auxiliary::AuxiliaryDevices;
use millpond_control::{
    ChangeError, ChangeFailure, Changed, ControlError, DatasetInfo, DatasetQuery, EngineInfo,
    HistoryRecord, NewDevices, NewPoolRequest, PoolChange, PoolInfo, Property, Source, Value,
    VdevAux, VdevState,
};
use millpond_engine::{Error, Pool, RequestDeadline, View, WriteOptions};
use millpond_env::Env;
use millpond_env::sync::{Arc, Mutex, RwLock};
use millpond_ondisk::Guid;
use millpond_pool::HistoryCommand;
use millpond_vdev::{AllocationClass, VdevConfig};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The cache file that records a pool, so that the reader of the file imports it again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CacheFile {
    /// The default file of the process that imported the pool.
    #[default]
    Default,
    /// None.
    None,
    /// The file at this path.
    At(PathBuf),
}

impl CacheFile {
    /// Parses the value of property `cachefile`: empty, `none`, or a path.
    #[must_use]
    pub fn parse(value: &str) -> Self {
        match value {
            "" => Self::Default,
            "none" => Self::None,
            path => Self::At(PathBuf::from(path)),
        }
    }
}

/// How often a query that can be repeated is tried on states that expire.
const READ_TRIES: u32 = 3;

/// A pool that is open.
pub enum Open {
    /// For reading and writing.
    Live(Pool),
    /// For reading only. If this was not requested, the reason.
    ReadOnly(View, Option<String>),
}

/// An imported pool, with state that is not stored in it.
pub struct ImportedPool {
    open: Open,
    /// Path and size of each device found, by guid; `None` for a pool that this process created.
    located: Option<BTreeMap<u64, tree::Located>>,
    /// The directory prepended to all its mount points.
    altroot: Option<String>,
    cache_file: Mutex<CacheFile>,
    /// Seconds since 1970.
    held_since_s: u64,
    /// The last information read, for use while its devices cannot be read.
    last: Mutex<Option<PoolInfo>>,
}

impl ImportedPool {
    /// The open pool.
    #[must_use]
    pub fn opened(&self) -> &Open {
        &self.open
    }
    /// The directory prepended to all its mount points.
    #[must_use]
    pub fn altroot(&self) -> Option<&str> {
        self.altroot.as_deref()
    }
    /// The cache file that records it.
    #[must_use]
    pub fn cache_file(&self) -> CacheFile {
        self.cache_file.lock().clone()
    }
    /// Seconds since 1970 at which it was imported.
    #[must_use]
    pub fn held_since_s(&self) -> u64 {
        self.held_since_s
    }
    /// The pool for changes, if it is open for writing.
    #[must_use]
    pub fn live(&self) -> Option<&Pool> {
        match &self.open {
            Open::Live(live) => Some(live),
            Open::ReadOnly(..) => None,
        }
    }

    /// The last committed state.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn view(&self) -> Result<View, Error> {
        match &self.open {
            Open::Live(live) => live.committed(),
            Open::ReadOnly(pool, _) => Ok(pool.clone()),
        }
    }

    /// Answers a query from the last committed state. If the state was read for so long that its blocks may be
    /// in use again, an error says so instead of what was found there.
    pub(super) fn read<R>(
        &self,
        query: impl FnOnce(&View) -> Result<R, ControlError>,
    ) -> Result<R, ControlError> {
        let view = self.view().map_err(io)?;
        let found = query(&view);
        // Also after success: what a reply may lack is left out when it cannot be read.
        view.inner().check_not_expired().map_err(io)?;
        found
    }

    /// Like [`Self::read`], but reads the next state if one expires: while a pool is nearly full, a state is
    /// kept for seconds only.
    fn read_again<R>(
        &self,
        query: impl Fn(&View) -> Result<R, ControlError>,
    ) -> Result<R, ControlError> {
        let mut tries_left = READ_TRIES;
        loop {
            let view = self.view().map_err(io)?;
            let found = query(&view);
            tries_left -= 1;
            match view.inner().check_not_expired() {
                Ok(()) => return found,
                Err(expired) if tries_left == 0 => return Err(io(expired)),
                Err(_) => {}
            }
        }
    }

    /// The configuration for a cache file. `None` for a pool that was imported read-only on request: cache
    /// files omit it.
    #[must_use]
    pub fn configuration(&self) -> Option<millpond_nvlist::NvList> {
        match &self.open {
            Open::Live(live) => Some(live.inner().config().pool_list()),
            Open::ReadOnly(pool, Some(_)) => Some(pool.inner().config().clone()),
            Open::ReadOnly(_, None) => None,
        }
    }

    /// Names of damaged files from the last information read, at most `max`. Does no I/O.
    #[must_use]
    pub fn known_data_errors(&self, max: usize) -> Vec<String> {
        let last = self.last.lock();
        let errors = last.iter().flat_map(|info| &info.errors);
        errors.take(max).map(|error| error.name.clone()).collect()
    }

    /// Activity of its engine; `None` if it is read-only. Does no I/O.
    #[must_use]
    pub fn engine_info(&self) -> Option<EngineInfo> {
        Some(activity::engine(self.live()?.inner()))
    }

    fn read_info(&self) -> Result<PoolInfo, ControlError> {
        let locate = |vdev: &mut millpond_control::VdevInfo| match &self.located {
            Some(located) => tree::locate(vdev, &|guid| located.get(&guid).cloned()),
            // This process created the pool, so each device is at its configured path.
            None => {
                let path = vdev.path.clone().unwrap_or_default();
                if let Ok(facts) = checks::facts(&path) {
                    vdev.physical_bytes = facts.size_bytes;
                }
            }
        };
        let mut info = self.read_again(|view| info::opened(view, &locate))?;
        info.held_since_s = self.held_since_s;
        info.is_state_active = true;
        let mut stack = vec![&mut info.root];
        while let Some(vdev) = stack.pop() {
            // A device that was missing at import is shown by its guid from then on.
            let is_missing = vdev.state == VdevState::CannotOpen && vdev.aux == VdevAux::OpenFailed;
            vdev.is_absent |= vdev.kind.is_leaf() && is_missing;
            stack.extend(&mut vdev.children);
        }
        let mut set = |name: &str, value: Option<String>| {
            let Some(value) = value else { return };
            let own = Property::new(name, Some(Value::Text(value)), Source::Local);
            match info.properties.iter_mut().find(|p| p.name == name) {
                Some(known) => *known = own,
                None => info.properties.push(own),
            }
        };
        set("altroot", self.altroot.clone());
        set(
            "cachefile",
            match &*self.cache_file.lock() {
                CacheFile::Default => None,
                CacheFile::None => Some("none".into()),
                CacheFile::At(path) => Some(path.to_string_lossy().into_owned()),
            },
        );
        let read_only = info.properties.iter_mut().find(|p| p.name == "readonly");
        if let Some(read_only) = read_only {
            let is_live = self.live().is_some();
            read_only.value = Some(Value::Number(u64::from(!is_live)));
            read_only.source = Source::None;
        }
        info.suspended = self.suspend_reason();
        info.engine = self.engine_info();
        Ok(info)
    }
}

/// All pools that this process has imported.
pub struct ImportedPools {
    env: Env,
    hostid: u64,
    hostname: Option<String>,
    system: Option<String>,
    owner: (u32, u32),
    deadline: RequestDeadline,
    pools: RwLock<BTreeMap<String, Arc<ImportedPool>>>,
    auxiliaries: Mutex<AuxiliaryDevices>,
    /// Serializes creation, import, export and destruction of pools.
    turn: Mutex<()>,
}

impl ImportedPools {
    /// Creates an empty set. `hostid` (0 for none) and `hostname` are this system's.
    #[must_use]
    pub fn new(env: &Env, hostid: u64, hostname: Option<String>) -> Self {
        Self {
            env: env.clone(),
            hostid,
            hostname,
            system: None,
            owner: (0, 0),
            deadline: RequestDeadline::default(),
            pools: RwLock::new(BTreeMap::new()),
            auxiliaries: Mutex::default(),
            turn: Mutex::new(()),
        }
    }

    /// Sets the system identification for history records: node, release, version, machine. Opening and
    /// importing a pool are then recorded in its history.
    #[must_use]
    pub fn with_system(mut self, system: String) -> Self {
        self.system = Some(system);
        self
    }

    /// Sets the owner and group of the root directories of new file systems. The default is root.
    #[must_use]
    pub fn with_owner(mut self, user: u32, group: u32) -> Self {
        self.owner = (user, group);
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
    pub fn is_held(&self, guid: u64) -> bool {
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
        WriteOptions {
            hostid: self.hostid,
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

    fn hold(&self, name: &str, pool: ImportedPool) -> Arc<ImportedPool> {
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
        let _turn = self.turn.lock();
        let temporary = request.temporary_name.as_deref();
        let name = temporary.unwrap_or(&request.name);
        for name in [name, &request.name] {
            millpond_pool::check_pool_name(name)
                .map_err(|reason| ChangeError::PoolName(reason.into()))?;
        }
        let features = features_of(request)?;
        checks::check(self, &request.devices, None)?;
        if request.only_check {
            return Ok(());
        }
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
        let live = plan(request, features, writing)
            .create()
            .map_err(change_error)?;
        live.datasets().enforce_limits(false);
        live.inner().record_command(command)?;
        let held = ImportedPool {
            open: Open::Live(live),
            located: None,
            altroot,
            cache_file: Mutex::new(cache_file),
            held_since_s: self.now_s(),
            last: Mutex::new(None),
        };
        self.hold(name, held);
        Ok(())
    }

    /// Checks whether devices could be added.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub fn check_add(&self, pool: &str, devices: &NewDevices) -> Result<(), ChangeError> {
        checks::check(self, devices, Some(pool))
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
            Open::ReadOnly(_, why) => Err(ChangeError::ReadOnlyPool(
                why.clone()
                    .unwrap_or_else(|| "it was imported read-only".into()),
            )),
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
        if let PoolChange::Set { name, value } = change
            && name == "cachefile"
        {
            let held = self.get(pool).ok_or(ChangeError::NoSuchPool)?;
            *held.cache_file.lock() = CacheFile::parse(value);
            return Ok(());
        }
        if *change == PoolChange::Abandon
            && self.get(pool).is_some_and(|held| held.live().is_none())
        {
            // A read-only pool has no changes waiting to be written.
            return Ok(());
        }
        if let PoolChange::Add(devices) = change {
            checks::check(self, devices, Some(pool))?;
        }
        if let PoolChange::Clear { leaves } = change {
            self.look_again(pool, leaves.as_deref())?;
        }
        apply::apply(&self.writable(pool)?, change, changed)?;
        if matches!(change, PoolChange::Add(_)) {
            self.hold_auxiliaries(pool);
        }
        Ok(())
    }

    /// Tries to open lost devices at their last paths. Those that open are used again. For the others, the
    /// pool continues without them or stays suspended.
    fn look_again(&self, pool: &str, leaves: Option<&[u64]>) -> Result<(), ChangeError> {
        let live = self.writable(pool)?;
        for (guid, path) in live.inner().lost_leaves(false) {
            if leaves.is_some_and(|meant| !meant.contains(&guid.0)) {
                continue;
            }
            if let Ok(found) = checks::open_to_write(&path) {
                live.inner().reopen_leaf(guid, &found.device)?;
            }
        }
        Ok(())
    }

    /// Exports or destroys a pool: marks its labels and closes its devices. Users of its file systems must
    /// have stopped.
    ///
    /// # Errors
    /// If the labels cannot be written; the pool then stays imported. [`ChangeError::Suspended`] if the pool
    /// is suspended and can be resumed. A pool that is suspended for good is closed without writing.
    pub fn leave(
        &self,
        name: &str,
        destroy: bool,
        command: Option<&HistoryCommand>,
    ) -> Result<(), ChangeError> {
        let _turn = self.turn.lock();
        let held = self.get(name).ok_or(ChangeError::NoSuchPool)?;
        if let Some(live) = held.live() {
            let engine = live.inner();
            held.refuse_if_waiting()?;
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
            return Err(ChangeError::ReadOnlyPool(
                "it was imported read-only".into(),
            ));
        }
        self.pools.write().remove(name);
        self.auxiliaries.lock().release_all(name);
        Ok(())
    }

    /// Syncs and closes all pools. Their labels still mark them as in use.
    pub fn release_all(&self) -> Vec<(String, Error)> {
        let _turn = self.turn.lock();
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
    /// each change, and can refuse it or add notes.
    ///
    /// # Errors
    /// [`ChangeFailure`].
    pub fn change(
        &self,
        pool: &str,
        changes: &[PoolChange],
        command: &HistoryCommand,
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
            around(Step::Before(change), &mut changed).map_err(at(done))?;
            if matches!(change, PoolChange::Destroy | PoolChange::Export) {
                // The history record must be written before the pool is destroyed or exported.
                let destroy = *change == PoolChange::Destroy;
                let left = self.leave(pool, destroy, Some(command));
                left.map_err(at(done))?;
                around(Step::After(change), &mut changed).map_err(at(done))?;
                return Ok(changed);
            }
            if let Err(error) = self.apply(pool, change, &mut changed) {
                // Undoes what `around` prepared for the change, such as unmounting.
                let _ = around(Step::Failed(change), &mut changed);
                return Err(at(done)(error));
            }
            around(Step::After(change), &mut changed).map_err(at(done))?;
        }
        if let Ok(live) = self.writable(pool)
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

impl Around for ImportedPools {
    fn is_open(&self, pool: Guid) -> bool {
        self.all().iter().any(|(_, held)| match held.opened() {
            Open::Live(live) => live.inner().guid() == pool,
            Open::ReadOnly(read, _) => read.inner().guid() == pool,
        })
    }

    fn owner_of(&self, guid: Guid, is_spare: bool) -> Option<String> {
        let all = self.all();
        let owns = |held: &ImportedPool| {
            held.view().is_ok_and(|pool| {
                let inner = pool.inner();
                let listed = match is_spare {
                    true => inner.spares(),
                    false => inner.caches(),
                };
                listed.iter().any(|vdev| vdev.u64("guid") == Ok(guid.0))
            })
        };
        all.into_iter()
            .find(|(_, held)| owns(held))
            .map(|(name, _)| name)
    }

    fn tops_of(&self, pool: &str) -> Result<Vec<(VdevConfig, AllocationClass)>, ChangeError> {
        let held = self.get(pool).ok_or(ChangeError::NoSuchPool)?;
        Ok(checks::tops_of(&held.view().map_err(change_error)?))
    }
}

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
        info.system_hostid = self.hostid;
        info.config_hostid = self.hostid;
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
        self.find(pool)?.read(|view| {
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
        let held = self.find(pool_of(&query.root))?;
        let altroot = held.altroot.clone();
        held.read(|view| {
            dataset::walk(view, query, &mut |mut info| {
                if let Some(root) = &altroot {
                    below_altroot(root, &mut info);
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
        pool.read(|view| info::holds(view, snapshot))
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
        pool.read(|view| info::space_by_owner(view, dataset, owners))
    }
}

/// Prepends the altroot to the dataset's mount point.
fn below_altroot(altroot: &str, info: &mut DatasetInfo) {
    let mountpoint = info.properties.iter_mut().find(|p| p.name == "mountpoint");
    if let Some(Property {
        value: Some(Value::Text(path)),
        ..
    }) = mountpoint
        && path.starts_with('/')
    {
        let root = altroot.trim_end_matches('/');
        *path = match path.as_str() {
            "/" if root.is_empty() => "/".to_owned(),
            "/" => root.to_owned(),
            path => format!("{root}{path}"),
        };
    }
}
