//! The state of scrubs, resilvers and error scrubs: words in the pool directory.
//!
//! Page `docs/format/scan-state.md`.

use crate::{BlockBookmark, DecodeError, ObjectId, Txg};

/// The kind of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ScanFunction {
    /// No scan was ever started.
    #[default]
    None,
    /// Reads all blocks.
    Scrub,
    /// Reads the blocks that devices missed.
    Resilver,
    /// Reads the blocks in the error log.
    ErrorScrub,
}

/// The phase of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ScanPhase {
    /// No scan was ever started.
    #[default]
    None,
    /// The scan is running, or resumes at the next import.
    Scanning,
    /// The scan is complete.
    Finished,
    /// The scan was cancelled.
    Cancelled,
    /// An error scrub is running.
    ErrorScrubbing,
}

bitflags::bitflags! {
    /// Flags of a scan. Page `docs/format/scan-state.md`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct ScanFlags: u64 {
        /// The current dataset must be visited again.
        const VISIT_DATASET_AGAIN = 0x1;
        /// Paused by the administrator.
        const PAUSED = 0x2;
        const _ = !0;
    }
}

/// The state of a scrub or resilver: 24 words under `scan`. Page `docs/format/scan-state.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScanPhys {
    /// The kind of the scan.
    pub function: ScanFunction,
    /// The phase.
    pub phase: ScanPhase,
    /// ZAP of datasets still to visit.
    pub queue: Option<ObjectId>,
    /// Only blocks born after this txg ...
    pub min_txg: Txg,
    /// ... and before this txg are scanned.
    pub max_txg: Txg,
    /// Bounds for the current dataset.
    pub current_min_txg: Txg,
    /// See `current_min_txg`.
    pub current_max_txg: Txg,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970; 0 while running.
    pub end_time: u64,
    /// Allocated bytes of the pool at the start.
    pub to_examine_bytes: u64,
    /// Bytes that the traversal has seen.
    pub examined_bytes: u64,
    /// Bytes seen that did not need a read.
    pub skipped_bytes: u64,
    /// Bytes repaired or resilvered.
    pub processed_bytes: u64,
    /// Errors found.
    pub errors: u64,
    /// The last dedup class that is traversed before the datasets.
    pub dedup_class_max: u64,
    /// The position in the dedup tables: class, type, checksum, cursor.
    pub dedup_bookmark: [u64; 4],
    /// The position in the datasets.
    pub bookmark: BlockBookmark,
    /// See [`ScanFlags`].
    pub flags: ScanFlags,
}

impl ScanPhys {
    /// Reads the state from its words (native integers, as read from a ZAP).
    ///
    /// A 25th word was written by one old release; it is ignored if only its lowest bit may be set.
    ///
    /// # Errors
    /// If the number of words is wrong, or the function or phase does not exist.
    pub fn from_words(words: &[u64]) -> Result<Self, DecodeError> {
        let fail = |reason, offset| DecodeError::new("scan state", reason, offset);
        let words: &[u64; 24] = match words {
            [first @ .., extra] if words.len() == 25 && *extra <= 1 => first.first_chunk(),
            _ if words.len() == 24 => words.first_chunk(),
            _ => None,
        }
        .ok_or_else(|| fail("not 24 words", 0))?;
        let [
            function,
            phase,
            queue,
            min_txg,
            max_txg,
            current_min_txg,
            current_max_txg,
            start_time,
            end_time,
            to_examine_bytes,
            examined_bytes,
            skipped_bytes,
            processed_bytes,
            errors,
            dedup_class_max,
            dedup_class,
            dedup_type,
            dedup_checksum,
            dedup_cursor,
            object_set,
            object,
            level,
            block_id,
            flags,
        ] = *words;
        Ok(Self {
            function: function_of(function).ok_or_else(|| fail("function does not exist", 0))?,
            phase: phase_of(phase).ok_or_else(|| fail("phase does not exist", 8))?,
            queue: ObjectId(queue).some(),
            min_txg: Txg(min_txg),
            max_txg: Txg(max_txg),
            current_min_txg: Txg(current_min_txg),
            current_max_txg: Txg(current_max_txg),
            start_time,
            end_time,
            to_examine_bytes,
            examined_bytes,
            skipped_bytes,
            processed_bytes,
            errors,
            dedup_class_max,
            dedup_bookmark: [dedup_class, dedup_type, dedup_checksum, dedup_cursor],
            bookmark: BlockBookmark::from_words([object_set, object, level, block_id]),
            flags: ScanFlags::from_bits_retain(flags),
        })
    }
    /// The words to store.
    #[must_use]
    pub fn to_words(&self) -> Vec<u64> {
        let mut words = vec![
            function_number(self.function),
            phase_number(self.phase),
            ObjectId::number(self.queue),
            self.min_txg.0,
            self.max_txg.0,
            self.current_min_txg.0,
            self.current_max_txg.0,
            self.start_time,
            self.end_time,
            self.to_examine_bytes,
            self.examined_bytes,
            self.skipped_bytes,
            self.processed_bytes,
            self.errors,
            self.dedup_class_max,
        ];
        words.extend(self.dedup_bookmark);
        words.extend(self.bookmark.to_words());
        words.push(self.flags.bits());
        words
    }
    /// Whether the scan is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.phase == ScanPhase::Scanning && self.flags.contains(ScanFlags::PAUSED)
    }
    /// The best estimate on disk of the bytes for which reads were issued: examined but not skipped.
    #[must_use]
    pub fn issued_bytes(&self) -> u64 {
        self.examined_bytes.saturating_sub(self.skipped_bytes)
    }
}

