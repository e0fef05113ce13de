//! The file of a disk, served to the kernel.

use crate::disk::Disk;
use crate::server::Server;
use crate::session::Session;
use millpond_env::sync::Arc;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::time::Duration;

/// A disk as an open file. When all who have the file open close it, nothing holds the disk any more.
pub(crate) struct Image {
    session: Arc<Session>,
    server: Server,
    /// `None` after it was closed.
    file: Option<OwnedFd>,
}

impl Image {
    /// Serves a disk.
    pub(crate) fn serve(
        disk: Arc<dyn Disk>,
        name: &str,
        is_read_only: bool,
        may_change: bool,
    ) -> Result<Self, Errno> {
        let session = Arc::new(Session::new(disk, is_read_only));
        let (mut server, place) = Server::start(&session, name)?;
        let access = match may_change {
            true => OFlags::RDWR,
            false => OFlags::RDONLY,
        };
        let flags = access | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = rustix::fs::open(place.path(), flags, Mode::empty());
        server.opened();
        let image = Self {
            session,
            server,
            file: Some(file?),
        };
        // The kernel does not know the size before it has asked for it.
        image.ask_size()?;
        Ok(image)
    }
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }
    pub(crate) fn file(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.file.as_ref().map(AsFd::as_fd).ok_or(Errno::BADF)
    }
    /// Lets the kernel ask for the size, which has changed.
    pub(crate) fn ask_size(&self) -> Result<(), Errno> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        rustix::fs::statx(self.file()?, "", flags, StatxFlags::SIZE).map(drop)
    }
    /// Closes the file, waits for the threads, and gives the disk up. Others who have the file open get errors then.
    pub(crate) fn close(&mut self, limit: Duration) {
        drop(self.file.take());
        self.server.wait(limit);
        self.session.end();
    }
}
