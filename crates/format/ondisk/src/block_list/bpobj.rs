//! Block pointer lists ("bpobj").

use crate::{BLOCK_POINTER_BYTES, BlockPointer, DecodeError, Endian, ObjectId, Reader, Writer};

/// The set of fields in a list's header. The bonus length selects it, and an old header is never extended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BpObjectForm {
    /// 16 bytes: count and deflated bytes.
    Count,
    /// 32 bytes: also physical and logical sizes (pool version 3).
    Sizes,
    /// 48 bytes: also sub-objects (pool version 26).
    SubObjects,
    /// 56 bytes: also the number of "freed" entries (feature `com.delphix:livelist`).
    Freed,
}

impl BpObjectForm {
    /// Size of the header in bytes.
    #[must_use]
    pub fn bonus_bytes(self) -> usize {
        match self {
            Self::Count => 16,
            Self::Sizes => 32,
            Self::SubObjects => 48,
            Self::Freed => 56,
        }
    }
    /// The longest form that fits in `bonus_bytes`; `None` if not even the shortest does.
    #[must_use]
    pub fn of_bonus(bonus_bytes: usize) -> Option<Self> {
        [Self::Freed, Self::SubObjects, Self::Sizes, Self::Count]
            .into_iter()
            .find(|form| form.bonus_bytes() <= bonus_bytes)
    }
}

/// The header of a block pointer list: the bonus of its object. Page `docs/format/bpobj.md`.
///
/// Fields that its form lacks are 0 or `None`. Sums include the sub-objects, recursively.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BpObjectPhys {
    /// The stored fields.
    pub form: BpObjectForm,
    /// The number of pointers in the object's own data.
    pub pointer_count: u64,
    /// Their deflated allocated bytes.
    pub bytes: u64,
    /// Their physical sizes.
    pub compressed_bytes: u64,
    /// Their logical sizes.
    pub uncompressed_bytes: u64,
    /// The array of object ids of sub-objects (see [`crate::WordArray`]).
    pub sub_objects: Option<ObjectId>,
    /// The number of sub-objects.
    pub sub_object_count: u64,
    /// The number of "freed" entries.
    pub freed_count: u64,
}

impl BpObjectPhys {
    /// An empty list.
    #[must_use]
    pub fn empty(form: BpObjectForm) -> Self {
        Self {
            form,
            pointer_count: 0,
            bytes: 0,
            compressed_bytes: 0,
            uncompressed_bytes: 0,
            sub_objects: None,
            sub_object_count: 0,
            freed_count: 0,
        }
    }
    /// Reads a header; the length of `bonus` selects its form.
    ///
    /// # Errors
    /// If there are fewer than 16 bytes.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let form = BpObjectForm::of_bonus(bonus.len()).ok_or_else(|| {
            DecodeError::new("block pointer list", "shorter than 16 bytes", bonus.len())
        })?;
        let mut reader = Reader::new("block pointer list", bonus, endian);
        let mut header = Self::empty(form);
        header.pointer_count = reader.u64()?;
        header.bytes = reader.u64()?;
        if form >= BpObjectForm::Sizes {
            header.compressed_bytes = reader.u64()?;
            header.uncompressed_bytes = reader.u64()?;
        }
        if form >= BpObjectForm::SubObjects {
            header.sub_objects = ObjectId(reader.u64()?).some();
            header.sub_object_count = reader.u64()?;
        }
        if form >= BpObjectForm::Freed {
            header.freed_count = reader.u64()?;
        }
        Ok(header)
    }
    /// Encodes the header in its form, little-endian.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(BpObjectForm::Freed.bonus_bytes());
        writer.put_words(&[
            self.pointer_count,
            self.bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
            ObjectId::number(self.sub_objects),
            self.sub_object_count,
            self.freed_count,
        ]);
        let mut bytes = writer.finish();
        bytes.truncate(self.form.bonus_bytes());
        bytes
    }
    /// Whether the list has neither pointers nor sub-objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pointer_count == 0 && self.sub_object_count == 0
    }
}

/// One entry of a list. Page `docs/format/bpobj.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BpObjectEntry {
    /// The block. Its checksum words are zero unless the dedup bit is set. An embedded pointer retains only
    /// its properties and birth.
    pub pointer: BlockPointer,
    /// In livelists, whether the block was freed (otherwise it was allocated). Clear in other lists.
    pub is_freed: bool,
}

impl BpObjectEntry {
    /// Reads the entry at the start of `bytes`.
    ///
    /// # Errors
    /// If there are fewer than 128 bytes.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut pointer = BlockPointer::decode(bytes, endian)?;
        let mut is_freed = false;
        if let Some(fill) = pointer.words.get_mut(11) {
            is_freed = *fill & 1 == 1;
            *fill &= !1;
        }
        Ok(Self { pointer, is_freed })
    }
    /// Encodes the entry as 128 little-endian bytes; `None` for a hole, which lists never contain.
    #[must_use]
    pub fn encode(&self) -> Option<[u8; BLOCK_POINTER_BYTES]> {
        let given = &self.pointer;
        if given.is_hole() {
            return None;
        }
        let mut kept = BlockPointer::default();
        let keep_checksum = given.is_dedup();
        for (index, (to, from)) in kept.words.iter_mut().zip(given.words).enumerate() {
            *to = match index {
                6 | 10 => from,
                _ if given.is_embedded() => 0,
                // The upper half is the end of an encrypted block's IV, not fill.
                11 if given.is_encrypted() => from & !0xffff_ffff,
                11 => 0,
                12..=15 if !keep_checksum => 0,
                _ => from,
            };
        }
        if let Some(fill) = kept.words.get_mut(11) {
            *fill |= u64::from(self.is_freed);
        }
        Some(kept.encode())
    }
}

/// Iterates over the entries in a part of a list's data.
///
/// An incomplete last entry is skipped. The caller passes at most the bytes of `pointer_count` entries.
#[derive(Debug, Clone)]
pub struct BpObjectEntries<'a> {
    chunks: core::slice::ChunksExact<'a, u8>,
    endian: Endian,
}

impl<'a> BpObjectEntries<'a> {
    /// Starts at the first byte of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8], endian: Endian) -> Self {
        Self {
            chunks: bytes.chunks_exact(BLOCK_POINTER_BYTES),
            endian,
        }
    }
}

impl Iterator for BpObjectEntries<'_> {
    type Item = BpObjectEntry;
    fn next(&mut self) -> Option<BpObjectEntry> {
        BpObjectEntry::decode(self.chunks.next()?, self.endian).ok()
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.chunks.size_hint()
    }
}

impl DoubleEndedIterator for BpObjectEntries<'_> {
    fn next_back(&mut self) -> Option<BpObjectEntry> {
        BpObjectEntry::decode(self.chunks.next_back()?, self.endian).ok()
    }
}
