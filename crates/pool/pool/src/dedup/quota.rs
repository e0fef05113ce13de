//! The property `dedup_table_quota`: the size from which on the tables take no new keys.

use super::DedupTables;
use crate::PoolError;
use crate::error::Reading;
use crate::sync::context::SyncContext;
use millpond_alloc::{AllocationClass, PoolUsage};
use millpond_ondisk::pool_directory::key;

/// The quota of pools that do not say one: it follows from the vdevs for tables.
const AUTO: u64 = u64::MAX;
/// Per cent of the vdevs for tables that may be full.
const FULL_PERCENT: u64 = 85;
/// Large vdevs for tables may be full up to this many bytes.
const FREE_BYTES: u64 = 8 << 30;

impl DedupTables {
    /// Whether no new keys are accepted.
    pub(super) fn is_over_quota(&self, ctx: &SyncContext<'_>) -> Result<bool, PoolError> {
        let quota = match ctx.directory_object(key::POOL_PROPERTIES)? {
            Some(table) => ctx.table_number(table, "dedup_table_quota")?,
            None => None,
        };
        match quota.unwrap_or(AUTO) {
            0 => Ok(false),
            AUTO => Ok(are_vdevs_full(&ctx.pool.allocator.usage())),
            quota => Ok(self.disk_bytes(ctx)? >= quota),
        }
    }

    /// Deflated bytes of all objects of the tables, as of their last sync.
    fn disk_bytes(&self, ctx: &SyncContext<'_>) -> Result<u64, PoolError> {
        let mut bytes = 0u64;
        for table in self.tables.values() {
            let classes = table.classes.iter().filter_map(|class| class.object);
            let logs = table.fast.iter().filter_map(|fast| fast.logs.as_ref());
            for id in classes.chain(logs.flat_map(super::log::Logs::objects)) {
                let object = ctx.mos().object(id).reading(super::WHAT)?;
                bytes = bytes.saturating_add(object.used_bytes());
            }
        }
        Ok(bytes)
    }
}

/// Whether the vdevs that tables are placed on are as good as full. Normal vdevs never are.
fn are_vdevs_full(usage: &PoolUsage) -> bool {
    let classes = [AllocationClass::Dedup, AllocationClass::Special];
    let class = classes.map(|class| usage.class(class));
    let Some(class) = class.iter().find(|class| class.space_bytes > 0) else {
        return false;
    };
    let by_percent = class.space_bytes / 100 * FULL_PERCENT;
    let by_bytes = class.space_bytes.saturating_sub(FREE_BYTES);
    class.allocated_bytes >= by_percent.max(by_bytes)
}
