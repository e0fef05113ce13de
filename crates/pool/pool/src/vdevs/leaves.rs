//! Takes leaves offline and online on request of an administrator.
//!
//! A new state applies to all requests immediately. Each txg stores the states that the configuration does
//! not contain yet. A leaf that is not in use when the labels of its vdev are written keeps older labels.
//! At the next import it therefore counts as missing every txg since then, even if its dirty time log does
//! not say so.
//!
//! Page `docs/format/vdev-tree.md`, "States".

use crate::PoolError;
use crate::pool::{Pool, SyncMode};
use crate::vdevs::activity::PATIENCE_WITH_LOST;
use crate::vdevs::leaf_states::StoredState;
use millpond_block::{LeafCondition, LeafReason, LeafRefusal, LeafState, Topology};
use millpond_device::Device;
use millpond_env::sync::Arc;
use millpond_ondisk::Guid;
use millpond_vdev::LeafId;
use std::collections::BTreeMap;

/// Why a leaf's state was not changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LeafError {
    /// The leaf does not exist or cannot be taken out of use.
    #[error(transparent)]
    Refused(#[from] LeafRefusal),
    /// The pool could not store the state.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// How to take a leaf out of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offline {
    /// Fault the leaf: only `clear` brings it back.
    pub is_fault: bool,
    /// Only until the pool is opened again.
    pub is_temporary: bool,
}

impl Pool {
    /// Takes a leaf out of use. Unless temporary, the state is on stable storage when this returns.
    ///
    /// The device of an offline leaf is released. If the pool needs the leaf and a fault was requested, the
    /// leaf becomes degraded instead.
    ///
    /// # Errors
    /// [`LeafError`]; after a refusal nothing has changed.
    pub fn offline_leaf(&self, leaf: Guid, how: Offline) -> Result<(), LeafError> {
        self.refuse_if_suspended()?;
        let _pause = self.activities.pause(PATIENCE_WITH_LOST).ok();
        let order = self.leaf_orders.lock();
        let (topology, number) = self.administered(leaf)?;
        let condition = LeafCondition {
            state: match how.is_fault {
                true => LeafState::Faulted,
                false => LeafState::Offline,
            },
            reason: match how.is_fault {
                true => LeafReason::External,
                false => LeafReason::None,
            },
            is_temporary: how.is_temporary,
        };
        match topology.change_condition(number, condition) {
            Err(LeafRefusal::Required) if how.is_fault => {
                let state = LeafState::Degraded;
                topology.change_condition(number, LeafCondition { state, ..condition })?;
            }
            outcome => drop(outcome?),
        }
        drop(order);
        self.sync()?;
        self.release_offline(leaf);
        if how.is_fault {
            self.cancel_activities(&[leaf])?;
        }
        Ok(())
    }

    /// Reopens a leaf that was offline, removed or unavailable, and returns its condition.
    ///
    /// `device` is the device now at the leaf's path. Without one, or with a device of another leaf, the
    /// leaf becomes unavailable. A faulted leaf stays faulted.
    ///
    /// # Errors
    /// [`LeafError`].
    pub fn online_leaf(
        &self,
        leaf: Guid,
        device: Option<&Arc<dyn Device>>,
    ) -> Result<LeafCondition, LeafError> {
        let order = self.leaf_orders.lock();
        let (topology, number) = self.administered(leaf)?;
        let present = topology.devices.get(number.0 as usize);
        let device = device.or(present.and_then(Option::as_ref));
        let is_taken = match device {
            Some(device) => self.reopen_leaf(leaf, device)?,
            None => false,
        };
        let (topology, number) = self.administered(leaf)?;
        let condition = topology.condition(number);
        if !is_taken && matches!(condition.state, LeafState::Offline | LeafState::Removed) {
            let gone = LeafCondition::new(LeafState::Unavailable, LeafReason::OpenFailed);
            topology.change_condition(number, gone)?;
            self.forget_offline(leaf);
        }
        drop(order);
        self.sync_unless_suspended()?;
        Ok(self.leaf_condition(leaf).unwrap_or(condition))
    }

