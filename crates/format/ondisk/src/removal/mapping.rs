//! The mapping from the space of a removed vdev to the copies of its blocks.

use crate::{DecodeError, Dva, Endian, ObjectId, SECTOR_SHIFT, Txg, Writer};

/// Size of a mapping entry in bytes.
pub const INDIRECT_MAPPING_ENTRY_BYTES: usize = 24;
/// Size of a births entry in bytes.
pub const INDIRECT_BIRTH_ENTRY_BYTES: usize = 16;

/// The header of a mapping: the bonus of its object, 24 or 32 bytes.
/// Page `docs/format/indirect-vdev.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndirectMappingPhys {
    /// Byte offset on the removed vdev of the end of the mapped ranges.
    pub max_offset_bytes: u64,
    /// Sum of the entries' lengths in bytes.
    pub bytes_mapped: u64,
    /// The number of entries in the object's data, which are sorted by source.
    pub entry_count: u64,
    /// The object with the obsolete bytes of each entry.
    ///
    /// The outer option is `None` if the header lacks the field (feature `com.delphix:obsolete_counts`).
    pub counts: Option<Option<ObjectId>>,
}

impl IndirectMappingPhys {
    /// Reads a header; from 32 bytes on it includes the counts object.
    ///
    /// # Errors
    /// If there are fewer than 24 bytes.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let [max_offset_bytes, bytes_mapped, entry_count] =
            endian.words("indirect mapping", bonus)?;
        let counts = match bonus.get(24..) {
            Some(rest) if rest.len() >= 8 => {
                let [object] = endian.words("indirect mapping", rest)?;
                Some(ObjectId(object).some())
            }
            _ => None,
        };
        Ok(Self {
            max_offset_bytes,
            bytes_mapped,
            entry_count,
            counts,
        })
    }
    /// Encodes the header as 24 or 32 little-endian bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(32);
        writer.put_words(&[self.max_offset_bytes, self.bytes_mapped, self.entry_count]);
        if let Some(counts) = self.counts {
            writer.put_u64(ObjectId::number(counts));
        }
        writer.finish()
    }
}

/// A copied segment. Page `docs/format/indirect-vdev.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndirectMappingEntry {
    /// Byte offset on the removed vdev.
    pub source_offset_bytes: u64,
    /// The address of the copy; its size is the segment's length.
    pub destination: Dva,
}

impl IndirectMappingEntry {
    /// Reads an entry.
    ///
    /// # Errors
    /// If there are fewer than 24 bytes, the segment is empty, or an offset does not fit in 64 bits.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let fail = |reason, offset| DecodeError::new("indirect mapping entry", reason, offset);
        let [source, first, second] = endian.words("indirect mapping entry", bytes)?;
        // Bit 63 is a mark that is only used in memory.
        let source_offset_bytes = (source & !(1 << 63))
            .checked_mul(1 << SECTOR_SHIFT)
            .ok_or_else(|| fail("source offset does not fit 64 bits", 0))?;
        let destination =
            Dva::from_words([first, second]).ok_or_else(|| fail("empty segment", 8))?;
        if destination.is_gang {
            return Err(fail("destination is a gang block", 16));
        }
        let entry = Self {
            source_offset_bytes,
            destination,
        };
        let length = entry.length_bytes();
        if source_offset_bytes.checked_add(length).is_none()
            || destination.offset_bytes.checked_add(length).is_none()
        {
            return Err(fail("segment does not fit 64 bits", 0));
        }
        Ok(entry)
    }
    /// Encodes the entry as 24 little-endian bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(INDIRECT_MAPPING_ENTRY_BYTES);
        writer.put_u64(self.source_offset_bytes >> SECTOR_SHIFT);
        writer.put_words(&self.destination.to_words());
        writer.finish()
    }
    /// Length of the segment in bytes, never 0 for a decoded entry.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        self.destination.asize_bytes
    }
    /// Byte offset on the removed vdev of the end of the segment.
    #[must_use]
    pub fn source_end_bytes(&self) -> u64 {
        self.source_offset_bytes.saturating_add(self.length_bytes())
    }
}

/// The header of a births object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndirectBirthsPhys {
    /// The number of entries in the object's data.
    pub entry_count: u64,
}

impl IndirectBirthsPhys {
    /// Reads a header.
    ///
    /// # Errors
    /// If there are fewer than 8 bytes.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let [entry_count] = endian.words("indirect births", bonus)?;
        Ok(Self { entry_count })
    }
    /// Encodes the header as 8 little-endian bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.entry_count.to_le_bytes().to_vec()
    }
}

/// The end and the txg of a range that was copied in one txg. Page `docs/format/indirect-vdev.md`.
///
/// The range starts at the end of the previous entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndirectBirthEntry {
    /// Byte offset on the removed vdev of the end of the range.
    pub end_offset_bytes: u64,
    /// The txg of the copies: their physical birth.
    pub birth: Txg,
}

