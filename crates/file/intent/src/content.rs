//! Computes how pending records change the content of one object, without modifying the object.

use crate::{IntentLog, RecordFate};
use millpond_block::BlockError;
use millpond_env::sync::Arc;
use millpond_object::Block;
use millpond_ondisk::intent_log::{LogRecordBody, WriteContent};
use millpond_ondisk::{BlockPointer, ObjectId, Txg};
use std::collections::BTreeMap;

/// Reads the block that a write record points to. The number is a byte offset of the object inside that
/// block.
pub type ReadBlock<'a> = dyn FnMut(&BlockPointer, u64) -> Result<Arc<Block>, BlockError> + 'a;

/// The limit for record data kept in memory, in bytes. A log with more data gets no overlay.
pub const OVERLAY_BYTES_MAX: u64 = 1 << 30;

/// The object that holds a volume's data.
const VOLUME_DATA: ObjectId = ObjectId(1);

/// The ranges of an object that a replay would write, and their new content.
///
/// The overlay applies on top of the object's own content. Data inside records is kept in memory, up to
/// [`OVERLAY_BYTES_MAX`]; for blocks, only the pointers are kept. Page `docs/format/intent-log.md`.
#[derive(Debug, Clone, Default)]
pub struct ContentOverlay {
    /// Pieces by offset. They do not overlap.
    pieces: BTreeMap<u64, Piece>,
    kept_bytes: u64,
}

#[derive(Debug, Clone)]
struct Piece {
    end: u64,
    /// Where the piece begins in its source, in bytes.
    from: u64,
    source: Source,
}

#[derive(Debug, Clone)]
enum Source {
    Zeros,
    Bytes(Arc<[u8]>),
    Block(BlockPointer),
}

/// Why an overlay could not be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverlayError {
    /// The records hold more data than the memory limit.
    #[error("the intent log holds more than {OVERLAY_BYTES_MAX} bytes of data")]
    TooLarge,
    /// The log is encrypted and its key is not loaded.
    #[error("the dataset is locked: its encryption key is not loaded")]
    Locked,
    /// A pending record is of a type that is invalid in such a log. A replay stops there and drops the rest.
    #[error("record {sequence} ({type_name}) cannot be applied")]
    Unexpected {
        /// The record's sequence number.
        sequence: u64,
        /// The record's type.
        type_name: &'static str,
    },
}

impl ContentOverlay {
    /// Builds the overlay of the pending records of a volume's log. `synced` is the pool's last synced txg.
    ///
    /// If the log is not claimed and a record points to a block newer than `synced` that cannot be read, the
    /// log ends at that record: the write was never finished. Claiming stops at the same record.
    ///
    /// # Errors
    /// [`OverlayError`]. Block clones are not supported yet and count as unexpected.
    pub fn of_volume(log: &IntentLog, synced: Txg) -> Result<Self, OverlayError> {
        let mut overlay = Self::default();
        let is_claimed = log.header().claim_txg != Txg(0);
        for record in log.records(synced) {
            if record.has_ciphertext {
                return Err(OverlayError::Locked);
            }
            if record.fate != RecordFate::Pending {
                continue;
            }
            let unexpected = OverlayError::Unexpected {
                sequence: record.sequence,
                type_name: record.type_name(),
            };
            let decoded = record.decode().map_err(|_| unexpected.clone())?;
            match decoded.body {
                LogRecordBody::Write {
                    object: VOLUME_DATA,
                    offset,
                    content,
                    ..
                } => match content {
                    WriteContent::Immediate(data) => overlay.write(offset, data)?,
                    WriteContent::Indirect(pointer) => {
                        let is_new = !is_claimed && pointer.birth() > synced;
                        if is_new && log.read_indirect(&pointer, VOLUME_DATA, offset).is_err() {
                            return Ok(overlay);
                        }
                        overlay.write_block(offset, pointer);
                    }
                },
                LogRecordBody::Truncate {
                    object: VOLUME_DATA,
                    offset,
                    length,
                } => overlay.zero(offset, length),
                _ => return Err(unexpected),
            }
        }
        Ok(overlay)
    }

