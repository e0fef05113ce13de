//! The answering end.

use crate::message::{About, Call, Failure, Reply, decode_call};
use crate::stream::{Messages, StreamError};
use millpond::control::{
    ChangeError, ChangeFailure, ControlError, ImportError, Keep, KeyProblem, MountProblem,
};
use serde::Serialize;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// So many entries of a list go into one reply.
const ENTRIES_PER_REPLY: usize = 256;

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// Number of the user.
    pub user: u32,
    /// Number of the process; 0 if not known.
    pub process: u32,
}

/// What somebody may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Look at pools and datasets.
    Look,
    /// Everything.
    All,
}

impl Access {
    /// The daemon's own user and root may do all, others may look.
    #[must_use]
    pub fn of(caller: Caller, own_user: u32) -> Self {
        match caller.user == 0 || caller.user == own_user {
            true => Self::All,
            false => Self::Look,
        }
    }
}

impl Caller {
    /// Who connected, as the kernel says.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn of(stream: &UnixStream) -> std::io::Result<Self> {
        let credentials = rustix::net::sockopt::socket_peercred(stream)?;
        Ok(Self {
            user: credentials.uid.as_raw(),
            process: u32::try_from(credentials.pid.as_raw_nonzero().get()).unwrap_or(0),
        })
    }
}

/// Whoever answers.
pub trait Service: Sync {
    /// The verbs, for somebody: history notes who it was.
    fn verbs<'s>(&'s self, caller: Caller) -> Box<dyn Keep + 's>;
    /// A call begins or ends: the daemon does not go while it is answered.
    fn busy(&self, is_busy: bool) {
        let _ = is_busy;
    }
}

/// Answers calls until the other end hangs up.
///
/// # Errors
/// [`StreamError`] if it does not keep to the protocol; the connection is to be closed then.
pub fn serve<S: Read + Write>(
    stream: S,
    service: &dyn Service,
    caller: Caller,
    access: Access,
) -> Result<(), StreamError> {
    let mut messages = Messages::new(stream);
    while let Some(bytes) = messages.read()? {
        let call = match decode_call(&bytes) {
            Ok(call) => call,
            Err(error) => {
                let failure = Failure::Call(error.to_string());
                send(&mut messages, false, Err::<(), _>(failure))?;
                return Err(error);
            }
        };
        drop(bytes);
        let under_way = UnderWay::begin(service);
        let answered = if call.needs_right() && access == Access::Look {
            send(&mut messages, false, Err::<(), _>(denied(&call)))
        } else {
            let verbs = service.verbs(caller);
            answer(&mut messages, verbs.as_ref(), call)
        };
        drop(under_way);
        answered?;
    }
    Ok(())
}

/// A call that is answered; over when it goes, on the way out of a panic, too.
struct UnderWay<'s>(&'s dyn Service);

impl<'s> UnderWay<'s> {
    fn begin(service: &'s dyn Service) -> Self {
        service.busy(true);
        Self(service)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.busy(false);
    }
}

fn denied(call: &Call) -> Failure {
    match call {
        Call::CreatePool { .. } | Call::CheckAdd { .. } | Call::ClearLabels { .. } => {
            Failure::Change(ChangeError::Denied)
        }
        Call::Change { .. } => Failure::ChangeFailure(ChangeFailure {
            done: 0,
            error: ChangeError::Denied,
        }),
        Call::Device { .. } => Failure::Device(millpond::control::DeviceProblem::Unusable(
            "permission denied".into(),
        )),
        Call::Importable { .. } | Call::Import { .. } => Failure::Import(ImportError::Denied),
        Call::Mount { .. } => Failure::Mount(MountProblem::Denied),
        Call::Unmount { dataset, .. } => Failure::Unmount(dataset.clone(), MountProblem::Denied),
        Call::LoadKey { .. } | Call::UnloadKey { .. } => Failure::Key(KeyProblem::Denied),
        _ => Failure::Control(ControlError::Denied),
    }
}

fn send<S: Write, T: Serialize>(
    messages: &mut Messages<S>,
    more: bool,
    outcome: Result<T, Failure>,
) -> Result<(), StreamError> {
    let (value, failure) = match outcome {
        Ok(value) => {
            let value = serde_json::to_value(value);
            (
                value.map_err(|error| StreamError::Malformed(error.to_string()))?,
                None,
            )
        }
        Err(failure) => (serde_json::Value::Null, Some(failure)),
    };
    let reply = Reply {
        value,
        more,
        failure,
    };
    match messages.write(&reply) {
        // An answer that is too long is told of in place of it.
        Err(StreamError::TooLong) => messages.write(&Reply {
            value: serde_json::Value::Null,
            more: false,
            failure: Some(Failure::Call("the answer is too long".into())),
        }),
        other => other,
    }
}

