//! The figures of a changing pool.

use millpond_ondisk::VdevId;

use super::{Pool, PoolAllocator, members};
use crate::{
    AllocationClass, MetaslabFragmentation, PoolFigures, VdevFigures, metaslab_fragmentation,
    pool_fragmentation, vdev_fragmentation,
};

/// Small file blocks go to special vdevs only while these are filled below this share.
const SPECIAL_FILL_PERCENT_MAX: u64 = 75;

impl PoolAllocator {
    /// Space and allocation of each vdev as of now; what waits after being freed counts as
    /// allocated. What dedup, clones, a checkpoint and `sync_bplist` add is for the caller to fill in.
    #[must_use]
    pub fn figures(&self) -> PoolFigures {
        let vdevs = self.vdevs();
        let figures = vdevs.values().map(|vdev| VdevFigures {
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
        PoolFigures {
            vdevs: figures.collect(),
            ..PoolFigures::default()
        }
    }
    /// The deflate ratio of a concrete vdev.
    #[must_use]
    pub fn deflate_ratio(&self, vdev: VdevId) -> Option<u64> {
        Some(self.vdevs().get(&vdev)?.space.deflate_ratio)
    }
    /// Whether special vdevs take small blocks of files too: there are any, and they are filled
    /// below three quarters.
    #[must_use]
    pub fn takes_small_blocks(&self) -> bool {
        let special = self.figures().class(AllocationClass::Special);
        special.space_bytes > 0 && special.capacity_percent() < SPECIAL_FILL_PERCENT_MAX
    }
    /// Whether the intent log has vdevs of its own that can be allocated from.
    #[must_use]
    pub fn has_log_vdevs(&self) -> bool {
        let vdevs = self.vdevs();
        let log = Pool::Class(AllocationClass::Log);
        members(&vdevs, log, millpond_ondisk::Txg(u64::MAX))
            .next()
            .is_some()
    }
    /// Fragmentation in percent of a vdev, as of the last sync; `None` ("-") where not known.
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
    /// Fragmentation in percent of the pool's normal vdevs.
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
