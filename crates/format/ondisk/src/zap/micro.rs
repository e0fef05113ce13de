//! The microzap: one block of 64-byte entries, each a name and one 64-bit integer.
//!
//! Page `docs/format/zap-micro.md`.

use super::{BLOCK_MICRO, ZapHashing, field};
use crate::{DecodeError, Endian, Reader, Writer};

/// The maximum length of a microzap name in bytes, without its NUL.
pub const MICRO_NAME_BYTES_MAX: usize = 49;

const ENTRY_BYTES: usize = 64;
const NAME_AT: usize = 14;
const NAME_FIELD_BYTES: usize = 50;

/// A microzap block, read in place. Page `docs/format/zap-micro.md`.
#[derive(Debug, Clone, Copy)]
pub struct MicroZap<'a> {
    /// The initial value of the hash of each name.
    pub salt: u64,
    /// How names are normalised before hashing; 0 for not at all.
    pub normflags: u64,
    entries: &'a [u8],
    endian: Endian,
}

/// An entry of a microzap. Page `docs/format/zap-micro.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroZapEntry<'a> {
    /// The integer.
    pub value: u64,
    /// Distinguishes entries whose names have the same hash.
    pub cd: u32,
    /// 1 to 49 bytes, without the NUL.
    pub name: &'a [u8],
}

impl<'a> MicroZap<'a> {
    /// Reads the header of a microzap block in byte order `endian`. Allocates nothing.
    ///
    /// # Errors
    /// If the first word is wrong, or the length is not a multiple of 64 bytes.
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
    /// The number of slots.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.entries.len() / ENTRY_BYTES
    }
    /// The entry in `slot`; `None` if the slot is free or does not exist.
    ///
    /// # Errors
    /// If the name is not terminated.
    pub fn entry(&self, slot: usize) -> Result<Option<MicroZapEntry<'a>>, DecodeError> {
        let start = slot.saturating_mul(ENTRY_BYTES);
        match self.entries.get(start..start.saturating_add(ENTRY_BYTES)) {
            Some(bytes) => MicroZapEntry::decode(bytes, self.endian),
            None => Ok(None),
        }
    }
    /// All used entries with their slots, unordered.
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

/// A name to search for in many slots. One word of the name rules out nearly all slots with other names.
struct Wanted<'n> {
    name: &'n [u8],
    /// The offset of the word in a slot, the mask of its relevant bytes, and their value.
    at: usize,
    mask: u64,
    word: u64,
}

impl<'n> Wanted<'n> {
    /// `None` for a name that no slot can contain.
    fn new(name: &'n [u8]) -> Option<Self> {
        if name.is_empty() || name.len() > MICRO_NAME_BYTES_MAX || name.contains(&0) {
            return None;
        }
        let mut slot = [0u8; ENTRY_BYTES];
        field::put_at(&mut slot, NAME_AT, name)?;
        // Compare the last bytes and the NUL: names in a directory often have a common prefix.
        let end = name.len().saturating_add(1);
        let at = NAME_AT.saturating_add(end.saturating_sub(8));
        let mask = match end {
            8.. => u64::MAX,
            _ => u64::MAX.checked_shr(u32::try_from(end.abs_diff(8)).ok()?.checked_mul(8)?)?,
        };
        let word = word_at(&slot, at) & mask;
        Some(Self {
            name,
            at,
            mask,
            word,
        })
    }
    fn is_in(&self, slot: &[u8; ENTRY_BYTES]) -> bool {
        word_at(slot, self.at) & self.mask == self.word
            && slot.get(NAME_AT..).is_some_and(|field| {
                field.starts_with(self.name) && field.get(self.name.len()) == Some(&0)
            })
    }
}

