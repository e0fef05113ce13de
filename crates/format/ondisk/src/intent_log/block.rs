//! Log blocks: the chain structure, and the position of the records.

use crate::{
    BlockPointer, CHECKSUM_TRAILER_BYTES, ChecksumKind, ChecksumTrailer, DecodeError, Endian,
    Reader, Writer,
};

/// Size of the chain structure in bytes.
pub const INTENT_LOG_BLOCK_HEADER_BYTES: usize = 184;
/// Writes of slim blocks are padded to multiples of this many bytes.
const SLIM_UNIT_BYTES: u64 = 4096;
/// Offset of the trailer in the chain structure.
const TRAILER_AT: usize = 144;

/// The position of the chain structure in a log block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IntentLogBlockForm {
    /// At the start (checksum `zilog2`, pool version 26 and above).
    Slim,
    /// At the end (checksum `zilog`).
    Old,
}

impl IntentLogBlockForm {
    /// The form of the block of `pointer`; `None` if its checksum is not that of a log block.
    #[must_use]
    pub fn of(pointer: &BlockPointer) -> Option<Self> {
        match pointer.checksum_kind()? {
            ChecksumKind::Zilog2 => Some(Self::Slim),
            ChecksumKind::Zilog => Some(Self::Old),
            _ => None,
        }
    }
}

/// The four checksum words in a log block's pointer. Page `docs/format/intent-log.md`.
///
/// They identify the chain and the block's position in it, and seed the block's checksum. They are not a
/// checksum of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IntentLogVerifier {
    /// Random words, equal in the whole chain.
    pub guid: [u64; 2],
    /// The object id of the dataset.
    pub object_set: u64,
    /// The block's sequence number.
    pub sequence: u64,
}

impl IntentLogVerifier {
    /// The verifier that a pointer to a log block carries.
    #[must_use]
    pub fn of(pointer: &BlockPointer) -> Self {
        let [first, second, object_set, sequence] = pointer.checksum_words();
        Self {
            guid: [first, second],
            object_set,
            sequence,
        }
    }
    /// The words as stored in the pointer.
    #[must_use]
    pub fn words(&self) -> [u64; 4] {
        let [first, second] = self.guid;
        [first, second, self.object_set, self.sequence]
    }
    /// The verifier of the next block's pointer; `None` after the last number.
    #[must_use]
    pub fn next(&self) -> Option<Self> {
        Some(Self {
            sequence: self.sequence.checked_add(1)?,
            ..*self
        })
    }
}

/// The chain structure of a log block ("zil_chain"). Page `docs/format/intent-log.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntentLogBlockHeader {
    /// The next block, which is allocated but may never have been written; a hole if there is none.
    pub next: BlockPointer,
    /// Bytes in use; includes this structure in slim blocks, and excludes it in old ones.
    pub used_bytes: u64,
    /// The embedded checksum as stored.
    pub checksum: [u64; 4],
    /// The byte order of the block, from the trailer's magic.
    pub endian: Endian,
}

impl IntentLogBlockHeader {
    /// Reads the structure from the first 184 bytes of `bytes`, in the byte order of its magic.
    ///
    /// # Errors
    /// If there are fewer bytes or the magic is wrong, which means that no log block was written here.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let fail = |reason, offset| DecodeError::new("intent log block", reason, offset);
        let trailer = bytes
            .get(TRAILER_AT..)
            .and_then(ChecksumTrailer::decode)
            .ok_or_else(|| fail("no checksum trailer", TRAILER_AT))?;
        let mut reader = Reader::new("intent log block", bytes, trailer.endian);
        reader.skip(8)?;
        Ok(Self {
            next: BlockPointer::decode(reader.take(128)?, trailer.endian)?,
            used_bytes: reader.u64()?,
            checksum: trailer.words,
            endian: trailer.endian,
        })
    }
    /// Encodes the structure as 184 little-endian bytes, with the trailer's magic.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(INTENT_LOG_BLOCK_HEADER_BYTES);
        writer.put_u64(0);
        writer.put(&self.next.encode());
        writer.put_u64(self.used_bytes);
        let trailer = ChecksumTrailer {
            endian: Endian::Little,
            words: self.checksum,
        };
        writer.put(&trailer.encode());
        writer.finish()
    }
}

