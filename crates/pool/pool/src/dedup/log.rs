//! The two logs of a fast table: one receives changed entries, the other is flushed into the objects of the table.

use super::table::{Entry, Table};
use super::{WHAT, invalid};
use crate::PoolError;
use crate::error::Reading;
use crate::sync::context::SyncContext;
use millpond_env::{Tunable, mark};
use millpond_object::NewObject;
use millpond_ondisk::dedup::{
    DEDUP_LOG_RECORD_BYTES, DedupKey, DedupLogFlags, DedupLogPhys, DedupLogRecord,
};
use millpond_ondisk::pool_directory::dedup_log_key;
use millpond_ondisk::{BlockPointer, ObjectId, ObjectType, Txg};
use std::collections::BTreeMap;

/// Size of the data blocks of a log in bytes.
pub(super) const LOG_BLOCK_BYTES: usize = 128 << 10;
/// A log with this many entries is full: about 40 MiB in memory.
const FULL_ENTRIES: usize = 128 << 10;
/// At least this many entries are flushed in a txg.
const FLUSHED_MIN: usize = 1024;
/// A log is flushed in about this many txgs.
const FLUSH_TXGS: usize = 16;
/// The most entries that are flushed in a txg.
const FLUSHED_MAX: usize = 64 << 10;

/// One log.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) object: ObjectId,
    pub(super) phys: DedupLogPhys,
    /// The entries that are not flushed, each in its newest state.
    pub(super) entries: BTreeMap<DedupKey, Entry>,
}

/// Both logs.
#[derive(Debug)]
pub(super) struct Logs {
    /// By their numbers.
    pub(super) both: [Log; 2],
    /// Whether log 1 receives entries, and log 0 is flushed.
    pub(super) is_second_active: bool,
}

impl Logs {
    pub(super) fn objects(&self) -> [ObjectId; 2] {
        let [first, second] = &self.both;
        [first.object, second.object]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.both.iter().all(|log| log.entries.is_empty())
    }

    /// The log that receives entries, and the one that is flushed.
    fn roles(&mut self) -> (&mut Log, &mut Log) {
        let [first, second] = &mut self.both;
        match self.is_second_active {
            true => (second, first),
            false => (first, second),
        }
    }

    /// Takes an entry out of both logs. The newer state counts.
    pub(super) fn take(&mut self, key: &DedupKey) -> Option<Entry> {
        let (active, flushing) = self.roles();
        let older = flushing.entries.remove(key);
        active.entries.remove(key).or(older)
    }
}

impl Table {
    /// Appends the pending entries to the active log.
    pub(super) fn log(&mut self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.demand_logs(ctx)?;
        let pending = std::mem::take(&mut self.pending);
        let logs = self.fast.as_mut().and_then(|fast| fast.logs.as_mut());
        let logs = logs.ok_or_else(|| invalid("the logs are missing", 0))?;
        let (active, _) = logs.roles();
        let object = ctx.mos().object(active.object).reading(WHAT)?;
        let mut block = Vec::with_capacity(LOG_BLOCK_BYTES);
        let mut write = |block: &mut Vec<u8>| -> Result<(), PoolError> {
            block.resize(LOG_BLOCK_BYTES, 0);
            let at = active.phys.length_bytes;
            object.write(ctx.tx(), at, block).reading(WHAT)?;
            active.phys.length_bytes = at.saturating_add(LOG_BLOCK_BYTES as u64);
            block.clear();
            Ok(())
        };
        for entry in pending.values() {
            if block.len().saturating_add(DEDUP_LOG_RECORD_BYTES) > LOG_BLOCK_BYTES {
                write(&mut block)?;
            }
            let record = DedupLogRecord {
                entry: entry.entry,
                stored: entry.stored,
            };
            block.extend(record.encode());
        }
        write(&mut block)?;
        for (key, mut entry) in pending {
            entry.is_logged = true;
            active.entries.insert(key, entry);
        }
        let bonus = active.phys.encode();
        object.set_bonus(ctx.tx(), bonus).reading(WHAT)
    }

    fn demand_logs(&mut self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let checksum = self.checksum;
        let Some(fast) = self.fast.as_mut().filter(|fast| fast.logs.is_none()) else {
            return Ok(());
        };
        let create = |number: u8, flags: DedupLogFlags| -> Result<Log, PoolError> {
            let phys = DedupLogPhys {
                flags,
                first_txg: ctx.txg(),
                ..DedupLogPhys::default()
            };
            let new = NewObject::new(ObjectType::METADATA_U64)
                .with_block_bytes(LOG_BLOCK_BYTES as u32)
                .with_bonus(ObjectType::METADATA_U64, phys.encode());
            let object = ctx.mos().allocate(ctx.tx(), new).reading(WHAT)?;
            let name = dedup_log_key(checksum, number);
            ctx.set_table_number(fast.directory, &name, object.id().0)?;
            Ok(Log {
                object: object.id(),
                phys,
                entries: BTreeMap::new(),
            })
        };
        let both = [
            create(0, DedupLogFlags::empty())?,
            create(1, DedupLogFlags::FLUSHING)?,
        ];
        fast.logs = Some(Logs {
            both,
            is_second_active: false,
        });
        Ok(())
    }

