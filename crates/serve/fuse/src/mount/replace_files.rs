//! Replaces the files of a mount while programs use them.

use super::{LAST_REQUESTS, Mount, tolerate_absence};
use crate::abi::{notify_epoch, notify_invalidate_entry, notify_invalidate_inode};
use crate::error::FuseError;
use crate::server::Connection;
use crate::session::{ChangedNames, Replaced, Suspended};
use millpond_env::sync::Arc;
use millpond_posix::vfs::Vfs;

/// A mount whose files are closed. Requests of programs wait until [`SuspendedMount::resume`]. Dropping it lets them fail,
/// as all that follow.
pub struct SuspendedMount {
    connection: Arc<Connection>,
    suspended: Option<Suspended>,
}

impl std::fmt::Debug for SuspendedMount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SuspendedMount").finish_non_exhaustive()
    }
}

impl Mount {
    /// Closes all files, so that others can take their place, and lets requests of programs wait. Their descriptors and
    /// working directories stay. `None` if another process has unmounted it: its files are closed then.
    ///
    /// # Errors
    /// [`FuseError::Busy`] if the requests under way take more than ten seconds, or if it is suspended already.
    pub fn suspend(&self) -> Result<Option<SuspendedMount>, FuseError> {
        let session = &self.connection.session;
        if let Some(suspended) = session.suspend() {
            return Ok(Some(SuspendedMount {
                connection: Arc::clone(&self.connection),
                suspended: Some(suspended),
            }));
        }
        // A session that ends writes and closes its files first.
        match session.is_over() && self.connection.wait_for_end(LAST_REQUESTS) {
            true => Ok(None),
            false => Err(FuseError::Busy(self.mountpoint.clone())),
        }
    }
}

impl SuspendedMount {
    /// Serves these files from now on. A file that exists there, by its object and generation, stays open. Requests for
    /// others fail with `ESTALE`.
    ///
    /// When this returns, the kernel shows nothing that it cached of the files before. With `is_replaced`, changes in mapped
    /// memory that were not written by then are dropped, and the next `fsync` or `msync` of such a file fails. Without it,
    /// because the replacement failed, they are written as usual.
    ///
    /// # Errors
    /// If the root directory cannot be opened: requests fail from then on. If the kernel does not take a notice; the others
    /// are still sent.
    pub fn resume(mut self, files: Arc<dyn Vfs>, is_replaced: bool) -> Result<(), FuseError> {
        let Some(suspended) = self.suspended.take() else {
            return Ok(());
        };
        let replaced = self
            .connection
            .session
            .resume(suspended, files, is_replaced);
        let replaced = replaced.map_err(|error| FuseError::Start(error.to_string()))?;
        self.tell(replaced)
    }

    /// Makes the kernel ask again for all that it cached of the files before.
    fn tell(&self, replaced: Replaced) -> Result<(), FuseError> {
        let Connection {
            channel, session, ..
        } = &*self.connection;
        let mut outcome = Ok(());
        let mut note = |sent| {
            if let Err(error) = tolerate_absence(sent) {
                outcome = Err(error);
            }
        };
        match replaced.names {
            // A mount inside is detached then, so single names are better.
            ChangedNames::Any => note(channel.send(&notify_epoch())),
            ChangedNames::These(names) => {
                for (directory, name) in names {
                    let directory = session.node_number(directory);
                    note(channel.send(&notify_invalidate_entry(directory, &name)));
                }
            }
        }
        for number in replaced.files {
            let node = session.node_number(number);
            note(channel.send(&notify_invalidate_inode(node)));
            session.pages_dropped(number);
        }
        match self.connection.is_over() {
            true => Ok(()),
            false => outcome,
        }
    }
}

impl Drop for SuspendedMount {
    fn drop(&mut self) {
        if self.suspended.is_some() {
            self.connection.session.abandon();
        }
    }
}
