//! Space usage of each top-level vdev.

use crate::space::store::{PoolSpaceMaps, open_map, vdev_zap_object};
use crate::{PoolError, PoolView};
use millpond_alloc::{
    AllocationClass, MetaslabFragmentation, UnflushedLogs, VdevUsage, deflate_ratio,
    embedded_log_metaslab, metaslab_fragmentation, vdev_fragmentation,
};
use millpond_ondisk::pool_directory::{key, vdev_key};
use millpond_ondisk::{Dva, ObjectId, Txg, VdevId};
use millpond_vdev::{VdevNode, VdevTree};

/// The block size used to compute a vdev's overhead, in bytes.
const TYPICAL_BLOCK_BYTES: u64 = 128 << 10;
/// The ratio of a vdev without overhead, and of every vdev before pool version 3.
const RATIO_ONE: u64 = 512;

/// The space of one top-level vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VdevSpace {
    /// Its index among the top-level vdevs.
    pub vdev: VdevId,
    /// Size, allocation, class.
    pub usage: VdevUsage,
    /// Fragmentation in per cent; `None` if no histograms are kept.
    pub fragmentation_percent: Option<u8>,
    /// Raw bytes that are allocated only because of the checkpoint.
    pub checkpoint_bytes: u64,
}

/// The contribution of one metaslab.
struct Measured {
    size_bytes: u64,
    in_map_bytes: i64,
    unflushed_bytes: i64,
    /// `None` if no histogram is kept.
    percent: Option<u8>,
}

pub(super) fn measure(pool: &PoolView) -> Result<Vec<VdevSpace>, PoolError> {
    let maps = PoolSpaceMaps::load(pool)?;
    let topology = pool.store().topology();
    let is_deflated = pool.directory_number(key::DEFLATE)?.is_some_and(|n| n != 0);
    let exists = |id: VdevId| topology.tree.top(id).is_some();
    let logs = UnflushedLogs::load(&maps, &maps.geometries(), &exists)?;
    let mut spaces = vec![];
    for (id, node) in topology.tree.tops().filter(|(_, node)| node.is_concrete()) {
        let ratio = if is_deflated {
            ratio_of(&topology.tree, id)
        } else {
            RATIO_ONE
        };
        spaces.push(measure_vdev(pool, &maps, &logs, id, node, ratio)?);
    }
    Ok(spaces)
}

/// The deflate ratio of a vdev. It never changes: it is computed from the width the vdev was created with.
pub(crate) fn ratio_of(tree: &VdevTree, id: VdevId) -> u64 {
    tree.asize(id, TYPICAL_BLOCK_BYTES, Txg(0))
        .map_or(RATIO_ONE, deflate_ratio)
}

/// The deflated bytes of one address of a pool that deflates sizes, or does not.
pub(crate) fn deflated_address_bytes(tree: &VdevTree, is_deflated: bool, dva: &Dva) -> u64 {
    let ratio = match is_deflated {
        true => ratio_of(tree, dva.vdev),
        false => RATIO_ONE,
    };
    millpond_alloc::deflated_bytes(dva.asize_bytes, ratio)
}

fn measure_vdev(
    pool: &PoolView,
    maps: &PoolSpaceMaps<'_>,
    logs: &UnflushedLogs,
    id: VdevId,
    node: &VdevNode,
    ratio: u64,
) -> Result<VdevSpace, PoolError> {
    let mut metaslabs: Vec<Measured> = vec![];
    maps.each_header(id, &mut |metaslab, header| {
        let percent = match &header {
            None => Some(0),
            Some(header) => header
                .histogram
                .map(|histogram| metaslab_fragmentation(&histogram, node.ashift)),
        };
        metaslabs.push(Measured {
            size_bytes: metaslab.size_bytes(),
            in_map_bytes: header.map_or(0, |header| header.allocated_bytes),
            unflushed_bytes: logs.of(metaslab.id).map_or(0, |log| log.allocated_bytes()),
            percent,
        });
    })?;
    let in_maps: Vec<i64> = metaslabs.iter().map(|one| one.in_map_bytes).collect();
    let class = class_of(node);
    let embedded_log = match class {
        AllocationClass::Normal | AllocationClass::Special => embedded_log_metaslab(&in_maps),
        AllocationClass::Log | AllocationClass::Dedup => None,
    };
    let (mut space, mut allocated, mut embedded_log_bytes) = (0u64, 0i64, 0);
    let mut fragmented = vec![];
    for (index, one) in metaslabs.iter().enumerate() {
        let used = one.in_map_bytes.saturating_add(one.unflushed_bytes);
        space = space.saturating_add(one.size_bytes);
        allocated = allocated.saturating_add(used);
        if embedded_log == Some(index) {
            embedded_log_bytes = one.size_bytes;
            continue;
        }
        let used = u64::try_from(used).unwrap_or(0);
        fragmented.push(MetaslabFragmentation {
            percent: one.percent,
            free_bytes: one.size_bytes.saturating_sub(used),
        });
    }
    Ok(VdevSpace {
        vdev: id,
        usage: VdevUsage {
            class,
            space_bytes: space,
            allocated_bytes: u64::try_from(allocated).unwrap_or(0),
            deflate_ratio: ratio,
            embedded_log_bytes,
            is_non_allocating: node.config.non_allocating || node.config.removing,
        },
        fragmentation_percent: vdev_fragmentation(&fragmented),
        checkpoint_bytes: checkpoint_bytes(pool, node)?,
    })
}

fn checkpoint_bytes(pool: &PoolView, node: &VdevNode) -> Result<u64, PoolError> {
    let Some(zap) = node.config.zap_top.and_then(ObjectId::some) else {
        return Ok(0);
    };
    let Some(map) = vdev_zap_object(pool, zap, vdev_key::CHECKPOINT_SPACE_MAP)? else {
        return Ok(0);
    };
    // The space map of the checkpoint contains only frees, so its sum is negative.
    let (_, header) = open_map(pool, map)?;
    Ok(u64::try_from(header.allocated_bytes.saturating_neg()).unwrap_or(0))
}

fn class_of(node: &VdevNode) -> AllocationClass {
    match node.class {
        _ if node.config.is_log => AllocationClass::Log,
        millpond_vdev::AllocationClass::Normal => AllocationClass::Normal,
        millpond_vdev::AllocationClass::Log => AllocationClass::Log,
        millpond_vdev::AllocationClass::Special => AllocationClass::Special,
        millpond_vdev::AllocationClass::Dedup => AllocationClass::Dedup,
    }
}
