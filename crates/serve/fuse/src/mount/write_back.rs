//! Writes what programs changed in mapped memory, before they are cut off.

use super::{Mount, direct};
use crate::error::FuseError;
use millpond_env::sync::bounded;
use millpond_env::thread;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::path::Path;
use std::time::Duration;

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
        outcome.map_err(failed)
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
