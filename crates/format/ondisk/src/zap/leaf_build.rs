//! Construction of leaves, little-endian.
//!
//! Page `docs/format/zap-fat.md`, "Leaf".

use super::{LeafInsertError, ZapKey, ZapLeafMut, ZapValue};
use crate::DecodeError;

/// A leaf under construction. Page `docs/format/zap-fat.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZapLeafBuilder {
    bytes: Vec<u8>,
    free_chunks: u16,
    entry_count: u16,
}

impl ZapLeafBuilder {
    /// An empty leaf of 2^`block_shift` bytes.
    ///
    /// # Errors
    /// If the block size is invalid, or the prefix exceeds `prefix_bits`.
    pub fn new(
        block_shift: u32,
        prefix: u64,
        prefix_bits: u32,
        is_cd_sorted: bool,
    ) -> Result<Self, DecodeError> {
        if !super::FAT_BLOCK_SHIFTS.contains(&block_shift) {
            return Err(DecodeError::new("zap leaf", "block size out of range", 0));
        }
        let mut bytes = vec![0; 1usize.checked_shl(block_shift).unwrap_or(0)];
        let leaf = ZapLeafMut::format(&mut bytes, prefix, prefix_bits, is_cd_sorted)?;
        let free_chunks = leaf.free_chunks();
        Ok(Self {
            bytes,
            free_chunks,
            entry_count: 0,
        })
    }

    /// The number of free chunks.
    #[must_use]
    pub fn free_chunks(&self) -> u16 {
        self.free_chunks
    }
    /// The number of entries.
    #[must_use]
    pub fn entry_count(&self) -> u16 {
        self.entry_count
    }

    /// Adds an entry; see [`ZapLeafMut::insert`].
    ///
    /// # Errors
    /// As [`ZapLeafMut::insert`].
    pub fn insert(
        &mut self,
        hash: u64,
        cd: u32,
        key: ZapKey<'_>,
        value: &ZapValue,
    ) -> Result<(), LeafInsertError> {
        let mut leaf = ZapLeafMut::open(&mut self.bytes)?;
        leaf.insert(hash, cd, key, value)?;
        self.free_chunks = leaf.free_chunks();
        self.entry_count = leaf.entry_count();
        Ok(())
    }

    /// Returns the bytes of the block.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
