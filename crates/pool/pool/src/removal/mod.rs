//! Top-level vdevs that are removed by evacuation, and those that were removed.
//!
//! A removed vdev is *indirect*: blocks keep their addresses on it, and its mapping says where their data is. While a
//! vdev is being removed, each txg copies some of what is allocated there, in ascending order, and appends it to the
//! mapping. The copies are made by the thread that changes the MOS in this txg, so no block is freed meanwhile. When
//! everything is copied, one txg puts an indirect vdev in the place of the vdev. A crash or export between continues
//! where the last committed mapping ends.
//!
//! Page `docs/format/indirect-vdev.md`.

mod change;
mod check;
pub(crate) mod condense;
mod objects;
pub(crate) mod obsolete;
mod slice;

use crate::error::Reading;
use crate::space::vdev_map::VdevMap;
use crate::vdevs::objects::load_indirect_mapping;
use crate::{PoolError, PoolView};
use condense::{Condense, MappingSize};
use millpond_alloc::RangeSet;
use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_env::sync::atomic::{AtomicBool, Ordering};
use millpond_ondisk::pool_directory::{key, vdev_key};
use millpond_ondisk::{CondensingIndirectPhys, DecodeError, RemovalPhys, VdevId};
use millpond_vdev::{IndirectMapping, VdevKind};
use std::collections::BTreeMap;

pub(crate) const DEVICE_REMOVAL: &str = "com.delphix:device_removal";

/// The removals of a pool that is open for changes.
#[derive(Debug, Default)]
pub(crate) struct RemovalControl {
    /// Whether any vdev has a mapping. Looked at for each block that is freed.
    has_mappings: AtomicBool,
    state: Mutex<RemovalState, rank::Leaf>,
}

/// What is known of removals. Changed in syncing context only.
#[derive(Debug, Default)]
pub(crate) struct RemovalState {
    /// The state in the object directory.
    pub(crate) phys: Option<RemovalPhys>,
    /// The removal under way.
    pub(crate) active: Option<ActiveRemoval>,
    /// The maps of what is obsolete.
    pub(crate) maps: BTreeMap<VdevId, VdevMap>,
    /// What became obsolete in the txg that is being written, and is in no map yet.
    pub(crate) obsolete: BTreeMap<VdevId, RangeSet>,
    /// Whether the pool's list of obsolete addresses may have entries.
    pub(crate) has_list: bool,
    /// The sizes of the mappings of removed vdevs.
    pub(crate) sizes: BTreeMap<VdevId, MappingSize>,
    /// The mapping that is being condensed.
    pub(crate) condense: Option<Condense>,
}

/// A removal under way.
#[derive(Debug, Clone)]
pub(crate) struct ActiveRemoval {
    pub(crate) vdev: VdevId,
    /// What was copied.
    pub(crate) mapping: IndirectMapping,
    /// Up to here nothing is left to copy. In memory only.
    pub(crate) copied_to: u64,
}

impl RemovalControl {
    /// The removals of a committed state.
    pub(crate) fn load(read: &PoolView) -> Result<Self, PoolError> {
        let mut state = RemovalState {
            phys: read.removal()?,
            has_list: read.find_directory_object(key::OBSOLETE_BPOBJ)?.is_some(),
            ..RemovalState::default()
        };
        let topology = read.store().topology();
        state.condense = read.condensing()?.map(Condense::of);
        let mut has_mappings = false;
        for (id, node) in topology.tree.tops() {
            if node.kind != VdevKind::Indirect && !node.config.removing {
                continue;
            }
            has_mappings = true;
            let map = VdevMap::load(read, node, vdev_key::OBSOLETE_SPACE_MAP)?;
            state.maps.extend(map.map(|map| (id, map)));
            let size = topology.indirect.get(id).map(MappingSize::of);
            state.sizes.extend(size.map(|size| (id, size)));
        }
        let copied = read.removal_mapping()?;
        state.active = copied.map(|(vdev, mapping)| ActiveRemoval {
            vdev,
            mapping,
            copied_to: 0,
        });
        Ok(Self {
            has_mappings: AtomicBool::new(has_mappings),
            state: Mutex::new(state),
        })
    }

    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut RemovalState) -> R) -> R {
        work(&mut self.state.lock())
    }

    /// Notes a removal that begins.
    fn begin(&self, active: ActiveRemoval) {
        self.has_mappings.store(true, Ordering::Relaxed);
        self.with(|state| state.active = Some(active));
    }

    pub(crate) fn has_mappings(&self) -> bool {
        self.has_mappings.load(Ordering::Relaxed)
    }

    /// The vdev that is being removed.
    pub(crate) fn removing_vdev(&self) -> Option<VdevId> {
        self.with(|state| state.active.as_ref().map(|active| active.vdev))
    }
}

impl PoolView {
    /// The state of the last removal of a data vdev; `None` if there was none.
    ///
    /// # Errors
    /// If the object directory cannot be read, or the state does not exist.
    pub fn removal(&self) -> Result<Option<RemovalPhys>, PoolError> {
        let Some(value) = self.directory_value(key::REMOVING)? else {
            return Ok(None);
        };
        let words: Vec<u64> = value.integers().collect();
        RemovalPhys::from_words(&words)
            .map(Some)
            .reading("removal state")
    }

    /// The vdev that is being removed, and where the data is that was copied so far; `None` if none is.
    ///
    /// # Errors
    /// If the mapping cannot be read.
    pub fn removal_mapping(&self) -> Result<Option<(VdevId, IndirectMapping)>, PoolError> {
        let topology = self.store().topology();
        let mut tops = topology.tree.tops();
        let found = tops.find(|(_, node)| node.kind != VdevKind::Indirect && node.config.removing);
        let Some((id, node)) = found else {
            return Ok(None);
        };
        let none = || DecodeError::new("removal", "it has no mapping", 0);
        let mapping = node.config.indirect_mapping.ok_or_else(none);
        let births = node.config.indirect_births;
        let mapping = load_indirect_mapping(self.mos(), mapping.reading("removal")?, births)?;
        Ok(Some((id, mapping)))
    }

    /// The mapping that is being condensed; `None` if none is.
    ///
    /// # Errors
    /// If the object directory cannot be read, or the state does not exist.
    pub fn condensing(&self) -> Result<Option<CondensingIndirectPhys>, PoolError> {
        let Some(value) = self.directory_value(key::CONDENSING_INDIRECT)? else {
            return Ok(None);
        };
        let words: Vec<u64> = value.integers().collect();
        CondensingIndirectPhys::from_words(&words)
            .map(Some)
            .reading("condensing state")
    }
}
