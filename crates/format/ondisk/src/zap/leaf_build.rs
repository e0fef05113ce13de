//! Building leaves, little-endian.
//!
//! Page `docs/format/zap-fat.md`, "Leaf".

use super::leaf::{
    ARRAY_BYTES, CHUNK_ARRAY, CHUNK_BYTES, CHUNK_ENTRY, CHUNK_FREE, LEAF_MAGIC, LeafShape,
};
use super::{
    BLOCK_LEAF, CHAIN_END, ZAP_NAME_BYTES_MAX, ZAP_VALUE_BYTES_MAX, ZapKey, ZapLeaf, ZapValue,
    field,
};
use crate::{DecodeError, Endian};

/// Why an entry did not get into a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeafInsertError {
    /// Too few free chunks: the leaf must be split.
    #[error("the leaf is full")]
    Full,
    /// No leaf of this ZAP can ever hold the entry.
    #[error("{0}")]
    Refused(&'static str),
    /// The leaf itself is broken.
    #[error(transparent)]
    Corrupt(#[from] DecodeError),
}

/// A leaf in the making. Page `docs/format/zap-fat.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZapLeafBuilder {
    bytes: Vec<u8>,
    shape: LeafShape,
    prefix_bits: u32,
}

impl ZapLeafBuilder {
    /// An empty leaf of 2^`block_shift` bytes.
    ///
    /// # Errors
    /// If the block size is none that exists or the prefix is longer than its length.
    pub fn new(
        block_shift: u32,
        prefix: u64,
        prefix_bits: u32,
        is_cd_sorted: bool,
    ) -> Result<Self, DecodeError> {
        if !super::FAT_BLOCK_SHIFTS.contains(&block_shift) {
            return Err(DecodeError::new("zap leaf", "block size out of range", 0));
        }
        if prefix_bits > 48 || prefix.checked_shr(prefix_bits).unwrap_or(0) != 0 {
            return Err(DecodeError::new("zap leaf", "prefix too long", 16));
        }
        let block_bytes = 1usize.checked_shl(block_shift).unwrap_or(0);
        let shape = LeafShape::of(block_bytes)?;
        let mut builder = Self {
            bytes: vec![0; block_bytes],
            shape,
            prefix_bits,
        };
        let chunks = shape.chunks;
        let bits = u16::try_from(prefix_bits).unwrap_or(0);
        builder.put(0, &BLOCK_LEAF.to_le_bytes());
        builder.put(16, &prefix.to_le_bytes());
        builder.put(24, &LEAF_MAGIC.to_le_bytes());
        builder.put_u16(FREE_COUNT, chunks);
        builder.put_u16(32, bits);
        builder.put_u16(FREELIST, 0);
        builder.put(36, &[u8::from(is_cd_sorted)]);
        for bucket in 0..shape.buckets {
            builder.put_u16(LeafShape::bucket_offset(bucket), CHAIN_END);
        }
        for chunk in 0..chunks {
            let next = chunk.saturating_add(1);
            let next = if next == chunks { CHAIN_END } else { next };
            let offset = builder.offset(chunk);
            builder.put(offset, &[CHUNK_FREE]);
            builder.put_u16(offset.saturating_add(22), next);
        }
        Ok(builder)
    }

    /// Chunks still free.
    #[must_use]
    pub fn free_chunks(&self) -> u16 {
        self.get_u16(FREE_COUNT)
    }
    /// Entries here.
    #[must_use]
    pub fn entry_count(&self) -> u16 {
        self.get_u16(ENTRY_COUNT)
    }

