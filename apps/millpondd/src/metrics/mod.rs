//! Prometheus metrics of the daemon, and the HTTP server for them.
//!
//! `collect` and `page` make the text, `server` holds the sockets. Only `server` and its tests use tokio.

mod arc;
mod collect;
mod page;
mod server;

pub use collect::page;
pub use server::{
    CONNECTION_TIME, CONNECTIONS, HEADER_TIME, MetricsListener, MetricsServer, NET_CONNECTIONS_MAX,
    PageSource, REQUEST_BYTES_MAX, answer,
};

#[cfg(test)]
mod tests;
