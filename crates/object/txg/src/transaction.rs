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

/// A change that has begun and must become whole: see [`Transaction::unfinished`].
#[derive(Debug)]
#[must_use = "dropping it says that the change is half made"]
pub struct Unfinished {
    groups: Arc<TxgGroups>,
    is_done: bool,
}

impl Unfinished {
    /// The change is whole.
    pub fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_done {
            let words = "a change failed when half of it was made";
            self.groups.ruin(words);
        }
    }
}

impl Transaction {
    /// Says that a first part of a change was made, and the rest must follow. If what this gives is dropped without
    /// [`Unfinished::done`] (an error, a panic), half of a change is in the group: it is never written, and the
    /// pool stays suspended until it is opened again.
    pub fn unfinished(&self) -> Unfinished {
        Unfinished {
            groups: Arc::clone(&self.groups),
            is_done: false,
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.is_syncing {
            if millpond_env::thread::is_panicking() {
                // Nobody knows how far its changes came.
                self.groups.ruin("a panic interrupted a change");
            }
            self.groups.end(self.txg, self.held_bytes);
        }
    }
}
