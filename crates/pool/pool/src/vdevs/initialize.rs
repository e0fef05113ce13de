//! Writes a pattern to the free space of leaves (`zpool initialize`).
//!
//! It works in slices (`slice`). How far it came is stored in the ZAP of the leaf, so that it continues when the pool is
//! opened again. The space is held in the allocator while it is written: no block lies there, no older state that may
//! still be read needs it, and none comes to lie there.
//!
//! Page `docs/format/vdev-tree.md`, "Initializing".

mod place;
mod slice;

pub use slice::InitializeLimits;

use crate::history::append::HistoryEvent;
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use crate::{PoolError, PoolView};
use millpond_env::rank;
use millpond_env::sync::{Condvar, Mutex};
use millpond_ondisk::pool_directory::vdev_key;
use millpond_ondisk::{Guid, ObjectId};
use millpond_vdev::VdevConfig;
use millpond_zap::Zap;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a change of the tree waits for requests that are under way.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The same, for a leaf that is taken offline: it may be the one that does not answer.
pub(crate) const PATIENCE_WITH_LOST: Duration = Duration::from_secs(5);

/// What to do about the initialization of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitializeAction {
    /// Start it, or resume it if it is suspended.
    Start,
    /// Stop it; its progress stays.
    Suspend,
    /// Stop it, and forget its progress.
    Cancel,
    /// Forget that it was done.
    Reset,
}

/// Why the initialization of a leaf does not change. The texts are those of `zpool initialize`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InitializeRefusal {
    /// The pool has no such leaf.
    #[error("no such device in pool")]
    NoSuchLeaf,
    /// It runs.
    #[error("currently initializing")]
    Active,
    /// It does not run.
    #[error("there is no active initialization")]
    NotActive,
    /// The leaf is out of use.
    #[error("the device is not in use; bring it back with 'zpool online'")]
    Unavailable,
    /// The leaf has no place to store the progress, or lies in a vdev whose free space is not mapped to leaves.
    #[error("operation not supported on this type of pool")]
    Unsupported,
}

/// The stored numbers of the states.
mod phase {
    pub(super) const NONE: u64 = 0;
    pub(super) const ACTIVE: u64 = 1;
    pub(super) const CANCELED: u64 = 2;
    pub(super) const SUSPENDED: u64 = 3;
    pub(super) const COMPLETE: u64 = 4;
}

/// The initialization of one leaf.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    phase: u64,
    /// Bytes of the leaf's space, from its start, that are done. As stored.
    leaf_bytes: u64,
    /// Where to continue on the top-level vdev, if known.
    next_bytes: Option<u64>,
    /// Changes whenever the work starts anew or stops: progress of an older one is void.
    serial: u64,
}

/// The initializations of a pool that is open for changes, by the ZAPs of their leaves.
///
/// Lock: one, held for a few instructions.
#[derive(Debug, Default)]
pub(crate) struct InitializeControl {
    state: Mutex<State, rank::Leaf>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    work: BTreeMap<ObjectId, Work>,
    serial: u64,
    /// Whether requests to a leaf are under way.
    is_busy: bool,
    /// Changes of the tree that let no requests begin.
    pauses: usize,
    has_ended: bool,
}

/// While it exists, requests to a leaf are under way.
struct Busy<'a>(&'a InitializeControl);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_busy = false;
        self.0.changed.notify_all();
    }
}

/// While it exists, no requests are made.
#[derive(Debug)]
pub(crate) struct Pause<'a>(&'a InitializeControl);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.state.lock().pauses -= 1;
        self.0.changed.notify_all();
    }
}