/// The state of an error scrub: 9 words under `error_scrub`. Page `docs/format/scan-state.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ErrorScrubPhys {
    /// [`ScanFunction::ErrorScrub`] once one was started.
    pub function: ScanFunction,
    /// The phase.
    pub phase: ScanPhase,
    /// Cursor into the error log; all ones at the end.
    pub cursor: u64,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970; 0 while running.
    pub end_time: u64,
    /// Blocks left; can be negative where datasets share a block.
    pub to_examine: i64,
    /// Blocks read.
    pub examined: u64,
    /// Errors that occurred again.
    pub errors: u64,
    /// Whether the scrub is paused.
    pub is_paused: bool,
}

impl ErrorScrubPhys {
    /// Reads the state from its words (native integers, as read from a ZAP).
    ///
    /// # Errors
    /// If there are not 9, or the function or phase does not exist.
    pub fn from_words(words: &[u64]) -> Result<Self, DecodeError> {
        let fail = |reason, offset| DecodeError::new("error scrub state", reason, offset);
        let &[
            function,
            phase,
            cursor,
            start_time,
            end_time,
            to_examine,
            examined,
            errors,
            paused,
        ] = words
        else {
            return Err(fail("not 9 words", 0));
        };
        Ok(Self {
            function: function_of(function).ok_or_else(|| fail("function does not exist", 0))?,
            phase: phase_of(phase).ok_or_else(|| fail("phase does not exist", 8))?,
            cursor,
            start_time,
            end_time,
            to_examine: i64::from_ne_bytes(to_examine.to_ne_bytes()),
            examined,
            errors,
            is_paused: paused != 0,
        })
    }
    /// The words to store.
    #[must_use]
    pub fn to_words(&self) -> [u64; 9] {
        [
            function_number(self.function),
            phase_number(self.phase),
            self.cursor,
            self.start_time,
            self.end_time,
            u64::from_ne_bytes(self.to_examine.to_ne_bytes()),
            self.examined,
            self.errors,
            u64::from(self.is_paused),
        ]
    }
}

const FUNCTIONS: [ScanFunction; 4] = [
    ScanFunction::None,
    ScanFunction::Scrub,
    ScanFunction::Resilver,
    ScanFunction::ErrorScrub,
];
const PHASES: [ScanPhase; 5] = [
    ScanPhase::None,
    ScanPhase::Scanning,
    ScanPhase::Finished,
    ScanPhase::Cancelled,
    ScanPhase::ErrorScrubbing,
];

