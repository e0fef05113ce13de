//! What a change of a block adds to what its txg is going to write.
//!
//! A large block is counted by what it takes when it is written, whole and once in each txg, however little of it
//! changes and however often.

use crate::Object;
use crate::state::{BlockChange, State};
use millpond_ondisk::Txg;
use millpond_txg::Transaction;

/// Data blocks of this size and more are counted by what they take when they are written. Smaller ones are counted by
/// their dirty bytes and by a larger factor, which also holds their metadata.
pub const LARGE_BLOCK_BYTES: u64 = 128 << 10;

/// A block as it was before a change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Footprint {
    /// The size of a large block; 0 for others.
    large_bytes: u64,
    /// Whether the txg was not going to write the block.
    is_new: bool,
    /// The size of the indirect block above it, if the txg had no other change below that; otherwise 0.
    parent_bytes: u64,
}

impl State {
    /// Looks at a block in a slot before it changes.
    pub(crate) fn footprint(&self, index: usize, id: u64) -> Footprint {
        let slot = &self.slots[index];
        let shape = &slot.shape;
        let bytes = shape.block_bytes() as u64;
        let is_large = bytes >= LARGE_BLOCK_BYTES && !shape.object_type.is_metadata();
        let is_new = !is_written(slot.blocks.get(&id));
        let mut parent_bytes = 0;
        if is_large && is_new && id.max(shape.block_id_max) > 0 {
            let shift = u32::from(shape.indirect_shift);
            let span = 1u64.checked_shl(shift.saturating_sub(7)).unwrap_or(1);
            let first = id - id % span;
            let mut siblings = slot.blocks.range(first..first.saturating_add(span));
            if siblings.next().is_none() {
                parent_bytes = 1u64.checked_shl(shift).unwrap_or(0);
            }
        }
        Footprint {
            large_bytes: if is_large { bytes } else { 0 },
            is_new,
            parent_bytes,
        }
    }
}

/// Whether a change writes content. A clone does not.
fn is_written(change: Option<&BlockChange>) -> bool {
    matches!(
        change,
        Some(BlockChange::Whole(_) | BlockChange::PartialWrite(_))
    )
}

impl Object {
    /// Charges a change: `charged` bytes became dirty, and `rest` is what else of the block will be written with the
    /// first of them.
    pub(crate) fn charge_block(
        &self,
        tx: &Transaction,
        before: Footprint,
        charged: u64,
        rest: u64,
    ) {
        let copies = || u64::from(self.core.policy.read().copies.max(1));
        if before.large_bytes == 0 {
            tx.charge(charged);
            if rest > 0 {
                tx.charge_blocks(0, rest.saturating_mul(copies()));
            }
            return;
        }
        let mut stored = 0;
        if before.is_new {
            let copies = copies();
            // Metadata has a copy more.
            let parent = before.parent_bytes.saturating_mul(copies + 1);
            stored = before
                .large_bytes
                .saturating_mul(copies)
                .saturating_add(parent);
        }
        tx.charge_blocks(charged, stored);
    }

    /// Charges a block that got another size, of which `charged` bytes more are dirty.
    pub(crate) fn charge_resized(
        &self,
        tx: &Transaction,
        before: Footprint,
        now: Footprint,
        charged: u64,
    ) {
        if now.large_bytes == 0 {
            tx.charge(charged);
            return;
        }
        let counted = if before.is_new { 0 } else { before.large_bytes };
        let copies = u64::from(self.core.policy.read().copies.max(1));
        let grown = now.large_bytes.saturating_sub(counted);
        tx.charge_blocks(charged, grown.saturating_mul(copies));
    }

    /// The newest txg with changes of the object, if all blocks of a range are written in it already: another write
    /// there then takes no further space. The caller keeps others from changing the range.
    #[must_use]
    pub fn dirty_txg(&self, offset_bytes: u64, length_bytes: u64) -> Option<Txg> {
        let last = offset_bytes.checked_add(length_bytes.checked_sub(1)?)?;
        let state = self.state();
        let slot = state.slots.last().filter(|slot| !slot.is_freed)?;
        let size = (slot.shape.block_bytes() as u64).max(1);
        let mut ids = offset_bytes / size..=last / size;
        ids.all(|id| is_written(slot.blocks.get(&id)))
            .then_some(slot.txg)
    }
}
