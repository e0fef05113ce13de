//! Layer `pool`: writes snapshots as send streams.
//!
//! [`send`] walks an object set in ascending order of objects and blocks, prunes what an older snapshot already has,
//! and writes a record for each object, block, hole and free object that is left. The walk reads dnodes and pointers
//! only. It hands batches of records to a second thread, which reads the blocks of a batch with one call and writes
//! the records. So devices always have several reads in flight, and memory stays bounded.
//!
//! The caller passes a view of a committed state, whose blocks are not reused while it is read.
//!
//! Page `docs/format/send-stream.md`.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

mod batch;
mod changed;
mod error;
mod estimate;
mod features;
mod forms;
mod output;
mod package;
mod redaction;
mod send;
mod walk;

pub use changed::{changed_blocks, changed_in_all};
pub use error::SendError;
pub use estimate::estimated_bytes;
pub use package::{begin_package, end_package};
pub use send::{Older, ResumeFrom, SendFlags, SendOptions, Unfinished, measured_bytes, send};
