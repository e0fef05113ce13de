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
        let (limit, used) = match quota.unwrap_or(AUTO) {
            0 => return Ok(None),
            AUTO => {
                let Some(vdevs) = table_vdevs(&ctx.pool.allocator.usage()) else {
                    return Ok(None);
                };
                // What found no space there is on the normal vdevs.
                let tables = self
                    .stored_bytes(ctx)?
                    .saturating_add(self.logged_bytes(ctx)?);
                let used = vdevs.allocated_bytes.max(tables);
                (vdevs.limit_bytes, used.saturating_add(waiting_bytes))
            }
            quota => {
                let logged = self.logged_bytes(ctx)?.max(waiting_bytes);
                (quota, self.stored_bytes(ctx)?.saturating_add(logged))
            }
        };
        Ok(Some(limit.saturating_sub(used).div_ceil(KEY_BYTES)))
    }

    fn stored_bytes(&self, ctx: &SyncContext<'_>) -> Result<u64, PoolError> {
        let classes = self.tables.values().flat_map(|table| &table.classes);
        disk_bytes(ctx, classes.filter_map(|class| class.object))
    }

    fn logged_bytes(&self, ctx: &SyncContext<'_>) -> Result<u64, PoolError> {
        let tables = self.tables.values();
        let logs = tables.filter_map(|table| table.fast.as_ref()?.logs.as_ref());
        disk_bytes(ctx, logs.flat_map(super::log::Logs::objects))
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

/// The vdevs that tables are placed on.
struct TableVdevs {
    limit_bytes: u64,
    allocated_bytes: u64,
}

/// `None` for normal vdevs, which have no limit.
fn table_vdevs(usage: &PoolUsage) -> Option<TableVdevs> {
    let classes = [AllocationClass::Dedup, AllocationClass::Special];
    let class = classes.map(|class| usage.class(class));
    let class = class.iter().find(|class| class.space_bytes > 0)?;
    let by_percent = class.space_bytes / 100 * FULL_PERCENT;
    let by_bytes = class.space_bytes.saturating_sub(FREE_BYTES);
    Some(TableVdevs {
        limit_bytes: by_percent.max(by_bytes),
        allocated_bytes: class.allocated_bytes,
    })
}