    /// Whether the overlay changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Overlays `data` at `offset`.
    ///
    /// # Errors
    /// [`OverlayError::TooLarge`].
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), OverlayError> {
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        self.kept_bytes = self.kept_bytes.saturating_add(length);
        if self.kept_bytes > OVERLAY_BYTES_MAX {
            return Err(OverlayError::TooLarge);
        }
        self.put(offset, length, Source::Bytes(data.into()));
        Ok(())
    }
    /// Overlays the whole block that holds the byte at `offset`.
    pub fn write_block(&mut self, offset: u64, pointer: BlockPointer) {
        let size = pointer.lsize_bytes().max(1);
        let within = offset.checked_rem(size).unwrap_or(0);
        self.put(offset.saturating_sub(within), size, Source::Block(pointer));
    }
    /// Overlays a range with zeros. A length of 0 extends to the end of the object.
    pub fn zero(&mut self, offset: u64, length: u64) {
        let length = if length == 0 { u64::MAX } else { length };
        self.put(offset, length, Source::Zeros);
    }

    fn put(&mut self, start: u64, length: u64, source: Source) {
        let end = start.saturating_add(length);
        if end <= start {
            return;
        }
        // Keep the parts of an older piece before and after the new one.
        if let Some((_, before)) = self.pieces.range_mut(..start).next_back()
            && before.end > start
        {
            let tail = before.clone();
            let (old_end, old_start) = (before.end, start);
            before.end = old_start;
            let begin = self
                .pieces
                .range(..start)
                .next_back()
                .map_or(0, |(at, _)| *at);
            if old_end > end {
                self.pieces.insert(end, tail.cut(end.saturating_sub(begin)));
            }
        }
        while let Some(at) = self.pieces.range(start..end).next().map(|(at, _)| *at) {
            let Some(old) = self.pieces.remove(&at) else {
                break;
            };
            if old.end > end {
                self.pieces.insert(end, old.cut(end.saturating_sub(at)));
            }
        }
        let from = 0;
        self.pieces.insert(start, Piece { end, from, source });
    }

    /// Applies the overlay to `buffer`, which holds the object's content from `offset`.
    ///
    /// `read` returns the content of a block, usually through [`IntentLog::read_indirect`].
    ///
    /// # Errors
    /// The errors of `read`.
    pub fn apply(
        &self,
        offset: u64,
        buffer: &mut [u8],
        read: &mut ReadBlock<'_>,
    ) -> Result<(), BlockError> {
        let end = offset.saturating_add(u64::try_from(buffer.len()).unwrap_or(u64::MAX));
        let first = self
            .pieces
            .range(..=offset)
            .next_back()
            .map_or(offset, |(at, _)| *at);
        for (at, piece) in self.pieces.range(first..end) {
            let (from, to) = ((*at).max(offset), piece.end.min(end));
            let index = |at: u64| usize::try_from(at.saturating_sub(offset)).unwrap_or(usize::MAX);
            if from >= to {
                continue;
            }
            let Some(target) = buffer.get_mut(index(from)..index(to)) else {
                continue;
            };
            let skip = piece.from.saturating_add(from.saturating_sub(*at));
            let skip = usize::try_from(skip).unwrap_or(usize::MAX);
            let block;
            let bytes: &[u8] = match &piece.source {
                Source::Zeros => &[],
                Source::Bytes(bytes) => bytes,
                Source::Block(pointer) => {
                    block = read(pointer, from)?;
                    &block.bytes
                }
            };
            let bytes = bytes.get(skip..).unwrap_or_default();
            for (index, to) in target.iter_mut().enumerate() {
                *to = bytes.get(index).copied().unwrap_or(0);
            }
        }
        Ok(())
    }
}

impl Piece {
    /// Returns the piece without its first `bytes`.
    fn cut(self, bytes: u64) -> Self {
        Self {
            from: self.from.saturating_add(bytes),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn apply(overlay: &ContentOverlay, offset: u64, buffer: &mut [u8]) {
        let mut read = |_: &BlockPointer, _: u64| unreachable!("no block was laid over");
        overlay.apply(offset, buffer, &mut read).unwrap();
    }

    #[test]
    fn a_write_inside_another_splits_it() {
        let mut overlay = ContentOverlay::default();
        overlay.write(10, &[1, 2, 3, 4, 5, 6]).unwrap();
        overlay.write(12, &[9, 9]).unwrap();
        let mut buffer = [7; 8];
        apply(&overlay, 9, &mut buffer);
        assert_eq!(buffer, [7, 1, 2, 9, 9, 5, 6, 7]);
    }

    proptest! {
        #[test]
        fn writes_and_holes_in_any_order_match_a_plain_buffer(
            steps in proptest::collection::vec((0u64..60, 1u64..20, any::<u8>(), any::<bool>()), 0..30),
            at in 0u64..60,
        ) {
            let mut plain = [0xaau8; 100];
            let mut overlay = ContentOverlay::default();
            for (offset, length, byte, is_hole) in steps {
                let range = offset as usize..(offset + length) as usize;
                if is_hole {
                    overlay.zero(offset, length);
                    plain[range].fill(0);
                } else {
                    let data: Vec<u8> = (0..length).map(|n| byte.wrapping_add(n as u8)).collect();
                    overlay.write(offset, &data).unwrap();
                    plain[range].copy_from_slice(&data);
                }
            }
            let mut buffer = vec![0xaau8; 30];
            apply(&overlay, at, &mut buffer);
            prop_assert_eq!(&buffer[..], &plain[at as usize..at as usize + 30]);
        }
    }
}