    /// Stores some entries of the log that is flushed, in the order of their keys. Swaps the logs when it is empty
    /// and the other one is old or full.
    pub(super) fn flush(
        &mut self,
        ctx: &SyncContext<'_>,
        freed: &mut Vec<BlockPointer>,
    ) -> Result<(), PoolError> {
        let is_dying = !self.has_live_entries();
        // A table that lost its last entry empties both logs at once.
        let rounds = if is_dying { 2 } else { 1 };
        for _ in 0..rounds {
            self.swap_logs(ctx, is_dying)?;
            self.flush_some(ctx, is_dying, freed)?;
        }
        Ok(())
    }

    fn flush_some(
        &mut self,
        ctx: &SyncContext<'_>,
        is_dying: bool,
        freed: &mut Vec<BlockPointer>,
    ) -> Result<(), PoolError> {
        let logs = self.fast.as_mut().and_then(|fast| fast.logs.as_mut());
        let Some(logs) = logs else { return Ok(()) };
        let (active, flushing) = logs.roles();
        let length = flushing.entries.len();
        if length == 0 {
            return Ok(());
        }
        // A full log waits for this one.
        let is_urgent = is_dying || active.entries.len() >= FULL_ENTRIES;
        let count = match is_urgent {
            true => length,
            false => (length / FLUSH_TXGS).max(FLUSHED_MIN),
        };
        let count = count.min(FLUSHED_MAX).min(length);
        let rest = flushing.entries.keys().nth(count).copied();
        let entries = match rest {
            Some(first) => {
                let rest = flushing.entries.split_off(&first);
                std::mem::replace(&mut flushing.entries, rest)
            }
            None => std::mem::take(&mut flushing.entries),
        };
        let last = entries.keys().next_back().copied().unwrap_or_default();
        let object = ctx.mos().object(flushing.object).reading(WHAT)?;
        match rest {
            Some(_) => {
                mark::hit("dedup-log-partly-flushed");
                flushing.phys.flags |= DedupLogFlags::CHECKPOINT;
                flushing.phys.checkpoint = last;
            }
            None => {
                object.free_range(ctx.tx(), 0, u64::MAX).reading(WHAT)?;
                flushing.phys.length_bytes = 0;
                flushing.phys.flags = DedupLogFlags::FLUSHING;
                flushing.phys.checkpoint = DedupKey::default();
            }
        }
        let bonus = flushing.phys.encode();
        object.set_bonus(ctx.tx(), bonus).reading(WHAT)?;
        for entry in entries.into_values() {
            self.store_entry(ctx, entry, freed)?;
        }
        Ok(())
    }

    fn swap_logs(&mut self, ctx: &SyncContext<'_>, is_dying: bool) -> Result<(), PoolError> {
        let logs = self.fast.as_mut().and_then(|fast| fast.logs.as_mut());
        let Some(logs) = logs else { return Ok(()) };
        let txg = ctx.txg();
        // A log receives entries for at least this many txgs, unless it is full.
        let txgs_min = ctx.pool().env().tunables.get(Tunable::DedupLogTxgMax);
        let (active, flushing) = logs.roles();
        let Txg(since) = active.phys.first_txg;
        let is_old = txg.0.saturating_sub(since) >= txgs_min;
        let is_full = active.entries.len() >= FULL_ENTRIES / 2;
        if !flushing.entries.is_empty()
            || active.entries.is_empty()
            || !(is_old || is_full || is_dying)
        {
            return Ok(());
        }
        mark::hit("dedup-logs-swapped");
        let object = ctx.mos().object(flushing.object).reading(WHAT)?;
        if flushing.phys.length_bytes > 0 {
            // All its entries were changed since, or are stored.
            object.free_range(ctx.tx(), 0, u64::MAX).reading(WHAT)?;
        }
        flushing.phys = DedupLogPhys {
            first_txg: txg,
            ..DedupLogPhys::default()
        };
        let bonus = flushing.phys.encode();
        object.set_bonus(ctx.tx(), bonus).reading(WHAT)?;
        active.phys.flags = DedupLogFlags::FLUSHING;
        let object = ctx.mos().object(active.object).reading(WHAT)?;
        let bonus = active.phys.encode();
        object.set_bonus(ctx.tx(), bonus).reading(WHAT)?;
        logs.is_second_active = !logs.is_second_active;
        Ok(())
    }
}
