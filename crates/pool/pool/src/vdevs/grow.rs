//! Grows top-level vdevs whose devices have become larger (`zpool online -e`, property `autoexpand`).
//!
//! A device that grew first gets labels at its new end. When all devices of a vdev are larger, its size grows in
//! the configuration, in whole metaslabs, and the array of metaslabs gets empty slots. Nothing is allocated in the new
//! space before that txg is committed: the intent log of an open txg could lie there, and after a crash the pool
//! would have its old size.
//!
//! Page `docs/format/vdev-tree.md`, "Growing".

use crate::PoolError;
use crate::error::Reading;
use crate::history::append::HistoryEvent;
use crate::labels::moved::follow_growth;
use crate::labels::{LabelError, all_tops};
use crate::pool::Pool;
use crate::properties::PropertyValue;
use crate::space::store::geometry_of;
use crate::sync::context::SyncContext;
use crate::vdevs::rearrange;
use crate::vdevs::topology::Added;
use millpond_alloc::{AllocationClass, VdevGeometry};
use millpond_block::{LeafCondition, LeafReason, LeafState as MonitoredState, Topology};
use millpond_device::Device;
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{Guid, LeafLayout, VdevId};
use millpond_vdev::{DraidGeometry, VdevConfig, VdevType};
use std::collections::{BTreeMap, BTreeSet};

/// The most metaslabs of a pool: with more, it could not be opened again.
const METASLABS_MAX: u64 = 1 << 21;

/// The stored number of `on`.
const ON: u64 = 1;

/// Whether a vdev takes the space of devices that have grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// Yes: an administrator said so.
    Ordered,
    /// If the property `autoexpand` is on.
    IfAutomatic,
}

/// Why a vdev did not grow.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum GrowError {
    /// The pool has no such device.
    #[error("no such device in pool")]
    NoSuchLeaf,
    /// A device could not be measured, or took no labels.
    #[error("{path}: {error}")]
    Device {
        /// Its path.
        path: String,
        /// Why.
        error: LabelError,
    },
    /// The metaslabs of the vdev are too small for its new size.
    #[error(
        "the pool would have {0} metaslabs, and 2097152 is the most; add another vdev with 'zpool add'"
    )]
    TooManyMetaslabs(u64),
    /// The pool could not be changed.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

impl Pool {
    /// Measures the devices again that share a top-level vdev with `leaf`, or all devices, and grows the vdevs of which
    /// all devices have grown. Returns the number of bytes that were added.
    ///
    /// # Errors
    /// [`GrowError`]. Except after [`GrowError::Pool`], the pool continues to work at its old size.
    pub fn grow_vdevs(&self, leaf: Option<Guid>, growth: Growth) -> Result<u64, GrowError> {
        let topology = self.store.topology();
        let tops = match leaf {
            None => all_tops(&topology),
            Some(leaf) => {
                let found = topology.tree.find_leaf(leaf);
                let top = found.and_then(|leaf| topology.tree.leaf(leaf)?.top);
                vec![top.ok_or(GrowError::NoSuchLeaf)?]
            }
        };
        // One that is being removed keeps its size.
        let removing = self.removal.removing_vdev();
        let tops: Vec<_> = (tops.into_iter())
            .filter(|top| Some(*top) != removing)
            .collect();
        let grown = self.sync_task(|ctx| ctx.grow_vdevs(&tops, growth))?;
        let grown = grown.inspect_err(|_| self.leave_out_too_small())?;
        let mut bytes = 0u64;
        // The new size is committed: from now on blocks may lie there.
        for geometry in grown {
            let added = self
                .allocator
                .grow_vdev(geometry)
                .map_err(PoolError::from)?;
            bytes = bytes.saturating_add(added);
        }
        Ok(bytes)
    }

    /// Takes leaves out of use whose devices became too small, where the others have their data.
    fn leave_out_too_small(&self) {
        let topology = self.store.topology();
        let root = self.state.read().config.root.clone();
        for (leaf, node) in topology.tree.leaves() {
            let Some(device) = topology.leaf_device(leaf) else {
                continue;
            };
            let size = device.measure().ok().and_then(LeafLayout::new);
            let needed = rearrange::needed_bytes(&root, node.config.guid).unwrap_or(0);
            if size.map_or(0, LeafLayout::asize_bytes) < needed {
                let gone = LeafCondition::new(MonitoredState::Unavailable, LeafReason::OpenFailed);
                // Refused if the pool needs the leaf: its requests then fail one by one.
                let _ = topology.change_condition(leaf, gone);
            }
        }
    }

    /// Grows all vdevs that can, if the property `autoexpand` is on. A failure leaves the pool as it is.
    pub(crate) fn grow_if_automatic(&self) {
        let is_on = self
            .committed()
            .and_then(|view| view.property("autoexpand"))
            .is_ok_and(|found| {
                found.and_then(|found| found.value) == Some(PropertyValue::Number(ON))
            });
        if !is_on || self.suspension().is_some() {
            return;
        }
        if let Err(error) = self.grow_vdevs(None, Growth::IfAutomatic) {
            tracing::warn!(pool = %self.name(), %error, "autoexpand: the pool keeps its size");
        }
    }

