//! Writes what programs changed in mapped memory, before they are cut off.

use super::{Mount, direct, table};
use crate::error::FuseError;
use millpond_env::sync::bounded;
use millpond_env::thread;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::path::Path;
use std::time::Duration;

/// How long a mount that was unmounted is given to end.
const ENDING: Duration = Duration::from_secs(2);

impl Mount {
    /// Makes the kernel write what programs have changed in mapped memory. What they change meanwhile may be missing.
    ///
    /// Another thread waits for the kernel, because the files may not take the changes: their pool may wait for a device.
    /// After `limit` that thread is left behind; it ends when the pool continues or the mount is cut off.
    ///
    /// # Errors
    /// [`FuseError::WriteBack`]: with [`Errno::TIMEDOUT`] after `limit`.
    pub fn write_back(&self, limit: Duration) -> Result<(), FuseError> {
        let failed = |error: Errno| FuseError::WriteBack {
            path: self.mountpoint.clone(),
            error,
        };
        let (done, outcome) = bounded(1);
        let (path, id) = (self.mountpoint.clone(), self.id);
        let spawned = thread::spawn("fuse-write-back", move || {
            // The receiver may have given up.
            let _ = done.send(sync(&path, id));
        });
        spawned.map_err(|_| failed(Errno::AGAIN))?;
        let outcome = outcome.recv_timeout(limit).unwrap_or(Err(Errno::TIMEDOUT));
        match outcome {
            // Another program unmounted it, systemd at shutdown for example. The kernel wrote the pages then.
            Err(Errno::INVAL) if self.is_gone() => Ok(()),
            outcome => outcome.map_err(failed),
        }
    }

    /// Whether it is not mounted any more, in no mount namespace. The connection ends a moment after the unmount.
    fn is_gone(&self) -> bool {
        let is_listed = self.id.is_none_or(|id| table::find_mount(id).is_some());
        !is_listed && self.connection.wait_for_end(ENDING)
    }
}

/// Waits until the kernel has written the changed pages of a mount.
pub(super) fn sync(path: &Path, id: Option<u64>) -> Result<(), Errno> {
    let root = match id {
        Some(_) => direct::open_root(path, id)?,
        None => open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?,
    };
    rustix::fs::syncfs(root)
}
