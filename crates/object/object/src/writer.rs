//! Rewrites a block tree in one sweep from its first block to its last.
//!
//! Leaves are freed and written in order of their block ids. An indirect block is loaded when something below
//! it changes, and is written as soon as the sweep has passed its range. Only the path to the current
//! position stays in memory, regardless of the size of the object.

use crate::claims::Claims;
use crate::core::Core;
use crate::port::is_born_in;
use crate::tree::Tree;
use crate::{BlockError, ObjectError};
use crate::{BlockSink, BlockTraits, FeatureUse, Leak, WriteJob, WritePolicy};
use millpond_block::PooledBuf;
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::{
    BLOCK_POINTER_BYTES, BlockPointer, Dnode, DnodeFlags, Level, ObjectId, ObjectType, PoolVersion,
    SECTOR_BYTES, Txg,
};
use std::collections::BTreeMap;

/// The parameters shared by all parts of a sync.
pub(crate) struct Run<'a> {
    pub(crate) core: &'a Core,
    pub(crate) policy: WritePolicy,
    pub(crate) txg: Txg,
    pub(crate) pass: u32,
    pub(crate) sink: &'a dyn BlockSink,
}

/// Number of indirect blocks of a freed tree that are prefetched in one step. Up to twice as many are
/// outstanding.
const AHEAD_NODES: usize = 8;
/// From this pass on, blocks that were already written in this txg are no longer compressed.
pub(crate) const LATE_PASS: u32 = 8;

impl Run<'_> {
    /// Builds the write job for a block of this object.
    pub(crate) fn job(
        &self,
        tree: &TreeWriter,
        level: u8,
        id: u64,
        content: Arc<Vec<u8>>,
        previous: BlockPointer,
    ) -> WriteJob {
        let is_rewrite = is_born_in(&previous, self.txg);
        let traits = BlockTraits {
            object_type: tree.dnode.object_type,
            level: Level(level),
            is_spill: false,
            lsize_bytes: content.len() as u64,
            dnode_checksum: self.own_function(tree.dnode.checksum),
            dnode_compression: self.own_function(tree.dnode.compression),
            is_rewritten_late: is_rewrite && self.pass >= LATE_PASS,
        };
        WriteJob {
            address: self.core.tree(tree.id, &tree.dnode).address(level, id),
            content,
            object_type: traits.object_type,
            level: traits.level,
            policy: self.policy.block(&traits),
            encoded: None,
            fill: 1,
            previous,
            txg: self.txg,
            pass: self.pass,
            stored: None,
            is_clone: false,
            keeps_birth: false,
            key: self.core.key.clone(),
            is_raw: self.core.raw.is_some(),
        }
    }

    /// Returns the pointer that replaces the pointer of a freed block.
    fn hole(&self, tree: &TreeWriter, level: u8, had_birth: bool) -> BlockPointer {
        if !had_birth || !self.policy.has_hole_birth {
            return BlockPointer::default();
        }
        hole(
            tree.dnode.object_type,
            level,
            tree.lsize_bytes(level),
            self.txg,
        )
    }
}

/// A hole that records its birth txg.
fn hole(object_type: ObjectType, level: u8, lsize_bytes: u64, birth: Txg) -> BlockPointer {
    let mut pointer = BlockPointer::default();
    let sectors = (lsize_bytes / SECTOR_BYTES).saturating_sub(1) & 0xffff;
    pointer.words[6] = sectors | u64::from(object_type.0) << 48 | u64::from(level & 0x1f) << 56;
    pointer.words[10] = birth.0;
    pointer
}

/// An indirect block in memory.
struct Node {
    pointers: Vec<BlockPointer>,
    /// From here on all pointers are zero, as in most blocks.
    used: usize,
    /// Differs from the block that its pointer refers to.
    is_changed: bool,
}

/// The tree of one object between one txg and the next.
pub(crate) struct TreeWriter {
    pub(crate) id: ObjectId,
    /// The new dnode. Its pointers and `used` are kept up to date.
    pub(crate) dnode: Dnode,
    used_bytes: u64,
    nodes: BTreeMap<(u8, u64), Node>,
    /// Everything below this leaf is finished.
    pub(crate) cursor: u64,
    pub(crate) is_swept: bool,
    /// Bounds the space that is freed. Without it, a forged tree that repeats itself could occupy a sync forever.
    claims: Claims,
}

