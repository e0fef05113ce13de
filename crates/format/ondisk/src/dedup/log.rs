//! Logs of fast dedup tables: changes that are not in the stored table yet.

use super::table::{DEDUP_FLAT_BODY_BYTES, DEDUP_KEY_BYTES, DedupClass, DedupEntry, DedupKey};
use crate::{DecodeError, Endian, Reader, Txg, Writer};

/// Size of a record of a flat table in bytes.
pub const DEDUP_LOG_RECORD_BYTES: usize = 120;
/// Size of the part of a record before its key, in bytes.
const RECORD_INFO_BYTES: usize = 8;
const LOG_VERSION: u64 = 1;

bitflags::bitflags! {
    /// Flags of a log. Page `docs/format/dedup-table.md`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct DedupLogFlags: u8 {
        /// The log is being flushed to the table.
        const FLUSHING = 0x1;
        /// Keys up to the checkpoint are already in the table.
        const CHECKPOINT = 0x2;
    }
}

/// The header of a log: the bonus of its object (64 bytes). Page `docs/format/dedup-table.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DedupLogPhys {
    /// See [`DedupLogFlags`].
    pub flags: DedupLogFlags,
    /// Size of the data in bytes, a multiple of the block size.
    pub length_bytes: u64,
    /// The txg in which it became the active log.
    pub first_txg: Txg,
    /// With [`DedupLogFlags::CHECKPOINT`]: the last key that was flushed.
    pub checkpoint: DedupKey,
}

impl DedupLogPhys {
    /// Reads a header.
    ///
    /// # Errors
    /// If there are fewer than 64 bytes, or the version or flags are unknown.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let [info, length_bytes, first_txg, key @ ..]: [u64; 8] =
            endian.words("dedup log", bonus)?;
        let fail = |reason| DecodeError::new("dedup log", reason, 0);
        if info & 0xff != LOG_VERSION || info >> 16 != 0 {
            return Err(fail("version is unknown"));
        }
        let flags = u8::try_from(info >> 8 & 0xff)
            .ok()
            .and_then(DedupLogFlags::from_bits)
            .ok_or_else(|| fail("flags are unknown"))?;
        Ok(Self {
            flags,
            length_bytes,
            first_txg: Txg(first_txg),
            checkpoint: DedupKey::from_words(key),
        })
    }
    /// Encodes the header as 64 little-endian bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(64);
        writer.put_words(&[
            LOG_VERSION | u64::from(self.flags.bits()) << 8,
            self.length_bytes,
            self.first_txg.0,
        ]);
        writer.put_words(&self.checkpoint.to_words());
        writer.finish()
    }
    /// Whether a record of this key is pending, which means that it was not flushed to the table yet.
    #[must_use]
    pub fn is_pending(&self, key: &DedupKey) -> bool {
        !self.flags.contains(DedupLogFlags::CHECKPOINT) || *key > self.checkpoint
    }
}

/// A logged entry. Page `docs/format/dedup-table.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DedupLogRecord {
    /// The current entry; an entry without references must be removed.
    pub entry: DedupEntry,
    /// The class under which the table has the entry; `None` if it has none.
    pub stored: Option<DedupClass>,
}

impl DedupLogRecord {
    /// Encodes the record, little-endian.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let body = self.entry.encode_body();
        let length = body
            .len()
            .saturating_add(DEDUP_KEY_BYTES)
            .saturating_add(RECORD_INFO_BYTES);
        let (kind, class) = match self.stored {
            None => (1u64, 3u64),
            Some(DedupClass::Ditto) => (0, 0),
            Some(DedupClass::Duplicate) => (0, 1),
            Some(DedupClass::Unique) => (0, 2),
        };
        let mut writer = Writer::with_capacity(length);
        writer.put_u64(1 | u64::try_from(length).unwrap_or(0) << 8 | kind << 48 | class << 56);
        writer.put_words(&self.entry.key.to_words());
        writer.put(&body);
        writer.finish()
    }
}

/// Iterates over the records in one data block of a log.
///
/// Records never cross blocks. The iterator ends after an error.
#[derive(Debug, Clone)]
pub struct DedupLogRecords<'a> {
    block: &'a [u8],
    endian: Endian,
    position: usize,
}

impl<'a> DedupLogRecords<'a> {
    /// Starts at the first byte of a block.
    #[must_use]
    pub fn new(block: &'a [u8], endian: Endian) -> Self {
        Self {
            block,
            endian,
            position: 0,
        }
    }
    fn read(&mut self) -> Result<Option<DedupLogRecord>, DecodeError> {
        let at = self.position;
        let fail = |reason| DecodeError::new("dedup log record", reason, at);
        let Some(rest) = self.block.get(at..).filter(|rest| rest.len() >= 8) else {
            return Ok(None);
        };
        let mut reader = Reader::new("dedup log record", rest, self.endian);
        let info = reader.u64()?;
        match info & 0xff {
            0 => return Ok(None),
            1 => {}
            _ => return Err(fail("record type does not exist")),
        }
        let length = usize::try_from(info >> 8 & 0xffff).unwrap_or(usize::MAX);
        let body_bytes = length
            .checked_sub(RECORD_INFO_BYTES.saturating_add(DEDUP_KEY_BYTES))
            .ok_or_else(|| fail("shorter than its key"))?;
        let key = DedupKey::decode(reader.take(DEDUP_KEY_BYTES)?, self.endian)?;
        let entry = DedupEntry::decode(key, reader.take(body_bytes)?, self.endian)?;
        let stored = match (info >> 48 & 0xff, info >> 56) {
            (1, _) | (0, 3) => None,
            (0, class) => {
                Some(DedupClass::from_number(class).ok_or_else(|| fail("class does not exist"))?)
            }
            _ => return Err(fail("stored type does not exist")),
        };
        self.position = at.saturating_add(length);
        Ok(Some(DedupLogRecord { entry, stored }))
    }
}