fn word_at(slot: &[u8; ENTRY_BYTES], at: usize) -> u64 {
    let bytes = slot.get(at..).and_then(|rest| rest.first_chunk::<8>());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl<'a> MicroZap<'a> {
    /// Finds the entry with exactly this name, and its slot. Much faster than iterating over
    /// [`MicroZap::entries`].
    ///
    /// If there are several, which a correct writer does not produce, returns the one with the lowest
    /// differentiator.
    ///
    /// # Errors
    /// If the name of an entry is not terminated.
    pub fn find(&self, name: &[u8]) -> Result<Option<(usize, MicroZapEntry<'a>)>, DecodeError> {
        let Some(wanted) = Wanted::new(name) else {
            return Ok(None);
        };
        let mut found: Option<(usize, MicroZapEntry<'a>)> = None;
        let (slots, _) = self.entries.as_chunks::<ENTRY_BYTES>();
        for (number, slot) in slots.iter().enumerate() {
            if !wanted.is_in(slot) {
                // Only such a name can be unterminated.
                if let [.., last] = slot
                    && *last != 0
                {
                    MicroZapEntry::decode(slot, self.endian)?;
                }
                continue;
            }
            let Some(entry) = MicroZapEntry::decode(slot, self.endian)? else {
                continue;
            };
            if found.is_none_or(|(_, found)| entry.cd < found.cd) {
                found = Some((number, entry));
            }
        }
        Ok(found)
    }

    /// The first free slot, and the differentiators of all entries with this hash.
    ///
    /// The names are hashed without normalisation, so this is only for ZAPs that do not normalise.
    ///
    /// # Errors
    /// If the name of an entry is not terminated.
    pub fn room_for(
        &self,
        hashing: &ZapHashing,
        hash: u64,
    ) -> Result<(Option<usize>, Vec<u32>), DecodeError> {
        let (mut free, mut used) = (None, Vec::new());
        let (slots, _) = self.entries.as_chunks::<ENTRY_BYTES>();
        for (number, slot) in slots.iter().enumerate() {
            let name = slot.get(NAME_AT..).unwrap_or_default();
            if name.first() == Some(&0) {
                free = free.or(Some(number));
                continue;
            }
            let Some(length) = name.iter().position(|byte| *byte == 0) else {
                return Err(DecodeError::new("microzap entry", "name has no NUL", 14));
            };
            if hashing.name(name.get(..length).unwrap_or_default()) == hash
                && let Some(entry) = MicroZapEntry::decode(slot, self.endian)?
            {
                used.push(entry.cd);
            }
        }
        Ok((free, used))
    }
}

impl<'a> MicroZapEntry<'a> {
    /// Reads the 64 bytes of a slot; `None` if it is free.
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
    /// Encodes the entry as 64 little-endian bytes.
    ///
    /// # Errors
    /// If the name is empty, longer than 49 bytes or contains a NUL, or `cd` exceeds 16 bits.
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

/// Encodes a whole microzap block of `block_bytes` bytes, little-endian, with the entries in the given order.
///
/// # Errors
/// If the size is not a multiple of 512 bytes, the entries do not fit, or one cannot be encoded.
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

/// Overwrites slot `slot` of a little-endian microzap block; `None` frees it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block_of(names: &[Vec<u8>]) -> Vec<u8> {
        let entries: Vec<_> = (0u64..)
            .zip(names)
            .map(|(value, name)| MicroZapEntry {
                value,
                cd: u32::try_from(value % 3).unwrap(),
                name,
            })
            .collect();
        encode_micro_zap(8192, 77, 0, &entries).unwrap()
    }

    #[test]
    fn a_slot_whose_name_has_no_end_fails_every_search() {
        let mut block = block_of(&[b"a".to_vec(), b"b".to_vec()]);
        block[128 + 14..192].fill(b'x');
        let micro = MicroZap::decode(&block, Endian::Little).unwrap();
        assert!(micro.find(b"a").is_err());
        assert!(micro.find(b"x").is_err());
        assert!(micro.room_for(&ZapHashing::plain(77), 0).is_err());
    }

    #[test]
    fn the_entry_with_the_lower_differentiator_is_found() {
        let names = [b"zero", b"same", b"two2", b"same"].map(|name| name.to_vec());
        let block = block_of(&names);
        let micro = MicroZap::decode(&block, Endian::Little).unwrap();
        assert_eq!(micro.find(b"same").unwrap().unwrap().0, 3);
        assert_eq!(micro.find(b"sam").unwrap(), None);
        assert_eq!(micro.find(b"same\0").unwrap(), None);
        assert_eq!(micro.find(b"").unwrap(), None);
        assert_eq!(micro.find(&[b's'; 50]).unwrap(), None);
    }

    #[test]
    fn names_with_equal_endings_differ() {
        let names = [
            &b"one-picture.jpeg"[..],
            b"two-picture.jpeg",
            b"picture.jpeg",
        ];
        let block = block_of(&names.map(<[u8]>::to_vec));
        let micro = MicroZap::decode(&block, Endian::Little).unwrap();
        for (slot, name) in names.into_iter().enumerate() {
            assert_eq!(micro.find(name).unwrap().unwrap().0, slot);
        }
        assert_eq!(micro.find(b"six-picture.jpeg").unwrap(), None);
        assert_eq!(micro.find(b"icture.jpeg").unwrap(), None);
    }

    proptest! {
        #[test]
        fn searching_matches_a_scan_of_all_entries(
            names in proptest::collection::vec("[ab]{1,3}|[a-c]{6,10}|x{40,49}", 1..100),
            wanted in "[ab]{1,3}|[a-c]{6,10}|x{40,49}",
            freed in 0usize..100
        ) {
            let names: Vec<_> = names.into_iter().map(String::into_bytes).collect();
            let mut block = block_of(&names);
            put_micro_zap_entry(&mut block, freed, None).unwrap();
            let micro = MicroZap::decode(&block, Endian::Little).unwrap();
            let all: Vec<_> = micro.entries().map(Result::unwrap).collect();
            for name in names.iter().map(Vec::as_slice).chain([wanted.as_bytes()]) {
                let equal = all.iter().filter(|(_, entry)| entry.name == name);
                let expected = equal.min_by_key(|(_, entry)| entry.cd);
                prop_assert_eq!(micro.find(name).unwrap(), expected.copied());
                let hashing = ZapHashing::plain(77);
                let hash = hashing.name(name);
                let (free, used) = micro.room_for(&hashing, hash).unwrap();
                let same = all.iter().filter(|(_, entry)| hashing.name(entry.name) == hash);
                prop_assert_eq!(used, same.map(|(_, entry)| entry.cd).collect::<Vec<_>>());
                let taken = |slot: &usize| all.iter().any(|(at, _)| at == slot);
                prop_assert_eq!(free, (0..micro.slots()).find(|slot| !taken(slot)));
            }
        }
    }
}
