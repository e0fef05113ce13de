//! Finds data and holes without reading data blocks.

use crate::{ObjectError, ObjectView};
use millpond_ondisk::BlockId;

impl ObjectView {
    /// Returns the first data block at or after `from` that is not a hole, or `None`.
    ///
    /// # Errors
    /// If an indirect block cannot be read, or if more indirect blocks are met than fit on the pool's
    /// devices, which only happens where many pointers lead to one block.
    pub fn next_data_block(&self, from: BlockId) -> Result<Option<BlockId>, ObjectError> {
        Ok(self.tree().next(from.0, false)?.map(BlockId))
    }

    /// Returns the first hole at or after `from`. The end of the object counts as a hole.
    ///
    /// # Errors
    /// As [`ObjectView::next_data_block`].
    pub fn next_hole_block(&self, from: BlockId) -> Result<BlockId, ObjectError> {
        let end = BlockId(self.block_id_max().0.saturating_add(1));
        let found = self.tree().next(from.0, true)?.map(BlockId);
        Ok(found.unwrap_or(end).min(end.max(from)))
    }
}
