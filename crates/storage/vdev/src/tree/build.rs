//! Builds a tree from an untrusted configuration, and validates it.

use std::collections::HashSet;
use std::sync::Arc;

use millpond_ondisk::{Ashift, VdevId};

use super::{
    AllocationClass, LeafId, NodeId, Reflow, VdevConfig, VdevKind, VdevNode, VdevTree, VdevType,
};
use crate::draid::DraidGeometry;
use crate::raidz::RaidzGeometry;
use crate::units::Sector;

/// The most levels of a tree, including the root. OpenZFS makes at most six.
pub const DEPTH_MAX: usize = 16;
/// The most children of one vdev.
pub const CHILDREN_MAX: usize = 1 << 14;
/// The most vdevs of a tree.
pub const NODES_MAX: usize = 1 << 16;

/// An invalid vdev configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("vdev {guid} ({kind}): {reason}")]
#[non_exhaustive]
pub struct TreeError {
    /// Guid of the invalid vdev, from its configuration.
    pub guid: u64,
    /// Its `type`.
    pub kind: &'static str,
    /// What is wrong.
    pub reason: &'static str,
}

/// The context of a node, inherited from the vdevs above it.
#[derive(Clone)]
struct NodeContext {
    parent: NodeId,
    depth: usize,
    index: usize,
    top: Option<VdevId>,
    ashift: Ashift,
    class: AllocationClass,
    parent_kind: VdevType,
    /// The dRAID vdev above, for its distributed spares.
    draid: Option<Arc<DraidGeometry>>,
}

pub(super) fn build(mut root: VdevConfig, reflow: Reflow) -> Result<VdevTree, TreeError> {
    if root.kind != VdevType::Root {
        return Err(error(&root, "the tree does not begin with a root vdev"));
    }
    let tops = core::mem::take(&mut root.children);
    if tops.len() > CHILDREN_MAX {
        return Err(error(&root, "too many top-level vdevs"));
    }
    let mut tree = VdevTree {
        nodes: Vec::new(),
        tops: Vec::new(),
        leaves: Vec::new(),
        reflow,
    };
    let mut guids = HashSet::new();
    tree.nodes.push(VdevNode {
        kind: VdevKind::Root,
        config: root,
        parent: None,
        children: Vec::new(),
        top: None,
        ashift: Ashift(0),
        leaf: None,
        class: AllocationClass::Normal,
    });
    for (index, top) in tops.into_iter().enumerate() {
        let id = u32::try_from(index).map_err(|_| error(&top, "too many top-level vdevs"))?;
        let ashift = top_ashift(&top)?;
        let class = if top.is_log {
            AllocationClass::Log
        } else {
            AllocationClass::Normal
        };
        let context = NodeContext {
            parent: NodeId(0),
            depth: 1,
            index,
            top: Some(VdevId(id)),
            ashift,
            class,
            parent_kind: VdevType::Root,
            draid: None,
        };
        let node = add(&mut tree, &mut guids, top, context)?;
        tree.tops.push(node);
    }
    Ok(tree)
}

fn top_ashift(top: &VdevConfig) -> Result<Ashift, TreeError> {
    if matches!(top.kind, VdevType::Hole | VdevType::Missing) {
        return Ok(Ashift(0));
    }
    let ashift = u8::try_from(top.ashift).map(Ashift);
    match ashift {
        Ok(ashift) if Sector::new(ashift).is_some() => Ok(ashift),
        _ => Err(error(top, "ashift is not between 9 and 16")),
    }
}

