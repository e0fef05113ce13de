//! An object's current state, and its dirty data in each txg.
//!
//! A [`Slot`] holds the changes of one txg. A reader searches the newest slot first, then older slots, then
//! the synced tree. A change in a txg that is not the newest is also applied to the newer slots that hold (or
//! freed) the same block, so that the later call wins in every state.

use crate::partial_write::PartialWrite;
use crate::ranges::Ranges;
use crate::writer::is_zero;
use crate::{Block, EncodedContent};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockId, BlockPointer, Dnode, DnodeFlags, Endian, ObjectType, Txg};
use std::collections::BTreeMap;

/// The fields of a dnode that callers can change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) object_type: ObjectType,
    pub(crate) bonus_type: ObjectType,
    pub(crate) indirect_shift: u8,
    pub(crate) block_sectors: u16,
    pub(crate) block_id_max: u64,
    pub(crate) bonus: Arc<[u8]>,
    /// The rest of the bonus area in raw sets; `None` if it is empty.
    pub(crate) bonus_tail: Option<Arc<[u8]>>,
    pub(crate) has_spill: bool,
    /// The levels that the tree has at least.
    pub(crate) levels: u8,
    /// The object's own checksum and compression functions, 0 to inherit.
    pub(crate) functions: (u8, u8),
}

impl Shape {
    pub(crate) fn of(dnode: &Dnode) -> Self {
        Self {
            object_type: dnode.object_type,
            bonus_type: dnode.bonus_type,
            indirect_shift: dnode.indirect_block_shift,
            block_sectors: dnode.data_block_sectors,
            block_id_max: dnode.block_id_max.0,
            bonus: Arc::from(dnode.bonus.as_slice()),
            bonus_tail: match dnode.bonus_tail.as_slice() {
                [] => None,
                tail => Some(Arc::from(tail)),
            },
            has_spill: dnode.spill.is_some(),
            levels: dnode.levels,
            functions: (dnode.checksum, dnode.compression),
        }
    }

    /// Copies the fields into a dnode.
    pub(crate) fn apply(&self, dnode: &mut Dnode) {
        dnode.object_type = self.object_type;
        dnode.bonus_type = self.bonus_type;
        dnode.indirect_block_shift = self.indirect_shift;
        dnode.data_block_sectors = self.block_sectors;
        dnode.block_id_max = BlockId(self.block_id_max);
        (dnode.checksum, dnode.compression) = self.functions;
        if *dnode.bonus != *self.bonus {
            dnode.bonus = self.bonus.to_vec();
        }
        dnode.bonus_tail = self.bonus_tail.as_deref().unwrap_or_default().to_vec();
        dnode.flags.set(DnodeFlags::SPILL_POINTER, self.has_spill);
        if !self.has_spill {
            dnode.spill = None;
        } else if dnode.spill.is_none() {
            dnode.spill = Some(BlockPointer::default());
        }
    }

    pub(crate) fn block_bytes(&self) -> usize {
        usize::from(self.block_sectors) << 9
    }
}

/// The unsynced content of a block.
#[derive(Debug, Clone)]
pub(crate) struct DirtyBlock {
    content: Arc<Vec<u8>>,
    /// Where an intent log has already written exactly this content. If this reference is dropped before the
    /// sync takes over the block, the writer of the log frees it.
    stored: Option<Arc<BlockPointer>>,
    /// An encoded form of exactly this content.
    encoded: Option<EncodedContent>,
    /// Whether the content is that of the stored block, and the new pointer keeps the birth of the old one.
    keeps_birth: bool,
}

impl DirtyBlock {
    pub(crate) fn new(content: Arc<Vec<u8>>) -> Self {
        Self {
            content,
            stored: None,
            encoded: None,
            keeps_birth: false,
        }
    }
    /// Content that is stored already, and is stored again.
    pub(crate) fn rewritten(content: Arc<Vec<u8>>, keeps_birth: bool) -> Self {
        Self {
            keeps_birth,
            ..Self::new(content)
        }
    }
    pub(crate) fn with_encoded(content: Arc<Vec<u8>>, encoded: EncodedContent) -> Self {
        Self {
            encoded: Some(encoded),
            ..Self::new(content)
        }
    }
    pub(crate) fn content(&self) -> &Arc<Vec<u8>> {
        &self.content
    }
    /// The pointer under which the block was already written, if that was in this txg.
    pub(crate) fn stored_in(&self, txg: Txg) -> Option<BlockPointer> {
        let stored = self.stored.as_deref().copied();
        stored.filter(|pointer| pointer.birth() == txg)
    }
    /// The encoded form to store.
    pub(crate) fn encoded(&self) -> Option<&EncodedContent> {
        self.encoded.as_ref()
    }
    pub(crate) fn keeps_birth(&self) -> bool {
        self.keeps_birth
    }
    pub(crate) fn content_mut(&mut self) -> &mut Vec<u8> {
        self.stored = None;
        self.encoded = None;
        self.keeps_birth = false;
        Arc::make_mut(&mut self.content)
    }
    /// A view of the content for readers of whole blocks. A change made while they hold it copies the
    /// content.
    pub(crate) fn view(&self) -> Arc<Block> {
        native_block(Arc::clone(&self.content))
    }
}

