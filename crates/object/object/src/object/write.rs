//! Changes of an object in memory.

use super::*;
use crate::EncodedContent;
use crate::state::DirtyBlock;

const _: () = assert!(BLOCK_BYTES_MAX <= u32::MAX as u64);

impl Object {
    /// Charges new bytes of a block. Its rest is not in memory, but will be written with them.
    fn charge_part(&self, tx: &Transaction, charged: u64, rest: u64) {
        tx.charge(charged);
        if rest > 0 {
            let copies = self.core.policy.read().copies.max(1);
            tx.charge_rest(rest.saturating_mul(u64::from(copies)));
        }
    }

    /// Returns the state with this transaction's slot in place. The object is then dirty in its set.
    pub(crate) fn change(
        &self,
        tx: &Transaction,
    ) -> Result<(MutexGuard<'_, State>, usize), ObjectError> {
        let mut state = self.state.lock();
        if state.is_freed() {
            return Err(self.refuse("was freed"));
        }
        let slot = self.dirty_slot(&mut state, tx);
        Ok((state, slot))
    }

    fn dirty_slot(&self, state: &mut State, tx: &Transaction) -> usize {
        let (slot, is_new) = state.slot(tx.txg());
        if is_new {
            if let Some(me) = self.me.upgrade() {
                self.core.note_dirty(tx.txg(), me);
            }
            tx.charge(state.dirty_bytes());
        }
        slot
    }

    /// Makes a new object dirty and sets its first bonus.
    pub(crate) fn begin(&self, tx: &Transaction, bonus: Vec<u8>) {
        let mut state = self.state.lock();
        let bonus: Arc<[u8]> = bonus.into();
        let bytes = bonus.len() as u64;
        let slot = self.dirty_slot(&mut state, tx);
        state.reshape(slot, |shape| shape.bonus = Arc::clone(&bonus));
        drop(state);
        tx.charge(2 * bytes);
    }

    pub(crate) fn raise(&self, shape: &Shape, id: u64) -> Result<(), ObjectError> {
        if id <= shape.block_id_max {
            return Ok(());
        }
        if !shape.block_bytes().is_power_of_two() {
            return Err(self.refuse("a block whose size is no power of two is the only one"));
        }
        // The limit of twelve levels.
        let shift = u32::from(shape.indirect_shift).saturating_sub(7) * 11;
        let pointers = self.pointer_count as u128;
        if u128::from(id) >= pointers.checked_shl(shift).unwrap_or(u128::MAX) {
            return Err(self.refuse("larger than an object can be"));
        }
        Ok(())
    }

    /// Writes bytes at byte `offset`. Blocks that are only partly overwritten are read first.
    ///
    /// # Errors
    /// If such a block cannot be read, if the object was freed, or if its block size is not a power of two
    /// and the range reaches beyond its only block.
    pub fn write(&self, tx: &Transaction, offset: u64, bytes: &[u8]) -> Result<(), ObjectError> {
        self.write_over(tx, offset, bytes, &EdgeBlocks::default())
    }