/// An indirect block ready to be written.
pub(crate) struct ReadyNode {
    pub(crate) level: u8,
    pub(crate) id: u64,
    pub(crate) job: WriteJob,
}

impl TreeWriter {
    pub(crate) fn new(core: &Core, id: ObjectId, dnode: Dnode) -> Self {
        Self {
            id,
            used_bytes: dnode.used_bytes(),
            dnode,
            nodes: BTreeMap::new(),
            cursor: 0,
            is_swept: false,
            claims: Claims::new(&core.store),
        }
    }

    fn shift(&self) -> u32 {
        self.dnode.pointers_shift()
    }

    fn lsize_bytes(&self, level: u8) -> u64 {
        if level == 0 {
            self.dnode.data_block_bytes()
        } else {
            self.dnode.indirect_block_bytes()
        }
    }

    fn pointers_per_node(&self) -> usize {
        1usize << self.shift().min(20)
    }

    fn top(&self) -> u8 {
        self.dnode.levels.saturating_sub(1)
    }

    /// Returns the first and last leaf below a block of this level.
    fn range(&self, level: u8, id: u64) -> (u64, u64) {
        let span = self.shift().saturating_mul(u32::from(level));
        let first = id.checked_shl(span).unwrap_or(u64::MAX);
        let count = 1u64.checked_shl(span).unwrap_or(0);
        (first, first.saturating_add(count.wrapping_sub(1)))
    }

