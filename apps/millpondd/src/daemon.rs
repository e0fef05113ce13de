//! A daemon's parts together.

use crate::events::Events;
use crate::log::{Level, Line};
use crate::lookout::{self, Lookout};
use crate::mounts::{Mounter, Mounts};
use crate::places::Places;
use crate::state::{State, StateError, write_cache_file};
use crate::verbs::Verbs;
use millpond::control::{CacheFile, HeldPools, ImportRequest, Keep, Note};
use millpond::live::RequestDeadline;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex};
use millpond_env::{Env, host, thread};
use millpond_nvlist::NvList;
use millpond_rpc::{Access, Caller, Service, TimeLimits};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Why a daemon cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Its state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Pools held, file systems mounted, commands answered.
pub struct Daemon {
    pub(crate) env: Env,
    pub(crate) pools: HeldPools,
    pub(crate) mounts: Mounts,
    pub(crate) events: Events,
    state: Arc<State>,
    /// Cache files that were written for pools with one of their own.
    written: Mutex<BTreeSet<PathBuf>>,
    /// Pools of the cache file that were not to be had at the start, by guid: a disk may be late. They stay
    /// in the file until they are imported.
    absent: Mutex<BTreeMap<u64, (String, NvList)>>,
    /// Calls under way, and the monotonic time of the last end of one.
    busy: AtomicU64,
    last_call_ns: AtomicU64,
    lookout: Mutex<Lookout>,
    /// Somebody looks up the names of files in trouble.
    is_naming: AtomicBool,
    log: Log,
}

/// Somebody who looks up names of files, to the end of the look-up, however it ends.
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

/// Takes the lines of the log.
pub type Log = Box<dyn Fn(&Line) + Send + Sync>;

