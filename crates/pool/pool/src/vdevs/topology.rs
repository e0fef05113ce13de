//! Updates the store's view of the vdevs after the tree or the dirty time logs change.

use crate::PoolError;
use crate::error::Reading;
use crate::vdevs::dtl::DirtyTimeLog;
use millpond_block::Topology;
use millpond_device::Device;
use millpond_env::sync::Arc;
use millpond_ondisk::{DecodeError, Guid, VdevId};
use millpond_vdev::{AllocationClass, IndirectMapping, LeafTable, VdevConfig, VdevNode, VdevTree};
use std::collections::BTreeMap;

/// Additions to a topology.
#[derive(Debug, Clone, Default)]
pub(crate) struct Added {
    /// The devices of new leaves.
    pub(crate) devices: BTreeMap<Guid, Arc<dyn Device>>,
    /// A vdev that was removed, and where its data is.
    pub(crate) mapping: Option<(VdevId, IndirectMapping)>,
    /// The allocation classes of new top-level vdevs.
    pub(crate) classes: BTreeMap<VdevId, AllocationClass>,
}

/// Builds the topology of the tree `root`, with the devices of `old` (by guid) and the additions. Counters
/// keep their values.
///
/// # Errors
/// If the tree is invalid for a pool.
pub(crate) fn renewed(
    old: &Topology,
    root: &VdevConfig,
    missed: &BTreeMap<Guid, DirtyTimeLog>,
    added: &Added,
) -> Result<Topology, PoolError> {
    let invalid = |_| DecodeError::new("vdev tree", "it is not one of a pool", 0);
    let mut tree = VdevTree::new(root.clone(), old.tree.reflow())
        .map_err(invalid)
        .reading("configuration")?;
    for (id, node) in old.tree.tops() {
        let is_hole = |new: &VdevNode| new.config.guid.0 == 0;
        if !tree.top(id).is_some_and(is_hole) {
            tree.set_class(id, node.class);
        }
    }
    for (id, class) in &added.classes {
        tree.set_class(*id, *class);
    }
    let mut health = LeafTable::all_good(tree.leaf_count());
    let mut devices = Vec::with_capacity(tree.leaf_count());
    let mut counters = Vec::with_capacity(tree.leaf_count());
    for (leaf, node) in tree.leaves() {
        let before = old.tree.find_leaf(node.config.guid);
        let device = before.and_then(|leaf| old.devices.get(leaf.0 as usize)?.clone());
        let device = device.or_else(|| added.devices.get(&node.config.guid).cloned());
        if let Some(entry) = health.entry(leaf) {
            let is_spare = matches!(node.kind, millpond_vdev::VdevKind::DraidSpare { .. });
            entry.is_readable = is_spare || device.is_some();
            if let Some(missed) = missed.get(&node.config.guid) {
                entry.missed = missed.ranges().to_vec();
            }
        }
        devices.push(device);
        let before = before.and_then(|leaf| old.counters.get(leaf.0 as usize));
        counters.push(before.cloned().unwrap_or_else(|| old.new_counters()));
    }
    let mut indirect = old.indirect.clone();
    if let Some((vdev, mapping)) = &added.mapping {
        indirect.insert(*vdev, mapping.clone());
    }
    let topology = Topology::new(tree, devices, health, indirect);
    let mut topology = topology.succeeding(old);
    topology.counters = counters;
    topology.note_sizes();
    Ok(topology)
}
