//! The content of regular files: reads, writes, truncates, punches holes.

use super::create::NewMode;
use super::file_system::{LiveFileSystem, NODE_BYTES};
use super::node::{LiveNode, NodeInner};
use super::settings::Caller;
use super::state::{Lists, NodeState};
use super::transaction_source::Estimate;
use crate::FileKind;
use crate::error::FileError;
use millpond_object::{CacheHint, unhurried};
use millpond_ondisk::BlockId;
use millpond_sa::FileFlags;

/// The maximum size of a file in bytes.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// The most bytes written in one transaction, to limit its size.
const CHUNK_BYTES: u64 = 4 << 20;
/// About the most blocks freed in one transaction: a third of what one txg frees.
pub(super) const FREE_BLOCKS_MAX: u64 = 1 << 15;
/// The most bytes that freeing that many blocks dirties: the indirect blocks above them.
const FREE_DIRTY_BYTES: u64 = 8 << 20;
const SECTOR_BYTES: u64 = 512;
const SET_USER_AND_GROUP: u64 = 0o6000;

/// The position of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAt {
    /// At this byte offset.
    Offset(u64),
    /// At the end of the file, as of when the write holds its lock.
    End,
}

/// What [`LiveFileSystem::seek`] looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is not in a hole.
    Data,
    /// The next hole. The end of the file counts as a hole.
    Hole,
}

/// What [`LiveFileSystem::allocate`] does with a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Checks that there is space for the range. It reserves nothing, because copy-on-write file systems
    /// cannot. Extends the file unless `keeps_size`.
    Reserve {
        /// Whether the file keeps its size.
        keeps_size: bool,
    },
    /// Makes the range a hole.
    PunchHole,
    /// Makes the range zeros, as a hole. Extends the file unless `keeps_size`.
    ZeroRange {
        /// Whether the file keeps its size.
        keeps_size: bool,
    },
}

impl LiveFileSystem {
    /// Fills `buffer` from `offset_bytes`, up to the end of the file. Returns how many bytes were read.
    ///
    /// It does not update the access time; see [`LiveFileSystem::touch_atime`].
    ///
    /// # Errors
    /// [`FileError::IsADirectory`], [`FileError::AccessDenied`] for a quarantined file, or if a block cannot
    /// be read; the buffer's content is then undefined.
    pub fn read(
        &self,
        node: &LiveNode,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> Result<usize, FileError> {
        self.read_with_hint(node, offset_bytes, buffer, CacheHint::Retain)
    }

    /// Like [`LiveFileSystem::read`]. `hint` controls caching of the content.
    ///
    /// # Errors
    /// As [`LiveFileSystem::read`].
    pub fn read_with_hint(
        &self,
        node: &LiveNode,
        offset_bytes: u64,
        buffer: &mut [u8],
        hint: CacheHint,
    ) -> Result<usize, FileError> {
        check_regular(node)?;
        if node.state().flags.contains(FileFlags::AV_QUARANTINED) {
            return Err(FileError::AccessDenied);
        }
        let end = offset_bytes.saturating_add(buffer.len() as u64);
        let _range = node.ranges.read(offset_bytes..end);
        let left = node.state().size.saturating_sub(offset_bytes);
        let count = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        // While this read waits for a device, it blocks only requests for the same bytes of this file.
        unhurried(|| (node.object).read_with_hint(offset_bytes, &mut buffer[..count], hint))?;
        Ok(count)
    }

    /// Writes `bytes`. Returns the offset where they start.
    ///
    /// A long write uses several transactions: after an error or a crash, the first part of it may be
    /// written.
    ///
    /// # Errors
    /// [`FileError::IsADirectory`], [`FileError::NotPermitted`] by the file's flags, [`FileError::TooLarge`],
    /// quotas and space; or if a block that is only partly overwritten cannot be read.
    pub fn write(
        &self,
        caller: &Caller,
        node: &LiveNode,
        at: WriteAt,
        bytes: &[u8],
    ) -> Result<u64, FileError> {
        check_regular(node)?;
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
        if state.flags.contains(FileFlags::IMMUTABLE)
            || (state.flags.contains(FileFlags::APPENDONLY)
                && at != WriteAt::End
                && start < state.size)
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
            let to = (from - from % CHUNK_BYTES + CHUNK_BYTES).min(end);
            let (now, later) = rest.split_at((to - from) as usize);
            self.write_chunk(caller, node, from, now)?;
            (from, rest) = (to, later);
        }
        drop(range);
        self.settle()?;
        Ok(start)
    }