    /// Writes the labels that are missing at the end of devices that grew while the pool was not open.
    pub(crate) fn restore_end_labels(&self, lacking: &BTreeSet<Guid>) {
        if lacking.is_empty() {
            return;
        }
        let topology = self.store.topology();
        let is_meant = |leaf| lacking.contains(&leaf);
        let tops = all_tops(&topology);
        let round = follow_growth(&topology, &tops, &is_meant, self.write_order());
        for (leaf, error) in round.failures() {
            tracing::warn!(leaf = leaf.0, %error, "the labels at the end of a device were not restored");
        }
    }
}

impl SyncContext<'_> {
    /// The outer error suspends the pool; the inner error means that no vdev grew.
    pub(crate) fn grow_vdevs(
        &self,
        tops: &[VdevId],
        growth: Growth,
    ) -> Result<Result<Vec<VdevGeometry>, GrowError>, PoolError> {
        let pool = self.pool;
        let topology = pool.store.topology();
        let round = follow_growth(&topology, tops, &|_| true, pool.write_order());
        let has_moved = round.leaves.iter().any(|leaf| leaf.copies_written > 0);
        let failed = round.failures().next().map(|(leaf, error)| {
            let node = topology.tree.leaf(leaf);
            GrowError::Device {
                path: node
                    .and_then(|node| node.config.path.clone())
                    .unwrap_or_default(),
                error: error.clone(),
            }
        });
        let may_grow = failed.is_none()
            && (growth == Growth::Ordered || self.property_number("autoexpand")? == Some(ON));
        let root = pool.state.read().config.root.clone();
        let larger = match may_grow {
            true => larger_root(&root, tops, &topology),
            false => None,
        };
        if !has_moved && larger.is_none() {
            return Ok(failed.map_or(Ok(vec![]), Err));
        }
        let (new_root, grown) = larger.unwrap_or((root, BTreeSet::new()));
        let count = metaslabs_of(&new_root);
        if count > METASLABS_MAX {
            return Ok(Err(GrowError::TooManyMetaslabs(count)));
        }
        // Also without growth: the labels moved, so that all are written again.
        pool.put_tree(new_root, &Added::default(), |_| {})?;
        self.mark_config_dirty();
        let topology = pool.store.topology();
        let mut geometries = vec![];
        for (id, top) in topology.tree.tops().filter(|(id, _)| grown.contains(id)) {
            let geometry = geometry_of(id, top)?;
            self.grow_array(geometry)?;
            geometries.push(geometry);
        }
        if !geometries.is_empty() {
            mark::hit("vdev-grown");
            self.note_growth(&geometries)?;
        }
        Ok(failed.map_or(Ok(geometries), Err))
    }

    /// Gives the new metaslabs of a vdev their slots in its array.
    fn grow_array(&self, geometry: VdevGeometry) -> Result<(), PoolError> {
        let maps = &self.pool.maps;
        let what = "metaslab array";
        let array = maps.ensure_array(self, geometry.vdev())?;
        let before = maps.grow_vdev(geometry);
        let slots = geometry.metaslab_count().saturating_sub(before);
        let zeros = vec![0; usize::try_from(slots.saturating_mul(8)).unwrap_or(0)];
        array
            .write(self.tx(), before.saturating_mul(8), &zeros)
            .reading(what)
    }

    fn note_growth(&self, geometries: &[VdevGeometry]) -> Result<(), PoolError> {
        let usage = self.pool.allocator.usage();
        let size = usage.class(AllocationClass::Normal).space_bytes;
        let more = |geometry: &VdevGeometry| {
            let old = self.pool.allocator.space_bytes(geometry.vdev());
            geometry.space_bytes().saturating_sub(old.unwrap_or(0))
        };
        let more = geometries.iter().map(more).fold(0, u64::saturating_add);
        let name = self.pool.name();
        let size = size.saturating_add(more);
        let text = format!("pool '{name}' size: {size}(+{more})");
        self.history(&HistoryEvent::of_pool("vdev online", text))
    }

    /// The stored number of a pool property; `None` if it has its default.
    fn property_number(&self, name: &str) -> Result<Option<u64>, PoolError> {
        match self.directory_object(key::POOL_PROPERTIES)? {
            Some(table) => self.table_number(table, name),
            None => Ok(None),
        }
    }
}

/// The tree with the sizes that the devices permit, and which vdevs have more metaslabs then; `None` if none has.
fn larger_root(
    root: &VdevConfig,
    tops: &[VdevId],
    topology: &Topology,
) -> Option<(VdevConfig, BTreeSet<VdevId>)> {
    let sizes: BTreeMap<Guid, u64> = topology
        .tree
        .leaves()
        .filter_map(|(leaf, node)| {
            let device: Arc<dyn Device> = topology.leaf_device(leaf)?;
            let layout = LeafLayout::new(device.size_bytes())?;
            Some((node.config.guid, layout.asize_bytes()))
        })
        .collect();
    let mut root = root.clone();
    let mut grown = BTreeSet::new();
    for id in tops {
        let Some(top) = root.children.get_mut(id.0 as usize) else {
            continue;
        };
        let Some(possible) = asize_of(top, &sizes) else {
            continue;
        };
        if count_of(top, possible) > count_of(top, top.asize_bytes) {
            top.asize_bytes = possible;
            grown.insert(*id);
        }
    }
    (!grown.is_empty()).then_some((root, grown))
}

