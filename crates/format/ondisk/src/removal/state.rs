//! The progress of a removal and of condensing a mapping: words in the pool directory.

use crate::{DecodeError, ObjectId, VdevId};

/// The phase of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RemovalPhase {
    /// No removal was ever started.
    None,
    /// Blocks are being copied.
    Active,
    /// The last removal is finished.
    Finished,
    /// The last removal was cancelled.
    Cancelled,
}

/// The state of device removal: 7 words under `com.delphix:removing`.
/// Page `docs/format/indirect-vdev.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovalPhys {
    /// The phase.
    pub phase: RemovalPhase,
    /// The vdev that is being removed, or was removed last.
    pub vdev: Option<VdevId>,
    /// The last vdev whose removal finished: the start of the chain of mappings.
    pub previous_indirect_vdev: Option<VdevId>,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970; 0 while running.
    pub end_time: u64,
    /// Allocated bytes on the vdev at the start of the removal.
    pub bytes_to_copy: u64,
    /// Bytes copied so far.
    pub bytes_copied: u64,
}

impl RemovalPhys {
    /// Reads the state from its words (native integers, as read from a ZAP).
    ///
    /// # Errors
    /// If there are fewer than 7 words, or the phase or vdev is invalid.
    pub fn from_words(words: &[u64]) -> Result<Self, DecodeError> {
        let Some(
            [
                phase,
                vdev,
                previous,
                start_time,
                end_time,
                bytes_to_copy,
                bytes_copied,
            ],
        ) = words.first_chunk::<7>()
        else {
            return Err(DecodeError::new("removal state", "fewer than 7 words", 0));
        };
        let phase = match phase {
            0 => RemovalPhase::None,
            1 => RemovalPhase::Active,
            2 => RemovalPhase::Finished,
            3 => RemovalPhase::Cancelled,
            _ => {
                return Err(DecodeError::new("removal state", "phase does not exist", 0));
            }
        };
        Ok(Self {
            phase,
            vdev: vdev_or_none(*vdev, 8)?,
            previous_indirect_vdev: vdev_or_none(*previous, 16)?,
            start_time: *start_time,
            end_time: *end_time,
            bytes_to_copy: *bytes_to_copy,
            bytes_copied: *bytes_copied,
        })
    }
    /// The words to store.
    #[must_use]
    pub fn to_words(&self) -> [u64; 7] {
        let phase = match self.phase {
            RemovalPhase::None => 0,
            RemovalPhase::Active => 1,
            RemovalPhase::Finished => 2,
            RemovalPhase::Cancelled => 3,
        };
        let number = |vdev: Option<VdevId>| vdev.map_or(u64::MAX, |vdev| u64::from(vdev.0));
        [
            phase,
            number(self.vdev),
            number(self.previous_indirect_vdev),
            self.start_time,
            self.end_time,
            self.bytes_to_copy,
            self.bytes_copied,
        ]
    }
}

/// Decodes a vdev; all ones mean none.
fn vdev_or_none(word: u64, offset: usize) -> Result<Option<VdevId>, DecodeError> {
    if word == u64::MAX {
        return Ok(None);
    }
    u32::try_from(word)
        .map(|id| Some(VdevId(id)))
        .map_err(|_| DecodeError::new("removal state", "vdev does not exist", offset))
}

/// The state of condensing a mapping: 3 words under `com.delphix:condensing_indirect`. Page
/// `docs/format/indirect-vdev.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CondensingIndirectPhys {
    /// The removed vdev.
    pub vdev: VdevId,
    /// The obsolete space map that is being applied.
    pub previous_obsolete_map: Option<ObjectId>,
    /// The new mapping under construction.
    pub next_mapping: Option<ObjectId>,
}

impl CondensingIndirectPhys {
    /// Reads the state from its words (native integers, as read from a ZAP).
    ///
    /// # Errors
    /// If there are fewer than 3 words or the vdev is invalid.
    pub fn from_words(words: &[u64]) -> Result<Self, DecodeError> {
        let fail = |reason| DecodeError::new("condensing state", reason, 0);
        let Some([vdev, map, mapping]) = words.first_chunk::<3>() else {
            return Err(fail("fewer than 3 words"));
        };
        Ok(Self {
            vdev: VdevId(u32::try_from(*vdev).map_err(|_| fail("vdev does not exist"))?),
            previous_obsolete_map: ObjectId(*map).some(),
            next_mapping: ObjectId(*mapping).some(),
        })
    }
    /// The words to store.
    #[must_use]
    pub fn to_words(&self) -> [u64; 3] {
        [
            u64::from(self.vdev.0),
            ObjectId::number(self.previous_obsolete_map),
            ObjectId::number(self.next_mapping),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_finished_removal_reads_as_its_words() {
        let words = [2, 2, 2, 1795254000, 1795254010, 12173312, 12173312];
        let state = RemovalPhys::from_words(&words).unwrap();
        assert_eq!(state.phase, RemovalPhase::Finished);
        assert_eq!(state.previous_indirect_vdev, Some(VdevId(2)));
        assert_eq!(state.to_words(), words);
        let none = [0, u64::MAX, u64::MAX, 0, 0, 0, 0];
        assert_eq!(RemovalPhys::from_words(&none).unwrap().to_words(), none);
    }

    #[test]
    fn states_that_do_not_exist_are_refused() {
        assert!(RemovalPhys::from_words(&[1; 6]).is_err());
        assert!(RemovalPhys::from_words(&[4, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(RemovalPhys::from_words(&[1, 1 << 32, 0, 0, 0, 0, 0]).is_err());
        assert!(CondensingIndirectPhys::from_words(&[1, 2]).is_err());
        assert!(CondensingIndirectPhys::from_words(&[u64::MAX, 2, 3]).is_err());
        let words = [1, 2, 0];
        assert_eq!(
            CondensingIndirectPhys::from_words(&words)
                .unwrap()
                .to_words(),
            words
        );
    }

    #[test]
    fn each_phase_has_its_number() {
        for (number, phase) in (0..).zip([
            RemovalPhase::None,
            RemovalPhase::Active,
            RemovalPhase::Finished,
            RemovalPhase::Cancelled,
        ]) {
            let words = [number, 2, u64::MAX, 4, 5, 6, 7];
            let state = RemovalPhys::from_words(&words).unwrap();
            assert_eq!((state.phase, state.vdev), (phase, Some(VdevId(2))));
            assert_eq!(state.previous_indirect_vdev, None);
            assert_eq!(state.to_words(), words);
        }
    }
}