    /// Like [`LiveFileSystem::lock_for_write`], for a write at the current end of the file.
    fn lock_for_append<'n>(
        &self,
        node: &'n NodeInner,
        length: u64,
    ) -> (u64, super::range_lock::RangeGuard<'n>) {
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
    fn lock_for_write<'n>(
        &self,
        node: &'n NodeInner,
        start: u64,
        end: u64,
    ) -> super::range_lock::RangeGuard<'n> {
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
    pub(super) fn write_chunk(
        &self,
        caller: &Caller,
        node: &NodeInner,
        start: u64,
        bytes: &[u8],
    ) -> Result<(), FileError> {
        let end = start + bytes.len() as u64;
        let now = self.now();
        let (tx, old) = {
            let _change = node.lock_changes();
            let mut state = node.state();
            self.check_write_quotas(&state)?;
            let grown = self.grown_block(node, &state, end);
            let estimate = bytes.len() as u64 + NODE_BYTES + 3 * u64::from(self.record_bytes());
            let tx = self.begin(estimate)?;
            let old = state;
            state.size = state.size.max(end);
            if !caller.is_privileged && NewMode::clears_on_write(state.mode) {
                state.mode &= !SET_USER_AND_GROUP;
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
        let written = node.object.write(&tx, start, bytes);
        if let Err(error) = written {
            let _change = node.lock_changes();
            let mut state = node.state();
            if state.size == end && old.size < end {
                let unfinished = tx.unfinished();
                state.size = old.size;
                self.store(&tx, node, state, &Lists::default())?;
                unfinished.done();
            }
            // Some of the bytes may have been written.
            self.record_nothing(&tx, Some(node.id));
            return Err(error.into());
        }
        self.record_write(&tx, node, start, bytes);
        Ok(())
    }

    pub(crate) fn record_bytes(&self) -> u32 {
        self.settings().record_bytes
    }

    /// The new block size of a file that is to reach `end`; `None` if it does not change.
    fn grown_block(&self, node: &NodeInner, state: &NodeState, end: u64) -> Option<u32> {
        let block = node.object.block_bytes();
        let has_one = node.object.block_id_max().0 == 0 && state.size <= block;
        let record = u64::from(self.record_bytes());
        let grown = grown_block_bytes(block, record, state.size.max(end)).filter(|_| has_one);
        grown.and_then(|bytes| u32::try_from(bytes).ok())
    }

    /// Changes a file's length. New bytes are zeros.
    pub(crate) fn set_size(
        &self,
        caller: &Caller,
        node: &LiveNode,
        size: u64,
    ) -> Result<(), FileError> {
        match node.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FileError::IsADirectory),
            _ => {
                return Err(FileError::invalid(
                    "only ordinary files have a length to set",
                ));
            }
        }
        if size > FILE_BYTES_MAX {
            return Err(FileError::TooLarge);
        }
        let _range = node.ranges.write(0..u64::MAX);
        let flags = node.state().flags;
        let forbidding = FileFlags::IMMUTABLE | FileFlags::APPENDONLY | FileFlags::READONLY;
        if flags.intersects(forbidding) {
            return Err(FileError::NotPermitted);
        }
        self.check_writable()?;
        let mut freed_blocks = 0;
        if size < node.state().size {
            freed_blocks = self.free_most(node, size, u64::MAX)?;
        }
        let now = self.now();
        let _change = node.lock_changes();
        let mut state = node.state();
        let tx = if size < state.size {
            self.begin_freeing(NODE_BYTES + FREE_DIRTY_BYTES, freed_blocks)?
        } else {
            self.begin(NODE_BYTES + 2 * u64::from(self.record_bytes()))?
        };
        let old = state;
        if size == 0 {
            state.flags -= FileFlags::SPARSE;
        }
        if !caller.is_privileged && NewMode::clears_on_write(state.mode) {
            state.mode &= !SET_USER_AND_GROUP;
        }
        state.size = size;
        state.content_changed(now);
        self.store(&tx, node, state, &Lists::default())?;
        let resized = match self.grown_block(node, &old, size) {
            _ if size < old.size => node.object.free_range(&tx, size, u64::MAX),
            Some(block) => node.object.set_block_bytes(&tx, block, None),
            None => Ok(()),
        };
        resized.map_err(|error| self.undo_store(&tx, node, old, error.into()))?;
        self.record_truncate(&tx, node, size, 0);
        Ok(())
    }

    /// Frees whole blocks of a range, one transaction per chunk, until the rest fits one transaction.
    ///
    /// Returns the number of remaining blocks. A crash in between leaves a hole inside the range that was
    /// being freed anyway.
    fn free_most(&self, node: &NodeInner, start: u64, end: u64) -> Result<u64, FileError> {
        let object = &node.object;
        let block = object.block_bytes();
        let mut at = start.div_ceil(block);
        let last = end / block;
        loop {
            let chunk = object.next_free_chunk(BlockId(at)..BlockId(last), FREE_BLOCKS_MAX);
            let Some(BlockId(to)) = chunk.end else {
                return Ok(chunk.blocks);
            };
            let _change = node.lock_changes();
            let tx = self.begin_freeing(FREE_DIRTY_BYTES, chunk.blocks)?;
            object.free_range(&tx, at * block, (to - at) * block)?;
            at = to;
        }
    }

    /// Frees nearly all content of an object that no node uses, chunk by chunk, while `continues` returns
    /// true.
    ///
    /// Returns the number of remaining blocks, which fit the transaction that frees the object; `None` if it
    /// was stopped.
    pub(super) fn free_content(
        &self,
        object: &millpond_object::Object,
        continues: &dyn Fn() -> bool,
    ) -> Result<Option<u64>, FileError> {
        let block = object.block_bytes();
        let mut at = 0;
        loop {
            let chunk = object.next_free_chunk(BlockId(at)..BlockId(u64::MAX), FREE_BLOCKS_MAX);
            let Some(BlockId(to)) = chunk.end else {
                return Ok(Some(chunk.blocks));
            };
            if !continues() {
                return Ok(None);
            }
            let tx = self.begin_freeing(FREE_DIRTY_BYTES, chunk.blocks)?;
            object.free_range(&tx, at * block, (to - at) * block)?;
            at = to;
        }
    }

    /// Implements `fallocate`.
    ///
    /// # Errors
    /// [`FileError::Invalid`] for an empty range, [`FileError::TooLarge`], [`FileError::NotPermitted`] by the
    /// file's flags, space and quotas.
    pub fn allocate(
        &self,
        node: &LiveNode,
        what: Allocate,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<(), FileError> {
        if node.kind() != FileKind::Regular {
            return Err(FileError::NotSupported);
        }
        if length_bytes == 0 {
            return Err(FileError::invalid("an empty range"));
        }
        let end = offset_bytes.checked_add(length_bytes);
        let end = end
            .filter(|end| *end <= FILE_BYTES_MAX)
            .ok_or(FileError::TooLarge)?;
        self.check_writable()?;
        self.try_allocate(node, what, offset_bytes, length_bytes, end)?;
        self.settle()
    }

    fn try_allocate(
        &self,
        node: &LiveNode,
        what: Allocate,
        offset_bytes: u64,
        length_bytes: u64,
        end: u64,
    ) -> Result<(), FileError> {
        let _range = node.ranges.write(0..u64::MAX);
        let flags = node.state().flags;
        let is_punching = !matches!(what, Allocate::Reserve { .. });
        if flags.contains(FileFlags::IMMUTABLE)
            || (is_punching && flags.contains(FileFlags::APPENDONLY))
        {
            return Err(FileError::NotPermitted);
        }
        let new_size = match what {
            Allocate::Reserve { keeps_size: true }
            | Allocate::PunchHole
            | Allocate::ZeroRange { keeps_size: true } => None,
            _ => Some(end),
        };
        if !is_punching {
            let wanted = u128::from(length_bytes) * 110 / 100;
            if wanted > u128::from(self.port().space().available_bytes) {
                return Err(super::transaction_source::TransactionError::NoSpace.into());
            }
        }
        let mut freed_blocks = 0;
        if is_punching {
            freed_blocks = self.free_most(node, offset_bytes, end)?;
        }
        let now = self.now();
        let _change = node.lock_changes();
        let mut state = node.state();
        let extends = new_size.is_some_and(|size| size > state.size);
        if !is_punching && !extends {
            return Ok(());
        }
        self.check_writable()?;
        let tx = self.port().begin(Estimate {
            bytes: NODE_BYTES + FREE_DIRTY_BYTES,
            is_freeing: self.replay.is_on(),
            freed_blocks,
            ..Estimate::default()
        })?;
        let old = state;
        if let Some(size) = new_size.filter(|_| extends) {
            state.size = size;
        }
        state.content_changed(now);
        self.store(&tx, node, state, &Lists::default())?;
        let undo =
            |error: millpond_object::ObjectError| self.undo_store(&tx, node, old, error.into());
        if is_punching && offset_bytes < old.size {
            let length = length_bytes.min(old.size - offset_bytes);
            let freed = node.object.free_range(&tx, offset_bytes, length);
            freed.map_err(undo)?;
            self.record_truncate(&tx, node, offset_bytes, length);
        }
        if extends {
            if let Some(block) = self.grown_block(node, &old, state.size) {
                let grown = node.object.set_block_bytes(&tx, block, None);
                // Freeing the range again is harmless.
                grown.map_err(undo)?;
            }
            self.record_truncate(&tx, node, state.size, 0);
        }
        Ok(())
    }

    /// Finds the next data or the next hole at or after `offset_bytes`, in whole blocks.
    ///
    /// # Errors
    /// [`FileError::NoData`] at or after the end of the file, and if no data follows.
    pub fn seek(&self, node: &LiveNode, what: Seek, offset_bytes: u64) -> Result<u64, FileError> {
        if node.kind() != FileKind::Regular {
            return Err(FileError::NotSupported);
        }
        let _range = node.ranges.read(0..u64::MAX);
        let size = node.state().size;
        if offset_bytes >= size {
            return Err(FileError::NoData);
        }
        let block = node.object.block_bytes();
        if !block.is_power_of_two() {
            // A single block whose size is no power of two counts as data, even if it is a hole.
            return Ok(match what {
                Seek::Data => offset_bytes,
                Seek::Hole => size,
            });
        }
        let from = BlockId(offset_bytes / block);
        let found = node.object.next_data(from, what == Seek::Hole)?;
        let found = found.map(|id| id.0.saturating_mul(block).max(offset_bytes));
        match what {
            Seek::Data => found.filter(|at| *at < size).ok_or(FileError::NoData),
            Seek::Hole => Ok(found.map_or(size, |at| at.min(size))),
        }
    }

    /// Copies a range from one file to another, or within one file if the ranges do not overlap.
    ///
    /// Returns how many bytes were copied, which is less if the source ends before. Holes are not preserved.
    ///
    /// # Errors
    /// [`FileError::Invalid`] for overlapping ranges of one file; otherwise as for reads and writes.
    pub fn copy_range(
        &self,
        caller: &Caller,
        from: (&LiveNode, u64),
        to: (&LiveNode, u64),
        length_bytes: u64,
    ) -> Result<u64, FileError> {
        let ((source, from), (target, to)) = (from, to);
        check_regular(source)?;
        check_regular(target)?;
        // The current end of the source: copying within one file may move it.
        let length_bytes = length_bytes.min(source.size_bytes().saturating_sub(from));
        let overlaps =
            from < to.saturating_add(length_bytes) && to < from.saturating_add(length_bytes);
        if source.id() == target.id() && overlaps {
            return Err(FileError::invalid("the ranges overlap"));
        }
        let piece = u64::from(self.record_bytes())
            .max(1 << 20)
            .min(length_bytes);
        let mut buffer = vec![0u8; piece as usize];
        let mut done = 0;
        while done < length_bytes {
            let wanted = piece.min(length_bytes - done) as usize;
            let offset = from.checked_add(done).ok_or(FileError::TooLarge)?;
            let count = self.read(source, offset, &mut buffer[..wanted])?;
            if count == 0 {
                break;
            }
            let offset = to.checked_add(done).ok_or(FileError::TooLarge)?;
            let written = self.write(caller, target, WriteAt::Offset(offset), &buffer[..count]);
            match written {
                Err(_) if done > 0 => break,
                written => written?,
            };
            done += count as u64;
        }
        Ok(done)
    }
}

