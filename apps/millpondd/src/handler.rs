//! The request handler for one caller.

use crate::daemon::Daemon;
use crate::mounts::Follow;
use millpond_control::{
    Change, ChangeError, ChangeFailure, Changed, Control, ControlError, DatasetInfo, DatasetQuery,
    DeviceFacts, DeviceProblem, Event, HistoryRecord, ImportError, ImportRequest, ImportablePool,
    Imported, KeyProblem, MountInfo, MountProblem, MountRequest, NewDevices, NewPoolRequest,
    PoolChange, PoolInfo, Property, Service, Value,
};
use millpond_engine::{DatasetError, Error, HistoryCommand, OwnerKind, OwnerSpace};
use millpond_rpc::Caller;
use millpond_service::{ImportedPool, Open, read_key_file};
use std::path::Path;

/// Handles all requests to a daemon.
pub struct RequestHandler<'d> {
    daemon: &'d Daemon,
    caller: Caller,
}

impl<'d> RequestHandler<'d> {
    /// Creates a handler. The pool's history records the caller.
    pub fn new(daemon: &'d Daemon, caller: Caller) -> Self {
        Self { daemon, caller }
    }

    fn history(&self, command: &str) -> HistoryCommand {
        HistoryCommand {
            command: command.to_owned(),
            user: self.caller.user.into(),
        }
    }

    fn event(&self, class: &str, pool: &str, guid: u64) {
        self.daemon.events.add(class, pool, guid, vec![]);
    }

    /// Adds the internal history records of all pools to the events.
    fn gather_noted(&self) {
        for (name, held) in self.daemon.pools.all() {
            self.gather_noted_of(&name, &held, false);
        }
    }

    fn gather_noted_of(&self, name: &str, held: &ImportedPool, is_creation: bool) {
        let Some(live) = held.live() else { return };
        let engine = live.inner();
        for noted in engine.take_noted_events() {
            let events = &self.daemon.events;
            events.add_noted(&noted, name, engine.guid().0, is_creation);
        }
        for event in engine.take_leaf_events() {
            self.daemon
                .events
                .add_of_leaf(&event, name, engine.guid().0);
        }
    }

    fn guid_of(&self, pool: &str) -> u64 {
        match self.daemon.pools.get(pool) {
            Some(held) => match held.opened() {
                Open::Live(live) => live.inner().guid().0,
                Open::ReadOnly(read, _) => read.inner().guid().0,
            },
            None => 0,
        }
    }
}

impl Control for RequestHandler<'_> {
    fn pools(&self) -> Result<Vec<String>, ControlError> {
        self.daemon.pools.pools()
    }

    fn pool(&self, name: &str) -> Result<PoolInfo, ControlError> {
        self.daemon.pools.pool(name)
    }

    fn vdev_properties(&self, pool: &str, guid: u64) -> Result<Vec<Property>, ControlError> {
        self.daemon.pools.vdev_properties(pool, guid)
    }

    fn datasets(
        &self,
        query: &DatasetQuery,
        each: &mut dyn FnMut(DatasetInfo) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        let mounts = &self.daemon.mounts;
        self.daemon.pools.datasets(query, &mut |mut info| {
            let mounted = info.properties.iter_mut().find(|p| p.name == "mounted");
            if let Some(mounted) = mounted {
                let is_mounted = mounts.is_mounted(&info.name);
                mounted.value = Some(Value::Number(is_mounted.into()));
            }
            each(info)
        })
    }

    fn history(
        &self,
        pool: &str,
        each: &mut dyn FnMut(HistoryRecord) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        self.daemon.pools.history(pool, each)
    }

    fn holds(&self, snapshot: &str) -> Result<Vec<(String, u64)>, ControlError> {
        self.daemon.pools.holds(snapshot)
    }

    fn space_by_owner(
        &self,
        dataset: &str,
        owners: OwnerKind,
    ) -> Result<Vec<OwnerSpace>, ControlError> {
        self.daemon.pools.space_by_owner(dataset, owners)
    }

    fn importable(&self) -> Result<Vec<ImportablePool>, ControlError> {
        self.daemon.pools.importable()
    }
}