impl InitializeControl {
    /// Begins requests, unless the pool ends or its tree is about to change.
    fn enter(&self) -> Option<Busy<'_>> {
        let mut state = self.state.lock();
        if state.is_busy || state.pauses > 0 || state.has_ended {
            return None;
        }
        state.is_busy = true;
        Some(Busy(self))
    }

    /// Waits for requests under way, and lets no others begin. A device that leaves the pool gets no more writes then.
    pub(crate) fn pause(&self, at_most: Duration) -> Result<Pause<'_>, PoolError> {
        let mut state = self.state.lock();
        state.pauses += 1;
        let pause = Pause(self);
        while state.is_busy {
            if self.changed.wait_for(&mut state, at_most).timed_out() {
                drop(state);
                return Err(PoolError::Initializing);
            }
        }
        drop(state);
        Ok(pause)
    }

    pub(crate) fn end(&self) {
        self.state.lock().has_ended = true;
        self.changed.notify_all();
    }

    /// Whether requests under way may be followed by others.
    fn is_free(&self) -> bool {
        let state = self.state.lock();
        state.pauses == 0 && !state.has_ended
    }

    fn wait(&self, at_most: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.has_ended && !at_most.is_zero() {
            let _ = self.changed.wait_for(&mut state, at_most);
        }
        !state.has_ended
    }

    /// The work on a leaf, if it is to be done now.
    fn active(&self, zap: ObjectId) -> Option<Work> {
        let state = self.state.lock();
        let work = state.work.get(&zap).copied();
        work.filter(|work| work.phase == phase::ACTIVE && !state.has_ended)
    }
}

impl Pool {
    /// Starts, suspends or cancels the initialization of leaves. The new states are stored when this returns. Returns the
    /// leaves of which the state does not change, with the reasons.
    ///
    /// # Errors
    /// As [`Pool::sync_task`].
    pub fn change_initialize(
        &self,
        leaves: &[Guid],
        action: InitializeAction,
    ) -> Result<Vec<(Guid, InitializeRefusal)>, PoolError> {
        let refused = self.sync_task(|ctx| {
            let mut refused = vec![];
            for leaf in leaves {
                if let Err(refusal) = ctx.change_initialize(*leaf, action)? {
                    refused.push((*leaf, refusal));
                }
            }
            Ok(refused)
        })?;
        self.initialize.changed.notify_all();
        Ok(refused)
    }

    /// Whether a leaf is being initialized.
    #[must_use]
    pub fn is_initializing(&self) -> bool {
        let state = self.initialize.state.lock();
        let mut work = state.work.values();
        work.any(|work| work.phase == phase::ACTIVE) && !state.has_ended
    }

    /// Takes in the stored states. A leaf whose ZAP cannot be read is not initialized.
    pub(crate) fn load_initialize(&self, read: &PoolView) {
        let root = self.state.read().config.root.clone();
        let mut found = BTreeMap::new();
        for leaf in leaves_of(&root) {
            let Some(zap) = leaf.zap_leaf.and_then(ObjectId::some) else {
                continue;
            };
            let number = |name: &str| {
                let table = Zap::open(read.mos().object(zap).ok()?).ok()?;
                table.lookup_u64(name.as_bytes()).ok()?
            };
            let phase = number(vdev_key::INITIALIZE_STATE).unwrap_or(phase::NONE);
            if !(phase::ACTIVE..=phase::COMPLETE).contains(&phase) {
                continue;
            }
            let work = Work {
                phase,
                // A value beyond the end of the leaf only ends the work.
                leaf_bytes: number(vdev_key::INITIALIZE_OFFSET).unwrap_or(0),
                ..Work::default()
            };
            found.insert(zap, work);
        }
        self.initialize.state.lock().work = found;
    }
}

/// The leaves below a vdev.
fn leaves_of(root: &VdevConfig) -> Vec<&VdevConfig> {
    let (mut stack, mut leaves) = (vec![root], vec![]);
    while let Some(vdev) = stack.pop() {
        stack.extend(vdev.children.iter().rev());
        if vdev.kind.is_device() {
            leaves.push(vdev);
        }
    }
    leaves
}

