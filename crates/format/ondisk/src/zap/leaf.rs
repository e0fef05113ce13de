//! Leaves of a fat ZAP, read in place.
//!
//! Page `docs/format/zap-fat.md`, "Leaf".

use super::{BLOCK_LEAF, CHAIN_END, ZAP_NAME_BYTES_MAX, ZapValue, block_shift, field};
use crate::{DecodeError, Endian, Reader};

pub(super) const LEAF_MAGIC: u32 = 0x02ab_1eaf;
pub(super) const LEAF_HEADER_BYTES: usize = 48;
pub(super) const CHUNK_BYTES: usize = 24;
pub(super) const ARRAY_BYTES: usize = 21;
pub(super) const CHUNK_ARRAY: u8 = 251;
pub(super) const CHUNK_ENTRY: u8 = 252;
pub(super) const CHUNK_FREE: u8 = 253;

/// Quantities that depend only on the block size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeafShape {
    pub(super) block_shift: u32,
    pub(super) buckets: usize,
    pub(super) chunks: u16,
    pub(super) chunks_offset: usize,
}

impl LeafShape {
    pub(super) fn of(block_bytes: usize) -> Result<Self, DecodeError> {
        let block_shift = block_shift("zap leaf", block_bytes)?;
        let buckets = block_bytes / 32;
        let chunks = (block_bytes.saturating_sub(block_bytes / 16) / CHUNK_BYTES).saturating_sub(2);
        Ok(Self {
            block_shift,
            buckets,
            chunks: u16::try_from(chunks)
                .map_err(|_| DecodeError::new("zap leaf", "too many chunks", 0))?,
            chunks_offset: LEAF_HEADER_BYTES.saturating_add(block_bytes / 16),
        })
    }
    /// Byte offset of a chunk; `None` if there is no such chunk.
    pub(super) fn chunk_offset(&self, chunk: u16) -> Option<usize> {
        (chunk < self.chunks).then(|| {
            self.chunks_offset
                .saturating_add(usize::from(chunk).saturating_mul(CHUNK_BYTES))
        })
    }
    /// The bucket of a hash in a leaf of `prefix_bits`, from the bits after the prefix.
    pub(super) fn bucket(&self, hash: u64, prefix_bits: u32) -> usize {
        let shift = 64u32
            .saturating_sub(self.block_shift.saturating_sub(5))
            .saturating_sub(prefix_bits);
        let word = hash.checked_shr(shift).unwrap_or(0);
        usize::try_from(word).unwrap_or(usize::MAX) & self.buckets.saturating_sub(1)
    }
    pub(super) fn bucket_offset(bucket: usize) -> usize {
        LEAF_HEADER_BYTES.saturating_add(bucket.saturating_mul(2))
    }
}

/// A leaf block. Page `docs/format/zap-fat.md`.
#[derive(Debug, Clone, Copy)]
pub struct ZapLeaf<'a> {
    /// The upper `prefix_bits` bits of the hash of every entry.
    pub prefix: u64,
    /// The number of bits of `prefix`, at most 64.
    pub prefix_bits: u32,
    /// The stored number of free chunks.
    pub free_chunks: u16,
    /// The stored number of entries.
    pub entry_count: u16,
    /// The first free chunk, or 0xffff.
    pub freelist: u16,
    /// Whether chains are sorted by differentiator (flag bit 0).
    pub is_cd_sorted: bool,
    bytes: &'a [u8],
    endian: Endian,
    shape: LeafShape,
}

/// The entry chunk of one name or key. Page `docs/format/zap-fat.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZapLeafEntry {
    /// The chunk number.
    pub chunk: u16,
    /// Size of an integer of the value in bytes: 1, 2, 4 or 8.
    pub integer_bytes: u8,
    /// The next entry in this bucket, or 0xffff.
    pub next: u16,
    /// The first array chunk of the name.
    pub name_chunk: u16,
    /// Length of the name in bytes with its NUL, or of the key in 64-bit words; not 0.
    pub name_integers: u16,
    /// The first array chunk of the value, or 0xffff.
    pub value_chunk: u16,
    /// The number of integers of the value.
    pub value_integers: u16,
    /// Distinguishes entries of equal hash.
    pub cd: u32,
    /// The hash of the key, with unused bits cleared.
    pub hash: u64,
}