impl Iterator for DedupLogRecords<'_> {
    type Item = Result<DedupLogRecord, DecodeError>;
    fn next(&mut self) -> Option<Self::Item> {
        let outcome = self.read();
        if !matches!(outcome, Ok(Some(_))) {
            self.position = self.block.len();
        }
        outcome.transpose()
    }
}

/// All logs are written with flat bodies.
const _: () =
    assert!(DEDUP_LOG_RECORD_BYTES == RECORD_INFO_BYTES + DEDUP_KEY_BYTES + DEDUP_FLAT_BODY_BYTES);

#[cfg(test)]
mod tests {
    use super::super::table::{DedupSlot, DedupSlots};
    use super::*;
    use crate::testing::{hex, swapped_words};
    use proptest::prelude::*;

    fn entry(checksum: u64, reference_count: u64) -> DedupEntry {
        DedupEntry {
            key: DedupKey {
                checksum: [checksum, 2, 3, 4],
                properties: 0x0000_0002_001f_001f,
            },
            slots: DedupSlots::Flat {
                slot: DedupSlot {
                    addresses: [[0x20, 0x1d4], [0, 0], [0, 0]],
                    reference_count,
                    birth: Txg(26),
                },
                class_start: 1_795_253_936,
            },
        }
    }

    #[test]
    fn a_real_record_that_was_never_stored_begins_with_these_bytes() {
        let record = DedupLogRecord {
            entry: entry(0x5374_0662_f088_f81f, 1),
            stored: None,
        };
        let bytes = record.encode();
        assert_eq!(bytes.len(), DEDUP_LOG_RECORD_BYTES);
        assert_eq!(bytes[..16], hex("0178000000000103 1ff888f062067453"));
        assert_eq!(bytes[40..48], hex("1f001f0002000000"));
    }

    #[test]
    fn a_block_ends_at_the_first_zero_word() {
        let mut block = Vec::new();
        let records: Vec<_> = (0..3u64)
            .map(|n| DedupLogRecord {
                entry: entry(n, n),
                stored: (n > 0).then_some(DedupClass::Duplicate),
            })
            .collect();
        for record in &records {
            block.extend(record.encode());
        }
        let end = block.len();
        block.resize(1024, 0);
        for (bytes, endian) in [
            (block.clone(), Endian::Little),
            (swapped_words(&block), Endian::Big),
        ] {
            let read: Vec<_> = DedupLogRecords::new(&bytes, endian)
                .map(Result::unwrap)
                .collect();
            assert_eq!(read, records);
        }
        // Without the zero word, the end of the block ends it.
        assert_eq!(
            DedupLogRecords::new(&block[..end], Endian::Little).count(),
            3
        );
        let cut: Vec<_> = DedupLogRecords::new(&block[..end - 1], Endian::Little).collect();
        assert_eq!(cut.len(), 3);
        assert!(cut[2].is_err());
    }

    #[test]
    fn records_of_impossible_type_length_or_class_are_refused_once() {
        for (index, value) in [(0, 2), (1, 47), (1, 121), (6, 2), (7, 9)] {
            let mut bytes = DedupLogRecord {
                entry: entry(1, 1),
                stored: Some(DedupClass::Unique),
            }
            .encode();
            bytes[index] = value;
            bytes.resize(400, 0);
            let read: Vec<_> = DedupLogRecords::new(&bytes, Endian::Little).collect();
            assert_eq!(read.len(), 1, "{index}");
            assert!(read[0].is_err(), "{index}");
        }
    }

    #[test]
    fn a_real_log_header_is_flushing_and_unknown_ones_are_refused() {
        let mut bytes = hex("0101000000000000 0000020000000000 1a00000000000000");
        bytes.resize(64, 0);
        let header = DedupLogPhys::decode(&bytes, Endian::Little).unwrap();
        assert_eq!(
            (header.flags, header.first_txg),
            (DedupLogFlags::FLUSHING, Txg(26))
        );
        assert_eq!(header.encode(), bytes);
        assert!(header.is_pending(&DedupKey::default()));
        for (index, value) in [(0, 2), (1, 4), (2, 1), (7, 1)] {
            let mut bad = bytes.clone();
            bad[index] = value;
            assert!(
                DedupLogPhys::decode(&bad, Endian::Little).is_err(),
                "{index}"
            );
        }
    }

    #[test]
    fn keys_up_to_the_checkpoint_are_stored_already() {
        let key = |first| DedupKey {
            checksum: [first, 0, 0, 0],
            properties: 0,
        };
        let header = DedupLogPhys {
            flags: DedupLogFlags::FLUSHING | DedupLogFlags::CHECKPOINT,
            checkpoint: key(5),
            ..DedupLogPhys::default()
        };
        assert!(
            !header.is_pending(&key(4))
                && !header.is_pending(&key(5))
                && header.is_pending(&key(6))
        );
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_records_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            prop_assert!(DedupLogRecords::new(&bytes, Endian::Little).count() <= bytes.len() / 48 + 1);
            let _ = DedupLogPhys::decode(&bytes, Endian::Big);
        }
    }
}