    /// Adds an entry under `hash` (as kept) and `cd`, behind entries of the same bucket with a
    /// smaller `cd`. Whether the key is there already is the caller's business.
    ///
    /// # Errors
    /// [`LeafInsertError::Full`] if chunks are lacking; nothing is changed by any error.
    pub fn insert(
        &mut self,
        hash: u64,
        cd: u32,
        key: ZapKey<'_>,
        value: &ZapValue,
    ) -> Result<(), LeafInsertError> {
        let refused = LeafInsertError::Refused;
        let key_bytes = key.payload();
        let key_integers = match key {
            ZapKey::Name(name) if name.len() > ZAP_NAME_BYTES_MAX || name.contains(&0) => {
                return Err(refused("name above 1023 bytes or with a NUL"));
            }
            ZapKey::Words(words) if words.is_empty() || words.len() > 128 => {
                return Err(refused("key is not 1 to 128 words"));
            }
            ZapKey::Name(_) => key_bytes.len(),
            ZapKey::Words(words) => words.len(),
        };
        let key_integers = u16::try_from(key_integers).map_err(|_| refused("key too long"))?;
        if !matches!(value.integer_bytes, 1 | 2 | 4 | 8) {
            return Err(refused("integers are not 1, 2, 4 or 8 bytes"));
        }
        if value.bytes.len() > ZAP_VALUE_BYTES_MAX {
            return Err(refused("value above 8192 bytes"));
        }
        if !value
            .bytes
            .len()
            .is_multiple_of(usize::from(value.integer_bytes))
        {
            return Err(refused("value ends inside an integer"));
        }
        let value_integers = u16::try_from(value.count()).map_err(|_| refused("value too long"))?;
        let needed = key_bytes
            .len()
            .div_ceil(ARRAY_BYTES)
            .saturating_add(value.bytes.len().div_ceil(ARRAY_BYTES))
            .saturating_add(1);
        let needed = u16::try_from(needed).map_err(|_| refused("entry too long"))?;
        if needed > self.shape.chunks {
            return Err(refused("entry needs more chunks than a leaf has"));
        }
        if needed > self.free_chunks() {
            return Err(LeafInsertError::Full);
        }
        // Before anything changes: the place in the bucket's chain.
        let link = self.link_before(hash, cd)?;

        let entry = self.take_chunk();
        let name_chunk = self.put_array(&key_bytes);
        let value_chunk = self.put_array(&value.bytes);
        let offset = self.offset(entry);
        let next = self.get_u16(link);
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        chunk.extend_from_slice(&[CHUNK_ENTRY, value.integer_bytes]);
        for number in [next, name_chunk, key_integers, value_chunk, value_integers] {
            chunk.extend_from_slice(&number.to_le_bytes());
        }
        chunk.extend_from_slice(&cd.to_le_bytes());
        chunk.extend_from_slice(&hash.to_le_bytes());
        self.put(offset, &chunk);
        self.put_u16(link, entry);
        self.put_u16(ENTRY_COUNT, self.entry_count().saturating_add(1));
        Ok(())
    }

    /// The block's bytes.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    /// Byte offset of the link that shall point to an entry of `cd`.
    fn link_before(&self, hash: u64, cd: u32) -> Result<usize, LeafInsertError> {
        let leaf = ZapLeaf::decode(&self.bytes, Endian::Little)?;
        if !leaf.covers(hash) {
            return Err(LeafInsertError::Refused("hash belongs into another leaf"));
        }
        let bucket = self.shape.bucket(hash, self.prefix_bits);
        let mut link = LeafShape::bucket_offset(bucket);
        for entry in leaf.chain(hash) {
            let entry = entry?;
            if entry.cd > cd {
                break;
            }
            link = self.offset(entry.chunk).saturating_add(2);
        }
        Ok(link)
    }
    /// Stores bytes in chunks from the free list, of which there must be enough; returns the first.
    fn put_array(&mut self, bytes: &[u8]) -> u16 {
        let mut first = CHAIN_END;
        let mut link = None;
        for part in bytes.chunks(ARRAY_BYTES) {
            let chunk = self.take_chunk();
            let offset = self.offset(chunk);
            let mut content = [0u8; CHUNK_BYTES];
            field::put_at(&mut content, 0, &[CHUNK_ARRAY]);
            field::put_at(&mut content, 1, part);
            field::put_at(&mut content, 22, &CHAIN_END.to_le_bytes());
            self.put(offset, &content);
            match link {
                Some(link) => self.put_u16(link, chunk),
                None => first = chunk,
            }
            link = Some(offset.saturating_add(22));
        }
        first
    }
    fn take_chunk(&mut self) -> u16 {
        let chunk = self.get_u16(FREELIST);
        let next = self.get_u16(self.offset(chunk).saturating_add(22));
        self.put_u16(FREELIST, next);
        self.put_u16(FREE_COUNT, self.free_chunks().saturating_sub(1));
        chunk
    }
    fn offset(&self, chunk: u16) -> usize {
        self.shape.chunk_offset(chunk).unwrap_or(usize::MAX)
    }
    fn get_u16(&self, offset: usize) -> u16 {
        field::u16_at(&self.bytes, offset, Endian::Little).unwrap_or(CHAIN_END)
    }
    fn put_u16(&mut self, offset: usize, value: u16) {
        self.put(offset, &value.to_le_bytes());
    }
    fn put(&mut self, offset: usize, value: &[u8]) {
        let written = field::put_at(&mut self.bytes, offset, value);
        debug_assert!(written.is_some(), "a leaf's offset lies in the leaf");
    }
}

const FREE_COUNT: usize = 28;
const ENTRY_COUNT: usize = 30;
const FREELIST: usize = 34;