impl<'a> ZapLeaf<'a> {
    /// Reads the header of a leaf. `bytes` is the whole block, in byte order `endian`. Allocates nothing.
    ///
    /// # Errors
    /// If the block is not a leaf, or the prefix is invalid.
    pub fn decode(bytes: &'a [u8], endian: Endian) -> Result<Self, DecodeError> {
        let fail = |reason, offset| DecodeError::new("zap leaf", reason, offset);
        let shape = LeafShape::of(bytes.len())?;
        let mut reader = Reader::new("zap leaf", bytes, endian);
        if reader.u64()? != BLOCK_LEAF {
            return Err(fail("not a zap leaf", 0));
        }
        reader.skip(8)?;
        let prefix = reader.u64()?;
        if reader.u32()? != LEAF_MAGIC {
            return Err(fail("wrong magic", 24));
        }
        let free_chunks = reader.u16()?;
        let entry_count = reader.u16()?;
        let prefix_bits = u32::from(reader.u16()?);
        let freelist = reader.u16()?;
        let flags = reader.u8()?;
        if prefix_bits > 48 {
            return Err(fail("prefix longer than 48 bits", 32));
        }
        if prefix.checked_shr(prefix_bits).unwrap_or(0) != 0 {
            return Err(fail("prefix longer than its length", 16));
        }
        Ok(Self {
            prefix,
            prefix_bits,
            free_chunks,
            entry_count,
            freelist,
            is_cd_sorted: flags & 1 != 0,
            bytes,
            endian,
            shape,
        })
    }

    /// The number of chunks in the block.
    #[must_use]
    pub fn chunk_count(&self) -> u16 {
        self.shape.chunks
    }
    /// The smallest hash in this leaf's range.
    #[must_use]
    pub fn first_hash(&self) -> u64 {
        self.prefix
            .checked_shl(64u32.saturating_sub(self.prefix_bits))
            .unwrap_or(0)
    }
    /// The first hash after this leaf's range; `None` if this is the last leaf.
    #[must_use]
    pub fn next_hash(&self) -> Option<u64> {
        let size = 1u64.checked_shl(64u32.saturating_sub(self.prefix_bits))?;
        self.first_hash().checked_add(size)
    }
    /// Whether a hash is in this leaf's range.
    #[must_use]
    pub fn covers(&self, hash: u64) -> bool {
        hash.checked_shr(64u32.saturating_sub(self.prefix_bits))
            .unwrap_or(0)
            == self.prefix
    }