fn add(
    tree: &mut VdevTree,
    guids: &mut HashSet<u64>,
    mut config: VdevConfig,
    context: NodeContext,
) -> Result<NodeId, TreeError> {
    let children = core::mem::take(&mut config.children);
    check(tree, &config, &children, &context)?;
    if config.guid.0 != 0 && !guids.insert(config.guid.0) {
        return Err(error(&config, "its guid stands twice in the tree"));
    }
    let kind = kind_of(&config, children.len(), &context)?;
    let number =
        u32::try_from(tree.nodes.len()).map_err(|_| error(&config, "too many vdevs in all"))?;
    let id = NodeId(number);
    let leaf = if config.kind.is_leaf() {
        let next =
            u32::try_from(tree.leaves.len()).map_err(|_| error(&config, "too many leaves"))?;
        tree.leaves.push(id);
        Some(LeafId(next))
    } else {
        None
    };
    let mut below = NodeContext {
        parent: id,
        depth: context.depth.saturating_add(1),
        index: 0,
        parent_kind: config.kind,
        draid: match &kind {
            VdevKind::Draid(geometry) => Some(Arc::clone(geometry)),
            _ => context.draid,
        },
        ..context
    };
    tree.nodes.push(VdevNode {
        kind,
        config,
        parent: Some(context.parent),
        children: Vec::new(),
        top: context.top,
        ashift: context.ashift,
        leaf,
        class: context.class,
    });
    if let Some(parent) = node_mut(tree, context.parent) {
        parent.children.push(id);
    }
    for (index, child) in children.into_iter().enumerate() {
        below.index = index;
        add(tree, guids, child, below.clone())?;
    }
    Ok(id)
}

fn node_mut(tree: &mut VdevTree, id: NodeId) -> Option<&mut VdevNode> {
    tree.nodes.get_mut(usize::try_from(id.0).ok()?)
}

/// Validates the position of a vdev: depth, limits, and which kinds may be children of which.
fn check(
    tree: &VdevTree,
    config: &VdevConfig,
    children: &[VdevConfig],
    context: &NodeContext,
) -> Result<(), TreeError> {
    let is_top = context.parent_kind == VdevType::Root;
    if context.depth >= DEPTH_MAX {
        return Err(error(config, "the tree is too deep"));
    }
    if children.len() > CHILDREN_MAX || tree.nodes.len() >= NODES_MAX {
        return Err(error(config, "too many vdevs"));
    }
    if config
        .id
        .is_some_and(|id| usize::try_from(id) != Ok(context.index))
    {
        return Err(error(config, "its id is not its place among its siblings"));
    }
    match config.kind {
        VdevType::Root => return Err(error(config, "a root vdev below another vdev")),
        VdevType::Raidz
        | VdevType::Draid
        | VdevType::Indirect
        | VdevType::Hole
        | VdevType::Missing
            if !is_top =>
        {
            return Err(error(config, "only a top-level vdev can be of this kind"));
        }
        VdevType::DraidSpare if context.draid.is_none() => {
            return Err(error(config, "a distributed spare outside a dRAID vdev"));
        }
        _ => {}
    }
    let needs_children =
        config.kind.is_mirror_like() || matches!(config.kind, VdevType::Raidz | VdevType::Draid);
    if needs_children && children.is_empty() {
        return Err(error(config, "no children"));
    }
    if !needs_children && !children.is_empty() {
        return Err(error(config, "children below a vdev that has none"));
    }
    Ok(())
}

fn kind_of(
    config: &VdevConfig,
    children: usize,
    context: &NodeContext,
) -> Result<VdevKind, TreeError> {
    Ok(match config.kind {
        VdevType::Root => VdevKind::Root,
        VdevType::Disk | VdevType::File => VdevKind::Device,
        VdevType::Mirror => VdevKind::Mirror,
        VdevType::Replacing => VdevKind::Replacing,
        VdevType::Spare => VdevKind::Spare,
        VdevType::Indirect => VdevKind::Indirect,
        VdevType::Hole => VdevKind::Hole,
        VdevType::Missing => VdevKind::Missing,
        VdevType::Raidz => VdevKind::Raidz(
            RaidzGeometry::new(
                children,
                config.nparity.unwrap_or(1),
                &config.raidz_expand_txgs,
                config.raidz_expanding,
            )
            .map_err(|reason| error(config, reason))?,
        ),
        VdevType::Draid => VdevKind::Draid(Arc::new(
            DraidGeometry::of(config, children).map_err(|reason| error(config, reason))?,
        )),
        VdevType::DraidSpare => {
            let spare_id = config
                .spare_id
                .and_then(|id| u16::try_from(id).ok())
                .ok_or_else(|| error(config, "no spareid"))?;
            let count = context.draid.as_ref().map_or(0, |draid| draid.spares());
            if u64::from(spare_id) >= count {
                return Err(error(config, "spareid beyond the vdev's spares"));
            }
            VdevKind::DraidSpare { spare_id }
        }
    })
}

fn error(config: &VdevConfig, reason: &'static str) -> TreeError {
    TreeError {
        guid: config.guid.0,
        kind: config.kind.name(),
        reason,
    }
}
