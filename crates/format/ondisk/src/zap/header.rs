//! Block 0 of a fat ZAP, and the entries of its pointer table.
//!
//! Page `docs/format/zap-fat.md`.

use super::{BLOCK_HEADER, ZapHashing, block_shift, field};
use crate::{DecodeError, Endian, Reader, Writer};

const MAGIC: u64 = 0x2_f52a_b2ab;

bitflags::bitflags! {
    /// Flags of a fat ZAP. Page `docs/format/zap-fat.md`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct ZapFlags: u64 {
        /// The hash has 48 bits instead of 28.
        const HASH64 = 1;
        /// Keys are arrays of 64-bit words, not names.
        const UINT64_KEY = 2;
        /// The first word of a key is its hash.
        const PREHASHED_KEY = 4;
    }
}

/// The header of a fat ZAP in native form. Page `docs/format/zap-fat.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZapHeader {
    /// log2 of the block size in bytes, 9 to 20.
    pub block_shift: u32,
    /// First block of the pointer table; 0 if it is embedded in the header block.
    pub table_block: u64,
    /// The number of blocks of the pointer table; 0 if it is embedded in the header block.
    pub table_blocks: u64,
    /// log2 of the number of table entries; the number of hash bits that select an entry.
    pub table_shift: u32,
    /// First block of the next table, which has double size and is being filled; 0 for none.
    pub next_table_block: u64,
    /// The number of blocks of the current table that were copied to the next one.
    pub table_blocks_copied: u64,
    /// The lowest block number never used; all used blocks are below it.
    pub free_block: u64,
    /// The number of leaves.
    pub leaf_count: u64,
    /// The number of entries in all leaves.
    pub entry_count: u64,
    /// The initial value of the hash.
    pub salt: u64,
    /// How names are normalised before hashing; 0 for not at all.
    pub normflags: u64,
    /// See [`ZapFlags`].
    pub flags: ZapFlags,
}

/// The position of a pointer table entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZapTableLocation {
    /// Block within the object.
    pub block: u64,
    /// Index of the 64-bit word within the block.
    pub word: usize,
}

impl ZapHeader {
    /// Reads block 0 of a fat ZAP. `bytes` is the whole block, in byte order `endian`.
    /// Allocates nothing.
    ///
    /// # Errors
    /// If a rule of `docs/format/zap-fat.md`, "What a reader checks", is broken.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let fail = |reason, offset| DecodeError::new("zap header", reason, offset);
        let block_shift = block_shift("zap header", bytes.len())?;
        let mut reader = Reader::new("zap header", bytes, endian);
        if reader.u64()? != BLOCK_HEADER {
            return Err(fail("not a zap header", 0));
        }
        if reader.u64()? != MAGIC {
            return Err(fail("wrong magic", 8));
        }
        let table_block = reader.u64()?;
        let table_blocks = reader.u64()?;
        let table_shift = reader.u64()?;
        let next_table_block = reader.u64()?;
        let table_blocks_copied = reader.u64()?;
        let free_block = reader.u64()?;
        let leaf_count = reader.u64()?;
        let entry_count = reader.u64()?;
        let salt = reader.u64()?;
        let normflags = reader.u64()?;
        let flags = ZapFlags::from_bits(reader.u64()?).ok_or_else(|| fail("unknown flags", 96))?;

