//! Frees large objects in bounded steps.
//!
//! A file of 10 TB has 80 million blocks. Their pointers do not fit into one txg, so such a file is freed in
//! chunks, each in its own transaction.

use crate::Object;
use crate::ObjectError;
use crate::tree::Tree;
use millpond_ondisk::{BlockId, BlockPointer, Dnode};
use std::ops::Range;

/// Minimum number of blocks that an indirect block counts for. Its fill count comes from disk and may be
/// wrong; this bounds the error.
const LEAF_BLOCKS_MIN: u64 = 64;

/// The first chunk of an object's blocks in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeChunk {
    /// The first data block after the chunk; `None` if the chunk reaches the end of the range.
    pub end: Option<BlockId>,
    /// The approximate number of blocks in it, without holes.
    pub blocks: u64,
}

impl Object {
    /// Returns how far to free the data blocks of `range` so that about `blocks_max` blocks are freed.
    ///
    /// A chunk contains at least the blocks of one indirect block. Only synced blocks count. A chunk that is
    /// not the last one ends at the beginning of an indirect block. Does not read level-1 indirect blocks and
    /// never fails: blocks below an unreadable indirect block count as one block.
    #[must_use]
    pub fn next_free_chunk(&self, range: Range<BlockId>, blocks_max: u64) -> FreeChunk {
        let synced = self.synced_dnode();
        let mut search = Search {
            tree: self.tree(&synced),
            dnode: &synced,
            from: range.start.0,
            end: range.end.0,
            blocks_max,
            blocks: 0,
        };
        let top = synced.levels.saturating_sub(1);
        let pointers = synced.block_pointers.iter().zip(0u64..);
        let mut end = None;
        for (pointer, index) in pointers {
            end = search.take(top, index, pointer);
            if end.is_some() {
                break;
            }
        }
        FreeChunk {
            end: end.map(BlockId),
            blocks: search.blocks,
        }
    }

    /// Checks that freeing whole blocks from or up to block `edge` can be synced: indirect blocks that keep
    /// some of their pointers must be readable.
    pub(crate) fn check_free_edge(&self, edge: u64) -> Result<(), ObjectError> {
        loop {
            let synced = self.synced_dnode();
            let shift = synced.pointers_shift();
            let top = synced.levels.saturating_sub(1);
            // The lowest level at which the edge lies inside an indirect block.
            let inside = (1..=top).find(|level| {
                let span = 1u64.checked_shl(shift.saturating_mul(u32::from(*level)));
                span.is_none_or(|span| !edge.is_multiple_of(span))
            });
            let Some(level) = inside else {
                return Ok(());
            };
            let below = level - 1;
            let id = edge.checked_shr(shift.saturating_mul(u32::from(below)));
            let id = id.unwrap_or(0);
            if (self.ask_synced(&synced, |tree| tree.descend(below, id))?).is_some() {
                return Ok(());
            }
        }
    }
}

/// Walks a tree from its front until it has counted enough blocks.
struct Search<'a> {
    tree: Tree<'a>,
    dnode: &'a Dnode,
    from: u64,
    /// The first leaf after the range.
    end: u64,
    blocks_max: u64,
    blocks: u64,
}

impl Search<'_> {
    /// Adds the blocks below a pointer to the chunk. Returns the first leaf that does not fit, if any.
    fn take(&mut self, level: u8, id: u64, pointer: &BlockPointer) -> Option<u64> {
        let shift = self.dnode.pointers_shift();
        let span_shift = shift.saturating_mul(u32::from(level));
        let low = id.checked_shl(span_shift)?;
        let span = 1u64.checked_shl(span_shift).unwrap_or(u64::MAX);
        let (start, end) = (low.max(self.from), low.saturating_add(span).min(self.end));
        if start >= end || pointer.is_hole() {
            return None;
        }
        if level >= 2
            && let Ok(block) = self.tree.read_indirect(pointer, level, id)
        {
            let first = id << shift;
            for (bytes, index) in block.bytes.chunks_exact(128).zip(0u64..) {
                // Each chunk has the size of a pointer, so it always decodes.
                let child = BlockPointer::decode(bytes, block.endian).unwrap_or_default();
                let end = self.take(level - 1, first.wrapping_add(index), &child);
                if end.is_some() {
                    return end;
                }
            }
            return None;
        }
        let most = end - start;
        let count = match level {
            1 => pointer.fill().clamp(LEAF_BLOCKS_MIN.min(most), most),
            // A data block, or an unreadable indirect block below which nothing will be freed.
            _ => 1,
        };
        if self.blocks > 0 && self.blocks.saturating_add(count) > self.blocks_max {
            return Some(start);
        }
        self.blocks = self.blocks.saturating_add(count);
        None
    }
}
