//! Writes content.

use super::check_regular;
use crate::create::NewMode;
use crate::error::FileError;
use crate::open_node::NodeInner;
use crate::range_lock::RangeGuard;
use crate::settings::Caller;
use crate::state::{Lists, NodeState};
use crate::writing::NODE_BYTES;
use crate::{FileSystem, Node};
use millpond_object::unhurried;
use millpond_sa::FileFlags;

/// The maximum size of a file in bytes.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// The most bytes written in one transaction, to limit its size.
pub const CHUNK_BYTES: u64 = 4 << 20;
const SECTOR_BYTES: u64 = 512;

/// The position of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAt {
    /// At this byte offset.
    Offset(u64),
    /// At the end of the file, as of when the write holds its lock.
    End,
}

impl FileSystem {
    /// Writes `bytes`. Returns the offset where they start.
    ///
    /// A write of more than [`CHUNK_BYTES`] uses several transactions: after an error or a crash, the first part of it
    /// may be written.
    ///
    /// # Errors
    /// [`FileError::IsADirectory`], [`FileError::NotPermitted`] by the file's flags, [`FileError::TooLarge`],
    /// quotas and space; or if a block that is only partly overwritten cannot be read.
    pub fn write(
        &self,
        caller: &Caller,
        node: &Node,
        at: WriteAt,
        bytes: &[u8],
    ) -> Result<u64, FileError> {
        let node = node.for_change()?;
        check_regular(node.kind())?;
        self.check_writable()?;
        let length = bytes.len() as u64;
        let (start, range) = match at {
            WriteAt::End => self.lock_for_append(node, length),
            WriteAt::Offset(offset) => {
                let end = offset.saturating_add(length);
                (offset, self.lock_for_write(node, offset, end))
            }
        };
        let state = node.state();
        let is_inside = at != WriteAt::End && start < state.size;
        if self.forbids(&state, FileFlags::IMMUTABLE)
            || (is_inside && self.forbids(&state, FileFlags::APPENDONLY))
        {
            return Err(FileError::NotPermitted);
        }
        let end = start
            .checked_add(length)
            .filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(FileError::TooLarge)?;
        let mut from = start;
        let mut rest = bytes;
        while from < end {
            // What fits into one transaction is not split: who is told that it failed may append it again.
            let to = match end - from {
                0..=CHUNK_BYTES => end,
                _ => from - from % CHUNK_BYTES + CHUNK_BYTES,
            };
            let (now, later) = rest.split_at((to - from) as usize);
            self.write_chunk(caller, node, from, now)?;
            (from, rest) = (to, later);
        }
        drop(range);
        self.writing()?.counters().written(length);
        self.settle()?;
        Ok(start)
    }

