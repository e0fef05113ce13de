//! The daemon's log: what it reports itself, and the tracing events of all crates, one line each.

mod escape;
mod line;
mod output;

pub use line::{Level, Line};
pub use output::{Filter, start};
