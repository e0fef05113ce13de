//! Keys and values of dedup tables.

use crate::{
    BlockPointer, ChecksumKind, CompressionKind, DecodeError, Dva, Endian, ObjectType, Reader, Txg,
    Writer,
};

/// Size of a key in bytes.
pub const DEDUP_KEY_BYTES: usize = 40;
/// Size of a decompressed legacy value in bytes.
pub const DEDUP_LEGACY_BODY_BYTES: usize = 256;
/// Size of a decompressed flat value in bytes.
pub const DEDUP_FLAT_BODY_BYTES: usize = 72;

/// The class of an entry, which selects the table's object that contains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DedupClass {
    /// Obsolete.
    Ditto,
    /// Referenced more than once.
    Duplicate,
    /// Referenced once.
    Unique,
}

impl DedupClass {
    /// Every class, in numerical order.
    pub const ALL: [Self; 3] = [Self::Ditto, Self::Duplicate, Self::Unique];
    /// The class of this number; `None` for 3 ("none") and above.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
    /// The name in the names of table objects.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ditto => "ditto",
            Self::Duplicate => "duplicate",
            Self::Unique => "unique",
        }
    }
}

bitflags::bitflags! {
    /// The `flags` entry of a fast table's directory. A table with unknown flags must not be used. Page
    /// `docs/format/dedup-table.md`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct DedupTableFlags: u64 {
        /// Values have one slot.
        const FLAT = 0x1;
        /// Changes are logged first.
        const LOG = 0x2;
    }
}

/// The key of a block: its checksum and sizes. Page `docs/format/dedup-table.md`.
///
/// The order of keys is the order in which they are flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct DedupKey {
    /// The four checksum words of the pointer.
    pub checksum: [u64; 4],
    /// Sizes, compression and encryption, as packed on disk.
    pub properties: u64,
}

impl DedupKey {
    /// The key of the block of `pointer`.
    #[must_use]
    pub fn of(pointer: &BlockPointer) -> Self {
        let property = pointer.words.get(6).copied().unwrap_or(0);
        // Sizes and compression are in the same bits of a pointer's property word.
        let kept = property & 0x7f_ffff_ffff;
        Self {
            checksum: pointer.checksum_words(),
            properties: kept | (u64::from(pointer.is_encrypted()) << 39),
        }
    }
    /// Decodes a key from five native integers, as read from a ZAP of words.
    #[must_use]
    pub fn from_words(words: [u64; 5]) -> Self {
        let [checksum @ .., properties] = words;
        Self {
            checksum,
            properties,
        }
    }
    /// Encodes the key as five words.
    #[must_use]
    pub fn to_words(&self) -> [u64; 5] {
        let [a, b, c, d] = self.checksum;
        [a, b, c, d, self.properties]
    }
    /// Reads 40 bytes.
    ///
    /// # Errors
    /// If there are fewer bytes.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        Ok(Self::from_words(endian.words("dedup key", bytes)?))
    }
    /// Logical size in bytes.
    #[must_use]
    pub fn lsize_bytes(&self) -> u64 {
        (self.properties & 0xffff).saturating_add(1) << 9
    }
    /// Physical size in bytes.
    #[must_use]
    pub fn psize_bytes(&self) -> u64 {
        (self.properties >> 16 & 0xffff).saturating_add(1) << 9
    }
    /// The compression function; `None` if the number is unknown.
    #[must_use]
    pub fn compression(&self) -> Option<CompressionKind> {
        CompressionKind::from_number(u8::try_from(self.properties >> 32 & 0x7f).ok()?)
    }
    /// Whether the block is encrypted, so that its third address is salt and IV.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.properties >> 39 & 1 == 1
    }
}

/// A stored block and its reference count. Page `docs/format/dedup-table.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DedupSlot {
    /// Three addresses as in a block pointer; for an encrypted block, the third is salt and IV.
    pub addresses: [[u64; 2]; 3],
    /// References.
    pub reference_count: u64,
    /// Physical birth; 0 if the slot is unused.
    pub birth: Txg,
}