impl Daemon {
    /// Takes the state directory, clears what a killed daemon left mounted, and imports and mounts
    /// what the cache file names. What does not work is told through `log`.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        env: &Env,
        places: &Places,
        mounter: Box<dyn Mounter>,
        log: Log,
    ) -> Result<Arc<Self>, StartError> {
        Self::start_with(env, places, mounter, log, RequestDeadline::default())
    }

    /// As [`Daemon::start`], with the time that a device may take before its pool goes on without it.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_with(
        env: &Env,
        places: &Places,
        mounter: Box<dyn Mounter>,
        log: Log,
        deadline: RequestDeadline,
    ) -> Result<Arc<Self>, StartError> {
        let state = Arc::new(State::take(places)?);
        let hostid = state.hostid(env)?;
        let noting = Arc::clone(&state);
        let mounts = Mounts::new(
            mounter,
            Box::new(move |mounts| {
                // Without the record a crash leaves a dead mount for a person to clear: no reason not to mount.
                let _ = noting.note_mounts(mounts);
            }),
        );
        let daemon = Arc::new(Self {
            env: env.clone(),
            pools: HeldPools::new(env, hostid, host::hostname())
                .with_system(host::system())
                .with_deadline(deadline)
                // An ordinary user's file systems are theirs.
                .with_owner(
                    rustix::process::geteuid().as_raw(),
                    rustix::process::getegid().as_raw(),
                ),
            mounts,
            events: Events::new(env),
            state,
            written: Mutex::default(),
            absent: Mutex::default(),
            busy: AtomicU64::new(0),
            last_call_ns: AtomicU64::new(env.clock.monotonic_ns()),
            lookout: Mutex::default(),
            is_naming: AtomicBool::new(false),
            log,
        });
        for text in daemon.mounts.clear_dead(&daemon.state.noted_mounts()) {
            (daemon.log)(&Line::new(Level::Warning, text));
        }
        daemon.bring_back();
        Ok(daemon)
    }

    /// Imports what the cache file names. Pools that are not to be found now stay in it.
    fn bring_back(&self) {
        let file = self.state.places().cache_file();
        if std::fs::metadata(&file).map_or(0, |metadata| metadata.len()) == 0 {
            return;
        }
        let file = file.to_string_lossy().into_owned();
        let places = millpond::control::Places {
            paths: vec![],
            cache_file: Some(file.clone()),
        };
        let search = match millpond::Search::in_cache_file(std::path::Path::new(&file)) {
            Ok(search) => search,
            Err(error) => {
                let line = Line::new(Level::Error, format!("cannot be read: {error}"));
                return (self.log)(&line.file(&file));
            }
        };
        for config in &search.configs {
            let name = config.string("name").unwrap_or_default().to_owned();
            let Ok(guid) = config.u64("pool_guid") else {
                continue;
            };
            let request = ImportRequest {
                pool: guid.to_string(),
                places: places.clone(),
                mount: true,
                ..ImportRequest::default()
            };
            match self.pools.import(&request, None) {
                Ok(imported) => {
                    for note in self.mounts.mount_all(&self.pools, &imported.name, &[]) {
                        if let Note::NotMounted { dataset, why, .. } = note {
                            let text = format!("not mounted: {why:?}");
                            (self.log)(&Line::new(Level::Warning, text).dataset(&dataset));
                        }
                    }
                }
                Err(error) => {
                    let text = format!(
                        "noted in the cache file, not imported: {error:?}; look at it with: zpool import"
                    );
                    (self.log)(&Line::new(Level::Error, text).pool(&name));
                    self.absent.lock().insert(guid, (name, config.clone()));
                }
            }
        }
    }

    /// Notes the pools in their cache files. Called after every change of what is held.
    pub(crate) fn note_pools(&self) {
        let own = self.state.places().cache_file();
        let mut files: BTreeMap<PathBuf, Vec<(String, NvList)>> = BTreeMap::new();
        files.insert(own, vec![]);
        let mut written = self.written.lock();
        for path in written.iter() {
            files.insert(path.clone(), vec![]);
        }
        for (name, pool) in self.pools.all() {
            let path = match pool.cache_file() {
                CacheFile::None => continue,
                CacheFile::Default => self.state.places().cache_file(),
                CacheFile::At(path) => {
                    written.insert(path.clone());
                    path
                }
            };
            if let Some(config) = pool.configuration() {
                files.entry(path).or_default().push((name, config));
            }
        }
        drop(written);
        let mut absent = self.absent.lock();
        absent.retain(|guid, _| !self.pools.is_held(*guid));
        if let Some(own) = files.get_mut(&self.state.places().cache_file()) {
            own.extend(absent.values().cloned());
        }
        drop(absent);
        for (path, pools) in files {
            if let Err(error) = write_cache_file(&path, &pools) {
                let line = Line::new(Level::Warning, error.to_string());
                (self.log)(&line.file(&path.to_string_lossy()));
            }
        }
    }

    /// Unmounts everything, writes everything and lets all pools go. They stay in the cache file, so
    /// that the next start brings them back.
    ///
    /// Nobody will resume a pool any more: one that is suspended is left as a crash would leave it.
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
                let line = Line::new(Level::Warning, format!("still mounted: {why:?}"));
                (self.log)(&line.file(&mountpoint));
            }
        }
        for (name, error) in self.pools.let_go() {
            let line = Line::new(
                Level::Error,
                format!("what was not written is lost: {error}"),
            );
            (self.log)(&line.pool(&name));
        }
    }

    /// Tells the log what went wrong with pools, devices and files since the last look. Waits for no device.
    pub fn look_out(self: &Arc<Self>) {
        for line in self.lookout.lock().look(&self.pools) {
            (self.log)(&line);
        }
        if self.is_naming.load(Ordering::Acquire) {
            return;
        }
        let troubles = self.mounts.take_troubles();
        if troubles.is_empty() {
            return;
        }
        // Names are read from devices: another thread waits for them.
        let naming = Naming::begin(self);
        // If no thread can be had, the end of `naming` says that nobody looks names up.
        let _ = thread::spawn("name-files", move || {
            for (mount, trouble) in troubles {
                (naming.0.log)(&lookout::of_file(&naming.0.pools, &mount, &trouble));
            }
        });
    }

    /// Seconds since which nothing was asked, if no pool is held and nobody is asking.
    pub fn idle_s(&self) -> Option<u64> {
        if self.busy.load(Ordering::Relaxed) > 0 || !self.pools.all().is_empty() {
            return None;
        }
        let since_ns = self.last_call_ns.load(Ordering::Relaxed);
        let now_ns = self.env.clock.monotonic_ns();
        Some(now_ns.saturating_sub(since_ns) / 1_000_000_000)
    }

    /// The pools it holds.
    pub fn pools(&self) -> &HeldPools {
        &self.pools
    }

    /// How many pools of the cache file could not be imported.
    pub(crate) fn absent_count(&self) -> u64 {
        self.absent.lock().len() as u64
    }

    /// Where its files are.
    pub fn places(&self) -> &Places {
        self.state.places()
    }
}

impl Service for Daemon {
    fn verbs<'s>(&'s self, caller: Caller) -> Box<dyn Keep + 's> {
        Box::new(Verbs::new(self, caller))
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
