//! Requests and replies through `/dev/fuse`.
//!
//! Each session has one descriptor, which all threads share: the kernel hands each request to exactly one
//! reader.

mod ring;

pub(crate) use ring::{Next, Slot};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The connection of a session. Reads do not block.
#[derive(Debug)]
pub(crate) struct Channel {
    device: OwnedFd,
}

/// The outcome of reading a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// A request of this many bytes.
    Request(usize),
    /// No request at present.
    Nothing,
    /// The connection is unmounted or cut off.
    Over,
}

impl Channel {
    /// Opens the device for a new connection that is not mounted yet.
    pub fn open() -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
        Ok(Self { device })
    }
    /// Takes ownership of the descriptor of a mounted connection.
    pub fn of_mounted(device: OwnedFd) -> Result<Self, Errno> {
        let flags = rustix::fs::fcntl_getfl(&device)?;
        rustix::fs::fcntl_setfl(&device, flags | OFlags::NONBLOCK)?;
        rustix::io::fcntl_setfd(&device, rustix::io::FdFlags::CLOEXEC)?;
        Ok(Self { device })
    }
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Reads a request into `buffer`, if there is one.
    pub fn receive(&self, buffer: &mut [u8]) -> Received {
        match rustix::io::read(&self.device, buffer) {
            Ok(0) => Received::Over,
            Ok(count) => Received::Request(count),
            // "No entry": the request was cancelled before it could be read.
            Err(Errno::AGAIN | Errno::INTR | Errno::NOENT) => Received::Nothing,
            Err(_) => Received::Over,
        }
    }

    /// Sends a whole reply or notice.
    pub fn send(&self, message: &[u8]) -> Result<(), Errno> {
        loop {
            match rustix::io::write(&self.device, message) {
                Err(Errno::INTR) => {}
                outcome => return outcome.map(|_| ()),
            }
        }
    }
}