/// The parts of a log block: the chain structure and the bytes of its records. Page
/// `docs/format/intent-log.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntentLogBlock<'a> {
    /// The chain structure.
    pub header: IntentLogBlockHeader,
    /// The records, back to back.
    pub records: &'a [u8],
    /// The leading bytes that the checksum covers. The rest of the block may never have been written.
    pub covered: &'a [u8],
    /// Byte offset of the four checksum words in the block. The verifier is stored there during the checksum
    /// computation.
    pub checksum_at: usize,
}

impl<'a> IntentLogBlock<'a> {
    /// Locates the parts of a whole block (the size in its pointer).
    ///
    /// Does not verify the checksum, so the result is not trustworthy until the caller has done so.
    ///
    /// # Errors
    /// If the block is too small, was never written, or claims more bytes than it has. A chain usually ends
    /// this way.
    pub fn parse(bytes: &'a [u8], form: IntentLogBlockForm) -> Result<Self, DecodeError> {
        let fail = |reason, offset| DecodeError::new("intent log block", reason, offset);
        let header_at = match form {
            IntentLogBlockForm::Slim => 0,
            IntentLogBlockForm::Old => bytes
                .len()
                .checked_sub(INTENT_LOG_BLOCK_HEADER_BYTES)
                .ok_or_else(|| fail("shorter than its chain structure", bytes.len()))?,
        };
        let header = IntentLogBlockHeader::decode(bytes.get(header_at..).unwrap_or(&[]))?;
        let used_at = header_at.saturating_add(136);
        let used = usize::try_from(header.used_bytes)
            .map_err(|_| fail("uses more bytes than it has", used_at))?;
        let (records, covered) = match form {
            IntentLogBlockForm::Slim => {
                let written = header
                    .used_bytes
                    .checked_next_multiple_of(SLIM_UNIT_BYTES)
                    .and_then(|length| usize::try_from(length).ok());
                (
                    bytes.get(INTENT_LOG_BLOCK_HEADER_BYTES..used),
                    written.and_then(|length| bytes.get(..length)),
                )
            }
            IntentLogBlockForm::Old => (
                bytes.get(..header_at).and_then(|area| area.get(..used)),
                Some(bytes),
            ),
        };
        Ok(Self {
            header,
            records: records.ok_or_else(|| fail("uses more bytes than it has", used_at))?,
            covered: covered.ok_or_else(|| fail("uses more bytes than it has", used_at))?,
            checksum_at: header_at
                .saturating_add(INTENT_LOG_BLOCK_HEADER_BYTES)
                .saturating_sub(CHECKSUM_TRAILER_BYTES)
                .saturating_add(8),
        })
    }

