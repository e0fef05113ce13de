//! The request handler for one caller.

use crate::daemon::Daemon;
use crate::keys::{load_key, load_keys_from_files, unload_key};
use crate::mounts::{Follow, Receiving};
use crate::volumes::{FollowVolumes, ReceivingVolumes};
use millpond_control::{
    About, ChangeError, ChangeFailure, Changed, ControlError, DatasetChange, DatasetInfo,
    DatasetQuery, Event, Failure, ImportError, ImportRequest, Imported, Item, NewPoolRequest,
    PermissionSubject, PoolChange, ReceiveStream, Received, Reply, Request, SendProblem, Service,
    TunableInfo, Value,
};
use millpond_engine::{Creator, HistoryCommand, ReceivingUser};
use millpond_env::{Env, Tunable};
use millpond_rpc::{Access, Caller};
use millpond_service::{ImportedPool, Open, Step, arc_info, device_facts};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// The longest time that an answer waits for an event, and how often pools are asked for theirs meanwhile.
const EVENT_WAIT_MAX: Duration = Duration::from_secs(1);
const GATHER_EVERY: Duration = Duration::from_millis(250);
/// How long an exported or destroyed pool may take until its devices are released.
const RELEASE_MAX: Duration = Duration::from_secs(5);
const STILL_HELD: &str = "it is closed, but its devices stay in use by the daemon until the last requests to its file \
                          systems and the last queries are answered";

/// Handles all requests to a daemon.
pub struct RequestHandler<'d> {
    daemon: &'d Daemon,
    caller: Caller,
    /// What the caller is to the permissions of datasets; `None` for one with full access.
    subject: Option<PermissionSubject>,
    /// How long a change may wait for another change of mounts; `None` for as long as that takes.
    wait_max: Option<Duration>,
}

