//! Frees content in transactions of bounded size.

use crate::FileSystem;
use crate::error::FileError;
use crate::open_node::NodeInner;
use millpond_object::Object;
use millpond_ondisk::BlockId;

/// About the most blocks freed in one transaction: a third of what one txg frees.
pub const FREE_BLOCKS_MAX: u64 = 1 << 15;
/// The most bytes that freeing that many blocks dirties: the indirect blocks above them.
pub const FREE_DIRTY_BYTES: u64 = 8 << 20;

impl FileSystem {
    /// Frees whole blocks of a range, one transaction per chunk, until the rest fits one transaction.
    ///
    /// Returns the number of remaining blocks. A crash in between leaves a hole inside the range that was
    /// being freed anyway.
    pub(crate) fn free_most(
        &self,
        node: &NodeInner,
        start: u64,
        end: u64,
    ) -> Result<u64, FileError> {
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
    pub(crate) fn free_content(
        &self,
        object: &Object,
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
}
