//! Heartbeats: uberblocks in the reserved slot of one label.
//!
//! Page `docs/format/uberblock.md`, "Heartbeats".

use super::slots;
use millpond_block::Topology;
use millpond_device::Device;
use millpond_env::sync::Arc;
use millpond_ondisk::Uberblock;
use millpond_vdev::LeafId;

/// The leaf to which a heartbeat may be written: one with labels, in use.
pub(crate) fn heartbeat_target(topology: &Topology, leaf: LeafId) -> Option<Arc<dyn Device>> {
    let node = topology.tree.leaf(leaf)?;
    node.is_device().then(|| topology.leaf_device(leaf))?
}

/// Writes a heartbeat to the reserved slot of one label of a leaf; `random` chooses the label. Returns whether the device took it, within `limit_ns` nanoseconds.
pub(crate) fn write_heartbeat(
    topology: &Topology,
    leaf: LeafId,
    uberblock: &Uberblock,
    random: u64,
    limit_ns: u64,
) -> bool {
    let Some(node) = topology.tree.leaf(leaf) else {
        return false;
    };
    let Some(device) = heartbeat_target(topology, leaf) else {
        return false;
    };
    let region = slots::heartbeat(device.size_bytes(), node.ashift, uberblock, random);
    let Ok((at, bytes)) = region else {
        return false;
    };
    let write = move || {
        let written = device.write(at, &bytes);
        // Other systems do not see what only this one's memory has. Small slots may go there in any case.
        let is_aligned = bytes.len().is_multiple_of(4096);
        let shared = written.and_then(|()| match device.writes_through() && is_aligned {
            true => Ok(()),
            false => device.flush(),
        });
        shared.is_ok()
    };
    topology
        .try_leaf_for(leaf, limit_ns, write)
        .unwrap_or(false)
}
