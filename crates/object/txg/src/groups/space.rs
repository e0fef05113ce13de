//! What the groups are going to write, as opposed to what they keep in memory.

use super::TxgGroups;
use millpond_ondisk::Txg;

impl TxgGroups {
    /// The bytes that all groups are going to write and do not keep in memory: the rests of the blocks of which only parts
    /// are dirty, times their copies.
    #[must_use]
    pub fn rest_bytes(&self) -> u64 {
        let state = self.state.lock();
        let rests = state.groups.iter().map(|group| group.rest_bytes);
        rests.fold(0, u64::saturating_add)
    }

    pub(crate) fn charge_rest(&self, txg: Txg, bytes: u64) {
        let mut state = self.state.lock();
        let group = state.group(txg);
        group.rest_bytes = group.rest_bytes.saturating_add(bytes);
    }
}
