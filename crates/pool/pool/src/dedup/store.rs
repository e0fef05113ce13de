//! Stores changed entries at the end of a sync pass, and removes tables without entries.

use super::table::{Entry, Table};
use super::{Counting, DedupTables, FAST_DEDUP, WHAT, invalid};
use crate::PoolError;
use crate::error::Reading;
use crate::sync::context::SyncContext;
use millpond_compress::{ZstdLevel, compress};
use millpond_env::mark;
use millpond_ondisk::dedup::{DedupClass, DedupEntry, DedupSlot};
use millpond_ondisk::pool_directory::{dedup_directory_key, dedup_log_key, dedup_table_key};
use millpond_ondisk::{BlockPointer, CompressionKind, ObjectId};
use millpond_zap::ZapValue;

impl DedupTables {
    /// Stores what changed since the last pass. Returns blocks of removed entries, which the caller frees.
    pub(crate) fn store(&mut self, ctx: &SyncContext<'_>) -> Result<Vec<BlockPointer>, PoolError> {
        let mut freed = vec![];
        let statistics = self.statistics;
        for table in self.tables.values_mut() {
            if table.fast.is_some() {
                table.log(ctx)?;
                if ctx.pass() == 1 || !table.has_live_entries() {
                    table.flush(ctx, &mut freed)?;
                }
            } else {
                for entry in std::mem::take(&mut table.pending).into_values() {
                    table.store_entry(ctx, entry, &mut freed)?;
                }
            }
            table.store_statistics(ctx, statistics)?;
        }
        let is_empty = |table: &Table| {
            table.pending.is_empty()
                && !table.has_logged()
                && table.classes.iter().all(|class| class.entries == 0)
        };
        let empty: Vec<u8> = (self.tables.iter())
            .filter(|(_, table)| is_empty(table))
            .map(|(number, _)| *number)
            .collect();
        for number in empty {
            if let Some(table) = self.tables.remove(&number) {
                table.destroy(ctx, statistics)?;
            }
        }
        Ok(freed)
    }
}

impl Table {
    /// Moves an entry to the object of its class, or removes one without references.
    pub(super) fn store_entry(
        &mut self,
        ctx: &SyncContext<'_>,
        mut stored: Entry,
        freed: &mut Vec<BlockPointer>,
    ) -> Result<(), PoolError> {
        self.uncount_unstored(ctx, &stored);
        self.drop_dead(&mut stored.entry, freed);
        let entry = &stored.entry;
        let key = entry.key.to_words();
        let class = entry.class();
        if let Some(old) = stored.stored.filter(|old| class != Some(*old)) {
            let table = self.class_mut(old);
            let object = table.object.ok_or_else(|| invalid("a class vanished", 0))?;
            if !ctx.table(object)?.remove_words(&key).reading(WHAT)? {
                return Err(invalid("an entry vanished", 0));
            }
            let entries = table.entries.checked_sub(1);
            table.entries =
                entries.ok_or_else(|| invalid("the number of entries contradicts them", 0))?;
            table.is_changed = true;
        }
        let Some(class) = class else {
            return Ok(());
        };
        let object = self.demand_class(ctx, class)?;
        // Also one that moves: a filter that is not complete may have passed its new class, and not seen its old one.
        self.filter.insert(&entry.key);
        let zap = ctx.table(object)?;
        zap.update_words(&key, &encode(entry)).reading(WHAT)?;
        let is_new = stored.stored != Some(class);
        let table = self.class_mut(class);
        table.entries = table.entries.saturating_add(u64::from(is_new));
        Counting { ctx }.add(&mut table.histogram, entry);
        table.is_changed = true;
        Ok(())
    }

    /// Takes the blocks without references out of an entry that OpenZFS has left to be flushed.
    fn drop_dead(&self, entry: &mut DedupEntry, freed: &mut Vec<BlockPointer>) {
        let mut dead = vec![];
        dead.extend(entry.take_obsolete());
        for slot in entry.slots_mut() {
            if slot.reference_count == 0 {
                dead.push(std::mem::take(slot));
            }
        }
        let dead = dead.into_iter().filter(DedupSlot::is_used);
        freed.extend(dead.map(|slot| entry.block_pointer(&slot, self.checksum)));
    }

    /// Stores the histograms that changed.
    fn store_statistics(
        &mut self,
        ctx: &SyncContext<'_>,
        statistics: Option<ObjectId>,
    ) -> Result<(), PoolError> {
        for (class, table) in DedupClass::ALL.into_iter().zip(&mut self.classes) {
            if !std::mem::take(&mut table.is_changed) {
                continue;
            }
            let id = statistics.ok_or_else(|| invalid("there are no statistics", 0))?;
            let name = dedup_table_key(self.checksum, class.name());
            let value = ZapValue::from_u64s(&table.histogram.to_words());
            let zap = ctx.table(id)?;
            zap.update(name.as_bytes(), &value).reading(WHAT)?;
        }
        Ok(())
    }

    /// Removes a table without entries.
    fn destroy(self, ctx: &SyncContext<'_>, statistics: Option<ObjectId>) -> Result<(), PoolError> {
        mark::hit("dedup-table-removed");
        let free = |object: ObjectId| ctx.mos().free(ctx.tx(), object).reading(WHAT);
        let directory = self.directory();
        for (class, table) in DedupClass::ALL.into_iter().zip(&self.classes) {
            let Some(object) = table.object else { continue };
            let name = dedup_table_key(self.checksum, class.name());
            free(object)?;
            ctx.remove_table_entry(directory, &name)?;
            if let Some(statistics) = statistics {
                ctx.remove_table_entry(statistics, &name)?;
            }
        }
        let Some(fast) = self.fast else {
            return Ok(());
        };
        if let Some(logs) = &fast.logs {
            for (number, object) in (0..).zip(logs.objects()) {
                free(object)?;
                ctx.remove_table_entry(directory, &dedup_log_key(self.checksum, number))?;
            }
        }
        free(directory)?;
        ctx.remove_directory_entry(&dedup_directory_key(self.checksum))?;
        ctx.feature_decrement(FAST_DEDUP)
    }
}

/// The value of an entry: with zle if that is shorter.
fn encode(entry: &DedupEntry) -> ZapValue {
    const LITTLE_ENDIAN: u8 = 0x80;
    let body = entry.encode_body();
    let limit = body.len().saturating_sub(1);
    let zle = compress(CompressionKind::Zle, ZstdLevel::DEFAULT, &body, limit);
    let (kind, body) = match zle {
        Some(zle) => (CompressionKind::Zle, zle),
        None => (CompressionKind::Off, body),
    };
    let mut bytes = vec![LITTLE_ENDIAN | kind.number()];
    bytes.extend(body);
    ZapValue {
        integer_bytes: 1,
        bytes,
    }
}
