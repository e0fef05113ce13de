//! Layer `codec`: send streams, from bytes to records and back.
//!
//! A stream is the change from one snapshot, or from nothing, to another snapshot. It begins with a [`Begin`], ends
//! with an [`End`], and contains the records between in ascending order of objects and offsets. A *package* holds
//! several streams; its own header is a [`Begin`] too. Each record has a header of [`HEADER_BYTES`] bytes, and some
//! have a payload.
//!
//! [`StreamWriter`] writes little-endian streams and computes the running checksum. [`StreamReader`] reads both byte
//! orders, and returns nothing that its checksum does not cover.
//!
//! [`filter`] changes streams on their way: other compression, no references.
//!
//! What the records mean for datasets is not known here.
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

mod begin;
mod error;
mod field;
pub mod filter;
mod raw_keys;
mod reader;
mod record;
mod writer;

#[cfg(test)]
mod tests;

pub use begin::{Begin, BeginFlags, StreamFeatures, StreamKind};
pub use error::StreamError;
pub use raw_keys::{RawKeys, RawKeysError};
pub use reader::{RecordSource, StreamReader, Taken};
pub use record::{
    End, Free, FreeObjects, ObjectRange, ObjectRecord, Record, RecordFlags, Spill, Write,
    WriteByRef, WriteEmbedded,
};
pub use writer::StreamWriter;

/// The length of a record's header in bytes.
pub const HEADER_BYTES: usize = 312;
/// The largest payload of a [`Begin`] that is read, in bytes.
pub const BEGIN_PAYLOAD_BYTES_MAX: u64 = 64 << 20;
/// The most bytes of an embedded block.
pub const EMBEDDED_BYTES_MAX: u32 = 112;
/// The length in a [`Free`] that reaches to the end of the object.
pub const TO_THE_END: u64 = u64::MAX;
