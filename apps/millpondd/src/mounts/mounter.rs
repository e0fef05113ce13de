//! Who shows file systems to the operating system, and what is asked of them.

use millpond::ObjectId;
use millpond::control::{HeldPool, MountProblem};
use millpond_env::sync::{Arc, Mutex};
use std::path::{Path, PathBuf};

/// A file system that is to be shown to the operating system.
pub struct Mountable<'a> {
    /// Its pool.
    pub pool: &'a HeldPool,
    /// Its name.
    pub dataset: &'a str,
    /// Where: an existing folder.
    pub mountpoint: &'a Path,
    /// The folder that the mount point is in and that no link leads out of: the pool's `altroot`.
    pub root: Option<&'a Path>,
    /// Nothing may be changed through it.
    pub read_only: bool,
    /// Programs may be run from it.
    pub exec: bool,
    /// Programs there may run as somebody else.
    pub suid: bool,
    /// Device files there work.
    pub devices: bool,
    /// The folder need not be empty.
    pub overlay: bool,
}

/// A file system that is mounted.
pub trait Mounted: Send + Sync {
    /// Takes it away.
    ///
    /// # Errors
    /// [`MountProblem::Busy`] if somebody uses it.
    fn unmount(&self, force: bool) -> Result<(), MountProblem>;
    /// Whether it is still there: somebody else may have unmounted it.
    fn is_alive(&self) -> bool;
    /// Files that programs could not read or write since the last call, each once, and why.
    fn take_troubles(&self) -> Vec<FileTrouble> {
        vec![]
    }
}

/// A file that a program could not read or write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileTrouble {
    /// Its number in its file system; `None` if it is a snapshot's.
    pub object: Option<ObjectId>,
    /// Why, in words.
    pub reason: String,
}

/// Whoever shows file systems to the operating system.
pub trait Mounter: Send + Sync {
    /// Makes the folder that is mounted over, where it is missing, and tells where it is without links. Without `overlay` it
    /// must be empty. It lies in `root`, if given, whatever links below that say.
    ///
    /// # Errors
    /// [`MountProblem::NotEmpty`], [`MountProblem::Failed`].
    fn prepare(
        &self,
        root: Option<&Path>,
        mountpoint: &Path,
        overlay: bool,
    ) -> Result<PathBuf, MountProblem>;
    /// Mounts one.
    ///
    /// # Errors
    /// [`MountProblem`].
    fn mount(&self, what: &Mountable<'_>) -> Result<Box<dyn Mounted>, MountProblem>;
    /// Takes away what a killed process left mounted, if there is such a thing.
    ///
    /// # Errors
    /// A text for people.
    fn clear_dead(&self, mountpoint: &Path) -> Result<(), String>;
}

/// Mounts nothing, and says why.
#[derive(Debug, Clone)]
pub struct NoMounter(pub String);

impl Mounter for NoMounter {
    fn prepare(&self, _: Option<&Path>, _: &Path, _: bool) -> Result<PathBuf, MountProblem> {
        Err(MountProblem::Unavailable(self.0.clone()))
    }
    fn mount(&self, _: &Mountable<'_>) -> Result<Box<dyn Mounted>, MountProblem> {
        Err(MountProblem::Unavailable(self.0.clone()))
    }
    fn clear_dead(&self, _: &Path) -> Result<(), String> {
        Ok(())
    }
}

/// Only pretends, for tests: what is mounted is noted, and nothing else happens.
#[derive(Debug, Clone, Default)]
pub struct PretendMounter {
    /// Mount points that are busy.
    pub busy: Arc<Mutex<Vec<PathBuf>>>,
    /// Every mount that was asked for: where, and whether read-only.
    pub asked: Arc<Mutex<Vec<(PathBuf, bool)>>>,
}

struct Pretended {
    mountpoint: PathBuf,
    busy: Arc<Mutex<Vec<PathBuf>>>,
}

impl Mounted for Pretended {
    fn unmount(&self, _: bool) -> Result<(), MountProblem> {
        match self.busy.lock().contains(&self.mountpoint) {
            true => Err(MountProblem::Busy),
            false => Ok(()),
        }
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
    ) -> Result<PathBuf, MountProblem> {
        Ok(mountpoint.to_owned())
    }
    fn mount(&self, what: &Mountable<'_>) -> Result<Box<dyn Mounted>, MountProblem> {
        let asked = (what.mountpoint.to_owned(), what.read_only);
        self.asked.lock().push(asked);
        Ok(Box::new(Pretended {
            mountpoint: what.mountpoint.to_owned(),
            busy: Arc::clone(&self.busy),
        }))
    }
    fn clear_dead(&self, _: &Path) -> Result<(), String> {
        Ok(())
    }
}
