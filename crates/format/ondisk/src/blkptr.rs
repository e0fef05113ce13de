//! Block pointers: the addresses, sizes, checksum and birth of a block.
//!
//! Page `docs/format/block-pointer.md`.

use crate::{
    BLOCK_BYTES_MAX, ByteswapClass, ChecksumKind, CompressionKind, DecodeError, Endian, Level,
    ObjectType, SECTOR_SHIFT, Txg, VdevId,
};

/// The address of one copy: a top-level vdev and a byte range in its allocatable space.
///
/// Page `docs/format/block-pointer.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dva {
    /// The top-level vdev.
    pub vdev: VdevId,
    /// Bytes from the start of allocatable space (4 MiB into a plain leaf).
    pub offset_bytes: u64,
    /// Allocated bytes on the vdev, including parity and padding.
    pub asize_bytes: u64,
    /// Whether the address is that of a gang header.
    pub is_gang: bool,
}

impl Dva {
    /// Decodes an address from two words; `None` if it is unused (asize 0).
    #[must_use]
    pub fn from_words(words: [u64; 2]) -> Option<Self> {
        let [first, second] = words;
        let asize = first & 0x00ff_ffff;
        if asize == 0 {
            return None;
        }
        Some(Self {
            // 24 bits always fit.
            vdev: VdevId(u32::try_from((first >> 32) & 0x00ff_ffff).unwrap_or(u32::MAX)),
            // Offsets are 63-bit sector numbers. An offset that does not fit in bytes saturates, and then
            // fails every bounds check.
            offset_bytes: (second & !(1 << 63)).saturating_mul(512),
            asize_bytes: asize.saturating_mul(512),
            is_gang: second >> 63 != 0,
        })
    }
    /// Encodes the address as two words. Offsets and sizes are rounded down to 512 bytes.
    #[must_use]
    pub fn to_words(self) -> [u64; 2] {
        let first =
            ((self.asize_bytes >> SECTOR_SHIFT) & 0x00ff_ffff) | (u64::from(self.vdev.0) << 32);
        let second = (self.offset_bytes >> SECTOR_SHIFT) | (u64::from(self.is_gang) << 63);
        [first, second]
    }
}

/// The kind of an embedded pointer's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EmbeddedKind {
    /// The block's own content, usually compressed.
    Data,
    /// The content was redacted from a stream; reading it is an error.
    Redacted,
    /// A number that no writer uses.
    Unknown(u8),
}

/// The payload that an embedded pointer carries instead of addresses and checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddedPayload {
    bytes: [u8; 112],
    length: usize,
}

impl EmbeddedPayload {
    /// The stored (usually compressed) bytes, at most 112.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&[])
    }
}

/// A block pointer: 16 words in native order, with accessors for their bit fields.
///
/// It can hold any 16 words; [`BlockPointer::validate`] checks them. Page `docs/format/block-pointer.md`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BlockPointer {
    /// The 16 words in native byte order.
    pub words: [u64; 16],
}

const PROP: usize = 6;
/// Indices of the payload words of an embedded pointer, in order: all but the property and birth words.
const PAYLOAD_WORDS: [usize; 14] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 15];

