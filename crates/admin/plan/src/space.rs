//! The space of a layout, computed as a new pool computes it.

use crate::layout::{Layout, VdevLayout};
use millpond_alloc::{
    AllocationClass, PoolUsage, SlopShare, VdevUsage, deflate_ratio, embedded_log_metaslab,
};
use millpond_ondisk::{Guid, LeafLayout, Txg, VdevId};
use millpond_vdev::{
    DraidGeometry, METASLABS_MIN, Reflow, VdevConfig, VdevTree, VdevType, metaslab_shift_for,
};

/// The size of a block from which the usable share of a vdev is computed, in bytes.
const RATIO_BLOCK_BYTES: u64 = 128 << 10;

/// Where the bytes of the disks go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// All bytes of all disks, spares included.
    pub disk_bytes: u64,
    /// What `zpool list` calls SIZE.
    pub size_bytes: u64,
    /// USED and AVAIL together, of the empty pool's first file system: for records of 128 KiB.
    pub usable_bytes: u64,
    /// What the pool keeps back for itself.
    pub slop_bytes: u64,
    /// Bytes of hot spares.
    pub spare_bytes: u64,
}

impl Space {
    /// The space of a layout; `None` if the disks are too small or the layout is impossible.
    #[must_use]
    pub fn of(layout: Layout, disk_bytes: u64, ashift: u64) -> Option<Self> {
        let leaf = LeafLayout::new(disk_bytes)?;
        let kind = layout.kind;
        let asize = match kind {
            VdevLayout::Stripe | VdevLayout::Mirror { .. } => leaf.asize_bytes(),
            VdevLayout::Raidz { disks, .. } => leaf.asize_bytes().checked_mul(disks)?,
            VdevLayout::Draid { .. } => {
                geometry_of(kind)?.asize_from_children(leaf.asize_bytes())?
            }
        };
        let shift = metaslab_shift_for(asize, METASLABS_MIN);
        let tree = VdevTree::new(
            VdevConfig::root(Guid(1), vec![top(kind, asize, shift, ashift)]),
            Reflow::default(),
        )
        .ok()?;
        let vdev = VdevId(0);
        let block_asize = tree.asize(vdev, RATIO_BLOCK_BYTES, Txg(1))?;
        let unused = vec![0; usize::try_from(tree.metaslab_count(vdev)).ok()?];
        let log_bytes = |index: usize| Some(tree.metaslab_range(vdev, index as u64)?.1);
        let embedded_log = embedded_log_metaslab(&unused).and_then(log_bytes);
        let vdev = VdevUsage {
            class: AllocationClass::Normal,
            space_bytes: tree.space(vdev),
            allocated_bytes: 0,
            deflate_ratio: deflate_ratio(block_asize),
            embedded_log_bytes: embedded_log.unwrap_or(0),
            is_non_allocating: false,
        };
        let usage = PoolUsage {
            vdevs: vec![vdev; usize::try_from(layout.vdevs).ok()?],
            ..PoolUsage::default()
        };
        let whole = usage.limit(SlopShare::All).limit_bytes;
        let usable = usage.limit(SlopShare::None).limit_bytes;
        let (smaller, larger) = (whole.min(usable), whole.max(usable));
        let all = layout.vdevs * kind.disks() + layout.spares;
        Some(Self {
            disk_bytes: disk_bytes.checked_mul(all)?,
            size_bytes: usage.pool().space_bytes,
            usable_bytes: smaller,
            slop_bytes: larger - smaller,
            spare_bytes: disk_bytes.checked_mul(layout.spares)?,
        })
    }
}

/// The groups of a dRAID, as `zpool create` makes them.
fn geometry_of(kind: VdevLayout) -> Option<DraidGeometry> {
    let VdevLayout::Draid {
        disks,
        parity,
        data,
        spares,
    } = kind
    else {
        return None;
    };
    let disks = usize::try_from(disks).ok()?;
    DraidGeometry::with_fewest_groups(disks, parity, data, spares).ok()
}

/// The configuration of a top-level vdev.
fn top(kind: VdevLayout, asize: u64, shift: u32, ashift: u64) -> VdevConfig {
    let leaf = |number: u64| VdevConfig::new(VdevType::File, Guid(100 + number));
    let children = || (0..kind.disks()).map(leaf).collect();
    let mut top = match kind {
        VdevLayout::Stripe => leaf(0),
        VdevLayout::Mirror { .. } => VdevConfig {
            children: children(),
            ..VdevConfig::new(VdevType::Mirror, Guid(2))
        },
        VdevLayout::Raidz { parity, .. } => VdevConfig {
            children: children(),
            nparity: Some(parity),
            ..VdevConfig::new(VdevType::Raidz, Guid(2))
        },
        VdevLayout::Draid { .. } => {
            let geometry = geometry_of(kind);
            let number = |of: fn(&DraidGeometry) -> u64| geometry.as_ref().map(of);
            VdevConfig {
                children: children(),
                nparity: number(DraidGeometry::parity),
                draid_ndata: number(DraidGeometry::data),
                draid_nspares: number(DraidGeometry::spares),
                draid_ngroups: number(DraidGeometry::groups),
                ..VdevConfig::new(VdevType::Draid, Guid(2))
            }
        }
    };
    (top.id, top.ashift) = (Some(0), ashift);
    (top.asize_bytes, top.metaslab_shift) = (asize, u64::from(shift));
    top
}
