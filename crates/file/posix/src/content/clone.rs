//! Copies of whole blocks by reference.
//!
//! Page `docs/format/block-cloning.md`, "Files".

use crate::create::NewMode;
use crate::error::FileError;
use crate::open_node::{NodeInner, OpenNode};
use crate::range_lock::RangeGuard;
use crate::settings::Caller;
use crate::state::Lists;
use crate::transaction_source::CloneOrigin;
use crate::writing::NODE_BYTES;
use crate::{FileSystem, Node};
use millpond_env::sync::Arc;
use millpond_object::{ReadableObject, is_clonable};
use millpond_ondisk::{BlockId, BlockPointer, Guid, Txg};
use millpond_sa::FileFlags;

/// The most blocks that one transaction clones. Their pointers fit into one record of an intent log.
pub(crate) const CLONED_AT_ONCE: u64 = 512;
/// The most bytes that one transaction clones, unless a block is larger. Quotas are checked for each transaction.
const CLONED_BYTES_AT_ONCE: u64 = 64 << 20;
/// What a cloned block takes in memory, in bytes, with its share of indirect blocks.
const POINTER_BYTES: u64 = 1024;

/// A part of a copy that may be cloned: whole blocks of the source, of which the last may be the file's last.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClonedRange {
    /// Offset in the source, a multiple of the block size.
    pub(super) from: u64,
    /// Offset in the target, a multiple of the block size.
    pub(super) to: u64,
    /// Length in bytes.
    pub(super) length: u64,
}

impl FileSystem {
    /// Clones blocks from the beginning of a range, as many as are possible without a copy of content. Returns the
    /// bytes that are cloned then: 0 if the first block has to be copied.
    ///
    /// Copied must be blocks with changes that are not on stable storage, and blocks of datasets with another master
    /// key or none.
    ///
    /// # Errors
    /// As [`FileSystem::write`].
    pub(super) fn clone_some(
        &self,
        caller: &Caller,
        source: &Node,
        target: &OpenNode,
        range: ClonedRange,
    ) -> Result<u64, FileError> {
        let writing = self.writing()?;
        let Some(until) = writing.source().clonable_until() else {
            return Ok(0);
        };
        let block = source.block_bytes();
        let most = (CLONED_BYTES_AT_ONCE / block).clamp(1, CLONED_AT_ONCE);
        let blocks = range.length.div_ceil(block).min(most);
        let length = range.length.min(blocks.saturating_mul(block));
        let range = ClonedRange { length, ..range };
        let _locks = self.lock_to_clone(source, target, range);
        if !self.may_clone(source, target, block, range) {
            return Ok(0);
        }
        let pointers = clonable_pointers(source, block, range, until)?;
        let count = pointers.len() as u64;
        let length = length.min(count.saturating_mul(block));
        if length == 0 {
            return Ok(0);
        }
        self.check_writable()?;
        let range = ClonedRange { length, ..range };
        self.put_clones(caller, source, target, block, range, &pointers)
    }

    /// Whether the shapes of the files permit it. The caller holds the locks.
    fn may_clone(&self, source: &Node, target: &OpenNode, block: u64, range: ClonedRange) -> bool {
        if master_key(source.file_system()) != master_key(self) {
            return false;
        }
        let ClonedRange { from, to, length } = range;
        let (source_size, target_size) = (source.size_bytes(), target.inner.state().size);
        let forbidding = FileFlags::IMMUTABLE | FileFlags::APPENDONLY;
        if self.forbids(&target.inner.state(), forbidding) {
            return false;
        }
        let (Some(from_end), Some(to_end)) = (from.checked_add(length), to.checked_add(length))
        else {
            return false;
        };
        if from_end > source_size || to_end > super::FILE_BYTES_MAX || source.block_bytes() != block
        {
            return false;
        }
        // The end of the last block belongs to neither file.
        if !length.is_multiple_of(block) && (from_end < source_size || to_end < target_size) {
            return false;
        }
        let is_single = source_size <= block;
        let record = u64::from(self.record_bytes());
        if is_single && block < record || !block.is_power_of_two() {
            // Such a block must be the only one.
            if to != 0 || target_size.max(to_end) > block {
                return false;
            }
        }
        let inner = &target.inner;
        let own = inner.object.block_bytes();
        let can_grow =
            own < block && inner.object.block_id_max() == BlockId(0) && target_size <= own;
        own == block || can_grow
    }

