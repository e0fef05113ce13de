//! The microzap: one block of 64-byte entries, each a name and one 64-bit integer.
//!
//! Page `docs/format/zap-micro.md`.

use super::{BLOCK_MICRO, field};
use crate::{DecodeError, Endian, Reader, Writer};

/// The longest name of a microzap entry in bytes, without its NUL.
pub const MICRO_NAME_BYTES_MAX: usize = 49;

const ENTRY_BYTES: usize = 64;
const NAME_FIELD_BYTES: usize = 50;

/// A microzap's block, read in place. Page `docs/format/zap-micro.md`.
#[derive(Debug, Clone, Copy)]
pub struct MicroZap<'a> {
    /// Where the hash of each name starts.
    pub salt: u64,
    /// How names are normalised before hashing; 0 for not at all.
    pub normflags: u64,
    entries: &'a [u8],
    endian: Endian,
}

/// One entry of a microzap. Page `docs/format/zap-micro.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroZapEntry<'a> {
    /// The integer.
    pub value: u64,
    /// Tells apart entries whose names have the same hash.
    pub cd: u32,
    /// 1 to 49 bytes, without the NUL.
    pub name: &'a [u8],
}

impl<'a> MicroZap<'a> {
    /// Reads the head of a microzap block in byte order `endian`. Allocates nothing.
    ///
    /// # Errors
    /// If the first word is another one or the length no multiple of 64 bytes.
    pub fn decode(bytes: &'a [u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("microzap", bytes, endian);
        if reader.u64()? != BLOCK_MICRO {
            return Err(DecodeError::new("microzap", "not a microzap block", 0));
        }
        let salt = reader.u64()?;
        let normflags = reader.u64()?;
        reader.skip(40)?;
        if reader.remaining() & (ENTRY_BYTES.wrapping_sub(1)) != 0 {
            return Err(DecodeError::new(
                "microzap",
                "length is no multiple of 64",
                bytes.len(),
            ));
        }
        let entries = reader.take(reader.remaining())?;
        Ok(Self {
            salt,
            normflags,
            entries,
            endian,
        })
    }
    /// How many entries there is room for.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.entries.len() / ENTRY_BYTES
    }
    /// The entry in `slot`, `None` if the slot is free or does not exist.
    ///
    /// # Errors
    /// If its name has no end.
    pub fn entry(&self, slot: usize) -> Result<Option<MicroZapEntry<'a>>, DecodeError> {
        let start = slot.saturating_mul(ENTRY_BYTES);
        match self.entries.get(start..start.saturating_add(ENTRY_BYTES)) {
            Some(bytes) => MicroZapEntry::decode(bytes, self.endian),
            None => Ok(None),
        }
    }
    /// All entries with their slots, in no order.
    pub fn entries(
        &self,
    ) -> impl Iterator<Item = Result<(usize, MicroZapEntry<'a>), DecodeError>> + use<'a> {
        let endian = self.endian;
        self.entries
            .chunks_exact(ENTRY_BYTES)
            .enumerate()
            .filter_map(move |(slot, bytes)| {
                MicroZapEntry::decode(bytes, endian)
                    .transpose()
                    .map(|entry| entry.map(|entry| (slot, entry)))
            })
    }
}

impl<'a> MicroZapEntry<'a> {
    /// Reads the 64 bytes of one slot, `None` if it is free.
    ///
    /// # Errors
    /// If there are fewer bytes, or the name fills its field without a NUL.
    pub fn decode(bytes: &'a [u8], endian: Endian) -> Result<Option<Self>, DecodeError> {
        let mut reader = Reader::new("microzap entry", bytes, endian);
        let value = reader.u64()?;
        let cd = reader.u32()?;
        reader.skip(2)?;
        let mut parts = reader.take(NAME_FIELD_BYTES)?.split(|byte| *byte == 0);
        let name = parts.next().unwrap_or_default();
        if name.is_empty() {
            return Ok(None);
        }
        if parts.next().is_none() {
            return Err(DecodeError::new("microzap entry", "name has no NUL", 14));
        }
        Ok(Some(Self { value, cd, name }))
    }
    /// The entry's 64 little-endian bytes.
    ///
    /// # Errors
    /// If the name is empty, longer than 49 bytes or has a NUL, or `cd` needs more than 16 bits.
    pub fn encode(&self) -> Result<[u8; ENTRY_BYTES], DecodeError> {
        let fail = |reason| DecodeError::new("microzap entry", reason, 14);
        if self.name.is_empty() || self.name.len() > MICRO_NAME_BYTES_MAX {
            return Err(fail("name is not 1 to 49 bytes long"));
        }
        if self.name.contains(&0) {
            return Err(fail("name has a NUL"));
        }
        if self.cd > 0xffff {
            return Err(fail("differentiator above 16 bits"));
        }
        let mut bytes = [0u8; ENTRY_BYTES];
        field::put_at(&mut bytes, 0, &self.value.to_le_bytes());
        field::put_at(&mut bytes, 8, &self.cd.to_le_bytes());
        field::put_at(&mut bytes, 14, self.name);
        Ok(bytes)
    }
}

/// A whole microzap block of `block_bytes` bytes, little-endian, entries in the order given.
///
/// # Errors
/// If the size is no multiple of 512 bytes, the entries do not fit, or one cannot be encoded.
pub fn encode_micro_zap(
    block_bytes: usize,
    salt: u64,
    normflags: u64,
    entries: &[MicroZapEntry<'_>],
) -> Result<Vec<u8>, DecodeError> {
    if block_bytes == 0 || block_bytes & 511 != 0 || block_bytes as u64 > crate::BLOCK_BYTES_MAX {
        return Err(DecodeError::new(
            "microzap",
            "block size is no multiple of 512",
            0,
        ));
    }
    if entries.len() >= block_bytes / ENTRY_BYTES {
        return Err(DecodeError::new("microzap", "entries do not fit", 64));
    }
    let mut writer = Writer::with_capacity(block_bytes);
    writer.put_u64(BLOCK_MICRO);
    writer.put_u64(salt);
    writer.put_u64(normflags);
    writer.pad_to(ENTRY_BYTES);
    for entry in entries {
        writer.put(&entry.encode()?);
    }
    writer.pad_to(block_bytes);
    Ok(writer.finish())
}

/// Overwrites slot `slot` of a little-endian microzap block, `None` frees it.
///
/// # Errors
/// If there is no such slot, or the entry cannot be encoded; then nothing is changed.
pub fn put_micro_zap_entry(
    block: &mut [u8],
    slot: usize,
    entry: Option<&MicroZapEntry<'_>>,
) -> Result<(), DecodeError> {
    let bytes = entry.map_or(Ok([0; ENTRY_BYTES]), MicroZapEntry::encode)?;
    let offset = slot.saturating_add(1).saturating_mul(ENTRY_BYTES);
    field::put_at(block, offset, &bytes)
        .ok_or_else(|| DecodeError::new("microzap", "no such slot", offset))
}
