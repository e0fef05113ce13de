//! Whether a leaf is in use, and why not: one status per leaf, shared by all topologies of a pool.
//!
//! A leaf that is not usable gets no requests. Reads are planned around it, writes to it count as missed
//! without being tried, it is not flushed, and [`Topology::leaf_device`] returns no device for its labels.
//! Every request reads the status, with one atomic load. Changes are serialized by the lock of
//! [`LeafMonitor`], so that two leaves that replace each other are never taken out of use at once.
//!
//! Page `docs/format/vdev-tree.md`, "States".

use crate::topology::Topology;
use crate::write_lease::WriteLease;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_ondisk::Txg;
use millpond_vdev::{Health, LeafHealth, LeafId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

/// The state of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LeafState {
    /// In use.
    #[default]
    Online = 0,
    /// In use, with errors or because the pool cannot do without it.
    Degraded = 1,
    /// Out of use after errors, or by order of an administrator.
    Faulted = 2,
    /// Taken out of use by an administrator.
    Offline = 3,
    /// Physically gone, as reported by the system.
    Removed = 4,
    /// Its device could not be opened.
    Unavailable = 5,
}

/// Why a leaf is in its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LeafReason {
    /// No reason.
    #[default]
    None = 0,
    /// The device could not be opened, or stopped answering as a removed one does.
    OpenFailed = 1,
    /// More errors in an interval than its properties allow.
    ErrorsExceeded = 2,
    /// Requests failed, and so did a probe.
    IoFailures = 3,
    /// A request did not end before its deadline.
    Hung = 4,
    /// An administrator's order.
    External = 5,
    /// Its device has no label of it (any more).
    BadLabel = 6,
}

/// The state of a leaf, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LeafCondition {
    /// The state.
    pub state: LeafState,
    /// The reason for the state.
    pub reason: LeafReason,
    /// Whether the state ends when the pool is closed: it is not stored on disk.
    pub is_temporary: bool,
}

impl LeafCondition {
    /// A condition that is stored on disk.
    #[must_use]
    pub fn new(state: LeafState, reason: LeafReason) -> Self {
        Self {
            state,
            reason,
            is_temporary: false,
        }
    }

    /// Whether the leaf gets requests.
    #[must_use]
    pub fn is_usable(self) -> bool {
        matches!(self.state, LeafState::Online | LeafState::Degraded)
    }

    fn pack(self) -> u32 {
        self.state as u32 | (self.reason as u32) << 8 | u32::from(self.is_temporary) << 16
    }

    fn unpack(word: u32) -> Self {
        let state = match word & 0xff {
            0 => LeafState::Online,
            1 => LeafState::Degraded,
            2 => LeafState::Faulted,
            3 => LeafState::Offline,
            4 => LeafState::Removed,
            _ => LeafState::Unavailable,
        };
        let reason = match word >> 8 & 0xff {
            0 => LeafReason::None,
            1 => LeafReason::OpenFailed,
            2 => LeafReason::ErrorsExceeded,
            3 => LeafReason::IoFailures,
            4 => LeafReason::Hung,
            6 => LeafReason::BadLabel,
            _ => LeafReason::External,
        };
        Self {
            state,
            reason,
            is_temporary: word >> 16 & 1 == 1,
        }
    }
}

/// The current [`LeafCondition`] of a leaf.
#[derive(Debug, Default)]
pub struct LeafStatus(AtomicU32);

impl LeafStatus {
    /// The current condition.
    #[must_use]
    pub fn condition(&self) -> LeafCondition {
        LeafCondition::unpack(self.0.load(Ordering::SeqCst))
    }

    /// Whether the leaf gets requests.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.condition().is_usable()
    }

    fn set(&self, condition: LeafCondition) {
        self.0.store(condition.pack(), Ordering::SeqCst);
    }
}

/// Wakes the health monitor thread of a pool, and serializes changes of leaf status.
#[derive(Debug, Default)]
pub struct LeafMonitor {
    changes: Mutex<(), rank::LeafStates>,
    has_news: AtomicBool,
    /// Whether the waiting thread is to end.
    has_ended: Mutex<bool, rank::Leaf>,
    woken: Condvar,
    /// Until when the pool may use its leaves.
    pub(crate) lease: Arc<WriteLease>,
}

impl LeafMonitor {
    /// Notifies the monitor that a leaf failed a request or changed its state. Cheap: called where requests
    /// complete.
    pub fn raise(&self) {
        if !self.has_news.swap(true, Ordering::SeqCst) {
            // Taking the lock closes the gap between the waiting thread's check and its sleep.
            drop(self.has_ended.lock());
            self.woken.notify_all();
        }
    }

    /// Whether a notification has arrived since the last call.
    #[must_use]
    pub fn take_news(&self) -> bool {
        self.has_news.swap(false, Ordering::SeqCst)
    }

    /// Waits for a notification, at most for `timeout`. Returns `false` once [`LeafMonitor::end`] was
    /// called.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut has_ended = self.has_ended.lock();
        if !*has_ended && !self.has_news.load(Ordering::SeqCst) {
            self.woken.wait_for(&mut has_ended, timeout);
        }
        !*has_ended
    }

    /// Ends all waits, current and future.
    pub fn end(&self) {
        *self.has_ended.lock() = true;
        self.woken.notify_all();
    }
}

/// Why the status of a leaf was not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeafRefusal {
    /// The tree has no such leaf.
    #[error("no such leaf")]
    NoSuchLeaf,
    /// Without the leaf some data of its top-level vdev would have no replica.
    #[error("no valid replicas")]
    Required,
    /// The device has not completed abandoned requests, whose writes must not overwrite newer bytes.
    #[error("the device has not ended earlier requests yet")]
    Unanswered,
}

