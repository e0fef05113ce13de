//! Prefetch of the dnodes of a directory's entries, for a reader that will look at each file: `ls -l`, `find`,
//! `rsync`.

use crate::core::SLOTS_PER_BLOCK;
use crate::tree::Tree;
use crate::{ObjectSet, ObjectSetView};
use millpond_block::PooledBuf;
use millpond_env::sync::Arc;
use millpond_ondisk::{DNODE_SLOT_BYTES, ObjectId};
use std::collections::BTreeSet;

/// Ids of blocks of dnodes.
type Blocks = Vec<u64>;

/// The blocks of the dnodes that are not cached, in requests of the store's size. The reader asks for the
/// files in an order of its own, so the blocks are sorted by their place in the array.
fn requests(tree: &Tree<'_>, ids: impl Iterator<Item = ObjectId>, slots: u64) -> Vec<Blocks> {
    if tree.store.ahead_bytes_max() == 0 || !tree.caching.prefetched.contains(true) {
        return vec![];
    }
    let blocks: BTreeSet<u64> = ids
        .filter(|id| id.0 != 0)
        .filter_map(|id| id.0.checked_div(slots))
        .filter(|block| *block <= tree.dnode.block_id_max.0)
        .collect();
    let wanted: Blocks = (blocks.into_iter())
        .filter(|block| !tree.is_cached(*block))
        .collect();
    let block_bytes = tree.dnode.data_block_bytes().max(1);
    let count = tree.store.prefetch_request_bytes() / block_bytes;
    let count = usize::try_from(count).unwrap_or(1).max(1);
    wanted.chunks(count).map(<[u64]>::to_vec).collect()
}

fn run(tree: &Tree<'_>, blocks: &[u64]) {
    tree.prefetch_data(blocks.iter().map(|block| (*block, PooledBuf::default())));
}

impl ObjectSetView {
    /// Prefetches the dnodes of these objects. Ids without an object are passed over.
    pub fn prefetch_dnodes(self: &Arc<Self>, ids: impl Iterator<Item = ObjectId>) {
        let slots = self.slots_per_block();
        for blocks in requests(&self.dnode_tree(), ids, slots) {
            // A prefetch request must not keep a set alive that has no other user.
            let set = Arc::downgrade(self);
            let block_bytes = slots.saturating_mul(DNODE_SLOT_BYTES as u64);
            let bytes = block_bytes.saturating_mul(blocks.len() as u64);
            self.store().queue_prefetch(bytes, move || {
                if let Some(set) = set.upgrade() {
                    run(&set.dnode_tree(), &blocks);
                }
            });
        }
    }
}

impl ObjectSet {
    /// Prefetches the dnodes of these objects, as they were synced last. Ids without an object are passed over.
    pub fn prefetch_dnodes(&self, ids: impl Iterator<Item = ObjectId>) {
        let meta = Arc::clone(&self.core.table.lock().synced.meta);
        let tree = self.core.tree(ObjectId(0), &meta);
        for blocks in requests(&tree, ids, SLOTS_PER_BLOCK) {
            let (core, meta) = (Arc::downgrade(&self.core), Arc::clone(&meta));
            let bytes = meta.data_block_bytes().saturating_mul(blocks.len() as u64);
            self.store().queue_prefetch(bytes, move || {
                if let Some(core) = core.upgrade() {
                    run(&core.tree(ObjectId(0), &meta), &blocks);
                }
            });
        }
    }
}