    /// Clears the error counts of these leaves, or of all leaves, and reopens faulted, degraded or removed
    /// leaves whose devices carry their labels.
    ///
    /// Offline leaves stay offline. This also works in a suspended pool, which stores the states when it
    /// resumes.
    pub fn clear_leaves(&self, leaves: Option<&[Guid]>) {
        let _order = self.leaf_orders.lock();
        let topology = self.store.topology();
        for (number, node) in topology.tree.leaves() {
            let leaf = node.config.guid;
            if leaves.is_some_and(|guids| !guids.contains(&leaf)) {
                continue;
            }
            if let Some(counters) = topology.counters.get(number.0 as usize) {
                counters.clear_errors();
            }
            self.leaf_watch.lock().forget(leaf);
            let from = topology.condition(number);
            if matches!(from.state, LeafState::Online | LeafState::Offline) {
                continue;
            }
            if topology.abandoned_requests(number) > 0 {
                // The device must complete its abandoned requests first.
                continue;
            }
            let device = topology.tried_device(number);
            let answers = || device.is_some_and(|device| self.take_stock(leaf, &device));
            let to = match from.is_usable() || answers() {
                true => LeafCondition::default(),
                // The reason stays.
                false if from.state == LeafState::Unavailable => from,
                false => LeafCondition::new(LeafState::Unavailable, LeafReason::OpenFailed),
            };
            // Neither state takes a leaf out of use, so this cannot fail.
            let _ = self.store.topology().change_condition(number, to);
        }
        self.state.write().assembly = None;
    }

    /// Syncs the pool unless it is suspended.
    ///
    /// # Errors
    /// As [`Pool::sync`].
    pub fn sync_unless_suspended(&self) -> Result<(), PoolError> {
        match self.suspension() {
            Some(_) => Ok(()),
            None => self.sync().map(drop),
        }
    }

    /// The condition of a leaf; `None` if there is no such leaf.
    #[must_use]
    pub fn leaf_condition(&self, leaf: Guid) -> Option<LeafCondition> {
        let topology = self.store.topology();
        Some(topology.condition(topology.tree.find_leaf(leaf)?))
    }

    /// Finds a leaf that has its own device.
    fn administered(&self, leaf: Guid) -> Result<(Arc<Topology>, LeafId), LeafRefusal> {
        let topology = self.store.topology();
        let number = topology.tree.find_leaf(leaf);
        let number = number.ok_or(LeafRefusal::NoSuchLeaf)?;
        match topology.tree.leaf(number) {
            Some(node) if node.is_device() => Ok((topology, number)),
            _ => Err(LeafRefusal::NoSuchLeaf),
        }
    }

    fn refuse_if_suspended(&self) -> Result<(), PoolError> {
        match self.suspension() {
            Some(suspension) => Err(PoolError::Suspended {
                reason: suspension.reason,
            }),
            None => Ok(()),
        }
    }

    /// Releases the device of an offline leaf, so that the administrator can remove it.
    fn release_offline(&self, leaf: Guid) {
        let _order = self.leaf_orders.lock();
        self.store.change_topology(|topology| {
            let Some(number) = topology.tree.find_leaf(leaf) else {
                return;
            };
            if topology.condition(number).state != LeafState::Offline {
                return;
            }
            if let Some(place) = topology.devices.get_mut(number.0 as usize) {
                *place = None;
            }
        });
        self.state.write().assembly = None;
    }

    /// Stores the states of leaves in the configuration. Called at the beginning of a txg.
    pub(crate) fn record_leaf_states(&self) {
        for (leaf, stored) in self.unrecorded_states() {
            self.change_leaf(leaf, |config| stored.store_in(config));
        }
    }

    /// Removes the offline and removed marks of a leaf from the configuration.
    fn forget_offline(&self, leaf: Guid) {
        let is_stored = self.leaf_config(leaf, |config| config.offline || config.removed);
        if is_stored == Some(true) {
            self.change_leaf(leaf, |config| {
                (config.offline, config.removed) = (false, false);
            });
        }
    }

    /// Leaves whose states the configuration does not contain.
    fn unrecorded_states(&self) -> Vec<(Guid, StoredState)> {
        let topology = self.store.topology();
        let state = self.state.read();
        let mut configs = BTreeMap::new();
        let mut stack = vec![&state.config.root];
        while let Some(vdev) = stack.pop() {
            stack.extend(&vdev.children);
            configs.insert(vdev.guid, vdev);
        }
        let leaves = topology.tree.leaves();
        let devices = leaves.filter(|(_, node)| node.is_device());
        let states = devices.filter_map(|(leaf, node)| {
            let stored = StoredState::of(topology.condition(leaf))?;
            let guid = node.config.guid;
            let is_told = stored.is_stored_in(configs.get(&guid)?);
            (!is_told).then_some((guid, stored))
        });
        states.collect()
    }

    /// Requests a txg if the configuration lacks the state of some leaf. Does not wait.
    pub(crate) fn ask_to_record_states(&self) {
        if self.sync_mode == SyncMode::Thread
            && self.suspension().is_none()
            && !self.unrecorded_states().is_empty()
        {
            self.groups.ask(self.groups.open_txg());
        }
    }
}
