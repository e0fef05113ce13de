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
    /// Makes the folder that is mounted over, where it is missing; without `overlay` it must be empty.
    ///
    /// # Errors
    /// [`MountProblem::NotEmpty`], [`MountProblem::Failed`].
    fn prepare(&self, mountpoint: &Path, overlay: bool) -> Result<(), MountProblem> {
        std::fs::create_dir_all(mountpoint).map_err(|error| {
            MountProblem::Failed(format!("cannot create {}: {error}", mountpoint.display()))
        })?;
        let is_empty = || std::fs::read_dir(mountpoint).is_ok_and(|mut all| all.next().is_none());
        match overlay || is_empty() {
            true => Ok(()),
            false => Err(MountProblem::NotEmpty),
        }
    }
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
    fn prepare(&self, _: &Path, _: bool) -> Result<(), MountProblem> {
        Ok(())
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
