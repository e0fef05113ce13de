//! The clone tables of a pool open for changes: blocks with more than one reference.
//!
//! In memory are each table's header and its counters, two bytes for each 16 MiB of a vdev. Entries are looked
//! up where they are stored, and only for data blocks in ranges whose counter is not 0. References of a sync
//! pass are gathered in a [`Batch`]: first those added, then those released. A block is returned to the allocator
//! only if its last reference is released.
//!
//! Page `docs/format/block-cloning.md`.

mod holds;
mod load;
#[cfg(test)]
mod tests;

use crate::error::Reading;
use crate::space::CloneTotals;
use crate::space::store::geometry_of;
use crate::sync::context::SyncContext;
use crate::{Pool, PoolError};
use holds::Earlier;
pub(crate) use holds::LogHolds;
use millpond_alloc::VdevGeometry;
use millpond_env::mark;
use millpond_env::sync::atomic::Ordering;
use millpond_object::NewObject;
use millpond_ondisk::dedup::{CLONE_RANGE_BYTES, clone_entry_count, clone_entry_value};
use millpond_ondisk::pool_directory::clone_table_key;
use millpond_ondisk::{
    BlockPointer, CloneTablePhys, DecodeError, Endian, Level, ObjectId, ObjectType, VdevId,
};
use millpond_vdev::VdevKind;
use millpond_zap::{NewZap, ZapFlags, ZapShape, ZapValue, allocate_zap, new_salt};
use std::collections::{BTreeMap, BTreeSet};

const WHAT: &str = "clone table";
/// The feature that counts the clone tables.
pub const BLOCK_CLONING: &str = "com.fudosecurity:block_cloning";
/// The feature that counts the tables whose entries are integers of 8 bytes.
pub(crate) const CLONING_ENDIAN: &str = "com.truenas:block_cloning_endian";
/// Size of the data blocks of a table's counters in bytes.
const COUNTER_BLOCK_BYTES: usize = 32 << 10;
const COUNTERS_PER_BLOCK: usize = COUNTER_BLOCK_BYTES / 2;
/// The most counters of one vdev. Bounds the memory that a forged configuration takes; enough for 1 PiB.
const COUNTERS_MAX: u64 = 1 << 26;

/// The clone tables of all top-level vdevs that have one.
#[derive(Debug, Default)]
pub(crate) struct CloneTables {
    tables: BTreeMap<VdevId, CloneTable>,
}

/// The clone table of one top-level vdev.
#[derive(Debug)]
struct CloneTable {
    object: ObjectId,
    entries: ObjectId,
    phys: CloneTablePhys,
    counters: Vec<u16>,
    /// Blocks of counters that this pass changed.
    changed_blocks: BTreeSet<usize>,
    is_changed: bool,
}

/// Whether the tables may count references to the block: level-0 data that owns space and is not deduplicated.
pub(crate) fn may_be_cloned(pointer: &BlockPointer) -> bool {
    pointer.level() == Level(0)
        && !pointer.object_type().is_metadata()
        && !pointer.is_hole()
        && !pointer.is_embedded()
        && !pointer.is_dedup()
}

/// The number of counters of a vdev's table.
fn counters_of(geometry: &VdevGeometry) -> Result<u64, PoolError> {
    match geometry.allocatable_bytes().div_ceil(CLONE_RANGE_BYTES) {
        count if count <= COUNTERS_MAX => Ok(count),
        _ => Err(invalid("its vdev is too large", 8)),
    }
}

fn invalid(reason: &'static str, offset: usize) -> PoolError {
    PoolError::Invalid {
        what: WHAT,
        error: DecodeError::new(WHAT, reason, offset),
    }
}

impl CloneTables {
    /// The sums of all tables.
    pub(crate) fn totals(&self) -> CloneTotals {
        let mut totals = CloneTotals::default();
        for table in self.tables.values() {
            totals.add(&table.phys);
        }
        totals
    }
}

impl CloneTable {
    fn counter(&self, offset_bytes: u64) -> u16 {
        let index = usize::try_from(self.phys.counter_index(offset_bytes));
        let counter = index.ok().and_then(|index| self.counters.get(index));
        counter.copied().unwrap_or(0)
    }

    /// Counts an entry that is added or removed.
    fn count_entry(&mut self, offset_bytes: u64, is_added: bool) -> Result<(), PoolError> {
        let index = usize::try_from(self.phys.counter_index(offset_bytes)).unwrap_or(usize::MAX);
        let step = |count: u64| match is_added {
            true => count.checked_add(1),
            false => count.checked_sub(1),
        };
        let counter = self.counters.get_mut(index);
        let counter = counter.ok_or_else(|| invalid("a block beyond its counters", 8))?;
        let count = step(u64::from(*counter)).and_then(|count| u16::try_from(count).ok());
        *counter = count.ok_or_else(|| invalid("a counter contradicts the entries", 0))?;
        let total = step(self.phys.entry_count);
        self.phys.entry_count =
            total.ok_or_else(|| invalid("the number of entries contradicts them", 24))?;
        self.changed_blocks.insert(index / COUNTERS_PER_BLOCK);
        self.is_changed = true;
        Ok(())
    }