impl BlockPointer {
    /// Reads a pointer from the first 128 bytes of `bytes`, stored in `endian` order (the order of
    /// the block that contains the pointer).
    ///
    /// # Errors
    /// If `bytes` is shorter than 128 bytes.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        Ok(Self {
            words: endian.words("block pointer", bytes)?,
        })
    }
    /// Encodes the pointer as 128 little-endian bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; 128] {
        let mut bytes = [0u8; 128];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
    fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }
    fn bits(&self, word: usize, low: u32, width: u32) -> u64 {
        (self.word(word) >> low) & ((1u64 << width).wrapping_sub(1))
    }
    fn byte(&self, word: usize, low: u32, width: u32) -> u8 {
        u8::try_from(self.bits(word, low, width)).unwrap_or(u8::MAX)
    }

    /// Whether the pointer embeds its content.
    #[must_use]
    pub fn is_embedded(&self) -> bool {
        self.bits(PROP, 39, 1) == 1
    }
    /// Whether no block is stored, so that the range reads as zeros.
    #[must_use]
    pub fn is_hole(&self) -> bool {
        !self.is_embedded() && self.word(0) == 0 && self.word(1) == 0
    }
    /// The kind of an embedded pointer's payload; `None` if it is not embedded.
    #[must_use]
    pub fn embedded_kind(&self) -> Option<EmbeddedKind> {
        self.is_embedded().then(|| match self.byte(PROP, 40, 8) {
            0 => EmbeddedKind::Data,
            2 => EmbeddedKind::Redacted,
            other => EmbeddedKind::Unknown(other),
        })
    }
    /// The payload of an embedded pointer; `None` if it is not embedded or claims more than 112 bytes.
    #[must_use]
    pub fn embedded_payload(&self) -> Option<EmbeddedPayload> {
        let length = usize::try_from(self.psize_bytes()).ok()?;
        if !self.is_embedded() || length > 112 {
            return None;
        }
        let mut bytes = [0u8; 112];
        for (chunk, index) in bytes.chunks_exact_mut(8).zip(PAYLOAD_WORDS) {
            // The least significant byte comes first on every machine, so no byte order is needed here.
            chunk.copy_from_slice(&self.word(index).to_le_bytes());
        }
        Some(EmbeddedPayload { bytes, length })
    }
    /// Logical size in bytes, after decompression. Meaningless (512) for a hole without birth.
    #[must_use]
    pub fn lsize_bytes(&self) -> u64 {
        if self.is_embedded() {
            self.bits(PROP, 0, 25).saturating_add(1)
        } else {
            self.bits(PROP, 0, 16).saturating_add(1) << SECTOR_SHIFT
        }
    }
    /// Physical size in bytes, per copy: the bytes that are read and checksummed. For embedded pointers, the
    /// length of the payload.
    #[must_use]
    pub fn psize_bytes(&self) -> u64 {
        if self.is_embedded() {
            self.bits(PROP, 25, 7).saturating_add(1)
        } else {
            self.bits(PROP, 16, 16).saturating_add(1) << SECTOR_SHIFT
        }
    }
    /// Allocated size in bytes: the sum over all addresses.
    #[must_use]
    pub fn asize_bytes(&self) -> u64 {
        self.dvas()
            .map(|dva| dva.asize_bytes)
            .fold(0, u64::saturating_add)
    }
    /// The compression function; `None` if the number is unknown.
    #[must_use]
    pub fn compression(&self) -> Option<CompressionKind> {
        CompressionKind::from_number(self.byte(PROP, 32, 7))
    }
    /// The checksum function; `None` for an unknown number or an embedded pointer.
    #[must_use]
    pub fn checksum_kind(&self) -> Option<ChecksumKind> {
        if self.is_embedded() {
            return None;
        }
        ChecksumKind::from_number(self.byte(PROP, 40, 8))
    }
    /// The object type of the block's content.
    #[must_use]
    pub fn object_type(&self) -> ObjectType {
        ObjectType(self.byte(PROP, 48, 8))
    }
    /// Height in the block tree; 0 holds data.
    #[must_use]
    pub fn level(&self) -> Level {
        Level(self.byte(PROP, 56, 5))
    }
    /// Whether the block is encrypted, authenticated or carries a MAC of the MACs below (bit X).
    #[must_use]
    pub fn has_crypt_bit(&self) -> bool {
        !self.is_embedded() && self.bits(PROP, 61, 1) == 1
    }
    /// Whether the content is ciphertext: bit X on a data block of an encrypted type.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.has_crypt_bit() && self.level() == Level(0) && self.object_type().is_encrypted()
    }
    /// Whether the block is plaintext with a MAC: bit X on a data block of an unencrypted type.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.has_crypt_bit() && self.level() == Level(0) && !self.object_type().is_encrypted()
    }
    /// Whether the block is indirect and carries a MAC of the MACs below.
    #[must_use]
    pub fn has_indirect_mac(&self) -> bool {
        self.has_crypt_bit() && self.level() > Level(0)
    }
    /// Whether the block is in a dedup table (bit D).
    #[must_use]
    pub fn is_dedup(&self) -> bool {
        !self.is_embedded() && self.bits(PROP, 62, 1) == 1
    }
    /// The byte order of the block pointed to (not of the pointer).
    #[must_use]
    pub fn endian(&self) -> Endian {
        if self.bits(PROP, 63, 1) == 1 {
            Endian::Little
        } else {
            Endian::Big
        }
    }
    /// Whether other pointers may refer to the same data block: it is deduplicated, or a clone of an older one. The
    /// pointer that was cloned does not say so. Each metadata block has exactly one pointer.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        let is_metadata = self.level().0 > 0 || self.object_type() == ObjectType::DNODE;
        let is_content = !self.is_embedded() && !is_metadata;
        is_content && (self.is_dedup() || self.physical_birth() < self.birth())
    }
    /// The vdev and the offset in bytes of the first copy; `None` if the pointer has no address.
    #[must_use]
    pub fn first_address(&self) -> Option<(VdevId, u64)> {
        let first = self.dvas().next()?;
        Some((first.vdev, first.offset_bytes))
    }
    /// The pointer of a clone of the block that is born in `txg`: it keeps the time at which the block was written.
    #[must_use]
    pub fn cloned_in(&self, txg: Txg) -> Self {
        let mut clone = *self;
        let physical = self.physical_birth();
        clone.words[10] = txg.0;
        if !self.is_embedded() {
            clone.words[9] = if physical == txg { 0 } else { physical.0 };
            clone.words[7] &= !(1 << 63);
        }
        clone
    }
    /// The pointer of this newly written block if its content is that of a block of birth `birth`, which it keeps. A
    /// deduplicated block and one without space of its own cannot keep it: such a pointer is returned unchanged.
    #[must_use]
    pub fn rewritten_from(&self, birth: Txg) -> Self {
        let mut rewritten = *self;
        let has_space = !self.is_hole() && !self.is_embedded();
        let is_older = birth != Txg(0) && birth < self.birth();
        if has_space && is_older && !self.is_dedup() {
            rewritten.words[9] = self.physical_birth().0;
            rewritten.words[10] = birth.0;
            rewritten.words[7] |= 1 << 63;
        }
        rewritten
    }
    /// Whether the block was reallocated with its logical birth unchanged (bit R, OpenZFS 2.4).
    #[must_use]
    pub fn is_rewritten(&self) -> bool {
        !self.is_embedded() && self.bits(7, 63, 1) == 1
    }
    /// The txg in which this content became part of the object.
    #[must_use]
    pub fn birth(&self) -> Txg {
        Txg(self.word(10))
    }
    /// The txg in which the first copy was written.
    ///
    /// This is the raw field, or the logical birth if the field is 0. Embedded pointers have none (0).
    #[must_use]
    pub fn physical_birth(&self) -> Txg {
        if self.is_embedded() {
            return Txg(0);
        }
        match self.word(9) {
            0 => self.birth(),
            raw => Txg(raw),
        }
    }
    /// The txg in which the space was allocated, which snapshots, deadlists and clones compare.
    ///
    /// This is the physical birth of a rewritten block, and the logical birth of any other block.
    #[must_use]
    pub fn allocation_birth(&self) -> Txg {
        if self.is_rewritten() {
            self.physical_birth()
        } else {
            self.birth()
        }
    }
    /// The number of blocks (or objects) below this pointer that are not holes.
    #[must_use]
    pub fn fill(&self) -> u64 {
        if self.is_embedded() {
            1
        } else if self.is_encrypted() {
            // The upper half is the end of the IV.
            self.word(11) & 0xffff_ffff
        } else {
            self.word(11)
        }
    }
    /// The used addresses in order. Encrypted blocks have at most two: the third slot holds salt and IV.
    pub fn dvas(&self) -> impl Iterator<Item = Dva> + '_ {
        let slots = if self.is_embedded() {
            0
        } else if self.is_encrypted() {
            2
        } else {
            3
        };
        self.words
            .chunks_exact(2)
            .take(slots)
            .filter_map(|pair| Dva::from_words([*pair.first()?, *pair.get(1)?]))
    }
    /// Whether the block is stored as a gang, in parts listed by a gang header.
    #[must_use]
    pub fn is_gang(&self) -> bool {
        self.dvas().next().is_some_and(|dva| dva.is_gang)
    }
    /// The four checksum words as stored. For X blocks, words 2 and 3 are a MAC instead.
    #[must_use]
    pub fn checksum_words(&self) -> [u64; 4] {
        [self.word(12), self.word(13), self.word(14), self.word(15)]
    }
    /// The bytes of a word as its writer stored them, in the byte order of the block pointed to.
    fn stored_bytes(&self, index: usize) -> [u8; 8] {
        match self.endian() {
            Endian::Little => self.word(index).to_le_bytes(),
            Endian::Big => self.word(index).to_be_bytes(),
        }
    }
    /// Salt of an encrypted block (word 4).
    #[must_use]
    pub fn crypt_salt(&self) -> [u8; 8] {
        self.stored_bytes(4)
    }
    /// The 12-byte IV of an encrypted block (word 5, then the upper half of word 11).
    #[must_use]
    pub fn crypt_iv(&self) -> [u8; 12] {
        let upper = u32::try_from(self.word(11) >> 32).unwrap_or(0);
        let tail = match self.endian() {
            Endian::Little => upper.to_le_bytes(),
            Endian::Big => upper.to_be_bytes(),
        };
        let mut iv = [0u8; 12];
        for (to, from) in iv
            .iter_mut()
            .zip(self.stored_bytes(5).into_iter().chain(tail))
        {
            *to = from;
        }
        iv
    }
    /// The 16-byte MAC of an X block other than an object set (words 14 and 15).
    #[must_use]
    pub fn crypt_mac(&self) -> [u8; 16] {
        let mut mac = [0u8; 16];
        let stored = self
            .stored_bytes(14)
            .into_iter()
            .chain(self.stored_bytes(15));
        for (to, from) in mac.iter_mut().zip(stored) {
            *to = from;
        }
        mac
    }
    /// Whether both pointers name the same block: they have the same addresses and births.
    #[must_use]
    pub fn is_same_block(&self, other: &Self) -> bool {
        self.words.iter().take(6).eq(other.words.iter().take(6))
            && self.birth() == other.birth()
            && self.physical_birth() == other.physical_birth()
    }
    /// Checks everything that does not depend on the pool: type, functions, sizes.
    ///
    /// Callers check what needs the vdev tree (the vdev exists, the offset is within its size).
    ///
    /// # Errors
    /// The violated rule, with the byte offset of the bad word.
    pub fn validate(&self) -> Result<(), DecodeError> {
        let fail = |reason, offset| Err(DecodeError::new("block pointer", reason, offset));
        if self.words.iter().all(|word| *word == 0) {
            return Ok(());
        }
        if !self.object_type().is_valid() {
            return fail("object type does not exist", 54);
        }
        if self.compression().is_none() {
            return fail("compression function does not exist", 52);
        }
        if self.lsize_bytes() > BLOCK_BYTES_MAX {
            return fail("logical size above 16 MiB", 48);
        }
        if self.is_embedded() {
            if matches!(self.embedded_kind(), Some(EmbeddedKind::Unknown(_))) {
                return fail("kind of embedded payload does not exist", 53);
            }
            if self.psize_bytes() > 112 {
                return fail("embedded payload above 112 bytes", 51);
            }
            return Ok(());
        }
        if self.is_hole() {
            return Ok(());
        }
        if Dva::from_words([self.word(0), self.word(1)]).is_none() {
            return fail("first address is unused", 0);
        }
        if self.checksum_kind().is_none() {
            return fail("checksum function does not exist", 53);
        }
        if self.psize_bytes() > BLOCK_BYTES_MAX {
            return fail("physical size above 16 MiB", 50);
        }
        Ok(())
    }
    /// How to convert the content from the other byte order; indirect blocks are arrays of 64-bit words.
    #[must_use]
    pub fn content_byteswap(&self) -> Option<ByteswapClass> {
        if self.level() > Level(0) {
            Some(ByteswapClass::U64)
        } else {
            self.object_type().byteswap()
        }
    }
}

impl core::fmt::Debug for BlockPointer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.is_hole() {
            return write!(f, "BlockPointer(hole birth={})", self.birth());
        }
        write!(f, "BlockPointer(")?;
        for dva in self.dvas() {
            write!(
                f,
                "<{}:{:x}:{:x}{}> ",
                dva.vdev,
                dva.offset_bytes,
                dva.asize_bytes,
                if dva.is_gang { " gang" } else { "" }
            )?;
        }
        write!(
            f,
            "L{} {} {:?} {:?} {:x}L/{:x}P birth={}/{} fill={})",
            self.level(),
            self.object_type().name(),
            self.checksum_kind(),
            self.compression(),
            self.lsize_bytes(),
            self.psize_bytes(),
            self.birth(),
            self.physical_birth(),
            self.fill()
        )
    }
}

#[cfg(test)]
mod tests;