/// A list that goes out in pieces.
struct Pieces<'m, S, T> {
    messages: &'m mut Messages<S>,
    waiting: Vec<T>,
    broken: Option<StreamError>,
}

impl<S: Write, T: Serialize> Pieces<'_, S, T> {
    fn add(&mut self, entry: T) -> Result<(), ControlError> {
        self.waiting.push(entry);
        if self.waiting.len() < ENTRIES_PER_REPLY {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.waiting);
        send(self.messages, true, Ok(piece)).map_err(|error| {
            self.broken = Some(error);
            ControlError::Stopped
        })
    }

    fn end(self, outcome: Result<(), ControlError>) -> Result<(), StreamError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        if outcome.is_err() && !self.waiting.is_empty() {
            send(self.messages, true, Ok(&self.waiting))?;
        }
        let last = outcome.map(|()| self.waiting).map_err(Failure::Control);
        send(self.messages, false, last)
    }
}

fn answer<S: Read + Write>(
    messages: &mut Messages<S>,
    verbs: &dyn Keep,
    call: Call,
) -> Result<(), StreamError> {
    let change = |error: ChangeError| Failure::Change(error.portable());
    match call {
        Call::Pools {} => send(messages, false, verbs.pools().map_err(Failure::Control)),
        Call::Pool { name } => send(messages, false, verbs.pool(&name).map_err(Failure::Control)),
        Call::VdevProperties { pool, guid } => {
            let found = verbs.vdev_properties(&pool, guid);
            send(messages, false, found.map_err(Failure::Control))
        }
        Call::Datasets { query } => {
            let mut pieces = Pieces {
                messages,
                waiting: vec![],
                broken: None,
            };
            let outcome = verbs.datasets(&query, &mut |info| pieces.add(info));
            pieces.end(outcome)
        }
        Call::History { pool } => {
            let mut pieces = Pieces {
                messages,
                waiting: vec![],
                broken: None,
            };
            let outcome = verbs.history(&pool, &mut |record| pieces.add(record));
            pieces.end(outcome)
        }
        Call::Holds { snapshot } => send(
            messages,
            false,
            verbs.holds(&snapshot).map_err(Failure::Control),
        ),
        Call::SpaceByOwner { dataset, owners } => {
            let found = verbs.space_by_owner(&dataset, owners);
            send(messages, false, found.map_err(Failure::Control))
        }
        Call::Device { path } => send(
            messages,
            false,
            verbs.device(&path).map_err(Failure::Device),
        ),
        Call::CreatePool { request, command } => {
            let done = verbs.create_pool(&request, &command);
            send(messages, false, done.map_err(change))
        }
        Call::CheckAdd { pool, devices } => send(
            messages,
            false,
            verbs.check_add(&pool, &devices).map_err(change),
        ),
        Call::Change {
            pool,
            changes,
            command,
        } => {
            let done = verbs.change(&pool, &changes, &command);
            let done = done.map_err(|failure| {
                Failure::ChangeFailure(ChangeFailure {
                    done: failure.done,
                    error: failure.error.portable(),
                })
            });
            send(messages, false, done)
        }
        Call::ClearLabels { path, force } => send(
            messages,
            false,
            verbs.clear_labels(&path, force).map_err(change),
        ),
        Call::Importable { places } => send(
            messages,
            false,
            verbs.importable_from(&places).map_err(Failure::Import),
        ),
        Call::Import { request, command } => {
            let done = verbs
                .import(&request, &command)
                .map_err(|error| match error {
                    ImportError::Change(error) => ImportError::Change(error.portable()),
                    other => other,
                });
            send(messages, false, done.map_err(Failure::Import))
        }
        Call::Mounts {} => send(messages, false, verbs.mounts().map_err(Failure::Control)),
        Call::Mount { dataset, request } => send(
            messages,
            false,
            verbs.mount(&dataset, &request).map_err(Failure::Mount),
        ),
        Call::Unmount { dataset, force } => {
            let done = verbs.unmount(&dataset, force);
            send(
                messages,
                false,
                done.map_err(|(at, why)| Failure::Unmount(at, why)),
            )
        }
        Call::LoadKey {
            dataset,
            key,
            only_check,
        } => {
            let done = verbs.load_key(&dataset, &key, only_check);
            send(messages, false, done.map_err(Failure::Key))
        }
        Call::UnloadKey { dataset } => send(
            messages,
            false,
            verbs.unload_key(&dataset).map_err(Failure::Key),
        ),
        Call::Events { after } => send(
            messages,
            false,
            verbs.events(after).map_err(Failure::Control),
        ),
        Call::ClearEvents {} => send(
            messages,
            false,
            verbs.clear_events().map_err(Failure::Control),
        ),
        Call::About {} => send(
            messages,
            false,
            Ok::<_, Failure>(About {
                version: env!("CARGO_PKG_VERSION").into(),
                process: std::process::id(),
                user: rustix::process::geteuid().as_raw(),
            }),
        ),
    }
}
