//! Blocks that refer to the stored blocks of other objects of the pool.
//!
//! A cloned block is dirty without content: its slot has the pointer of the original. Readers read through that pointer,
//! and a writer of a part of it reads it first. When the txg is synced the pointer goes into the tree, with that txg as
//! its birth.
//!
//! Page `docs/format/block-cloning.md`.

use crate::state::{BaseContent, BlockChange};
use crate::{Block, Object, ObjectError, ObjectView};
use millpond_block::PointerValidity;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockId, BlockPointer, EmbeddedKind, Level, ObjectType, Txg};
use millpond_txg::Transaction;

/// What a cloned block takes in memory until it is written, in bytes: two pointers, entries in tables.
const CLONED_BYTES: u64 = 512;

/// The state with all changes.
pub(crate) const NEWEST: Txg = Txg(u64::MAX);

/// Whether a block can have further references from other objects: file or volume data.
/// Also holes, and blocks that are stored in their pointers. An encrypted block can have them where its key is known.
#[must_use]
pub fn is_clonable(pointer: &BlockPointer) -> bool {
    if pointer.is_hole() {
        return true;
    }
    let is_data = matches!(
        pointer.object_type(),
        ObjectType::PLAIN_FILE | ObjectType::ZVOL
    );
    let is_redacted = pointer.embedded_kind() == Some(EmbeddedKind::Redacted);
    is_data && pointer.level() == Level(0) && !is_redacted
}

/// What a descent to a data block found: its pointer, or the default pointer for a hole, also one above the leaves.
fn of_data<L: Into<u64>>(pointer: BlockPointer, level: L) -> BlockPointer {
    match level.into() {
        0 if !pointer.is_hole() => pointer,
        _ => BlockPointer::default(),
    }
}

impl Object {
    /// The pointer of a data block as of the last sync; `None` if the block has changed since.
    ///
    /// # Errors
    /// If an indirect block above it cannot be read, or the object was freed.
    pub fn stored_pointer(&self, id: BlockId) -> Result<Option<BlockPointer>, ObjectError> {
        loop {
            let synced = {
                let state = self.state();
                if state.is_freed() {
                    return Err(self.refuse("was freed"));
                }
                let is_changed = |slot: &crate::state::Slot| {
                    slot.blocks.contains_key(&id.0) || slot.freed.contains(id.0)
                };
                if state.slots.iter().any(is_changed) {
                    return Ok(None);
                }
                if id.0 > state.synced.block_id_max.0 {
                    return Ok(Some(BlockPointer::default()));
                }
                Arc::clone(&state.synced)
            };
            let found = self.ask_synced(&synced, |tree| tree.descend(0, id.0))?;
            // If a sync came between, the block may have changed before it.
            if let Some((pointer, level)) = found
                && Arc::ptr_eq(&self.state().synced, &synced)
            {
                return Ok(Some(of_data(pointer, level)));
            }
        }
    }

    /// Makes a data block a clone of the stored block that `pointer` refers to. Nothing is read or written.
    ///
    /// The caller ensures that no txg before that of `tx` frees the stored block. A hole is not accepted: free the
    /// range instead.
    ///
    /// # Errors
    /// If the pointer is not [clonable](is_clonable) or its size is not the block size, if an indirect block above the
    /// new place cannot be read, or as [`Object::write`].
    pub fn clone_block(
        &self,
        tx: &Transaction,
        id: BlockId,
        pointer: &BlockPointer,
    ) -> Result<(), ObjectError> {
        self.check_parents(id.0)?;
        let (mut state, slot) = self.change(tx)?;
        let shape = &state.slots[slot].shape;
        // An encrypted set holds encrypted blocks only, which its own key opens; the caller compares the keys.
        let is_own_kind = pointer.has_crypt_bit() == self.core.key.is_some();
        let is_sound = !pointer.is_hole() && is_clonable(pointer) && is_own_kind;
        if !is_sound || pointer.lsize_bytes() != shape.block_bytes() as u64 {
            return Err(self.refuse("a pointer of another kind is not cloned"));
        }
        if !pointer.is_embedded() && pointer.object_type() != shape.object_type {
            return Err(self.refuse("a block of another type is not cloned"));
        }
        self.raise(shape, id.0)?;
        let is_new = state.put_clone(slot, id.0, &Arc::new(*pointer));
        drop(state);
        if is_new {
            tx.charge(CLONED_BYTES);
        }
        Ok(())
    }