    /// Locks both ranges, of two files in the order of their numbers.
    fn lock_to_clone<'n>(
        &self,
        source: &'n Node,
        target: &'n OpenNode,
        range: ClonedRange,
    ) -> Vec<RangeGuard<'n>> {
        let ClonedRange { from, to, length } = range;
        let to_end = to.saturating_add(length);
        let Some(open) = source.open_node() else {
            return vec![self.lock_for_write(&target.inner, to, to_end)];
        };
        if Arc::ptr_eq(&open.inner, &target.inner) {
            return vec![target.inner.ranges.write(0..u64::MAX)];
        }
        let block = source.block_bytes();
        let from_end = from.saturating_add(length).next_multiple_of(block);
        let place = |node: &NodeInner| Arc::as_ptr(&node.object) as usize;
        let read = || open.inner.ranges.read(from..from_end);
        let write = || self.lock_for_write(&target.inner, to, to_end);
        match place(&open.inner) < place(&target.inner) {
            true => {
                let first = read();
                vec![first, write()]
            }
            false => {
                let first = write();
                vec![first, read()]
            }
        }
    }

    /// Clones the blocks in one transaction. The caller holds the locks since before it read the pointers.
    fn put_clones(
        &self,
        caller: &Caller,
        source: &Node,
        target: &OpenNode,
        block: u64,
        range: ClonedRange,
        pointers: &[BlockPointer],
    ) -> Result<u64, FileError> {
        let writing = self.writing()?;
        let node = &target.inner;
        let ClonedRange { to, length, .. } = range;
        let end = to.saturating_add(length);
        let now = writing.now();
        let cloned_bytes = pointers.iter().map(BlockPointer::asize_bytes).sum();
        let _change = node.lock_changes();
        let mut state = node.state();
        self.check_write_quotas(&state)?;
        let blocks = pointers.len() as u64;
        let bytes = blocks
            .saturating_mul(POINTER_BYTES)
            .saturating_add(NODE_BYTES);
        let tx = self.begin_cloning(bytes, blocks, cloned_bytes)?;
        if !self.may_borrow(&tx, source) {
            return Ok(0);
        }
        let old = state;
        state.size = state.size.max(end);
        if !caller.is_privileged {
            state.mode = NewMode::after_change(state.mode);
        }
        state.content_changed(now);
        self.store(&tx, node, state, &Lists::default())?;
        let fails = |error: FileError| self.undo_store(&tx, node, old, error);
        if node.object.block_bytes() != block {
            let bytes = u32::try_from(block).unwrap_or(u32::MAX);
            let grown = node.object.set_block_bytes(&tx, bytes, None);
            grown.map_err(|error| fails(error.into()))?;
        }
        if state.mode != old.mode {
            self.record_mode(&tx, node, &state);
        }
        if let Err(error) = link_blocks(&tx, node, block, to, pointers) {
            // Some of the blocks may have been cloned.
            self.record_nothing(&tx, Some(node.id));
            drop(tx);
            drop(_change);
            let _ = self.shrink_after_failure(node, end, old.size);
            return Err(error);
        }
        self.record_clone(&tx, node, (to, length, block), pointers);
        Ok(length)
    }

    fn may_borrow(&self, tx: &millpond_txg::Transaction, source: &Node) -> bool {
        let Ok(writing) = self.writing() else {
            return false;
        };
        let files = source.file_system();
        let origin = match (files.object_set(), files.committed()) {
            (Some(set), _) => CloneOrigin::Open(set),
            (None, Some(set)) => CloneOrigin::Committed(set),
            (None, None) => return false,
        };
        writing.source().borrow_from(tx, origin)
    }
}

/// The identity of the key that a file system's blocks are encrypted with.
fn master_key(files: &FileSystem) -> Option<Guid> {
    match (files.object_set(), files.committed()) {
        (Some(set), _) => set.write_key().map(|key| key.key().guid()),
        (None, Some(set)) => set.key().map(|key| key.guid()),
        (None, None) => None,
    }
}

/// The pointers of the blocks at the beginning of the range that can be cloned; the default pointer for a hole.
fn clonable_pointers(
    source: &Node,
    block: u64,
    range: ClonedRange,
    until: Txg,
) -> Result<Vec<BlockPointer>, FileError> {
    let mut pointers = vec![];
    let first = range.from / block;
    for id in first..first + range.length.div_ceil(block) {
        let pointer = match source.object() {
            ReadableObject::Committed(object) => Some(object.stored_pointer(BlockId(id))?),
            ReadableObject::Open(object) => object.stored_pointer(BlockId(id))?,
        };
        let Some(pointer) = pointer else { break };
        if pointer.is_hole() {
            pointers.push(BlockPointer::default());
            continue;
        }
        let is_stable = pointer.birth() <= until && pointer.physical_birth() <= until;
        if !is_stable || !is_clonable(&pointer) || pointer.lsize_bytes() != block {
            break;
        }
        pointers.push(pointer);
    }
    Ok(pointers)
}

/// Links blocks into a file from offset `to` on, where a default pointer makes a hole.
pub(crate) fn link_blocks(
    tx: &millpond_txg::Transaction,
    node: &NodeInner,
    block: u64,
    to: u64,
    pointers: &[BlockPointer],
) -> Result<(), FileError> {
    let mut at = to;
    for pointer in pointers {
        match pointer.is_hole() {
            true => node.object.free_range(tx, at, block)?,
            false => (node.object).clone_block(tx, BlockId(at / block), pointer)?,
        }
        at = at.saturating_add(block);
    }
    Ok(())
}
