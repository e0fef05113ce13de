//! Layer `format`: name/value lists, the self-describing records of labels, pool configurations,
//! cache files, history and extended attributes.
//!
//! A list is an ordered sequence of (name, type, value). Two encodings lie on storage: packed XDR
//! (labels, MOS objects) and *native*, the memory image of the writer (`zpool.cache`, history,
//! resume tokens). Both decode here in either byte order; encoding writes XDR or little-endian
//! native. Decoding is bounded: lists nest at most [`DEPTH_MAX`] deep, no count from the input is
//! believed before the bytes for it were seen, and memory stays within a small multiple (about 16)
//! of the input's length.
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

mod error;
mod list;
mod native;
mod stream;
mod text;
mod value;
mod xdr;

#[cfg(test)]
mod tests;

pub use error::{EncodeError, LookupError};
pub use list::{NvList, NvPair};
pub use stream::Encoding;
pub use value::{NvString, NvType, NvValue};

/// How deep lists may nest: the outermost list is at depth 0, and a list at depth 20 is the last.
pub const DEPTH_MAX: usize = 20;
