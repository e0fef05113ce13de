//! Layer `codec`: the checksums of blocks, from bytes to four words.
//!
//! This crate works on bytes, byte orders and the pool's salt. Locating blocks and repairing damaged ones is
//! the task of the layers above. There are two families of checksums:
//!
//! * checksums in block pointers: [`Checksummer`] holds the pool's salt in prepared form, so that keyed
//!   functions need not set up their key for each block;
//! * checksums embedded in the block that they cover (labels, gang headers, intent log blocks): the
//!   `verify_*` and `seal_*` functions.
//!
//! ```
//! use millpond_checksum::{Checksummer, Salt};
//! use millpond_ondisk::{ChecksumKind, Endian};
//! let pool = Checksummer::new(Some(Salt([7; 32])));
//! let words = pool.checksum(ChecksumKind::Fletcher4, &[1, 0, 0, 0, 2, 0, 0, 0], Endian::Little);
//! assert_eq!(words.unwrap(), [3, 4, 5, 6]);
//! ```
//!
//! Page: `docs/format/checksums.md`.
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

mod checksummer;
mod edonr;
mod embedded;
mod error;
mod fletcher;
mod skein;

pub use checksummer::{Checksummer, Form, Salt, checksum};
pub use edonr::edonr_512;
pub use embedded::{
    GangHeader, GangVerifier, LabelSealer, TRAILER_BYTES, TRAILER_MAGIC, find_gang_header,
    seal_gang_header, seal_label, seal_zilog, seal_zilog2, verify_gang_header, verify_label,
    verify_zilog, verify_zilog2,
};
pub use error::{ChecksumError, Mismatch};
pub use fletcher::{Fletcher4, fletcher2_by_definition, fletcher4_by_definition};