    /// Size in bytes of the indirect blocks in memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.nodes.len() as u64 * self.dnode.indirect_block_bytes()
    }

    /// Adds levels until leaf `id` can be addressed, and there are as many as `levels`.
    pub(crate) fn grow(&mut self, run: &Run<'_>, id: u64, levels: u8) -> Result<(), ObjectError> {
        let count = self.dnode.block_pointers.len();
        while self.dnode.levels < levels
            || self.dnode.addressable_blocks().is_some_and(|end| id >= end)
        {
            mark::hit("tree-grows-a-level");
            let level = self.dnode.levels;
            if level >= 12 {
                return Err(run.core.refuse(self.id, "larger than an object can be"));
            }
            let mut pointers = vec![BlockPointer::default(); self.pointers_per_node()];
            let old = std::mem::replace(
                &mut self.dnode.block_pointers,
                vec![BlockPointer::default(); count],
            );
            // A node above one that is still in memory gets its pointer when that node is written.
            let has_content = old
                .iter()
                .any(|pointer| *pointer != BlockPointer::default());
            let is_changed = has_content || self.nodes.contains_key(&(level.saturating_sub(1), 0));
            for (slot, pointer) in pointers.iter_mut().zip(old) {
                *slot = pointer;
            }
            self.dnode.levels = level + 1;
            if is_changed {
                self.nodes.insert(
                    (level, 0),
                    Node {
                        pointers,
                        used: count,
                        is_changed,
                    },
                );
            }
        }
        Ok(())
    }

    /// Returns the pointer to a block and loads its parent.
    pub(crate) fn pointer(
        &mut self,
        run: &Run<'_>,
        level: u8,
        id: u64,
    ) -> Result<BlockPointer, ObjectError> {
        if level >= self.top() {
            let index = usize::try_from(id).unwrap_or(usize::MAX);
            let pointer = self.dnode.block_pointers.get(index).copied();
            return pointer.ok_or_else(|| run.core.refuse(self.id, "block is beyond its tree"));
        }
        let (shift, parent) = (self.shift(), id >> self.shift());
        self.load(run, level + 1, parent)?;
        let index = (id & ((1 << shift) - 1)) as usize;
        let node = self.nodes.get(&(level + 1, parent));
        let pointer = node.and_then(|node| node.pointers.get(index));
        pointer
            .copied()
            .ok_or_else(|| run.core.refuse(self.id, "block is beyond its tree"))
    }

    /// Sets the pointer to a block whose parent is loaded, and accounts for the change in space.
    pub(crate) fn set_pointer(
        &mut self,
        run: &Run<'_>,
        level: u8,
        id: u64,
        new: BlockPointer,
    ) -> Result<(), ObjectError> {
        let old = self.pointer(run, level, id)?;
        self.account(run, &old, &new);
        if old == new {
            return Ok(());
        }
        if level >= self.top() {
            if let Some(slot) = self.dnode.block_pointers.get_mut(id as usize) {
                *slot = new;
            }
            return Ok(());
        }
        let (shift, parent) = (self.shift(), id >> self.shift());
        let index = (id & ((1 << shift) - 1)) as usize;
        if let Some(node) = self.nodes.get_mut(&(level + 1, parent))
            && let Some(slot) = node.pointers.get_mut(index)
        {
            *slot = new;
            node.used = node.used.max(index + 1);
            node.is_changed = true;
        }
        Ok(())
    }

    /// Accounts for the space of a pointer that replaces another.
    pub(crate) fn account(&mut self, run: &Run<'_>, old: &BlockPointer, new: &BlockPointer) {
        let (old, new) = (run.sink.deflated_bytes(old), run.sink.deflated_bytes(new));
        self.used_bytes = self.used_bytes.saturating_add(new).saturating_sub(old);
    }

    fn load(&mut self, run: &Run<'_>, level: u8, id: u64) -> Result<(), ObjectError> {
        if self.nodes.contains_key(&(level, id)) {
            return Ok(());
        }
        let pointer = self.pointer(run, level, id)?;
        let pointers = if pointer.is_hole() {
            let below = level.saturating_sub(1);
            // Everything below became a hole in the same txg, or was never written.
            let count = self.pointers_per_node();
            match pointer.birth() {
                Txg(0) => (vec![BlockPointer::default(); count], 0),
                birth => {
                    let lsize_bytes = self.lsize_bytes(below);
                    let filler = hole(self.dnode.object_type, below, lsize_bytes, birth);
                    (vec![filler; count], count)
                }
            }
        } else {
            self.read_needed(run, &pointer, level, id)?
        };
        let (pointers, used) = pointers;
        let node = Node {
            pointers,
            used,
            is_changed: false,
        };
        self.nodes.insert((level, id), node);
        Ok(())
    }

    /// Reads the pointers in a block that is needed to write the txg. See [`TreeWriter::read_pointers`]. If no
    /// copy is good, the pool is suspended until a copy can be read.
    fn read_needed(
        &self,
        run: &Run<'_>,
        pointer: &BlockPointer,
        level: u8,
        id: u64,
    ) -> Result<(Vec<BlockPointer>, usize), ObjectError> {
        let store = &run.core.store;
        loop {
            let since = store.resumes();
            match self.read_pointers(run, pointer, level, id) {
                Err(ObjectError::Block(error)) if store.waits_for_resume(since, &error) => {}
                outcome => return outcome,
            }
        }
    }

    /// The pointers in an indirect block, and the index from which on all are zero.
    fn read_pointers(
        &self,
        run: &Run<'_>,
        pointer: &BlockPointer,
        level: u8,
        id: u64,
    ) -> Result<(Vec<BlockPointer>, usize), ObjectError> {
        let tree: Tree<'_> = run.core.tree(self.id, &self.dnode);
        let block = tree.read_indirect(pointer, level, id)?;
        let zeros = block.bytes.rchunks_exact(BLOCK_POINTER_BYTES);
        let zeros = zeros.take_while(|chunk| is_zero(chunk)).count();
        let count = block.bytes.len() / BLOCK_POINTER_BYTES;
        let used = count.saturating_sub(zeros);
        let mut pointers = Vec::with_capacity(count);
        for chunk in block.bytes.chunks_exact(BLOCK_POINTER_BYTES).take(used) {
            let pointer = BlockPointer::decode(chunk, block.endian);
            pointers.push(pointer.map_err(|_| tree.invalid("indirect block is too short"))?);
        }
        pointers.resize(count, BlockPointer::default());
        Ok((pointers, used))
    }

    /// Frees leaves `first` to `last`. Needs memory for the paths to these two, and one indirect block per
    /// level.
    pub(crate) fn free_leaves(
        &mut self,
        run: &Run<'_>,
        first: u64,
        last: u64,
    ) -> Result<(), ObjectError> {
        let top = self.top();
        for index in 0..self.dnode.block_pointers.len() as u64 {
            self.free_below(run, top, index, first, last)?;
        }
        Ok(())
    }

    fn free_below(
        &mut self,
        run: &Run<'_>,
        level: u8,
        id: u64,
        first: u64,
        last: u64,
    ) -> Result<(), ObjectError> {
        let (low, high) = self.range(level, id);
        if high < first || low > last {
            return Ok(());
        }
        let is_loaded = self.nodes.contains_key(&(level, id));
        let pointer = self.pointer(run, level, id)?;
        if !is_loaded && pointer.is_hole() {
            return Ok(());
        }
        if level == 0 || (!is_loaded && first <= low && high <= last) {
            self.kill_tree(run, &pointer, level, id)?;
            let hole = run.hole(self, level, pointer.birth() != Txg(0));
            return self.set_pointer(run, level, id, hole);
        }
        self.load(run, level, id)?;
        let shift = self.shift();
        let below = |leaf: u64| {
            let span = shift.saturating_mul(u32::from(level - 1));
            leaf.checked_shr(span).unwrap_or(0)
        };
        let (from, to) = (below(first.max(low)), below(last.min(high)));
        for child in from..=to {
            if let Some(node) = self.nodes.get(&(level, id)) {
                let index = |child: u64| (child & ((1 << shift) - 1)) as usize;
                let here = node.pointers.get(index(from)..=index(to)).unwrap_or(&[]);
                self.prefetch(run, level - 1, from, here, (child - from) as usize);
            }
            self.free_below(run, level - 1, child, first, last)?;
        }
        Ok(())
    }

    /// Makes other threads prefetch indirect blocks that the sweep will soon reach. They are siblings: the
    /// sweep is at index `at`, and the first one has block id `first`.
    fn prefetch(&self, run: &Run<'_>, level: u8, first: u64, pointers: &[BlockPointer], at: usize) {
        let is_wanted = run.policy.caching.prefetched.contains(true);
        if level == 0 || !at.is_multiple_of(AHEAD_NODES) || !is_wanted {
            return;
        }
        // The first call covers two steps, every later call the step after the next.
        let from = if at == 0 { 1 } else { at + AHEAD_NODES };
        let wanted = pointers.iter().zip(0u64..).skip(from);
        for (pointer, index) in wanted.take(at + 2 * AHEAD_NODES - from) {
            let id = first.wrapping_add(index);
            if pointer.is_hole() || pointer.level().0 != level {
                continue;
            }
            let address = run.core.tree(self.id, &self.dnode).address(level, id);
            let (store, pointer) = (Arc::downgrade(&run.core.store), *pointer);
            let key = run.core.read_key().cloned();
            run.core
                .store
                .queue_prefetch(pointer.lsize_bytes(), move || {
                    if let Some(store) = store.upgrade() {
                        // The sweep itself meets and reports any failure.
                        let _ = store.prefetch_block(
                            &pointer,
                            address,
                            key.as_ref(),
                            PooledBuf::default(),
                        );
                    }
                });
        }
    }

    /// Frees everything below a pointer, children before their parent. The space of the pointer itself stays
    /// accounted for until another pointer replaces it.
    fn kill_tree(
        &mut self,
        run: &Run<'_>,
        pointer: &BlockPointer,
        level: u8,
        id: u64,
    ) -> Result<(), ObjectError> {
        if pointer.is_hole() {
            return Ok(());
        }
        if level > 0 {
            if let Err(reason) = self.claims.charge(pointer) {
                // A forged tree. Its blocks may belong to other objects, so none of them is freed.
                self.leak(run, pointer, level, id, reason);
                return Ok(());
            }
            let children = match self.read_pointers(run, pointer, level, id) {
                Ok((children, _)) => children,
                // The devices may be reopened.
                Err(error @ ObjectError::Block(BlockError::Missing { .. })) => return Err(error),
                Err(error) => {
                    mark::hit("freed-tree-unreadable");
                    self.leak(run, pointer, level, id, &error);
                    vec![]
                }
            };
            for (child, index) in children.iter().zip(0u64..) {
                let first = id << self.shift();
                let child_id = first.wrapping_add(index);
                self.prefetch(run, level - 1, first, &children, index as usize);
                self.kill_tree(run, child, level - 1, child_id)?;
                self.account(run, child, &BlockPointer::default());
            }
        }
        run.sink.kill(pointer)
    }

    /// Reports that the blocks below an indirect block stay allocated.
    fn leak(
        &self,
        run: &Run<'_>,
        pointer: &BlockPointer,
        level: u8,
        id: u64,
        reason: impl std::fmt::Display,
    ) {
        run.sink.leak(Leak {
            address: run.core.tree(self.id, &self.dnode).address(level, id),
            blocks: pointer.fill(),
            reason: reason.to_string(),
        });
    }

    /// Frees the whole tree of a freed object.
    pub(crate) fn kill_all(&mut self, run: &Run<'_>) -> Result<(), ObjectError> {
        let top = self.top();
        let pointers = std::mem::take(&mut self.dnode.block_pointers);
        for (pointer, id) in pointers.iter().zip(0u64..) {
            self.kill_tree(run, pointer, top, id)?;
            self.account(run, pointer, &BlockPointer::default());
        }
        if let Some(spill) = self.dnode.spill.take() {
            run.sink.kill(&spill)?;
            self.account(run, &spill, &BlockPointer::default());
        }
        Ok(())
    }

    /// Removes and returns the indirect blocks of this level that the sweep has passed. Those of lower levels
    /// must already be written. A block that contains only holes becomes a hole at once.
    pub(crate) fn take_ready(
        &mut self,
        run: &Run<'_>,
        level: u8,
    ) -> Result<Vec<ReadyNode>, ObjectError> {
        let here = self.nodes.range((level, 0)..=(level, u64::MAX));
        let ready: Vec<u64> = here
            .map(|(key, _)| key.1)
            .filter(|id| self.is_swept || self.range(level, *id).1 < self.cursor)
            .collect();
        let mut jobs = Vec::new();
        for id in ready {
            let Some(node) = self.nodes.remove(&(level, id)) else {
                continue;
            };
            if !node.is_changed {
                continue;
            }
            let previous = self.pointer(run, level, id)?;
            let used = node.pointers.get(..node.used).unwrap_or_default();
            if used.iter().all(BlockPointer::is_hole) {
                if !previous.is_hole() {
                    run.sink.kill(&previous)?;
                }
                let had_birth =
                    previous.birth() != Txg(0) || used.iter().any(|hole| hole.birth() != Txg(0));
                let hole = run.hole(self, level, had_birth);
                self.set_pointer(run, level, id, hole)?;
                continue;
            }
            let mut content = vec![0; node.pointers.len() * BLOCK_POINTER_BYTES];
            let mut fill = 0u64;
            let slots = content.chunks_exact_mut(BLOCK_POINTER_BYTES);
            for (pointer, slot) in used.iter().zip(slots) {
                slot.copy_from_slice(&pointer.encode());
                if !pointer.is_hole() {
                    fill = fill.saturating_add(pointer.fill());
                }
            }
            let mut job = run.job(self, level, id, Arc::new(content), previous);
            job.fill = fill;
            jobs.push(ReadyNode { level, id, job });
        }
        Ok(jobs)
    }

    /// The number of levels of the tree.
    pub(crate) fn levels(&self) -> u8 {
        self.dnode.levels
    }

    /// Stores `used` in the dnode, in the unit of the pool's version.
    pub(crate) fn finish(&mut self, run: &Run<'_>) {
        let mut pointers = self.dnode.block_pointers.iter().chain(&self.dnode.spill);
        let has_blocks = pointers.any(|pointer| !pointer.is_hole());
        if !has_blocks {
            // Leaked blocks were not subtracted one by one.
            self.used_bytes = 0;
        }
        let is_new_unit = PoolVersion(run.policy.pool_version).has_sizes_in_lists();
        if is_new_unit && (has_blocks || self.dnode.used != 0) {
            self.dnode.flags.insert(DnodeFlags::USED_BYTES);
        }
        self.dnode.used = if self.dnode.flags.contains(DnodeFlags::USED_BYTES) {
            self.used_bytes
        } else {
            self.used_bytes.div_ceil(SECTOR_BYTES)
        };
    }
}

impl FeatureUse {
    /// Records the features that a newly written block needs.
    pub(crate) fn note(&mut self, pointer: &BlockPointer) {
        if pointer.is_hole() {
            return;
        }
        self.large_blocks |= pointer.lsize_bytes() > 128 << 10;
        self.zstd |= pointer.compression() == Some(millpond_ondisk::CompressionKind::Zstd);
        self.kept_births |= pointer.is_rewritten();
        self.checksums.extend(pointer.checksum_kind());
    }
}

/// Whether all bytes are zero. Their number is a multiple of 8.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let words = bytes
        .chunks_exact(8)
        .map(|word| word.try_into().unwrap_or([1; 8]));
    words.fold(0, |all, word| all | u64::from_ne_bytes(word)) == 0
}
