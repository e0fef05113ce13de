//! Reads the blocks that a write overwrites in part, before its transaction begins.
//!
//! A transaction keeps its txg open. A read in it would keep the whole pool waiting for one device.

use super::*;

/// The blocks at the ends of a write that are overwritten in part, as they were on disk: at most two.
#[derive(Debug, Default)]
pub struct EdgeBlocks(Vec<EdgeBlock>);

#[derive(Debug)]
struct EdgeBlock {
    id: u64,
    /// The dnode that the block was read by. With another one, the block may be another.
    synced: Arc<Dnode>,
    block: Arc<Block>,
}

impl EdgeBlocks {
    /// A block, with the dnode that it was read by.
    pub(super) fn get(&self, id: u64) -> Option<(Arc<Dnode>, Arc<Block>)> {
        let edge = self.0.iter().find(|edge| edge.id == id)?;
        Some((Arc::clone(&edge.synced), Arc::clone(&edge.block)))
    }
}

impl Object {
    /// Reads the blocks that a write of `length_bytes` at `offset_bytes` overwrites in part, as far as they are not in
    /// memory. For [`Object::write_over`]; the caller holds no transaction.
    ///
    /// # Errors
    /// If one of them cannot be read. The write would fail.
    pub fn read_edges(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<EdgeBlocks, ObjectError> {
        let (size, end) = (
            self.block_bytes(),
            offset_bytes.saturating_add(length_bytes),
        );
        let mut edges = EdgeBlocks::default();
        if length_bytes == 0 {
            return Ok(edges);
        }
        let (first, last) = (offset_bytes / size, (end - 1) / size);
        let is_first_whole =
            offset_bytes.is_multiple_of(size) && (last > first || end.is_multiple_of(size));
        if !is_first_whole {
            edges.0.extend(self.read_edge(first)?);
        }
        if last > first && !end.is_multiple_of(size) {
            edges.0.extend(self.read_edge(last)?);
        }
        Ok(edges)
    }

    /// `None` if the block is in memory, or was changed meanwhile.
    fn read_edge(&self, id: u64) -> Result<Option<EdgeBlock>, ObjectError> {
        let (synced, is_kept_apart) = {
            let state = self.state.lock();
            let slots = state.slots.len();
            let is_dirty = (state.slots.last()).is_some_and(|slot| slot.blocks.contains_key(&id));
            if is_dirty || !state.needs_synced(id, slots) {
                return Ok(None);
            }
            let shape = state.shape();
            let is_kept_apart = shape.block_id_max > 0 && !shape.object_type.is_metadata();
            (Arc::clone(&state.synced), is_kept_apart)
        };
        let block = self.read_base(&synced, id, is_kept_apart)?;
        Ok(block.map(|block| EdgeBlock { id, synced, block }))
    }

    /// Reads a block of the synced tree that is overwritten in part. The sync reads it again, if it keeps the new part
    /// apart. `None` if a sync came between.
    pub(super) fn read_base(
        &self,
        synced: &Arc<Dnode>,
        id: u64,
        is_kept_apart: bool,
    ) -> Result<Option<Arc<Block>>, ObjectError> {
        self.ask_synced(synced, |tree| {
            let tree = Tree {
                is_sequential: true,
                ..*tree
            };
            tree.read_part(id, is_kept_apart)
        })
    }
}
