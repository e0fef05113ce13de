//! The interface for mounting file systems in the operating system.

use millpond_control::MountProblem;
use millpond_engine::{AccessTimes, ObjectId, SnapshotControl};
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_service::ImportedPool;
use std::path::{Path, PathBuf};

/// A file system to mount.
pub struct Mountable<'a> {
    /// Its pool.
    pub pool: &'a ImportedPool,
    /// Its name.
    pub dataset: &'a str,
    /// The mount point, an existing directory.
    pub mountpoint: &'a Path,
    /// The pool's `altroot`: the mount point is inside it, and symbolic links cannot lead out of it.
    pub root: Option<&'a Path>,
    /// Mount read-only.
    pub read_only: bool,
    /// Allow execution of programs.
    pub exec: bool,
    /// Honour set-user-id bits.
    pub suid: bool,
    /// Honour device files.
    pub devices: bool,
    /// What replaces the properties `atime` and `relatime`.
    pub access_times: AccessTimes,
    /// Allow a mount point directory that is not empty.
    pub overlay: bool,
    /// Changes snapshots for programs in `.zfs/snapshot`.
    pub snapshots: &'a Arc<dyn SnapshotControl>,
}

/// A mounted file system.
pub trait Mounted: Send + Sync {
    /// Unmounts it. With `force` programs that use it are cut off: [`Mounted::write_back`] comes before.
    ///
    /// # Errors
    /// [`MountProblem::Busy`] or [`MountProblem::UsedBy`] if it is in use.
    fn unmount(&self, force: bool) -> Result<(), MountProblem>;
    /// Writes what programs changed in mapped memory. Returns false if that would take too long, because its pool waits for
    /// devices: these changes are lost when programs are cut off.
    fn write_back(&self) -> bool {
        true
    }
    /// Changes the mount options while it is in use. Returns false if that is not possible here: it must then be mounted again.
    ///
    /// # Errors
    /// [`MountProblem::Busy`] or [`MountProblem::UsedBy`] if it becomes read-only and files are open for writing.
    fn change_options(&self, what: &Mountable<'_>) -> Result<bool, MountProblem>;
    /// Closes its files, so that others can take their place. Programs that use them wait. `None` if another program has
    /// unmounted it.
    ///
    /// # Errors
    /// [`MountProblem::Busy`] if requests under way do not end.
    fn suspend(&self) -> Result<Option<Box<dyn SuspendedFiles>>, MountProblem>;
    /// Whether it is still mounted. Another program may have unmounted it.
    fn is_alive(&self) -> bool;
    /// Makes the system ask again for the attributes of the root directory.
    fn invalidate_root(&self) {}
    /// Makes the system ask again for attributes of files whose space usage has become known.
    fn invalidate_usage(&self) {}
    /// The files that programs failed to read or write since the last call, each once, with the reason.
    fn take_troubles(&self) -> Vec<FileTrouble> {
        vec![]
    }
}

/// A mounted file system whose files are closed. Dropped, it fails all requests.
pub trait SuspendedFiles: Send {
    /// Opens the files that the dataset has now, and lets programs continue. `is_replaced`: they are others than before.
    ///
    /// # Errors
    /// [`MountProblem`] if there are none. Requests then fail.
    fn resume(self: Box<Self>, what: &Mountable<'_>, is_replaced: bool)
    -> Result<(), MountProblem>;
}

/// A file that a program failed to read or write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileTrouble {
    /// Its object id in the file system; `None` for a file of a snapshot.
    pub object: Option<ObjectId>,
    /// The reason.
    pub reason: String,
}

/// Mounts file systems in the operating system.
pub trait Mounter: Send + Sync {
    /// Creates the mount point directory if it is missing, and returns its path with links resolved, and whether it was
    /// created. It must be empty unless `overlay` is set. If `root` is given, the directory is inside it, and links below
    /// `root` cannot lead out of it.
    ///
    /// # Errors
    /// [`MountProblem::NotEmpty`], [`MountProblem::Failed`].
    fn prepare(
        &self,
        root: Option<&Path>,
        mountpoint: &Path,
        overlay: bool,
    ) -> Result<(PathBuf, bool), MountProblem>;
    /// Removes the directory of a former mount point, a path that [`Mounter::prepare`] returned. It stays if it is not
    /// empty, or something is mounted there.
    fn remove(&self, place: &Path) {
        let _ = place;
    }
    /// Mounts a file system.
    ///
    /// # Errors
    /// [`MountProblem`].
    fn mount(&self, what: &Mountable<'_>) -> Result<Box<dyn Mounted>, MountProblem>;
    /// Removes a mount that a killed process left, if there is one.
    ///
    /// # Errors
    /// A message for the user.
    fn clear_dead(&self, mountpoint: &Path) -> Result<(), String>;
}

/// Refuses all mounts, with a reason.
#[derive(Debug, Clone)]
pub struct NoMounter(pub String);

impl Mounter for NoMounter {
    fn prepare(
        &self,
        _: Option<&Path>,
        _: &Path,
        _: bool,
    ) -> Result<(PathBuf, bool), MountProblem> {
        Err(MountProblem::Unavailable(self.0.clone()))
    }
    fn mount(&self, _: &Mountable<'_>) -> Result<Box<dyn Mounted>, MountProblem> {
        Err(MountProblem::Unavailable(self.0.clone()))
    }
    fn clear_dead(&self, _: &Path) -> Result<(), String> {
        Ok(())
    }
}

/// A mock for tests: records mounts, and has no other effect.
#[derive(Debug, Clone, Default)]
pub struct PretendMounter {
    /// Mount points that are busy.
    pub busy: Arc<Mutex<Vec<PathBuf>, rank::Leaf>>,
    /// All mounts whose files were replaced: mount point.
    pub replaced: Arc<Mutex<Vec<PathBuf>, rank::Leaf>>,
    /// All mounts whose options changed in place: mount point, and whether read-only.
    pub changed: Arc<Mutex<Vec<(PathBuf, bool)>, rank::Leaf>>,
    /// What was written back and unmounted by force, in this order: mount point, and whether unmounted.
    pub forced: Arc<Mutex<Vec<(PathBuf, bool)>, rank::Leaf>>,
    /// Mount points whose pools wait for devices.
    pub stuck: Arc<Mutex<Vec<PathBuf>, rank::Leaf>>,
    /// All mounts requested: mount point, and whether read-only.
    pub asked: Arc<Mutex<Vec<(PathBuf, bool)>, rank::Leaf>>,
}

#[derive(Clone)]
struct Pretended {
    mountpoint: PathBuf,
    busy: Arc<Mutex<Vec<PathBuf>, rank::Leaf>>,
    replaced: Arc<Mutex<Vec<PathBuf>, rank::Leaf>>,
    changed: Arc<Mutex<Vec<(PathBuf, bool)>, rank::Leaf>>,
    forced: Arc<Mutex<Vec<(PathBuf, bool)>, rank::Leaf>>,
    stuck: Arc<Mutex<Vec<PathBuf>, rank::Leaf>>,
}

impl SuspendedFiles for Pretended {
    fn resume(self: Box<Self>, _: &Mountable<'_>, is_replaced: bool) -> Result<(), MountProblem> {
        if is_replaced {
            self.replaced.lock().push(self.mountpoint.clone());
        }
        Ok(())
    }
}

impl Mounted for Pretended {
    fn unmount(&self, force: bool) -> Result<(), MountProblem> {
        if force {
            self.forced.lock().push((self.mountpoint.clone(), true));
            return Ok(());
        }
        match self.busy.lock().contains(&self.mountpoint) {
            true => Err(MountProblem::Busy),
            false => Ok(()),
        }
    }
    fn write_back(&self) -> bool {
        self.forced.lock().push((self.mountpoint.clone(), false));
        !self.stuck.lock().contains(&self.mountpoint)
    }
    fn change_options(&self, what: &Mountable<'_>) -> Result<bool, MountProblem> {
        self.unmount(false)?;
        let changed = (self.mountpoint.clone(), what.read_only);
        self.changed.lock().push(changed);
        Ok(true)
    }
    fn suspend(&self) -> Result<Option<Box<dyn SuspendedFiles>>, MountProblem> {
        self.unmount(false)?;
        Ok(Some(Box::new(self.clone())))
    }
    fn is_alive(&self) -> bool {
        true
    }
}

impl Mounter for PretendMounter {
    fn prepare(
        &self,
        _: Option<&Path>,
        mountpoint: &Path,
        _: bool,
    ) -> Result<(PathBuf, bool), MountProblem> {
        Ok((mountpoint.to_owned(), false))
    }
    fn mount(&self, what: &Mountable<'_>) -> Result<Box<dyn Mounted>, MountProblem> {
        let asked = (what.mountpoint.to_owned(), what.read_only);
        self.asked.lock().push(asked);
        Ok(Box::new(Pretended {
            mountpoint: what.mountpoint.to_owned(),
            busy: Arc::clone(&self.busy),
            replaced: Arc::clone(&self.replaced),
            changed: Arc::clone(&self.changed),
            forced: Arc::clone(&self.forced),
            stuck: Arc::clone(&self.stuck),
        }))
    }
    fn clear_dead(&self, _: &Path) -> Result<(), String> {
        Ok(())
    }
}
