//! Copies between files.

use super::clone::ClonedRange;
use super::{CHUNK_BYTES, WriteAt, check_regular};
use crate::error::FileError;
use crate::open_node::OpenNode;
use crate::settings::Caller;
use crate::{FileSystem, Node};
use millpond_env::sync::Arc;

impl FileSystem {
    /// Copies a range from one file to another, or within one file if the ranges do not overlap.
    ///
    /// Returns how many bytes were copied, which is less if the source ends before. Where both ranges have whole blocks
    /// in the same places, the target refers to the blocks of the source, if these are on stable storage and in the
    /// same pool. Holes of the rest are not preserved.
    ///
    /// # Errors
    /// [`FileError::Invalid`] for overlapping ranges of one file; otherwise as for reads and writes.
    pub fn copy_range(
        &self,
        caller: &Caller,
        from: (&Node, u64),
        to: (&Node, u64),
        length_bytes: u64,
    ) -> Result<u64, FileError> {
        self.copy_range_within(caller, from, to, length_bytes, u64::MAX)
    }

    /// As [`FileSystem::copy_range`]; ends once `copied_max` bytes were copied. What is shared does not count.
    ///
    /// # Errors
    /// As [`FileSystem::copy_range`].
    pub fn copy_range_within(
        &self,
        caller: &Caller,
        from: (&Node, u64),
        to: (&Node, u64),
        length_bytes: u64,
        copied_max: u64,
    ) -> Result<u64, FileError> {
        let ((source, from), (target, to)) = (from, to);
        check_regular(source.kind())?;
        check_regular(target.kind())?;
        let changed = target.for_change()?;
        // A file of a snapshot is another file, even with the same object id.
        let is_same =
            (source.open_node()).is_some_and(|from| Arc::ptr_eq(&from.inner, &changed.inner));
        // The current end of the source: copying within one file may move it.
        let length_bytes = length_bytes.min(source.size_bytes().saturating_sub(from));
        let overlaps =
            from < to.saturating_add(length_bytes) && to < from.saturating_add(length_bytes);
        if is_same && overlaps {
            return Err(FileError::invalid("the ranges overlap"));
        }
        // A piece is written in one transaction, so that all that was written is counted.
        let piece = u64::from(self.record_bytes())
            .clamp(1 << 20, CHUNK_BYTES)
            .min(length_bytes);
        let mut buffer = vec![0u8; piece as usize];
        let (mut done, mut shared) = (0, 0);
        while done < length_bytes && done - shared < copied_max {
            let from = from.checked_add(done).ok_or(FileError::TooLarge)?;
            let to = to.checked_add(done).ok_or(FileError::TooLarge)?;
            let length = length_bytes - done;
            let range = ClonedRange { from, to, length };
            let part = self.next_part(source, changed, range);
            let copied = match part {
                Part::Clone(range) => match self.clone_some(caller, source, changed, range) {
                    // The block there has to be copied.
                    Ok(0) => {
                        let block = source.block_bytes().min(range.length).min(piece);
                        self.copy_some(
                            caller,
                            source,
                            target,
                            (from, to),
                            &mut buffer[..block as usize],
                        )
                    }
                    cloned => {
                        shared += cloned.as_ref().copied().unwrap_or(0);
                        cloned
                    }
                },
                Part::Copy(length) => {
                    let length = length.min(piece) as usize;
                    self.copy_some(caller, source, target, (from, to), &mut buffer[..length])
                }
            };
            match copied {
                Ok(0) => break,
                Err(_) if done > 0 => break,
                copied => done += copied?,
            }
        }
        self.settle()?;
        Ok(done)
    }

    /// The next part of a copy: whole blocks, or what lies before or behind them.
    fn next_part(&self, source: &Node, target: &OpenNode, range: ClonedRange) -> Part {
        let ClonedRange { from, to, length } = range;
        let block = source.block_bytes().max(1);
        if from % block != to % block {
            return Part::Copy(length);
        }
        if !from.is_multiple_of(block) {
            return Part::Copy(length.min(block - from % block));
        }
        // The last block of the source can be the last of the target.
        let ends_both = from.saturating_add(length) >= source.size_bytes()
            && to.saturating_add(length) >= target.size_bytes();
        let whole = match ends_both {
            true => length,
            false => length - length % block,
        };
        match whole {
            0 => Part::Copy(length),
            length => Part::Clone(ClonedRange { length, ..range }),
        }
    }

    /// Copies content through the buffer, as much as fits into it.
    fn copy_some(
        &self,
        caller: &Caller,
        source: &Node,
        target: &Node,
        (from, to): (u64, u64),
        buffer: &mut [u8],
    ) -> Result<u64, FileError> {
        let count = source.read(from, buffer)?;
        let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else {
            return Ok(0);
        };
        self.write(caller, target, WriteAt::Offset(to), bytes)?;
        Ok(count as u64)
    }
}

/// A part of a copy.
enum Part {
    /// This many bytes, by their content.
    Copy(u64),
    Clone(ClonedRange),
}
