//! Mounts and unmounts file systems, and clears mounts of killed servers.

mod copies;
mod direct;
mod helper;
mod mount_point;
mod replace_files;
mod table;
mod users;
mod write_back;

use crate::abi::{
    notify_epoch, notify_invalidate_attributes, notify_invalidate_entry, notify_invalidate_inode,
};
use crate::error::FuseError;
use crate::server::{Connection, FuseServer};
use crate::session::{Session, Trouble};
use crate::transport::Channel;
use millpond_env::sync::Arc;
use millpond_posix::vfs::{InodeNumber, Vfs};
use mount_point::{MountPoint, Parent};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use replace_files::SuspendedMount;
pub use table::mounted_dataset;
pub use users::{MountUser, MountUsers};

/// How long unmounting waits for the last requests of a session.
const LAST_REQUESTS: Duration = Duration::from_secs(2);
/// The same if the file system is still mounted in another namespace, for example because a container was started meanwhile.
/// It is cut off there after that.
const LAST_REQUESTS_OF_COPIES: Duration = Duration::from_millis(50);
/// How long a forced unmount waits for what programs changed in mapped memory.
const WRITE_BACK: Duration = Duration::from_secs(10);

/// What to mount, and where.
pub struct MountTarget {
    /// The files to serve.
    pub files: Arc<dyn Vfs>,
    /// The source in mount tables: the dataset's name.
    pub source: String,
    /// An existing directory. Symbolic links in its path are followed only if no user but root and this one
    /// could have made them.
    pub mountpoint: PathBuf,
    /// A directory that contains the mount point, and that no symbolic link below it can leave.
    pub root: Option<PathBuf>,
}

impl std::fmt::Debug for MountTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MountTarget")
            .field("source", &self.source)
            .field("mountpoint", &self.mountpoint)
            .finish_non_exhaustive()
    }
}

/// Mount options. The defaults are those of OpenZFS's properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountOptions {
    /// Whether the mount is read-only. Always so if the files cannot change.
    pub read_only: bool,
    /// Whether programs can be executed.
    pub exec: bool,
    /// Whether set-user and set-group bits take effect.
    pub suid: bool,
    /// Whether device nodes work.
    pub devices: bool,
    /// Whether access times are updated, as far as the mount is concerned. The files' own setting also
    /// applies.
    pub atime: bool,
    /// Whether mounting over a directory with files is allowed.
    pub overlay: bool,
    /// Whether other users may access the mount. Unprivileged users can set this only if `/etc/fuse.conf`
    /// allows it.
    pub allow_other: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            exec: true,
            suid: true,
            devices: true,
            atime: true,
            overlay: false,
            allow_other: rustix::process::geteuid().is_root(),
        }
    }
}

/// A mounted file system. Dropping it unmounts it.
///
/// If it is in use, dropping it detaches the mount, which then ends when its last user closes it.
pub struct Mount {
    connection: Arc<Connection>,
    mountpoint: PathBuf,
    /// The mount's id in this namespace.
    id: Option<u64>,
    is_by_helper: bool,
    /// The server whose threads serve the session.
    server: Arc<FuseServer>,
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount")
            .field("mountpoint", &self.mountpoint)
            .finish_non_exhaustive()
    }
}

impl FuseServer {
    /// Mounts a file system and serves it until it is unmounted.
    ///
    /// # Errors
    /// [`FuseError`] says which step failed; nothing is mounted then.
    pub fn mount(
        self: &Arc<Self>,
        target: MountTarget,
        options: &MountOptions,
    ) -> Result<Mount, FuseError> {
        let place = MountPoint::open(target.root.as_deref(), &target.mountpoint, false)?;
        check_empty(&place, options.overlay)?;
        let path = place.path().to_owned();
        let options = MountOptions {
            read_only: options.read_only || target.files.is_read_only(),
            ..*options
        };
        let session = Session::new(target.files);
        let session = session.map_err(|error| FuseError::Start(error.to_string()))?;
        let is_by_helper = !rustix::process::geteuid().is_root();
        let connection = if is_by_helper {
            let device = helper::mount(&target.source, &path, &options)?;
            let channel = Channel::of_mounted(device).map_err(FuseError::Device);
            channel.and_then(|channel| self.add(channel, session, &target.source, &path))
        } else {
            let channel = Channel::open().map_err(FuseError::Device)?;
            direct::mount(&channel, &target.source, &place, &options)?;
            self.add(channel, session, &target.source, &path)
        };
        let id = match is_by_helper {
            true => None,
            false => direct::mount_id(&place),
        };
        drop(place);
        let connection = connection.inspect_err(|_| detach(&path, id, is_by_helper))?;
        Ok(Mount {
            connection,
            mountpoint: path,
            id,
            is_by_helper,
            server: Arc::clone(self),
        })
    }
}

