//! Space maps that belong to a top-level vdev as a whole: of what a checkpoint keeps, and of what is obsolete in the
//! mapping of a removed vdev. The vdev's ZAP names them.
//!
//! Pages `docs/format/space-map.md`, `docs/format/vdev-zap.md`.

use crate::error::Reading;
use crate::space::maps::{MapWriter, SPACE_MAP_V2};
use crate::space::store::{open_map, vdev_zap_object};
use crate::sync::context::SyncContext;
use crate::{PoolError, PoolView};
use millpond_alloc::{AllocError, MetaslabId, VdevGeometry};
use millpond_object::Object;
use millpond_ondisk::space_map::SpaceMapWriter;
use millpond_ondisk::{Endian, ObjectId, SpaceAction, SpaceMapPhys, VdevId};
use millpond_vdev::VdevNode;
use std::ops::Range;

const WHAT: &str = "space map of a vdev";

/// The space map of a top-level vdev under one name, as its header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VdevMap {
    pub(crate) object: ObjectId,
    pub(crate) length_bytes: u64,
    pub(crate) allocated_bytes: i64,
}

/// Whether maps of a vdev as a whole can hold all of its offsets. Without `spacemap_v2` they end at 2^47 sectors, 64 PiB
/// with sectors of 512 bytes; the maps of its metaslabs hold more, because their offsets begin with the metaslab.
pub(crate) fn holds_all_offsets(vdev: &VdevGeometry, has_two_words: bool) -> bool {
    vdev.end_bytes() >> vdev.ashift().0 <= SpaceMapWriter::offsets_end(has_two_words)
}

impl VdevMap {
    /// The map that the vdev's ZAP names `key`, if there is one.
    pub(crate) fn load(
        read: &PoolView,
        node: &VdevNode,
        key: &str,
    ) -> Result<Option<Self>, PoolError> {
        let Some(zap) = node.config.zap_top.and_then(ObjectId::some) else {
            return Ok(None);
        };
        let Some(object) = vdev_zap_object(read, zap, key)? else {
            return Ok(None);
        };
        let (_, phys) = open_map(read, object)?;
        Ok(Some(Self {
            object,
            length_bytes: phys.length_bytes,
            allocated_bytes: phys.allocated_bytes,
        }))
    }

    /// Creates an empty map.
    pub(crate) fn create(
        ctx: &SyncContext<'_>,
        vdev: VdevId,
        key: &str,
    ) -> Result<Self, PoolError> {
        let zap = top_zap(ctx, vdev)?;
        let maps = &ctx.pool.maps;
        let object = MapWriter { ctx, maps }.create_large_map()?;
        ctx.set_table_number(zap, key, object.id().0)?;
        Ok(Self {
            object: object.id(),
            length_bytes: 0,
            allocated_bytes: 0,
        })
    }

    /// Appends ranges in bytes. Entries stay within a range: readers of some maps expect that.
    pub(crate) fn append(
        &mut self,
        ctx: &SyncContext<'_>,
        action: SpaceAction,
        shift: u8,
        ranges: &mut dyn Iterator<Item = (MetaslabId, Range<u64>)>,
    ) -> Result<(), PoolError> {
        let object = ctx.mos().object(self.object).reading(WHAT)?;
        let has_two_words = ctx.feature_count(SPACE_MAP_V2) > 0;
        let mut entries =
            SpaceMapWriter::new(self.length_bytes, object.block_bytes(), has_two_words);
        let pass = u16::try_from(ctx.pass()).unwrap_or(u16::MAX);
        entries.put_debug(ctx.txg(), pass, action);
        for (metaslab, range) in ranges {
            let length = range.end.saturating_sub(range.start);
            let put = entries.put_range(action, range.start >> shift, length >> shift);
            put.map_err(|source| AllocError::Entry { metaslab, source })?;
            let bytes = i64::try_from(length).unwrap_or(i64::MAX);
            self.allocated_bytes = match action {
                SpaceAction::Allocate => self.allocated_bytes.saturating_add(bytes),
                SpaceAction::Free => self.allocated_bytes.saturating_sub(bytes),
            };
        }
        let at = self.length_bytes;
        self.length_bytes = at.saturating_add(entries.length_bytes());
        let written = object.write(ctx.tx(), at, &entries.finish());
        written.reading(WHAT)?;
        self.put_header(ctx, &object)
    }

    /// Writes the header.
    pub(crate) fn put_header(
        &self,
        ctx: &SyncContext<'_>,
        object: &Object,
    ) -> Result<(), PoolError> {
        let mut phys = SpaceMapPhys::decode(&object.bonus(), Endian::Little).reading(WHAT)?;
        phys.object = Some(self.object);
        phys.length_bytes = self.length_bytes;
        phys.allocated_bytes = self.allocated_bytes;
        object.set_bonus(ctx.tx(), phys.encode()).reading(WHAT)
    }

    /// Frees the map and removes its name.
    pub(crate) fn free(
        &self,
        ctx: &SyncContext<'_>,
        vdev: VdevId,
        key: &str,
    ) -> Result<(), PoolError> {
        if let Some(zap) = ctx.pool.top_zap(vdev) {
            ctx.remove_table_entry(zap, key)?;
        }
        ctx.free_space_map(self.object)
    }
}

/// The ZAP of a top-level vdev, which must have one.
pub(crate) fn top_zap(ctx: &SyncContext<'_>, vdev: VdevId) -> Result<ObjectId, PoolError> {
    ctx.pool.top_zap(vdev).ok_or_else(|| PoolError::NoEntry {
        key: "com.delphix:vdev_zap_top".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_ondisk::Ashift;

    #[test]
    fn vdevs_beyond_64_pib_need_entries_of_two_words() {
        let vdev = |pebibytes: u64, ashift: u8| {
            let bytes = pebibytes << 50;
            VdevGeometry::new(VdevId(0), bytes, Ashift(ashift), 39, None).unwrap()
        };
        for has_two_words in [false, true] {
            assert!(holds_all_offsets(&vdev(64, 9), has_two_words));
            assert_eq!(
                holds_all_offsets(&vdev(65, 9), has_two_words),
                has_two_words
            );
            assert!(holds_all_offsets(&vdev(65, 12), has_two_words));
        }
    }
}
