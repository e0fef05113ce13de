//! The trailer of structures with an embedded checksum: labels, gang headers, log blocks.
//!
//! Page `docs/format/gang-header.md`, "The trailer".

use crate::{Endian, Writer};

/// Size of a trailer in bytes: the magic and four checksum words.
pub const CHECKSUM_TRAILER_BYTES: usize = 40;
/// The trailer's magic number; its byte order is that of the structure.
pub const CHECKSUM_TRAILER_MAGIC: u64 = 0x0210_da7a_b10c_7a11;

/// A checksum stored inside the bytes that it covers. Page `docs/format/gang-header.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChecksumTrailer {
    /// The byte order of the magic, and so of the whole structure.
    pub endian: Endian,
    /// The checksum as stored, or the verifier during the computation.
    pub words: [u64; 4],
}

impl ChecksumTrailer {
    /// Reads the trailer at the start of `bytes`; `None` if there are fewer than 40 bytes or the magic
    /// matches neither byte order.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let magic = bytes.first_chunk::<8>()?;
        let endian = [Endian::Little, Endian::Big]
            .into_iter()
            .find(|endian| endian.u64(*magic) == CHECKSUM_TRAILER_MAGIC)?;
        let words = endian.words("checksum trailer", bytes.get(8..)?).ok()?;
        Some(Self { endian, words })
    }
    /// Encodes the trailer as 40 little-endian bytes, regardless of `endian`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::swapped_words;

    #[test]
    fn the_byte_order_of_a_trailer_follows_its_magic() {
        let trailer = ChecksumTrailer {
            endian: Endian::Little,
            words: [1, 2, 3, 4],
        };
        let bytes = trailer.encode();
        assert_eq!(bytes.len(), CHECKSUM_TRAILER_BYTES);
        assert_eq!(bytes[..2], [0x11, 0x7a]);
        assert_eq!(ChecksumTrailer::decode(&bytes), Some(trailer));
        let foreign = ChecksumTrailer {
            endian: Endian::Big,
            ..trailer
        };
        assert_eq!(
            ChecksumTrailer::decode(&swapped_words(&bytes)),
            Some(foreign)
        );
        assert_eq!(ChecksumTrailer::decode(&bytes[..39]), None);
        assert_eq!(ChecksumTrailer::decode(&[0; 40]), None);
    }
}
