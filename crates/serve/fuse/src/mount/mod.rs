//! Mounting, unmounting, and what killed servers leave behind.

mod direct;
mod helper;
mod place;

use crate::abi::{notify_epoch, notify_invalidate_entry, notify_invalidate_inode};
use crate::error::FuseError;
use crate::server::{Connection, FuseServer};
use crate::session::{Session, Trouble};
use crate::transport::Channel;
use millpond_env::sync::Arc;
use millpond_posix::vfs::{InodeNumber, Vfs};
use place::{Parent, Place};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long unmounting waits for the last requests of a session. It is not over by then if the file system is
/// mounted in another namespace too.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// What is mounted where.
pub struct MountTarget {
    /// The files.
    pub files: Arc<dyn Vfs>,
    /// What stands as the source in tables of mounts: the dataset's name.
    pub source: String,
    /// An existing directory. Links on the way are followed where only root and this user could have made them.
    pub mountpoint: PathBuf,
    /// A folder that the mount point is in and that no link below it leads out of.
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

/// How it is mounted. The default is what OpenZFS's properties have for defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountOptions {
    /// Nothing can be changed. Forced where the files cannot change.
    pub read_only: bool,
    /// Programs can be run.
    pub exec: bool,
    /// Set-user and set-group bits count.
    pub suid: bool,
    /// Device nodes work.
    pub devices: bool,
    /// Access times are shown as kept. Whether they are is a setting of the files.
    pub atime: bool,
    /// Mounting over a directory that has files in it is fine.
    pub overlay: bool,
    /// Other users may look into it. Ordinary users may say so only where `/etc/fuse.conf` lets them.
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

/// A mounted file system. Dropped, it is unmounted, and detached if it is in use: then it goes when its last user
/// does.
pub struct Mount {
    connection: Arc<Connection>,
    mountpoint: PathBuf,
    /// The mount's number in this namespace.
    id: Option<u64>,
    is_by_helper: bool,
    /// Its threads serve the session.
    _server: Arc<FuseServer>,
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
    /// [`FuseError`] tells which step failed; nothing is mounted then.
    pub fn mount(
        self: &Arc<Self>,
        target: MountTarget,
        options: &MountOptions,
    ) -> Result<Mount, FuseError> {
        let place = Place::open(target.root.as_deref(), &target.mountpoint, false)?;
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
            _server: Arc::clone(self),
        })
    }
}

impl Mount {
    /// Where it is mounted, without links.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }
    /// Whether it is still served: not after somebody else unmounted it.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.connection.is_over()
    }
    /// Waits until it is not served any more, because it was unmounted here or elsewhere.
    pub fn wait(&self) {
        self.connection.wait();
    }
    /// Whether requests come through io_uring: root has allowed it to the kernel's FUSE (`enable_uring`), this process may use
    /// it, and the server has threads left for it. Not before the first request.
    #[must_use]
    pub fn is_by_ring(&self) -> bool {
        self.connection.rings.are_used()
    }
    /// Files that programs were told `EIO` about since the last call: each once, and not more than a log bears.
    #[must_use]
    pub fn take_troubles(&self) -> Vec<Trouble> {
        self.connection.session.take_troubles()
    }
    /// How many files the kernel knows.
    #[must_use]
    pub fn known_files(&self) -> usize {
        self.connection.session.known_files()
    }

    /// Unmounts. What programs wrote is with the files when this returns; whether it is on stable storage is
    /// for the pool to say.
    ///
    /// # Errors
    /// [`FuseError::Busy`] if somebody uses it and `force` is not set. With `force` the connection is cut
    /// off: whoever still has files open gets errors.
    pub fn unmount(&self, force: bool) -> Result<(), FuseError> {
        if !self.is_alive() {
            self.connection.rings.join();
            return Ok(());
        }
        let path = &self.mountpoint;
        let unmounted = match (self.is_by_helper, force) {
            (true, _) => helper::unmount(path, force),
            (false, false) => direct::unmount(path, self.id),
            (false, true) => direct::unmount_forced(path, self.id),
        };
        match unmounted {
            Ok(()) => {
                if self.connection.wait_for_end(LAST_REQUESTS) {
                    self.connection.rings.join();
                }
                Ok(())
            }
            // Somebody else was faster.
            Err(FuseError::Unmount { .. }) if !self.is_alive() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes the kernel forget all that it holds of the files: they were changed from elsewhere, as by a
    /// rollback. Files that programs have open stay theirs.
    ///
    /// # Errors
    /// If the kernel does not know the notices (names: Linux 6.16); what it could be told it was told.
    pub fn invalidate_all(&self) -> Result<(), FuseError> {
        let channel = &self.connection.channel;
        let names = channel.send(&notify_epoch());
        for node in self.connection.session.known_nodes() {
            tolerate_absence(channel.send(&notify_invalidate_inode(node)))?;
        }
        tolerate_absence(names)
    }

    /// Makes the kernel forget content and attributes of a file that was changed from elsewhere.
    ///
    /// # Errors
    /// If the connection is over.
    pub fn invalidate(&self, number: InodeNumber) -> Result<(), FuseError> {
        let node = self.connection.session.node_number(number);
        tolerate_absence(self.connection.channel.send(&notify_invalidate_inode(node)))
    }

    /// Makes the kernel forget what a name in a directory stands for.
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

/// What the kernel does not know it need not forget.
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

fn check_empty(place: &Place, is_overlay: bool) -> Result<(), FuseError> {
    let wrong = |error: Errno| FuseError::MountPoint {
        path: place.path().to_owned(),
        error,
    };
    match is_overlay || place.is_empty().map_err(wrong)? {
        true => Ok(()),
        false => Err(FuseError::NotEmpty(place.path().to_owned())),
    }
}

/// Makes the directory of a mount point where it is missing, as [`FuseServer::mount`] will find it, and says where it is
/// without links.
///
/// # Errors
/// [`FuseError::Upwards`], [`FuseError::Link`], [`FuseError::MountPoint`]; [`FuseError::NotEmpty`] without `overlay`.
pub fn prepare_mountpoint(
    root: Option<&Path>,
    path: &Path,
    overlay: bool,
) -> Result<PathBuf, FuseError> {
    // A server that was killed may have left a mount here, whichever state directory it had.
    clear_dead_mount(path)?;
    let place = Place::open(root, path, true)?;
    check_empty(&place, overlay)?;
    Ok(place.path().to_owned())
}

/// Unmounts what a server left behind when it was killed: a mount whose every use ends in "not connected". Anything
/// else is left alone.
///
/// # Errors
/// If such a mount is there and cannot be unmounted.
pub fn clear_dead_mount(path: &Path) -> Result<(), FuseError> {
    // Several may lie one above the other.
    for _ in 0..16 {
        // A place that is not there has no mount.
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
