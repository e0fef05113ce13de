//! Merges empty neighbouring leaves.

use super::ZapStore;
use super::stage::Stage;
use crate::ZapError;
use millpond_env::mark;
use millpond_ondisk::zap::ZapLeafMut;

impl<S: ZapStore> Stage<'_, S> {
    /// Merges the leaf in block `id`, which covers `hash` and has become empty, with its sibling as long as
    /// that is an empty leaf of equal prefix length. A sibling that cannot be read stays unchanged, because
    /// merging is optional.
    pub(super) fn merge(&mut self, id: u64, hash: u64) -> Result<(), ZapError> {
        let mut id = id;
        let mut has_freed_last = false;
        while let Ok(Some((prefix, bits, sibling))) = self.empty_sibling(id, hash) {
            mark::hit("zap-leaves-merged");
            let (kept, freed) = if prefix & 1 == 0 {
                (id, sibling)
            } else {
                (sibling, id)
            };
            let leaves = self.header.leaf_count.checked_sub(1);
            self.header.leaf_count = leaves
                .filter(|leaves| *leaves > 0)
                .ok_or_else(|| self.fail(0, "leaves miscounted", 64))?;
            let range_shift = self.header.table_shift - bits;
            self.point_to((prefix | 1) << range_shift, 1 << range_shift, kept)?;
            self.edit(kept, |bytes| {
                ZapLeafMut::open(bytes)?.set_prefix(prefix >> 1, bits - 1)
            })?
            .map_err(|error| self.corrupt(kept, error))?;
            self.free(freed, 1);
            has_freed_last |= freed + 1 == self.header.free_block;
            id = kept;
        }
        if has_freed_last {
            self.header.free_block = self.first_unused()?;
        }
        Ok(())
    }

    /// Returns the leaf's prefix, the length of the prefix, and the block of its sibling, if the two can be
    /// merged.
    fn empty_sibling(&self, id: u64, hash: u64) -> Result<Option<(u64, u32, u64)>, ZapError> {
        let (prefix, bits) = {
            let bytes = self.read(id)?;
            let leaf = self.leaf(&bytes, id, hash)?;
            (leaf.prefix, leaf.prefix_bits)
        };
        if bits == 0 {
            return Ok(None);
        }
        let sibling_prefix = prefix ^ 1;
        let range_shift = self.header.table_shift - bits;
        let first = sibling_prefix << range_shift;
        let sibling = self.table_entry(first)?;
        let last = self.table_entry(first + (1 << range_shift) - 1)?;
        if sibling == id {
            return Err(self.fail(id, "leaf has two prefixes", 16));
        }
        if sibling != last {
            return Ok(None);
        }
        let bytes = self.read(sibling)?;
        let leaf = self.leaf(&bytes, sibling, sibling_prefix << (64 - bits))?;
        let can_merge = leaf.prefix_bits == bits && leaf.entry_count == 0;
        if can_merge && leaf.entries().next().is_some() {
            return Err(self.fail(sibling, "entries miscounted", 30));
        }
        Ok(can_merge.then_some((prefix, bits, sibling)))
    }

    /// Returns the largest used block id plus 1. Reads the whole table.
    fn first_unused(&self) -> Result<u64, ZapError> {
        let header = &self.header;
        let (first, count, word) = match header.table_block {
            0 => (0, 1, 1 << (header.block_shift - 4)),
            first => (first, header.table_blocks, 0),
        };
        let mut last = 1;
        for block in first..first + count {
            let words = self.table_words(block, word)?;
            last = words.into_iter().fold(last, u64::max);
        }
        if header.table_block != 0 {
            last = last.max(first + count - 1);
        }
        if header.next_table_block != 0 {
            last = last.max(header.next_table_block + header.table_blocks * 2 - 1);
        }
        // Never more than before, even if the table has wrong entries.
        Ok((last.saturating_add(1)).min(header.free_block))
    }
}