fn function_of(number: u64) -> Option<ScanFunction> {
    FUNCTIONS.get(usize::try_from(number).ok()?).copied()
}
fn phase_of(number: u64) -> Option<ScanPhase> {
    PHASES.get(usize::try_from(number).ok()?).copied()
}
fn function_number(function: ScanFunction) -> u64 {
    match function {
        ScanFunction::None => 0,
        ScanFunction::Scrub => 1,
        ScanFunction::Resilver => 2,
        ScanFunction::ErrorScrub => 3,
    }
}
fn phase_number(phase: ScanPhase) -> u64 {
    match phase {
        ScanPhase::None => 0,
        ScanPhase::Scanning => 1,
        ScanPhase::Finished => 2,
        ScanPhase::Cancelled => 3,
        ScanPhase::ErrorScrubbing => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAUSED: [u64; 24] = [
        1, 1, 108, 0, 68, 0, 0, 1795254568, 0, 1769472, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2,
    ];
    const FINISHED: [u64; 24] = [
        1,
        2,
        0,
        0,
        147,
        42,
        147,
        1795253910,
        1795253910,
        464384,
        464384,
        66048,
        0,
        0,
        1,
        3,
        0,
        0,
        0,
        u64::MAX,
        0,
        0,
        0,
        0,
    ];

    #[test]
    fn real_states_of_a_paused_and_of_a_finished_scrub_read_as_such() {
        let paused = ScanPhys::from_words(&PAUSED).unwrap();
        assert!(paused.is_paused());
        assert_eq!(paused.queue, Some(ObjectId(108)));
        assert_eq!(paused.to_words(), PAUSED);
        let finished = ScanPhys::from_words(&FINISHED).unwrap();
        assert_eq!(finished.phase, ScanPhase::Finished);
        assert_eq!(finished.max_txg, Txg(147));
        assert_eq!(finished.issued_bytes(), 464384 - 66048);
        assert_eq!(finished.bookmark.object_set, u64::MAX);
        assert_eq!(finished.to_words(), FINISHED);
    }

    #[test]
    fn a_25th_word_is_dropped_if_it_is_0_or_1() {
        for (extra, fits) in [(0, true), (1, true), (2, false), (u64::MAX, false)] {
            let mut words = PAUSED.to_vec();
            words.push(extra);
            assert_eq!(ScanPhys::from_words(&words).is_ok(), fits, "{extra}");
        }
        assert!(ScanPhys::from_words(&PAUSED[..23]).is_err());
        assert!(ScanPhys::from_words(&[]).is_err());
    }

    #[test]
    fn a_real_error_scrub_may_have_fallen_below_zero() {
        let words = [
            3,
            2,
            u64::MAX,
            1795255377,
            1795255377,
            0u64.wrapping_sub(3),
            4,
            4,
            0,
        ];
        let state = ErrorScrubPhys::from_words(&words).unwrap();
        assert_eq!(state.function, ScanFunction::ErrorScrub);
        assert_eq!((state.to_examine, state.examined), (-3, 4));
        assert_eq!(state.to_words(), words);
        assert!(ErrorScrubPhys::from_words(&words[..8]).is_err());
        assert!(ErrorScrubPhys::from_words(&[4, 2, 0, 0, 0, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn each_function_and_phase_has_its_number() {
        for (number, function) in (0..).zip([
            ScanFunction::None,
            ScanFunction::Scrub,
            ScanFunction::Resilver,
            ScanFunction::ErrorScrub,
        ]) {
            for (phase_number, phase) in (0..).zip([
                ScanPhase::None,
                ScanPhase::Scanning,
                ScanPhase::Finished,
                ScanPhase::Cancelled,
                ScanPhase::ErrorScrubbing,
            ]) {
                let mut words = PAUSED;
                (words[0], words[1]) = (number, phase_number);
                let state = ScanPhys::from_words(&words).unwrap();
                assert_eq!((state.function, state.phase), (function, phase));
                assert_eq!(state.to_words(), words);
                // Only a running scan can be paused.
                assert_eq!(state.is_paused(), phase == ScanPhase::Scanning);
                let words = [number, phase_number, 3, 4, 5, 6, 7, 8, 1];
                let state = ErrorScrubPhys::from_words(&words).unwrap();
                assert_eq!((state.function, state.phase), (function, phase));
                assert!(state.is_paused);
                assert_eq!(state.to_words(), words);
            }
        }
        let mut words = PAUSED;
        words[23] = 1;
        assert!(!ScanPhys::from_words(&words).unwrap().is_paused());
        assert!(ErrorScrubPhys::from_words(&[1, 5, 0, 0, 0, 0, 0, 0, 0]).is_err());
    }

    proptest! {
        #[test]
        fn states_round_trip(function in 0u64..4, phase in 0u64..5, rest: [u64; 22]) {
            let mut words = vec![function, phase];
            words.extend(rest);
            prop_assert_eq!(ScanPhys::from_words(&words).unwrap().to_words(), words);
        }
        #[test]
        fn any_words_are_a_state_or_an_error(words in proptest::collection::vec(any::<u64>(), 0..30)) {
            let _ = ScanPhys::from_words(&words);
            let _ = ErrorScrubPhys::from_words(&words);
        }
    }
}