impl Change for RequestHandler<'_> {
    fn device(&self, path: &str) -> Result<DeviceFacts, DeviceProblem> {
        millpond_service::device_facts(path)
    }

    fn create_pool(&self, request: &NewPoolRequest, command: &str) -> Result<Changed, ChangeError> {
        let daemon = self.daemon;
        daemon.pools.create(request, &self.history(command))?;
        let mut changed = Changed::default();
        if !request.only_check {
            let name = request.temporary_name.as_ref().unwrap_or(&request.name);
            daemon.note_pools();
            let guid = self.guid_of(name);
            daemon.events.add_of_creation("pool_create", name, guid);
            if let Some(held) = daemon.pools.get(name) {
                self.gather_noted_of(name, &held, true);
            }
            changed.notes = daemon.mounts.mount_all(&daemon.pools, name, &[]);
        }
        Ok(changed)
    }

    fn check_add(&self, pool: &str, devices: &NewDevices) -> Result<(), ChangeError> {
        self.daemon.pools.check_add(pool, devices)
    }

    fn change(
        &self,
        pool: &str,
        changes: &[PoolChange],
        command: &str,
    ) -> Result<Changed, ChangeFailure> {
        let daemon = self.daemon;
        let guid = self.guid_of(pool);
        let held = daemon.pools.get(pool);
        let mut follow = Follow::new(&daemon.mounts, &daemon.pools, pool);
        let command = self.history(command);
        let done = daemon
            .pools
            .change(pool, changes, &command, &mut |step, changed| {
                follow.step(step, changed)
            });
        if let Some(held) = held {
            self.gather_noted_of(pool, &held, false);
        }
        for change in changes {
            let class = match change {
                PoolChange::Add(_) => "vdev_add",
                PoolChange::Destroy => "pool_destroy",
                PoolChange::Export => "pool_export",
                PoolChange::Reguid { .. } => "pool_reguid",
                PoolChange::Clear { .. } => "vdev_clear",
                PoolChange::Online { .. } => "vdev_online",
                _ => continue,
            };
            if done.is_ok() {
                self.event(class, pool, guid);
            }
        }
        daemon.note_pools();
        done
    }

    fn clear_labels(&self, path: &str, force: bool) -> Result<(), ChangeError> {
        self.daemon.pools.clear_labels(path, force)
    }
}

impl Service for RequestHandler<'_> {
    fn importable_from(
        &self,
        places: &millpond_control::SearchPaths,
    ) -> Result<Vec<ImportablePool>, ImportError> {
        self.daemon.pools.importable_from(places)
    }

    fn import(&self, request: &ImportRequest, command: &str) -> Result<Imported, ImportError> {
        let daemon = self.daemon;
        let command = self.history(command);
        let mut imported = daemon.pools.import(request, Some(&command))?;
        daemon.note_pools();
        if let Some(held) = daemon.pools.get(&imported.name) {
            self.gather_noted_of(&imported.name, &held, false);
        }
        self.event("pool_import", &imported.name, self.guid_of(&imported.name));
        if request.load_keys {
            imported.keys = load_keys_from_files(daemon, &imported.name);
        }
        if request.mount {
            let options = &request.mount_options;
            imported.notes = daemon
                .mounts
                .mount_all(&daemon.pools, &imported.name, options);
        }
        Ok(imported)
    }

    fn mounts(&self) -> Result<Vec<MountInfo>, ControlError> {
        Ok(self.daemon.mounts.list())
    }

    fn mount(&self, dataset: &str, request: &MountRequest) -> Result<(), MountProblem> {
        let daemon = self.daemon;
        daemon.mounts.mount(&daemon.pools, dataset, request)
    }

    fn unmount(&self, dataset: &str, force: bool) -> Result<(), (String, MountProblem)> {
        let daemon = self.daemon;
        daemon.mounts.unmount(&daemon.pools, dataset, force)
    }

    fn load_key(&self, dataset: &str, key: &[u8], only_check: bool) -> Result<(), KeyProblem> {
        load_key(self.daemon, dataset, key, only_check)
    }

    fn unload_key(&self, dataset: &str) -> Result<(), KeyProblem> {
        let daemon = self.daemon;
        let prefix = format!("{dataset}/");
        let mut mounted = daemon.mounts.list().into_iter();
        if mounted.any(|m| m.dataset == dataset || m.dataset.starts_with(&prefix)) {
            return Err(KeyProblem::Text(format!("'{dataset}' is busy.")));
        }
        let unloaded = view_of(daemon, dataset)?.unload_key(dataset);
        match unloaded.map_err(key_problem)? {
            true => Ok(()),
            false => {
                let text = format!("Key already unloaded for '{dataset}'.");
                Err(KeyProblem::Text(text))
            }
        }
    }

    fn events(&self, after: u64) -> Result<Vec<Event>, ControlError> {
        self.gather_noted();
        Ok(self.daemon.events.after(after))
    }

    fn clear_events(&self) -> Result<u64, ControlError> {
        self.gather_noted();
        Ok(self.daemon.events.clear())
    }
}

