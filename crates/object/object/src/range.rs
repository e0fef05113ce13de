//! Frees ranges of an object, and finds its data and holes.

use crate::ObjectError;
use crate::policy::BlockTraits;
use crate::state::{BlockChange, BlockSource, Shape, Slot};
use crate::{EdgeBlocks, Object};
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockId, CompressionKind, Level};
use millpond_txg::Transaction;

impl Object {
    /// Returns the first data block (or hole) at or after `from`, or `None` if there is none before the end.
    /// Includes unsynced changes. An unsynced block of zeros is a hole if it will be stored as one; one with partial changes
    /// counts as data.
    ///
    /// # Errors
    /// If an indirect block cannot be read.
    pub fn next_data(
        &self,
        from: BlockId,
        want_hole: bool,
    ) -> Result<Option<BlockId>, ObjectError> {
        let mut id = from.0;
        loop {
            let state = self.state();
            if id > state.shape().block_id_max {
                return Ok(None);
            }
            let slots = state.slots.iter();
            let dirty = |slots: std::slice::Iter<'_, Slot>, from| {
                slots
                    .filter_map(|slot| slot.blocks.range(from..).next())
                    .map(|(id, _)| *id)
                    .min()
                    .unwrap_or(u64::MAX)
            };
            let next = match state.newest_place(id) {
                BlockSource::Slot(index) => {
                    let slot = &state.slots[index];
                    let is_zero = slot.blocks.get(&id).is_some_and(BlockChange::is_zero);
                    if (is_zero && self.stores_no_zeros(&slot.shape)) == want_hole {
                        return Ok(Some(BlockId(id)));
                    }
                    id.saturating_add(1)
                }
                BlockSource::Nowhere if want_hole => return Ok(Some(BlockId(id))),
                BlockSource::Nowhere => {
                    let ends = slots.clone().filter_map(|slot| {
                        let (first, last) = slot.freed.range_from(id)?;
                        (first <= id).then_some(last)
                    });
                    let end = ends.max().unwrap_or(u64::MAX).saturating_add(1);
                    end.min(dirty(slots, id.saturating_add(1)))
                }
                BlockSource::Synced => {
                    let changes = if want_hole {
                        let freed = slots.filter_map(|slot| slot.freed.range_from(id));
                        freed.map(|(first, _)| first).min().unwrap_or(u64::MAX)
                    } else {
                        dirty(slots, id)
                    };
                    let synced = Arc::clone(&state.synced);
                    drop(state);
                    let found = self.ask_synced(&synced, |tree| tree.next(id, want_hole))?;
                    let Some(found) = found else { continue };
                    // Beyond the end of the synced tree everything is a hole.
                    let after = if want_hole {
                        synced.block_id_max.0.saturating_add(1)
                    } else {
                        u64::MAX
                    };
                    let found = found.unwrap_or(after);
                    let is_final = found == id;
                    if is_final {
                        return Ok(Some(BlockId(id)));
                    }
                    found.min(changes)
                }
            };
            if next == u64::MAX {
                return Ok(None);
            }
            id = next;
        }
    }

    /// Whether data blocks of zeros become holes.
    fn stores_no_zeros(&self, shape: &Shape) -> bool {
        let traits = BlockTraits {
            object_type: shape.object_type,
            level: Level(0),
            is_spill: false,
            lsize_bytes: shape.block_bytes() as u64,
            dnode_checksum: shape.functions.0,
            dnode_compression: shape.functions.1,
            is_rewritten_late: false,
        };
        let policy = self.core.policy.read().block(&traits);
        policy.compression != CompressionKind::Off
    }

    /// Makes a byte range read as zeros and frees the whole blocks in it.
    ///
    /// `length` [`u64::MAX`] means up to the end. A range that reaches the end shortens the object.
    ///
    /// # Errors
    /// If a block at an edge of the range cannot be read, or the object was freed.
    pub fn free_range(
        &self,
        tx: &Transaction,
        offset: u64,
        length: u64,
    ) -> Result<(), ObjectError> {
        let size = self.block_bytes();
        let end = offset.saturating_add(length);
        if length == 0 {
            return Ok(());
        }
        let is_to_end = end == u64::MAX;
        let first = offset.div_ceil(size);
        // The first block after the whole ones.
        let after = if is_to_end { u64::MAX } else { end / size };
        // Both checks come before any change. Blocks between the edges may be unreadable; these leak.
        self.check_free_edge(first)?;
        if !is_to_end {
            self.check_free_edge(after)?;
        }
        if !offset.is_multiple_of(size) {
            let stop = end.min(first.saturating_mul(size));
            self.zero_part(tx, offset / size, offset % size, stop - offset)?;
        }
        if !is_to_end && !end.is_multiple_of(size) && after >= first {
            self.zero_part(tx, after, 0, end % size)?;
        }
        if first < after {
            let (mut state, slot) = self.change(tx)?;
            state.free_blocks(slot, first, after - 1);
        }
        Ok(())
    }

    fn zero_part(
        &self,
        tx: &Transaction,
        id: u64,
        start: u64,
        count: u64,
    ) -> Result<(), ObjectError> {
        loop {
            let state = self.state();
            match state.newest_place(id) {
                BlockSource::Nowhere => return Ok(()),
                BlockSource::Slot(_) => break,
                BlockSource::Synced => {
                    let synced = Arc::clone(&state.synced);
                    drop(state);
                    let found = self.ask_synced(&synced, |tree| tree.descend(0, id))?;
                    match found {
                        Some((pointer, _)) if pointer.is_hole() => return Ok(()),
                        Some(_) => break,
                        None => {}
                    }
                }
            }
        }
        // At most one block.
        let zeros = vec![0; count as usize];
        self.patch(tx, id, start as usize, &zeros, &EdgeBlocks::default())
    }
}
