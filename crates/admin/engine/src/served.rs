//! File systems in the form that front ends use, with their snapshots in `.zfs/snapshot`.

use super::Pool;
use super::pool::is_writable;
use crate::{Dataset, Error, View};
use millpond_dataset::{DatasetError, InUse};
use millpond_env::sync::Arc;
use millpond_ondisk::dsl::keys;
use millpond_ondisk::{ObjectId, Txg};
use millpond_posix::vfs::{SnapshotChange, SnapshotEntry, SnapshotPort, Vfs, ZfsCtlDir};
use millpond_posix::{BackgroundDrain, Caller, FileError, FileSystem, Timestamp, TransactionError};
use millpond_volume::Volume;

/// Makes the changes of snapshots that programs ask for in `.zfs/snapshot`, if the caller may make them.
pub trait SnapshotControl: Send + Sync {
    /// Makes a change of a snapshot of a dataset. When it returns, the change is committed.
    ///
    /// # Errors
    /// As those of the port of `.zfs/snapshot`: [`FileError::AccessDenied`], [`FileError::NotPermitted`], and what prevents
    /// the change.
    fn change(
        &self,
        dataset: &str,
        caller: &Caller,
        change: SnapshotChange<'_>,
    ) -> Result<(), FileError>;
}

/// Where the snapshots of a dataset are found.
enum Source {
    /// In the committed state of a pool that is open for change. Snapshots appear only after they are committed, and
    /// their blocks are not freed before they are destroyed.
    Live(Pool),
    /// In one state, which does not change.
    Committed(View),
}

impl Source {
    fn read<R>(&self, query: impl Fn(&View) -> Result<R, Error>) -> Result<R, Error> {
        match self {
            Self::Live(pool) => pool.read_committed(query),
            Self::Committed(view) => query(view),
        }
    }
    /// For a view that stays open with a snapshot.
    fn follow_leaves(&self, view: &View) {
        match self {
            Self::Live(_) => view.follow_leaves(),
            Self::Committed(_) => {}
        }
    }
}

/// The snapshots of a dataset.
struct Snapshots {
    source: Source,
    head: ObjectId,
    /// `None` if snapshots are not changed through the front end.
    control: Option<Arc<dyn SnapshotControl>>,
}

/// Converts an error of opening files through a pool.
fn to_file_error(error: Error) -> FileError {
    match error {
        Error::File(error) => error,
        // Reported as an I/O error with the full reason.
        error => FileError::Transaction(TransactionError::Suspended {
            reason: error.to_string(),
        }),
    }
}

impl Snapshots {
    fn entries(&self) -> Result<(Dataset, Vec<(String, ObjectId)>), Error> {
        self.source.read(|view| self.entries_in(view))
    }
    fn entries_in(&self, view: &View) -> Result<(Dataset, Vec<(String, ObjectId)>), Error> {
        let head = view.dataset_by_id(self.head)?;
        let mut entries = head.inner().snapshot_entries()?;
        // Temporary snapshots are hidden.
        entries.retain(|(name, _)| !name.starts_with('%'));
        Ok((head, entries))
    }
}

