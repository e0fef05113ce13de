//! In-place changes of leaves, little-endian.
//!
//! Page `docs/format/zap-fat.md`, "Leaf" and "Changing a leaf".

use super::leaf::{
    ARRAY_BYTES, CHUNK_ARRAY, CHUNK_BYTES, CHUNK_ENTRY, CHUNK_FREE, LEAF_MAGIC, LeafShape,
};
use super::{
    BLOCK_LEAF, CHAIN_END, ZAP_NAME_BYTES_MAX, ZAP_VALUE_BYTES_MAX, ZapKey, ZapLeaf, ZapLeafEntry,
    ZapValue, field,
};
use crate::{DecodeError, Endian};

/// Why an insertion into a leaf failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeafInsertError {
    /// Too few free chunks: the leaf must be split.
    #[error("the leaf is full")]
    Full,
    /// No leaf of this ZAP can contain the entry.
    #[error("{0}")]
    Refused(&'static str),
    /// The leaf itself is corrupt.
    #[error(transparent)]
    Corrupt(#[from] DecodeError),
}

/// A little-endian leaf that can be changed in place. Page `docs/format/zap-fat.md`.
///
/// All checks precede the first modification: a change that fails leaves the block as it was, even if the
/// block is corrupt.
#[derive(Debug)]
pub struct ZapLeafMut<'a> {
    bytes: &'a mut [u8],
    shape: LeafShape,
    prefix_bits: u32,
}

impl<'a> ZapLeafMut<'a> {
    /// Opens the leaf in `bytes`, a whole little-endian block.
    ///
    /// # Errors
    /// As [`ZapLeaf::decode`].
    pub fn open(bytes: &'a mut [u8]) -> Result<Self, DecodeError> {
        let leaf = ZapLeaf::decode(bytes, Endian::Little)?;
        let prefix_bits = leaf.prefix_bits;
        let shape = LeafShape::of(bytes.len())?;
        Ok(Self {
            bytes,
            shape,
            prefix_bits,
        })
    }

    /// Formats `bytes` as an empty leaf.
    ///
    /// # Errors
    /// If the block size is invalid, or the prefix exceeds `prefix_bits`.
    pub fn format(
        bytes: &'a mut [u8],
        prefix: u64,
        prefix_bits: u32,
        is_cd_sorted: bool,
    ) -> Result<Self, DecodeError> {
        let bits = u16::try_from(prefix_bits)
            .ok()
            .filter(|bits| *bits <= 48 && prefix.checked_shr(prefix_bits).unwrap_or(0) == 0)
            .ok_or_else(|| DecodeError::new("zap leaf", "prefix too long", 16))?;
        let shape = LeafShape::of(bytes.len())?;
        bytes.fill(0);
        let mut leaf = Self {
            bytes,
            shape,
            prefix_bits,
        };
        leaf.put(0, &BLOCK_LEAF.to_le_bytes());
        leaf.put(16, &prefix.to_le_bytes());
        leaf.put(24, &LEAF_MAGIC.to_le_bytes());
        leaf.put_u16(FREE_COUNT, shape.chunks);
        leaf.put_u16(PREFIX_BITS, bits);
        leaf.put_u16(FREELIST, 0);
        leaf.put(36, &[u8::from(is_cd_sorted)]);
        for bucket in 0..shape.buckets {
            leaf.put_u16(LeafShape::bucket_offset(bucket), CHAIN_END);
        }
        for chunk in 0..shape.chunks {
            let next = chunk.saturating_add(1);
            let next = if next == shape.chunks {
                CHAIN_END
            } else {
                next
            };
            leaf.put_free(chunk, next);
        }
        Ok(leaf)
    }

