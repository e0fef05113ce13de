//! An imported pool.

use super::stopped::{RunningProgram, StoppedPrograms};
use super::*;
use millpond_env::sync::Weak;
use millpond_env::thread;
use std::time::Duration;

/// The cache file of OpenZFS.
const OPENZFS_CACHE_FILE: &str = "/etc/zfs/zpool.cache";

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

/// Tells when the devices of a pool are released.
pub struct PoolRelease(Weak<millpond_pool::Pool>);

impl PoolRelease {
    /// Waits until the devices are released, or `max` has passed. Returns whether they are.
    #[must_use]
    pub fn wait(&self, env: &Env, max: Duration) -> bool {
        let max_ns = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX);
        let end_ns = env.clock.monotonic_ns().saturating_add(max_ns);
        while self.0.strong_count() > 0 {
            if env.clock.monotonic_ns() >= end_ns {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

/// Says whether a pool is suspended, without keeping it open.
pub struct PoolSuspension(Weak<millpond_pool::Pool>);

impl PoolSuspension {
    /// Whether the pool is suspended: it waits for its devices, or takes no changes any more.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        let pool = self.0.upgrade();
        pool.is_some_and(|pool| pool.suspension().is_some())
    }
}

/// An imported pool, with state that is not stored in it.
pub struct ImportedPool {
    pub(super) open: Open,
    /// Path and size of each device found, by guid; `None` for a pool that this process created.
    pub(super) located: Option<BTreeMap<u64, tree::Located>>,
    /// The directory prepended to all its mount points.
    pub(super) altroot: Option<String>,
    pub(super) cache_file: Mutex<CacheFile, rank::Leaf>,
    /// Seconds since 1970.
    pub(super) imported_since_s: u64,
    /// The last information read, for use while its devices cannot be read.
    pub(super) last: Mutex<Option<PoolInfo>, rank::Leaf>,
    pub(super) stopped_programs: StoppedPrograms,
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
    pub fn imported_since_s(&self) -> u64 {
        self.imported_since_s
    }
    /// The pool for changes, if it is open for writing.
    #[must_use]
    pub fn live(&self) -> Option<&Pool> {
        match &self.open {
            Open::Live(live) => Some(live),
            Open::ReadOnly(..) => None,
        }
    }

    /// Counts a channel program from now on. The next query waits for it when it was stopped.
    pub(crate) fn begin_program(&self) -> RunningProgram<'_> {
        self.stopped_programs.begin()
    }

    /// What tells when everything that uses the pool has ended, after it was exported or destroyed. `None` for a pool that is
    /// open for reading only.
    #[must_use]
    pub fn watch_release(&self) -> Option<PoolRelease> {
        Some(PoolRelease(Arc::downgrade(self.live()?.inner())))
    }

    /// What says whether the pool is suspended. `None` for a pool that is open for reading only.
    #[must_use]
    pub fn watch_suspension(&self) -> Option<PoolSuspension> {
        Some(PoolSuspension(Arc::downgrade(self.live()?.inner())))
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
        self.stopped_programs.wait();
        let view = self.view().map_err(io)?;
        let found = query(&view);
        // Also after success: what a reply may lack is left out when it cannot be read.
        view.inner().check_not_expired().map_err(io)?;
        found
    }

    /// Like [`Self::read`], but reads the next state if one expires: while a pool is nearly full, a state is
    /// kept until the next commit.
    pub(super) fn read_again<R>(
        &self,
        query: impl Fn(&View) -> Result<R, ControlError>,
    ) -> Result<R, ControlError> {
        self.stopped_programs.wait();
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

    pub(super) fn read_info(&self) -> Result<PoolInfo, ControlError> {
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
        info.imported_since_s = self.imported_since_s;
        info.is_state_active = true;
        let mut stack = vec![&mut info.root];
        while let Some(vdev) = stack.pop() {
            // A device that was missing at import is shown by its guid from then on, also if another has its place.
            let was_found = |guid| match &self.located {
                Some(located) => located.contains_key(&guid),
                None => true,
            };
            let is_missing = match vdev.aux {
                VdevAux::OpenFailed => vdev.state == VdevState::CannotOpen,
                VdevAux::BadLabel => !was_found(vdev.guid),
                _ => false,
            };
            if vdev.kind.is_leaf() && is_missing {
                vdev.is_absent = true;
                let there = checks::facts(vdev.path.as_deref().unwrap_or_default());
                vdev.physical_bytes = there.map_or(0, |device| device.size_bytes);
            }
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
                // OpenZFS shows the default as no value, however it was set.
                CacheFile::At(path) if path.as_os_str() == OPENZFS_CACHE_FILE => None,
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
        if let Some(live) = self.live()
            && let Some((phys, pass)) = live.inner().scan()
        {
            info::scan_in_progress(&mut info, &phys, &pass);
        }
        if let Some(live) = self.live() {
            activity::rebuild_passes(live.inner(), &mut info);
            activity::expansion_pause(live.inner(), &mut info);
            let stuck = live.datasets().stuck_freeing();
            info.stuck_freeing = stuck.map(|stuck| millpond_control::StuckFreeing {
                datasets: stuck.datasets,
                reason: stuck.reason,
            });
        }
        Ok(info)
    }
}
