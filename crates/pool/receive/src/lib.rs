//! Layer `pool`: receives send streams into object sets.
//!
//! [`receive`] applies the records of one stream to a dataset that [`millpond_dataset::Datasets::begin_receive`] made
//! for it. One thread reads records, verifies them and decodes their blocks; the other one changes the object set, in
//! many transactions, so that the write throttle bounds what is dirty. Only a few batches are between the two.
//!
//! Numbers, sizes and payloads of a stream are not trusted: what no sender writes is [`ReceiveError::Invalid`]. What was
//! received until then is worth nothing, and the caller gives it up.
//!
//! Page `docs/format/send-stream.md`, "Receiving".
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

mod apply;
mod correct;
mod decode;
mod error;
mod incoming;
mod objects;
mod raw;
mod receive;
mod report;
mod swap;

pub use correct::{Corrected, correct};
pub use error::ReceiveError;
pub use incoming::{check_features, incoming_snapshot, resume_allowances};
pub use receive::{ReceiveFrom, receive};
pub use report::{IncomingKind, ReceiveFailure, ReceiveProblem, ReceiveStep};
