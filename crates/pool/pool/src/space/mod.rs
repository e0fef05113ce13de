//! How much of a pool is used, free and scattered: the figures behind `zpool list` and `available`.
//!
//! Everything comes from headers: of the metaslabs' own space maps, with what is only in the logs
//! added, of the dedup and clone tables, and of the block lists. No map is replayed for it but the
//! logs. The figures are worked out at the first question and kept.
//!
//! Page `docs/format/space-accounting.md`.

mod clones;
mod dedup;
mod store;
mod vdevs;

pub use clones::CloneTotals;
pub use dedup::{DEDUP_BUCKETS, DedupBucket, DedupTotals};
pub use store::PoolSpaceMaps;
pub use vdevs::VdevSpace;
pub(crate) use vdevs::ratio_of;

use crate::error::Reading;
use crate::{Pool, PoolError};
use millpond_alloc::{
    AllocationClass, ClassFigures, PoolFigures, PoolLimit, SlopShare, pool_fragmentation,
};
use millpond_env::sync::Arc;
use millpond_ondisk::dsl::keys::{FREE_DIRECTORY, LEAK_DIRECTORY};
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{BlockPointer, BpObjectPhys, DslDirectoryPhys, ObjectId, VdevId};
use millpond_zap::Zap;

/// The figures of a pool, as of the uberblock that it was opened at. All in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSpace {
    /// Every top-level vdev that space is allocated from, in order.
    pub vdevs: Vec<VdevSpace>,
    /// The sums and what `available` is made from.
    pub figures: PoolFigures,
    /// The dedup tables.
    pub dedup: DedupTotals,
    /// The clone tables.
    pub clones: CloneTotals,
    /// Deflated bytes that wait to be freed in the background: `freeing`.
    pub freeing_bytes: u64,
    /// Deflated bytes that could not be freed: `leaked`.
    pub leaked_bytes: u64,
}

impl PoolSpace {
    /// SIZE, ALLOC, FREE and CAP of `zpool list`.
    #[must_use]
    pub fn pool(&self) -> ClassFigures {
        self.figures.pool()
    }
    /// Per cent, or `None` where no histograms are kept.
    #[must_use]
    pub fn fragmentation_percent(&self) -> Option<u8> {
        let normal: Vec<(Option<u8>, u64)> = self
            .vdevs
            .iter()
            .filter(|vdev| vdev.figures.class == AllocationClass::Normal)
            .map(|vdev| {
                let figures = &vdev.figures;
                let space = figures
                    .space_bytes
                    .saturating_sub(figures.embedded_log_bytes);
                (vdev.fragmentation_percent, space)
            })
            .collect();
        pool_fragmentation(&normal)
    }
    /// What datasets may use in all, and how much is held back.
    #[must_use]
    pub fn limit(&self) -> PoolLimit {
        self.figures.limit(SlopShare::All)
    }
    /// The figures of one top-level vdev; `None` for removed ones and holes.
    #[must_use]
    pub fn vdev(&self, id: VdevId) -> Option<&VdevSpace> {
        self.vdevs.iter().find(|vdev| vdev.vdev == id)
    }
}

impl Pool {
    /// The pool's figures of space. Worked out at the first call, which reads one object for each
    /// metaslab, and kept.
    ///
    /// # Errors
    /// If something they are made from cannot be read. Remembered, too.
    pub fn space(&self) -> Result<Arc<PoolSpace>, PoolError> {
        self.space
            .get_or_init(|| self.measure_space().map(Arc::new))
            .clone()
    }

    /// What a block pointer charges to its dataset, in deflated bytes.
    #[must_use]
    pub fn deflated_pointer_bytes(&self, pointer: &BlockPointer) -> u64 {
        let is_deflated = matches!(self.directory_number(key::DEFLATE), Ok(Some(1..)));
        let topology = self.store().topology();
        millpond_alloc::deflated_pointer_bytes(pointer, |vdev| {
            let ratio = vdevs::ratio_of(&topology.tree, vdev);
            is_deflated.then_some(ratio)
        })
    }

    fn measure_space(&self) -> Result<PoolSpace, PoolError> {
        let vdevs = vdevs::measure(self)?;
        let dedup = dedup::measure(self)?;
        let clones = clones::measure(self)?;
        let checkpoint_bytes = vdevs
            .iter()
            .map(|vdev| vdev.checkpoint_bytes)
            .fold(0, u64::saturating_add);
        let figures = PoolFigures {
            vdevs: vdevs.iter().map(|vdev| vdev.figures).collect(),
            dedup_saved_bytes: dedup.saved_bytes(),
            clone_saved_bytes: clones.saved_bytes,
            checkpoint_bytes,
            deferred_free_bytes: self.deferred_free_bytes()?,
            counts_special_classes: self.was_written_by_2_4()?,
        };
        Ok(PoolSpace {
            vdevs,
            figures,
            dedup,
            clones,
            freeing_bytes: self.internal_directory_used(FREE_DIRECTORY)?,
            leaked_bytes: self.internal_directory_used(LEAK_DIRECTORY)?,
        })
    }

    /// Whether OpenZFS 2.4 ever wrote the pool: it always leaves records of the times of txgs,
    /// which no feature announces. Since then special and dedup vdevs count for `available`, and a
    /// few properties look different.
    ///
    /// # Errors
    /// If the object directory cannot be read.
    pub fn was_written_by_2_4(&self) -> Result<bool, PoolError> {
        let [minutes, ..] = key::TXG_LOG_TIMES;
        Ok(self.directory_value(minutes)?.is_some())
    }

    pub(crate) fn deferred_free_bytes(&self) -> Result<u64, PoolError> {
        let what = "deferred frees";
        let Some(id) = self.find_directory_object(key::SYNC_BPLIST)? else {
            return Ok(0);
        };
        let object = self.mos().object(id).reading(what)?;
        let bonus = object.bonus().reading(what)?;
        // Pools of the first version keep it without sums.
        Ok(BpObjectPhys::decode(bonus, object.dnode().endian).map_or(0, |list| list.bytes))
    }

    /// The bytes charged to one of the root's hidden directories; 0 where it does not exist.
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