impl SyncContext<'_> {
    /// The outer error suspends the pool; the inner error means that nothing changed.
    fn change_initialize(
        &self,
        leaf: Guid,
        action: InitializeAction,
    ) -> Result<Result<(), InitializeRefusal>, PoolError> {
        let root = self.pool.state.read().config.root.clone();
        let found = leaves_of(&root).into_iter().find(|one| one.guid == leaf);
        let Some(config) = found else {
            return Ok(Err(InitializeRefusal::NoSuchLeaf));
        };
        let zap = config.zap_leaf.and_then(ObjectId::some);
        let (Some(zap), Some(_)) = (zap, place::Place::of(&root, leaf)) else {
            return Ok(Err(InitializeRefusal::Unsupported));
        };
        let topology = self.pool.store.topology();
        let number = topology.tree.find_leaf(leaf);
        let is_usable = number.is_some_and(|number| topology.leaf_device(number).is_some());
        if action == InitializeAction::Start && !is_usable {
            return Ok(Err(InitializeRefusal::Unavailable));
        }
        let control = &self.pool.initialize;
        let old = control.state.lock().work.get(&zap).copied();
        let old = old.unwrap_or_default();
        let (phase, leaf_bytes, verb, text) = match (action, old.phase) {
            (InitializeAction::Start | InitializeAction::Reset, phase::ACTIVE) => {
                return Ok(Err(InitializeRefusal::Active));
            }
            (InitializeAction::Start, phase::SUSPENDED) => {
                (phase::ACTIVE, old.leaf_bytes, "initialize", " activated")
            }
            (InitializeAction::Start, _) => (phase::ACTIVE, 0, "initialize", " activated"),
            (InitializeAction::Suspend, phase::ACTIVE) => {
                (phase::SUSPENDED, old.leaf_bytes, "initialize", " suspended")
            }
            (InitializeAction::Cancel, phase::ACTIVE | phase::SUSPENDED) => {
                (phase::CANCELED, 0, "initialize", " canceled")
            }
            (InitializeAction::Suspend | InitializeAction::Cancel, _) => {
                return Ok(Err(InitializeRefusal::NotActive));
            }
            (InitializeAction::Reset, _) => (phase::NONE, 0, "uninitialize", ""),
        };
        let mut state = control.state.lock();
        state.serial += 1;
        let work = Work {
            phase,
            leaf_bytes,
            next_bytes: None,
            serial: state.serial,
        };
        state.work.insert(zap, work);
        drop(state);
        self.store_initialize(zap, phase, leaf_bytes, true)?;
        self.note_initialize(config, verb, text)?;
        Ok(Ok(()))
    }

    fn store_initialize(
        &self,
        zap: ObjectId,
        phase: u64,
        leaf_bytes: u64,
        is_new_phase: bool,
    ) -> Result<(), PoolError> {
        if is_new_phase {
            self.set_table_number(zap, vdev_key::INITIALIZE_STATE, phase)?;
            self.set_table_number(zap, vdev_key::INITIALIZE_ACTION_TIME, self.now_s())?;
        }
        self.set_table_number(zap, vdev_key::INITIALIZE_OFFSET, leaf_bytes)
    }

    fn note_initialize(&self, leaf: &VdevConfig, verb: &str, text: &str) -> Result<(), PoolError> {
        let path = leaf.path.clone().unwrap_or_default();
        self.history(&HistoryEvent::of_pool(verb, format!("vdev={path}{text}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_waits_for_requests_and_lets_none_begin() {
        let control = InitializeControl::default();
        let busy = control.enter().unwrap();
        assert!(control.enter().is_none(), "two at a time");
        let short = Duration::from_millis(20);
        assert!(matches!(control.pause(short), Err(PoolError::Initializing)));
        std::thread::scope(|scope| {
            let pausing = scope.spawn(|| control.pause(PATIENCE).map(drop));
            std::thread::sleep(short);
            assert!(!pausing.is_finished());
            drop(busy);
            pausing.join().unwrap().unwrap();
        });
        let pause = control.pause(short).unwrap();
        assert!(control.enter().is_none(), "during a pause");
        drop(pause);
        drop(control.enter().unwrap());
        control.end();
        assert!(control.enter().is_none(), "after the end");
    }
}
