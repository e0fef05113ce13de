//! The tree of vdevs, validated once when it is built.

mod build;
mod config;
mod encode;
mod nvlist;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use millpond_ondisk::{Ashift, Guid, Txg, VdevId};

pub use build::{CHILDREN_MAX, DEPTH_MAX, NODES_MAX, TreeError};
pub use config::{AllocationClass, VdevConfig, VdevType};
pub use encode::VdevListScope;
pub use nvlist::VdevConfigError;

use crate::draid::DraidGeometry;
use crate::raidz::RaidzGeometry;

/// The index of a leaf in its tree: leaves are numbered from the left, including distributed spares in use.
/// Stable while the tree lives, not across imports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeafId(pub u32);

/// The index of any vdev in its tree; 0 is the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// The kind of a vdev, with its geometry where it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum VdevKind {
    /// The pool.
    Root,
    /// A device.
    Device,
    /// A mirror of its children.
    Mirror,
    /// A device and its replacement.
    Replacing,
    /// A device and the spare that replaces it.
    Spare,
    /// RAID-Z.
    Raidz(RaidzGeometry),
    /// Declustered RAID.
    Draid(Arc<DraidGeometry>),
    /// Spare space in the dRAID vdev above this node.
    DraidSpare {
        /// The spare's number, from 0; below the vdev's number of spares.
        spare_id: u16,
    },
    /// A removed data vdev.
    Indirect,
    /// A removed log vdev.
    Hole,
    /// A top-level vdev that was not found.
    Missing,
}

/// One vdev of a [`VdevTree`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VdevNode {
    /// Its kind.
    pub kind: VdevKind,
    /// Its configuration, without its children.
    pub config: VdevConfig,
    /// The parent; `None` for the root.
    pub parent: Option<NodeId>,
    /// The children, in order.
    pub children: Vec<NodeId>,
    /// The top-level vdev that contains it; `None` for the root.
    pub top: Option<VdevId>,
    /// The sector size of the top-level vdev that contains it; 0 where undefined (root, hole, missing).
    pub ashift: Ashift,
    /// Its leaf id.
    pub leaf: Option<LeafId>,
    /// The allocation class of the top-level vdev that contains it.
    pub class: AllocationClass,
}

impl VdevNode {
    /// Whether this is a device that can be opened (not a distributed spare).
    #[must_use]
    pub fn is_device(&self) -> bool {
        matches!(self.kind, VdevKind::Device)
    }

    /// Whether this top-level vdev allocates space: it is no hole, and neither missing nor removed.
    #[must_use]
    pub fn is_concrete(&self) -> bool {
        !matches!(
            self.kind,
            VdevKind::Indirect | VdevKind::Hole | VdevKind::Missing | VdevKind::Root
        )
    }

    /// The geometry of a dRAID vdev; `None` for other kinds.
    #[must_use]
    pub fn draid(&self) -> Option<&DraidGeometry> {
        match &self.kind {
            VdevKind::Draid(geometry) => Some(geometry),
            _ => None,
        }
    }
}

/// Progress of a RAID-Z expansion, as recorded in the uberblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reflow {
    /// Bytes from the start of the vdev that have been moved to their new location.
    pub offset_bytes: u64,
    /// State of the scratch copy; 1 means that moved rows must be read from it.
    pub scratch_state: u16,
}

impl Reflow {
    /// Decodes `raidz_reflow_info` of an uberblock: bits 0 to 54 are the offset in 512-byte units, bits 55
    /// to 63 the state of the scratch copy. Page `docs/format/raidz-layout.md`.
    #[must_use]
    pub fn from_uberblock(raidz_reflow_info: u64) -> Self {
        let offset_bytes = (raidz_reflow_info & ((1 << 55) - 1)) << 9;
        let scratch_state = u16::try_from(raidz_reflow_info >> 55).unwrap_or(0);
        Self {
            offset_bytes,
            scratch_state,
        }
    }

    /// The scratch copy holds the moved rows: their place is being overwritten.
    pub const SCRATCH_VALID: u16 = 1;
    /// The moved rows were written to their place.
    pub const SCRATCH_WRITTEN: u16 = 2;
    /// They were written there when the pool was imported after a crash.
    pub const SCRATCH_WRITTEN_ON_IMPORT: u16 = 3;
    /// More rows were moved since, without the scratch copy.
    pub const MOVING: u16 = 4;

    /// Encodes `raidz_reflow_info` of an uberblock; [`Reflow::from_uberblock`] decodes it.
    #[must_use]
    pub fn to_uberblock(self) -> u64 {
        let offset = (self.offset_bytes >> 9) & ((1 << 55) - 1);
        u64::from(self.scratch_state) << 55 | offset
    }

    /// Whether moved rows must be read from the scratch copy.
    #[must_use]
    pub fn is_scratch_valid(self) -> bool {
        self.scratch_state == Self::SCRATCH_VALID
    }
}

/// The vdevs of one pool. Immutable except for the allocation classes, which are known only once objects of
/// the pool can be read. Cheap to share between threads; plans borrow it only while they are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VdevTree {
    pub(crate) nodes: Vec<VdevNode>,
    pub(crate) tops: Vec<NodeId>,
    pub(crate) leaves: Vec<NodeId>,
    pub(crate) reflow: Reflow,
}