/// The size of a vdev whose leaves have these sizes. `None` if the size of one is unknown: it may be smaller than the
/// others; or for a vdev that does not grow.
fn asize_of(vdev: &VdevConfig, sizes: &BTreeMap<Guid, u64>) -> Option<u64> {
    if vdev.kind.is_device() {
        return sizes.get(&vdev.guid).copied();
    }
    let mut least = u64::MAX;
    // A distributed spare is as large as any child.
    let children = vdev.children.iter();
    for child in children.filter(|child| child.kind != VdevType::DraidSpare) {
        least = least.min(asize_of(child, sizes)?);
    }
    match vdev.kind {
        VdevType::Mirror | VdevType::Replacing | VdevType::Spare if !vdev.children.is_empty() => {
            Some(least)
        }
        VdevType::Raidz if !vdev.raidz_expanding => least.checked_mul(vdev.children.len() as u64),
        VdevType::Draid => {
            let geometry = DraidGeometry::of(vdev, vdev.children.len()).ok()?;
            geometry.asize_from_children(least)
        }
        _ => None,
    }
}

/// The end of the last metaslab of a top-level vdev, in bytes.
pub(crate) fn used_bytes(top: &VdevConfig) -> u64 {
    let shift = u32::try_from(top.metaslab_shift).unwrap_or(0).min(63);
    top.asize_bytes >> shift << shift
}

/// How many bytes a top-level vdev needs of a child. Not for dRAID.
pub(crate) fn child_bytes(top: &VdevConfig) -> u64 {
    let columns = match top.kind {
        // The size is that of before the expansion until it ends.
        VdevType::Raidz => {
            (top.children.len() as u64).saturating_sub(u64::from(top.raidz_expanding))
        }
        _ => 1,
    };
    used_bytes(top).div_ceil(columns.max(1))
}

/// The number of metaslabs of a vdev of this size.
fn count_of(top: &VdevConfig, asize_bytes: u64) -> u64 {
    let shift = u32::try_from(top.metaslab_shift).unwrap_or(u32::MAX);
    match shift {
        0 => 0,
        _ => asize_bytes.checked_shr(shift).unwrap_or(0),
    }
}

fn metaslabs_of(root: &VdevConfig) -> u64 {
    let tops = root.children.iter();
    tops.map(|top| count_of(top, top.asize_bytes))
        .fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(guid: u64) -> VdevConfig {
        VdevConfig::new(VdevType::File, Guid(guid))
    }
    fn group(kind: VdevType, children: Vec<VdevConfig>) -> VdevConfig {
        VdevConfig {
            children,
            ..VdevConfig::new(kind, Guid(99))
        }
    }

    #[test]
    fn the_smallest_device_decides_and_an_absent_one_forbids() {
        let sizes = BTreeMap::from([(Guid(1), 100), (Guid(2), 90), (Guid(3), 80)]);
        let mirror = group(VdevType::Mirror, vec![leaf(1), leaf(2)]);
        assert_eq!(asize_of(&mirror, &sizes), Some(90));
        let replacing = group(VdevType::Replacing, vec![leaf(1), leaf(3)]);
        let raidz = group(VdevType::Raidz, vec![leaf(2), replacing, leaf(1)]);
        assert_eq!(asize_of(&raidz, &sizes), Some(240));
        let lacking = group(VdevType::Mirror, vec![leaf(1), leaf(4)]);
        assert_eq!(asize_of(&lacking, &sizes), None);
        assert_eq!(asize_of(&leaf(3), &sizes), Some(80));
        let expanding = VdevConfig {
            raidz_expanding: true,
            ..group(VdevType::Raidz, vec![leaf(1), leaf(2)])
        };
        assert_eq!(asize_of(&expanding, &sizes), None);
        assert_eq!(
            asize_of(&VdevConfig::new(VdevType::Hole, Guid(0)), &sizes),
            None
        );
    }

    #[test]
    fn only_whole_metaslabs_count() {
        let top = VdevConfig {
            metaslab_shift: 24,
            ..leaf(1)
        };
        assert_eq!(count_of(&top, (7 << 24) + 5), 7);
        assert_eq!(
            count_of(
                &VdevConfig {
                    metaslab_shift: 0,
                    ..leaf(1)
                },
                1 << 40
            ),
            0
        );
        assert_eq!(
            count_of(
                &VdevConfig {
                    metaslab_shift: 90,
                    ..leaf(1)
                },
                1 << 40
            ),
            0
        );
    }
}
