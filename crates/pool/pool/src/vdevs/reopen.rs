//! Reopens devices that were lost while the pool was open.

use crate::PoolError;
use crate::import::{LabelFault, read_labels};
use crate::labels::moved::follow;
use crate::pool::Pool;
use crate::vdevs::dtl::has_redundancy;
use millpond_block::{LeafCondition, LeafReason, LeafState};
use millpond_device::{Device, DeviceError};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::{Guid, LeafLayout, UBERBLOCK_RING_BYTES, UBERBLOCK_RING_OFFSET_BYTES};

/// The number of bytes read to check whether a device answers.
const LOOK_BYTES: usize = 4096;

/// Erases all uberblocks of a device.
fn clear_uberblocks(device: &dyn Device) -> Result<(), DeviceError> {
    let layout = LeafLayout::new(device.size_bytes());
    for label in layout
        .into_iter()
        .flat_map(|layout| layout.label_offsets_bytes())
    {
        let at = label.saturating_add(UBERBLOCK_RING_OFFSET_BYTES);
        device.write(at, &[0; UBERBLOCK_RING_BYTES])?;
    }
    device.flush()
}

/// Whether a leaf is out of use because its device was not there.
fn is_gone(state: LeafState) -> bool {
    matches!(state, LeafState::Unavailable | LeafState::Removed)
}

impl Pool {
    /// Leaves that are absent or out of use, or whose devices do not answer, with their configured paths. Not faulted ones
    /// that answer.
    ///
    /// Only an administrator can reopen offline and diverged leaves, so the result includes them only with
    /// `by_order`.
    #[must_use]
    pub fn lost_leaves(&self, by_order: bool) -> Vec<(Guid, String)> {
        let topology = self.store.topology();
        let lost = topology.tree.leaves().filter(|(leaf, node)| {
            if !by_order && self.state.read().diverged.contains(&node.config.guid) {
                return false;
            }
            let state = topology.condition(*leaf).state;
            let is_offline = state == LeafState::Offline;
            if is_offline || !node.is_device() {
                return is_offline && by_order;
            }
            if is_gone(state) {
                return true;
            }
            let device = topology.tried_device(*leaf);
            device.is_none_or(|device| device.read(0, &mut [0; LOOK_BYTES]).is_err())
        });
        let lost = lost.filter_map(|(_, node)| {
            let path = node.config.path.clone()?;
            Some((node.config.guid, path))
        });
        lost.collect()
    }

    /// Leaves that are UNAVAIL or REMOVED, with their configured paths. Not diverged ones. No device is read.
    #[must_use]
    pub fn absent_leaves(&self) -> Vec<(Guid, String)> {
        let topology = self.store.topology();
        let absent = topology.tree.leaves().filter(|(leaf, node)| {
            let has_device = (topology.devices.get(leaf.0 as usize)).is_some_and(Option::is_some);
            let condition = topology.condition(*leaf);
            let is_absent = is_gone(condition.state) || !has_device && condition.is_usable();
            let is_diverged = || self.state.read().diverged.contains(&node.config.guid);
            node.is_device() && is_absent && !is_diverged()
        });
        let absent = absent.filter_map(|(_, node)| {
            let path = node.config.path.clone()?;
            Some((node.config.guid, path))
        });
        absent.collect()
    }

    /// Leaves in use with their configured paths.
    #[must_use]
    pub fn open_leaves(&self) -> Vec<(Guid, String)> {
        let topology = self.store.topology();
        let open = topology.tree.leaves().filter(|(leaf, node)| {
            let device = topology.devices.get(leaf.0 as usize);
            node.is_device()
                && device.is_some_and(Option::is_some)
                && topology.condition(*leaf).is_usable()
        });
        let open = open.filter_map(|(_, node)| {
            let path = node.config.path.clone()?;
            Some((node.config.guid, path))
        });
        open.collect()
    }

    /// Leaves in use whose devices answer, and have no label of theirs any more: something else wrote there.
    #[must_use]
    pub fn overwritten_leaves(&self) -> Vec<Guid> {
        let topology = self.store.topology();
        let overwritten = topology.tree.leaves().filter(|(leaf, node)| {
            let is_watched = node.is_device() && topology.condition(*leaf).is_usable();
            let device = topology.tried_device(*leaf).filter(|_| is_watched);
            let Some(device) = device else { return false };
            // A label that cannot be read may be its own. A leaf that is just being added has labels that say so.
            read_labels(device.as_ref())
                .into_iter()
                .all(|label| match label {
                    Ok(label) => label.guid != node.config.guid,
                    Err(LabelFault::Unreadable(_) | LabelFault::NeverUsed { .. }) => false,
                    Err(_) => true,
                })
        });
        overwritten.map(|(_, node)| node.config.guid).collect()
    }

