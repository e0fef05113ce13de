//! Layer `serve`: the control verbs over a unix socket, both ends of it.
//!
//! [`Client`] implements [`millpond::control::Control`], [`millpond::control::Change`] and
//! [`millpond::control::Keep`], so that a command cannot tell it from pools in its own process.
//! [`serve`] answers one connection from whoever implements the same traits. Messages are JSON objects that
//! end with a zero byte, in the manner of Varlink: a call names a method, a reply has parameters, an
//! error or, for lists, more replies behind it. The page is `docs/daemon.md`.
//!
//! Nothing from the other end is trusted: messages have a longest length ([`MESSAGE_BYTES_MAX`]), their nesting is
//! bounded by the decoder, and what does not fit ends the connection. Callers who may only look have a smaller limit
//! ([`LOOKER_MESSAGE_BYTES_MAX`]), and parameters of methods that they may not use are not decoded. This crate opens no pool.
#![forbid(unsafe_code)]

mod answer;
mod client;
mod message;
mod outbox;
mod secret;
mod server;
mod stream;

pub use client::Client;
pub use message::{Call, Failure, Head, Reply, decode_call, decode_head, decode_reply};
pub use secret::Secret;
pub use server::{Access, Caller, Service, serve, turn_away};
pub use stream::{LOOKER_MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX, Messages, StreamError, TimeLimits};
