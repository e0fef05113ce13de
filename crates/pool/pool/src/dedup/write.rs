//! Finds the blocks that a txg writes, while it writes them.

use super::references::{add_one, lookup_order};
use super::table::Entry;
use super::{DedupTables, WHAT};
use crate::PoolError;
use crate::sync::context::SyncContext;
use millpond_block::{BlockAddress, FoundBlock, SharedBlocks, WantedBlock};
use millpond_env::mark;
use millpond_object::WriteJob;
use millpond_ondisk::dedup::{DedupKey, DedupSlot};
use millpond_ondisk::{BlockPointer, ChecksumKind};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// The tables while the blocks of a dataset are written.
pub(crate) struct Finder<'a, 'p> {
    ctx: &'a SyncContext<'p>,
    state: RefCell<State<'a>>,
}

struct State<'a> {
    tables: &'a mut DedupTables,
    /// New blocks that are being written.
    under_way: BTreeSet<(u8, DedupKey)>,
    /// How many new keys the quota allows.
    keys_left: Option<u64>,
    failure: Option<PoolError>,
}

impl<'a, 'p> Finder<'a, 'p> {
    pub(crate) fn new(
        ctx: &'a SyncContext<'p>,
        tables: &'a mut DedupTables,
    ) -> Result<Self, PoolError> {
        for table in tables.tables.values_mut() {
            table.complete_filter(ctx)?;
        }
        let keys_left = tables.keys_left(ctx)?;
        let state = State {
            tables,
            under_way: BTreeSet::new(),
            keys_left,
            failure: None,
        };
        let state = RefCell::new(state);
        Ok(Self { ctx, state })
    }

    /// The first error of a look-up. No outcome counts then.
    pub(crate) fn finish(self) -> Result<(), PoolError> {
        self.state.into_inner().failure.map_or(Ok(()), Err)
    }

    /// Enters a block that an intent log has written in this txg, or refers to the same block that was stored before.
    pub(crate) fn adopt(&self, job: &WriteJob, stored: BlockPointer) -> BlockPointer {
        let mut state = self.state.borrow_mut();
        let outcome = state.adopt(self.ctx, job, stored);
        outcome.unwrap_or_else(|error| {
            state.failure.get_or_insert(error);
            stored
        })
    }
}

impl SharedBlocks for Finder<'_, '_> {
    fn find(&self, wanted: &[WantedBlock<'_>]) -> Vec<FoundBlock> {
        let mut state = self.state.borrow_mut();
        // In the order of the entries, so that each block of a table is read once.
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_by_key(|at| wanted.get(*at).map(|one| lookup_order(one.pointer)));
        let mut found = vec![FoundBlock::Unshared; wanted.len()];
        for at in order {
            let (Some(one), Some(found)) = (wanted.get(at), found.get_mut(at)) else {
                continue;
            };
            match state.find(self.ctx, one) {
                Ok(outcome) => *found = outcome,
                Err(error) => {
                    state.failure.get_or_insert(error);
                    break;
                }
            }
        }
        found
    }

    fn written(&self, pointer: &BlockPointer, copies: u8) {
        let mut state = self.state.borrow_mut();
        if let Err(error) = state.written(self.ctx, pointer, copies) {
            state.failure.get_or_insert(error);
        }
    }
}

impl State<'_> {
    fn find(
        &mut self,
        ctx: &SyncContext<'_>,
        wanted: &WantedBlock<'_>,
    ) -> Result<FoundBlock, PoolError> {
        let Some(checksum) = wanted.pointer.checksum_kind() else {
            return Ok(FoundBlock::Unshared);
        };
        let key = DedupKey::of(wanted.pointer);
        let taken = match self.tables.tables.get_mut(&checksum.number()) {
            Some(table) => table.take(ctx, &key)?,
            None => None,
        };
        let is_new_key = taken.is_none();
        if let Some(mut taken) = taken {
            let found = refer(ctx, &mut taken, wanted, checksum)?;
            if let Some(table) = self.tables.tables.get_mut(&checksum.number()) {
                table.put(ctx, taken);
            }
            if let Some(found) = found {
                return Ok(found);
            }
        }
        if self.under_way.contains(&(checksum.number(), key)) {
            return Ok(FoundBlock::UnderWay);
        }
        if is_new_key && let Some(left) = &mut self.keys_left {
            let Some(rest) = left.checked_sub(1) else {
                mark::hit("dedup-table-over-quota");
                return Ok(FoundBlock::Unshared);
            };
            *left = rest;
        }
        self.under_way.insert((checksum.number(), key));
        Ok(FoundBlock::New)
    }

