//! Encoder of the entries that are appended to a space map.

use super::entry::SpaceAction;
use crate::{DecodeError, Txg, VdevId, Writer};

/// The longest range of a one-word entry, in units.
const ONE_WORD_RUN_MAX: u64 = 1 << 15;
/// The end of the offsets of one-word entries, in units.
const ONE_WORD_OFFSET_END: u64 = 1 << 47;
/// The longest range of a two-word entry, in units.
const TWO_WORD_RUN_MAX: u64 = 1 << 36;
/// The end of the offsets of two-word entries, in units.
const TWO_WORD_OFFSET_END: u64 = 1 << 63;

/// Encodes entries for appending at a given length of a map. Page `docs/format/space-map.md`.
#[derive(Debug, Clone)]
pub struct SpaceMapWriter {
    writer: Writer,
    start_bytes: u64,
    block_bytes: u64,
    two_words: bool,
}

impl SpaceMapWriter {
    /// The end of the offsets that entries can hold, in units.
    ///
    /// `two_words` permits two-word entries (feature `com.delphix:spacemap_v2`).
    #[must_use]
    pub const fn offsets_end(two_words: bool) -> u64 {
        match two_words {
            true => TWO_WORD_OFFSET_END,
            false => ONE_WORD_OFFSET_END,
        }
    }

    /// Starts at `start_bytes` (the length in the header) of an object with data blocks of `block_bytes`.
    ///
    /// `two_words` permits two-word entries (feature `com.delphix:spacemap_v2`).
    #[must_use]
    pub fn new(start_bytes: u64, block_bytes: u64, two_words: bool) -> Self {
        Self {
            writer: Writer::default(),
            start_bytes,
            block_bytes: block_bytes.max(16),
            two_words,
        }
    }
    /// The number of bytes encoded.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        u64::try_from(self.writer.position()).unwrap_or(u64::MAX)
    }
    /// The little-endian bytes to append.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.writer.finish()
    }
    /// Appends a debug entry: the following entries belong to `txg` (not 0) and `sync_pass`.
    pub fn put_debug(&mut self, txg: Txg, sync_pass: u16, action: SpaceAction) {
        let word = (2u64 << 62)
            | (action.bit() << 60)
            | (u64::from(sync_pass & 0x3ff) << 50)
            | (txg.0 & ((1 << 50) - 1));
        self.writer.put_u64(word);
    }
    /// Appends a range to a map without vdevs, in as many entries as needed.
    ///
    /// Uses one-word entries where one suffices, else two-word entries if permitted.
    ///
    /// # Errors
    /// If the range is empty, or beyond the reach of the permitted entries.
    pub fn put_range(
        &mut self,
        action: SpaceAction,
        offset_units: u64,
        run_units: u64,
    ) -> Result<(), DecodeError> {
        let end = range_end(offset_units, run_units)?;
        let narrow = run_units <= ONE_WORD_RUN_MAX && offset_units < ONE_WORD_OFFSET_END;
        if self.two_words && !narrow {
            return self.put_two_words(action, VdevId(0), offset_units, run_units);
        }
        if end > ONE_WORD_OFFSET_END {
            return Err(fail("offset does not fit one word"));
        }
        for (offset, run) in pieces(offset_units, run_units, ONE_WORD_RUN_MAX) {
            self.writer
                .put_u64((offset << 16) | (action.bit() << 15) | run.saturating_sub(1));
        }
        Ok(())
    }
    /// Appends a range to a log map, always as two-word entries with the vdev.
    ///
    /// # Errors
    /// If the range is empty or too large for the format, or the vdev exceeds 24 bits.
    pub fn put_vdev_range(
        &mut self,
        action: SpaceAction,
        vdev: VdevId,
        offset_units: u64,
        run_units: u64,
    ) -> Result<(), DecodeError> {
        range_end(offset_units, run_units)?;
        if vdev.0 >= 1 << 24 {
            return Err(fail("vdev does not fit 24 bits"));
        }
        self.put_two_words(action, vdev, offset_units, run_units)
    }
    fn put_two_words(
        &mut self,
        action: SpaceAction,
        vdev: VdevId,
        offset_units: u64,
        run_units: u64,
    ) -> Result<(), DecodeError> {
        if range_end(offset_units, run_units)? > TWO_WORD_OFFSET_END {
            return Err(fail("offset does not fit two words"));
        }
        for (offset, run) in pieces(offset_units, run_units, TWO_WORD_RUN_MAX) {
            // Readers process single blocks, so an entry must not cross a block boundary.
            let position = self.start_bytes.saturating_add(self.length_bytes());
            if position.checked_rem(self.block_bytes) == Some(self.block_bytes.saturating_sub(8)) {
                self.writer.put_u64(2 << 62);
            }
            self.writer
                .put_u64((3 << 62) | (run.saturating_sub(1) << 24) | u64::from(vdev.0));
            self.writer.put_u64((action.bit() << 63) | offset);
        }
        Ok(())
    }
}

fn fail(reason: &'static str) -> DecodeError {
    DecodeError::new("space map entry", reason, 0)
}

fn range_end(offset: u64, run: u64) -> Result<u64, DecodeError> {
    if run == 0 {
        return Err(fail("empty range"));
    }
    offset
        .checked_add(run)
        .ok_or_else(|| fail("range does not fit 64 bits"))
}

/// Splits `run` units from `offset` into parts of at most `most` units.
fn pieces(offset: u64, run: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut at = offset;
    let mut left = run;
    core::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let taken = left.min(most);
        let piece = (at, taken);
        at = at.saturating_add(taken);
        left = left.saturating_sub(taken);
        Some(piece)
    })
}
