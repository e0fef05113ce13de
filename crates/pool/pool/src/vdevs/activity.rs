//! Work on the free space of leaves: `zpool initialize` writes a pattern, `zpool trim` and `autotrim` discard it.
//!
//! The first two work in slices (`slice`). How far they came is stored in the ZAP of the leaf, so that they continue when
//! the pool is opened again. The space is held in the allocator meanwhile: no block lies there, no older state that may
//! still be read needs it, and none comes to lie there.
//!
//! Page `docs/format/vdev-tree.md`, "Initializing and trimming".

mod autotrim;
mod change;
mod leaf_position;
mod requests;
mod slice;

pub use change::{ActivityAction, ActivityRefusal, TrimOptions};
pub use slice::SliceLimits;

use crate::PoolError;
use crate::PoolView;
use crate::pool::Pool;
use millpond_env::rank;
use millpond_env::sync::{Condvar, Mutex};
use millpond_ondisk::ObjectId;
use millpond_ondisk::pool_directory::vdev_key;
use millpond_vdev::VdevConfig;
use millpond_zap::Zap;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a change of the tree waits for requests that are under way.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The same, for a leaf that is taken offline: it may be the one that does not answer.
pub(crate) const PATIENCE_WITH_LOST: Duration = Duration::from_secs(5);

/// What is done with all free space of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeafActivity {
    /// A pattern is written to it.
    Initialize,
    /// It is discarded.
    Trim,
}

/// The entries of a leaf's ZAP that describe an activity.
struct Keys {
    state: &'static str,
    offset: &'static str,
    action_time: &'static str,
}

impl LeafActivity {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Initialize, Self::Trim];

    /// The command, and its name in the history.
    #[must_use]
    pub fn verb(self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::Trim => "trim",
        }
    }

    fn keys(self) -> Keys {
        match self {
            Self::Initialize => Keys {
                state: vdev_key::INITIALIZE_STATE,
                offset: vdev_key::INITIALIZE_OFFSET,
                action_time: vdev_key::INITIALIZE_ACTION_TIME,
            },
            Self::Trim => Keys {
                state: vdev_key::TRIM_STATE,
                offset: vdev_key::TRIM_OFFSET,
                action_time: vdev_key::TRIM_ACTION_TIME,
            },
        }
    }
}

/// The stored numbers of the states.
mod phase {
    pub(super) const NONE: u64 = 0;
    pub(super) const ACTIVE: u64 = 1;
    pub(super) const CANCELED: u64 = 2;
    pub(super) const SUSPENDED: u64 = 3;
    pub(super) const COMPLETE: u64 = 4;
}

/// An activity on one leaf.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    phase: u64,
    /// Bytes of the leaf's space, from its start, that are done. As stored.
    leaf_bytes: u64,
    /// Where to continue on the top-level vdev, if known.
    next_bytes: Option<u64>,
    /// Changes whenever the work starts anew or stops: progress of an older one is void.
    serial: u64,
    /// Of a trim.
    options: TrimOptions,
    /// When the next request may begin, because of the rate. On the monotonic clock.
    ready_ns: u64,
}

/// The activities of a pool that is open for changes, with the ZAPs of their leaves.
///
/// Lock: one, held for a few instructions.
#[derive(Debug, Default)]
pub(crate) struct ActivityControl {
    state: Mutex<State, rank::Leaf>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    work: BTreeMap<(LeafActivity, ObjectId), Work>,
    serial: u64,
    /// The txg in which the property `autotrim` was read.
    autotrim_looked: u64,
    /// The txg in which recent frees were discarded the last time.
    autotrim_txg: u64,
    /// Whether requests to a leaf are under way.
    is_busy: bool,
    /// Changes of the tree that let no requests begin.
    pauses: usize,
    has_ended: bool,
}

/// While it exists, requests to a leaf are under way.
pub(crate) struct Busy<'a>(&'a ActivityControl);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_busy = false;
        self.0.changed.notify_all();
    }
}

