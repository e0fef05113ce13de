//! Finds all copies of the same bytes: mirrors, replacements, spares and the spare space of dRAID, in any
//! nesting. Page `docs/format/vdev-tree.md`.

#[cfg(test)]
mod tests;

use millpond_ondisk::{Txg, VDEV_DATA_START_BYTES};

use crate::health::{Health, LeafHealth};
use crate::plan::Source;
use crate::tree::{NodeId, VdevKind, VdevTree};

/// The most copies of one range; more are ignored.
pub(crate) const SOURCES_MAX: usize = 128;
/// The most vdevs to visit for one range, against configurations whose spares refer to each other.
const VISITS_MAX: usize = 1024;
/// By how many requests a side may be busier than another one before reads leave it.
const LOCALITY: u64 = 1;
/// log2 of the bytes after which reads switch to the next side of a mirror.
const SIDE_SHIFT: u32 = 21;

/// Collects the sources of the bytes at `device_offset_bytes` (labels included) below `node`, in the order
/// in which to read them: complete ones, rotated every 2 MiB to distribute reads over the sides of a
/// mirror, and a less busy side first; then slow ones; then those that missed `birth`; then unreadable ones.
pub(crate) fn sources(
    tree: &VdevTree,
    health: &dyn Health,
    node: NodeId,
    device_offset_bytes: u64,
    birth: Txg,
) -> Vec<Source> {
    let mut walk = Walk {
        tree,
        health,
        birth,
        offset: device_offset_bytes,
        visits: 0,
        spares: Vec::new(),
        found: Vec::new(),
    };
    walk.visit(node, false);
    let mut found = walk.found;
    found.sort_by_key(|source| (!source.is_readable, source.is_stale, source.is_slow));
    let good = found.partition_point(|source| source.is_readable && !source.is_last_resort());
    let side = usize::try_from(device_offset_bytes >> SIDE_SHIFT)
        .ok()
        .and_then(|side| side.checked_rem(good))
        .unwrap_or(0);
    if let Some(equal) = found.get_mut(..good) {
        equal.rotate_left(side);
        prefer_less_busy(equal, health);
    }
    found
}

/// Moves the least busy source to the front if the first one has at least two requests more: a single request
/// is no reason to give up locality.
fn prefer_less_busy(sources: &mut [Source], health: &dyn Health) {
    let [first, _, ..] = sources else { return };
    let load = health.load(first.leaf);
    if load <= LOCALITY {
        return;
    }
    let others = sources.iter().enumerate().skip(1);
    let least = others.min_by_key(|(_, source)| health.load(source.leaf));
    if let Some((at, source)) = least
        && health.load(source.leaf).saturating_add(LOCALITY) < load
        && let Some(front) = sources.get_mut(..=at)
    {
        front.rotate_right(1);
    }
}

struct Walk<'a> {
    tree: &'a VdevTree,
    health: &'a dyn Health,
    birth: Txg,
    offset: u64,
    visits: usize,
    /// The distributed spares on the path to the current node.
    spares: Vec<NodeId>,
    found: Vec<Source>,
}

impl Walk<'_> {
    /// Recursion is limited by the tree's depth for each distributed spare on the path (each at most once),
    /// and by [`VISITS_MAX`] in total.
    fn visit(&mut self, id: NodeId, is_stale: bool) {
        self.visits = self.visits.saturating_add(1);
        let tree = self.tree;
        let Some(node) = tree.node(id) else { return };
        if self.visits > VISITS_MAX || self.found.len() >= SOURCES_MAX {
            return;
        }
        match &node.kind {
            VdevKind::Device => {
                let Some(leaf) = node.leaf else { return };
                if self.found.iter().any(|source| source.leaf == leaf) {
                    return;
                }
                let health = self.health.leaf(leaf, self.birth);
                let spares = self.spares.iter();
                let spares = spares.filter_map(|spare| self.tree.node(*spare)?.leaf);
                self.found.push(Source {
                    leaf,
                    spares: spares.collect(),
                    offset_bytes: self.offset,
                    is_stale: is_stale || health == LeafHealth::Stale,
                    is_slow: health == LeafHealth::Slow,
                    is_readable: health != LeafHealth::Unreadable,
                });
            }
            VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => {
                for child in &node.children {
                    if self.visits > VISITS_MAX || self.found.len() >= SOURCES_MAX {
                        break;
                    }
                    self.visit(*child, is_stale);
                }
            }
            VdevKind::DraidSpare { spare_id } => {
                let Some(leaf) = node.leaf else { return };
                let health = self.health.leaf(leaf, self.birth);
                if health == LeafHealth::Unreadable || self.spares.contains(&id) {
                    return;
                }
                let Some(holder) = self.spare_holder(id, u64::from(*spare_id)) else {
                    return;
                };
                self.spares.push(id);
                self.visit(holder, is_stale || health == LeafHealth::Stale);
                self.spares.pop();
            }
            _ => {}
        }
    }

    /// The child of the dRAID vdev that holds the spare space at this offset.
    fn spare_holder(&self, spare: NodeId, spare_id: u64) -> Option<NodeId> {
        let top = self.tree.top(self.tree.node(spare)?.top?)?;
        let VdevKind::Draid(geometry) = &top.kind else {
            return None;
        };
        let child_offset = self.offset.checked_sub(VDEV_DATA_START_BYTES)?;
        let child = geometry.spare_child(spare_id, child_offset)?;
        top.children.get(usize::try_from(child).ok()?).copied()
    }
}