impl DedupSlot {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut slot = Self::default();
        for word in slot.addresses.as_flattened_mut() {
            *word = reader.u64()?;
        }
        slot.reference_count = reader.u64()?;
        slot.birth = Txg(reader.u64()?);
        Ok(slot)
    }
    fn write(&self, writer: &mut Writer) {
        writer.put_words(self.addresses.as_flattened());
        writer.put_words(&[self.reference_count, self.birth.0]);
    }
    /// The block of a pointer, without references.
    #[must_use]
    pub fn of(pointer: &BlockPointer) -> Self {
        let [a0, a1, b0, b1, c0, c1, ..] = pointer.words;
        Self {
            addresses: [[a0, a1], [b0, b1], [c0, c1]],
            reference_count: 0,
            birth: pointer.physical_birth(),
        }
    }
    /// Whether the pointer refers to the block: it has the birth and the first address of the slot, and no
    /// other address. It may have fewer.
    #[must_use]
    pub fn holds(&self, pointer: &BlockPointer) -> bool {
        let wanted = Self::of(pointer);
        let [first, rest @ ..] = self.addresses;
        let [wanted_first, wanted_rest @ ..] = wanted.addresses;
        self.is_used()
            && self.birth == wanted.birth
            && first == wanted_first
            && first != [0, 0]
            && (wanted_rest.into_iter().zip(rest)).all(|(one, own)| one == [0, 0] || one == own)
    }
    /// A pointer like `pointer`, which has no addresses yet, to the block. The birth is that of `pointer`.
    ///
    /// `None` if it would have other salt and IV.
    #[must_use]
    pub fn referred(&self, pointer: &BlockPointer) -> Option<BlockPointer> {
        let mut shared = *pointer;
        let slots = if pointer.is_encrypted() { 2 } else { 3 };
        let third = shared.words.get(4..6)?;
        if slots == 2 && self.addresses.get(2).map(<[u64; 2]>::as_slice) != Some(third) {
            return None;
        }
        let words = shared.words.chunks_exact_mut(2);
        for (words, address) in words.zip(self.addresses).take(slots) {
            words.copy_from_slice(&address);
        }
        let raw = if self.birth == pointer.birth() {
            0
        } else {
            self.birth.0
        };
        if let Some(word) = shared.words.get_mut(9) {
            *word = raw;
        }
        Some(shared)
    }
    /// Whether the slot holds a block.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.birth != Txg(0)
    }
    /// The used addresses.
    pub fn dvas(&self, is_encrypted: bool) -> impl Iterator<Item = Dva> + '_ {
        let count = if is_encrypted { 2 } else { 3 };
        self.addresses
            .iter()
            .take(count)
            .filter_map(|words| Dva::from_words(*words))
    }
}

/// The body of an entry, in the format of its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DedupSlots {
    /// One slot per number of copies; slot 0 is obsolete.
    Legacy([DedupSlot; 4]),
    /// One slot.
    Flat {
        /// The block.
        slot: DedupSlot,
        /// Creation time of the entry, in seconds since 1970.
        class_start: u64,
    },
}

/// An entry of a dedup table. Page `docs/format/dedup-table.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DedupEntry {
    /// The key.
    pub key: DedupKey,
    /// The stored blocks.
    pub slots: DedupSlots,
}

