//! Layer `admin`: stored send streams, opened as a pool for reading without receiving them.
//!
//! Streams are applied to a *scratch pool* by the engine that receives them, so every kind of stream and every checksum
//! is handled as in a receive. The pool's device is sparse and stores only what no stream file has: the pool's own
//! metadata, and everything of a stream that came through a pipe. Blocks of files are read from the stream file, where
//! the pool's checksums verify them once more.
//!
//! Page `docs/format/send-stream.md`, "Opened without receiving".
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::cast_possible_truncation
    )
)]

mod device;
mod error;
mod extents;
mod index;
mod input;
mod kept;
mod open;
mod payloads;
mod records;
mod summary;

#[cfg(test)]
mod tests;

pub use device::Usage;
pub use error::StoredError;
pub use index::IndexProblem;
pub use input::StreamInput;
pub use open::{AppliedStream, IndexUse, StoredOptions, StoredStreams};
pub use records::Damage;
pub use summary::{InputSummary, StreamSummary, summarize};