fn check_regular(node: &LiveNode) -> Result<(), FileError> {
    match node.kind() {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(FileError::IsADirectory),
        _ => Err(FileError::invalid("not an ordinary file")),
    }
}

/// The new size of a file's only block when the file grows to `end` bytes; `None` if it does not change.
///
/// All sizes are in bytes. Page `docs/format/file-system.md`.
fn grown_block_bytes(block: u64, record: u64, end: u64) -> Option<u64> {
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
    fn a_small_files_block_follows_its_length_until_it_is_a_whole_record() {
        let record = 128 << 10;
        assert_eq!(grown_block_bytes(512, record, 1), None);
        assert_eq!(grown_block_bytes(512, record, 700), Some(1024));
        assert_eq!(grown_block_bytes(1024, record, 100_000), Some(100_352));
        assert_eq!(grown_block_bytes(100_352, record, 131_073), Some(131_072));
        assert_eq!(grown_block_bytes(131_072, record, 1 << 30), None);
    }

    #[test]
    fn a_block_above_a_lowered_record_size_grows_to_the_next_power_of_two_only() {
        assert_eq!(grown_block_bytes(100_352, 8192, 120_000), Some(120_320));
        assert_eq!(grown_block_bytes(100_352, 8192, 1 << 20), Some(131_072));
        assert_eq!(grown_block_bytes(131_072, 8192, 1 << 20), None);
        assert_eq!(grown_block_bytes(4096, 8192, 1 << 20), Some(8192));
    }
}