impl SnapshotPort for Snapshots {
    fn snapshots(&self) -> Result<Vec<SnapshotEntry>, FileError> {
        let (_, entries) = self.entries().map_err(to_file_error)?;
        let entries = entries.into_iter().map(|(name, id)| SnapshotEntry {
            name: name.into_bytes(),
            id: id.0,
        });
        Ok(entries.collect())
    }
    fn find(&self, name: &[u8]) -> Result<Option<SnapshotEntry>, FileError> {
        let all = self.snapshots()?;
        Ok(all.into_iter().find(|snapshot| snapshot.name == name))
    }
    fn changed(&self) -> Result<Timestamp, FileError> {
        let changed = |view: &View| -> Result<_, Error> {
            let head = view.dataset_by_id(self.head)?;
            let words = head
                .inner()
                .directory()
                .extension(keys::SNAPSHOTS_CHANGED)?;
            Ok(match words.as_deref() {
                Some([seconds, nanoseconds, ..]) => Timestamp {
                    seconds: seconds.cast_signed(),
                    nanoseconds: *nanoseconds,
                },
                _ => Timestamp::default(),
            })
        };
        self.source.read(changed).map_err(to_file_error)
    }
    fn open(&self, snapshot: &SnapshotEntry) -> Result<Arc<FileSystem>, FileError> {
        let open = |view: &View| -> Result<Option<Arc<FileSystem>>, Error> {
            let (head, entries) = self.entries_in(view)?;
            let Some((name, id)) = entries.into_iter().find(|(_, id)| id.0 == snapshot.id) else {
                return Ok(None);
            };
            let opened = head.inner().open_snapshot(&name, id)?;
            let files = Dataset::new(head.pool().clone(), opened).file_system()?;
            self.source.follow_leaves(view);
            Ok(Some(files))
        };
        let opened = self.source.read(open).map_err(to_file_error)?;
        opened.ok_or(FileError::NotFound)
    }
    fn last_destroyed(&self) -> Txg {
        match &self.source {
            Source::Live(pool) => pool.datasets().last_snapshot_destroyed(),
            Source::Committed(_) => Txg::default(),
        }
    }
    fn still_has(
        &self,
        snapshot: &SnapshotEntry,
        files: &FileSystem,
    ) -> Result<Option<Txg>, FileError> {
        let own = files.committed().map(|set| *set.root());
        let look = |view: &View| -> Result<Option<Txg>, Error> {
            let (head, entries) = self.entries_in(view)?;
            let found = entries.into_iter().find(|(_, id)| id.0 == snapshot.id);
            let Some((name, id)) = found else {
                return Ok(None);
            };
            let opened = head.inner().open_snapshot(&name, id)?;
            // Another snapshot may have got the id.
            let is_same = own.is_some_and(|own| opened.phys().block_pointer == own);
            Ok(is_same.then(|| view.inner().uberblock().txg))
        };
        self.source.read(look).map_err(to_file_error)
    }
    fn change(&self, caller: &Caller, change: SnapshotChange<'_>) -> Result<(), FileError> {
        if let Source::Committed(_) = self.source {
            return Err(TransactionError::ReadOnly.into());
        }
        let control = self.control.as_ref().ok_or(FileError::AccessDenied)?;
        // It may have been renamed since it was mounted.
        let name = |view: &View| Ok(view.dataset_by_id(self.head)?.name().to_owned());
        let name = self.source.read(name).map_err(to_file_error)?;
        control.change(&name, caller, change)
    }
}

/// Properties of a file system that become mount options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountSettings {
    /// `readonly`.
    pub read_only: bool,
    /// `exec`.
    pub exec: bool,
    /// `setuid`.
    pub suid: bool,
    /// `devices`.
    pub devices: bool,
    /// `atime`.
    pub atime: bool,
    /// `overlay`.
    pub overlay: bool,
}

/// Mount options that replace the properties `atime` and `relatime` while a file system is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AccessTimes {
    /// Whether access times are updated.
    pub atime: Option<bool>,
    /// Whether only those that are older than the last change, or than a day.
    pub relatime: Option<bool>,
}

impl Pool {
    /// Replaces the properties `atime` and `relatime` of a file system. The default ends that. Holds until the next call
    /// or until the pool is closed, and is not stored. Returns what replaced them until now.
    ///
    /// # Errors
    /// If no dataset has this name.
    pub fn override_access_times(
        &self,
        name: &str,
        times: AccessTimes,
    ) -> Result<AccessTimes, Error> {
        let head = self.datasets().open_head(name)?.id();
        let mut all = self.access_times.lock();
        let old = match times == AccessTimes::default() {
            true => all.remove(&head),
            false => all.insert(head, times),
        };
        Ok(old.unwrap_or_default())
    }

    /// The mount options from the properties of a file system.
    ///
    /// # Errors
    /// If no dataset has this name.
    pub fn mount_settings(&self, name: &str) -> Result<MountSettings, Error> {
        let head = self.datasets().open_head(name)?;
        let settings = head.settings();
        let is_on = |name: &str| settings.is_on(name);
        let times = self.access_times.lock().get(&head.id()).copied();
        Ok(MountSettings {
            read_only: is_on("readonly"),
            exec: is_on("exec"),
            suid: is_on("setuid"),
            devices: is_on("devices"),
            atime: times
                .and_then(|times| times.atime)
                .unwrap_or_else(|| is_on("atime")),
            overlay: is_on("overlay"),
        })
    }