    /// Reads a block that is not written yet through the pointer of its original, in its state up to `until`. `None`
    /// if it changed meanwhile.
    pub(crate) fn read_cloned(
        &self,
        pointer: &Arc<BlockPointer>,
        id: u64,
        until: Txg,
        has_rest: bool,
    ) -> Result<Option<Arc<Block>>, ObjectError> {
        let synced = self.synced_dnode();
        // Once the block was overwritten, the original may be gone.
        let is_cloned = || {
            let state = self.state();
            let slots = state.slots.partition_point(|slot| slot.txg <= until);
            let (bottom, _) = state.layers(id, slots);
            matches!(&bottom, BaseContent::Cloned(now) if Arc::ptr_eq(now, pointer))
        };
        let tree = self.tree(&synced);
        let maybe_outdated = tree.with_validity(PointerValidity::MaybeOutdated(&is_cloned));
        match maybe_outdated.read_data(pointer, id, has_rest) {
            Err(_) if !is_cloned() => Ok(None),
            // Read again, to count what is wrong.
            Err(_) => tree.read_data(pointer, id, has_rest).map(Some),
            found => found.map(Some),
        }
    }

    /// Gives a block content of its own where a txg from this slot on has it as a clone, so that bytes of it can be
    /// changed there. Returns false if there was such a txg: the caller must look again.
    pub(crate) fn own_clones(&self, tx: &Transaction, id: u64) -> Result<bool, ObjectError> {
        let pointer = {
            let (state, slot) = self.change(tx)?;
            let mut newer = state.slots[slot..].iter();
            newer.find_map(|slot| match slot.blocks.get(&id) {
                Some(BlockChange::Cloned(pointer)) => Some(Arc::clone(pointer)),
                _ => None,
            })
        };
        let Some(pointer) = pointer else {
            return Ok(true);
        };
        let synced = self.synced_dnode();
        let is_cloned = || {
            let state = self.state();
            let mut changes = state.slots.iter().filter_map(|slot| slot.blocks.get(&id));
            changes.any(
                |change| matches!(change, BlockChange::Cloned(now) if Arc::ptr_eq(now, &pointer)),
            )
        };
        let tree = self.tree(&synced);
        let tree = tree.with_validity(PointerValidity::MaybeOutdated(&is_cloned));
        let block = tree.read_data(&pointer, id, false);
        let (mut state, slot) = self.change(tx)?;
        let mut charged = 0;
        let mut block = block.map(|block| Arc::clone(&block.bytes));
        for slot in &mut state.slots[slot..] {
            let Some(change @ BlockChange::Cloned(_)) = slot.blocks.get_mut(&id) else {
                continue;
            };
            if !matches!(change, BlockChange::Cloned(now) if Arc::ptr_eq(now, &pointer)) {
                continue;
            }
            let content = std::mem::replace(&mut block, Ok(Arc::default()))?;
            charged += content.len() as u64;
            *change = BlockChange::whole(Arc::clone(&content));
            block = Ok(content);
        }
        drop(state);
        tx.charge(charged);
        Ok(false)
    }
}

impl ObjectView {
    /// The pointer of a data block. A hole beyond the end and above the leaves.
    ///
    /// # Errors
    /// If an indirect block above it cannot be read.
    pub fn stored_pointer(&self, id: BlockId) -> Result<BlockPointer, ObjectError> {
        if id > self.block_id_max() {
            return Ok(BlockPointer::default());
        }
        let (pointer, level) = self.tree().descend(0, id.0)?;
        Ok(of_data(pointer, level))
    }
}
