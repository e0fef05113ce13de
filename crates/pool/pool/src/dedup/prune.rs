//! Removes old entries with one reference from fast tables. Their blocks stay, each owned by its one pointer.

use super::table::{Table, decode, key_of};
use super::{DedupTables, WHAT, invalid};
use crate::error::Reading;
use crate::sync::context::SyncContext;
use crate::{Pool, PoolError};
use millpond_env::mark;
use millpond_ondisk::dedup::{DedupClass, DedupKey, DedupSlot, DedupSlots};

/// The most entries that one txg looks at.
const STEP_ENTRIES: usize = 10_000;
const HOUR_S: u64 = 3600;
/// Ages are told apart by powers of two of hours.
const AGES: usize = 16;

/// Which entries to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PruneBy {
    /// Those that were created more than this many seconds ago.
    Age(u64),
    /// The oldest of them: this share, in per cent.
    Percent(u8),
}

/// What was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrunedEntries {
    /// Entries that were removed.
    pub pruned: u64,
    /// Entries with one reference that were looked at.
    pub seen: u64,
}

/// The progress of a walk over all entries with one reference.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    table: usize,
    cookie: u64,
    is_end: bool,
}

impl Pool {
    /// Removes old entries with one reference from the fast dedup tables. Takes a txg for every few thousand entries.
    ///
    /// # Errors
    /// If a table cannot be read, or the pool is suspended.
    pub fn prune_dedup(&self, by: PruneBy) -> Result<PrunedEntries, PoolError> {
        let now_s = self.env.clock.wall_ns() / 1_000_000_000;
        let (cutoff_s, most) = match by {
            PruneBy::Age(age_s) => (now_s.saturating_sub(age_s), u64::MAX),
            PruneBy::Percent(percent) => self.oldest(now_s, percent)?,
        };
        let mut done = PrunedEntries::default();
        self.walk_unique(&mut |ctx, table, key, created_s| {
            done.seen = done.seen.saturating_add(1);
            if created_s >= cutoff_s || done.pruned >= most {
                return Ok(());
            }
            done.pruned = done.pruned.saturating_add(1);
            table.prune(ctx, key)
        })?;
        Ok(done)
    }

    /// The time before which the wanted share of the entries was created, and how many that share is.
    fn oldest(&self, now_s: u64, percent: u8) -> Result<(u64, u64), PoolError> {
        let mut ages = [0u64; AGES];
        self.walk_unique(&mut |_, _, _, created_s| {
            let hours = now_s.saturating_sub(created_s) / HOUR_S;
            let bin = hours.checked_ilog2().map_or(0, |log2| log2 as usize + 1);
            if let Some(count) = ages.get_mut(bin.min(AGES - 1)) {
                *count = count.saturating_add(1);
            }
            Ok(())
        })?;
        let all: u64 = ages.iter().fold(0, |sum, count| sum.saturating_add(*count));
        let wanted = u128::from(all) * u128::from(percent) / 100;
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        let mut older = 0u64;
        let mut bin = AGES;
        while bin > 0 && older < wanted {
            bin -= 1;
            older = older.saturating_add(ages.get(bin).copied().unwrap_or(0));
        }
        let age_s = match bin {
            0 => return Ok((u64::MAX, wanted)),
            bin => (1 << (bin - 1)) * HOUR_S,
        };
        Ok((now_s.saturating_sub(age_s).saturating_add(1), wanted))
    }

    /// Calls `each` with every stored entry with one reference that no log has in a newer state, and with its creation
    /// time in seconds.
    fn walk_unique(&self, each: &mut EachEntry<'_>) -> Result<(), PoolError> {
        let mut progress = Progress::default();
        while !progress.is_end {
            progress = self.sync_task(|ctx| {
                ctx.pool
                    .change_dedup(|tables| tables.walk_some(ctx, progress, each))
            })?;
        }
        Ok(())
    }
}

/// Receives entries of a walk. It may prune the entry.
type EachEntry<'e> =
    dyn FnMut(&SyncContext<'_>, &mut Table, &DedupKey, u64) -> Result<(), PoolError> + 'e;

impl DedupTables {
    fn walk_some(
        &mut self,
        ctx: &SyncContext<'_>,
        from: Progress,
        each: &mut EachEntry<'_>,
    ) -> Result<Progress, PoolError> {
        let fast = self
            .tables
            .values_mut()
            .filter(|table| table.fast.is_some());
        let Some(table) = fast.into_iter().nth(from.table) else {
            return Ok(Progress {
                is_end: true,
                ..from
            });
        };
        let next = Progress {
            table: from.table.saturating_add(1),
            ..Progress::default()
        };
        let Some(object) = table.class_mut(DedupClass::Unique).object else {
            return Ok(next);
        };
        let zap = ctx.table(object)?;
        let mut entries = zap.iter_from(from.cookie).reading(WHAT)?;
        for _ in 0..STEP_ENTRIES {
            let Some(found) = entries.next() else {
                return Ok(next);
            };
            let found = found.reading(WHAT)?;
            let key = key_of(&found)?;
            if table.is_unstored(&key) {
                continue;
            }
            let entry = decode(key, &found.value, true)?;
            if let DedupSlots::Flat { class_start, .. } = entry.slots {
                each(ctx, table, &key, class_start)?;
            }
        }
        Ok(Progress {
            cookie: entries.cookie(),
            ..from
        })
    }
}

impl Table {
    /// Whether an entry is in a newer state than in the objects.
    fn is_unstored(&self, key: &DedupKey) -> bool {
        self.pending.contains_key(key) || self.logged(key).is_some()
    }

    /// Removes an entry, but not its block.
    fn prune(&mut self, ctx: &SyncContext<'_>, key: &DedupKey) -> Result<(), PoolError> {
        mark::hit("dedup-entry-pruned");
        let found = self.take(ctx, key)?;
        let mut found = found.ok_or_else(|| invalid("an entry vanished", 0))?;
        for slot in found.entry.slots_mut() {
            *slot = DedupSlot::default();
        }
        self.put(ctx, found);
        Ok(())
    }
}