    /// Opens a live file system for a front end, such as a mount. The file system keeps the pool open. A
    /// background worker frees files that the last use left unlinked, and large files that are removed.
    ///
    /// # Errors
    /// As [`Pool::file_system`].
    pub fn served(&self, name: &str) -> Result<Arc<ZfsCtlDir>, Error> {
        self.served_with(name, None)
    }

    /// The same, with what makes the changes of snapshots that programs ask for in `.zfs/snapshot`.
    ///
    /// # Errors
    /// As [`Pool::file_system`].
    pub fn served_with(
        &self,
        name: &str,
        control: Option<Arc<dyn SnapshotControl>>,
    ) -> Result<Arc<ZfsCtlDir>, Error> {
        self.replay_waiting(name)?;
        let (files, _) = self.open_files(name)?;
        let drain = match is_writable(&files) {
            true => Some(BackgroundDrain::start(&files)?),
            false => None,
        };
        let head = self.datasets().open_head(name)?.id();
        let pool = self.clone();
        let port = Box::new(Snapshots {
            source: Source::Live(pool),
            head,
            control,
        });
        Ok(Arc::new(ZfsCtlDir::new(files, port, drain)))
    }

    /// Opens a snapshot for a front end of its own. The caller has it in use ([`Pool::use_snapshot`]).
    ///
    /// # Errors
    /// As [`Dataset::file_system`].
    pub fn served_snapshot(&self, name: &str) -> Result<Arc<dyn Vfs>, Error> {
        self.read_committed(|view| {
            let served = view.dataset(name)?.served()?;
            view.follow_leaves();
            Ok(served)
        })
    }

    /// Keeps a snapshot from being destroyed as long as the value exists: a destruction is refused, or put off if it was to
    /// come later.
    ///
    /// # Errors
    /// As [`View::dataset`](crate::View::dataset).
    pub fn use_snapshot(&self, name: &str) -> Result<InUse, Error> {
        let id = self.read_committed(|view| Ok(view.dataset(name)?.inner().id()))?;
        let in_use = self.datasets().use_snapshot(id)?;
        in_use.ok_or_else(|| gone(name))
    }

    /// The name that a snapshot has now.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn name_of_snapshot(&self, in_use: &InUse) -> Result<String, Error> {
        self.read_committed(|view| {
            let found = millpond_dataset::Dataset::by_id(view.inner(), in_use.snapshot())?;
            Ok(found.name().to_owned())
        })
    }

    /// Opens a snapshot of a volume, which may stay open while disks come and go. The snapshot is not destroyed as long as
    /// the second value exists.
    ///
    /// # Errors
    /// As [`Dataset::volume`].
    pub fn snapshot_of_volume(&self, name: &str) -> Result<(Volume, InUse), Error> {
        let in_use = self.use_snapshot(name)?;
        let volume = self.read_committed(|view| {
            let snapshot = view.dataset(name)?;
            // Another one may have got the name meanwhile.
            if snapshot.inner().id() != in_use.snapshot() {
                return Err(gone(name));
            }
            let volume = snapshot.volume()?;
            view.follow_leaves();
            Ok(volume)
        })?;
        Ok((volume, in_use))
    }
}

fn gone(name: &str) -> Error {
    Error::Dataset(DatasetError::NotFound {
        name: name.to_owned(),
    })
}

impl Dataset {
    /// Opens its file system for a read-only front end, with its snapshots if it is not one itself.
    ///
    /// # Errors
    /// As [`Dataset::file_system`].
    pub fn served(&self) -> Result<Arc<dyn Vfs>, Error> {
        let files = self.file_system()?;
        if self.name().contains('@') {
            return Ok(files);
        }
        let port = Box::new(Snapshots {
            source: Source::Committed(self.pool().clone()),
            head: self.inner().id(),
            control: None,
        });
        Ok(Arc::new(ZfsCtlDir::new(files, port, None)))
    }
}
