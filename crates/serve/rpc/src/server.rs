//! The server side of a connection.

use crate::answer::{answer, answer_with, refuse};
use crate::connection::DescriptorSocket;
use crate::message::{decode_head, decode_request};
use crate::outbox::Outbox;
use crate::stream::{
    DELEGATED_MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX, Messages, StreamError, TimeLimits,
};
use millpond_control::{Failure, Request, Rights, Service};
use millpond_env::Env;
use millpond_env::process::Credentials;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// The longest answer to a caller with [`Access::Delegated`], in bytes.
const DELEGATED_ANSWER_BYTES_MAX: u64 = 64 << 20;
/// The longest answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 4 << 30;
const SECOND_NS: u64 = 1_000_000_000;

/// The process at the other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Caller {
    /// The uid.
    pub user: u32,
    /// The gid.
    pub group: u32,
    /// The supplementary groups: gids. Empty if they are not known.
    pub groups: Vec<u32>,
    /// The process id; 0 if not known.
    pub process: u32,
}

/// The access rights of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read-only access to pools and datasets, and what was delegated to the caller.
    Delegated,
    /// Full access.
    All,
}

impl Access {
    /// The daemon's own user and root have full access. Other users look, and do what was delegated to them.
    #[must_use]
    pub fn of(caller: &Caller, own_user: u32) -> Self {
        match caller.user == 0 || caller.user == own_user {
            true => Self::All,
            false => Self::Delegated,
        }
    }
}

impl Access {
    /// The longest message that is read from the caller, in bytes.
    #[must_use]
    pub fn message_bytes_max(self) -> usize {
        match self {
            Self::Delegated => DELEGATED_MESSAGE_BYTES_MAX,
            Self::All => MESSAGE_BYTES_MAX,
        }
    }

    /// How long the other end may take. A terminal with a pager may stop reading for long.
    #[must_use]
    pub fn times(self, env: &Env) -> TimeLimits {
        let (idle_ns, write_ns) = match self {
            Self::Delegated => (Some(300 * SECOND_NS), 300 * SECOND_NS),
            Self::All => (None, 3_600 * SECOND_NS),
        };
        TimeLimits {
            env: env.clone(),
            idle_ns,
            message_ns: 30 * SECOND_NS,
            write_ns,
        }
    }

    fn answer_bytes_max(self) -> u64 {
        match self {
            Self::Delegated => DELEGATED_ANSWER_BYTES_MAX,
            Self::All => ANSWER_BYTES_MAX,
        }
    }
}

impl Caller {
    /// The credentials of the connected process, from the kernel.
    ///
    /// # Errors
    /// If the kernel does not report them.
    pub fn of(stream: &UnixStream) -> std::io::Result<Self> {
        // A caller outside of this process's pid namespace has no process id here: it is 0.
        let credentials = getsockopt(stream, PeerCredentials)?;
        Ok(Self {
            user: credentials.uid(),
            group: credentials.gid(),
            groups: supplementary_groups(stream, credentials.uid()).unwrap_or_default(),
            process: u32::try_from(credentials.pid()).unwrap_or(0),
        })
    }
}

/// The supplementary groups of the process that connected; `None` if the kernel does not tell them, or the process is gone.
///
/// A process descriptor names the process for as long as it is open, so its id cannot stand for another one meanwhile.
/// A process that has become another user's since then has no groups here.
fn supplementary_groups(stream: &UnixStream, user: u32) -> Option<Vec<u32>> {
    let process = getsockopt(stream, PeerPidfd).ok()?;
    let id = || {
        let path = format!("/proc/self/fdinfo/{}", process.as_raw_fd());
        let text = std::fs::read_to_string(path).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pid:"));
        line?.trim().parse::<u32>().ok()
    };
    let before = id()?;
    let credentials = Credentials::of(before)?;
    (id()? == before && credentials.is_only(user)).then_some(credentials.groups)
}

