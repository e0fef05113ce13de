//! Block pointer lists ("bpobj").

use crate::{BLOCK_POINTER_BYTES, BlockPointer, DecodeError, Endian, ObjectId, Reader, Writer};

/// Which fields a list's header has; its bonus length decides, and an old header is never made longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BpObjectForm {
    /// 16 bytes: number and deflated bytes.
    Count,
    /// 32 bytes: and physical and logical sizes (pool version 3).
    Sizes,
    /// 48 bytes: and sub-objects (pool version 26).
    SubObjects,
    /// 56 bytes: and the number of "freed" entries (feature `com.delphix:livelist`).
    Freed,
}

impl BpObjectForm {
    /// Bytes of such a header.
    #[must_use]
    pub fn bonus_bytes(self) -> usize {
        match self {
            Self::Count => 16,
            Self::Sizes => 32,
            Self::SubObjects => 48,
            Self::Freed => 56,
        }
    }
    /// The longest form that fits `bonus_bytes`, or `None` if not even the shortest does.
    #[must_use]
    pub fn of_bonus(bonus_bytes: usize) -> Option<Self> {
        [Self::Freed, Self::SubObjects, Self::Sizes, Self::Count]
            .into_iter()
            .find(|form| form.bonus_bytes() <= bonus_bytes)
    }
}

/// The header of a block pointer list: the bonus of its object. What its form lacks is 0 or `None`.
/// Sums include the sub-objects, recursively. Page `docs/format/bpobj.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BpObjectPhys {
    /// Which fields are stored.
    pub form: BpObjectForm,
    /// Pointers in the object's own data.
    pub pointer_count: u64,
    /// Their deflated allocated bytes.
    pub bytes: u64,
    /// Their physical sizes.
    pub compressed_bytes: u64,
    /// Their logical sizes.
    pub uncompressed_bytes: u64,
    /// The array of sub-objects' numbers (see [`crate::WordArray`]).
    pub sub_objects: Option<ObjectId>,
    /// How many sub-objects there are.
    pub sub_object_count: u64,
    /// How many entries are "freed" ones.
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
    /// Reads a header; the length of `bonus` tells its form.
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
    /// The little-endian bytes of the header in its form.
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
    /// Whether neither pointers nor sub-objects are in the list.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pointer_count == 0 && self.sub_object_count == 0
    }
}

/// One entry of a list. Page `docs/format/bpobj.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BpObjectEntry {
    /// The block. Its checksum words are zero unless the dedup bit is set; of an embedded one only
    /// properties and birth are kept.
    pub pointer: BlockPointer,
    /// Livelists: the block was freed; otherwise it was allocated. Clear in other lists.
    pub is_freed: bool,
}

impl BpObjectEntry {
    /// Reads the entry at the first 128 bytes of `bytes`.
    ///
    /// # Errors
    /// If there are fewer bytes.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut pointer = BlockPointer::decode(bytes, endian)?;
        let mut is_freed = false;
        if let Some(fill) = pointer.words.get_mut(11) {
            is_freed = *fill & 1 == 1;
            *fill &= !1;
        }
        Ok(Self { pointer, is_freed })
    }
    /// The 128 little-endian bytes under which a list keeps the block, or `None` for a hole, which
    /// is never kept.
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

/// The entries in a piece of a list's data, read one by one. A cut last entry is left out; give the
/// iterator no more than `pointer_count` entries' bytes.
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
