//! `zfs rewrite`: stores the content of a file again, so that the properties of today apply to it.

use super::write::CHUNK_BYTES;
use super::{Seek, check_regular};
use crate::error::FileError;
use crate::open_node::NodeInner;
use crate::writing::NODE_BYTES;
use crate::{FileSystem, Node};
use millpond_ondisk::BlockId;

impl FileSystem {
    /// Writes every allocated block of a range again: with the compression, checksum, copies, dedup and class of today,
    /// and in a new place. Content, holes, size, times and block size stay. Nothing is logged, and a crash loses nothing.
    /// A `length_bytes` of 0 reaches to the end of the file.
    ///
    /// With `keeps_births`, the blocks keep their logical births: incremental streams leave them out. Snapshots keep the
    /// old blocks either way, so more space is used.
    ///
    /// # Errors
    /// [`FileError::NotSupported`] with `keeps_births` if the pool has not enabled the feature `physical_rewrite`;
    /// [`FileError::IsADirectory`], quotas and space; or if a block cannot be read. Blocks before it are then rewritten.
    pub fn rewrite(
        &self,
        node: &Node,
        offset_bytes: u64,
        length_bytes: u64,
        keeps_births: bool,
    ) -> Result<(), FileError> {
        let open = node.for_change()?;
        check_regular(open.kind())?;
        self.check_writable()?;
        if keeps_births && !self.writing()?.set().policy().may_keep_births {
            return Err(FileError::NotSupported);
        }
        let end = match length_bytes {
            0 => u64::MAX,
            length => offset_bytes.saturating_add(length),
        };
        let mut from = offset_bytes;
        while from < end {
            from = match node.seek(Seek::Data, from) {
                Ok(data) if data < end => data,
                Ok(_) | Err(FileError::NoData) => break,
                Err(error) => return Err(error),
            };
            let to = (from - from % CHUNK_BYTES + CHUNK_BYTES).min(end);
            from = self.rewrite_chunk(open, from, to, keeps_births)?;
        }
        self.settle()
    }

    /// Rewrites in one transaction the blocks that have bytes of the range. Returns where to go on, at or behind `to`.
    fn rewrite_chunk(
        &self,
        node: &NodeInner,
        from: u64,
        to: u64,
        keeps_births: bool,
    ) -> Result<u64, FileError> {
        let _range = self.lock_for_write(node, from, to);
        let block = node.object.block_bytes().max(1);
        let first = from / block;
        let last = (to - 1) / block;
        let last = last.min(node.object.block_id_max().0);
        if first > last {
            return Ok(to);
        }
        // Read before the transaction, which keeps its txg open. The range is locked: the content stays.
        let mut blocks = vec![];
        for id in (first..=last).map(BlockId) {
            blocks.extend(node.object.block_to_rewrite(id)?.map(|block| (id, block)));
        }
        if !blocks.is_empty() {
            let length = (blocks.len() as u64).saturating_mul(block);
            let tx = {
                let _change = node.lock_changes();
                self.check_write_quotas(&node.state())?;
                self.begin_writing(length.saturating_add(NODE_BYTES), length)?
            };
            for (id, block) in &blocks {
                (node.object).rewrite_block(&tx, *id, block, keeps_births)?;
            }
        }
        Ok(to.max((last + 1).saturating_mul(block)))
    }
}
