//! What the groups are going to write, as opposed to what they keep in memory.

use super::{TxgGroups, TxgRequest};
use millpond_ondisk::Txg;

/// What all groups are going to write, with the estimates of active transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnderWay {
    /// Dirty bytes of everything that is not counted as blocks.
    pub other_bytes: u64,
    /// The blocks that are counted whole, times their copies. Further changes of a block add nothing.
    pub stored_bytes: u64,
}

/// The estimate of one transaction, or of all active ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Announced {
    pub(super) bytes: u64,
    data_bytes: u64,
    stored_bytes: u64,
}

impl Announced {
    pub(super) fn by(request: &TxgRequest) -> Self {
        Self {
            bytes: request.estimate_bytes,
            data_bytes: request.data_bytes,
            stored_bytes: request.stored_bytes,
        }
    }
    pub(super) fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.data_bytes = self.data_bytes.saturating_add(other.data_bytes);
        self.stored_bytes = self.stored_bytes.saturating_add(other.stored_bytes);
    }
    pub(super) fn remove(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_sub(other.bytes);
        self.data_bytes = self.data_bytes.saturating_sub(other.data_bytes);
        self.stored_bytes = self.stored_bytes.saturating_sub(other.stored_bytes);
    }
}

impl TxgGroups {
    /// What all groups are going to write.
    #[must_use]
    pub fn under_way(&self) -> UnderWay {
        let state = self.state.lock();
        let mut sum = UnderWay::default();
        for group in &state.groups {
            let other = group.dirty_bytes.saturating_sub(group.data_bytes);
            let held = group.held.bytes.saturating_sub(group.held.data_bytes);
            let stored = group.stored_bytes.saturating_add(group.held.stored_bytes);
            sum.other_bytes = sum.other_bytes.saturating_add(other.saturating_add(held));
            sum.stored_bytes = sum.stored_bytes.saturating_add(stored);
        }
        sum
    }

    pub(crate) fn charge_blocks(&self, txg: Txg, data_bytes: u64, stored_bytes: u64) {
        let mut state = self.state.lock();
        let group = state.group(txg);
        group.data_bytes = group.data_bytes.saturating_add(data_bytes);
        group.stored_bytes = group.stored_bytes.saturating_add(stored_bytes);
    }
}
