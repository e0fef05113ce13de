//! The queue of block trees of destroyed datasets ("bptree").

use crate::{BlockBookmark, BlockPointer, DecodeError, Endian, Reader, Txg, Writer};

/// Size of an entry in bytes; entry `i` is at offset `i` times this.
pub const BP_TREE_ENTRY_BYTES: usize = 168;

/// The queue's header: the bonus of its object (40 bytes). Page `docs/format/bpobj.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BpTreePhys {
    /// Index of the oldest entry.
    pub begin: u64,
    /// Index after the newest entry.
    pub end: u64,
    /// Deflated bytes still to be freed.
    pub bytes: u64,
    /// Their physical sizes.
    pub compressed_bytes: u64,
    /// Their logical sizes.
    pub uncompressed_bytes: u64,
}

impl BpTreePhys {
    /// Reads a header.
    ///
    /// # Errors
    /// If there are fewer than 40 bytes or the queue ends before it begins.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let [begin, end, bytes, compressed_bytes, uncompressed_bytes] =
            endian.words("block tree queue", bonus)?;
        if end < begin {
            return Err(DecodeError::new(
                "block tree queue",
                "ends before it begins",
                8,
            ));
        }
        Ok(Self {
            begin,
            end,
            bytes,
            compressed_bytes,
            uncompressed_bytes,
        })
    }
    /// Encodes the header as 40 little-endian bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(40);
        writer.put_words(&[
            self.begin,
            self.end,
            self.bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
        ]);
        writer.finish()
    }
}

/// A destroyed dataset. Page `docs/format/bpobj.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BpTreeEntry {
    /// Its object set block.
    pub pointer: BlockPointer,
    /// Only blocks born after this txg are freed.
    pub birth: Txg,
    /// The position at which freeing resumes.
    pub resume: BlockBookmark,
}

impl BpTreeEntry {
    /// Reads an entry.
    ///
    /// # Errors
    /// If there are fewer than 168 bytes.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("block tree queue entry", bytes, endian);
        Ok(Self {
            pointer: BlockPointer::decode(reader.take(128)?, endian)?,
            birth: Txg(reader.u64()?),
            resume: BlockBookmark::decode(&mut reader)?,
        })
    }
    /// Encodes the entry as 168 little-endian bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(BP_TREE_ENTRY_BYTES);
        writer.put(&self.pointer.encode());
        writer.put_u64(self.birth.0);
        writer.put_words(&self.resume.to_words());
        writer.finish()
    }
}
