//! The daemon: combines pools, mounts, events and state directory.

use crate::events::Events;
use crate::handler::RequestHandler;
use crate::health::{self, HealthMonitor};
use crate::log::{Level, Line};
use crate::mounts::{Mounter, Mounts};
use crate::snapshots::SnapshotRequests;
use crate::state::{State, StateError, write_cache_file};
use crate::state_dirs::StateDirs;
use crate::volumes::Volumes;
use millpond_control::{ImportError, ImportRequest, MountInfo, Note, Service};
use millpond_engine::NvList;
use millpond_engine::RequestDeadline;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex};
use millpond_env::{Env, host, thread};
use millpond_rpc::{Access, Caller, ServiceProvider, TimeLimits};
use millpond_service::{AutoReplace, CacheFile, ImportedPools};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Why a daemon cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Its state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
}

/// What a daemon does, beyond the defaults.
#[derive(Debug, Clone, Copy, Default)]
pub struct DaemonOptions {
    /// The deadline for device requests, after which a pool continues without the device.
    pub deadline: RequestDeadline,
    /// Whether volumes become block devices below `/dev/zvol`. Needs root and loop devices.
    pub has_volume_devices: bool,
}

/// Pools as a cache file lists them: name and configuration.
type NotedPools = Vec<(String, NvList)>;

/// The cache files that a daemon writes.
#[derive(Debug, Default)]
struct CacheFiles {
    /// Those other than the default one that were written for pools.
    written: BTreeSet<PathBuf>,
    /// What could not be written. Each change tries again; the failure is told once for each content.
    unwritten: BTreeMap<PathBuf, NotedPools>,
}

/// A daemon: it keeps pools imported and file systems mounted, and answers requests.
pub struct Daemon {
    pub(crate) env: Env,
    pub(crate) pools: ImportedPools,
    pub(crate) mounts: Mounts,
    pub(crate) volumes: Volumes,
    pub(crate) events: Events,
    state: Arc<State>,
    cache_files: Mutex<CacheFiles, rank::CacheFiles>,
    /// Pools of the cache file that could not be imported at start, by guid, for instance because a disk
    /// appears late. They stay in the file until they are imported.
    absent: Mutex<BTreeMap<u64, (String, NvList)>, rank::Leaf>,
    /// Count of calls in progress, and the monotonic time at which the last one ended.
    busy: AtomicU64,
    last_call_ns: AtomicU64,
    health: Mutex<HealthMonitor, rank::Health>,
    /// Whether a thread is looking up the names of files with errors.
    is_naming: AtomicBool,
    /// What `autoreplace` knows; `None` while a thread looks at devices that failed.
    auto_replace: Mutex<Option<AutoReplace>, rank::Leaf>,
    /// The looks of [`Daemon::look_out`].
    looks: AtomicU64,
    log: Log,
}

/// The looks between two at devices that failed.
const FAILED_EVERY: u64 = 5;

/// Held by the thread that looks at failed devices. However it ends, another one can look afterwards.
struct LookingAtFailed<'a> {
    daemon: &'a Daemon,
    known: AutoReplace,
}

impl Drop for LookingAtFailed<'_> {
    fn drop(&mut self) {
        *self.daemon.auto_replace.lock() = Some(std::mem::take(&mut self.known));
    }
}

/// Guard for a file name look-up. Clears `is_naming` on drop, however the look-up ends.
struct Naming(Arc<Daemon>);

impl Naming {
    fn begin(daemon: &Arc<Daemon>) -> Self {
        daemon.is_naming.store(true, Ordering::Release);
        Self(Arc::clone(daemon))
    }
}

impl Drop for Naming {
    fn drop(&mut self) {
        self.0.is_naming.store(false, Ordering::Release);
    }
}

/// Callback for the lines of the log.
pub type Log = Box<dyn Fn(&Line) + Send + Sync>;

