//! Layer `codec`: compression of blocks, bytes to bytes.
//!
//! This crate implements every compression function that a block pointer can name, its framing inside a
//! block, and the rule that decides whether a compressed form is stored. It does not use other fields of
//! block pointers, encryption or devices.
//!
//! Decoders accept hostile input. They never read outside the source and never write outside the destination,
//! and their allocations are bounded by the two lengths (see [`decompress`]).
//!
//! ```
//! use millpond_compress::{compress, decompress, ZstdLevel};
//! use millpond_ondisk::CompressionKind;
//! let text = b"water, water, water, water, water, water, water".repeat(20);
//! let small = compress(CompressionKind::Lz4, ZstdLevel::DEFAULT, &text, 512).unwrap();
//! let mut back = vec![0; text.len()];
//! decompress(CompressionKind::Lz4, &small, &mut back).unwrap();
//! assert_eq!(back, text);
//! ```
//!
//! Page `docs/format/compression.md`.
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

mod gzip;
mod level;
mod lz4;
mod lzjb;
mod policy;
#[cfg(test)]
mod tests;
mod zle;
mod zstd;

pub use level::ZstdLevel;
pub use policy::{AllocationUnits, StoredForm, stored_form};
pub use zstd::ZstdHeader;

use millpond_ondisk::CompressionKind;

/// The compressed bytes of a block do not decode to its logical size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecompressError {
    /// The function never occurs in a stored block's pointer ("inherit", "on", "empty").
    #[error("no stored block is compressed with \"{function}\"")]
    NotStored {
        /// The function's name.
        function: &'static str,
    },
    /// No correct encoder could have written these bytes for this logical size.
    #[error("{function}: {reason}")]
    Corrupt {
        /// The function's name.
        function: &'static str,
        /// What is wrong.
        reason: &'static str,
    },
}

impl DecompressError {
    pub(crate) fn corrupt(function: &'static str, reason: &'static str) -> Self {
        Self::Corrupt { function, reason }
    }
}

/// Decodes a block into exactly `destination.len()` bytes (the logical size).
///
/// `source` is everything that is stored: the physical size in bytes of a block, or the payload of an
/// embedded pointer. The encoded form may end earlier. The bytes after it, usually zeros, are ignored.
///
/// Memory besides `destination`: gzip takes a state of less than 128 KiB. zstd takes one copy of `source`,
/// one buffer that never holds more than `destination.len()` bytes (its capacity stays below three times that
/// plus 1 MiB), and the decoder's tables. The other functions take nothing.
///
/// Page `docs/format/compression.md`.
///
/// # Errors
/// [`DecompressError`] if no stored block can have this function, or if the bytes are corrupt. `destination`
/// then holds unspecified bytes.
pub fn decompress(
    kind: CompressionKind,
    source: &[u8],
    destination: &mut [u8],
) -> Result<(), DecompressError> {
    match kind {
        CompressionKind::Off => {
            let stored = source
                .get(..destination.len())
                .ok_or(DecompressError::corrupt("uncompressed", "too short"))?;
            destination.copy_from_slice(stored);
            Ok(())
        }
        CompressionKind::Lzjb => lzjb::decompress(source, destination),
        CompressionKind::Gzip(_) => gzip::decompress(source, destination),
        CompressionKind::Zle => zle::decompress(source, destination),
        CompressionKind::Lz4 => lz4::decompress(source, destination),
        CompressionKind::Zstd => zstd::decompress(source, destination),
        CompressionKind::Inherit | CompressionKind::On | CompressionKind::Empty => {
            Err(DecompressError::NotStored {
                function: kind.name(),
            })
        }
    }
}

/// Encodes `source` with its framing into at most `limit` bytes.
///
/// Returns `None` if the result does not fit, or if `kind` has no encoded form ("off", "empty", "inherit",
/// "on"). Only zstd uses `zstd_level`. The result is not padded; [`AllocationUnits`] computes the length of
/// the stored block. Memory: a few times `source.len()` plus the encoder's tables.
#[must_use]
pub fn compress(
    kind: CompressionKind,
    zstd_level: ZstdLevel,
    source: &[u8],
    limit: usize,
) -> Option<Vec<u8>> {
    if kind == CompressionKind::Lz4 {
        return lz4::compress_to_vec(source, limit);
    }
    // No encoding doubles its input, so this bounds the buffer for a large limit.
    let room = source.len().saturating_mul(2).saturating_add(64);
    let mut encoded = vec![0; limit.min(room)];
    let length = compress_into(kind, zstd_level, source, &mut encoded)?;
    encoded.truncate(length);
    // The caller keeps it until it is on stable storage.
    encoded.shrink_to_fit();
    Some(encoded)
}

/// As [`compress`], into the caller's buffer, whose length is the limit. Returns the encoded length.
pub fn compress_into(
    kind: CompressionKind,
    zstd_level: ZstdLevel,
    source: &[u8],
    destination: &mut [u8],
) -> Option<usize> {
    match kind {
        CompressionKind::Lzjb => lzjb::compress(source, destination),
        CompressionKind::Gzip(level) => gzip::compress(level, source, destination),
        CompressionKind::Zle => zle::compress(source, destination),
        CompressionKind::Lz4 => lz4::compress(source, destination),
        CompressionKind::Zstd => zstd::compress(zstd_level, source, destination),
        CompressionKind::Inherit
        | CompressionKind::On
        | CompressionKind::Off
        | CompressionKind::Empty => None,
    }
}