    /// A read-only view of the leaf.
    ///
    /// # Errors
    /// As [`ZapLeaf::decode`]; impossible after [`ZapLeafMut::open`] has succeeded.
    pub fn view(&self) -> Result<ZapLeaf<'_>, DecodeError> {
        ZapLeaf::decode(self.bytes, Endian::Little)
    }
    /// The number of free chunks.
    #[must_use]
    pub fn free_chunks(&self) -> u16 {
        self.get_u16(FREE_COUNT)
    }
    /// The number of entries.
    #[must_use]
    pub fn entry_count(&self) -> u16 {
        self.get_u16(ENTRY_COUNT)
    }
    /// Changes the prefix of an empty leaf, to merge two empty siblings.
    ///
    /// # Errors
    /// If the leaf has entries, or the prefix exceeds `prefix_bits`.
    pub fn set_prefix(&mut self, prefix: u64, prefix_bits: u32) -> Result<(), DecodeError> {
        let fail = |reason| DecodeError::new("zap leaf", reason, 16);
        if self.entry_count() != 0 {
            return Err(fail("leaf is not empty"));
        }
        let bits = u16::try_from(prefix_bits)
            .ok()
            .filter(|bits| *bits <= 48 && prefix.checked_shr(prefix_bits).unwrap_or(0) == 0)
            .ok_or_else(|| fail("prefix too long"))?;
        self.prefix_bits = prefix_bits;
        self.put(16, &prefix.to_le_bytes());
        self.put_u16(PREFIX_BITS, bits);
        Ok(())
    }

    /// Adds an entry with `hash` (unused bits cleared) and `cd`, after entries of the same bucket with a
    /// smaller or equal `cd`.
    ///
    /// The caller ensures that the key is not present yet.
    ///
    /// # Errors
    /// [`LeafInsertError::Full`] if there are too few free chunks. No error changes anything.
    pub fn insert(
        &mut self,
        hash: u64,
        cd: u32,
        key: ZapKey<'_>,
        value: &ZapValue,
    ) -> Result<(), LeafInsertError> {
        let needed = leaf_entry_chunks(key, value)?;
        if needed > self.shape.chunks {
            return Err(LeafInsertError::Refused(
                "entry needs more chunks than a leaf has",
            ));
        }
        if needed > self.free_chunks() {
            return Err(LeafInsertError::Full);
        }
        let key_bytes = key.payload();
        let key_integers = match key {
            ZapKey::Name(_) => key_bytes.len(),
            ZapKey::Words(words) => words.len(),
        };
        let too_long = |_| LeafInsertError::Refused("entry too long");
        let key_integers = u16::try_from(key_integers).map_err(too_long)?;
        let value_integers = u16::try_from(value.count()).map_err(too_long)?;
        // Before the first change: find the position in the bucket's chain and the chunks.
        let link = self.link_before(hash, cd)?;
        let (chunks, rest) = self.free_list(needed)?;
        let mut chunks = chunks.into_iter();
        let entry = chunks.next().unwrap_or(CHAIN_END);
        let name_chunk = self.put_array(&key_bytes, &mut chunks);
        let value_chunk = self.put_array(&value.bytes, &mut chunks);
        self.put_u16(FREELIST, rest);
        self.put_u16(FREE_COUNT, self.free_chunks().saturating_sub(needed));

        let next = self.get_u16(link);
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        chunk.extend_from_slice(&[CHUNK_ENTRY, value.integer_bytes]);
        for number in [next, name_chunk, key_integers, value_chunk, value_integers] {
            chunk.extend_from_slice(&number.to_le_bytes());
        }
        chunk.extend_from_slice(&cd.to_le_bytes());
        chunk.extend_from_slice(&hash.to_le_bytes());
        self.put(self.offset(entry), &chunk);
        self.put_u16(link, entry);
        self.put_u16(ENTRY_COUNT, self.entry_count().saturating_add(1));
        Ok(())
    }

    /// Replaces the value of the entry in `chunk`.
    ///
    /// # Errors
    /// [`LeafInsertError::Full`] if there are too few free chunks. No error changes anything.
    pub fn replace_value(&mut self, chunk: u16, value: &ZapValue) -> Result<(), LeafInsertError> {
        let needed = value_chunks(value)?;
        let value_integers =
            u16::try_from(value.count()).map_err(|_| LeafInsertError::Refused("value too long"))?;
        let (entry, old) = self.value_chain(chunk)?;
        let old_count = u16::try_from(old.len()).unwrap_or(u16::MAX);
        let available = self.free_chunks().saturating_add(old_count);
        if needed > available {
            return Err(LeafInsertError::Full);
        }
        // Reuse the chunks of the old value first.
        let from_list = needed.saturating_sub(old_count);
        let (more, rest) = self.free_list(from_list)?;
        let mut chunks: Vec<u16> = old;
        let spare = chunks.split_off(usize::from(needed.min(old_count)));
        chunks.extend(more);
        self.put_u16(FREELIST, rest);
        self.put_u16(FREE_COUNT, self.free_chunks().saturating_sub(from_list));
        self.give_back(&spare);
        let first = self.put_array(&value.bytes, &mut chunks.into_iter());
        let offset = self.offset(entry.chunk);
        self.put(offset.saturating_add(1), &[value.integer_bytes]);
        self.put_u16(offset.saturating_add(8), first);
        self.put_u16(offset.saturating_add(10), value_integers);
        Ok(())
    }

    /// Removes the entry in `chunk`.
    ///
    /// # Errors
    /// If its chunks are broken; then nothing is changed.
    pub fn remove(&mut self, chunk: u16) -> Result<(), DecodeError> {
        let (entry, value) = self.value_chain(chunk)?;
        let leaf = self.view()?;
        let fail = |reason| DecodeError::new("zap leaf", reason, self.offset(chunk));
        // The length of a name counts bytes or words; the chain itself gives the number of chunks.
        let mut chunks = vec![chunk];
        chunks.extend(leaf.array_chunks(entry.name_chunk)?);
        chunks.extend(value);
        self.no_chunk_twice(&chunks)?;
        let count = u16::try_from(chunks.len()).unwrap_or(u16::MAX);
        self.free_chunks()
            .checked_add(count)
            .filter(|free| *free <= self.shape.chunks)
            .ok_or_else(|| fail("free chunks miscounted"))?;
        let entries = self
            .entry_count()
            .checked_sub(1)
            .ok_or_else(|| fail("entries miscounted"))?;
        let mut link = LeafShape::bucket_offset(self.shape.bucket(entry.hash, self.prefix_bits));
        let mut is_linked = false;
        for one in leaf.chain(entry.hash) {
            let one = one?;
            if one.chunk == chunk {
                is_linked = true;
                break;
            }
            link = self.offset(one.chunk).saturating_add(2);
        }
        if !is_linked {
            return Err(fail("entry is in no chain"));
        }
        self.put_u16(link, entry.next);
        self.put_u16(ENTRY_COUNT, entries);
        self.give_back(&chunks);
        Ok(())
    }

    /// An entry and the chunks of its value.
    fn value_chain(&self, chunk: u16) -> Result<(ZapLeafEntry, Vec<u16>), DecodeError> {
        let leaf = self.view()?;
        let entry = leaf.entry(chunk)?;
        // Checks lengths and kinds.
        let value = leaf.value(&entry)?;
        let chunks = if value.bytes.is_empty() {
            Vec::new()
        } else {
            leaf.array_chunks(entry.value_chunk)?
        };
        Ok((entry, chunks))
    }

    /// The first `count` chunks of the free list, and the new start of the list.
    fn free_list(&self, count: u16) -> Result<(Vec<u16>, u16), DecodeError> {
        let mut chunks = Vec::with_capacity(usize::from(count));
        let mut next = self.get_u16(FREELIST);
        for _ in 0..count {
            let offset = self.shape.chunk_offset(next).ok_or_else(|| {
                DecodeError::new("zap leaf", "free chunks end too early", FREELIST)
            })?;
            if self.bytes.get(offset) != Some(&CHUNK_FREE) {
                return Err(DecodeError::new("zap leaf", "chunk is not free", offset));
            }
            chunks.push(next);
            next = self.get_u16(offset.saturating_add(22));
        }
        self.no_chunk_twice(&chunks)?;
        Ok((chunks, next))
    }

    fn no_chunk_twice(&self, chunks: &[u16]) -> Result<(), DecodeError> {
        let mut sorted = chunks.to_vec();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair.first() == pair.last()) {
            let offset = self.shape.chunks_offset;
            return Err(DecodeError::new("zap leaf", "chunk is used twice", offset));
        }
        Ok(())
    }

    /// Puts chunks at the head of the free list.
    fn give_back(&mut self, chunks: &[u16]) {
        for &chunk in chunks {
            self.put_free(chunk, self.get_u16(FREELIST));
            self.put_u16(FREELIST, chunk);
        }
        let count = u16::try_from(chunks.len()).unwrap_or(u16::MAX);
        self.put_u16(FREE_COUNT, self.free_chunks().saturating_add(count));
    }

    /// Byte offset of the link that must point to a new entry with `cd`.
    fn link_before(&self, hash: u64, cd: u32) -> Result<usize, LeafInsertError> {
        let leaf = self.view()?;
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

    /// Stores bytes in the next of `chunks`, which must be sufficient. Returns the first.
    fn put_array(&mut self, bytes: &[u8], chunks: &mut impl Iterator<Item = u16>) -> u16 {
        let mut first = CHAIN_END;
        let mut link = None;
        for (part, chunk) in bytes.chunks(ARRAY_BYTES).zip(chunks) {
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
    fn put_free(&mut self, chunk: u16, next: u16) {
        let mut content = [0u8; CHUNK_BYTES];
        field::put_at(&mut content, 0, &[CHUNK_FREE]);
        field::put_at(&mut content, 22, &next.to_le_bytes());
        self.put(self.offset(chunk), &content);
    }
    fn offset(&self, chunk: u16) -> usize {
        self.shape.chunk_offset(chunk).unwrap_or(usize::MAX)
    }
    fn get_u16(&self, offset: usize) -> u16 {
        field::u16_at(self.bytes, offset, Endian::Little).unwrap_or(CHAIN_END)
    }
    fn put_u16(&mut self, offset: usize, value: u16) {
        self.put(offset, &value.to_le_bytes());
    }
    fn put(&mut self, offset: usize, value: &[u8]) {
        let written = field::put_at(self.bytes, offset, value);
        debug_assert!(written.is_some(), "a leaf's offset lies in the leaf");
    }
}

/// The number of chunks of an entry in a leaf.
///
/// # Errors
/// [`LeafInsertError::Refused`] if no leaf can contain such an entry.
pub fn leaf_entry_chunks(key: ZapKey<'_>, value: &ZapValue) -> Result<u16, LeafInsertError> {
    let refused = LeafInsertError::Refused;
    let key_bytes = match key {
        ZapKey::Name(name) if name.len() > ZAP_NAME_BYTES_MAX || name.contains(&0) => {
            return Err(refused("name above 1023 bytes or with a NUL"));
        }
        ZapKey::Words(words) if words.is_empty() || words.len() > 128 => {
            return Err(refused("key is not 1 to 128 words"));
        }
        ZapKey::Name(name) => name.len().saturating_add(1),
        ZapKey::Words(words) => words.len().saturating_mul(8),
    };
    let key_chunks =
        u16::try_from(key_bytes.div_ceil(ARRAY_BYTES)).map_err(|_| refused("entry too long"))?;
    Ok(value_chunks(value)?
        .saturating_add(key_chunks)
        .saturating_add(1))
}

/// The number of array chunks of a value in a leaf.
fn value_chunks(value: &ZapValue) -> Result<u16, LeafInsertError> {
    let refused = LeafInsertError::Refused;
    if !matches!(value.integer_bytes, 1 | 2 | 4 | 8) {
        return Err(refused("integers are not 1, 2, 4 or 8 bytes"));
    }
    if value.bytes.len() > ZAP_VALUE_BYTES_MAX {
        return Err(refused("value above 8192 bytes"));
    }
    let width = usize::from(value.integer_bytes);
    if !value.bytes.len().is_multiple_of(width) {
        return Err(refused("value ends inside an integer"));
    }
    u16::try_from(value.bytes.len().div_ceil(ARRAY_BYTES)).map_err(|_| refused("entry too long"))
}

const FREE_COUNT: usize = 28;
const ENTRY_COUNT: usize = 30;
const PREFIX_BITS: usize = 32;
const FREELIST: usize = 34;