impl VdevTree {
    /// Validates `root` and builds the tree of its pool. `reflow` is the progress from the chosen uberblock
    /// ([`Reflow::default`] when no RAID-Z vdev is being expanded).
    ///
    /// Allocates at most [`NODES_MAX`] nodes, and for each number of children of a dRAID vdev one
    /// permutation map of at most 128 KiB.
    ///
    /// # Errors
    /// [`TreeError`] if no pool can have this configuration.
    pub fn new(root: VdevConfig, reflow: Reflow) -> Result<Self, TreeError> {
        build::build(root, reflow)
    }

    /// The pool's guid.
    #[must_use]
    pub fn pool_guid(&self) -> Guid {
        self.nodes.first().map_or(Guid(0), |root| root.config.guid)
    }

    /// Every vdev, the root first, each before its children.
    #[must_use]
    pub fn nodes(&self) -> &[VdevNode] {
        &self.nodes
    }

    /// One vdev.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&VdevNode> {
        self.nodes.get(usize::try_from(id.0).ok()?)
    }

    /// The number of top-level slots, including holes and missing vdevs.
    #[must_use]
    pub fn top_count(&self) -> usize {
        self.tops.len()
    }

    /// The top-level vdev with this index.
    #[must_use]
    pub fn top(&self, id: VdevId) -> Option<&VdevNode> {
        self.node(self.top_node(id)?)
    }

    /// Every top-level vdev in order, with its index.
    pub fn tops(&self) -> impl Iterator<Item = (VdevId, &VdevNode)> {
        (0u32..)
            .map(VdevId)
            .zip(self.tops.iter().filter_map(|id| self.node(*id)))
    }

    /// The number of leaves, including distributed spares in use.
    #[must_use]
    pub fn leaf_count(&self) -> usize {
        self.leaves.len()
    }

    /// One leaf.
    #[must_use]
    pub fn leaf(&self, id: LeafId) -> Option<&VdevNode> {
        self.node(*self.leaves.get(usize::try_from(id.0).ok()?)?)
    }

    /// Every leaf in order, with its index.
    pub fn leaves(&self) -> impl Iterator<Item = (LeafId, &VdevNode)> {
        (0u32..)
            .map(LeafId)
            .zip(self.leaves.iter().filter_map(|id| self.node(*id)))
    }

    /// The first vdev with this guid. Guids of 0 (holes, missing) are never found.
    #[must_use]
    pub fn find(&self, guid: Guid) -> Option<NodeId> {
        let at = self
            .nodes
            .iter()
            .position(|node| guid.0 != 0 && node.config.guid == guid)?;
        u32::try_from(at).ok().map(NodeId)
    }

    /// The leaf with this guid.
    #[must_use]
    pub fn find_leaf(&self, guid: Guid) -> Option<LeafId> {
        self.node(self.find(guid)?)?.leaf
    }

    /// The sum of all guids modulo 2^64: the `guid_sum` of this tree's uberblocks.
    #[must_use]
    pub fn guid_sum(&self) -> u64 {
        self.nodes
            .iter()
            .fold(0u64, |sum, node| sum.wrapping_add(node.config.guid.0))
    }

    /// Progress of the pool's RAID-Z expansion.
    #[must_use]
    pub fn reflow(&self) -> Reflow {
        self.reflow
    }

    /// Sets the progress of the pool's RAID-Z expansion, as a newer uberblock says it.
    pub fn set_reflow(&mut self, reflow: Reflow) {
        self.reflow = reflow;
    }

    /// The vdev that is being expanded.
    #[must_use]
    pub fn expanding(&self) -> Option<(VdevId, &VdevNode, &RaidzGeometry)> {
        self.tops().find_map(|(id, node)| match &node.kind {
            VdevKind::Raidz(geometry) if geometry.is_expanding() => Some((id, node, geometry)),
            _ => None,
        })
    }

    /// Sets the allocation class of a top-level vdev, as stored in its ZAP. Unknown ids are ignored.
    pub fn set_class(&mut self, id: VdevId, class: AllocationClass) {
        for node in &mut self.nodes {
            if node.top == Some(id) {
                node.class = class;
            }
        }
    }

    /// The display name of a vdev: the leaf's path, or kind and number.
    #[must_use]
    pub fn name(&self, id: NodeId) -> String {
        let Some(node) = self.node(id) else {
            return "unknown".to_owned();
        };
        let number = node
            .config
            .id
            .or_else(|| node.top.map(|top| u64::from(top.0)))
            .unwrap_or(0);
        match &node.kind {
            VdevKind::Root => "root".to_owned(),
            VdevKind::Raidz(geometry) => format!("raidz{}-{number}", geometry.parity()),
            VdevKind::Draid(geometry) => format!("{}-{number}", geometry.name()),
            VdevKind::Device | VdevKind::DraidSpare { .. } => node
                .config
                .path
                .clone()
                .unwrap_or_else(|| node.config.guid.to_string()),
            _ => format!("{}-{number}", node.config.kind.name()),
        }
    }

    pub(crate) fn top_node(&self, id: VdevId) -> Option<NodeId> {
        self.tops.get(usize::try_from(id.0).ok()?).copied()
    }

    /// The logical width of a RAID-Z vdev for blocks born in `birth`; `None` for other kinds.
    #[must_use]
    pub fn raidz_width(&self, id: VdevId, birth: Txg) -> Option<u64> {
        match &self.top(id)?.kind {
            VdevKind::Raidz(geometry) => Some(geometry.logical_width(birth)),
            _ => None,
        }
    }
}