/// Provides the service that answers requests.
pub trait ServiceProvider: Sync {
    /// The request handler for a caller, which checks what was delegated to one with [`Access::Delegated`]. The pool history
    /// records the caller.
    fn handler<'s>(&'s self, caller: &Caller, access: Access) -> Box<dyn Service + 's>;
    /// A call begins or ends. The daemon must not exit during a call.
    fn busy(&self, is_busy: bool) {
        let _ = is_busy;
    }
    /// How long a caller may take; `None` for no limits.
    fn times(&self, access: Access) -> Option<TimeLimits> {
        let _ = access;
        None
    }
    /// Creates an unnamed file for an answer that is too long for memory.
    ///
    /// # Errors
    /// If none can be created.
    fn scratch(&self) -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Answers calls until the other end hangs up.
///
/// A caller's access is checked before parameters are decoded. An answer is complete before it is sent: while
/// the other end reads, nothing of the service is in use.
///
/// # Errors
/// If the stream fails, or the other end violates the protocol. The connection must then be closed.
pub fn serve(
    stream: UnixStream,
    service: &dyn ServiceProvider,
    caller: &Caller,
    access: Access,
) -> Result<(), StreamError> {
    let mut messages = Messages::new(DescriptorSocket::new(stream))
        .with_bytes_max(access.message_bytes_max())
        .with_times(service.times(access));
    let scratch = || service.scratch();
    loop {
        let bytes = match messages.read() {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(()),
            Err(error) => {
                if let StreamError::TooLong(_) = error {
                    tell(&mut messages, Failure::Call(error.to_string()))?;
                }
                return Err(error);
            }
        };
        let head = decode_head(&bytes);
        if let (Ok(head), Access::Delegated) = (&head, access)
            && head.rights() == Rights::Owner
        {
            tell(&mut messages, Request::denied(&head.method))?;
            continue;
        }
        let request = match head.and_then(|_| decode_request(&bytes)) {
            Ok(request) => request,
            Err(error) => {
                tell(&mut messages, Failure::Call(error.to_string()))?;
                return Err(error);
            }
        };
        drop(bytes);
        let mut out = Outbox::new(&scratch, access.answer_bytes_max());
        let under_way = UnderWay::begin(service);
        let handler = service.handler(caller, access);
        match messages.stream_mut().take_descriptor() {
            None => answer(&mut out, handler.as_ref(), &request),
            Some(descriptor) => {
                let stream = messages.stream();
                let is_abandoned = || stream.is_hung_up();
                let reply = handler.transfer(&request, descriptor, &is_abandoned);
                answer_with(&mut out, reply);
            }
        }
        drop(handler);
        drop(under_way);
        // A key must not wait in memory for a slow reader.
        drop(request);
        out.send(&mut messages)?;
    }
}

/// Sends a caller the reason why it is not served, without waiting for it.
pub fn turn_away(stream: UnixStream, why: &str) {
    if stream.set_nonblocking(true).is_ok() {
        // The send buffer of a new connection has space for the message. If not, the message is dropped.
        let _ = tell(&mut Messages::new(stream), Failure::Call(why.into()));
    }
}

fn tell<S: Write>(messages: &mut Messages<S>, failure: Failure) -> Result<(), StreamError> {
    let scratch = || Err(io::ErrorKind::Unsupported.into());
    let mut out = Outbox::new(&scratch, MESSAGE_BYTES_MAX as u64);
    refuse(&mut out, failure);
    out.send(messages)
}

/// Marks a call as in progress until it is dropped, also on the way out of a panic.
struct UnderWay<'s>(&'s dyn ServiceProvider);

impl<'s> UnderWay<'s> {
    fn begin(service: &'s dyn ServiceProvider) -> Self {
        service.busy(true);
        Self(service)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.busy(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caller_is_the_connected_process() {
        let (here, _there) = UnixStream::pair().unwrap();
        let caller = Caller::of(&here).unwrap();
        assert_eq!(caller.process, std::process::id());
        let own = Credentials::of(std::process::id()).unwrap();
        assert_eq!(caller.groups, own.groups);
    }
}