    /// Like [`FileSystem::lock_for_write`], for a write at the current end of the file.
    fn lock_for_append<'n>(&self, node: &'n NodeInner, length: u64) -> (u64, RangeGuard<'n>) {
        loop {
            let start = node.state().size;
            let guard = self.lock_for_write(node, start, start.saturating_add(length));
            if node.state().size == start {
                return (start, guard);
            }
        }
    }

    /// Locks the range that a write affects.
    ///
    /// The range consists of whole blocks, so that changes of one block happen in txg order. If the file
    /// grows, it extends from the current end to infinity. If the file's only block may grow, it is the whole
    /// file.
    pub(super) fn lock_for_write<'n>(
        &self,
        node: &'n NodeInner,
        start: u64,
        end: u64,
    ) -> RangeGuard<'n> {
        loop {
            let (block, size) = (node.object.block_bytes(), node.state().size);
            let range = if self.is_single_block(node) {
                0..u64::MAX
            } else if end > size {
                let first = start.min(size);
                first - first % block..u64::MAX
            } else {
                start - start % block..end.div_ceil(block).saturating_mul(block)
            };
            let is_all = range == (0..u64::MAX);
            let is_to_end = range.end == u64::MAX;
            let guard = node.ranges.write(range.clone());
            // Size and block size do not change while the guard is held, but may have changed before.
            let size = node.state().size;
            let holds = if end > size {
                let first = start.min(size);
                is_to_end && range.start <= first - first % block
            } else {
                true
            };
            let is_same_shape = !self.is_single_block(node) && node.object.block_bytes() == block;
            if is_all || (holds && is_same_shape) {
                return guard;
            }
        }
    }

    fn is_single_block(&self, node: &NodeInner) -> bool {
        node.object.block_id_max().0 == 0 && node.state().size <= node.object.block_bytes()
    }

    /// Writes one transaction's part of a write. The caller holds the range lock.
    pub(crate) fn write_chunk(
        &self,
        caller: &Caller,
        node: &NodeInner,
        start: u64,
        bytes: &[u8],
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        let length = bytes.len() as u64;
        let end = start + length;
        // While this read waits for a device, it blocks only requests for the same blocks of this file.
        let edges = unhurried(|| node.object.read_edges(start, length))?;
        let now = writing.now();
        let (tx, old) = {
            let _change = node.lock_changes();
            let mut state = node.state();
            self.check_write_quotas(&state)?;
            let grown = self.grown_block(node, &state, end);
            let estimate = length + NODE_BYTES + 3 * u64::from(self.record_bytes());
            let tx = self.begin_writing(estimate, length)?;
            let old = state;
            state.size = state.size.max(end);
            if !caller.is_privileged {
                state.mode = NewMode::after_change(state.mode);
            }
            state.content_changed(now);
            self.store(&tx, node, state, &Lists::default())?;
            if let Some(block) = grown {
                let grown = node.object.set_block_bytes(&tx, block, None);
                grown.map_err(|error| self.undo_store(&tx, node, old, error.into()))?;
            }
            if state.mode != old.mode {
                self.record_mode(&tx, node, &state);
            }
            (tx, old)
        };
        // The transaction begins under the lock, but the bytes are copied without it: writers of other ranges
        // can continue.
        if let Err(error) = node.object.write_over(&tx, start, bytes, &edges) {
            // Some of the bytes may have been written.
            self.record_nothing(&tx, Some(node.id));
            drop(tx);
            // Without space for even this, the file ends with zeros instead.
            let _ = self.shrink_after_failure(node, end, old.size);
            return Err(error.into());
        }
        self.record_write(&tx, node, start, bytes);
        Ok(())
    }

    /// Takes back that a write which failed made the file longer: from `old` to `end` bytes. The caller holds the
    /// range lock, and no transaction: this one begins after the lock, as all do.
    pub(super) fn shrink_after_failure(
        &self,
        node: &NodeInner,
        end: u64,
        old: u64,
    ) -> Result<(), FileError> {
        let _change = node.lock_changes();
        let mut state = node.state();
        if state.size != end || old >= end {
            return Ok(());
        }
        let tx = self.begin_freeing(NODE_BYTES, 0)?;
        let unfinished = tx.unfinished();
        state.size = old;
        self.store(&tx, node, state, &Lists::default())?;
        unfinished.done();
        self.record_nothing(&tx, Some(node.id));
        Ok(())
    }

    pub(crate) fn record_bytes(&self) -> u32 {
        self.settings().record_bytes
    }

    /// The new block size of a file that is to reach `end`; `None` if it does not change.
    pub(crate) fn grown_block(&self, node: &NodeInner, state: &NodeState, end: u64) -> Option<u32> {
        let block = node.object.block_bytes();
        let has_one = node.object.block_id_max().0 == 0 && state.size <= block;
        let record = u64::from(self.record_bytes());
        let grown = grown_block_bytes(block, record, state.size.max(end)).filter(|_| has_one);
        grown.and_then(|bytes| u32::try_from(bytes).ok())
    }
}

/// The new size of a file's only block when the file grows to `end` bytes; `None` if it does not change.
///
/// All sizes are in bytes. Page `docs/format/file-system.md`.
pub(crate) fn grown_block_bytes(block: u64, record: u64, end: u64) -> Option<u64> {
    if end <= block || (block.is_power_of_two() && block >= record) {
        return None;
    }
    let limit = if block > record {
        block.next_power_of_two()
    } else {
        record
    };
    let wanted = end.div_ceil(SECTOR_BYTES).saturating_mul(SECTOR_BYTES);
    Some(block.max(wanted.min(limit))).filter(|bytes| *bytes != block)
}

#[cfg(test)]
mod tests {
    use super::grown_block_bytes;

    #[test]
    fn the_block_of_a_small_file_grows_to_a_record() {
        let record = 128 << 10;
        assert_eq!(grown_block_bytes(512, record, 1), None);
        assert_eq!(grown_block_bytes(512, record, 700), Some(1024));
        assert_eq!(grown_block_bytes(1024, record, 100_000), Some(100_352));
        assert_eq!(grown_block_bytes(100_352, record, 131_073), Some(131_072));
        assert_eq!(grown_block_bytes(131_072, record, 1 << 30), None);
    }

    #[test]
    fn a_block_above_the_record_size_grows_to_a_power_of_two() {
        assert_eq!(grown_block_bytes(100_352, 8192, 120_000), Some(120_320));
        assert_eq!(grown_block_bytes(100_352, 8192, 1 << 20), Some(131_072));
        assert_eq!(grown_block_bytes(131_072, 8192, 1 << 20), None);
        assert_eq!(grown_block_bytes(4096, 8192, 1 << 20), Some(8192));
    }
}
