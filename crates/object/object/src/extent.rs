//! Finding data and holes without reading data.

use crate::{Object, ObjectError};
use millpond_ondisk::BlockId;

impl Object {
    /// The first data block at or after `from` that is not a hole, or `None`.
    ///
    /// # Errors
    /// If an indirect block cannot be read, or more of them would have to be read than fit on the
    /// pool's devices, which only happens where many pointers lead to one.
    pub fn next_data_block(&self, from: BlockId) -> Result<Option<BlockId>, ObjectError> {
        Ok(self.tree().next(from.0, false)?.map(BlockId))
    }

    /// The first hole at or after `from`; the end of the object counts as one.
    ///
    /// # Errors
    /// As [`Object::next_data_block`].
    pub fn next_hole_block(&self, from: BlockId) -> Result<BlockId, ObjectError> {
        let end = BlockId(self.block_id_max().0.saturating_add(1));
        let found = self.tree().next(from.0, true)?.map(BlockId);
        Ok(found.unwrap_or(end).min(end.max(from)))
    }
}