    /// The entries in the bucket of `hash`, including those of other hashes.
    ///
    /// Ends after the first error, and after at most as many entries as there are chunks.
    #[must_use]
    pub fn chain(&self, hash: u64) -> LeafChain<'a> {
        self.bucket_chain(self.shape.bucket(hash, self.prefix_bits))
    }
    /// All entries, bucket by bucket.
    ///
    /// Checks that each entry is in the bucket of its hash, so no entry occurs twice. A loop yields an error
    /// after at most as many entries as there are chunks.
    pub fn entries(&self) -> impl Iterator<Item = Result<ZapLeafEntry, DecodeError>> + use<'a> {
        let leaf = *self;
        (0..self.shape.buckets).flat_map(move |bucket| leaf.bucket_chain(bucket))
    }
    fn bucket_chain(&self, bucket: usize) -> LeafChain<'a> {
        let offset = LeafShape::bucket_offset(bucket);
        let next = field::u16_at(self.bytes, offset, self.endian).unwrap_or(CHAIN_END);
        LeafChain {
            leaf: *self,
            bucket,
            next,
            left: self.shape.chunks,
        }
    }

    /// The content of a chunk behind its kind, which must be `kind`; otherwise the reason is `wrong`.
    fn chunk(&self, chunk: u16, kind: u8, wrong: &'static str) -> Result<Reader<'a>, DecodeError> {
        let offset = self.chunk_offset(chunk)?;
        let fail = |reason| DecodeError::new("zap leaf", reason, offset);
        let bytes = self
            .bytes
            .get(offset..offset.saturating_add(CHUNK_BYTES))
            .ok_or_else(|| fail("too short"))?;
        let mut reader = Reader::new("zap leaf", bytes, self.endian);
        if reader.u8()? != kind {
            return Err(fail(wrong));
        }
        Ok(reader)
    }

    /// Reads the entry in `chunk`.
    ///
    /// # Errors
    /// If there is no such chunk, or it is of another kind.
    pub fn entry(&self, chunk: u16) -> Result<ZapLeafEntry, DecodeError> {
        let mut reader = self.chunk(chunk, CHUNK_ENTRY, "chunk is no entry")?;
        let fail = |reason| self.fail_at(chunk, reason);
        let entry = ZapLeafEntry {
            chunk,
            integer_bytes: reader.u8()?,
            next: reader.u16()?,
            name_chunk: reader.u16()?,
            name_integers: reader.u16()?,
            value_chunk: reader.u16()?,
            value_integers: reader.u16()?,
            cd: reader.u32()?,
            hash: reader.u64()?,
        };
        if !matches!(entry.integer_bytes, 1 | 2 | 4 | 8) {
            return Err(fail("integers are not 1, 2, 4 or 8 bytes"));
        }
        if entry.name_integers == 0 {
            return Err(fail("name has no length"));
        }
        Ok(entry)
    }

    /// The name of an entry with a string key, without its NUL: at most 1023 bytes.
    ///
    /// # Errors
    /// If it is longer, has no NUL at its end, has a NUL before the end, or its chunks are broken.
    pub fn name(&self, entry: &ZapLeafEntry) -> Result<Vec<u8>, DecodeError> {
        let fail = |reason| self.fail_at(entry.chunk, reason);
        let length = usize::from(entry.name_integers);
        if length > ZAP_NAME_BYTES_MAX.saturating_add(1) {
            return Err(fail("name above 1023 bytes"));
        }
        let mut name = self.array(entry.name_chunk, length)?;
        if name.pop() != Some(0) {
            return Err(fail("name has no NUL"));
        }
        if name.contains(&0) {
            return Err(fail("name has a NUL inside"));
        }
        Ok(name)
    }
    /// The key of an entry with a key of 64-bit words: at most 128 of them.
    ///
    /// # Errors
    /// If there are more, or its chunks are broken.
    pub fn words(&self, entry: &ZapLeafEntry) -> Result<Vec<u64>, DecodeError> {
        if entry.name_integers > 128 {
            return Err(self.fail_at(entry.chunk, "key above 128 words"));
        }
        let length = usize::from(entry.name_integers).saturating_mul(8);
        let bytes = self.array(entry.name_chunk, length)?;
        let mut reader = Reader::new("zap leaf", &bytes, Endian::Big);
        (0..entry.name_integers).map(|_| reader.u64()).collect()
    }
    /// The value of an entry. Allocates at most the block's size.
    ///
    /// # Errors
    /// If it needs more chunks than there are, or they are broken.
    pub fn value(&self, entry: &ZapLeafEntry) -> Result<ZapValue, DecodeError> {
        let length =
            usize::from(entry.value_integers).saturating_mul(usize::from(entry.integer_bytes));
        let bytes = if length == 0 {
            Vec::new()
        } else {
            self.array(entry.value_chunk, length)?
        };
        Ok(ZapValue {
            integer_bytes: entry.integer_bytes,
            bytes,
        })
    }

    /// Collects `length` (not 0) bytes from a chain of array chunks.
    ///
    /// The chain must end exactly there, so loops are always detected.
    fn array(&self, first: u16, length: usize) -> Result<Vec<u8>, DecodeError> {
        let needed = length.div_ceil(ARRAY_BYTES);
        if needed > usize::from(self.shape.chunks) {
            return Err(DecodeError::new(
                "zap leaf",
                "array longer than the leaf",
                self.shape.chunks_offset,
            ));
        }
        let mut collected = Vec::with_capacity(needed.saturating_mul(ARRAY_BYTES));
        let mut chunk = first;
        for _ in 0..needed {
            let mut reader = self.chunk(chunk, CHUNK_ARRAY, "chunk is no array")?;
            collected.extend_from_slice(reader.take(ARRAY_BYTES)?);
            chunk = reader.u16()?;
        }
        if chunk != CHAIN_END {
            return Err(self.fail_at(first, "array does not end where it should"));
        }
        collected.truncate(length);
        Ok(collected)
    }

    /// The chunks of the array that begins with `first`, up to the end of its chain.
    ///
    /// # Errors
    /// If one is not an array chunk, or there are more than the leaf has.
    pub(super) fn array_chunks(&self, first: u16) -> Result<Vec<u16>, DecodeError> {
        let mut chunks = Vec::new();
        let mut chunk = first;
        while chunk != CHAIN_END {
            let offset = self.chunk_offset(chunk)?;
            if self.bytes.get(offset) != Some(&CHUNK_ARRAY) {
                return Err(DecodeError::new("zap leaf", "chunk is no array", offset));
            }
            if chunks.len() >= usize::from(self.shape.chunks) {
                return Err(self.fail_at(chunk, "array loops"));
            }
            chunks.push(chunk);
            chunk = field::u16_at(self.bytes, offset.saturating_add(22), self.endian)
                .unwrap_or(CHAIN_END);
        }
        Ok(chunks)
    }

    /// Counts the free chunks by following their list.
    ///
    /// # Errors
    /// If the list contains another kind of chunk or loops.
    pub fn count_free(&self) -> Result<u16, DecodeError> {
        let mut count = 0u16;
        let mut chunk = self.freelist;
        while chunk != CHAIN_END {
            let offset = self.chunk_offset(chunk)?;
            if self.bytes.get(offset) != Some(&CHUNK_FREE) {
                return Err(self.fail_at(chunk, "chunk is not free"));
            }
            count = count.saturating_add(1);
            if count > self.shape.chunks {
                return Err(self.fail_at(chunk, "free list loops"));
            }
            let link = offset.saturating_add(CHUNK_BYTES).saturating_sub(2);
            chunk = field::u16_at(self.bytes, link, self.endian).unwrap_or(CHAIN_END);
        }
        Ok(count)
    }

    fn chunk_offset(&self, chunk: u16) -> Result<usize, DecodeError> {
        self.shape
            .chunk_offset(chunk)
            .ok_or_else(|| DecodeError::new("zap leaf", "no such chunk", self.shape.chunks_offset))
    }
    fn fail_at(&self, chunk: u16, reason: &'static str) -> DecodeError {
        let offset = self.shape.chunk_offset(chunk).unwrap_or(0);
        DecodeError::new("zap leaf", reason, offset)
    }
}

/// The entries of a bucket; see [`ZapLeaf::chain`].
#[derive(Debug, Clone)]
pub struct LeafChain<'a> {
    leaf: ZapLeaf<'a>,
    bucket: usize,
    next: u16,
    left: u16,
}

impl LeafChain<'_> {
    fn step(&mut self) -> Result<ZapLeafEntry, DecodeError> {
        let chunk = self.next;
        self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| self.leaf.fail_at(chunk, "chain of entries loops"))?;
        let entry = self.leaf.entry(chunk)?;
        let bucket = self.leaf.shape.bucket(entry.hash, self.leaf.prefix_bits);
        if !self.leaf.covers(entry.hash) || bucket != self.bucket {
            return Err(self
                .leaf
                .fail_at(chunk, "entry is not where its hash belongs"));
        }
        self.next = entry.next;
        Ok(entry)
    }
}

impl Iterator for LeafChain<'_> {
    type Item = Result<ZapLeafEntry, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == CHAIN_END {
            return None;
        }
        let step = self.step();
        if step.is_err() {
            self.next = CHAIN_END;
        }
        Some(step)
    }
}
