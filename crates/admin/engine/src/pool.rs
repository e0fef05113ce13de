//! A pool open for writing, with its datasets and files.

use super::initializer::FileSystemInitializer;
use super::tx_provider::{DatasetTxProvider, access_time_policy, file_settings};
use crate::{AccessTimes, Error, Search, View};
use millpond_dataset::{Datasets, HeadDataset, RootKey};
use millpond_device::OpenOptions as DeviceOptions;
use millpond_env::Env;
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex, Weak};
use millpond_ondisk::ObjectId;
use millpond_pool::OpenOptions;
use millpond_pool::import::{PoolCandidate, ScanOptions};
use millpond_pool::{ImportNotes, NewPool, Pool as Inner, WriteOptions};
use millpond_posix::{FileStatistics, FileSystem};
use millpond_scan::Scanner;
use millpond_volume::Volume;
use std::collections::BTreeMap;
use std::time::Duration;

/// How often a query is tried on states that expire.
const READ_TRIES: u32 = 3;

/// How many txgs after a free no uberblock to which the pool can be rewound needs the space.
const FREE_TXGS: u32 = 3;

/// How to open devices of a pool that is to be written: for writing, and locked.
pub const SCAN_FOR_WRITING: ScanOptions = ScanOptions {
    open: DeviceOptions {
        write: true,
        refuse_if_live: true,
    },
    partitions: true,
    follow_label_paths: true,
};

