//! The client side of a connection.

use crate::message::{About, Call, Failure, decode_reply};
use crate::secret::Secret;
use crate::server::Caller;
use crate::stream::{Messages, StreamError};
use millpond_control::{
    Change, ChangeError, ChangeFailure, Changed, Control, ControlError, DatasetInfo, DatasetQuery,
    DeviceFacts, DeviceProblem, Event, HistoryRecord, ImportError, ImportRequest, ImportablePool,
    Imported, KeyProblem, MountInfo, MountProblem, MountRequest, NewDevices, NewPoolRequest,
    PoolChange, PoolInfo, Property, SearchPaths, Service,
};
use millpond_engine::{OwnerKind, OwnerSpace};
use millpond_env::sync::Mutex;
use serde::de::DeserializeOwned;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// A connection to the daemon. Calls run one after the other.
#[derive(Debug)]
pub struct Client {
    messages: Mutex<Messages<UnixStream>>,
    /// The socket to reconnect to.
    socket: Option<PathBuf>,
}

/// Why a call failed: the daemon returned a failure, or there was no answer.
enum Trouble {
    Failure(Failure),
    Stream(StreamError),
}

impl Trouble {
    fn text(&self) -> String {
        match self {
            Self::Failure(Failure::Call(text)) => format!("the daemon does not understand: {text}"),
            Self::Failure(other) => format!("an answer to another question: {other:?}"),
            Self::Stream(error) => format!(
                "the daemon's answer did not come: {error}; was it stopped? The next command starts it again"
            ),
        }
    }
}

impl From<StreamError> for Trouble {
    fn from(error: StreamError) -> Self {
        Self::Stream(error)
    }
}

impl From<Trouble> for ControlError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Failure(Failure::Control(error)) => error,
            other => Self::Io(other.text()),
        }
    }
}

impl From<Trouble> for ChangeError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Failure(Failure::Change(error)) => error,
            other => Self::Failed(other.text()),
        }
    }
}

