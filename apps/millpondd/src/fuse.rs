//! Mounts through the kernel's FUSE.

use crate::mounts::{FileTrouble, Mountable, Mounted, Mounter, SuspendedFiles};
use millpond_control::MountProblem;
use millpond_engine::Vfs;
use millpond_env::sync::Arc;
use millpond_env::thread;
use millpond_fuse::{
    FuseError, FuseServer, Mount, MountOptions, MountTarget, MountUsers, SuspendedMount,
    clear_dead_mount, prepare_mountpoint, remove_mountpoint,
};
use millpond_service::{Open, PoolSuspension};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The minimum number of threads that serve requests.
const THREADS_MIN: usize = 4;
/// How long a pool may take to accept what programs changed in mapped memory of a file system, before they are cut off.
const WRITE_BACK: Duration = Duration::from_secs(10);

/// All mounts of this process. One pool of threads serves them.
pub struct FuseMounter {
    server: Arc<FuseServer>,
}

impl FuseMounter {
    /// Starts the threads.
    ///
    /// # Errors
    /// A message for the user.
    pub fn start() -> Result<Self, String> {
        if !Path::new("/dev/fuse").exists() {
            return Err(
                "there is no /dev/fuse here: load the kernel's module (modprobe fuse), or give the \
                 container the device; until then use millpond ls, cp, …"
                    .into(),
            );
        }
        let threads = (2 * thread::parallelism()).max(THREADS_MIN);
        let server = FuseServer::start(threads).map_err(|error| error.to_string())?;
        Ok(Self { server })
    }
}

fn problem(error: FuseError) -> MountProblem {
    match error {
        FuseError::Busy(_) => MountProblem::Busy,
        FuseError::NotEmpty(_) => MountProblem::NotEmpty,
        other => MountProblem::Failed(other.to_string()),
    }
}

/// The problem of a mount in use, with what is known of its users.
fn busy(users: &MountUsers) -> MountProblem {
    let processes = users.processes.iter();
    let names = processes.map(|user| format!("{} (process {})", user.name, user.process));
    let names = names.collect::<Vec<_>>().join(", ");
    match (&users.mounted, names.as_str()) {
        (None, "") => MountProblem::Busy,
        (Some(at), "") => {
            let at = at.display();
            MountProblem::UsedBy(format!("another file system is mounted at {at}"))
        }
        (_, names) => MountProblem::UsedBy(format!("used by {names}")),
    }
}

fn options_of(what: &Mountable<'_>) -> MountOptions {
    let mut options = MountOptions::default();
    options.read_only = what.read_only;
    options.exec = what.exec;
    options.suid = what.suid;
    options.devices = what.devices;
    options.overlay = what.overlay;
    options
}

/// Opens the files. Also returns whether access times are updated, if that is known.
fn open(what: &Mountable<'_>) -> Result<(Arc<dyn Vfs>, Option<bool>), MountProblem> {
    let failed = |error: millpond_engine::Error| MountProblem::Failed(error.to_string());
    match what.pool.opened() {
        Open::Live(live) if what.dataset.contains('@') => {
            let files = live.served_snapshot(what.dataset).map_err(failed)?;
            Ok((files, None))
        }
        Open::Live(live) => {
            let times = what.access_times;
            live.override_access_times(what.dataset, times)
                .map_err(failed)?;
            let settings = live.mount_settings(what.dataset).map_err(failed)?;
            let snapshots = Some(Arc::clone(what.snapshots));
            let files = live.served_with(what.dataset, snapshots).map_err(failed)?;
            Ok((files, Some(settings.atime)))
        }
        Open::ReadOnly(pool, _) => {
            let dataset = pool.dataset(what.dataset).map_err(failed)?;
            Ok((dataset.served().map_err(failed)?, None))
        }
    }
}

impl Mounter for FuseMounter {
    fn prepare(
        &self,
        root: Option<&Path>,
        mountpoint: &Path,
        overlay: bool,
    ) -> Result<(PathBuf, bool), MountProblem> {
        prepare_mountpoint(root, mountpoint, overlay).map_err(problem)
    }

    fn remove(&self, place: &Path) {
        if let Err(error) = remove_mountpoint(place) {
            tracing::debug!("a mount point stays: {error}");
        }
    }