/// A txg's change to a block.
#[derive(Debug, Clone)]
pub(crate) enum BlockChange {
    /// The whole block is new.
    Whole(DirtyBlock),
    /// Some bytes are new. The rest comes from the next older txg that has the block, or from the synced
    /// tree. Used only for blocks that were synced when the first of the bytes was written.
    PartialWrite(PartialWrite),
    /// The block is a clone of the stored block that this pointer refers to.
    Cloned(Arc<BlockPointer>),
}

impl BlockChange {
    pub(crate) fn whole(content: Arc<Vec<u8>>) -> Self {
        Self::Whole(DirtyBlock::new(content))
    }
    /// The block's content, if the whole block is new.
    pub(crate) fn as_whole(&self) -> Option<&DirtyBlock> {
        match self {
            Self::Whole(block) => Some(block),
            Self::PartialWrite(_) | Self::Cloned(_) => None,
        }
    }
    /// Whether the whole block is new, and zero. False if only its stored form is known.
    pub(crate) fn is_zero(&self) -> bool {
        self.as_whole().is_some_and(|block| {
            block.encoded().is_none() && block.content().chunks(512).all(is_zero)
        })
    }
    pub(crate) fn as_whole_mut(&mut self) -> Option<&mut DirtyBlock> {
        match self {
            Self::Whole(block) => Some(block),
            Self::PartialWrite(_) | Self::Cloned(_) => None,
        }
    }
}

/// The base content below the parts of a block.
pub(crate) enum BaseContent {
    /// A whole block of some txg.
    Whole(Arc<Vec<u8>>),
    /// The stored block of which this one is a clone.
    Cloned(Arc<BlockPointer>),
    /// Zeros.
    Nowhere,
    /// The content in the synced tree, which may be a hole.
    Synced,
}

/// Wraps the content in a little-endian block.
pub(crate) fn native_block(content: Arc<Vec<u8>>) -> Arc<Block> {
    Arc::new(Block {
        bytes: content,
        endian: Endian::Little,
        has_ciphertext: false,
    })
}

/// The changes of one txg. Its frees take effect before its writes.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) txg: Txg,
    /// The dnode's fields as of the end of this txg.
    pub(crate) shape: Shape,
    pub(crate) freed: Ranges,
    pub(crate) blocks: BTreeMap<u64, BlockChange>,
    /// A new spill block, or its removal.
    pub(crate) spill: Option<Option<DirtyBlock>>,
    /// The whole object is freed.
    pub(crate) is_freed: bool,
}

/// The location of a block's newest content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockSource {
    /// In the slot with this index.
    Slot(usize),
    /// Nowhere: the block was freed or never existed.
    Nowhere,
    /// In the synced tree, where it may be a hole.
    Synced,
}

/// Bytes that a dirty object takes in the tables of its set, with the rounding up of about ten memory
/// allocations. Measured by `tests/scale`, "new files in memory".
const TABLES_BYTES: usize = 384;

#[derive(Debug)]
pub(crate) struct State {
    /// The dnode as of the last sync. A dnode without blocks if the object was never synced.
    pub(crate) synced: Arc<Dnode>,
    /// Whether `synced` is on disk.
    pub(crate) is_on_disk: bool,
    /// Dirty txgs, oldest first; at most three.
    pub(crate) slots: Vec<Slot>,
    /// The number of times that `synced` was replaced.
    pub(crate) syncs: u64,
    /// The level-1 indirect block that was last found readable, with the value of `syncs` at that time.
    pub(crate) checked_parent: Option<(u64, u64)>,
    /// Whether freeing blocks leaves the id of the last one, as in raw sets.
    keeps_end: bool,
    synced_shape: Shape,
}