fn view_of(daemon: &Daemon, dataset: &str) -> Result<millpond_engine::View, KeyProblem> {
    let pool = dataset.split('/').next().unwrap_or(dataset);
    let held = daemon.pools.get(pool).ok_or(KeyProblem::NoSuchDataset)?;
    held.view().map_err(key_problem)
}

fn key_problem(error: Error) -> KeyProblem {
    match error {
        Error::Dataset(DatasetError::NotFound { .. }) => KeyProblem::NoSuchDataset,
        Error::Dataset(DatasetError::Key { reason, .. }) => KeyProblem::Text(reason),
        other => KeyProblem::Text(other.to_string()),
    }
}

fn load_key(
    daemon: &Daemon,
    dataset: &str,
    key: &[u8],
    only_check: bool,
) -> Result<(), KeyProblem> {
    let view = view_of(daemon, dataset)?;
    let was_loaded = view.has_key(dataset).map_err(key_problem)?;
    if was_loaded && !only_check {
        let text = format!("Key already loaded for '{dataset}'.");
        return Err(KeyProblem::Text(text));
    }
    view.load_key(dataset, key).map_err(key_problem)?;
    if only_check && !was_loaded {
        view.unload_key(dataset).map_err(key_problem)?;
    }
    Ok(())
}

/// Loads the keys from the files in `keylocation`. Returns the count of keys loaded and of keys tried.
fn load_keys_from_files(daemon: &Daemon, pool: &str) -> (u64, u64) {
    use millpond_dataset::properties::{DatasetKind, Kinds, by_name};
    let names = ["keylocation", "encryptionroot"];
    let query = DatasetQuery {
        root: pool.to_owned(),
        depth: DatasetQuery::WHOLE_TREE,
        kinds: Kinds::only(&[DatasetKind::Filesystem, DatasetKind::Volume]),
        wanted: millpond_control::Wanted::Named(names.iter().filter_map(|n| by_name(n)).collect()),
    };
    let mut roots = vec![];
    let _ = daemon.pools.datasets(&query, &mut |info| {
        let text = |name: &str| {
            info.property(name)?
                .value
                .as_ref()?
                .text()
                .map(str::to_owned)
        };
        if text("encryptionroot").as_deref() == Some(info.name.as_str()) {
            roots.push((info.name.clone(), text("keylocation")));
        }
        Ok(())
    });
    let tried = roots.len() as u64;
    let loaded = roots.iter().filter(|(name, location)| {
        let file = location.as_deref().and_then(|l| l.strip_prefix("file://"));
        let key = file.map(|file| read_key_file(Path::new(file)));
        let Some(Ok(bytes)) = key else {
            return false;
        };
        load_key(daemon, name, &bytes, false).is_ok()
    });
    (loaded.count() as u64, tried)
}
