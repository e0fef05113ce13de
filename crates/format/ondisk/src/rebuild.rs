//! The state of a sequential resilver: words in the ZAP of a top-level vdev.
//!
//! Page `docs/format/scan-state.md`, "Sequential resilvers".

use crate::{DecodeError, Txg};

/// The phase of a sequential resilver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RebuildPhase {
    /// None was ever started, or its result is out of date.
    #[default]
    None,
    /// It runs, or continues at the next import.
    Active,
    /// It was cancelled.
    Canceled,
    /// It is complete.
    Complete,
}

/// The state of a sequential resilver: 12 words under `org.openzfs:vdev_rebuild`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RebuildPhys {
    /// The phase.
    pub phase: RebuildPhase,
    /// Everything before this offset on the vdev, in bytes, is copied.
    pub last_offset: u64,
    /// The devices lack blocks born after this txg ...
    pub min_txg: Txg,
    /// ... and before this one.
    pub max_txg: Txg,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970; 0 while it runs.
    pub end_time: u64,
    /// For how many milliseconds it has run.
    pub scan_time_ms: u64,
    /// Bytes that may hold blocks, up to `last_offset`.
    pub scanned_bytes: u64,
    /// Bytes read.
    pub issued_bytes: u64,
    /// Bytes written.
    pub rebuilt_bytes: u64,
    /// Allocated bytes of the vdev at the start.
    pub estimated_bytes: u64,
    /// Ranges that could not be read.
    pub errors: u64,
}

impl RebuildPhys {
    /// Reads the state from its words (native integers, as read from a ZAP).
    ///
    /// # Errors
    /// If the number of words is wrong, or the phase does not exist.
    pub fn from_words(words: &[u64]) -> Result<Self, DecodeError> {
        let fail = |reason| DecodeError::new("rebuild state", reason, 0);
        let words: [u64; 12] = words.try_into().map_err(|_| fail("not 12 words"))?;
        let [
            phase,
            last_offset,
            min_txg,
            max_txg,
            start_time,
            end_time,
            scan_time_ms,
            scanned_bytes,
            issued_bytes,
            rebuilt_bytes,
            estimated_bytes,
            errors,
        ] = words;
        Ok(Self {
            phase: match phase {
                0 => RebuildPhase::None,
                1 => RebuildPhase::Active,
                2 => RebuildPhase::Canceled,
                3 => RebuildPhase::Complete,
                _ => return Err(fail("phase does not exist")),
            },
            last_offset,
            min_txg: Txg(min_txg),
            max_txg: Txg(max_txg),
            start_time,
            end_time,
            scan_time_ms,
            scanned_bytes,
            issued_bytes,
            rebuilt_bytes,
            estimated_bytes,
            errors,
        })
    }

    /// The words to store.
    #[must_use]
    pub fn to_words(&self) -> [u64; 12] {
        let phase = match self.phase {
            RebuildPhase::None => 0,
            RebuildPhase::Active => 1,
            RebuildPhase::Canceled => 2,
            RebuildPhase::Complete => 3,
        };
        [
            phase,
            self.last_offset,
            self.min_txg.0,
            self.max_txg.0,
            self.start_time,
            self.end_time,
            self.scan_time_ms,
            self.scanned_bytes,
            self.issued_bytes,
            self.rebuilt_bytes,
            self.estimated_bytes,
            self.errors,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_written_in_order() {
        for phase in 0..4 {
            let words = [phase, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
            let state = RebuildPhys::from_words(&words).unwrap();
            assert_eq!(state.to_words(), words);
            assert_eq!((state.max_txg, state.errors), (Txg(3), 11));
        }
        assert!(RebuildPhys::from_words(&[4; 12]).is_err());
        assert!(RebuildPhys::from_words(&[1; 11]).is_err());
        assert!(RebuildPhys::from_words(&[1; 13]).is_err());
    }
}