/// While it exists, no requests are made.
#[derive(Debug)]
pub(crate) struct Pause<'a>(&'a ActivityControl);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.state.lock().pauses -= 1;
        self.0.changed.notify_all();
    }
}

impl ActivityControl {
    /// Begins requests, unless the pool ends or its tree is about to change.
    pub(crate) fn enter(&self) -> Option<Busy<'_>> {
        let mut state = self.state.lock();
        if state.is_busy || state.pauses > 0 || state.has_ended {
            return None;
        }
        state.is_busy = true;
        Some(Busy(self))
    }

    /// Waits for requests under way, and lets no others begin. A device that leaves the pool gets no more then.
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

    /// Forgets what is done on a leaf that left the pool: another leaf may get the number of its ZAP.
    pub(crate) fn forget(&self, zap: ObjectId) {
        let mut state = self.state.lock();
        state.work.retain(|(_, of), _| *of != zap);
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

    pub(crate) fn wait(&self, at_most: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.has_ended && !at_most.is_zero() {
            let _ = self.changed.wait_for(&mut state, at_most);
        }
        !state.has_ended
    }

    /// The work on a leaf, if it is to be done now.
    fn active(&self, activity: LeafActivity, zap: ObjectId) -> Option<Work> {
        let state = self.state.lock();
        let work = state.work.get(&(activity, zap)).copied();
        work.filter(|work| work.phase == phase::ACTIVE && !state.has_ended)
    }
}

impl Pool {
    /// Whether an activity runs on a leaf.
    #[must_use]
    pub fn is_leaf_active(&self, activity: LeafActivity) -> bool {
        let state = self.activities.state.lock();
        let mut work = state.work.iter();
        work.any(|((of, _), work)| *of == activity && work.phase == phase::ACTIVE)
            && !state.has_ended
    }

    /// How long all activities wait because of their rates; zero if one need not.
    #[must_use]
    pub fn leaf_activity_delay(&self) -> Duration {
        let now_ns = self.env.clock.monotonic_ns();
        let state = self.activities.state.lock();
        let active = state.work.values();
        let active = active.filter(|work| work.phase == phase::ACTIVE);
        let ns = active.map(|work| work.ready_ns.saturating_sub(now_ns));
        Duration::from_nanos(ns.min().unwrap_or(0))
    }

    /// Waits, at most as long as this. Returns whether the pool is open still.
    #[must_use]
    pub fn wait_for_leaf_activity(&self, at_most: Duration) -> bool {
        self.activities.wait(at_most)
    }

    /// Takes in the stored states. On a leaf whose ZAP cannot be read nothing is done.
    pub(crate) fn load_activities(&self, read: &PoolView) {
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
            for activity in LeafActivity::ALL {
                let keys = activity.keys();
                let phase = number(keys.state).unwrap_or(phase::NONE);
                if !(phase::ACTIVE..=phase::COMPLETE).contains(&phase) {
                    continue;
                }
                let options = match activity {
                    LeafActivity::Initialize => TrimOptions::default(),
                    LeafActivity::Trim => TrimOptions {
                        rate_bytes: number(vdev_key::TRIM_RATE).unwrap_or(0),
                        is_secure: number(vdev_key::TRIM_SECURE).is_some_and(|value| value != 0),
                    },
                };
                let work = Work {
                    phase,
                    // A value beyond the end of the leaf only ends the work.
                    leaf_bytes: number(keys.offset).unwrap_or(0),
                    options,
                    ..Work::default()
                };
                found.insert((activity, zap), work);
            }
        }
        self.activities.state.lock().work = found;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_waits_for_requests_and_lets_none_begin() {
        let control = ActivityControl::default();
        let busy = control.enter().unwrap();
        assert!(control.enter().is_none(), "two at a time");
        let short = Duration::from_millis(20);
        assert!(matches!(control.pause(short), Err(PoolError::Initializing)));
        assert!(control.is_free());
        std::thread::scope(|scope| {
            let pausing = scope.spawn(|| control.pause(PATIENCE).map(drop));
            std::thread::sleep(short);
            assert!(!pausing.is_finished());
            assert!(!control.is_free());
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
