//! The witness that a change belongs to a group.

use crate::TxgGroups;
use millpond_env::sync::Arc;
use millpond_ondisk::Txg;

/// A place in a group. While one from [`TxgGroups::begin`] lives, its group is not synced; dropping it
/// ends it. The one that [`crate::SyncingTxg::transaction`] gives is for changes made while the
/// group is being written.
///
/// Do not begin another transaction while holding one: at the limit of dirty data the second would
/// wait for the first's group.
#[derive(Debug)]
pub struct Transaction {
    groups: Arc<TxgGroups>,
    txg: Txg,
    held_bytes: u64,
    is_syncing: bool,
}

impl Transaction {
    pub(crate) fn new(groups: Arc<TxgGroups>, txg: Txg, held_bytes: u64, is_syncing: bool) -> Self {
        Self {
            groups,
            txg,
            held_bytes,
            is_syncing,
        }
    }

    /// The group that the changes belong to.
    #[must_use]
    pub fn txg(&self) -> Txg {
        self.txg
    }
    /// Whether the group is being written already: the sync thread's own changes.
    #[must_use]
    pub fn is_syncing(&self) -> bool {
        self.is_syncing
    }
    /// The groups it belongs to.
    #[must_use]
    pub fn groups(&self) -> &Arc<TxgGroups> {
        &self.groups
    }
    /// Notes that so many bytes became dirty. Never waits. What the syncing thread changes is not
    /// counted: it is written at once.
    pub fn charge(&self, bytes: u64) {
        if !self.is_syncing {
            self.groups.charge(self.txg, bytes);
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.is_syncing {
            self.groups.end(self.txg, self.held_bytes);
        }
    }
}