impl Mount {
    /// The mount point, without symbolic links.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }
    /// Whether it is still served. It is not after it was unmounted, here or by another process.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.connection.is_over()
    }
    /// Waits until it is no longer served, because it was unmounted here or elsewhere.
    pub fn wait(&self) {
        self.connection.wait();
    }
    /// Whether requests come through io_uring.
    ///
    /// This requires that root has enabled it in the kernel's FUSE (`enable_uring`), that this process may
    /// use it, and that the server has threads left for it. It is false before the first request.
    #[must_use]
    pub fn is_by_ring(&self) -> bool {
        self.connection.rings.are_used()
    }
    /// Files for which programs got `EIO` since the last call. Each file is reported once, and the number of
    /// reports is limited to what a log can hold.
    #[must_use]
    pub fn take_troubles(&self) -> Vec<Trouble> {
        self.connection.session.take_troubles()
    }
    /// The number of files that the kernel knows.
    #[must_use]
    pub fn known_files(&self) -> usize {
        self.connection.session.known_files()
    }

    /// Unmounts. When this returns, all writes of programs have reached the files; the pool decides whether
    /// they are on stable storage. Mounts of it in other namespaces end when the handle is dropped.
    ///
    /// With `force` the connection is cut off, and programs with open files get errors. What they changed in mapped memory
    /// is written before, if the files take it within ten seconds.
    ///
    /// # Errors
    /// [`FuseError::Busy`] if it is in use and `force` is not set.
    pub fn unmount(&self, force: bool) -> Result<(), FuseError> {
        if self.is_alive() {
            // Only the last unmount writes back what programs have changed in mapped memory, and this may not be the
            // last one.
            match force {
                true => drop(self.write_back(WRITE_BACK)),
                false => drop(write_back::sync(&self.mountpoint, self.id)),
            }
        }
        self.leave(force)
    }

    /// Unmounts as [`Mount::unmount`] does with `force`, but what programs changed in mapped memory and the kernel has not
    /// written yet is lost. For files that may not take it, and after [`Mount::write_back`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn cut_off(&self) -> Result<(), FuseError> {
        self.leave(true)
    }

    fn leave(&self, force: bool) -> Result<(), FuseError> {
        if !self.is_alive() {
            self.connection.rings.join();
            return Ok(());
        }
        let path = &self.mountpoint;
        let device = copies::device_at(path, self.id);
        let unmounted = match (self.is_by_helper, force) {
            (true, _) => helper::unmount(path, force),
            (false, false) => direct::unmount(path, self.id),
            (false, true) => direct::unmount_forced(path, self.id),
        };
        match unmounted {
            Ok(()) => {
                match self.has_ended(device) {
                    true => self.connection.rings.join(),
                    false => self.server.end(&self.connection),
                }
                Ok(())
            }
            // Another process has unmounted it already.
            Err(FuseError::Unmount { .. }) if !self.is_alive() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits until the kernel has ended the session, which it does when the last copy of the mount is gone.
    fn has_ended(&self, device: Option<users::DeviceNumber>) -> bool {
        self.connection.wait_for_end(LAST_REQUESTS_OF_COPIES)
            || !device.is_some_and(copies::is_mounted_somewhere)
                && self.connection.wait_for_end(LAST_REQUESTS)
    }

    /// Changes the options while it is in use: all but `overlay` and `allow_other`. Returns false if that is not possible
    /// here, because `fusermount3` mounted it.
    ///
    /// # Errors
    /// [`FuseError::Busy`] if it becomes read-only and files are open for writing; [`FuseError::Remount`].
    pub fn change_options(&self, options: &MountOptions) -> Result<bool, FuseError> {
        if self.is_by_helper || self.id.is_none() {
            return Ok(false);
        }
        direct::change_options(&self.mountpoint, self.id, options)?;
        Ok(true)
    }

    /// Who keeps it in use, for an error message. Looks through all processes.
    #[must_use]
    pub fn users(&self) -> MountUsers {
        MountUsers::of(&self.mountpoint, self.id)
    }

    /// Makes the kernel drop everything it has cached of the files, because they were changed by other means,
    /// for example by a rollback. Files that programs have open stay open.
    ///
    /// # Errors
    /// If the kernel does not support a notice (the one for names needs Linux 6.16). The other notices are
    /// still sent.
    pub fn invalidate_all(&self) -> Result<(), FuseError> {
        let channel = &self.connection.channel;
        let names = channel.send(&notify_epoch());
        for node in self.connection.session.known_nodes() {
            tolerate_absence(channel.send(&notify_invalidate_inode(node)))?;
        }
        tolerate_absence(names)
    }

    /// Makes the kernel drop the cached content and attributes of a file that was changed by other means.
    ///
    /// # Errors
    /// If the connection is over.
    pub fn invalidate(&self, number: InodeNumber) -> Result<(), FuseError> {
        let node = self.connection.session.node_number(number);
        tolerate_absence(self.connection.channel.send(&notify_invalidate_inode(node)))
    }

    /// Makes the kernel ask again for the attributes of files whose space usage was not known when it asked last.
    ///
    /// # Errors
    /// If the connection is over.
    pub fn invalidate_usage(&self) -> Result<(), FuseError> {
        let channel = &self.connection.channel;
        for node in self.connection.session.take_unsettled_nodes() {
            tolerate_absence(channel.send(&notify_invalidate_attributes(node)))?;
        }
        Ok(())
    }

    /// The same as [`Mount::invalidate`] for the root directory. Its number of links depends on the property `snapdir`.
    ///
    /// # Errors
    /// If the connection is over.
    pub fn invalidate_root(&self) -> Result<(), FuseError> {
        self.invalidate(self.connection.session.root())
    }

    /// Makes the kernel drop its cached entry for a name in a directory.
    ///
    /// # Errors
    /// If the connection is over.
    pub fn invalidate_name(&self, directory: InodeNumber, name: &[u8]) -> Result<(), FuseError> {
        let node = self.connection.session.node_number(directory);
        tolerate_absence(
            self.connection
                .channel
                .send(&notify_invalidate_entry(node, name)),
        )
    }
}

/// A file or name that the kernel does not know needs no invalidation.
fn tolerate_absence(sent: Result<(), Errno>) -> Result<(), FuseError> {
    match sent {
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
        Err(error) => Err(FuseError::Device(error)),
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.unmount(false).is_err() {
            detach(&self.mountpoint, self.id, self.is_by_helper);
        }
    }
}

fn detach(path: &Path, id: Option<u64>, is_by_helper: bool) {
    let _ = match is_by_helper {
        true => helper::unmount(path, true),
        false => direct::detach(path, id),
    };
}

fn check_empty(place: &MountPoint, is_overlay: bool) -> Result<(), FuseError> {
    let wrong = |error: Errno| FuseError::MountPoint {
        path: place.path().to_owned(),
        error,
    };
    match is_overlay || place.is_empty().map_err(wrong)? {
        true => Ok(()),
        false => Err(FuseError::NotEmpty(place.path().to_owned())),
    }
}

/// Creates the directory of a mount point if it is missing, as [`FuseServer::mount`] will find it.
///
/// Returns its path without symbolic links, and whether it was created.
///
/// # Errors
/// [`FuseError::Upwards`], [`FuseError::Link`], [`FuseError::MountPoint`]; [`FuseError::NotEmpty`] without
/// `overlay`.
pub fn prepare_mountpoint(
    root: Option<&Path>,
    path: &Path,
    overlay: bool,
) -> Result<(PathBuf, bool), FuseError> {
    // A killed server may have left a mount here, no matter which state directory it used.
    clear_dead_mount(path)?;
    let place = MountPoint::open(root, path, true)?;
    check_empty(&place, overlay)?;
    Ok((place.path().to_owned(), place.is_made()))
}

/// Removes the directory of a former mount point, of which [`prepare_mountpoint`] returned the path.
///
/// # Errors
/// [`FuseError::MountPoint`], also if it is not empty, not a directory, or something is mounted there.
pub fn remove_mountpoint(path: &Path) -> Result<(), FuseError> {
    let removed = Parent::open(path)?.remove_child();
    removed.map_err(|error| FuseError::MountPoint {
        path: path.to_owned(),
        error,
    })
}

/// Unmounts a mount of a killed server, where every access fails with "not connected".
///
/// Other mounts are not touched.
///
/// # Errors
/// If there is such a mount and it cannot be unmounted.
pub fn clear_dead_mount(path: &Path) -> Result<(), FuseError> {
    // Several dead mounts may be stacked.
    for _ in 0..16 {
        // A path that does not exist has no mount.
        let Ok(parent) = Parent::open(path) else {
            return Ok(());
        };
        if !direct::is_dead(&parent) {
            return Ok(());
        }
        match rustix::process::geteuid().is_root() {
            true => direct::detach(path, parent.mount_id())?,
            false => helper::unmount(path, true)?,
        }
    }
    Ok(())
}