impl Daemon {
    /// Locks the state directory, clears mounts that a killed daemon left, and imports and mounts the pools
    /// in the cache file. Failures of these steps go to `log`.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        env: &Env,
        dirs: &StateDirs,
        mounter: Box<dyn Mounter>,
        log: Log,
    ) -> Result<Arc<Self>, StartError> {
        Self::start_with(env, dirs, mounter, log, DaemonOptions::default())
    }

    /// Like [`Daemon::start`], with options.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_with(
        env: &Env,
        dirs: &StateDirs,
        mounter: Box<dyn Mounter>,
        log: Log,
        options: DaemonOptions,
    ) -> Result<Arc<Self>, StartError> {
        let state = Arc::new(State::take(dirs)?);
        let tunables = Arc::clone(&env.tunables);
        let volumes = Volumes::start(&dirs.state, options.has_volume_devices, tunables);
        let hostid = state.hostid(env)?;
        let noting = Arc::clone(&state);
        let note = Box::new(move |mounts: &[MountInfo]| {
            // Without the record, an administrator must clear a dead mount after a crash. That is no
            // reason not to mount.
            let _ = noting.note_mounts(mounts);
        });
        let daemon = Arc::new_cyclic(|me| Self {
            env: env.clone(),
            pools: ImportedPools::new(env, hostid, host::hostname())
                .with_system(host::system())
                .with_set_hostid(host::hostid)
                .with_deadline(options.deadline)
                // New file systems of an ordinary user's daemon belong to that user.
                .with_owner(
                    rustix::process::geteuid().as_raw(),
                    rustix::process::getegid().as_raw(),
                )
                .with_home(crate::state_dirs::home_for_mounts()),
            mounts: Mounts::new(mounter, note, Arc::new(SnapshotRequests::new(me.clone()))),
            volumes,
            events: Events::new(env),
            state,
            cache_files: Mutex::default(),
            absent: Mutex::default(),
            busy: AtomicU64::new(0),
            last_call_ns: AtomicU64::new(env.clock.monotonic_ns()),
            health: Mutex::default(),
            is_naming: AtomicBool::new(false),
            auto_replace: Mutex::new(Some(AutoReplace::default())),
            looks: AtomicU64::new(0),
            log,
        });
        for text in daemon.mounts.clear_dead(&daemon.state.noted_mounts()) {
            (daemon.log)(&Line::new(Level::Warning, text));
        }
        daemon.reopen_leaf();
        Ok(daemon)
    }

    /// Imports the pools in the cache file. Pools that cannot be found now stay in it.
    fn reopen_leaf(&self) {
        let file = self.state.dirs().cache_file();
        if std::fs::metadata(&file).map_or(0, |metadata| metadata.len()) == 0 {
            return;
        }
        let file = file.to_string_lossy().into_owned();
        let search_paths = millpond_control::SearchPaths {
            paths: vec![],
            cache_file: Some(file.clone()),
        };
        let search = match millpond_engine::Search::in_cache_file(std::path::Path::new(&file)) {
            Ok(search) => search,
            Err(error) => {
                let line = Line::new(Level::Error, format!("cannot be read: {error}"));
                return (self.log)(&line.file(&file));
            }
        };
        let mut waiting: Vec<&NvList> = search.configs.iter().flatten().collect();
        loop {
            let devices = self.volumes.count();
            let mut failed = vec![];
            for config in waiting {
                if let Err(error) = self.import_noted(config, &search_paths) {
                    failed.push((config, error));
                }
            }
            // A pool may lie on volumes of a pool that came after it.
            if self.volumes.count() == devices || failed.is_empty() {
                return (failed.iter()).for_each(|(config, error)| self.note_absent(config, error));
            }
            waiting = failed.into_iter().map(|(config, _)| config).collect();
        }
    }

    /// Imports and mounts a pool of the cache file.
    fn import_noted(
        &self,
        config: &NvList,
        search: &millpond_control::SearchPaths,
    ) -> Result<(), ImportError> {
        let Ok(guid) = config.u64("pool_guid") else {
            return Ok(());
        };
        let request = ImportRequest {
            pool: guid.to_string(),
            search: search.clone(),
            mount: true,
            ..ImportRequest::default()
        };
        let imported = self.pools.import(&request, None)?;
        for note in self.mount_imported(&imported.name, &[]) {
            if let Note::NotMounted { dataset, why, .. } = note {
                let text = format!("not mounted: {why}");
                (self.log)(&Line::new(Level::Warning, text).dataset(&dataset));
            }
        }
        self.volumes.follow(&self.pools, &imported.name);
        Ok(())
    }

    /// Mounts the file systems of a pool that was just imported or created.
    pub(crate) fn mount_imported(&self, pool: &str, options: &[String]) -> Vec<Note> {
        let progress = self.pools.after_import(pool);
        progress.note("Mounting file systems");
        let shown = |done, total| progress.done(done, total);
        self.mounts
            .mount_all(&self.pools, pool, options, &|_| true, &shown)
    }

    fn note_absent(&self, config: &NvList, error: &ImportError) {
        let name = config.string("name").unwrap_or_default().to_owned();
        let text = format!(
            "noted in the cache file, not imported: {}; look at it with: zpool import",
            crate::words::of_import(error)
        );
        (self.log)(&Line::new(Level::Error, text).pool(&name));
        if let Ok(guid) = config.u64("pool_guid") {
            self.absent.lock().insert(guid, (name, config.clone()));
        }
    }

    /// Writes the imported pools to their cache files. Called after every change of the set of pools.
    ///
    /// Returns the files that cannot be written, and logs them. The change itself is done.
    pub(crate) fn note_pools(&self) -> Vec<Note> {
        let own = self.state.dirs().cache_file();
        let mut files: BTreeMap<PathBuf, NotedPools> = BTreeMap::new();
        files.insert(own, vec![]);
        let mut cache_files = self.cache_files.lock();
        for path in &cache_files.written {
            files.insert(path.clone(), vec![]);
        }
        for (name, pool) in self.pools.all() {
            let path = match pool.cache_file() {
                CacheFile::None => continue,
                CacheFile::Default => self.state.dirs().cache_file(),
                CacheFile::At(path) => {
                    cache_files.written.insert(path.clone());
                    path
                }
            };
            if let Some(config) = pool.configuration() {
                files.entry(path).or_default().push((name, config));
            }
        }
        let absent: Vec<u64> = self.absent.lock().keys().copied().collect();
        for guid in absent {
            if self.pools.is_imported(guid) {
                self.absent.lock().remove(&guid);
            }
        }
        if let Some(own) = files.get_mut(&self.state.dirs().cache_file()) {
            own.extend(self.absent.lock().values().cloned());
        }
        let mut notes = vec![];
        for (path, pools) in files {
            let Err(error) = write_cache_file(&path, &pools) else {
                cache_files.unwritten.remove(&path);
                continue;
            };
            if cache_files.unwritten.get(&path) == Some(&pools) {
                continue;
            }
            let (path_text, why) = (path.to_string_lossy().into_owned(), error.to_string());
            (self.log)(&Line::new(Level::Warning, why.clone()).file(&path_text));
            notes.push(Note::CacheFile {
                path: path_text,
                why,
            });
            cache_files.unwritten.insert(path, pools);
        }
        // Held until now: a slower thread must not overwrite these files with an older set of pools.
        drop(cache_files);
        notes
    }

    /// Leaves the cache file of a pool that is going to be exported as it is, unless it is this daemon's own.
    pub(crate) fn keep_cache_file(&self, pool: &str) {
        let pool = self.pools.get(pool);
        if let Some(CacheFile::At(path)) = pool.map(|pool| pool.cache_file()) {
            self.cache_files.lock().written.remove(&path);
        }
    }

    /// Unmounts all file systems, and syncs and closes all pools. They stay in the cache file, so the next
    /// start imports them again.
    ///
    /// A suspended pool cannot be resumed after this; it is left as after a crash.
    pub fn stop(&self) {
        for (name, reason) in self.pools.stop_waiting() {
            let text = format!("suspended; what was not written is lost: {reason}");
            (self.log)(&Line::new(Level::Error, text).pool(&name));
        }
        for note in self.mounts.unmount_all(true) {
            if let Note::StillMounted {
                mountpoint, why, ..
            } = note
            {
                let line = Line::new(Level::Warning, format!("still mounted: {why}"));
                (self.log)(&line.file(&mountpoint));
            }
        }
        self.volumes.stop();
        for (name, error) in self.pools.release_all() {
            let line = Line::new(
                Level::Error,
                format!("what was not written is lost: {error}"),
            );
            (self.log)(&line.pool(&name));
        }
        self.volumes.finish();
    }

    /// Logs new errors of pools, devices and files since the last call. Does not wait for devices.
    pub fn look_out(self: &Arc<Self>) {
        for line in self.health.lock().look(&self.pools) {
            (self.log)(&line);
        }
        if self
            .looks
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(FAILED_EVERY)
        {
            let daemon = Arc::clone(self);
            // It reads devices.
            let _ = thread::spawn("failed-devices", move || daemon.look_at_failed());
        }
        if self.is_naming.load(Ordering::Acquire) {
            return;
        }
        let troubles = self.mounts.take_troubles();
        if troubles.is_empty() {
            return;
        }
        // Looking up names reads devices, so another thread does it.
        let naming = Naming::begin(self);
        // If no thread can be started, dropping `naming` clears the flag.
        let _ = thread::spawn("name-files", move || {
            for (mount, trouble) in troubles {
                (naming.0.log)(&health::of_file(&naming.0.pools, &mount, &trouble));
            }
        });
    }

    /// Takes devices into use again that have come back, and replaces failed ones by blank ones at their paths in pools with
    /// `autoreplace=on`. Returns at once if another thread does so.
    pub fn look_at_failed(&self) {
        let Some(known) = self.auto_replace.lock().take() else {
            return;
        };
        let mut looking = LookingAtFailed {
            daemon: self,
            known,
        };
        for (pool, path) in self.pools.take_back_returned() {
            let line = Line::new(Level::Notice, "is back and in use again".to_owned());
            (self.log)(&line.pool(&pool).device(&path));
        }
        for replaced in self.pools.replace_failed(&mut looking.known) {
            let (level, text) = match replaced.outcome {
                Ok(()) => (Level::Notice, "replaced by a new device".to_owned()),
                Err(_) => {
                    let (pool, path) = (&replaced.pool, &replaced.path);
                    let why = format!("the reason is shown by: zpool replace {pool} {path}");
                    (Level::Warning, format!("not replaced; {why}"))
                }
            };
            let line = Line::new(level, text).pool(&replaced.pool);
            (self.log)(&line.device(&replaced.path));
        }
    }

    /// Seconds since the last call, if no pool is imported and no call is in progress.
    pub fn idle_s(&self) -> Option<u64> {
        if self.busy.load(Ordering::Relaxed) > 0 || !self.pools.all().is_empty() {
            return None;
        }
        let since_ns = self.last_call_ns.load(Ordering::Relaxed);
        let now_ns = self.env.clock.monotonic_ns();
        Some(now_ns.saturating_sub(since_ns) / 1_000_000_000)
    }

    /// The imported pools.
    pub fn pools(&self) -> &ImportedPools {
        &self.pools
    }

    /// Count of pools in the cache file that could not be imported.
    pub(crate) fn absent_count(&self) -> u64 {
        self.absent.lock().len() as u64
    }

    /// The paths of its files.
    pub fn dirs(&self) -> &StateDirs {
        self.state.dirs()
    }
}

impl ServiceProvider for Daemon {
    fn handler<'s>(&'s self, caller: &Caller, access: Access) -> Box<dyn Service + 's> {
        Box::new(RequestHandler::new(self, caller, access))
    }

    fn busy(&self, is_busy: bool) {
        match is_busy {
            true => self.busy.fetch_add(1, Ordering::Relaxed),
            false => {
                let now_ns = self.env.clock.monotonic_ns();
                self.last_call_ns.store(now_ns, Ordering::Relaxed);
                self.busy.fetch_sub(1, Ordering::Relaxed)
            }
        };
    }

    fn times(&self, access: Access) -> Option<TimeLimits> {
        Some(access.times(&self.env))
    }

    fn scratch(&self) -> std::io::Result<std::fs::File> {
        self.state.scratch()
    }
}
