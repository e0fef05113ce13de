//! Layer `format`: name/value lists, the self-describing records of labels, pool configurations, cache files,
//! history and extended attributes.
//!
//! A list is an ordered sequence of (name, type, value). On storage it has one of two encodings: packed XDR
//! (labels, MOS objects) and *native*, the memory image of the writer (`zpool.cache`, history, resume
//! tokens). This crate decodes both in either byte order, and encodes XDR or little-endian native.
//!
//! Decoding is bounded. Lists nest at most [`DEPTH_MAX`] deep. A count from the input is only used after the
//! bytes for it were seen. Memory stays within a small multiple (about 16) of the input's length.
//!
//! ```
//! use millpond_nvlist::NvList;
//! let mut config = NvList::new();
//! config.insert("name", "tank");
//! config.insert("version", 5000u64);
//! let bytes = config.encode_xdr().unwrap();
//! let again = NvList::decode(&bytes).unwrap();
//! assert_eq!(again.string("name"), Ok("tank"));
//! assert_eq!(again.u64("version"), Ok(5000));
//! ```
//!
//! Page `docs/format/nvlist.md`.
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

mod error;
mod list;
mod native;
mod stream;
mod text;
mod tool_text;
mod value;
mod xdr;

#[cfg(test)]
mod tests;

pub use error::{EncodeError, LookupError};
pub use list::{NvList, NvPair};
pub use stream::Encoding;
pub use value::{NvString, NvType, NvValue};

/// The nesting limit of lists. The outermost list has depth 0, the innermost at most depth 20.
pub const DEPTH_MAX: usize = 20;
