//! The trailer of structures that carry their own checksum: labels, gang headers, log blocks.
//!
//! Page `docs/format/gang-header.md`, "The trailer".

use crate::{Endian, Writer};

/// Bytes of a trailer: the magic and four checksum words.
pub const CHECKSUM_TRAILER_BYTES: usize = 40;
/// The trailer's magic number, which also tells the byte order.
pub const CHECKSUM_TRAILER_MAGIC: u64 = 0x0210_da7a_b10c_7a11;

/// A checksum stored inside the bytes that it covers. Page `docs/format/gang-header.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChecksumTrailer {
    /// The order that the magic was written in, and with it the whole structure.
    pub endian: Endian,
    /// The checksum as stored, or the verifier while it is computed.
    pub words: [u64; 4],
}

impl ChecksumTrailer {
    /// Reads the trailer at the first byte of `bytes`; `None` if fewer than 40 bytes are there or
    /// the magic fits neither order.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let magic = bytes.first_chunk::<8>()?;
        let endian = [Endian::Little, Endian::Big]
            .into_iter()
            .find(|endian| endian.u64(*magic) == CHECKSUM_TRAILER_MAGIC)?;
        let words = endian.words("checksum trailer", bytes.get(8..)?).ok()?;
        Some(Self { endian, words })
    }
    /// The trailer's 40 little-endian bytes, whatever `endian` says.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(CHECKSUM_TRAILER_BYTES);
        writer.put_u64(CHECKSUM_TRAILER_MAGIC);
        for word in self.words {
            writer.put_u64(word);
        }
        writer.finish()
    }
}