impl Service for RequestHandler<'_> {
    fn call(&self, request: &Request) -> Result<Reply, Failure> {
        self.check_allowed(request)?;
        let pools = &self.daemon.pools;
        let mounts = &self.daemon.mounts;
        Ok(match request {
            Request::Pools {} => Reply::Pools(pools.names()),
            Request::Pool { name } => {
                let mut info = pools.pool(name)?;
                mounts.name_damaged_files(&mut info);
                Reply::Pool(info)
            }
            Request::VdevProperties { pool, guid } => {
                Reply::VdevProperties(pools.vdev_properties(pool, *guid)?)
            }
            Request::Holds { snapshot } => Reply::Holds(pools.holds(snapshot)?),
            Request::Permissions { dataset } => Reply::Permissions(pools.permissions(dataset)?),
            Request::SpaceByOwner { dataset, owners } => {
                Reply::SpaceByOwner(pools.space_by_owner(dataset, *owners)?)
            }
            Request::Device { path } => Reply::Device(device_facts(path)?),
            Request::CreatePool { request, command } => {
                Reply::CreatePool(self.create_pool(request, command)?)
            }
            Request::CheckAdd { pool, devices } => Reply::CheckAdd(pools.check_add(pool, devices)?),
            Request::Change {
                pool,
                changes,
                command,
            } => Reply::Change(self.change(pool, changes, command)?),
            Request::ClearLabels { path, force } => {
                Reply::ClearLabels(pools.clear_labels(path, *force)?)
            }
            Request::Importable { search } => Reply::Importable(pools.importable_from(search)?),
            Request::Import { request, command } => Reply::Import(self.import(request, command)?),
            Request::Mounts {} => Reply::Mounts(mounts.list()),
            Request::Mount { dataset, request } => {
                Reply::Mount(mounts.mount(pools, dataset, request)?)
            }
            Request::Unmount { dataset, force } => {
                Reply::Unmount(mounts.unmount(pools, dataset, *force)?)
            }
            Request::LoadKey {
                dataset,
                key,
                only_check,
            } => Reply::LoadKey(load_key(self.daemon, dataset, key.bytes(), *only_check)?),
            Request::UnloadKey { dataset } => Reply::UnloadKey(unload_key(self.daemon, dataset)?),
            Request::DeleteQueue { dataset } => Reply::DeleteQueue(pools.delete_queue(dataset)?),
            Request::SendPlan { request } => Reply::SendPlan(pools.send_plan(request)?),
            Request::Events { after, wait_ms } => Reply::Events(self.events(*after, *wait_ms)),
            Request::ClearEvents {} => Reply::ClearEvents(self.clear_events()),
            Request::About {} => Reply::About(About {
                version: env!("CARGO_PKG_VERSION").into(),
                process: std::process::id(),
                user: rustix::process::geteuid().as_raw(),
            }),
            Request::ArcStatistics {} => Reply::ArcStatistics(arc_info()),
            Request::ImportProgress {} => Reply::ImportProgress(pools.import_progress()),
            Request::ChangeProgress { pool } => Reply::ChangeProgress(pools.change_progress(pool)?),
            Request::Tunables {} => Reply::Tunables(tunables(&self.daemon.env)),
            Request::SetTunable { name, value } => {
                Reply::SetTunable(set_tunable(&self.daemon.env, name, *value)?)
            }
            Request::Send { .. }
            | Request::Receive { .. }
            | Request::RunProgram { .. }
            | Request::KeepState { .. }
            | Request::Datasets { .. }
            | Request::History { .. }
            | Request::Diff { .. } => {
                return Err(Failure::other_reply());
            }
        })
    }

    fn transfer(
        &self,
        request: &Request,
        descriptor: OwnedFd,
        is_abandoned: &(dyn Fn() -> bool + Sync),
    ) -> Result<Reply, Failure> {
        self.check_allowed(request)?;
        let request = match request {
            Request::Send { request } => request,
            Request::Receive { request, command } => {
                let received = self.receive(request, command, descriptor, is_abandoned);
                return Ok(Reply::Receive(received));
            }
            Request::RunProgram { request, command } => {
                let script = File::from(descriptor);
                let command = self.history(command);
                let pools = &self.daemon.pools;
                let value = pools.run_program(request, &command, script, is_abandoned);
                self.gather_noted();
                Follow::new(&self.daemon.mounts, pools, &request.pool, true).follow_program();
                self.daemon.volumes.follow(pools, &request.pool);
                // A program cannot change which pools there are. A file that could not be written is in the log.
                let _ = self.daemon.note_pools();
                return Ok(Reply::RunProgram(value?));
            }
            Request::KeepState { pool } => {
                let pools = &self.daemon.pools;
                pools.keep_state(pool, descriptor.into(), is_abandoned)?;
                return Ok(Reply::KeepState(()));
            }
            _ => return Err(Failure::other_reply()),
        };
        // A snapshot may be mounted by itself: it does not change. The rest of a stream of a head has the name that the stream
        // had.
        let resumed = request.name.strip_suffix("@--head--");
        let name = resumed.filter(|_| request.guids.is_some());
        let name = name.unwrap_or(&request.name);
        let is_head = !name.contains('@') && !request.is_unfinished;
        if is_head && self.daemon.mounts.is_mounted(name) {
            return Err(SendProblem::Mounted.into());
        }
        let output = File::from(descriptor);
        let sent = self.daemon.pools.send(request, output, is_abandoned)?;
        Ok(Reply::Send(sent))
    }

    fn stream(
        &self,
        request: &Request,
        each: &mut dyn FnMut(Item) -> Result<(), ControlError>,
    ) -> Result<(), Failure> {
        self.check_allowed(request)?;
        match request {
            Request::Datasets { query } => {
                self.datasets(query, &mut |info| each(Item::Datasets(info)))?;
            }
            Request::History { pool } => {
                let mut each = |record| each(Item::History(record));
                self.daemon.pools.history(pool, &mut each)?;
            }
            Request::Diff { query } => {
                let mut each = |difference| each(Item::Diff(difference));
                self.daemon.pools.diff(query, &mut each)?;
            }
            _ => return Err(Failure::other_reply()),
        }
        Ok(())
    }
}

fn tunables(env: &Env) -> Vec<TunableInfo> {
    let info = |tunable: Tunable| TunableInfo {
        name: tunable.name().to_owned(),
        value: env.tunables.get(tunable),
        default: tunable.default_value(),
        max: tunable.max(),
        help: tunable.help().to_owned(),
    };
    Tunable::ALL.into_iter().map(info).collect()
}

fn set_tunable(env: &Env, name: &str, value: u64) -> Result<(), ControlError> {
    let tunable = Tunable::named(name).ok_or(ControlError::NoSuchTunable)?;
    match env.tunables.set(tunable, value) {
        true => {
            tracing::info!(name, value, "a tunable was changed");
            Ok(())
        }
        false => Err(ControlError::TunableValue { max: tunable.max() }),
    }
}

