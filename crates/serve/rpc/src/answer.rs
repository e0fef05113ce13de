//! Answers a request and encodes the replies.

use crate::message::ReplyMessage;
use crate::outbox::Outbox;
use millpond_control::{ControlError, Failure, Item, Reply, Request, Service};
use serde::Serialize;

/// The most replies of a stream in one message.
const ITEMS_PER_MESSAGE: usize = 256;

/// Answers the request and puts the complete answer into `out`.
pub fn answer(out: &mut Outbox<'_>, service: &dyn Service, request: &Request) {
    let put = match request.is_stream() {
        true => put_stream(out, service, request),
        false => put(out, false, service.call(request)),
    };
    if let Err(text) = put {
        out.clear();
        refuse(out, Failure::Call(text));
    }
}

/// Puts the outcome of a request that was answered already into `out`.
pub fn answer_with(out: &mut Outbox<'_>, outcome: Result<Reply, Failure>) {
    if let Err(text) = put(out, false, outcome) {
        out.clear();
        refuse(out, Failure::Call(text));
    }
}

/// Puts a failure into `out`.
pub fn refuse(out: &mut Outbox<'_>, failure: Failure) {
    if put(out, false, Err::<Reply, _>(failure)).is_err() {
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
        Err(failure) => (serde_json::Value::Null, Some(failure.portable())),
    };
    out.add(&ReplyMessage {
        value,
        more,
        failure,
    })
}

/// # Errors
/// The message of an error that makes the answer incomplete.
fn put_stream(
    out: &mut Outbox<'_>,
    service: &dyn Service,
    request: &Request,
) -> Result<(), String> {
    let mut waiting: Vec<Item> = vec![];
    let mut incomplete = None;
    let outcome = service.stream(request, &mut |item| {
        waiting.push(item);
        if waiting.len() < ITEMS_PER_MESSAGE {
            return Ok(());
        }
        let message = std::mem::take(&mut waiting);
        put(out, true, Ok(message)).map_err(|error| {
            incomplete = Some(error);
            ControlError::Stopped
        })
    });
    if let Some(error) = incomplete {
        return Err(error);
    }
    if outcome.is_err() && !waiting.is_empty() {
        put(out, true, Ok(&waiting))?;
    }
    put(out, false, outcome.map(|()| waiting))
}
