//! Block bookmarks: object set, object, level and block id of a block in a pool.

use crate::{DecodeError, Endian, Reader, Writer};

/// Size of a block bookmark on disk in bytes.
pub const BLOCK_BOOKMARK_BYTES: usize = 32;

/// The position of a traversal, or the identity of a block ("zbookmark"). Page `docs/format/scan-state.md`.
///
/// Not to be confused with the bookmarks that users create of snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct BlockBookmark {
    /// Object id of the dataset; 0 is the MOS. In a scan, all ones mean that the dataset was destroyed.
    pub object_set: u64,
    /// The object.
    pub object: u64,
    /// Height in the block tree; negative values stand for the object set block and log blocks.
    pub level: i64,
    /// The block id in that level.
    pub block_id: u64,
}

impl BlockBookmark {
    /// Decodes a bookmark from four words.
    #[must_use]
    pub fn from_words(words: [u64; 4]) -> Self {
        let [object_set, object, level, block_id] = words;
        Self {
            object_set,
            object,
            level: i64::from_ne_bytes(level.to_ne_bytes()),
            block_id,
        }
    }
    /// Encodes the bookmark as four words.
    #[must_use]
    pub fn to_words(&self) -> [u64; 4] {
        [
            self.object_set,
            self.object,
            u64::from_ne_bytes(self.level.to_ne_bytes()),
            self.block_id,
        ]
    }
    /// Reads 32 bytes.
    ///
    /// # Errors
    /// If fewer bytes are left.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut words = [0u64; 4];
        for word in &mut words {
            *word = reader.u64()?;
        }
        Ok(Self::from_words(words))
    }
    /// Encodes the bookmark as 32 little-endian bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(BLOCK_BOOKMARK_BYTES);
        writer.put_words(&self.to_words());
        writer.finish()
    }
    /// Reads the first 32 bytes of `bytes`.
    ///
    /// # Errors
    /// If there are fewer bytes.
    pub fn from_bytes(bytes: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        Self::decode(&mut Reader::new("block bookmark", bytes, endian))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{hex, swapped_words};

    #[test]
    fn a_name_has_four_words_and_its_level_may_be_negative() {
        let bytes = hex("3600000000000000 0800000000000000 feffffffffffffff 0900000000000000");
        let name = BlockBookmark {
            object_set: 54,
            object: 8,
            level: -2,
            block_id: 9,
        };
        assert_eq!(BlockBookmark::from_bytes(&bytes, Endian::Little), Ok(name));
        assert_eq!(
            BlockBookmark::from_bytes(&swapped_words(&bytes), Endian::Big),
            Ok(name)
        );
        assert!(BlockBookmark::from_bytes(&bytes[..31], Endian::Little).is_err());
        assert_eq!(name.encode(), bytes);
    }
}
