//! Transactions: each change names the transaction, and so the group, that it belongs to.

use crate::TxgGroups;
use millpond_env::rank::Held;
use millpond_env::sync::Arc;
use millpond_ondisk::Txg;

/// A change's membership in a group.
///
/// While a transaction from [`TxgGroups::begin`] exists, its group is not synced. Dropping the transaction
/// ends it. A transaction from [`crate::SyncingTxg::transaction`] is for changes made while the group is
/// being written.
///
/// Do not begin another transaction while holding one: at the dirty data limit, the second would wait for the
/// first one's group.
#[derive(Debug)]
pub struct Transaction {
    groups: Arc<TxgGroups>,
    txg: Txg,
    held_bytes: u64,
    /// `None` for changes made while the group is being written.
    rank: Option<Held>,
}

impl Transaction {
    pub(crate) fn new(
        groups: Arc<TxgGroups>,
        txg: Txg,
        held_bytes: u64,
        rank: Option<Held>,
    ) -> Self {
        Self {
            groups,
            txg,
            held_bytes,
            rank,
        }
    }

    /// The group that the changes belong to.
    #[must_use]
    pub fn txg(&self) -> Txg {
        self.txg
    }
    /// Whether the group is already being written, so that this is a change by the sync thread.
    #[must_use]
    pub fn is_syncing(&self) -> bool {
        self.rank.is_none()
    }
    /// The transaction groups of the pool.
    #[must_use]
    pub fn groups(&self) -> &Arc<TxgGroups> {
        &self.groups
    }
    /// Records that this many bytes became dirty. Never waits. Changes by the sync thread are not counted,
    /// because they are written at once.
    pub fn charge(&self, bytes: u64) {
        if !self.is_syncing() {
            self.groups.charge(self.txg, bytes);
        }
    }
    /// Adds bytes that are not in memory, but will be written with its group: all copies of the rest of a block of which a
    /// part is dirty.
    pub fn charge_rest(&self, bytes: u64) {
        if !self.is_syncing() && bytes > 0 {
            self.groups.charge_rest(self.txg, bytes);
        }
    }
}

/// A change that has begun and must be completed. See [`Transaction::unfinished`].
#[derive(Debug)]
#[must_use = "dropping it says that the change is half made"]
pub struct Unfinished {
    groups: Arc<TxgGroups>,
    is_done: bool,
}

impl Unfinished {
    /// Marks the change as complete.
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
    /// Marks a change as begun but incomplete.
    ///
    /// If the result is dropped without [`Unfinished::done`], because of an error or a panic, the group
    /// contains half a change. It is then never written, and the pool stays suspended until it is opened
    /// again.
    pub fn unfinished(&self) -> Unfinished {
        Unfinished {
            groups: Arc::clone(&self.groups),
            is_done: false,
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.is_syncing() {
            if millpond_env::thread::is_panicking() {
                // It is unknown how many of its changes were made.
                self.groups.ruin("a panic interrupted a change");
            }
            self.groups.end(self.txg, self.held_bytes);
        }
    }
}