impl<'d> RequestHandler<'d> {
    /// Creates a handler. The pool's history records the caller.
    pub fn new(daemon: &'d Daemon, caller: &Caller, access: Access) -> Self {
        let subject = match access {
            Access::All => None,
            Access::Delegated => {
                let mut groups = caller.groups.clone();
                groups.push(caller.group);
                let user = caller.user;
                Some(PermissionSubject { user, groups })
            }
        };
        Self {
            daemon,
            caller: caller.clone(),
            subject,
            wait_max: None,
        }
    }

    /// For a program that waits in a mounted file system ([`Follow::with_limit`]).
    #[must_use]
    pub fn with_limit(mut self, wait_max: Duration) -> Self {
        self.wait_max = Some(wait_max);
        self
    }

    /// Whether the caller may make a request. Everything that is answered passes here first.
    fn check_allowed(&self, request: &Request) -> Result<(), Failure> {
        match &self.subject {
            Some(subject) if !self.daemon.pools.is_allowed(request, subject) => {
                Err(Request::denied(request.name()))
            }
            _ => Ok(()),
        }
    }

    /// The caller as the creator of datasets; `None` for one with full access.
    fn creator(&self) -> Option<Creator> {
        self.subject.as_ref().map(|subject| Creator {
            subject: subject.clone(),
            group: self.caller.group,
        })
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
        for (name, imported_pool) in self.daemon.pools.all() {
            self.gather_noted_of(&name, &imported_pool, false);
        }
    }

    fn gather_noted_of(&self, name: &str, imported_pool: &ImportedPool, is_creation: bool) {
        let Some(live) = imported_pool.live() else {
            return;
        };
        let engine = live.inner();
        let (events, guid) = (&self.daemon.events, engine.guid().0);
        let mut scans = engine.take_scan_notes().into_iter().peekable();
        for noted in engine.take_noted_events() {
            while let Some(scan) = scans.next_if(|scan| scan.time_ns <= noted.time_ns) {
                events.add_of_scan(scan, name, guid);
            }
            events.add_noted(&noted, name, guid, is_creation);
        }
        scans.for_each(|scan| events.add_of_scan(scan, name, guid));
        for event in engine.take_leaf_events() {
            events.add_of_leaf(&event, name, guid);
        }
        for event in engine.take_data_events() {
            events.add_of_data(&event, name, guid);
        }
    }

