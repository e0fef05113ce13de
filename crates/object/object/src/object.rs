//! One object open for change.

mod edges;
mod write;

pub use edges::EdgeBlocks;

use crate::byteswap;
use crate::clones::NEWEST;
use crate::core::Core;
use crate::partial_write::PartialWrite;
use crate::prefetch::{CacheHint, Foreseen, before_read, piece_bytes};
use crate::state::{BaseContent, BlockChange, BlockSource, Shape, State, native_block};
use crate::stream_detection::Streams;
use crate::tree::Tree;
use crate::{Block, BlockAddress, ObjectError};
use millpond_block::PointerValidity;
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use millpond_ondisk::{
    BLOCK_BYTES_MAX, BLOCK_POINTER_BYTES, BlockId, DNODE_SLOT_BYTES, Dnode, Endian, Level,
    ObjectId, ObjectType, Txg,
};
use millpond_txg::Transaction;

/// An object open for change: the newest state of its blocks and bonus, and its dirty data in each txg.
///
/// There is at most one per object id in memory, shared by all threads.
///
/// Lock: one mutex, never held across I/O. A block that is only partly overwritten is read without the mutex,
/// and the change is retried if a sync came between. Lock order: an object's mutex before its set's table.
pub struct Object {
    me: Weak<Object>,
    pub(crate) core: Arc<Core>,
    id: ObjectId,
    state: Mutex<State, rank::ObjectState>,
    /// The sequential readers of the object. Locked only briefly; no other lock is taken while it is held.
    streams: OnceLock<Box<Mutex<Streams, rank::Leaf>>>,
    pointer_count: usize,
    extra_slots: u8,
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Object")
            .field("dataset", &self.core.dataset)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Object {
    pub(crate) fn new(core: Arc<Core>, id: ObjectId, dnode: Dnode, is_on_disk: bool) -> Arc<Self> {
        let (pointer_count, extra_slots) = (dnode.block_pointers.len(), dnode.extra_slots);
        let state = State::new(Arc::new(dnode), is_on_disk, core.raw.is_some());
        let state = Mutex::new(state);
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            core,
            id,
            state,
            streams: OnceLock::new(),
            pointer_count,
            extra_slots,
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The object id.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.id
    }
    /// The object type.
    #[must_use]
    pub fn object_type(&self) -> ObjectType {
        self.state.lock().shape().object_type
    }
    /// The type of its bonus.
    #[must_use]
    pub fn bonus_type(&self) -> ObjectType {
        self.state.lock().shape().bonus_type
    }
    /// Size of a data block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.state.lock().shape().block_bytes() as u64
    }
    /// The largest data block id that may hold data. Also 0 for an object without blocks.
    #[must_use]
    pub fn block_id_max(&self) -> BlockId {
        BlockId(self.state.lock().shape().block_id_max)
    }
    /// log2 of the size of an indirect block in bytes.
    #[must_use]
    pub fn indirect_shift(&self) -> u8 {
        self.state.lock().shape().indirect_shift
    }
    /// Space that its blocks took at the last sync, in bytes.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().synced.used_bytes()
    }
    /// The number of block pointers in its dnode. It never changes.
    #[must_use]
    pub fn pointer_count(&self) -> usize {
        self.pointer_count
    }
    /// The number of 512-byte slots of its dnode.
    #[must_use]
    pub fn dnode_slots(&self) -> u8 {
        self.extra_slots.saturating_add(1)
    }
    /// The longest bonus that fits, in bytes. It is shorter while there is a spill block.
    #[must_use]
    pub fn bonus_bytes_max(&self) -> usize {
        self.bonus_room(self.state.lock().shape().has_spill)
    }
    /// Whether the object was freed, even if that is not synced yet. Changes are then refused.
    #[must_use]
    pub fn is_freed(&self) -> bool {
        self.state.lock().is_freed()
    }
    /// The address of one of its blocks, as errors name it.
    #[must_use]
    pub fn address(&self, level: Level, block: BlockId) -> BlockAddress {
        BlockAddress {
            dataset: self.core.dataset,
            object: self.id,
            level,
            block,
        }
    }

    pub(crate) fn bonus_room(&self, has_spill: bool) -> usize {
        self.room(has_spill).unwrap_or(0)
    }

    /// The room for a bonus; `None` if the block pointers leave none for that of a spill block.
    pub(crate) fn room(&self, has_spill: bool) -> Option<usize> {
        let total = (usize::from(self.extra_slots) + 1) * DNODE_SLOT_BYTES;
        let pointers = self.pointer_count + usize::from(has_spill);
        total.checked_sub(64 + BLOCK_POINTER_BYTES * pointers)
    }

    /// The dnode as of the last sync.
    pub(crate) fn synced_dnode(&self) -> Arc<Dnode> {
        Arc::clone(&self.state.lock().synced)
    }

    /// Checks that the indirect blocks above a data block can be read. The sync that writes the block changes
    /// them; without this check the write would fail only then and suspend the pool.
    pub(crate) fn check_parents(&self, id: u64) -> Result<(), ObjectError> {
        loop {
            let (synced, generation) = {
                let state = self.state.lock();
                if state.has_checked_parents(id) {
                    return Ok(());
                }
                (Arc::clone(&state.synced), state.syncs)
            };
            let checked = self.ask_synced(&synced, |tree| tree.descend(0, id))?;
            if checked.is_some() {
                let parent = id.checked_shr(synced.pointers_shift()).unwrap_or(0);
                self.state.lock().checked_parent = Some((generation, parent));
                return Ok(());
            }
        }
    }

    pub(crate) fn refuse(&self, reason: &'static str) -> ObjectError {
        self.core.refuse(self.id, reason)
    }

    pub(crate) fn tree<'a>(&'a self, dnode: &'a Dnode) -> Tree<'a> {
        self.core.tree(self.id, dnode)
    }

    /// Runs a query on the synced tree without holding the mutex. An error counts only if no sync ran or came
    /// between, because a sync may overwrite blocks of an earlier pass.
    pub(crate) fn ask_synced<T>(
        &self,
        synced: &Arc<Dnode>,
        ask: impl Fn(&Tree<'_>) -> Result<T, ObjectError>,
    ) -> Result<Option<T>, ObjectError> {
        let tree = self.tree(synced);
        let is_newest = || Arc::ptr_eq(&self.state.lock().synced, synced);
        let maybe_outdated = PointerValidity::MaybeOutdated(&is_newest);
        ask(&tree.with_validity(maybe_outdated))
            .map(Some)
            .or_else(|error| {
                let no_sync = self.core.wait_for_sync();
                if is_newest() {
                    let validity = match no_sync {
                        Some(_) => PointerValidity::Current,
                        None => maybe_outdated,
                    };
                    ask(&tree.with_validity(validity))
                        .map(Some)
                        .map_err(|_| error)
                } else {
                    Ok(None)
                }
            })
    }

    /// Fills `buffer` from byte `offset`. Holes and bytes beyond the end read as zeros. Includes unsynced
    /// changes.
    ///
    /// Other threads meanwhile prefetch the blocks after the first one of this read, and the blocks that a
    /// sequential reader will ask for next.
    ///
    /// # Errors
    /// If a block cannot be read; the buffer's content is then undefined.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ObjectError> {
        self.read_with_hint(offset, buffer, CacheHint::Retain)
    }

    /// Reads as [`Object::read`] does; `hint` says what happens to the cached content afterwards.
    ///
    /// # Errors
    /// As [`Object::read`].
    pub fn read_with_hint(
        &self,
        offset: u64,
        buffer: &mut [u8],
        hint: CacheHint,
    ) -> Result<(), ObjectError> {
        self.read_until(offset, buffer, hint, false)
    }

    /// Reads as [`Object::read_with_hint`] does; `is_end` says that the content ends with the buffer.
    pub(crate) fn read_until(
        &self,
        offset: u64,
        buffer: &mut [u8],
        hint: CacheHint,
        is_end: bool,
    ) -> Result<(), ObjectError> {
        let mut offset = offset;
        let mut left = buffer.len();
        for piece in buffer.chunks_mut(piece_bytes(&self.core.store)) {
            left -= piece.len();
            let foreseen = self.prefetch(offset, piece.len() as u64);
            let has_next = left > 0 || foreseen.is_continued && !is_end;
            self.read_piece(offset, piece, has_next)?;
            if hint == CacheHint::DropBehind && !foreseen.behind.is_empty() {
                let synced = Arc::clone(&self.state.lock().synced);
                self.tree(&synced).evict(foreseen.behind);
            }
            offset = offset.saturating_add(piece.len() as u64);
        }
        Ok(())
    }

    fn prefetch(&self, offset: u64, length: u64) -> Foreseen {
        let synced = Arc::clone(&self.state.lock().synced);
        let caching = self.core.caching.get();
        // Unsynced data is in memory already.
        if synced.block_id_max == BlockId(0) && caching.kept.contains(false) {
            return Foreseen::default();
        }
        let (store, streams) = (&self.core.store, self.streams.get_or_init(Box::default));
        let shape = crate::prefetch::Shape::of(&synced);
        let range = (offset, length);
        before_read(store, streams, shape, range, caching, |bytes, request| {
            let (object, synced) = (Weak::clone(&self.me), Arc::clone(&synced));
            store.queue_prefetch(bytes, move || {
                let Some(object) = object.upgrade() else {
                    return;
                };
                let is_synced = |id| object.state.lock().newest_place(id) == BlockSource::Synced;
                request.run(&object.tree(&synced), is_synced);
            })
        })
    }

    /// `has_next` says that the reader will continue after the buffer.
    fn read_piece(
        &self,
        offset: u64,
        buffer: &mut [u8],
        has_next: bool,
    ) -> Result<(), ObjectError> {
        let mut offset = offset;
        let mut rest = buffer;
        while !rest.is_empty() {
            let size = self.block_bytes();
            let within = (offset % size) as usize;
            let count = rest.len().min(size as usize - within);
            let (now, later) = rest.split_at_mut(count);
            if offset / size > self.block_id_max().0 {
                now.fill(0);
                later.fill(0);
                return Ok(());
            }
            let is_sequential = has_next || !later.is_empty();
            self.read_part(offset / size, within, now, is_sequential)?;
            offset = offset.saturating_add(count as u64);
            rest = later;
        }
        Ok(())
    }

    fn read_part(
        &self,
        id: u64,
        within: usize,
        into: &mut [u8],
        is_sequential: bool,
    ) -> Result<(), ObjectError> {
        let copy = |from: &[u8], into: &mut [u8]| {
            // If the block shrank or grew since its size was read, the missing part is zeros.
            let from = from.get(within..).unwrap_or(&[]);
            let count = from.len().min(into.len());
            into[..count].copy_from_slice(&from[..count]);
            into[count..].fill(0);
        };
        loop {
            let state = self.state.lock();
            let (bottom, parts) = state.layers(id, state.slots.len());
            let over: Vec<PartialWrite> = parts.into_iter().cloned().collect();
            let synced = Arc::clone(&state.synced);
            drop(state);
            match bottom {
                BaseContent::Whole(content) => copy(&content, into),
                BaseContent::Cloned(pointer) => {
                    let has_rest = ((within + into.len()) as u64) < pointer.lsize_bytes();
                    match self.read_cloned(&pointer, id, NEWEST, has_rest)? {
                        Some(block) => copy(&block.bytes, into),
                        None => continue,
                    }
                }
                BaseContent::Nowhere => into.fill(0),
                BaseContent::Synced => {
                    let has_rest = ((within + into.len()) as u64) < synced.data_block_bytes();
                    let block = self.ask_synced(&synced, |tree| {
                        let tree = Tree {
                            is_sequential,
                            ..*tree
                        };
                        tree.read_part(id, has_rest)
                    })?;
                    let Some(block) = block else { continue };
                    copy(&block.bytes, into);
                }
            }
            for parts in over {
                parts.apply_window(within, into);
            }
            return Ok(());
        }
    }

    /// Returns the content of a data block with unsynced changes. Holes and blocks beyond the end read as
    /// zeros.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read_block(&self, id: BlockId) -> Result<Arc<Block>, ObjectError> {
        loop {
            let state = self.state.lock();
            let bytes = state.shape().block_bytes();
            if let BlockSource::Slot(slot) = state.newest_place(id.0)
                && let Some(BlockChange::Whole(block)) = state.slots[slot].blocks.get(&id.0)
            {
                return Ok(block.view());
            }
            let (bottom, parts) = state.layers(id.0, state.slots.len());
            let over: Vec<PartialWrite> = parts.into_iter().cloned().collect();
            let synced = Arc::clone(&state.synced);
            drop(state);
            let mut block = match bottom {
                BaseContent::Whole(content) => native_block(content),
                BaseContent::Cloned(pointer) => {
                    match self.read_cloned(&pointer, id.0, NEWEST, false)? {
                        Some(block) => block,
                        None => continue,
                    }
                }
                BaseContent::Nowhere => native_block(Arc::new(vec![0; bytes])),
                BaseContent::Synced => {
                    let block = self.ask_synced(&synced, |tree| tree.read_block(id.0))?;
                    let Some(block) = block else { continue };
                    block
                }
            };
            if over.is_empty() && block.bytes.len() == bytes {
                return Ok(block);
            }
            if !over.is_empty() && block.endian == Endian::Big {
                let mut content = block.bytes.to_vec();
                byteswap::to_native(synced.object_type, &mut content)
                    .map_err(|reason| self.refuse(reason))?;
                block = native_block(Arc::new(content));
            }
            // This may be a hole that still has the block size from before a change.
            let mut block = Block::clone(&block);
            let content = Arc::make_mut(&mut block.bytes);
            content.resize(bytes, 0);
            over.iter().for_each(|parts| parts.apply(content));
            return Ok(Arc::new(block));
        }
    }

    /// Whether the object has changes in any txg that is not committed. Its space usage will then change.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        !self.state.lock().slots.is_empty()
    }
    /// Whether the object has changes in this txg.
    #[must_use]
    pub fn is_dirty(&self, txg: Txg) -> bool {
        self.state.lock().slot_of(txg).is_some()
    }
}
