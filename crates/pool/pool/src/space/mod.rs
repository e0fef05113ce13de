//! Space usage of a pool: the statistics behind `zpool list` and `available`.
//!
//! All values come from headers: of the metaslabs' space maps (plus entries that are only in the logs), of
//! the dedup and clone tables, and of the block pointer lists. Only the logs are replayed; the space maps
//! are not. The values are computed on first use and cached.
//!
//! Page `docs/format/space-accounting.md`.

mod clones;
mod dedup;
pub(crate) mod maps;
pub(crate) mod store;
pub(crate) mod vdev_map;
mod vdevs;

pub use clones::CloneTotals;
#[cfg(test)]
pub(crate) use dedup::measure as measure_dedup;
pub use dedup::{DEDUP_BUCKETS, DedupBucket, DedupTotals};
pub use store::PoolSpaceMaps;
pub use vdevs::VdevSpace;
pub(crate) use vdevs::{deflated_address_bytes, ratio_of};

use crate::error::Reading;
use crate::{PoolError, PoolView};
use millpond_alloc::{
    AllocationClass, ClassUsage, PoolLimit, PoolUsage, SlopShare, pool_fragmentation,
};
use millpond_env::sync::Arc;
use millpond_ondisk::dsl::keys::{FREE_DIRECTORY, LEAK_DIRECTORY};
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{BlockPointer, BpObjectPhys, DslDirectoryPhys, ObjectId, VdevId};
use millpond_zap::Zap;

/// Space usage of a pool as of the uberblock that it was opened at. All values in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSpace {
    /// Every top-level vdev that allocates space, in order.
    pub vdevs: Vec<VdevSpace>,
    /// The totals from which `available` is computed.
    pub usage: PoolUsage,
    /// The dedup tables.
    pub dedup: DedupTotals,
    /// The clone tables.
    pub clones: CloneTotals,
    /// Deflated bytes waiting to be freed in the background: `freeing`.
    pub freeing_bytes: u64,
    /// Deflated bytes that could not be freed: `leaked`.
    pub leaked_bytes: u64,
}

impl PoolSpace {
    /// SIZE, ALLOC, FREE and CAP of `zpool list`.
    #[must_use]
    pub fn pool(&self) -> ClassUsage {
        self.usage.pool()
    }
    /// Fragmentation in per cent; `None` if no histograms are kept.
    #[must_use]
    pub fn fragmentation_percent(&self) -> Option<u8> {
        let normal: Vec<(Option<u8>, u64)> = self
            .vdevs
            .iter()
            .filter(|vdev| vdev.usage.class == AllocationClass::Normal)
            .map(|vdev| {
                let usage = &vdev.usage;
                let space = usage.space_bytes.saturating_sub(usage.embedded_log_bytes);
                (vdev.fragmentation_percent, space)
            })
            .collect();
        pool_fragmentation(&normal)
    }
    /// The space that datasets may use in total, and the space held in reserve.
    #[must_use]
    pub fn limit(&self) -> PoolLimit {
        self.usage.limit(SlopShare::All)
    }
    /// The usage of one top-level vdev; `None` for removed vdevs and holes.
    #[must_use]
    pub fn vdev(&self, id: VdevId) -> Option<&VdevSpace> {
        self.vdevs.iter().find(|vdev| vdev.vdev == id)
    }
}

impl PoolView {
    /// Space usage of the pool. The first call computes it, reading one object per metaslab, and caches the
    /// result.
    ///
    /// # Errors
    /// If a source of the values cannot be read. The error is cached too.
    pub fn space(&self) -> Result<Arc<PoolSpace>, PoolError> {
        self.space
            .get_or_init(|| self.measure_space().map(Arc::new))
            .clone()
    }

    /// The number of deflated bytes that a block pointer charges to its dataset.
    #[must_use]
    pub fn deflated_pointer_bytes(&self, pointer: &BlockPointer) -> u64 {
        let is_deflated = self.is_deflated();
        let topology = self.store().topology();
        millpond_alloc::deflated_pointer_bytes(pointer, |vdev| {
            let ratio = vdevs::ratio_of(&topology.tree, vdev);
            is_deflated.then_some(ratio)
        })
    }

    /// Whether sizes are deflated.
    pub(crate) fn is_deflated(&self) -> bool {
        matches!(self.directory_number(key::DEFLATE), Ok(Some(1..)))
    }

    fn measure_space(&self) -> Result<PoolSpace, PoolError> {
        let vdevs = vdevs::measure(self)?;
        let dedup = dedup::measure(self)?;
        let clones = clones::measure(self)?;
        let checkpoint_bytes = vdevs
            .iter()
            .map(|vdev| vdev.checkpoint_bytes)
            .fold(0, u64::saturating_add);
        let usage = PoolUsage {
            vdevs: vdevs.iter().map(|vdev| vdev.usage).collect(),
            dedup_saved_bytes: dedup.saved_bytes(),
            clone_saved_bytes: clones.saved_bytes,
            checkpoint_bytes,
            deferred_free_bytes: self.deferred_free_bytes()?,
            counts_special_classes: self.was_written_by_2_4()?,
        };
        Ok(PoolSpace {
            vdevs,
            usage,
            dedup,
            clones,
            freeing_bytes: self.internal_directory_used(FREE_DIRECTORY)?,
            leaked_bytes: self.internal_directory_used(LEAK_DIRECTORY)?,
        })
    }

    /// Whether OpenZFS 2.4 ever wrote to the pool.
    ///
    /// OpenZFS 2.4 always stores records of txg times, which no feature flag announces. Since 2.4, special
    /// and dedup vdevs count towards `available`, and a few properties are printed differently.
    ///
    /// # Errors
    /// If the object directory cannot be read.
    pub fn was_written_by_2_4(&self) -> Result<bool, PoolError> {
        let [minutes, ..] = key::TXG_LOG_TIMES;
        Ok(self.directory_value(minutes)?.is_some())
    }

    /// The deflated bytes that all datasets use.
    pub(crate) fn root_used_bytes(&self) -> Result<u64, PoolError> {
        let root = self.directory_phys(self.directory_object(key::ROOT_DATASET)?)?;
        Ok(root.used_bytes)
    }

    pub(crate) fn deferred_free_bytes(&self) -> Result<u64, PoolError> {
        let what = "deferred frees";
        let Some(id) = self.find_directory_object(key::SYNC_BPLIST)? else {
            return Ok(0);
        };
        let object = self.mos().object(id).reading(what)?;
        let bonus = object.bonus().reading(what)?;
        // The oldest pools store the list without totals.
        Ok(BpObjectPhys::decode(bonus, object.dnode().endian).map_or(0, |list| list.bytes))
    }

    /// The bytes charged to one of the root's hidden directories; 0 if it does not exist.
    fn internal_directory_used(&self, name: &str) -> Result<u64, PoolError> {
        let what = "DSL directory";
        let root = self.directory_phys(self.directory_object(key::ROOT_DATASET)?)?;
        let Some(children) = root.child_directories else {
            return Ok(0);
        };
        let zap = Zap::open(self.mos().object(children).reading(what)?).reading(what)?;
        match zap.lookup_u64(name.as_bytes()).reading(what)? {
            None => Ok(0),
            Some(id) => Ok(self.directory_phys(ObjectId(id))?.used_bytes),
        }
    }

    fn directory_phys(&self, id: ObjectId) -> Result<DslDirectoryPhys, PoolError> {
        let what = "DSL directory";
        let object = self.mos().object(id).reading(what)?;
        let bonus = object.bonus().reading(what)?;
        DslDirectoryPhys::decode(bonus, object.dnode().endian).reading(what)
    }
}
