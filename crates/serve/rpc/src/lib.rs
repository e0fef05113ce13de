//! Layer `serve`: the control requests over a unix socket, client and server.
//!
//! [`Client`] implements [`millpond_control::Service`]. A command thus uses it exactly like pools in its own
//! process. [`serve`] answers one connection from any implementation of the same trait. Messages are JSON objects
//! that end with a zero byte, in the manner of Varlink. A call names a method. A reply has parameters or an error;
//! for lists, more replies may follow. The page is `docs/daemon.md`.
//!
//! Nothing from the other end is trusted. Messages have a maximum length ([`MESSAGE_BYTES_MAX`]), the decoder
//! bounds their nesting, and input beyond a limit ends the connection. Users who only have what was delegated to them have a smaller limit
//! ([`DELEGATED_MESSAGE_BYTES_MAX`]), and parameters of methods that they may not use are not decoded. This
//! crate opens no pool.
#![forbid(unsafe_code)]

mod answer;
mod client;
mod connection;
mod message;
mod outbox;
mod server;
mod stream;

pub use client::Client;
pub use message::{Head, ReplyMessage, decode_head, decode_reply, decode_request};
pub use server::{Access, Caller, ServiceProvider, serve, turn_away};
pub use stream::{
    DELEGATED_MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX, Messages, StreamError, TimeLimits,
};