    fn mount(&self, what: &Mountable<'_>) -> Result<Box<dyn Mounted>, MountProblem> {
        let mut options = options_of(what);
        let (files, updates_atime) = open(what)?;
        options.atime = updates_atime.unwrap_or(options.atime);
        let target = MountTarget {
            files,
            source: what.dataset.to_owned(),
            mountpoint: what.mountpoint.to_owned(),
            root: what.root.map(Path::to_owned),
        };
        let mount = self.server.mount(target, &options).map_err(problem)?;
        Ok(Box::new(FuseMount {
            mount,
            suspension: what.pool.watch_suspension(),
        }))
    }

    fn clear_dead(&self, mountpoint: &Path) -> Result<(), String> {
        clear_dead_mount(mountpoint).map_err(|error| error.to_string())
    }
}

struct FuseMount {
    mount: Mount,
    /// `None` if nothing is written.
    suspension: Option<PoolSuspension>,
}

impl FuseMount {
    fn change_flags(&self, options: &MountOptions) -> Result<bool, MountProblem> {
        match self.mount.change_options(options) {
            Err(FuseError::Busy(_)) => Err(busy(&self.mount.users())),
            Err(error @ FuseError::Remount { .. }) => {
                tracing::warn!("mounted again: {error}");
                Ok(false)
            }
            other => other.map_err(problem),
        }
    }
}

struct FuseSuspended(SuspendedMount);

impl SuspendedFiles for FuseSuspended {
    fn resume(
        self: Box<Self>,
        what: &Mountable<'_>,
        is_replaced: bool,
    ) -> Result<(), MountProblem> {
        let (files, _) = open(what)?;
        self.0.resume(files, is_replaced).map_err(problem)
    }
}

impl Mounted for FuseMount {
    fn unmount(&self, force: bool) -> Result<(), MountProblem> {
        let unmounted = match force {
            true => self.mount.cut_off(),
            false => self.mount.unmount(false),
        };
        unmounted.map_err(|error| match error {
            FuseError::Busy(_) => busy(&self.mount.users()),
            other => problem(other),
        })
    }
    fn write_back(&self) -> bool {
        let Some(suspension) = &self.suspension else {
            return true;
        };
        if suspension.is_suspended() {
            return false;
        }
        match self.mount.write_back(WRITE_BACK) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!("{error}");
                !matches!(error, FuseError::WriteBack { error, .. } if error == Errno::TIMEDOUT)
            }
        }
    }
    fn change_options(&self, what: &Mountable<'_>) -> Result<bool, MountProblem> {
        let failed = |error: millpond_engine::Error| MountProblem::Failed(error.to_string());
        let Some(live) = what.pool.live().filter(|_| !what.dataset.contains('@')) else {
            return self.change_flags(&options_of(what));
        };
        let times = live.override_access_times(what.dataset, what.access_times);
        let old_times = times.map_err(failed)?;
        let settings = live.mount_settings(what.dataset).map_err(failed)?;
        let mut options = options_of(what);
        options.atime = settings.atime;
        let changed = self.change_flags(&options);
        if changed != Ok(true) {
            live.override_access_times(what.dataset, old_times)
                .map_err(failed)?;
        }
        // Opening a file system that is already open reloads its properties.
        let _ = live.file_system(what.dataset).map_err(failed)?;
        changed
    }
    fn suspend(&self) -> Result<Option<Box<dyn SuspendedFiles>>, MountProblem> {
        let suspended = self.mount.suspend().map_err(problem)?;
        Ok(suspended.map(|suspended| Box::new(FuseSuspended(suspended)) as _))
    }
    fn is_alive(&self) -> bool {
        self.mount.is_alive()
    }
    fn invalidate_root(&self) {
        // An error means that it is not mounted any more.
        let _ = self.mount.invalidate_root();
    }
    fn invalidate_usage(&self) {
        // As above.
        let _ = self.mount.invalidate_usage();
    }
    fn take_troubles(&self) -> Vec<FileTrouble> {
        let troubles = self.mount.take_troubles().into_iter();
        troubles
            .map(|trouble| FileTrouble {
                object: (trouble.file.tag() == 0).then(|| trouble.file.object()),
                reason: trouble.reason,
            })
            .collect()
    }
}
