//! Computes and encodes the answer to a call.

use crate::message::{About, Call, Failure, Reply};
use crate::outbox::Outbox;
use millpond_control::{ChangeError, ChangeFailure, ControlError, ImportError, Service};
use serde::Serialize;

/// The most entries of a list in one reply.
const ENTRIES_PER_REPLY: usize = 256;

/// Executes the call and puts the complete answer into `out`.
pub fn answer(out: &mut Outbox<'_>, verbs: &dyn Service, call: Call) {
    if let Err(text) = put_answer(out, verbs, call) {
        out.clear();
        refuse(out, Failure::Call(text));
    }
}

/// Puts a failure into `out`.
pub fn refuse(out: &mut Outbox<'_>, failure: Failure) {
    if put(out, false, Err::<(), _>(failure)).is_err() {
        // The connection then ends without an answer.
        out.clear();
    }
}

fn put<T: Serialize>(
    out: &mut Outbox<'_>,
    more: bool,
    outcome: Result<T, Failure>,
) -> Result<(), String> {
    let (value, failure) = match outcome {
        Ok(value) => {
            let value = serde_json::to_value(value);
            (value.map_err(|error| error.to_string())?, None)
        }
        Err(failure) => (serde_json::Value::Null, Some(failure)),
    };
    out.add(&Reply {
        value,
        more,
        failure,
    })
}

/// A list that is sent in several replies.
struct Pieces<'m, 'o, T> {
    out: &'m mut Outbox<'o>,
    waiting: Vec<T>,
    broken: Option<String>,
}

impl<T: Serialize> Pieces<'_, '_, T> {
    fn add(&mut self, entry: T) -> Result<(), ControlError> {
        self.waiting.push(entry);
        if self.waiting.len() < ENTRIES_PER_REPLY {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.waiting);
        put(self.out, true, Ok(piece)).map_err(|error| {
            self.broken = Some(error);
            ControlError::Stopped
        })
    }

    fn end(self, outcome: Result<(), ControlError>) -> Result<(), String> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        if outcome.is_err() && !self.waiting.is_empty() {
            put(self.out, true, Ok(&self.waiting))?;
        }
        let last = outcome.map(|()| self.waiting).map_err(Failure::Control);
        put(self.out, false, last)
    }
}

/// Executes the call and puts its replies into `out`.
///
/// # Errors
/// The message of an error that makes the answer incomplete.
fn put_answer(out: &mut Outbox<'_>, verbs: &dyn Service, call: Call) -> Result<(), String> {
    let change = |error: ChangeError| Failure::Change(error.portable());
    match call {
        Call::Pools {} => put(out, false, verbs.pools().map_err(Failure::Control)),
        Call::Pool { name } => put(out, false, verbs.pool(&name).map_err(Failure::Control)),
        Call::VdevProperties { pool, guid } => {
            let found = verbs.vdev_properties(&pool, guid);
            put(out, false, found.map_err(Failure::Control))
        }
        Call::Datasets { query } => {
            let mut pieces = Pieces {
                out,
                waiting: vec![],
                broken: None,
            };
            let outcome = verbs.datasets(&query, &mut |info| pieces.add(info));
            pieces.end(outcome)
        }
        Call::History { pool } => {
            let mut pieces = Pieces {
                out,
                waiting: vec![],
                broken: None,
            };
            let outcome = verbs.history(&pool, &mut |record| pieces.add(record));
            pieces.end(outcome)
        }
        Call::Holds { snapshot } => {
            put(out, false, verbs.holds(&snapshot).map_err(Failure::Control))
        }
        Call::SpaceByOwner { dataset, owners } => {
            let found = verbs.space_by_owner(&dataset, owners);
            put(out, false, found.map_err(Failure::Control))
        }
        Call::Device { path } => put(out, false, verbs.device(&path).map_err(Failure::Device)),
        Call::CreatePool { request, command } => {
            let done = verbs.create_pool(&request, &command);
            put(out, false, done.map_err(change))
        }
        Call::CheckAdd { pool, devices } => {
            put(out, false, verbs.check_add(&pool, &devices).map_err(change))
        }
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
            put(out, false, done)
        }
        Call::ClearLabels { path, force } => {
            put(out, false, verbs.clear_labels(&path, force).map_err(change))
        }
        Call::Importable { places } => put(
            out,
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
            put(out, false, done.map_err(Failure::Import))
        }
        Call::Mounts {} => put(out, false, verbs.mounts().map_err(Failure::Control)),
        Call::Mount { dataset, request } => put(
            out,
            false,
            verbs.mount(&dataset, &request).map_err(Failure::Mount),
        ),
        Call::Unmount { dataset, force } => {
            let done = verbs.unmount(&dataset, force);
            put(
                out,
                false,
                done.map_err(|(at, why)| Failure::Unmount(at, why)),
            )
        }
        Call::LoadKey {
            dataset,
            key,
            only_check,
        } => {
            let done = verbs.load_key(&dataset, key.bytes(), only_check);
            put(out, false, done.map_err(Failure::Key))
        }
        Call::UnloadKey { dataset } => {
            put(out, false, verbs.unload_key(&dataset).map_err(Failure::Key))
        }
        Call::Events { after } => put(out, false, verbs.events(after).map_err(Failure::Control)),
        Call::ClearEvents {} => put(out, false, verbs.clear_events().map_err(Failure::Control)),
        Call::About {} => put(
            out,
            false,
            Ok::<_, Failure>(About {
                version: env!("CARGO_PKG_VERSION").into(),
                process: std::process::id(),
                user: rustix::process::geteuid().as_raw(),
            }),
        ),
    }
}