/// Ends the pool's threads with the last handle.
struct Opened(Arc<Inner>);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A pool open for writing. Cheap to clone; dropping the last handle releases the devices' locks.
#[derive(Clone)]
pub struct Pool {
    opened: Arc<Opened>,
    datasets: Arc<Datasets>,
    env: Env,
    /// Open file systems. All callers share one instance per dataset, because it contains the locks.
    files: Arc<Mutex<BTreeMap<ObjectId, Weak<FileSystem>>, rank::OpenFiles>>,
    /// Open volumes. All callers share one instance, because it contains the size and the locks.
    volumes: Arc<Mutex<BTreeMap<ObjectId, Weak<Volume>>, rank::OpenFiles>>,
    /// Held while the log of a dataset is replayed whose key was not loaded when the pool was opened.
    replays: Arc<Mutex<(), rank::LogReplays>>,
    /// What replaces the properties `atime` and `relatime` of mounted file systems.
    pub(super) access_times: Arc<Mutex<BTreeMap<ObjectId, AccessTimes>, rank::Leaf>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.inner().name())
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Creates a pool on devices that were opened for writing. [`super::PoolBuilder`] does so from paths.
    ///
    /// # Errors
    /// [`Error::Create`].
    pub fn create(env: &Env, new: &NewPool) -> Result<Self, Error> {
        Self::create_with_key(env, new, None)
    }

    /// Like [`Pool::create`], with the key of an encrypted root file system.
    ///
    /// # Errors
    /// [`Error::Create`].
    pub fn create_with_key(
        env: &Env,
        new: &NewPool,
        root_key: Option<RootKey>,
    ) -> Result<Self, Error> {
        let datasets = Datasets::new(FileSystemInitializer::of(env, &new.writing));
        if let Some(key) = root_key {
            datasets.set_root_key(key);
        }
        let port = Arc::clone(&datasets);
        let inner = Inner::create(env, new, &|_| false, port).map_err(|error| Error::Create {
            name: new.name.clone(),
            error: Box::new(error),
        })?;
        Ok(Self::new(inner, datasets, env))
    }

    /// Finds a pool by name or guid and locks its devices, for [`Pool::open_candidate`].
    ///
    /// # Errors
    /// [`Error::NoSuchPool`], [`Error::AmbiguousPool`]; [`Error::InUse`] and [`Error::ReadOnlyDevices`] for a pool
    /// that can be found only for reading.
    pub fn find(search: &Search, name: &str) -> Result<PoolCandidate, Error> {
        let candidates = search.pools_with(SCAN_FOR_WRITING);
        let found = crate::view::choose(&candidates, name).cloned();
        let is_missing = matches!(found, Err(Error::NoSuchPool { .. }));
        let to_read = match is_missing {
            true => search.pools(),
            false => vec![],
        };
        let Ok(to_read) = crate::view::choose(&to_read, name) else {
            return found;
        };
        let name = name.to_owned();
        Err(match search.read_only_device() {
            _ if !to_read.has_verified_label() => Error::ReadOnlyDevices {
                name,
                reason: "its labels have wrong checksums, so it can only be opened for reading"
                    .into(),
            },
            Some(reason) => Error::ReadOnlyDevices { name, reason },
            None => Error::InUse { name },
        })
    }

    /// Finds a pool by name or guid and opens it for writing.
    ///
    /// # Errors
    /// As [`View::open`]; [`millpond_pool::OpenError::ReadOnly`] gives the reason why the pool cannot be
    /// written.
    pub fn open(
        search: &Search,
        name: &str,
        options: &OpenOptions,
        writing: &WriteOptions,
    ) -> Result<Self, Error> {
        let candidate = Self::find(search, name)?;
        Self::open_candidate(&Env::real(), &candidate, options, writing)
    }

    /// Opens a pool found by a search with [`SCAN_FOR_WRITING`].
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub fn open_candidate(
        env: &Env,
        candidate: &PoolCandidate,
        options: &OpenOptions,
        writing: &WriteOptions,
    ) -> Result<Self, Error> {
        let datasets = Datasets::new(FileSystemInitializer::of(env, writing));
        datasets.choose_found_logs(writing.found_logs);
        let port = Arc::clone(&datasets);
        let inner = Inner::open(env, candidate, options, writing, port);
        let inner = inner.map_err(|error| Error::Open {
            name: candidate.name.clone(),
            error: Box::new(error),
        })?;
        let pool = Self::new(inner, datasets, env);
        pool.replay_logs(&writing.notes)?;
        writing.notes.note("Destroying what was half received");
        pool.datasets.destroy_half_received()?;
        Ok(pool)
    }

    fn new(inner: Arc<Inner>, datasets: Arc<Datasets>, env: &Env) -> Self {
        Self {
            opened: Arc::new(Opened(inner)),
            datasets,
            env: env.clone(),
            files: Arc::default(),
            volumes: Arc::default(),
            replays: Arc::default(),
            access_times: Arc::default(),
        }
    }

    /// The pool without its files: space, features, configuration, properties.
    #[must_use]
    pub fn inner(&self) -> &Arc<Inner> {
        &self.opened.0
    }
    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        self.inner().name()
    }
    /// Operations on its datasets.
    #[must_use]
    pub fn datasets(&self) -> &Arc<Datasets> {
        &self.datasets
    }

    /// Opens a live file system for writing. Frees files that the last use left unlinked first.
    ///
    /// # Errors
    /// If no file system has this name, or it cannot be written.
    pub fn file_system(&self, name: &str) -> Result<Arc<FileSystem>, Error> {
        self.replay_waiting(name)?;
        let (open, was_open) = self.open_files(name)?;
        if !was_open {
            free_unlinked(&open)?;
        }
        Ok(open)
    }

    /// Replays the log of a dataset if it waited for the dataset's key.
    pub(super) fn replay_waiting(&self, name: &str) -> Result<(), Error> {
        let head = self.datasets.open_head(name)?.id();
        if !self.datasets.has_waiting_log(head) {
            return Ok(());
        }
        let _one_at_a_time = self.replays.lock();
        match self.datasets.has_waiting_log(head) {
            true => self.replay_log(name, &ImportNotes::default()),
            false => Ok(()),
        }
    }

    /// Like [`Pool::file_system`], but does not free unlinked files. The flag is true if it was already
    /// open.
    pub(super) fn open_files(&self, name: &str) -> Result<(Arc<FileSystem>, bool), Error> {
        let dataset = self.datasets.open_head(name)?;
        let settings = self.settings_of(&dataset);
        let mut files = self.files.lock();
        files.retain(|_, open| open.strong_count() > 0);
        if let Some(open) = files.get(&dataset.id()).and_then(Weak::upgrade) {
            open.set_settings(settings);
            return Ok((open, true));
        }
        let (id, set) = (dataset.id(), dataset.set());
        let gate = Arc::new(self.gate(name, dataset)?);
        let open = FileSystem::open_for_change(set, gate, &self.env, settings)?;
        files.insert(id, Arc::downgrade(&open));
        Ok((open, false))
    }

    /// The number of deleted files of a file system that are not freed yet, because they are large or still open. 0 if
    /// the file system is not open.
    ///
    /// # Errors
    /// If there is no such dataset, or the unlinked set cannot be read.
    pub fn delete_queue(&self, name: &str) -> Result<u64, Error> {
        let head = self.datasets.open_head(name)?.id();
        let open = self.files.lock().get(&head).and_then(Weak::upgrade);
        Ok(match open {
            Some(files) => files.unlinked()?.len() as u64,
            None => 0,
        })
    }

    /// What a file system has done since it was opened. `None` if the head with this object id is not an open file system.
    #[must_use]
    pub fn file_statistics(&self, head: u64) -> Option<FileStatistics> {
        let open = self
            .files
            .lock()
            .get(&ObjectId(head))
            .and_then(Weak::upgrade)?;
        open.statistics().ok()
    }

    /// Raises the version of a live file system, mounted or not, unless it already has this version, and completes the
    /// accounting of owners. The change is on stable storage when this returns.
    ///
    /// # Errors
    /// As [`FileSystem::raise_version`].
    pub fn raise_version(&self, name: &str, version: u64) -> Result<(), Error> {
        let files = self.file_system(name)?;
        let old = files.raise_version(version)?;
        if old != version {
            // This waits for a txg that is not older than that of the change.
            self.datasets.note_raised(name, old, version)?;
            free_unlinked(&files)?;
        }
        if is_writable(&files) && files.incomplete_accounting() != 0 {
            files.complete_accounting_now()?;
            self.sync()?;
        }
        Ok(())
    }

    /// Applies newly enabled features to open file systems. The accounting of a mounted one is completed in the background
    /// from its next mount or its next new file on.
    pub fn features_changed(&self) {
        let open: Vec<_> = {
            let files = self.files.lock();
            let pairs = files.iter();
            pairs
                .filter_map(|(id, files)| Some((*id, files.upgrade()?)))
                .collect()
        };
        for (id, files) in open {
            if let Some(head) = self.datasets.head_if_open(id) {
                files.set_settings(self.settings_of(&head));
            }
        }
    }

    fn gate(&self, name: &str, dataset: Arc<HeadDataset>) -> Result<DatasetTxProvider, Error> {
        let features = self.inner().features();
        let gate = DatasetTxProvider::new(&self.datasets, dataset, |guid| {
            features.count(guid).is_some()
        });
        gate.map_err(|_| Error::OtherLog { name: name.into() })
    }

    fn settings_of(&self, dataset: &HeadDataset) -> millpond_posix::Settings {
        let features = self.inner().features();
        let mut settings =
            file_settings(&dataset.settings(), |guid| features.count(guid).is_some());
        let times = self.access_times.lock().get(&dataset.id()).copied();
        if let Some(times) = times {
            let properties = dataset.settings();
            let is_on = |name| properties.is_on(name);
            settings.atime = access_time_policy(
                times.atime.unwrap_or_else(|| is_on("atime")),
                times.relatime.unwrap_or_else(|| is_on("relatime")),
            );
        }
        if let Some(key) = dataset.set().write_key() {
            let most = key.key().suite().block_bytes_max();
            settings.record_bytes = settings.record_bytes.min(most);
        }
        settings
    }

    /// Opens a volume for writing. Frees blocks beyond its end that a crash left behind first.
    ///
    /// # Errors
    /// If no volume has this name, or it cannot be written.
    pub fn volume(&self, name: &str) -> Result<Arc<Volume>, Error> {
        self.replay_waiting(name)?;
        self.open_volume(name)
    }

    /// Like [`Pool::volume`], but does not look for a log to replay.
    pub(super) fn open_volume(&self, name: &str) -> Result<Arc<Volume>, Error> {
        let dataset = self.datasets.open_head(name)?;
        let mut volumes = self.volumes.lock();
        volumes.retain(|_, open| open.strong_count() > 0);
        if let Some(open) = volumes.get(&dataset.id()).and_then(Weak::upgrade) {
            return Ok(open);
        }
        let (id, set) = (dataset.id(), dataset.set());
        let is_read_only = self.settings_of(&dataset).is_read_only;
        let gate = Arc::new(self.gate(name, dataset)?);
        let open = Arc::new(Volume::open_for_change(name, &set, gate)?);
        volumes.insert(id, Arc::downgrade(&open));
        drop(volumes);
        if !is_read_only {
            open.free_beyond_end()?;
        }
        Ok(open)
    }

    /// Starts the thread that scrubs and resilvers, until the pool is closed. Without it, scans stand still.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start_scanner(&self) -> std::io::Result<()> {
        Scanner::default().start(self.inner())
    }

    /// Waits until all changes so far are on stable storage.
    ///
    /// # Errors
    /// If the pool is suspended.
    pub fn sync(&self) -> Result<(), Error> {
        self.inner().sync()?;
        Ok(())
    }

    /// Waits until the space of files that were deleted before can be discarded: for the files that are freed in the
    /// background at most so long.
    ///
    /// # Errors
    /// As [`Pool::sync`].
    pub fn wait_for_frees(&self, limit: Duration) -> Result<(), Error> {
        let open: Vec<_> = self
            .files
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        let clock = &self.env.clock;
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = clock.monotonic_ns().saturating_add(limit_ns);
        for files in open {
            let left_ns = until_ns.saturating_sub(clock.monotonic_ns());
            files.wait_for_drain(Duration::from_nanos(left_ns));
        }
        for _ in 0..FREE_TXGS {
            self.sync()?;
        }
        Ok(())
    }

    /// A read-only view of the last committed state. Its blocks are not reused while the returned
    /// view is open; [`millpond_pool::Pool::committed`] gives the bounds. Keep the view while reading files or
    /// volumes that were opened from it.
    ///
    /// # Errors
    /// If that state cannot be read.
    pub fn committed(&self) -> Result<View, Error> {
        Ok(View::of_live(
            self.inner().committed()?,
            Arc::clone(self.datasets.keys()),
        ))
    }

    /// Reads the last committed state, and a newer one if that expires meanwhile.
    ///
    /// # Errors
    /// Those of `query`; [`PoolError::ViewExpired`](millpond_pool::PoolError::ViewExpired) if each state expired.
    pub fn read_committed<R>(&self, query: impl Fn(&View) -> Result<R, Error>) -> Result<R, Error> {
        let mut tries_left = READ_TRIES;
        loop {
            let view = self.committed()?;
            let found = query(&view);
            tries_left -= 1;
            match view.inner().check_not_expired() {
                Ok(()) => return found,
                Err(expired) if tries_left == 0 => return Err(expired.into()),
                Err(_) => {}
            }
        }
    }

    /// Writes all changes and marks the pool as exported in its labels.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn export(self) -> Result<(), Error> {
        self.inner().export()?;
        Ok(())
    }
}

/// Frees files that the last use of a file system left unlinked, if it is writable.
fn free_unlinked(files: &FileSystem) -> Result<(), Error> {
    if is_writable(files) {
        files.free_unlinked()?;
    }
    Ok(())
}

/// Whether files may be changed.
pub(super) fn is_writable(files: &FileSystem) -> bool {
    !files.settings().is_read_only
}
