//! The header of a log, in the object set block.

use crate::{BlockPointer, DecodeError, Endian, Txg, Writer};

/// Size of the header in bytes.
pub const INTENT_LOG_HEADER_BYTES: usize = 192;

bitflags::bitflags! {
    /// Flags of a log's header. Page `docs/format/intent-log.md`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct IntentLogFlags: u64 {
        /// There are records to replay.
        const REPLAY_NEEDED = 0x1;
        /// `claim_record_sequence` is valid.
        const CLAIM_RECORD_SEQUENCE_VALID = 0x2;
        const _ = !0;
    }
}

/// A log's header ("zil_header"). Page `docs/format/intent-log.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IntentLogHeader {
    /// The txg in which the chain was claimed; 0 if it is not claimed.
    pub claim_txg: Txg,
    /// The highest record sequence number already replayed.
    pub replay_sequence: u64,
    /// The first log block; a hole if there is no log.
    pub log: BlockPointer,
    /// The highest claimed block sequence number.
    pub claim_block_sequence: u64,
    /// See [`IntentLogFlags`].
    pub flags: IntentLogFlags,
    /// The highest claimed record sequence number.
    pub claim_record_sequence: u64,
}

impl IntentLogHeader {
    /// Decodes a header from 24 native integers (see `ObjectSetPhys::intent_log_header`).
    #[must_use]
    pub fn from_words(words: &[u64; 24]) -> Self {
        let [claim_txg, replay_sequence, rest @ ..] = *words;
        let [pointer @ .., _, _, _, _, _, _] = rest;
        let [
            ..,
            claim_block_sequence,
            flags,
            claim_record_sequence,
            _,
            _,
            _,
        ] = rest;
        Self {
            claim_txg: Txg(claim_txg),
            replay_sequence,
            log: BlockPointer { words: pointer },
            claim_block_sequence,
            flags: IntentLogFlags::from_bits_retain(flags),
            claim_record_sequence,
        }
    }
    /// Reads a header from the first 192 bytes of `bytes`.
    ///
    /// # Errors
    /// If there are fewer bytes.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        Ok(Self::from_words(&endian.words("intent log header", bytes)?))
    }
    /// Encodes the header as 192 little-endian bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(INTENT_LOG_HEADER_BYTES);
        writer.put_u64(self.claim_txg.0);
        writer.put_u64(self.replay_sequence);
        writer.put(&self.log.encode());
        writer.put_u64(self.claim_block_sequence);
        writer.put_u64(self.flags.bits());
        writer.put_u64(self.claim_record_sequence);
        writer.pad_to(INTENT_LOG_HEADER_BYTES);
        writer.finish()
    }
    /// Whether the header has a chain. The chain may have no records.
    #[must_use]
    pub fn has_chain(&self) -> bool {
        !self.log.is_hole()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::swapped_words;
    use proptest::prelude::*;

    #[test]
    fn a_zeroed_header_has_no_chain() {
        let header = IntentLogHeader::decode(&[0; 192], Endian::Little).unwrap();
        assert!(!header.has_chain());
        let mut chained = header;
        chained.log.words[0] = 8;
        assert!(chained.has_chain());
        assert_eq!(header, IntentLogHeader::default());
        assert!(IntentLogHeader::decode(&[0; 191], Endian::Little).is_err());
    }

    proptest! {
        #[test]
        fn headers_round_trip_in_both_orders(words: [u64; 21]) {
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            bytes.resize(192, 0);
            let header = IntentLogHeader::decode(&bytes, Endian::Little).unwrap();
            prop_assert_eq!(header.claim_record_sequence, words[20]);
            prop_assert_eq!(header.log.words[15], words[17]);
            prop_assert_eq!(header.encode(), bytes.clone());
            prop_assert_eq!(IntentLogHeader::decode(&swapped_words(&bytes), Endian::Big).unwrap(), header);
        }
    }
}
