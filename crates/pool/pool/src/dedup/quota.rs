//! The property `dedup_table_quota`: the size from which on the tables take no new keys.

use super::DedupTables;
use crate::PoolError;
use crate::error::Reading;
use crate::sync::context::SyncContext;
use millpond_alloc::{AllocationClass, PoolUsage};
use millpond_ondisk::ObjectId;
use millpond_ondisk::pool_directory::key;

/// The quota of pools that do not say one: it follows from the vdevs for tables.
const AUTO: u64 = u64::MAX;
/// Per cent of the vdevs for tables that may be full.
const FULL_PERCENT: u64 = 85;
/// Large vdevs for tables may be full up to this many bytes.
const FREE_BYTES: u64 = 8 << 30;
/// What a key needs in the objects of a large table.
const KEY_BYTES: u64 = 268;

impl DedupTables {
    /// How many new keys are accepted in this txg; `None` if there is no limit.
    ///
    /// The sizes are those of the last txg. A txg, and the logs before it, may hold more keys than the quota has space
    /// for, so the space that these will need counts too.
    pub(super) fn keys_left(&self, ctx: &SyncContext<'_>) -> Result<Option<u64>, PoolError> {
        let quota = match ctx.directory_object(key::POOL_PROPERTIES)? {
            Some(table) => ctx.table_number(table, "dedup_table_quota")?,
            None => None,
        };
        let waiting = self.tables.values().map(|table| table.unstored_new);
        let waiting_bytes = waiting
            .fold(0, u64::saturating_add)
            .saturating_mul(KEY_BYTES);
        let room_bytes = match quota.unwrap_or(AUTO) {
            0 => None,
            AUTO => vdevs_room_bytes(&ctx.pool.allocator.usage())
                .map(|room| room.saturating_sub(waiting_bytes)),
            quota => {
                let tables = self.tables.values();
                let classes = tables.flat_map(|table| &table.classes);
                let stored = disk_bytes(ctx, classes.filter_map(|class| class.object))?;
                let tables = self.tables.values();
                let logs = tables.filter_map(|table| table.fast.as_ref()?.logs.as_ref());
                let logged = disk_bytes(ctx, logs.flat_map(super::log::Logs::objects))?;
                let used = stored.saturating_add(logged.max(waiting_bytes));
                Some(quota.saturating_sub(used))
            }
        };
        Ok(room_bytes.map(|room| room.div_ceil(KEY_BYTES)))
    }
}

/// Deflated bytes of these objects, as of their last sync.
fn disk_bytes(
    ctx: &SyncContext<'_>,
    objects: impl Iterator<Item = ObjectId>,
) -> Result<u64, PoolError> {
    let mut bytes = 0u64;
    for id in objects {
        let object = ctx.mos().object(id).reading(super::WHAT)?;
        bytes = bytes.saturating_add(object.used_bytes());
    }
    Ok(bytes)
}

/// The bytes that may still be used on the vdevs that tables are placed on. `None` for normal vdevs, which have no limit.
fn vdevs_room_bytes(usage: &PoolUsage) -> Option<u64> {
    let classes = [AllocationClass::Dedup, AllocationClass::Special];
    let class = classes.map(|class| usage.class(class));
    let class = class.iter().find(|class| class.space_bytes > 0)?;
    let by_percent = class.space_bytes / 100 * FULL_PERCENT;
    let by_bytes = class.space_bytes.saturating_sub(FREE_BYTES);
    Some(
        by_percent
            .max(by_bytes)
            .saturating_sub(class.allocated_bytes),
    )
}
