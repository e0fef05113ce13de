mod held;
mod history;
mod image;
mod logs;
mod parallel;
mod pinned;
mod placing;
mod world;

use super::*;
use crate::VdevGeometry;
use millpond_ondisk::Ashift;

/// Sizes of a vdev without parity, or of a RAID-Z.
pub(super) struct Sizes {
    pub(super) ashift: u8,
    /// Children and parity.
    pub(super) raidz: Option<(u64, u64)>,
}

impl BlockSizes for Sizes {
    fn asize(&self, _: VdevId, psize_bytes: u64, _: Txg) -> Option<u64> {
        let sectors = psize_bytes.div_ceil(1 << self.ashift);
        let sectors = match self.raidz {
            None => sectors,
            Some((children, parity)) => (sectors + parity * sectors.div_ceil(children - parity))
                .next_multiple_of(parity + 1),
        };
        Some(sectors << self.ashift)
    }
}

pub(super) fn plain(vdev: u32, metaslabs: u64, shift: u8, ashift: u8) -> VdevSpace {
    let geometry = VdevGeometry::new(
        VdevId(vdev),
        metaslabs << shift,
        Ashift(ashift),
        shift,
        None,
    );
    VdevSpace {
        geometry: geometry.unwrap(),
        class: AllocationClass::Normal,
        deflate_ratio: 512,
        data_disks: 1,
        is_allocating: true,
        usable_from: Txg(0),
        sizes: Arc::new(Sizes {
            ashift,
            raidz: None,
        }),
    }
}

pub(super) fn raidz(vdev: u32, metaslabs: u64, shift: u8, children: u64, parity: u64) -> VdevSpace {
    VdevSpace {
        data_disks: children - parity,
        deflate_ratio: 512 * (children - parity) / children,
        sizes: Arc::new(Sizes {
            ashift: 9,
            raidz: Some((children, parity)),
        }),
        ..plain(vdev, metaslabs, shift, 9)
    }
}

pub(super) const LOGS: SpaceMapForms = SpaceMapForms {
    has_two_words: true,
    has_logs: true,
};
pub(super) const OLD: SpaceMapForms = SpaceMapForms {
    has_two_words: false,
    has_logs: false,
};

pub(super) fn normal(psize_bytes: u64, copies: u8) -> AllocRequest<'static> {
    AllocRequest::new(Placement::Normal, psize_bytes, copies)
}
