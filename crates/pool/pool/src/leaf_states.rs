//! Between the states of leaves as the block layer has them and as the rest of the world knows them: the configuration's keys, the
//! words and numbers of commands.
//!
//! Page `docs/format/vdev-tree.md`, "States".

use crate::import::{Assembly, NodeHealth, VdevAux, VdevState};
use millpond_block::{LeafCondition, LeafReason, LeafState, Topology};
use millpond_ondisk::Txg;
use millpond_vdev::VdevConfig;
use std::ops::Range;

/// The condition that a leaf is in when its pool is opened.
pub(crate) fn found_condition(node: &NodeHealth) -> LeafCondition {
    let (state, reason) = match node.state {
        VdevState::Healthy => (LeafState::Online, LeafReason::None),
        VdevState::Degraded => (
            LeafState::Degraded,
            match node.aux {
                VdevAux::External => LeafReason::External,
                _ => LeafReason::ErrorsExceeded,
            },
        ),
        VdevState::Faulted => (LeafState::Faulted, LeafReason::External),
        VdevState::Offline => (LeafState::Offline, LeafReason::None),
        VdevState::Removed => (LeafState::Removed, LeafReason::None),
        VdevState::CannotOpen => (LeafState::Unavailable, LeafReason::OpenFailed),
    };
    LeafCondition::new(state, reason)
}

/// Brings what is known of leaves while the pool is open into an assembly: their conditions, and what they miss. A leaf that
/// misses something is degraded at best. `last` is the newest txg.
pub(crate) fn judge(topology: &Topology, assembly: &mut Assembly, last: Txg) {
    assembly.judge_leaves(&|node| {
        let Some(leaf) = topology.tree.find_leaf(node.guid) else {
            return;
        };
        node.missed_txgs = count(topology.health.missed(leaf), last);
        let condition = topology.condition(leaf);
        (node.state, node.aux) = match condition.state {
            // Whether its labels can be read was found out when the assembly was made.
            LeafState::Online if !node.state.is_usable() => (node.state, node.aux),
            LeafState::Online if node.missed_txgs > 0 => (VdevState::Degraded, VdevAux::None),
            LeafState::Online => (VdevState::Healthy, VdevAux::None),
            LeafState::Degraded => (VdevState::Degraded, aux(condition.reason)),
            LeafState::Faulted => (VdevState::Faulted, aux(condition.reason)),
            LeafState::Offline => (VdevState::Offline, VdevAux::None),
            LeafState::Removed => (VdevState::Removed, VdevAux::None),
            // Why it could not be opened the assembly knows better.
            LeafState::Unavailable if node.state == VdevState::CannotOpen => (node.state, node.aux),
            LeafState::Unavailable => (VdevState::CannotOpen, VdevAux::OpenFailed),
        };
    });
}

fn aux(reason: LeafReason) -> VdevAux {
    match reason {
        LeafReason::None => VdevAux::None,
        LeafReason::OpenFailed => VdevAux::OpenFailed,
        // A leaf whose probe failed is shown like one with too many errors.
        LeafReason::ErrorsExceeded | LeafReason::IoFailures | LeafReason::Hung => {
            VdevAux::ErrorsExceeded
        }
        LeafReason::External => VdevAux::External,
    }
}

/// How many txgs up to `last` the ranges hold.
fn count(missed: &[Range<u64>], last: Txg) -> u64 {
    let end = last.0.saturating_add(1);
    let lengths = missed
        .iter()
        .map(|range| range.end.min(end).saturating_sub(range.start));
    lengths.fold(0, u64::saturating_add)
}

/// The keys of a leaf's configuration that tell of its state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StoredState {
    offline: bool,
    faulted: bool,
    degraded: bool,
    removed: bool,
    aux_state: Option<&'static str>,
}

impl StoredState {
    /// What is to be stored of a condition; `None` for a leaf that is only absent: of it what was stored stays.
    pub(crate) fn of(condition: LeafCondition) -> Option<Self> {
        let mut stored = Self::default();
        if condition.is_temporary {
            return Some(stored);
        }
        match condition.state {
            LeafState::Online => {}
            LeafState::Unavailable => return None,
            LeafState::Offline => stored.offline = true,
            LeafState::Removed => stored.removed = true,
            LeafState::Faulted => stored.faulted = true,
            LeafState::Degraded => stored.degraded = true,
        }
        if stored.faulted || stored.degraded {
            stored.aux_state = Some(match condition.reason {
                LeafReason::External => "external",
                _ => "err_exceeded",
            });
        }
        Some(stored)
    }

    pub(crate) fn is_stored_in(&self, config: &VdevConfig) -> bool {
        (
            self.offline,
            self.faulted,
            self.degraded,
            self.removed,
            self.aux_state,
        ) == (
            config.offline,
            config.faulted,
            config.degraded,
            config.removed,
            config.aux_state.as_deref(),
        )
    }

    pub(crate) fn store_in(&self, config: &mut VdevConfig) {
        config.offline = self.offline;
        config.faulted = self.faulted;
        config.degraded = self.degraded;
        config.removed = self.removed;
        config.aux_state = self.aux_state.map(str::to_owned);
    }
}