    fn guid_of(&self, pool: &str) -> u64 {
        match self.daemon.pools.get(pool) {
            Some(imported_pool) => match imported_pool.opened() {
                Open::Live(live) => live.inner().guid().0,
                Open::ReadOnly(read, _) => read.inner().guid().0,
            },
            None => 0,
        }
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
            mounts.show_options(&mut info);
            each(info)
        })
    }

    fn create_pool(&self, request: &NewPoolRequest, command: &str) -> Result<Changed, ChangeError> {
        let daemon = self.daemon;
        daemon.pools.create(request, &self.history(command))?;
        let mut changed = Changed::default();
        if !request.only_check {
            let name = request.temporary_name.as_ref().unwrap_or(&request.name);
            changed.notes = daemon.note_pools();
            let guid = self.guid_of(name);
            daemon
                .events
                .add_of_creation(NewPoolRequest::EVENT, name, guid);
            if let Some(imported_pool) = daemon.pools.get(name) {
                self.gather_noted_of(name, &imported_pool, true);
            }
            let notes = daemon.mount_imported(name, &[]);
            changed.notes.extend(notes);
            daemon.volumes.follow(&daemon.pools, name);
        }
        Ok(changed)
    }

    fn change(
        &self,
        pool: &str,
        changes: &[PoolChange],
        command: &str,
    ) -> Result<Changed, ChangeFailure> {
        let daemon = self.daemon;
        let guid = self.guid_of(pool);
        let imported_pool = daemon.pools.get(pool);
        let may_mount = self.subject.is_none();
        let follow = Follow::new(&daemon.mounts, &daemon.pools, pool, may_mount);
        let mut follow = follow.with_limit(self.wait_max);
        let mut devices = FollowVolumes::new(&daemon.volumes, &daemon.pools, pool);
        let command = self.history(command);
        let creator = self.creator();
        let by = (&command, creator.as_ref());
        if let (Some(last), Some(subject)) = (changes.last(), &self.subject)
            && matches!(last, PoolChange::Dataset(DatasetChange::Rollback { .. }))
            && !daemon.pools.is_allowed_change(last, subject)
        {
            // Before newer snapshots are destroyed for it.
            let error = ChangeError::Denied;
            return Err(ChangeFailure { done: 0, error });
        }
        let ready = follow.prepare(changes);
        let ready = ready.and_then(|()| {
            let ready = devices.prepare(changes);
            ready.inspect_err(|_| follow.finish())
        });
        ready.map_err(|error| ChangeFailure { done: 0, error })?;
        let done = daemon
            .pools
            .change(pool, changes, by, &mut |step, changed| {
                if let (Step::Before(change), Some(subject)) = (&step, &self.subject)
                    && !daemon.pools.is_allowed_change(change, subject)
                {
                    return Err(ChangeError::Denied);
                }
                if matches!(step, Step::Before(PoolChange::KeepCacheFile)) {
                    daemon.keep_cache_file(pool);
                }
                devices.around(step, &mut |step| follow.step(step, changed))
            });
        // After an error, a rollback may not have been reached.
        follow.finish();
        let left = match changes.iter().any(PoolChange::leaves) {
            true => imported_pool
                .as_deref()
                .and_then(ImportedPool::watch_release),
            false => None,
        };
        if let Some(imported_pool) = imported_pool {
            self.gather_noted_of(pool, &imported_pool, false);
        }
        if done.is_ok() {
            for class in changes.iter().filter_map(PoolChange::event) {
                self.event(class, pool, guid);
            }
        }
        let notes = daemon.note_pools();
        let mut changed = done?;
        changed.notes.extend(notes);
        match left.is_none_or(|left| left.wait(&daemon.env, RELEASE_MAX)) {
            true => Ok(changed),
            false => Err(ChangeFailure {
                done: changes.len(),
                error: ChangeError::Failed(STILL_HELD.into()),
            }),
        }
    }

    fn receive(
        &self,
        request: &ReceiveStream,
        command: &str,
        descriptor: OwnedFd,
        is_abandoned: &(dyn Fn() -> bool + Sync),
    ) -> Received {
        let daemon = self.daemon;
        let may_mount = self.subject.is_none();
        let mounts = request.mount && may_mount;
        let force = request.force_unmount && may_mount;
        let subject = self.subject.as_ref();
        let rights = subject.map(|subject| daemon.pools.receiving_rights(request, subject));
        let user = rights.as_ref().zip(self.creator());
        let user = user.map(|(rights, creator)| ReceivingUser { creator, rights });
        let mut watch = Receiving::new(&daemon.mounts, &daemon.pools, mounts, force);
        let command = self.history(command);
        let input = File::from(descriptor);
        let pools = &daemon.pools;
        let mut received = {
            let mut watch = ReceivingVolumes::new(&mut watch, &daemon.volumes, pools);
            let received = pools.receive(request, &command, input, is_abandoned, &mut watch, user);
            watch.finish(&request.name);
            received
        };
        received.notes.append(&mut watch.notes);
        self.gather_noted();
        received
    }

    fn import(&self, request: &ImportRequest, command: &str) -> Result<Imported, ImportError> {
        let daemon = self.daemon;
        let command = self.history(command);
        let mut imported = daemon.pools.import(request, Some(&command))?;
        imported.notes = daemon.note_pools();
        if let Some(imported_pool) = daemon.pools.get(&imported.name) {
            self.gather_noted_of(&imported.name, &imported_pool, false);
        }
        let guid = self.guid_of(&imported.name);
        self.event(ImportRequest::EVENT, &imported.name, guid);
        if request.load_keys {
            imported.keys = load_keys_from_files(daemon, &imported.name);
        }
        if request.mount {
            let options = &request.mount_options;
            let mounted = daemon.mount_imported(&imported.name, options);
            imported.notes.extend(mounted);
        }
        daemon.volumes.follow(&daemon.pools, &imported.name);
        Ok(imported)
    }

    fn events(&self, after: u64, wait_ms: u64) -> Vec<Event> {
        // The daemon does not end during a call, so none may last.
        let mut left = Duration::from_millis(wait_ms).min(EVENT_WAIT_MAX);
        loop {
            self.gather_noted();
            let events = self.daemon.events.after(after);
            if !events.is_empty() || left.is_zero() {
                return events;
            }
            // Pools do not tell when they have one.
            let slice = left.min(GATHER_EVERY);
            self.daemon.events.wait_after(after, slice);
            left -= slice;
        }
    }

    fn clear_events(&self) -> u64 {
        self.gather_noted();
        self.daemon.events.clear()
    }
}