impl DedupEntry {
    /// Reads the decompressed body of a legacy (256 bytes) or flat (72 bytes) value.
    ///
    /// # Errors
    /// If the body has another length.
    pub fn decode(key: DedupKey, body: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("dedup entry", body, endian);
        let slots = match body.len() {
            DEDUP_LEGACY_BODY_BYTES => {
                let mut slots = [DedupSlot::default(); 4];
                for slot in &mut slots {
                    *slot = DedupSlot::read(&mut reader)?;
                }
                DedupSlots::Legacy(slots)
            }
            DEDUP_FLAT_BODY_BYTES => DedupSlots::Flat {
                slot: DedupSlot::read(&mut reader)?,
                class_start: reader.u64()?,
            },
            length => {
                return Err(DecodeError::new(
                    "dedup entry",
                    "neither 72 nor 256 bytes",
                    length,
                ));
            }
        };
        Ok(Self { key, slots })
    }
    /// Encodes the body before compression, little-endian.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(DEDUP_LEGACY_BODY_BYTES);
        match &self.slots {
            DedupSlots::Legacy(slots) => {
                for slot in slots {
                    slot.write(&mut writer);
                }
            }
            DedupSlots::Flat { slot, class_start } => {
                slot.write(&mut writer);
                writer.put_u64(*class_start);
            }
        }
        writer.finish()
    }
    /// An entry without blocks, in the format of a fast table.
    #[must_use]
    pub fn flat(key: DedupKey, class_start: u64) -> Self {
        let slot = DedupSlot::default();
        let slots = DedupSlots::Flat { slot, class_start };
        Self { key, slots }
    }
    /// An entry without blocks, in the format of a legacy table.
    #[must_use]
    pub fn legacy(key: DedupKey) -> Self {
        let slots = DedupSlots::Legacy([DedupSlot::default(); 4]);
        Self { key, slots }
    }
    /// All slots, except for the obsolete one.
    pub fn slots_mut(&mut self) -> &mut [DedupSlot] {
        match &mut self.slots {
            DedupSlots::Legacy([_, rest @ ..]) => rest,
            DedupSlots::Flat { slot, .. } => core::slice::from_mut(slot),
        }
    }
    /// The slot for blocks of which this many copies are wanted.
    pub fn slot_mut(&mut self, copies: u8) -> Option<&mut DedupSlot> {
        match &mut self.slots {
            DedupSlots::Legacy([_, rest @ ..]) => {
                rest.get_mut(usize::from(copies).saturating_sub(1))
            }
            DedupSlots::Flat { slot, .. } => Some(slot),
        }
    }
    /// Takes the block out of the obsolete slot of a legacy entry, if it has one.
    pub fn take_obsolete(&mut self) -> Option<DedupSlot> {
        let DedupSlots::Legacy([obsolete, ..]) = &mut self.slots else {
            return None;
        };
        Some(core::mem::take(obsolete)).filter(DedupSlot::is_used)
    }
    /// The slots that hold a block, except for the obsolete one.
    pub fn used_slots(&self) -> impl Iterator<Item = &DedupSlot> {
        let slots = match &self.slots {
            DedupSlots::Legacy([_, rest @ ..]) => rest.as_slice(),
            DedupSlots::Flat { slot, .. } => core::slice::from_ref(slot),
        };
        slots.iter().filter(|slot| slot.is_used())
    }
    /// The sum of the references to all its blocks.
    #[must_use]
    pub fn reference_count(&self) -> u64 {
        self.used_slots()
            .map(|slot| slot.reference_count)
            .fold(0, u64::saturating_add)
    }
    /// The class for its reference count; `None` without references.
    #[must_use]
    pub fn class(&self) -> Option<DedupClass> {
        match self.reference_count() {
            0 => None,
            1 => Some(DedupClass::Unique),
            _ => Some(DedupClass::Duplicate),
        }
    }
    /// A pointer to the block of a slot, as a scan of the table reads it.
    ///
    /// The logical birth is the physical one, the byte order is little-endian, and the type is the dedup
    /// placeholder.
    #[must_use]
    pub fn block_pointer(&self, slot: &DedupSlot, checksum: ChecksumKind) -> BlockPointer {
        let property = (self.key.properties & 0x7f_ffff_ffff)
            | (u64::from(checksum.number()) << 40)
            | (u64::from(ObjectType::DEDUP.0) << 48)
            | (u64::from(self.key.is_encrypted()) << 61)
            | (1 << 62)
            | (1 << 63);
        let mut pointer = BlockPointer::default();
        let [a, b, c] = slot.addresses;
        let [k0, k1, k2, k3] = self.key.checksum;
        pointer.words = [
            a[0],
            a[1],
            b[0],
            b[1],
            c[0],
            c[1],
            property,
            0,
            0,
            0,
            slot.birth.0,
            0,
            k0,
            k1,
            k2,
            k3,
        ];
        pointer
    }
}

/// The value of a table entry: a compressed body, with its compression and byte order. Page
/// `docs/format/dedup-table.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DedupValue<'a> {
    /// [`CompressionKind::Zle`] (run parameter 64) or [`CompressionKind::Off`].
    pub compression: CompressionKind,
    /// Byte order of the body.
    pub endian: Endian,
    /// The compressed body.
    pub body: &'a [u8],
}

impl<'a> DedupValue<'a> {
    /// Splits the first byte off a value.
    ///
    /// # Errors
    /// If the value is empty or has another compression.
    pub fn parse(value: &'a [u8]) -> Result<Self, DecodeError> {
        let fail = |reason| DecodeError::new("dedup value", reason, 0);
        let (first, body) = value.split_first().ok_or_else(|| fail("empty"))?;
        let compression = CompressionKind::from_number(first & 0x7f)
            .filter(|kind| matches!(kind, CompressionKind::Zle | CompressionKind::Off))
            .ok_or_else(|| fail("compressed with neither zle nor off"))?;
        Ok(Self {
            compression,
            endian: if first & 0x80 == 0 {
                Endian::Big
            } else {
                Endian::Little
            },
            body,
        })
    }
}
