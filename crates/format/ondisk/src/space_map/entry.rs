//! The entries of a space map: one word, two words, or a debug word.

use crate::{DecodeError, Endian, Txg, VdevId};

/// The action of an entry on its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpaceAction {
    /// Allocates the range.
    Allocate,
    /// Frees the range.
    Free,
}

impl SpaceAction {
    pub(super) fn bit(self) -> u64 {
        match self {
            SpaceAction::Allocate => 0,
            SpaceAction::Free => 1,
        }
    }
    fn from_bit(bit: u64) -> Self {
        if bit == 0 {
            SpaceAction::Allocate
        } else {
            SpaceAction::Free
        }
    }
}

/// One entry of a space map. Page `docs/format/space-map.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpaceMapEntry {
    /// The txg and sync pass that wrote the following entries. Loading needs it only in log maps.
    Debug {
        /// The low 50 bits of the txg, never 0.
        txg: Txg,
        /// The low 10 bits of the sync pass.
        sync_pass: u16,
        /// The action of the following batch.
        action: SpaceAction,
    },
    /// Padding at the end of a block, where a two-word entry does not fit in the last word.
    Padding,
    /// An allocated or freed range.
    Range {
        /// Whether it was allocated or freed.
        action: SpaceAction,
        /// The top-level vdev; `None` in one-word entries. Only meaningful in log maps.
        vdev: Option<VdevId>,
        /// First unit, relative to the map's start.
        offset_units: u64,
        /// Length in units, at least 1.
        run_units: u64,
    },
}

/// Iterates over the entries in a part of a space map, without copying. Page `docs/format/space-map.md`.
///
/// A two-word entry never crosses a data block of the object. The caller may therefore pass one block at a
/// time, the last one truncated to the header's length. The iterator ends after an error.
#[derive(Debug, Clone)]
pub struct SpaceMapEntries<'a> {
    bytes: &'a [u8],
    endian: Endian,
    position: usize,
}

impl<'a> SpaceMapEntries<'a> {
    /// Starts at the first byte of `bytes`; the words are in `endian` order.
    #[must_use]
    pub fn new(bytes: &'a [u8], endian: Endian) -> Self {
        Self {
            bytes,
            endian,
            position: 0,
        }
    }
    fn word(&mut self) -> Option<Result<u64, DecodeError>> {
        let rest = self.bytes.get(self.position..)?;
        if rest.is_empty() {
            return None;
        }
        let Some(word) = rest.first_chunk::<8>() else {
            return Some(Err(self.fail("cut inside a word")));
        };
        self.position = self.position.saturating_add(8);
        Some(Ok(self.endian.u64(*word)))
    }
    /// Ends the iteration with an error at the current position.
    fn fail(&mut self, reason: &'static str) -> DecodeError {
        let at = self.position;
        self.position = self.bytes.len();
        DecodeError::new("space map entry", reason, at)
    }
    fn decode(&mut self, word: u64) -> Result<SpaceMapEntry, DecodeError> {
        match word >> 62 {
            0 | 1 => Ok(SpaceMapEntry::Range {
                action: SpaceAction::from_bit(bits(word, 15, 1)),
                vdev: None,
                offset_units: bits(word, 16, 47),
                run_units: bits(word, 0, 15).saturating_add(1),
            }),
            2 => {
                let txg = Txg(bits(word, 0, 50));
                if txg == Txg(0) {
                    return Ok(SpaceMapEntry::Padding);
                }
                let action = match bits(word, 60, 2) {
                    0 => SpaceAction::Allocate,
                    1 => SpaceAction::Free,
                    _ => return Err(self.fail("debug word names no action")),
                };
                Ok(SpaceMapEntry::Debug {
                    txg,
                    sync_pass: u16::try_from(bits(word, 50, 10)).unwrap_or(u16::MAX),
                    action,
                })
            }
            _ => {
                let second = match self.word() {
                    Some(second) => second?,
                    None => return Err(self.fail("second word is missing")),
                };
                if bits(word, 60, 2) != 0 {
                    return Err(self.fail("reserved bits are set"));
                }
                Ok(SpaceMapEntry::Range {
                    action: SpaceAction::from_bit(second >> 63),
                    vdev: Some(VdevId(u32::try_from(bits(word, 0, 24)).unwrap_or(u32::MAX))),
                    offset_units: bits(second, 0, 63),
                    run_units: bits(word, 24, 36).saturating_add(1),
                })
            }
        }
    }
}

impl Iterator for SpaceMapEntries<'_> {
    type Item = Result<SpaceMapEntry, DecodeError>;
    fn next(&mut self) -> Option<Self::Item> {
        match self.word()? {
            Ok(word) => Some(self.decode(word)),
            Err(error) => Some(Err(error)),
        }
    }
}

fn bits(word: u64, low: u32, width: u32) -> u64 {
    word.checked_shr(low).unwrap_or(0) & 1u64.checked_shl(width).unwrap_or(0).wrapping_sub(1)
}