impl IndirectBirthEntry {
    /// Reads an entry.
    ///
    /// # Errors
    /// If there are fewer than 16 bytes.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let [end_offset_bytes, birth] = endian.words("indirect births entry", bytes)?;
        Ok(Self {
            end_offset_bytes,
            birth: Txg(birth),
        })
    }
    /// Encodes the entry as 16 little-endian bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(INDIRECT_BIRTH_ENTRY_BYTES);
        writer.put_words(&[self.end_offset_bytes, self.birth.0]);
        writer.finish()
    }
}

/// The obsolete bytes of each mapping entry, from the data of the counts object.
pub fn obsolete_counts(bytes: &[u8], endian: Endian) -> impl Iterator<Item = u32> + '_ {
    bytes
        .chunks_exact(4)
        .filter_map(move |chunk| Some(endian.u32(*chunk.first_chunk::<4>()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VdevId;
    use crate::testing::{hex, swapped_words};
    use proptest::prelude::*;

    #[test]
    fn a_real_mapping_entry_leads_to_the_vdev_that_took_the_segment() {
        let bytes = hex("2800000000000000 0800000003000000 7018000000000000");
        let entry = IndirectMappingEntry::decode(&bytes, Endian::Little).unwrap();
        assert_eq!(entry.source_offset_bytes, 0x5000);
        assert_eq!(entry.length_bytes(), 0x1000);
        assert_eq!(entry.source_end_bytes(), 0x6000);
        // Bit 63 of the source is not part of the offset.
        let mut marked = bytes.clone();
        marked[7] = 0x80;
        assert_eq!(
            IndirectMappingEntry::decode(&marked, Endian::Little),
            Ok(entry)
        );
        assert_eq!(entry.destination.vdev, VdevId(3));
        assert_eq!(entry.destination.offset_bytes, 0x30e000);
        assert_eq!(entry.encode(), bytes);
        assert_eq!(
            IndirectMappingEntry::decode(&swapped_words(&bytes), Endian::Big).unwrap(),
            entry
        );
    }

    #[test]
    fn the_counts_object_is_read_only_from_long_headers() {
        let words: Vec<u8> = [0x87f_7000u64, 0x100_6000, 408, 1290]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let long = IndirectMappingPhys::decode(&words, Endian::Little).unwrap();
        assert_eq!(long.counts, Some(Some(ObjectId(1290))));
        assert_eq!(long.encode(), words);
        let short = IndirectMappingPhys::decode(&words[..24], Endian::Little).unwrap();
        assert_eq!((short.entry_count, short.counts), (408, None));
        assert_eq!(short.encode(), words[..24]);
        assert!(IndirectMappingPhys::decode(&words[..23], Endian::Little).is_err());
    }

    #[test]
    fn empty_ganged_and_overflowing_segments_are_refused() {
        let encode = |words: [u64; 3]| {
            words
                .iter()
                .flat_map(|w| w.to_le_bytes())
                .collect::<Vec<_>>()
        };
        for words in [
            [1, 0, 5],
            [1, 8, 5 | 1 << 63],
            [(1 << 55) - 1, 8, 5],
            [u64::MAX, 8, 5],
            [1, 8, (1 << 63) - 1],
        ] {
            assert!(
                IndirectMappingEntry::decode(&encode(words), Endian::Little).is_err(),
                "{words:x?}"
            );
        }
    }

    #[test]
    fn obsolete_counts_are_32_bit_numbers() {
        let bytes = [0, 0x20, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(
            obsolete_counts(&bytes, Endian::Little).collect::<Vec<_>>(),
            [8192, 0]
        );
    }

    #[test]
    fn a_births_header_is_one_word() {
        let header = IndirectBirthsPhys { entry_count: 258 };
        let bytes = hex("0201000000000000");
        assert_eq!(header.encode(), bytes);
        for (bytes, endian) in [
            (bytes.clone(), Endian::Little),
            (swapped_words(&bytes), Endian::Big),
        ] {
            assert_eq!(IndirectBirthsPhys::decode(&bytes, endian), Ok(header));
            assert!(IndirectBirthsPhys::decode(&bytes[..7], endian).is_err());
        }
    }

    proptest! {
        #[test]
        fn entries_round_trip(source in 0u64..1 << 40, sectors in 1u64..1 << 24, offset in 0u64..1 << 40, vdev in 0u32..1 << 24, end: u64, birth: u64) {
            let entry = IndirectMappingEntry {
                source_offset_bytes: source << 9,
                destination: Dva { vdev: VdevId(vdev), offset_bytes: offset << 9, asize_bytes: sectors << 9, is_gang: false },
            };
            prop_assert_eq!(IndirectMappingEntry::decode(&entry.encode(), Endian::Little).unwrap(), entry);
            let born = IndirectBirthEntry { end_offset_bytes: end, birth: Txg(birth) };
            prop_assert_eq!(IndirectBirthEntry::decode(&born.encode(), Endian::Little).unwrap(), born);
        }
        #[test]
        fn any_bytes_are_an_entry_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = IndirectMappingEntry::decode(&bytes, Endian::Little);
            let _ = IndirectMappingPhys::decode(&bytes, Endian::Big);
            let _ = IndirectBirthEntry::decode(&bytes, Endian::Big);
        }
    }
}
