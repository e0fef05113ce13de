//! Tables and their objects appear when they are first needed.

use super::table::{Fast, Table};
use super::{DedupTables, FAST_DEDUP, WHAT, invalid};
use crate::PoolError;
use crate::error::Reading;
use crate::sync::context::SyncContext;
use millpond_env::mark;
use millpond_ondisk::dedup::{DedupClass, DedupTableFlags};
use millpond_ondisk::pool_directory::{
    OBJECT_DIRECTORY, dedup_directory_key, dedup_table_key, key,
};
use millpond_ondisk::{ChecksumKind, ObjectId, ObjectType};
use millpond_zap::{NewZap, ZapFlags, ZapShape, allocate_zap, new_salt};

/// The version of fast tables.
pub(super) const VERSION: u64 = 1;

impl DedupTables {
    /// The table of a checksum function. A new one is fast if the pool has the feature enabled.
    pub(super) fn demand(
        &mut self,
        ctx: &SyncContext<'_>,
        checksum: ChecksumKind,
    ) -> Result<&mut Table, PoolError> {
        let number = checksum.number();
        if !self.tables.contains_key(&number) {
            self.create(ctx, checksum)?;
        }
        let table = self.tables.get_mut(&number);
        table.ok_or_else(|| invalid("the table is missing", 0))
    }

    fn create(&mut self, ctx: &SyncContext<'_>, checksum: ChecksumKind) -> Result<(), PoolError> {
        let fast = match ctx.feature_is_enabled(FAST_DEDUP) {
            true => Some(create_directory(ctx, checksum)?),
            false => None,
        };
        if self.statistics.is_none() {
            let id = ctx.create_table(ObjectType::DDT_STATS)?;
            ctx.set_directory_number(key::DEDUP_STATISTICS, id.0)?;
            self.statistics = Some(id);
        }
        let table = Table::new(checksum, fast);
        self.tables.insert(checksum.number(), table);
        Ok(())
    }
}

fn create_directory(ctx: &SyncContext<'_>, checksum: ChecksumKind) -> Result<Fast, PoolError> {
    mark::hit("dedup-table-created");
    ctx.feature_increment(FAST_DEDUP)?;
    let directory = ctx.create_table(ObjectType::METADATA_ZAP)?;
    let flags = DedupTableFlags::FLAT | DedupTableFlags::LOG;
    ctx.set_table_number(directory, "version", VERSION)?;
    ctx.set_table_number(directory, "flags", flags.bits())?;
    ctx.set_directory_number(&dedup_directory_key(checksum), directory.0)?;
    Ok(Fast {
        directory,
        logs: None,
    })
}

impl Table {
    /// The object that has the entries with the names of the table's objects.
    pub(super) fn directory(&self) -> ObjectId {
        self.fast
            .as_ref()
            .map_or(OBJECT_DIRECTORY, |fast| fast.directory)
    }

    /// The object for the entries of a class.
    pub(super) fn demand_class(
        &mut self,
        ctx: &SyncContext<'_>,
        class: DedupClass,
    ) -> Result<ObjectId, PoolError> {
        if let Some(object) = self.class_mut(class).object {
            return Ok(object);
        }
        // The checksums themselves are the hashes, where they are strong enough.
        let mut flags = ZapFlags::HASH64 | ZapFlags::UINT64_KEY;
        flags.set(
            ZapFlags::PREHASHED_KEY,
            self.checksum != ChecksumKind::Edonr,
        );
        let zap = NewZap {
            flags,
            ..NewZap::plain(new_salt(ctx.pool.env()))
        };
        let new = ZapShape::DEDUP.object(ObjectType::DDT_ZAP);
        let object = allocate_zap(ctx.mos(), ctx.tx(), new, &zap).reading(WHAT)?;
        let name = dedup_table_key(self.checksum, class.name());
        ctx.set_table_number(self.directory(), &name, object.id().0)?;
        self.class_mut(class).object = Some(object.id());
        Ok(object.id())
    }
}
