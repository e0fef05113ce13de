//! A connection over which descriptors are passed.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// A unix socket that receives descriptors.
#[derive(Debug)]
pub(crate) struct DescriptorSocket {
    stream: UnixStream,
    /// At most one is kept: a caller cannot make this process run out of descriptors.
    received: Option<OwnedFd>,
}

impl DescriptorSocket {
    /// Receives from a connected socket.
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            received: None,
        }
    }

    /// Takes the last descriptor that came with the bytes read so far.
    pub(crate) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.received.take()
    }

    /// Whether the other end has hung up. Reads nothing.
    pub(crate) fn is_hung_up(&self) -> bool {
        let mut polled = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        poll(&mut polled, Some(&now)).is_ok_and(|count| count > 0)
            && polled.iter().any(|fd| fd.revents().intersects(gone))
    }
}

impl Read for DescriptorSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let read = recvmsg(&self.stream, &mut parts, &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.received = descriptors.last();
            }
        }
        Ok(read.bytes)
    }
}

impl Write for DescriptorSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Sends the first byte of a message together with a descriptor. Returns the bytes that are left to send.
///
/// # Errors
/// Those of the socket.
pub(crate) fn send_with_descriptor<'b>(
    stream: &UnixStream,
    bytes: &'b [u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<&'b [u8]> {
    let (first, rest) = bytes.split_at(bytes.len().min(1));
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let parts = [IoSlice::new(first)];
    sendmsg(stream, &parts, &mut control, SendFlags::empty())?;
    Ok(rest)
}