impl Topology {
    /// The status of a leaf; `None` for an unknown leaf id.
    #[must_use]
    pub fn status(&self, leaf: LeafId) -> Option<&LeafStatus> {
        let counters = self.counters.get(leaf.0 as usize)?;
        Some(counters.status())
    }

    /// The condition of a leaf; that of an absent leaf for an unknown leaf id.
    #[must_use]
    pub fn condition(&self, leaf: LeafId) -> LeafCondition {
        let none = LeafCondition::new(LeafState::Unavailable, LeafReason::OpenFailed);
        self.status(leaf).map_or(none, LeafStatus::condition)
    }

    /// Takes a leaf out of use after errors, at once and for the requests of all threads.
    ///
    /// If some data of its top-level vdev would then have no replica, the leaf becomes degraded instead.
    /// Returns whether the leaf is out of use. The pool's monitor is notified, which stores the state.
    pub fn fault_leaf(&self, leaf: LeafId, reason: LeafReason) -> bool {
        let faulted = LeafCondition::new(LeafState::Faulted, reason);
        match self.change_condition(leaf, faulted) {
            Ok(_) => true,
            Err(LeafRefusal::NoSuchLeaf | LeafRefusal::Unanswered) => false,
            Err(LeafRefusal::Required) => {
                let degraded = LeafCondition::new(LeafState::Degraded, reason);
                let _ = self.change_condition(leaf, degraded);
                false
            }
        }
    }

    /// Changes the state of a leaf; returns the previous one. A leaf changes from one unusable state to
    /// another only by an administrator's order or because its device is absent.
    ///
    /// # Errors
    /// [`LeafRefusal`]; nothing is changed then.
    pub fn change_condition(
        &self,
        leaf: LeafId,
        to: LeafCondition,
    ) -> Result<LeafCondition, LeafRefusal> {
        let status = self.status(leaf).ok_or(LeafRefusal::NoSuchLeaf)?;
        let _one = self.monitor.changes.lock();
        let from = status.condition();
        if from.is_usable() && !to.is_usable() && self.is_required(leaf) {
            return Err(LeafRefusal::Required);
        }
        if !from.is_usable() && to.is_usable() && self.abandoned_requests(leaf) > 0 {
            return Err(LeafRefusal::Unanswered);
        }
        let is_ordered = to.reason == LeafReason::External || to.state == LeafState::Offline;
        if !from.is_usable() && to.state == LeafState::Faulted && !is_ordered {
            // It is out of use already; the first reason stays.
            return Ok(from);
        }
        if from != to {
            if !from.is_usable() && to.is_usable() {
                // Its unflushed writes may have been lost without an error being reported.
                self.distrust(leaf);
            }
            status.set(to);
            self.monitor.raise();
        }
        Ok(from)
    }

    /// Sets the state of a leaf without any check, as found when a pool was opened.
    pub fn set_condition(&self, leaf: LeafId, to: LeafCondition) {
        if let Some(status) = self.status(leaf) {
            let _one = self.monitor.changes.lock();
            status.set(to);
        }
    }

    /// Whether some data of the leaf's top-level vdev would have no replica without the leaf.
    ///
    /// This considers what the other leaves miss and which of them are out of use. A leaf that has just
    /// missed a txg unknown to this topology counts as if it held nothing.
    #[must_use]
    pub fn is_required(&self, leaf: LeafId) -> bool {
        let Some(top) = self.tree.leaf(leaf).and_then(|node| node.top) else {
            return false;
        };
        let members = self.tree.leaves().filter(|(_, node)| node.top == Some(top));
        let members: BTreeMap<LeafId, Vec<Range<u64>>> = members
            .map(|(member, _)| (member, sorted(self.health.missed(member))))
            .collect();
        let has_news = |other: LeafId| {
            let counters = self.counters.get(other.0 as usize);
            let newest = counters.and_then(|counters| counters.newest_missed());
            newest.is_some_and(|txg| !has(&members, other, txg.0))
        };
        // Which leaves hold the data of a txg changes only where a missed range begins or ends. So it is
        // enough to check these txgs, and one that no leaf missed.
        let edges = members.values().flatten();
        let edges = edges.flat_map(|range| [range.start, range.end]);
        let txgs: BTreeSet<u64> = edges.chain([u64::MAX]).collect();
        txgs.into_iter().any(|txg| {
            let is_lost = |other: LeafId| {
                other == leaf
                    || self.leaf(other, Txg(u64::MAX)) == LeafHealth::Unreadable
                    || has(&members, other, txg)
                    || has_news(other)
            };
            !self.tree.survives(top, &is_lost)
        })
    }
}

impl Health for Topology {
    fn leaf(&self, leaf: LeafId, birth: Txg) -> LeafHealth {
        match self.status(leaf) {
            Some(status) if !status.is_usable() => LeafHealth::Unreadable,
            _ => match self.health.leaf(leaf, birth) {
                // Other leaves are read first.
                LeafHealth::Good if self.is_slow(leaf) => LeafHealth::Slow,
                health => health,
            },
        }
    }
    fn load(&self, leaf: LeafId) -> u64 {
        let counters = self.counters.get(leaf.0 as usize);
        counters.map_or(0, |counters| counters.waits().load())
    }
}

/// Sorts and merges ranges.
fn sorted(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut all = ranges.to_vec();
    all.sort_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(all.len());
    for range in all {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

fn has(members: &BTreeMap<LeafId, Vec<Range<u64>>>, leaf: LeafId, txg: u64) -> bool {
    members.get(&leaf).is_some_and(|ranges| {
        let next = ranges.partition_point(|range| range.start <= txg);
        let before = next.checked_sub(1).and_then(|at| ranges.get(at));
        before.is_some_and(|range| range.contains(&txg))
    })
}

#[cfg(test)]
mod tests;
