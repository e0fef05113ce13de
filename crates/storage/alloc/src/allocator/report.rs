//! Space usage of a writable pool.

use millpond_ondisk::VdevId;

use super::{Pool, PoolAllocator};
use crate::{
    AllocationClass, MetaslabFragmentation, PoolUsage, VdevUsage, metaslab_fragmentation,
    pool_fragmentation, vdev_fragmentation,
};

/// Special vdevs accept small file blocks only while less than this share of them is in use.
const SPECIAL_FILL_PERCENT_MAX: u64 = 75;

impl PoolAllocator {
    /// Space and allocation of each vdev as of now; deferred frees count as allocated. The caller adds what
    /// dedup, clones, a checkpoint and `sync_bplist` contribute.
    #[must_use]
    pub fn usage(&self) -> PoolUsage {
        let vdevs = self.vdevs();
        let usage = vdevs.values().map(|vdev| VdevUsage {
            class: vdev.space.class,
            space_bytes: vdev.space_bytes(),
            allocated_bytes: vdev.allocated_bytes(),
            deflate_ratio: vdev.space.deflate_ratio,
            embedded_log_bytes: vdev
                .embedded_log
                .and_then(|index| vdev.metaslabs.get(index))
                .map_or(0, |metaslab| metaslab.place.size_bytes()),
            is_non_allocating: !vdev.space.is_allocating,
        });
        PoolUsage {
            vdevs: usage.collect(),
            ..PoolUsage::default()
        }
    }
    /// The raw space of a concrete vdev in bytes.
    #[must_use]
    pub fn space_bytes(&self, vdev: VdevId) -> Option<u64> {
        Some(self.vdevs().get(&vdev)?.space_bytes())
    }
    /// The deflate ratio of a concrete vdev.
    #[must_use]
    pub fn deflate_ratio(&self, vdev: VdevId) -> Option<u64> {
        Some(self.vdevs().get(&vdev)?.space.deflate_ratio)
    }
    /// Whether special vdevs accept small file blocks: there are special vdevs, and less than three
    /// quarters of their space is in use.
    #[must_use]
    pub fn takes_small_blocks(&self) -> bool {
        let special = self.usage().class(AllocationClass::Special);
        special.space_bytes > 0 && special.capacity_percent() < SPECIAL_FILL_PERCENT_MAX
    }
    /// Whether there are allocatable log vdevs.
    #[must_use]
    pub fn has_log_vdevs(&self) -> bool {
        let vdevs = self.vdevs();
        let log = Pool::Class(AllocationClass::Log);
        self.members(&vdevs, log, millpond_ondisk::Txg(u64::MAX))
            .next()
            .is_some()
    }
    /// Fragmentation of a vdev in percent, as of the last sync; `None` ("-") if unknown.
    #[must_use]
    pub fn fragmentation(&self, vdev: VdevId) -> Option<u8> {
        let vdevs = self.vdevs();
        let vdev = vdevs.get(&vdev)?;
        let metaslabs: Vec<MetaslabFragmentation> = (0usize..)
            .zip(&vdev.metaslabs)
            .filter(|(index, _)| vdev.embedded_log != Some(*index))
            .map(|(_, metaslab)| {
                let ashift = metaslab.place.ashift;
                let size = metaslab.place.size_bytes();
                metaslab.with(|state| MetaslabFragmentation {
                    percent: match state.map {
                        None => Some(0),
                        Some(map) => (map.shape.has_histogram)
                            .then(|| metaslab_fragmentation(&state.histogram, ashift)),
                    },
                    free_bytes: size.saturating_sub(state.allocated_bytes()),
                })
            })
            .collect();
        vdev_fragmentation(&metaslabs)
    }
    /// Fragmentation of the pool's normal vdevs in percent.
    #[must_use]
    pub fn pool_fragmentation(&self) -> Option<u8> {
        let vdevs = self.vdevs();
        let normal: Vec<_> = vdevs
            .values()
            .filter(|vdev| vdev.space.class == AllocationClass::Normal)
            .map(|vdev| (self.fragmentation(vdev.id()), vdev.space_bytes()))
            .collect();
        pool_fragmentation(&normal)
    }
}