    /// As [`Object::write`], with the blocks that [`Object::read_edges`] read for it.
    ///
    /// # Errors
    /// As [`Object::write`]. It reads only what has changed since, or is in no edge block.
    pub fn write_over(
        &self,
        tx: &Transaction,
        offset: u64,
        bytes: &[u8],
        edges: &EdgeBlocks,
    ) -> Result<(), ObjectError> {
        let Some(last) = (bytes.len() as u64).checked_sub(1) else {
            return Ok(());
        };
        let Some(last) = offset.checked_add(last) else {
            return Err(self.refuse("larger than an object can be"));
        };
        {
            let state = self.state.lock();
            let shape = state.shape();
            // Refuse before anything is written.
            self.raise(shape, last / shape.block_bytes() as u64)?;
        }
        self.check_all_parents(offset, last)?;
        let mut offset = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let size = self.block_bytes();
            let within = (offset % size) as usize;
            let count = rest.len().min(size as usize - within);
            let (now, later) = rest.split_at(count);
            if count as u64 == size {
                self.write_block(tx, BlockId(offset / size), now.to_vec())?;
            } else {
                self.patch(tx, offset / size, within, now, edges)?;
            }
            offset = offset.saturating_add(count as u64);
            rest = later;
        }
        Ok(())
    }

    /// As [`Object::check_parents`], for all blocks from byte `first` to byte `last`.
    fn check_all_parents(&self, first: u64, last: u64) -> Result<(), ObjectError> {
        let size = self.block_bytes();
        let span = 1u64 << self.synced_dnode().pointers_shift().min(32);
        let (mut id, last) = (first / size, last / size);
        while id <= last {
            self.check_parents(id)?;
            id = (id - id % span).saturating_add(span);
        }
        Ok(())
    }

    /// Replaces the content of a whole block without copying it.
    ///
    /// # Errors
    /// If `content` is not as long as a block, if an indirect block above it cannot be read, or as
    /// [`Object::write`].
    pub fn write_block(
        &self,
        tx: &Transaction,
        id: BlockId,
        content: Vec<u8>,
    ) -> Result<(), ObjectError> {
        self.check_parents(id.0)?;
        let (mut state, slot) = self.change(tx)?;
        let shape = &state.slots[slot].shape;
        if content.len() != shape.block_bytes() {
            return Err(self.refuse("content is not as long as a block"));
        }
        self.raise(shape, id.0)?;
        let charged = state.put(slot, id.0, Arc::new(content));
        drop(state);
        tx.charge(charged);
        Ok(())
    }

    /// Replaces the content of a whole block, and gives the form in which it is to be stored. The caller has verified that
    /// `encoded` decodes to `content`.
    ///
    /// # Errors
    /// As [`Object::write_block`].
    pub fn write_encoded(
        &self,
        tx: &Transaction,
        id: BlockId,
        content: Vec<u8>,
        encoded: EncodedContent,
    ) -> Result<(), ObjectError> {
        self.check_parents(id.0)?;
        let (mut state, slot) = self.change(tx)?;
        let shape = &state.slots[slot].shape;
        if content.len() != shape.block_bytes() {
            return Err(self.refuse("content is not as long as a block"));
        }
        self.raise(shape, id.0)?;
        let block = DirtyBlock::with_encoded(Arc::new(content), encoded);
        let charged = state.put_block(slot, id.0, &block);
        drop(state);
        tx.charge(charged);
        Ok(())
    }

    /// Edits a little-endian block, in place if no reader holds it.
    ///
    /// `edit` sees the newest content. Its result holds in this txg and in newer ones.
    ///
    /// # Errors
    /// If the block cannot be read, or as [`Object::write`].
    pub fn edit_block(
        &self,
        tx: &Transaction,
        id: BlockId,
        edit: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), ObjectError> {
        {
            let (mut state, slot) = self.change(tx)?;
            let last = state.slots.len() - 1;
            if slot == last
                && let Some(change) = state.slots[slot].blocks.get_mut(&id.0)
                && let Some(block) = change.as_whole_mut()
            {
                edit(block.content_mut());
                return Ok(());
            }
        }
        let mut content = self.read_block(id)?.bytes.to_vec();
        edit(&mut content);
        self.write_block(tx, id, content)
    }

    /// Overwrites part of one block.
    pub(crate) fn patch(
        &self,
        tx: &Transaction,
        id: u64,
        start: usize,
        bytes: &[u8],
        edges: &EdgeBlocks,
    ) -> Result<(), ObjectError> {
        let mut known = edges.get(id);
        let mut original: Option<(Arc<millpond_ondisk::BlockPointer>, Arc<Block>)> = None;
        loop {
            if !self.own_clones(tx, id)? {
                continue;
            }
            let (mut state, slot) = self.change(tx)?;
            let shape = &state.slots[slot].shape;
            let size = shape.block_bytes();
            if start + bytes.len() > size {
                return Err(self.refuse("block size changed while it was written"));
            }
            self.raise(shape, id)?;
            // Only where the rest of the block is known to be readable. Otherwise the write would fail when
            // its txg is written, too late to report an error to the caller.
            let may_be_apart = shape.block_id_max > 0 && !shape.object_type.is_metadata();
            let is_readable = state.slots[slot].blocks.contains_key(&id);
            if may_be_apart
                && is_readable
                && let Some((charged, rest)) = state.patch_parts(slot, id, start, bytes)
            {
                drop(state);
                self.charge_part(tx, charged, rest);
                return Ok(());
            }
            let mut base = Vec::new();
            if let (BaseContent::Cloned(pointer), _) = state.layers(id, slot + 1) {
                match &original {
                    Some((known, block)) if Arc::ptr_eq(known, &pointer) => {
                        base = block.bytes.to_vec();
                    }
                    _ => {
                        drop(state);
                        let block = self.read_cloned(&pointer, id, tx.txg(), false)?;
                        original = block.map(|block| (pointer, block));
                        continue;
                    }
                }
            }
            if state.needs_synced(id, slot + 1) {
                let synced = Arc::clone(&state.synced);
                match &known {
                    Some((dnode, block)) if Arc::ptr_eq(dnode, &synced) => {
                        if may_be_apart
                            && let Some((charged, rest)) = state.patch_parts(slot, id, start, bytes)
                        {
                            drop(state);
                            self.charge_part(tx, charged, rest);
                            return Ok(());
                        }
                        let mut content = block.bytes.to_vec();
                        if block.endian == Endian::Big {
                            byteswap::to_native(synced.object_type, &mut content)
                                .map_err(|reason| self.refuse(reason))?;
                        }
                        base = content;
                    }
                    _ => {
                        drop(state);
                        let block = self.read_base(&synced, id, may_be_apart)?;
                        known = block.map(|block| (synced, block));
                        continue;
                    }
                }
            }
            // Called only if the slot holds nothing of the block yet. Otherwise the block is patched in its
            // slot.
            let whole = || {
                base.resize(size, 0);
                base
            };
            let charged = state.patch(slot, id, whole, start, bytes);
            drop(state);
            tx.charge(charged);
            return Ok(());
        }
    }

    /// Changes the size of data blocks (a multiple of 512), and of indirect blocks if requested. Content is
    /// kept up to the smaller size.
    ///
    /// # Errors
    /// If there are blocks other than block 0, if a size is not valid, or (for indirect blocks) if the tree
    /// has more than one level.
    pub fn set_block_bytes(
        &self,
        tx: &Transaction,
        bytes: u32,
        indirect_shift: Option<u8>,
    ) -> Result<(), ObjectError> {
        let sectors = self.core.block_sectors(self.id, bytes)?;
        if indirect_shift.is_some_and(|shift| !(12..=17).contains(&shift)) {
            return Err(self.refuse("indirect blocks have 4 to 128 KiB"));
        }
        let mut known: Option<(Arc<Dnode>, Option<Arc<Block>>)> = None;
        loop {
            let (mut state, slot) = self.change(tx)?;
            let newer = &state.slots[slot..];
            let is_same = newer.iter().all(|s| s.shape.block_sectors == sectors);
            if !is_same && newer.iter().any(|s| s.shape.block_id_max > 0) {
                return Err(self.refuse("an object of several blocks keeps their size"));
            }
            if let Some(shift) = indirect_shift
                && newer.iter().any(|s| s.shape.indirect_shift != shift)
                && (state.synced.levels > 1 || state.slots.iter().any(|s| s.shape.block_id_max > 0))
            {
                return Err(self.refuse("a tree of several levels keeps their block size"));
            }
            let mut content = None;
            if !is_same {
                match state.place(0, slot + 1) {
                    BlockSource::Nowhere => {}
                    BlockSource::Slot(at) => match state.slots[at].blocks.get(&0) {
                        Some(BlockChange::Whole(block)) => content = Some(block.content().to_vec()),
                        _ => {
                            drop(state);
                            // Written as a whole block, which can have another size.
                            let all = self.read_block(BlockId(0))?.bytes.to_vec();
                            self.write_block(tx, BlockId(0), all)?;
                            continue;
                        }
                    },
                    BlockSource::Synced => {
                        let synced = Arc::clone(&state.synced);
                        match &known {
                            Some((dnode, block)) if Arc::ptr_eq(dnode, &synced) => {
                                content = block.as_ref().map(|block| block.bytes.to_vec());
                            }
                            _ => {
                                drop(state);
                                let block = self.ask_synced(&synced, |tree| {
                                    let (pointer, _) = tree.descend(0, 0)?;
                                    if pointer.is_hole() {
                                        return Ok(None);
                                    }
                                    tree.read_block(0).map(Some)
                                })?;
                                known = block.map(|block| (synced, block));
                                continue;
                            }
                        }
                    }
                }
            }
            if let Some((dnode, Some(block))) = &known
                && block.endian == Endian::Big
                && let Some(content) = &mut content
            {
                byteswap::to_native(dnode.object_type, content)
                    .map_err(|reason| self.refuse(reason))?;
            }
            state.reshape(slot, |shape| {
                shape.block_sectors = sectors;
                shape.indirect_shift = indirect_shift.unwrap_or(shape.indirect_shift);
            });
            let mut charged = 0;
            if let Some(mut content) = content {
                content.resize(bytes as usize, 0);
                charged = state.put(slot, 0, Arc::new(content));
            }
            drop(state);
            tx.charge(charged);
            return Ok(());
        }
    }

    /// Marks the object as freed in the transaction's txg. Drops changes of newer txgs.
    pub(crate) fn free(&self, tx: &Transaction) -> Result<(), ObjectError> {
        let (mut state, slot) = self.change(tx)?;
        state.slots.truncate(slot + 1);
        if let Some(slot) = state.slots.last_mut() {
            slot.blocks.clear();
            slot.spill = None;
            slot.is_freed = true;
        }
        self.core.forget_newer(tx.txg(), self.id);
        Ok(())
    }

    /// Rewrites the dnode in this txg although nothing else changes, as needed to complete accounting later.
    /// A freed object stays freed.
    pub fn touch(&self, tx: &Transaction) {
        let mut state = self.state.lock();
        if !state.is_freed() {
            self.dirty_slot(&mut state, tx);
        }
    }
}