    /// Changes the sums by a reference to a block of this size. `used` is what an entry counts as before and after, if that
    /// changes.
    fn account(
        &mut self,
        bytes: u64,
        is_added: bool,
        used: Option<(u64, u64)>,
    ) -> Result<(), PoolError> {
        let contradiction = || invalid("its sums contradict its entries", 40);
        if let Some((before, after)) = used {
            let rest = self.phys.used_bytes.checked_sub(before);
            let sum = rest.and_then(|rest| rest.checked_add(after));
            self.phys.used_bytes = sum.ok_or_else(contradiction)?;
        }
        let saved = match is_added {
            true => self.phys.saved_bytes.checked_add(bytes),
            false => self.phys.saved_bytes.checked_sub(bytes),
        };
        self.phys.saved_bytes = saved.ok_or_else(contradiction)?;
        self.is_changed = true;
        Ok(())
    }

    fn counter_block(&self, index: usize) -> Vec<u8> {
        let first = index.saturating_mul(COUNTERS_PER_BLOCK);
        let counters = self.counters.iter().skip(first).take(COUNTERS_PER_BLOCK);
        let mut bytes = Vec::with_capacity(COUNTER_BLOCK_BYTES);
        for counter in counters {
            bytes.extend(match self.phys.counter_endian {
                Endian::Little => counter.to_le_bytes(),
                Endian::Big => counter.to_be_bytes(),
            });
        }
        bytes.resize(COUNTER_BLOCK_BYTES, 0);
        bytes
    }
}

/// The references to one block beyond the first.
#[derive(Debug, Clone, Copy)]
struct Count {
    stored: u64,
    now: u64,
}

impl Count {
    /// The deflated bytes that the entry counts as while only earlier blocks of its place have references.
    fn used_by(self, earlier: Earlier) -> u64 {
        match self.now {
            0 => 0,
            _ => earlier.last_bytes,
        }
    }
}

/// Changes of references in one sync pass.
pub(crate) struct Batch<'a, 'p> {
    ctx: &'a SyncContext<'p>,
    tables: &'a mut CloneTables,
    counts: BTreeMap<(VdevId, u64), Count>,
}

impl<'a, 'p> Batch<'a, 'p> {
    fn new(ctx: &'a SyncContext<'p>, tables: &'a mut CloneTables) -> Self {
        Self {
            ctx,
            tables,
            counts: BTreeMap::new(),
        }
    }

    /// Adds a reference to a block that has at least one.
    pub(crate) fn add(&mut self, pointer: &BlockPointer) -> Result<(), PoolError> {
        // The release of such a reference would not look into the tables.
        if !may_be_cloned(pointer) {
            return Err(invalid("a block of another kind got a reference", 0));
        }
        let Some((vdev, offset)) = pointer.first_address() else {
            return Ok(());
        };
        self.demand_table(vdev)?;
        let bytes = self.ctx.deflated_bytes(pointer);
        let earlier = self.ctx.pool.log_holds.lock().before(pointer);
        let count = self.count(vdev, offset)?;
        let used = (count.now <= earlier.count).then(|| (count.used_by(earlier), bytes));
        count.now = (count.now.checked_add(1)).ok_or_else(|| invalid("a count overflows", 0))?;
        let table = self.tables.tables.get_mut(&vdev);
        let table = table.ok_or_else(|| invalid("the table is missing", 0))?;
        table.account(bytes, true, used)
    }

    /// Releases a reference. Returns whether others remain; otherwise the block must be freed.
    pub(crate) fn release(&mut self, pointer: &BlockPointer) -> Result<bool, PoolError> {
        let earlier = {
            let mut held = self.ctx.pool.log_holds.lock();
            held.release(pointer);
            held.before(pointer)
        };
        if self.tables.tables.is_empty() || !may_be_cloned(pointer) {
            return Ok(false);
        }
        let Some((vdev, offset)) = pointer.first_address() else {
            return Ok(false);
        };
        let Some(table) = self.tables.tables.get(&vdev) else {
            return Ok(false);
        };
        if table.counter(offset) == 0 && !self.counts.contains_key(&(vdev, offset)) {
            return Ok(false);
        }
        let bytes = self.ctx.deflated_bytes(pointer);
        let count = self.count(vdev, offset)?;
        if count.now <= earlier.count {
            if count.now > 0 {
                mark::hit("log-holds-other-block");
            }
            return Ok(false);
        }
        count.now -= 1;
        let used = (count.now <= earlier.count).then(|| (bytes, count.used_by(earlier)));
        let table = self.tables.tables.get_mut(&vdev);
        let table = table.ok_or_else(|| invalid("the table is missing", 0))?;
        table.account(bytes, false, used)?;
        Ok(true)
    }