    fn written(
        &mut self,
        ctx: &SyncContext<'_>,
        pointer: &BlockPointer,
        copies: u8,
    ) -> Result<(), PoolError> {
        let Some(checksum) = pointer.checksum_kind() else {
            return Ok(());
        };
        let key = DedupKey::of(pointer);
        self.under_way.remove(&(checksum.number(), key));
        let table = self.tables.demand(ctx, checksum)?;
        let now_s = ctx.pool.env.clock.wall_ns() / 1_000_000_000;
        let new = table.new_entry(key, now_s);
        let mut entry = match table.take(ctx, &key)? {
            // An entry without blocks begins anew.
            Some(old) if old.entry.used_slots().next().is_none() => Entry {
                entry: new.entry,
                ..old
            },
            Some(old) => old,
            None => new,
        };
        let slot = entry.entry.slot_mut(copies);
        let slot = slot.ok_or_else(|| super::invalid("a block of too many copies", 0))?;
        if slot.is_used() {
            return Err(super::invalid("a block was entered twice", 0));
        }
        *slot = DedupSlot {
            reference_count: 1,
            ..DedupSlot::of(pointer)
        };
        table.put(ctx, entry);
        Ok(())
    }

    fn adopt(
        &mut self,
        ctx: &SyncContext<'_>,
        job: &WriteJob,
        stored: BlockPointer,
    ) -> Result<BlockPointer, PoolError> {
        let is_stored = !stored.is_hole() && !stored.is_embedded();
        let has_checksum = stored.checksum_kind() == Some(job.policy.checksum);
        let Some(dedup) = job.policy.dedup.filter(|_| is_stored && has_checksum) else {
            return Ok(stored);
        };
        let mut entered = stored;
        entered.set_dedup_bit();
        let mut bare = entered;
        let addresses = if stored.is_encrypted() { 4 } else { 6 };
        (bare.words.iter_mut().take(addresses)).for_each(|word| *word = 0);
        let bytes = match dedup.is_verified {
            true => ctx.pool.store.read_stored(&stored, job.address),
            false => Ok(vec![]),
        };
        let bytes = crate::error::Reading::reading(bytes, WHAT)?;
        let wanted = WantedBlock {
            pointer: &bare,
            stored: &bytes,
            copies: job.policy.copies,
            is_verified: dedup.is_verified,
            address: job.address,
        };
        Ok(match self.find(ctx, &wanted)? {
            FoundBlock::Stored(pointer) => {
                mark::hit("logged-block-was-stored-before");
                // Until this txg is committed, the log needs the block.
                ctx.free_log_block(&stored)?;
                pointer
            }
            FoundBlock::New => {
                self.written(ctx, &entered, job.policy.copies)?;
                entered
            }
            FoundBlock::UnderWay | FoundBlock::Unshared => stored,
        })
    }
}

/// Refers to the block of an entry. `None` if the entry has no such block.
fn refer(
    ctx: &SyncContext<'_>,
    taken: &mut Entry,
    wanted: &WantedBlock<'_>,
    checksum: ChecksumKind,
) -> Result<Option<FoundBlock>, PoolError> {
    let is_encrypted = taken.entry.key.is_encrypted();
    let Some(slot) = taken.entry.slot_mut(wanted.copies) else {
        return Ok(Some(FoundBlock::Unshared));
    };
    if !slot.is_used() {
        return Ok(None);
    }
    let has_copies = slot.dvas(is_encrypted).count() >= usize::from(wanted.copies);
    let referred = slot.referred(wanted.pointer).filter(|_| has_copies);
    let Some(pointer) = referred else {
        return Ok(Some(FoundBlock::Unshared));
    };
    // Two blocks of this function may differ.
    let is_verified = wanted.is_verified || checksum == ChecksumKind::Edonr;
    if is_verified && !has_bytes(ctx, &pointer, wanted) {
        mark::hit("dedup-block-differs");
        return Ok(Some(FoundBlock::Unshared));
    }
    add_one(slot)?;
    Ok(Some(FoundBlock::Stored(pointer)))
}

/// Whether a stored block has the wanted bytes. One that cannot be read has not.
fn has_bytes(ctx: &SyncContext<'_>, pointer: &BlockPointer, wanted: &WantedBlock<'_>) -> bool {
    let address: BlockAddress = wanted.address;
    let stored = ctx.pool.store.read_stored(pointer, address);
    stored.is_ok_and(|stored| stored == wanted.stored)
}