impl State {
    pub(crate) fn new(synced: Arc<Dnode>, is_on_disk: bool, keeps_end: bool) -> Self {
        Self {
            synced_shape: Shape::of(&synced),
            synced,
            is_on_disk,
            slots: Vec::new(),
            syncs: 0,
            checked_parent: None,
            keeps_end,
        }
    }

    /// Whether the indirect blocks above a data block are known to be readable, or do not exist.
    pub(crate) fn has_checked_parents(&self, id: u64) -> bool {
        let parent = id.checked_shr(self.synced.pointers_shift()).unwrap_or(0);
        self.synced.levels <= 1 || self.checked_parent == Some((self.syncs, parent))
    }

    pub(crate) fn is_freed(&self) -> bool {
        self.slots.iter().any(|slot| slot.is_freed) || self.synced.object_type == ObjectType::NONE
    }

    /// The fields in their newest state.
    pub(crate) fn shape(&self) -> &Shape {
        self.slots
            .last()
            .map_or(&self.synced_shape, |slot| &slot.shape)
    }

    /// Memory that the object takes beside its blocks while it is dirty and being written, in bytes: the
    /// object itself, a slot, the dnode before and after with pointers and bonus, its entries in tables, and
    /// the allocator's rounding up.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        const FIXED: usize =
            size_of::<crate::Object>() + size_of::<Slot>() + 2 * size_of::<Dnode>() + TABLES_BYTES;
        let pointers = 2 * size_of::<BlockPointer>() * self.synced.block_pointers.len();
        let bonus = 2 * self.shape().bonus.len() + self.synced_shape.bonus.len();
        (FIXED + pointers + bonus) as u64
    }

    /// Returns the index of a txg's slot, and whether the slot is new.
    pub(crate) fn slot(&mut self, txg: Txg) -> (usize, bool) {
        let index = self.slots.partition_point(|slot| slot.txg < txg);
        if self.slots.get(index).is_some_and(|slot| slot.txg == txg) {
            return (index, false);
        }
        let before = index.checked_sub(1).and_then(|at| self.slots.get(at));
        let shape = before.map_or(&self.synced_shape, |slot| &slot.shape);
        let slot = Slot {
            txg,
            shape: shape.clone(),
            freed: Ranges::default(),
            blocks: BTreeMap::new(),
            spill: None,
            is_freed: false,
        };
        // Nearly every object needs only one slot.
        self.slots.reserve_exact(1);
        self.slots.insert(index, slot);
        (index, true)
    }

    pub(crate) fn slot_of(&self, txg: Txg) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.txg == txg)
    }

    /// Changes the fields in this slot and in all newer ones.
    pub(crate) fn reshape(&mut self, slot: usize, mut change: impl FnMut(&mut Shape)) {
        for slot in &mut self.slots[slot..] {
            change(&mut slot.shape);
        }
    }

    /// Finds a block's content among the first `slots` slots.
    pub(crate) fn place(&self, id: u64, slots: usize) -> BlockSource {
        for (index, slot) in self.slots[..slots].iter().enumerate().rev() {
            if slot.blocks.contains_key(&id) {
                return BlockSource::Slot(index);
            }
            if slot.freed.contains(id) {
                return BlockSource::Nowhere;
            }
        }
        if id > self.synced.block_id_max.0 {
            BlockSource::Nowhere
        } else {
            BlockSource::Synced
        }
    }

    /// Returns what a block's content consists of, looking at the first `slots` slots: the base content, and
    /// the parts over it, oldest first.
    pub(crate) fn layers(&self, id: u64, slots: usize) -> (BaseContent, Vec<&PartialWrite>) {
        let mut parts = vec![];
        let mut bottom = None;
        for slot in self.slots[..slots].iter().rev() {
            match slot.blocks.get(&id) {
                Some(BlockChange::Whole(block)) => {
                    bottom = Some(BaseContent::Whole(Arc::clone(block.content())));
                }
                Some(BlockChange::Cloned(pointer)) => {
                    bottom = Some(BaseContent::Cloned(Arc::clone(pointer)));
                }
                Some(BlockChange::PartialWrite(own)) => parts.push(own),
                None if slot.freed.contains(id) => bottom = Some(BaseContent::Nowhere),
                None => {}
            }
            if bottom.is_some() {
                break;
            }
        }
        parts.reverse();
        let below = match id > self.synced.block_id_max.0 {
            true => BaseContent::Nowhere,
            false => BaseContent::Synced,
        };
        (bottom.unwrap_or(below), parts)
    }

    /// Whether some of a block's bytes come from the synced tree, looking at the first `slots` slots.
    pub(crate) fn needs_synced(&self, id: u64, slots: usize) -> bool {
        matches!(self.layers(id, slots).0, BaseContent::Synced)
    }

    /// Returns a block's content if the whole block is new in this txg.
    pub(crate) fn whole_in(&self, txg: Txg, id: u64) -> Option<Arc<Vec<u8>>> {
        let block = self.slot_of(txg)?.blocks.get(&id)?.as_whole()?;
        Some(Arc::clone(block.content()))
    }

    /// Records where a block's content of a txg was written. Returns false if the content has changed since.
    pub(crate) fn note_stored(
        &mut self,
        txg: Txg,
        id: u64,
        content: &Arc<Vec<u8>>,
        stored: Arc<BlockPointer>,
    ) -> bool {
        let slot = self.slots.iter_mut().find(|slot| slot.txg == txg);
        let change = slot.and_then(|slot| slot.blocks.get_mut(&id));
        match change.and_then(BlockChange::as_whole_mut) {
            Some(block) if Arc::ptr_eq(&block.content, content) => {
                block.stored = Some(stored);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn newest_place(&self, id: u64) -> BlockSource {
        self.place(id, self.slots.len())
    }

    /// The largest block id that may exist, synced or dirty. No block lies beyond it.
    pub(crate) fn reach(&self) -> u64 {
        let dirty = self.slots.iter().map(|slot| slot.shape.block_id_max);
        dirty.fold(self.synced.block_id_max.0, u64::max)
    }

    /// Sets a whole block's content. Returns the number of bytes that became dirty.
    pub(crate) fn put(&mut self, index: usize, id: u64, content: Arc<Vec<u8>>) -> u64 {
        let bytes = content.len() as u64;
        match self.replace(index, id, || BlockChange::whole(Arc::clone(&content))) {
            true => bytes,
            false => 0,
        }
    }

    /// As [`State::put`], for a block of which more is known than its content.
    pub(crate) fn put_block(&mut self, index: usize, id: u64, block: &DirtyBlock) -> u64 {
        let encoded = block.encoded().map_or(0, |encoded| encoded.bytes.len());
        match self.replace(index, id, || BlockChange::Whole(block.clone())) {
            true => (block.content().len() as u64).saturating_add(encoded as u64),
            false => 0,
        }
    }

    /// Makes a block a clone of a stored one. Returns whether the slot had no change of it.
    pub(crate) fn put_clone(&mut self, index: usize, id: u64, pointer: &Arc<BlockPointer>) -> bool {
        self.replace(index, id, || BlockChange::Cloned(Arc::clone(pointer)))
    }

    /// Replaces a whole block. Returns whether the slot had no change of it.
    fn replace(&mut self, index: usize, id: u64, change: impl Fn() -> BlockChange) -> bool {
        let is_new = !self.slots[index].blocks.contains_key(&id);
        for (at, slot) in self.slots.iter_mut().enumerate().skip(index) {
            let is_meant = at == index || slot.blocks.contains_key(&id) || slot.freed.contains(id);
            if is_meant {
                slot.blocks.insert(id, change());
            }
            slot.shape.block_id_max = slot.shape.block_id_max.max(id);
        }
        is_new
    }

    /// Changes bytes of a block whose content is known up to this slot: it is in a slot, or `base` gives the
    /// content of the synced tree or of the original. From this slot on the block is no clone. Returns the number of
    /// bytes that became dirty.
    pub(crate) fn patch(
        &mut self,
        index: usize,
        id: u64,
        base: impl FnOnce() -> Vec<u8>,
        start: usize,
        bytes: &[u8],
    ) -> u64 {
        let end = start + bytes.len();
        let mut charged = 0;
        let own = self.slots[index].blocks.get(&id);
        if own.is_none_or(|change| change.as_whole().is_none()) {
            let base = match self.layers(id, index + 1) {
                // The change that follows at once copies it.
                (BaseContent::Whole(content), parts) if parts.is_empty() => content,
                (bottom, parts) => {
                    let mut content = match bottom {
                        BaseContent::Whole(content) => content.to_vec(),
                        BaseContent::Nowhere | BaseContent::Synced | BaseContent::Cloned(_) => {
                            base()
                        }
                    };
                    parts.iter().for_each(|part| part.apply(&mut content));
                    Arc::new(content)
                }
            };
            charged = base.len() as u64;
            let blocks = &mut self.slots[index].blocks;
            blocks.insert(id, BlockChange::whole(base));
        }
        let mut patched = None;
        for (at, slot) in self.slots.iter_mut().enumerate().skip(index) {
            slot.shape.block_id_max = slot.shape.block_id_max.max(id);
            match slot.blocks.get_mut(&id) {
                Some(BlockChange::Whole(block)) => {
                    if let Some(part) = block.content_mut().get_mut(start..end) {
                        part.copy_from_slice(bytes);
                    }
                    if at == index {
                        patched = Some(Arc::clone(block.content()));
                    }
                }
                Some(BlockChange::PartialWrite(parts)) => {
                    parts.put(start, bytes);
                }
                Some(BlockChange::Cloned(_)) => {
                    debug_assert!(false, "a clone is changed in parts");
                }
                None => {
                    if slot.freed.contains(id)
                        && let Some(patched) = &patched
                    {
                        let whole = BlockChange::whole(Arc::clone(patched));
                        slot.blocks.insert(id, whole);
                    }
                }
            }
        }
        charged
    }

    /// Keeps new bytes of a block apart from the rest, which stays in the synced tree. Returns the number of
    /// bytes that became dirty, and that of the rest if these are the first. Returns `None`, with nothing
    /// changed, if the block must be changed as a whole.
    pub(crate) fn patch_parts(
        &mut self,
        index: usize,
        id: u64,
        start: usize,
        bytes: &[u8],
    ) -> Option<(u64, u64)> {
        if index + 1 != self.slots.len() {
            return None;
        }
        match self.slots[index].blocks.get(&id) {
            Some(BlockChange::PartialWrite(parts)) if !parts.is_shattered() => {}
            None if self.needs_synced(id, index + 1) => {}
            Some(BlockChange::PartialWrite(_)) => {
                mark::hit("record-shattered");
                return None;
            }
            _ => return None,
        }
        let slot = &mut self.slots[index];
        slot.shape.block_id_max = slot.shape.block_id_max.max(id);
        let size = slot.shape.block_bytes();
        let change = slot.blocks.entry(id);
        let change = change.or_insert_with(|| BlockChange::PartialWrite(PartialWrite::default()));
        let BlockChange::PartialWrite(parts) = change else {
            return None;
        };
        let is_first = parts.bytes() == 0;
        let charged = parts.put(start, bytes) as u64;
        let rest = match is_first {
            true => (size as u64).saturating_sub(charged),
            false => 0,
        };
        if parts.bytes() == size {
            let mut content = vec![0; size];
            parts.apply(&mut content);
            *change = BlockChange::whole(Arc::new(content));
        }
        Some((charged, rest))
    }

    /// Frees the whole blocks `first` to `last` in this slot and all newer ones. Shortens the object if they
    /// reach its end.
    pub(crate) fn free_blocks(&mut self, index: usize, first: u64, last: u64) {
        // Nothing exists beyond the reach. Cutting the range there keeps range sets small.
        let last_there = last.min(self.reach());
        for slot in &mut self.slots[index..] {
            if first <= last_there {
                let dead: Vec<u64> = (slot.blocks.range(first..=last_there))
                    .map(|(id, _)| *id)
                    .collect();
                for id in dead {
                    slot.blocks.remove(&id);
                }
                slot.freed.insert(first, last_there);
            }
            let is_at_end = first <= slot.shape.block_id_max && last >= slot.shape.block_id_max;
            if is_at_end && !self.keeps_end {
                slot.shape.block_id_max = first.saturating_sub(1);
            }
        }
    }

    /// Takes over the result of a sync: `dnode` now contains the slot's changes.
    pub(crate) fn settle(&mut self, txg: Txg, dnode: Arc<Dnode>, is_on_disk: bool) {
        self.synced_shape = Shape::of(&dnode);
        self.slots.retain(|slot| {
            let is_settled = slot.txg == txg;
            if is_settled && slot.shape.bonus == self.synced_shape.bonus {
                // Slot and synced state share one copy of the bonus.
                self.synced_shape.bonus = Arc::clone(&slot.shape.bonus);
            }
            !is_settled
        });
        (self.synced, self.is_on_disk) = (dnode, is_on_disk);
        self.syncs += 1;
    }
}
