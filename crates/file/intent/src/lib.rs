//! Layer `file`: the intent log of a dataset.
//!
//! To read a log, open an [`IntentLog`] from an object set and list its records. A [`Chain`] walks the log
//! blocks from the object set's header and stops at the end of the log, which is an ordinary event and not
//! damage. [`Pending`] decides which records are not in the tree yet. None of these claims, replays or frees
//! anything.
//!
//! A [`LogWriter`] is the log of a head that is open for changes: it collects records and writes them to log
//! blocks. [`replay()`] iterates over the pending records of a claimed log.
//!
//! A [`ContentOverlay`] shows what the pending records of a volume would write. There is no such view for
//! files yet.
//!
//! Blocks are read through a function, usually `BlockStore::read_log_block`, so tests can walk a chain
//! without a pool.
//!
//! Pages: `docs/format/intent-log.md`, `docs/format/intent-log-records.md`.
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

mod chain;
mod content;
mod log;
mod pending;
mod replay;
mod writer;

pub use chain::{Chain, ChainBlock, ChainEnd};
pub use content::{ContentOverlay, OVERLAY_BYTES_MAX, OverlayError, ReadBlock};
pub use log::{IntentLog, LogRecords, LoggedRecord, ReadLogBlock, RecordFate, record_type_name};
pub use pending::Pending;
pub use replay::{ReplayStep, replay};
pub use writer::{LogWriter, RECORD_BYTES_MAX};