    /// Whether the pointer to the next block continues the chain of the block of `pointer`.
    ///
    /// Also true if the chain ends with a hole.
    #[must_use]
    pub fn continues(&self, pointer: &BlockPointer) -> bool {
        self.header.next.is_hole()
            || IntentLogVerifier::of(pointer).next()
                == Some(IntentLogVerifier::of(&self.header.next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::swapped_words;
    use proptest::prelude::*;

    fn pointer(sequence: u64) -> BlockPointer {
        let mut pointer = BlockPointer::default();
        pointer.words[0] = 8;
        pointer.words[6] = 0x8009_0902_0007_0007;
        pointer.words[12..].copy_from_slice(&[11, 12, 5, sequence]);
        pointer
    }

    fn block(used: u64, form: IntentLogBlockForm) -> Vec<u8> {
        let header = IntentLogBlockHeader {
            next: pointer(4),
            used_bytes: used,
            checksum: [1, 2, 3, 4],
            endian: Endian::Little,
        };
        let mut bytes = vec![0u8; 8192];
        let at = if form == IntentLogBlockForm::Slim {
            0
        } else {
            8192 - 184
        };
        bytes[at..at + 184].copy_from_slice(&header.encode());
        bytes
    }

    #[test]
    fn a_new_log_block_has_records_after_its_header() {
        let bytes = block(184 + 192, IntentLogBlockForm::Slim);
        let parsed = IntentLogBlock::parse(&bytes, IntentLogBlockForm::Slim).unwrap();
        assert_eq!((parsed.records.len(), parsed.covered.len()), (192, 4096));
        assert_eq!(parsed.checksum_at, 152);
        assert_eq!(bytes[parsed.checksum_at], 1);
        assert!(parsed.continues(&pointer(3)) && !parsed.continues(&pointer(4)));
        assert_eq!(
            IntentLogBlockForm::of(&pointer(3)),
            Some(IntentLogBlockForm::Slim)
        );
        let foreign = swapped_words(&bytes);
        let parsed_foreign = IntentLogBlock::parse(&foreign, IntentLogBlockForm::Slim).unwrap();
        assert_eq!(parsed_foreign.header.endian, Endian::Big);
        assert_eq!(parsed_foreign.header.next, parsed.header.next);
    }

    #[test]
    fn an_old_log_block_starts_with_records_and_covers_all() {
        let bytes = block(64, IntentLogBlockForm::Old);
        let parsed = IntentLogBlock::parse(&bytes, IntentLogBlockForm::Old).unwrap();
        assert_eq!((parsed.records.len(), parsed.covered.len()), (64, 8192));
        assert_eq!(bytes[parsed.checksum_at], 1);
    }

    #[test]
    fn blocks_that_claim_too_much_or_too_little_are_refused() {
        for used in [0, 183, 8193, u64::MAX] {
            let bytes = block(used, IntentLogBlockForm::Slim);
            assert!(
                IntentLogBlock::parse(&bytes, IntentLogBlockForm::Slim).is_err(),
                "{used}"
            );
        }
        for used in [8192 - 183, u64::MAX] {
            let bytes = block(used, IntentLogBlockForm::Old);
            assert!(
                IntentLogBlock::parse(&bytes, IntentLogBlockForm::Old).is_err(),
                "{used}"
            );
        }
        assert!(IntentLogBlock::parse(&[0; 100], IntentLogBlockForm::Old).is_err());
        assert!(IntentLogBlock::parse(&[0; 4096], IntentLogBlockForm::Slim).is_err());
        // 6000 bytes are used, but the covered pages exceed the block.
        assert!(
            IntentLogBlock::parse(
                &block(6000, IntentLogBlockForm::Slim)[..6144],
                IntentLogBlockForm::Slim
            )
            .is_err()
        );
    }

    #[test]
    fn the_last_sequence_number_has_no_successor() {
        assert_eq!(IntentLogVerifier::of(&pointer(u64::MAX)).next(), None);
    }

    #[test]
    fn the_log_block_format_follows_its_checksum_function() {
        let of = |checksum: u64| {
            let mut pointer = pointer(3);
            pointer.words[6] = pointer.words[6] & !(0xff << 40) | checksum << 40;
            IntentLogBlockForm::of(&pointer)
        };
        assert_eq!(of(5), Some(IntentLogBlockForm::Old));
        assert_eq!(of(9), Some(IntentLogBlockForm::Slim));
        assert_eq!((of(7), of(200)), (None, None));
        let verifier = IntentLogVerifier::of(&pointer(3));
        assert_eq!(verifier.words(), [11, 12, 5, 3]);
        assert_eq!(verifier.next().unwrap().words(), [11, 12, 5, 4]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_block_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            let _ = IntentLogBlock::parse(&bytes, IntentLogBlockForm::Slim);
            let _ = IntentLogBlock::parse(&bytes, IntentLogBlockForm::Old);
        }
    }
}