        let hash_bits = if flags.contains(ZapFlags::HASH64) {
            48
        } else {
            28
        };
        if table_shift > hash_bits {
            return Err(fail("pointer table wider than the hash", 32));
        }
        let table_shift = u32::try_from(table_shift).unwrap_or(0);
        if table_block == 0 {
            if table_blocks != 0 {
                return Err(fail("embedded pointer table has blocks", 24));
            }
            if table_shift != block_shift.saturating_sub(4) {
                return Err(fail("embedded pointer table of wrong size", 32));
            }
        } else {
            let entries = table_blocks.checked_shl(block_shift.saturating_sub(3));
            if table_blocks.leading_zeros() < block_shift
                || entries != 1u64.checked_shl(table_shift)
            {
                return Err(fail("pointer table of wrong size", 32));
            }
            if table_block
                .checked_add(table_blocks)
                .is_none_or(|end| end > free_block)
            {
                return Err(fail("pointer table beyond the object", 16));
            }
        }
        if free_block.checked_shl(block_shift).is_none() || free_block.leading_zeros() < block_shift
        {
            return Err(fail("more blocks than 2^64 bytes", 56));
        }
        if flags.contains(ZapFlags::PREHASHED_KEY) && !flags.contains(ZapFlags::UINT64_KEY) {
            return Err(fail("names cannot be hashed already", 96));
        }
        if flags.contains(ZapFlags::UINT64_KEY) && normflags != 0 {
            return Err(fail("word keys cannot be normalised", 88));
        }
        Ok(Self {
            block_shift,
            table_block,
            table_blocks,
            table_shift,
            next_table_block,
            table_blocks_copied,
            free_block,
            leaf_count,
            entry_count,
            salt,
            normflags,
            flags,
        })
    }

    /// The header of a new fat ZAP: embedded table, one leaf (block 1), no entries.
    ///
    /// # Errors
    /// If the block size is invalid.
    pub fn new(
        block_shift: u32,
        salt: u64,
        normflags: u64,
        flags: ZapFlags,
    ) -> Result<Self, DecodeError> {
        if !super::FAT_BLOCK_SHIFTS.contains(&block_shift) {
            return Err(DecodeError::new("zap header", "block size out of range", 0));
        }
        Ok(Self {
            block_shift,
            table_block: 0,
            table_blocks: 0,
            table_shift: block_shift.saturating_sub(4),
            next_table_block: 0,
            table_blocks_copied: 0,
            free_block: 2,
            leaf_count: 1,
            entry_count: 0,
            salt,
            normflags,
            flags,
        })
    }

    /// Encodes the header block, little-endian, with `embedded_table` in its second half.
    ///
    /// Readers ignore the embedded table if the table has its own blocks.
    ///
    /// # Errors
    /// If the block size is invalid, or the table does not have (block size / 16) words.
    pub fn encode(&self, embedded_table: &[u64]) -> Result<Vec<u8>, DecodeError> {
        let fail = |reason| DecodeError::new("zap header", reason, 0);
        if !super::FAT_BLOCK_SHIFTS.contains(&self.block_shift) {
            return Err(fail("block size out of range"));
        }
        let block_bytes = 1usize.checked_shl(self.block_shift).unwrap_or(0);
        if embedded_table.len() != block_bytes / 16 {
            return Err(fail("embedded pointer table of wrong size"));
        }
        let mut writer = Writer::with_capacity(block_bytes);
        for word in self.words() {
            writer.put_u64(word);
        }
        writer.pad_to(block_bytes / 2);
        for word in embedded_table {
            writer.put_u64(*word);
        }
        Ok(writer.finish())
    }

    /// Overwrites the header in the little-endian header block `block`, and preserves its table.
    ///
    /// # Errors
    /// If the size of the block does not match this header; then nothing is changed.
    pub fn put(&self, block: &mut [u8]) -> Result<(), DecodeError> {
        if Some(block.len()) != 1usize.checked_shl(self.block_shift) {
            return Err(DecodeError::new("zap header", "block of another size", 0));
        }
        for (place, word) in block.chunks_exact_mut(8).zip(self.words()) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        Ok(())
    }

    fn words(&self) -> [u64; 13] {
        [
            BLOCK_HEADER,
            MAGIC,
            self.table_block,
            self.table_blocks,
            u64::from(self.table_shift),
            self.next_table_block,
            self.table_blocks_copied,
            self.free_block,
            self.leaf_count,
            self.entry_count,
            self.salt,
            self.normflags,
            self.flags.bits(),
        ]
    }

    /// The hash function of this ZAP.
    #[must_use]
    pub fn hashing(&self) -> ZapHashing {
        ZapHashing {
            salt: self.salt,
            bits: if self.flags.contains(ZapFlags::HASH64) {
                48
            } else {
                28
            },
            is_prehashed: self.flags.contains(ZapFlags::PREHASHED_KEY),
        }
    }

    /// The position of the table entry for `hash`: in the header block or in a table block, always below
    /// `free_block`.
    #[must_use]
    pub fn table_location(&self, hash: u64) -> ZapTableLocation {
        let index = hash
            .checked_shr(64u32.saturating_sub(self.table_shift))
            .unwrap_or(0);
        let half_words = 1u64
            .checked_shl(self.block_shift.saturating_sub(4))
            .unwrap_or(0);
        if self.table_block == 0 {
            return ZapTableLocation {
                block: 0,
                word: usize::try_from(half_words.saturating_add(index)).unwrap_or(usize::MAX),
            };
        }
        let words_shift = self.block_shift.saturating_sub(3);
        let within = index & half_words.saturating_mul(2).saturating_sub(1);
        ZapTableLocation {
            block: self
                .table_block
                .saturating_add(index.checked_shr(words_shift).unwrap_or(0)),
            word: usize::try_from(within).unwrap_or(usize::MAX),
        }
    }
}

/// Reads the block number of a leaf from word `word` of a pointer table block or of the header block.
///
/// # Errors
/// If the block has no such word.
pub fn pointer_table_entry(bytes: &[u8], endian: Endian, word: usize) -> Result<u64, DecodeError> {
    let offset = word.saturating_mul(8);
    field::u64_at(bytes, offset, endian)
        .ok_or_else(|| DecodeError::new("zap pointer table", "too short", offset))
}

/// Overwrites word `word` of a little-endian pointer table block or of the header block.
///
/// # Errors
/// If the block has no such word.
pub fn put_pointer_table_entry(
    bytes: &mut [u8],
    word: usize,
    leaf_block: u64,
) -> Result<(), DecodeError> {
    let offset = word.saturating_mul(8);
    field::put_at(bytes, offset, &leaf_block.to_le_bytes())
        .ok_or_else(|| DecodeError::new("zap pointer table", "too short", offset))
}
