//! Layer `file`: the intent log of a dataset, read.
//!
//! An [`IntentLog`] is opened from an object set and lists its records. Below, a [`Chain`] walks the
//! log blocks that hang from an object set's header, stops where the log ends (which is an ordinary event, not damage) and hands out records. [`Pending`] tells which of
//! them the tree does not contain yet. Nothing is claimed, replayed or freed here: that joins with
//! the writing engine.
//!
//! A [`ContentOverlay`] shows what the pending records of a volume would write. For files there is
//! no such view yet.
//!
//! Blocks come through a function, usually `BlockStore::read_log_block`, so that the walk can be
//! tried without a pool.
//!
//! Pages: `docs/format/intent-log.md`, `docs/format/intent-log-records.md`.
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

mod chain;
mod content;
pub mod live;
mod log;
mod pending;

pub use chain::{Chain, ChainBlock, ChainEnd, log_block_address};
pub use content::{ContentOverlay, OVERLAY_BYTES_MAX, OverlayError, ReadBlock};
pub use log::{IntentLog, LogRecords, LoggedRecord, ReadLogBlock, RecordFate, record_type_name};
pub use pending::Pending;
