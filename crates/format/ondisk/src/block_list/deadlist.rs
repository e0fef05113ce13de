//! Deadlists: blocks that the previous snapshot references and the dataset does not.

use crate::{DecodeError, Endian, Writer};

/// Size of a deadlist's bonus in bytes.
pub const DEADLIST_BYTES: usize = 320;

/// The header of a deadlist: the bonus of its ZAP (pool version 26 and above). Page
/// `docs/format/deadlist.md`.
///
/// Before version 26, a dataset's deadlist is a plain block pointer list with another object type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeadlistPhys {
    /// Deflated bytes of all entries.
    pub used_bytes: u64,
    /// Their physical sizes.
    pub compressed_bytes: u64,
    /// Their logical sizes.
    pub uncompressed_bytes: u64,
}

impl DeadlistPhys {
    /// Reads a header from the first 24 bytes of `bonus`.
    ///
    /// # Errors
    /// If there are fewer bytes.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let [used_bytes, compressed_bytes, uncompressed_bytes] = endian.words("deadlist", bonus)?;
        Ok(Self {
            used_bytes,
            compressed_bytes,
            uncompressed_bytes,
        })
    }
    /// Encodes the header as 320 little-endian bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(DEADLIST_BYTES);
        writer.put_words(&[
            self.used_bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
        ]);
        writer.pad_to(DEADLIST_BYTES);
        writer.finish()
    }
}