    /// Takes a leaf out of use whose device is gone ([`LeafReason::OpenFailed`]) or overwritten
    /// ([`LeafReason::BadLabel`]), and releases the device. Returns whether it did: not if data would be lost without
    /// the leaf.
    pub fn give_up_leaf(&self, leaf: Guid, why: LeafReason) -> bool {
        let _order = self.leaf_orders.lock();
        let topology = self.store.topology();
        let Some(number) = topology.tree.find_leaf(leaf) else {
            return false;
        };
        let gone = LeafCondition::new(LeafState::Unavailable, why);
        if topology.change_condition(number, gone).is_err() {
            return false;
        }
        self.store.change_topology(|topology| {
            if let Some(number) = topology.tree.find_leaf(leaf)
                && let Some(place) = topology.devices.get_mut(number.0 as usize)
            {
                *place = None;
            }
        });
        self.state.write().assembly = None;
        true
    }

    /// Reopens a lost leaf with `device`, and returns whether the device was accepted.
    ///
    /// The labels of the device must identify it as this leaf of this pool, and must not be newer than the
    /// pool. The device may have been absent when the pool was opened after an export. From now on the
    /// device is read and written, and the next txg rewrites its labels. The txgs that the leaf missed stay
    /// recorded and are not read from it, nor those after the device's newest uberblock: it may be an older copy. An offline,
    /// removed or unavailable leaf becomes online; a faulted leaf stays faulted.
    ///
    /// # Errors
    /// If the resulting tree is invalid for a pool.
    pub fn reopen_leaf(&self, leaf: Guid, device: &Arc<dyn Device>) -> Result<bool, PoolError> {
        let topology = self.store.topology();
        let is_silent = |leaf| topology.abandoned_requests(leaf) > 0;
        if topology.tree.find_leaf(leaf).is_some_and(is_silent) {
            // The device may be the same disk on another path: a pending old write could overwrite a new
            // one.
            return Ok(false);
        }
        let Some(newest) = self.own_label(leaf, device.as_ref()) else {
            return Ok(false);
        };
        let history = self.history_of(leaf, device);
        if history.own_since.is_some() && self.state.write().diverged.insert(leaf) {
            // The divergence was not known before. A caller that still wants the leaf must ask again.
            return Ok(false);
        }
        let Some(number) = self.store.topology().tree.find_leaf(leaf) else {
            return Ok(false);
        };
        if self.state.read().diverged.contains(&leaf) {
            // These uberblocks would expose the leaf's diverged changes at the next import.
            if clear_uberblocks(device.as_ref()).is_err() {
                return Ok(false);
            }
            mark::hit("diverged-leaf-taken-back");
            self.state.write().diverged.remove(&leaf);
        }
        if let Some(node) = self.store.topology().tree.leaf(number) {
            // It may have grown while it was away. A failure shows when its labels are written.
            let _ = follow(device.as_ref(), leaf, node.ashift);
        }
        let is_redundant = has_redundancy(&self.store.topology(), leaf);
        let (mut was_absent, mut was_in_use) = (false, false);
        self.store.change_topology(|topology| {
            let is_usable = topology.condition(number).is_usable();
            if let Some(place) = topology.devices.get_mut(number.0 as usize) {
                was_absent = place.is_none();
                let is_same = |before: &Arc<dyn Device>| Arc::ptr_eq(before, device);
                was_in_use = is_usable && place.as_ref().is_some_and(is_same);
                *place = Some(Arc::clone(device));
            }
            if let Some(entry) = topology.health.entry(number) {
                entry.is_readable = true;
                if is_redundant && !was_in_use {
                    // Until what it lacks is known, others are read first.
                    entry.missed.push(0..u64::MAX);
                }
            }
        });
        let mut state = self.state.write();
        if was_absent {
            // Before this pool was opened, other leaves may have written txgs that this one lacks.
            let missed = newest.txg.0.saturating_add(1)..self.first_txg.0;
            let entry = state.missed.entry(leaf).or_default();
            entry.add(missed);
        }
        state.is_topology_stale = true;
        state.assembly = None;
        state.config_generation = state.config_generation.saturating_add(1);
        drop(state);
        if !was_in_use {
            self.note_lacking(leaf, &history);
        }
        self.refresh_topology()?;
        // Do this last, so that no reader uses the leaf before its missed txgs are recorded.
        let topology = self.store.topology();
        let condition = topology.condition(number);
        if matches!(
            condition.state,
            LeafState::Offline | LeafState::Removed | LeafState::Unavailable
        ) {
            // This takes nothing out of use, so it cannot fail.
            let _ = topology.change_condition(number, LeafCondition::default());
        }
        Ok(true)
    }
}
