//! Stores blocks again with unchanged content, so that the properties of today apply to them.

use crate::state::{BlockChange, DirtyBlock};
use crate::{Block, Object, ObjectError};
use millpond_env::sync::Arc;
use millpond_ondisk::BlockId;
use millpond_txg::Transaction;

impl Object {
    /// The content of a data block that [`Object::rewrite_block`] would write again. `None` for a hole, and for a block
    /// with changes that are not on stable storage: it will be written anyway.
    ///
    /// # Errors
    /// If the block or an indirect block above it cannot be read, or if the object was freed.
    pub fn block_to_rewrite(&self, id: BlockId) -> Result<Option<Arc<Block>>, ObjectError> {
        let is_clone = {
            let state = self.state();
            let newest = state.slots.iter().rev();
            let mut changes = newest.filter_map(|slot| slot.blocks.get(&id.0));
            // It would get the form of its original.
            matches!(changes.next(), Some(BlockChange::Cloned(_)))
        };
        let is_stored = is_clone
            || self
                .stored_pointer(id)?
                .is_some_and(|pointer| !pointer.is_hole());
        match is_stored {
            true => self.read_block(id).map(Some),
            false => Ok(None),
        }
    }

    /// Writes a data block again in this txg. `block` is its content, from [`Object::block_to_rewrite`]. The caller
    /// ensures that it has not changed since.
    ///
    /// With `keeps_birth`, the new pointer keeps the logical birth of the old one, so incremental streams leave the block
    /// out. The caller has checked that the feature `physical_rewrite` is enabled.
    ///
    /// # Errors
    /// If an indirect block above it cannot be read, or if the object was freed.
    pub fn rewrite_block(
        &self,
        tx: &Transaction,
        id: BlockId,
        block: &Arc<Block>,
        keeps_birth: bool,
    ) -> Result<(), ObjectError> {
        self.check_parents(id.0)?;
        let (mut state, slot) = self.change(tx)?;
        if block.bytes.len() != state.slots[slot].shape.block_bytes() {
            return Err(self.refuse("block size changed while it was rewritten"));
        }
        let dirty = DirtyBlock::rewritten(Arc::clone(&block.bytes), keeps_birth);
        let charged = state.put_block(slot, id.0, &dirty);
        drop(state);
        tx.charge(charged);
        Ok(())
    }
}