    /// The count of a block, read from its entry when it is first needed.
    fn count(&mut self, vdev: VdevId, offset: u64) -> Result<&mut Count, PoolError> {
        let key = (vdev, offset);
        if !self.counts.contains_key(&key) {
            let stored = match self.tables.tables.get(&vdev) {
                Some(table) if table.counter(offset) > 0 => stored_count(self.ctx, table, offset)?,
                _ => 0,
            };
            let now = stored;
            self.counts.insert(key, Count { stored, now });
        }
        self.counts
            .get_mut(&key)
            .ok_or_else(|| invalid("a count is missing", 0))
    }

    /// Stores the changes in the MOS.
    pub(crate) fn finish(mut self) -> Result<(), PoolError> {
        for ((vdev, offset), count) in std::mem::take(&mut self.counts) {
            if count.now == count.stored {
                continue;
            }
            let Some(table) = self.tables.tables.get_mut(&vdev) else {
                continue;
            };
            let zap = self.ctx.table(table.entries)?;
            if count.now == 0 {
                if !zap.remove_words(&[offset]).reading(WHAT)? {
                    return Err(invalid("an entry vanished", 0));
                }
            } else {
                let value = entry_value(self.ctx, &table.phys, count.now);
                zap.update_words(&[offset], &value).reading(WHAT)?;
            }
            match (count.stored, count.now) {
                (0, _) => table.count_entry(offset, true)?,
                (_, 0) => table.count_entry(offset, false)?,
                _ => table.is_changed = true,
            }
        }
        let vdevs: Vec<VdevId> = self.tables.tables.keys().copied().collect();
        for vdev in vdevs {
            self.store_table(vdev)?;
        }
        Ok(())
    }

    /// Makes sure that the vdev has a table, with a counter for each range.
    fn demand_table(&mut self, vdev: VdevId) -> Result<(), PoolError> {
        let geometry = self.ctx.pool.maps.geometries().get(&vdev).copied();
        let geometry = match geometry {
            Some(geometry) => geometry,
            // Blocks of a removed vdev keep their addresses.
            None => {
                let topology = self.ctx.pool.store.topology();
                let removed = topology.tree.top(vdev);
                let removed = removed.filter(|node| node.kind == VdevKind::Indirect);
                let removed = removed.ok_or_else(|| invalid("a block of no vdev", 0))?;
                geometry_of(vdev, removed)?
            }
        };
        let wanted = counters_of(&geometry)?;
        if !self.tables.tables.contains_key(&vdev) {
            let table = create(self.ctx, vdev)?;
            self.tables.tables.insert(vdev, table);
        }
        let Some(table) = self.tables.tables.get_mut(&vdev) else {
            return Ok(());
        };
        if table.phys.counter_count < wanted {
            // The vdev is new, or has grown.
            table.counters.resize(wanted as usize, 0);
            table.phys.counter_count = wanted;
            let blocks = table.counters.len().div_ceil(COUNTERS_PER_BLOCK);
            table.changed_blocks.extend(0..blocks);
            table.is_changed = true;
        }
        Ok(())
    }

    /// Writes a table's counters and header if they changed, or removes a table without entries.
    fn store_table(&mut self, vdev: VdevId) -> Result<(), PoolError> {
        let ctx = self.ctx;
        let Some(table) = self.tables.tables.get_mut(&vdev) else {
            return Ok(());
        };
        if !std::mem::take(&mut table.is_changed) {
            return Ok(());
        }
        if table.phys.entry_count == 0 {
            if table.phys.used_bytes != 0 || table.phys.saved_bytes != 0 {
                return Err(invalid("its sums contradict its entries", 40));
            }
            mark::hit("clone-table-removed");
            ctx.mos().free(ctx.tx(), table.entries).reading(WHAT)?;
            ctx.mos().free(ctx.tx(), table.object).reading(WHAT)?;
            ctx.remove_directory_entry(&clone_table_key(vdev))?;
            ctx.feature_decrement(BLOCK_CLONING)?;
            if ctx.feature_count(CLONING_ENDIAN) > 0 {
                ctx.feature_decrement(CLONING_ENDIAN)?;
            }
            self.tables.tables.remove(&vdev);
            return Ok(());
        }
        let object = ctx.mos().object(table.object).reading(WHAT)?;
        for index in std::mem::take(&mut table.changed_blocks) {
            let at = (index as u64).saturating_mul(COUNTER_BLOCK_BYTES as u64);
            let bytes = table.counter_block(index);
            object.write(ctx.tx(), at, &bytes).reading(WHAT)?;
        }
        let bonus = table.phys.encode();
        object.set_bonus(ctx.tx(), bonus).reading(WHAT)
    }
}