impl From<Trouble> for ImportError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Failure(Failure::Import(error)) => error,
            other => Self::Unreadable(other.text()),
        }
    }
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

    fn call<T: DeserializeOwned>(&self, call: &Call) -> Result<T, Trouble> {
        let mut last = None;
        self.call_for_each(call, &mut |value: T| {
            last = Some(value);
            true
        })?;
        last.ok_or_else(|| StreamError::Malformed("no answer".into()).into())
    }

    /// Passes each reply to `each` until that returns false. The remaining replies are read and dropped.
    fn call_for_each<T: DeserializeOwned>(
        &self,
        call: &Call,
        each: &mut dyn FnMut(T) -> bool,
    ) -> Result<(), Trouble> {
        let mut messages = self.messages.lock();
        let mut first = Some(self.ask(&mut messages, call)?);
        let mut wants_more = true;
        loop {
            let bytes = match first.take() {
                Some(bytes) => bytes,
                None => messages.read()?.ok_or(StreamError::CutOff)?,
            };
            let reply = decode_reply(&bytes)?;
            if let Some(failure) = reply.failure {
                return Err(Trouble::Failure(failure));
            }
            let more = reply.more;
            if wants_more {
                let value = serde_json::from_value(reply.value);
                let value = value.map_err(|error| StreamError::Malformed(error.to_string()))?;
                wants_more = each(value);
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Sends a call and returns the first reply.
    ///
    /// The daemon may have closed a connection that was idle for long. In that case a call that changes
    /// nothing is sent once more over a new connection.
    fn ask(
        &self,
        messages: &mut Messages<UnixStream>,
        call: &Call,
    ) -> Result<Zeroizing<Vec<u8>>, StreamError> {
        let sent = messages.write(call);
        // A client that was turned away cannot send, but a reply with the reason is waiting.
        let error = match (messages.read(), sent) {
            (Ok(Some(bytes)), _) => return Ok(bytes),
            (_, Err(error)) | (Err(error), _) => error,
            (Ok(None), Ok(())) => StreamError::CutOff,
        };
        let is_gone = matches!(error, StreamError::CutOff | StreamError::Io(_));
        let socket = self
            .socket
            .as_ref()
            .filter(|_| is_gone && !call.needs_right());
        let Some(stream) = socket.and_then(|socket| connect_trusted(socket).ok()) else {
            return Err(error);
        };
        *messages = Messages::new(stream);
        messages.write(call)?;
        messages.read()?.ok_or(StreamError::CutOff)
    }

    fn list<T: DeserializeOwned>(
        &self,
        call: &Call,
        each: &mut dyn FnMut(T) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        let mut outcome = Ok(());
        self.call_for_each(call, &mut |piece: Vec<T>| {
            for entry in piece {
                outcome = each(entry);
                if outcome.is_err() {
                    return false;
                }
            }
            true
        })?;
        outcome
    }

    /// Asks for the daemon's version, process and user.
    ///
    /// # Errors
    /// If the daemon does not answer.
    pub fn about(&self) -> Result<About, ControlError> {
        Ok(self.call(&Call::About {})?)
    }
}

impl Control for Client {
    fn pools(&self) -> Result<Vec<String>, ControlError> {
        Ok(self.call(&Call::Pools {})?)
    }

    fn pool(&self, name: &str) -> Result<PoolInfo, ControlError> {
        Ok(self.call(&Call::Pool { name: name.into() })?)
    }

    fn vdev_properties(&self, pool: &str, guid: u64) -> Result<Vec<Property>, ControlError> {
        let pool = pool.into();
        Ok(self.call(&Call::VdevProperties { pool, guid })?)
    }

    fn datasets(
        &self,
        query: &DatasetQuery,
        each: &mut dyn FnMut(DatasetInfo) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        let query = query.clone();
        self.list(&Call::Datasets { query }, each)
    }

    fn history(
        &self,
        pool: &str,
        each: &mut dyn FnMut(HistoryRecord) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        let pool = pool.into();
        self.list(&Call::History { pool }, each)
    }

    fn holds(&self, snapshot: &str) -> Result<Vec<(String, u64)>, ControlError> {
        let snapshot = snapshot.into();
        Ok(self.call(&Call::Holds { snapshot })?)
    }

    fn space_by_owner(
        &self,
        dataset: &str,
        owners: OwnerKind,
    ) -> Result<Vec<OwnerSpace>, ControlError> {
        let dataset = dataset.into();
        Ok(self.call(&Call::SpaceByOwner { dataset, owners })?)
    }

    fn importable(&self) -> Result<Vec<ImportablePool>, ControlError> {
        let found = self.importable_from(&SearchPaths::default());
        found.map_err(|error| match error {
            ImportError::Denied => ControlError::Denied,
            other => ControlError::Io(format!("{other:?}")),
        })
    }
}

impl Change for Client {
    fn device(&self, path: &str) -> Result<DeviceFacts, DeviceProblem> {
        let call = Call::Device { path: path.into() };
        self.call(&call).map_err(|trouble| match trouble {
            Trouble::Failure(Failure::Device(problem)) => problem,
            other => DeviceProblem::Unusable(other.text()),
        })
    }

    fn create_pool(&self, request: &NewPoolRequest, command: &str) -> Result<Changed, ChangeError> {
        Ok(self.call(&Call::CreatePool {
            request: request.clone(),
            command: command.into(),
        })?)
    }

    fn check_add(&self, pool: &str, devices: &NewDevices) -> Result<(), ChangeError> {
        Ok(self.call(&Call::CheckAdd {
            pool: pool.into(),
            devices: devices.clone(),
        })?)
    }

    fn change(
        &self,
        pool: &str,
        changes: &[PoolChange],
        command: &str,
    ) -> Result<Changed, ChangeFailure> {
        let call = Call::Change {
            pool: pool.into(),
            changes: changes.to_vec(),
            command: command.into(),
        };
        self.call(&call).map_err(|trouble| match trouble {
            Trouble::Failure(Failure::ChangeFailure(failure)) => failure,
            other => ChangeFailure {
                done: 0,
                error: other.into(),
            },
        })
    }

    fn clear_labels(&self, path: &str, force: bool) -> Result<(), ChangeError> {
        let path = path.into();
        Ok(self.call(&Call::ClearLabels { path, force })?)
    }
}

impl Service for Client {
    fn importable_from(&self, places: &SearchPaths) -> Result<Vec<ImportablePool>, ImportError> {
        let places = places.clone();
        Ok(self.call(&Call::Importable { places })?)
    }

    fn import(&self, request: &ImportRequest, command: &str) -> Result<Imported, ImportError> {
        Ok(self.call(&Call::Import {
            request: request.clone(),
            command: command.into(),
        })?)
    }

    fn mounts(&self) -> Result<Vec<MountInfo>, ControlError> {
        Ok(self.call(&Call::Mounts {})?)
    }

    fn mount(&self, dataset: &str, request: &MountRequest) -> Result<(), MountProblem> {
        let call = Call::Mount {
            dataset: dataset.into(),
            request: request.clone(),
        };
        self.call(&call).map_err(|trouble| match trouble {
            Trouble::Failure(Failure::Mount(problem)) => problem,
            other => MountProblem::Failed(other.text()),
        })
    }

    fn unmount(&self, dataset: &str, force: bool) -> Result<(), (String, MountProblem)> {
        let call = Call::Unmount {
            dataset: dataset.into(),
            force,
        };
        self.call(&call).map_err(|trouble| match trouble {
            Trouble::Failure(Failure::Unmount(at, problem)) if at.is_empty() => {
                (dataset.into(), problem)
            }
            Trouble::Failure(Failure::Unmount(at, problem)) => (at, problem),
            other => (dataset.into(), MountProblem::Failed(other.text())),
        })
    }

    fn load_key(&self, dataset: &str, key: &[u8], only_check: bool) -> Result<(), KeyProblem> {
        let call = Call::LoadKey {
            dataset: dataset.into(),
            key: Secret::new(key),
            only_check,
        };
        self.call(&call).map_err(key_problem)
    }

    fn unload_key(&self, dataset: &str) -> Result<(), KeyProblem> {
        let dataset = dataset.into();
        self.call(&Call::UnloadKey { dataset }).map_err(key_problem)
    }

    fn events(&self, after: u64) -> Result<Vec<Event>, ControlError> {
        Ok(self.call(&Call::Events { after })?)
    }

    fn clear_events(&self) -> Result<u64, ControlError> {
        Ok(self.call(&Call::ClearEvents {})?)
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

fn key_problem(trouble: Trouble) -> KeyProblem {
    match trouble {
        Trouble::Failure(Failure::Key(problem)) => problem,
        other => KeyProblem::Text(other.text()),
    }
}
