//! References of pointers with the dedup bit: added, released.

use super::table::Table;
use super::{DedupTables, invalid};
use crate::PoolError;
use crate::sync::context::SyncContext;
use millpond_ondisk::BlockPointer;
use millpond_ondisk::dedup::{DedupKey, DedupSlot};

/// The outcome of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    /// Others refer to the block.
    Kept,
    /// It was the last reference. The block must be freed; the pointer has all its addresses.
    Last(BlockPointer),
    /// No entry is of this block: it was removed from the table. The block belongs to the pointer, or to a clone table.
    NoEntry,
}

/// The order in which pointers are looked up: that of the entries in their tables.
pub(crate) fn lookup_order(pointer: &BlockPointer) -> (u64, DedupKey) {
    let checksum = pointer.checksum_kind().map_or(0, |kind| kind.number());
    (u64::from(checksum), DedupKey::of(pointer))
}

impl DedupTables {
    fn table_of(&mut self, pointer: &BlockPointer) -> Option<&mut Table> {
        self.tables.get_mut(&pointer.checksum_kind()?.number())
    }

    /// Adds a reference to a block that has an entry. Returns whether it has one.
    pub(crate) fn add(
        &mut self,
        ctx: &SyncContext<'_>,
        pointer: &BlockPointer,
    ) -> Result<bool, PoolError> {
        let Some(table) = self.table_of(pointer) else {
            return Ok(false);
        };
        let Some(mut found) = table.take(ctx, &DedupKey::of(pointer))? else {
            return Ok(false);
        };
        let slot = found.entry.slots_mut().iter_mut();
        let slot = slot.into_iter().find(|slot| slot.holds(pointer));
        let is_found = slot.is_some();
        if let Some(slot) = slot {
            add_one(slot)?;
        }
        table.put(ctx, found);
        Ok(is_found)
    }

    /// Releases a reference.
    pub(crate) fn release(
        &mut self,
        ctx: &SyncContext<'_>,
        pointer: &BlockPointer,
    ) -> Result<Released, PoolError> {
        let Some(table) = self.table_of(pointer) else {
            return Ok(Released::NoEntry);
        };
        let Some(mut found) = table.take(ctx, &DedupKey::of(pointer))? else {
            return Ok(Released::NoEntry);
        };
        let mut slots = found.entry.slots_mut().iter_mut();
        let outcome = match slots.find(|slot| slot.holds(pointer)) {
            None => Released::NoEntry,
            Some(slot) => {
                let count = slot.reference_count.checked_sub(1);
                slot.reference_count =
                    count.ok_or_else(|| invalid("more references than it counts", 48))?;
                match slot.reference_count {
                    0 => {
                        let whole = slot.referred(pointer).unwrap_or(*pointer);
                        *slot = DedupSlot::default();
                        Released::Last(whole)
                    }
                    _ => Released::Kept,
                }
            }
        };
        table.put(ctx, found);
        Ok(outcome)
    }
}

pub(super) fn add_one(slot: &mut DedupSlot) -> Result<(), PoolError> {
    let count = slot.reference_count.checked_add(1);
    slot.reference_count = count.ok_or_else(|| invalid("a count overflows", 48))?;
    Ok(())
}
