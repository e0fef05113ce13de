//! The client side of a connection.

use crate::connection::send_with_descriptor;
use crate::message::decode_reply;
use crate::server::Caller;
use crate::stream::{Messages, StreamError, encode};
use millpond_control::{
    ControlError, Failure, Item, MountProblem, Reply, Request, Rights, Service,
};
use millpond_env::rank;
use millpond_env::sync::Mutex;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// A connection to the daemon. Requests run one after the other.
#[derive(Debug)]
pub struct Client {
    messages: Mutex<Messages<UnixStream>, rank::Leaf>,
    /// The socket to reconnect to.
    socket: Option<PathBuf>,
}

/// There is no answer, or none that can be decoded.
fn no_answer(error: impl std::fmt::Display) -> Failure {
    Failure::Call(format!(
        "the daemon's answer did not come: {error}; was it stopped? The next command starts it again"
    ))
}

impl Client {
    /// Connects to a daemon's socket.
    ///
    /// Keys and names are sent only to a daemon of root or of this process's own user.
    ///
    /// # Errors
    /// If no daemon listens there, or one of another user.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let mut client = Self::new(connect_trusted(socket)?);
        client.socket = Some(socket.to_owned());
        Ok(client)
    }

    /// Uses a connected stream.
    #[must_use]
    pub fn new(stream: UnixStream) -> Self {
        Self {
            messages: Mutex::new(Messages::new(stream)),
            socket: None,
        }
    }

    /// Passes the value of each message to `each` until that returns an error. The remaining messages are read
    /// and dropped.
    fn exchange(
        &self,
        request: &Request,
        each: &mut dyn FnMut(serde_json::Value) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut messages = self.messages.lock();
        let mut first = Some(self.ask(&mut messages, request).map_err(no_answer)?);
        let mut outcome = Ok(());
        loop {
            let bytes = match first.take() {
                Some(bytes) => bytes,
                None => {
                    let next = messages.read().map_err(no_answer)?;
                    next.ok_or_else(|| no_answer(StreamError::CutOff))?
                }
            };
            let reply = decode_reply(&bytes).map_err(no_answer)?;
            if let Some(failure) = reply.failure {
                return outcome.and(Err(failure_of(failure)));
            }
            if outcome.is_ok() {
                outcome = each(reply.value);
            }
            if !reply.more {
                return outcome;
            }
        }
    }

    /// Sends a request and returns the first message of its answer.
    ///
    /// The daemon may have closed a connection that was idle for long. In that case a request that changes
    /// nothing is sent once more over a new connection.
    fn ask(
        &self,
        messages: &mut Messages<UnixStream>,
        request: &Request,
    ) -> Result<Zeroizing<Vec<u8>>, StreamError> {
        let sent = messages.write(request);
        // A client that was turned away cannot send, but a reply with the reason is waiting.
        let error = match (messages.read(), sent) {
            (Ok(Some(bytes)), _) => return Ok(bytes),
            (_, Err(error)) | (Err(error), _) => error,
            (Ok(None), Ok(())) => StreamError::CutOff,
        };
        let is_gone = matches!(error, StreamError::CutOff | StreamError::Io(_));
        let can_repeat = is_gone && Request::rights_of(request.name()) == Rights::Anyone;
        let socket = self.socket.as_ref().filter(|_| can_repeat);
        let Some(stream) = socket.and_then(|socket| connect_trusted(socket).ok()) else {
            return Err(error);
        };
        *messages = Messages::new(stream);
        messages.write(request)?;
        messages.read()?.ok_or(StreamError::CutOff)
    }
}

impl Service for Client {
    fn call(&self, request: &Request) -> Result<Reply, Failure> {
        let mut reply = None;
        let outcome = self.exchange(request, &mut |value| {
            reply = Some(request.decode_reply(value).map_err(no_answer)?);
            Ok(())
        });
        let outcome = outcome.and_then(|()| reply.ok_or_else(|| no_answer("no reply")));
        outcome.map_err(|failure| named(request, failure))
    }

    fn transfer(
        &self,
        request: &Request,
        descriptor: OwnedFd,
        _: &(dyn Fn() -> bool + Sync),
    ) -> Result<Reply, Failure> {
        let mut messages = self.messages.lock();
        let sent = send_with(&mut messages, request, descriptor);
        let reply = match (messages.read(), sent) {
            (Ok(Some(bytes)), _) => decode_reply(&bytes),
            (_, Err(error)) | (Err(error), _) => Err(error),
            (Ok(None), Ok(())) => Err(StreamError::CutOff),
        };
        let reply = reply.map_err(no_answer)?;
        match reply.failure {
            Some(failure) => Err(failure_of(failure)),
            None => request.decode_reply(reply.value).map_err(no_answer),
        }
    }

    fn stream(
        &self,
        request: &Request,
        each: &mut dyn FnMut(Item) -> Result<(), ControlError>,
    ) -> Result<(), Failure> {
        self.exchange(request, &mut |value| {
            let items = request.decode_items(value).map_err(no_answer)?;
            items.into_iter().try_for_each(&mut *each)?;
            Ok(())
        })
    }
}

/// Sends a request with a descriptor, which is closed here afterwards.
fn send_with(
    messages: &mut Messages<UnixStream>,
    request: &Request,
    descriptor: OwnedFd,
) -> Result<(), StreamError> {
    let bytes = encode(request)?;
    let rest = send_with_descriptor(messages.stream(), &bytes, descriptor.as_fd())?;
    messages.write_bytes(rest)
}

/// A failure that the daemon sent, as the caller of this process reads it.
fn failure_of(failure: Failure) -> Failure {
    match failure {
        Failure::Call(text) => Failure::Call(format!("the daemon does not understand: {text}")),
        failure => failure,
    }
}

/// Names the dataset that was not unmounted, where nobody else did: the daemon refused the caller, or there is no
/// answer.
fn named(request: &Request, failure: Failure) -> Failure {
    let Request::Unmount { dataset, .. } = request else {
        return failure;
    };
    match failure {
        Failure::Call(text) => Failure::Unmount((dataset.clone(), MountProblem::Failed(text))),
        Failure::Unmount((at, why)) if at.is_empty() => Failure::Unmount((dataset.clone(), why)),
        failure => failure,
    }
}

/// Connects, and checks that the other end belongs to root or to this process's user.
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`] if another user listens.
fn connect_trusted(socket: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    let user = Caller::of(&stream)?.user;
    match user == 0 || user == rustix::process::geteuid().as_raw() {
        true => Ok(stream),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("user {user} listens at {}", socket.display()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_unmount_names_its_dataset() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let (at, why) = Client::new(ours).unmount("tank/home", false).unwrap_err();
        assert_eq!(at, "tank/home");
        assert!(matches!(why, MountProblem::Failed(_)), "{why:?}");
        let request = Request::Unmount {
            dataset: "tank/home".into(),
            force: false,
        };
        let denied = Request::denied(request.name());
        let Failure::Unmount(named) = named(&request, denied) else {
            panic!("another failure");
        };
        assert_eq!(named, ("tank/home".into(), MountProblem::Denied));
    }
}
