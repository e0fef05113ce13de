//! Converts leaf states between the block layer, the keys of the configuration, and the words and numbers
//! that commands use.
//!
//! Page `docs/format/vdev-tree.md`, "States".

use crate::import::{Assembly, NodeHealth, VdevAux, VdevState};
use millpond_block::{LeafCondition, LeafReason, LeafState, Topology};
use millpond_ondisk::Txg;
use millpond_vdev::{LeafId, VdevConfig};
use std::ops::Range;

/// The condition of a leaf when its pool is opened.
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
        VdevState::CannotOpen => (
            LeafState::Unavailable,
            match node.aux {
                VdevAux::BadLabel => LeafReason::BadLabel,
                _ => LeafReason::OpenFailed,
            },
        ),
    };
    LeafCondition::new(state, reason)
}

/// Updates an assembly with the conditions of its leaves and the txgs they miss, as known while the pool is
/// open.
///
/// A leaf that misses txgs is degraded at best. `last` is the newest txg.
pub(crate) fn judge(topology: &Topology, assembly: &mut Assembly, last: Txg) {
    assembly.judge_leaves(&|node| {
        let Some(leaf) = topology.tree.find_leaf(node.guid) else {
            return;
        };
        node.missed_txgs = count(topology.health.missed(leaf), last);
        let condition = topology.condition(leaf);
        (node.state, node.aux) = match condition.state {
            // The assembly already knows whether the labels are readable.
            LeafState::Online if !node.state.is_usable() => (node.state, node.aux),
            LeafState::Online if node.missed_txgs > 0 => (VdevState::Degraded, VdevAux::None),
            LeafState::Online => (VdevState::Healthy, VdevAux::None),
            LeafState::Degraded => (VdevState::Degraded, aux(condition.reason)),
            LeafState::Faulted => (VdevState::Faulted, aux(condition.reason)),
            LeafState::Offline => (VdevState::Offline, VdevAux::None),
            LeafState::Removed => (VdevState::Removed, VdevAux::None),
            // An assembly made since does not look at its device.
            LeafState::Unavailable if condition.reason == LeafReason::BadLabel => {
                (VdevState::CannotOpen, VdevAux::BadLabel)
            }
            // The assembly knows more precisely why the leaf could not be opened.
            LeafState::Unavailable if node.state == VdevState::CannotOpen => (node.state, node.aux),
            LeafState::Unavailable => (VdevState::CannotOpen, VdevAux::OpenFailed),
        };
    });
}

fn aux(reason: LeafReason) -> VdevAux {
    match reason {
        LeafReason::None => VdevAux::None,
        LeafReason::OpenFailed => VdevAux::OpenFailed,
        // A leaf whose probe failed is reported like one with too many errors.
        LeafReason::ErrorsExceeded | LeafReason::IoFailures | LeafReason::Hung => {
            VdevAux::ErrorsExceeded
        }
        LeafReason::External => VdevAux::External,
        LeafReason::BadLabel => VdevAux::BadLabel,
    }
}

/// Whether a leaf is in use and lacks nothing.
pub(crate) fn is_complete(topology: &Topology, leaf: LeafId) -> bool {
    topology.is_in_use(leaf) && topology.health.missed(leaf).is_empty()
}

/// The number of txgs up to `last` in the ranges.
fn count(missed: &[Range<u64>], last: Txg) -> u64 {
    let end = last.0.saturating_add(1);
    let lengths = missed
        .iter()
        .map(|range| range.end.min(end).saturating_sub(range.start));
    lengths.fold(0, u64::saturating_add)
}

/// The keys of a leaf's configuration that describe its state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StoredState {
    offline: bool,
    faulted: bool,
    degraded: bool,
    removed: bool,
    aux_state: Option<&'static str>,
}

impl StoredState {
    /// The keys to store for a condition. `None` for a leaf that is only unavailable: its stored keys stay
    /// unchanged.
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