fn stored_count(
    ctx: &SyncContext<'_>,
    table: &CloneTable,
    offset_bytes: u64,
) -> Result<u64, PoolError> {
    let zap = ctx.table(table.entries)?;
    let Some(value) = zap.lookup_words(&[offset_bytes]).reading(WHAT)? else {
        return Ok(0);
    };
    match clone_entry_count(&value.bytes, value.integer_bytes, &table.phys).reading(WHAT)? {
        0 => Err(invalid("an entry without references", 0)),
        count => Ok(count),
    }
}

/// The value of an entry, in the form that all tables of the pool have.
fn entry_value(ctx: &SyncContext<'_>, table: &CloneTablePhys, count: u64) -> ZapValue {
    match ctx.feature_count(CLONING_ENDIAN) > 0 {
        true => ZapValue {
            integer_bytes: 8,
            bytes: clone_entry_value(count, Endian::Big).to_vec(),
        },
        false => ZapValue {
            integer_bytes: 1,
            bytes: clone_entry_value(count, table.counter_endian).to_vec(),
        },
    }
}

/// Creates an empty table. Its counters follow.
fn create(ctx: &SyncContext<'_>, vdev: VdevId) -> Result<CloneTable, PoolError> {
    mark::hit("clone-table-created");
    let is_first = ctx.feature_count(BLOCK_CLONING) == 0;
    let is_new_form = match is_first {
        true => ctx.feature_is_enabled(CLONING_ENDIAN),
        false => ctx.feature_count(CLONING_ENDIAN) > 0,
    };
    ctx.feature_increment(BLOCK_CLONING)?;
    if is_new_form {
        ctx.feature_increment(CLONING_ENDIAN)?;
    }
    let shape = match is_new_form {
        true => ZapShape::CLONES_ENDIAN,
        false => ZapShape::CLONES,
    };
    let zap = NewZap {
        flags: ZapFlags::HASH64 | ZapFlags::UINT64_KEY,
        ..NewZap::plain(new_salt(ctx.pool.env()))
    };
    let new = shape.object(ObjectType::METADATA_ZAP);
    let entries = allocate_zap(ctx.mos(), ctx.tx(), new, &zap).reading(WHAT)?;
    let phys = CloneTablePhys {
        entries: Some(entries.id()),
        counter_count: 0,
        counter_endian: Endian::Little,
        entry_count: 0,
        range_bytes: CLONE_RANGE_BYTES,
        used_bytes: 0,
        saved_bytes: 0,
    };
    let new = NewObject::new(ObjectType::METADATA_U64)
        .with_block_bytes(COUNTER_BLOCK_BYTES as u32)
        .with_bonus(ObjectType::METADATA_U64, phys.encode());
    let object = ctx.mos().allocate(ctx.tx(), new).reading(WHAT)?;
    ctx.set_directory_number(&clone_table_key(vdev), object.id().0)?;
    Ok(CloneTable {
        object: object.id(),
        entries: entries.id(),
        phys,
        counters: vec![],
        changed_blocks: BTreeSet::new(),
        is_changed: true,
    })
}

impl Pool {
    /// Changes references in the tables, and stores the changes.
    pub(crate) fn change_clones<R>(
        &self,
        ctx: &SyncContext<'_>,
        change: impl FnOnce(&mut Batch<'_, '_>) -> Result<R, PoolError>,
    ) -> Result<R, PoolError> {
        // Only one thread syncs. It keeps the tables while it reads and writes entries, without the lock.
        let mut tables = std::mem::take(&mut *self.clones.lock());
        let mut batch = Batch::new(ctx, &mut tables);
        let outcome = change(&mut batch).and_then(|value| batch.finish().map(|()| value));
        self.state.write().clones = tables.totals();
        *self.clones.lock() = tables;
        outcome
    }
}

impl SyncContext<'_> {
    /// Adds a reference to a stored data block, for a pointer that is a clone of another. Frees of the same txg
    /// see it, those of earlier txgs must not have freed the block.
    ///
    /// The clone tables change after the datasets of this pass are written, before blocks are freed. Holes and embedded
    /// pointers refer to no block.
    pub fn add_reference(&self, pointer: &BlockPointer) {
        if pointer.is_hole() || pointer.is_embedded() {
            return;
        }
        self.sync_state.has_changes.store(true, Ordering::Relaxed);
        self.sync_state.cloned.lock().push(*pointer);
    }
}
