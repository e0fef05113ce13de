//! Datasets whose blocks are cloned into others, in txgs that are not written yet, and snapshots that are being read.
//!
//! A clone takes its reference when its txg is written. Until then the dataset that the block comes from must not be
//! destroyed by an earlier txg. A live head is protected by its changes ([`HeadDataset::lend_to`]); a snapshot has
//! none, so it is noted here.

use crate::DatasetError;
use crate::datasets::Datasets;
use crate::heads::head::HeadDataset;
use crate::mos::MosView;
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_ondisk::{BlockPointer, ObjectId, Txg};
use millpond_txg::Transaction;
use std::collections::{BTreeMap, BTreeSet};

/// The snapshots that blocks are cloned from, and those that are being destroyed.
#[derive(Debug, Default)]
pub(crate) struct Lending(Mutex<Lent, rank::Leaf>);

#[derive(Debug, Default)]
struct Lent {
    by_txg: BTreeMap<Txg, BTreeSet<ObjectId>>,
    /// Snapshots that a txg destroys which is not committed.
    gone: BTreeSet<ObjectId>,
    /// Snapshots that are being read, and by how many.
    in_use: BTreeMap<ObjectId, usize>,
}

impl Lending {
    /// Notes that blocks of a snapshot are cloned in `txg`. Returns false if it is being destroyed.
    fn lend(&self, snapshot: ObjectId, txg: Txg) -> bool {
        let mut lent = self.0.lock();
        if lent.gone.contains(&snapshot) {
            return false;
        }
        lent.by_txg.entry(txg).or_default().insert(snapshot);
        true
    }
    /// Prevents blocks of a snapshot from being cloned from now on, so that `txg` can destroy it. Returns false if a
    /// later txg clones some, or it is being read.
    pub(crate) fn close(&self, snapshot: ObjectId, txg: Txg) -> bool {
        let mut lent = self.0.lock();
        let mut later = lent.by_txg.range(Txg(txg.0.saturating_add(1))..);
        let is_lent = later.any(|(_, snapshots)| snapshots.contains(&snapshot));
        if is_lent || lent.in_use.contains_key(&snapshot) {
            return false;
        }
        lent.gone.insert(snapshot);
        true
    }
    /// Lets a snapshot be used again that is not destroyed after all.
    pub(crate) fn reopen(&self, snapshot: ObjectId) {
        self.0.lock().gone.remove(&snapshot);
    }
    /// Notes that a snapshot is being read. Returns false if it is being destroyed.
    fn begin_use(&self, snapshot: ObjectId) -> bool {
        let mut lent = self.0.lock();
        if lent.gone.contains(&snapshot) {
            return false;
        }
        let count = lent.in_use.entry(snapshot).or_default();
        *count = count.saturating_add(1);
        true
    }
    fn end_use(&self, snapshot: ObjectId) {
        let mut lent = self.0.lock();
        match lent.in_use.get_mut(&snapshot) {
            Some(count) if *count > 1 => *count = count.saturating_sub(1),
            _ => drop(lent.in_use.remove(&snapshot)),
        }
    }
    fn has_uses(&self) -> bool {
        !self.0.lock().in_use.is_empty()
    }
    /// Forgets what a committed txg has settled.
    pub(crate) fn committed(&self, txg: Txg) {
        let mut lent = self.0.lock();
        lent.by_txg.retain(|known, _| *known > txg);
        lent.gone.clear();
    }
}

impl HeadDataset {
    /// Keeps this dataset, whose blocks are cloned in `tx`, from being destroyed or rolled back by an earlier txg. The
    /// caller holds it since before it read the blocks' pointers.
    pub fn lend_to(&self, tx: &Transaction) {
        self.mark(tx.txg());
    }
}

/// A snapshot that cannot be destroyed until this is dropped.
#[derive(Debug)]
pub struct InUse {
    datasets: Arc<Datasets>,
    snapshot: ObjectId,
}

impl InUse {
    /// The object of the snapshot in the MOS.
    #[must_use]
    pub fn snapshot(&self) -> ObjectId {
        self.snapshot
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.datasets.lending.end_use(self.snapshot);
    }
}

impl Datasets {
    /// Whether snapshots are being read that cannot be destroyed: see [`Datasets::use_snapshot`].
    #[must_use]
    pub fn has_snapshots_in_use(&self) -> bool {
        self.lending.has_uses()
    }

    /// Keeps a snapshot from being destroyed, so that all its blocks can be read. `None` if there is no such snapshot any
    /// more.
    ///
    /// # Errors
    /// If the pool was closed.
    pub fn use_snapshot(
        self: &Arc<Self>,
        snapshot: ObjectId,
    ) -> Result<Option<InUse>, DatasetError> {
        let pool = self.pool()?;
        if !self.lending.begin_use(snapshot) {
            return Ok(None);
        }
        let in_use = InUse {
            datasets: Arc::clone(self),
            snapshot,
        };
        // From here on it cannot be destroyed, if it exists.
        let found = MosView { pool: &pool }.dataset(snapshot);
        let exists = found.is_ok_and(|phys| phys.children_count > 0);
        Ok(exists.then_some(in_use))
    }

    /// Keeps a snapshot, whose blocks are cloned in `tx`, from being destroyed by an earlier txg.
    ///
    /// `root` is its block pointer. Returns false if there is no such snapshot any more, or the dataset is a head:
    /// its blocks may be gone.
    ///
    /// # Errors
    /// If the pool was closed.
    pub fn lend_snapshot(
        &self,
        tx: &Transaction,
        snapshot: ObjectId,
        root: &BlockPointer,
    ) -> Result<bool, DatasetError> {
        let pool = self.pool()?;
        if !self.lending.lend(snapshot, tx.txg()) {
            return Ok(false);
        }
        // From here on it cannot be destroyed, if it exists.
        let found = MosView { pool: &pool }.dataset(snapshot);
        Ok(found.is_ok_and(|phys| phys.children_count > 0 && phys.block_pointer == *root))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lent_snapshot_is_destroyed_by_no_earlier_txg() {
        let lending = Lending::default();
        let snapshot = ObjectId(9);
        assert!(lending.lend(snapshot, Txg(12)));
        assert!(!lending.close(snapshot, Txg(11)));
        assert!(lending.close(ObjectId(8), Txg(11)));
        // In its own txg references are added before anything is freed.
        assert!(lending.close(snapshot, Txg(12)));
        assert!(!lending.lend(snapshot, Txg(13)), "it is being destroyed");
        lending.committed(Txg(12));
        assert!(lending.lend(snapshot, Txg(14)), "another with this number");
        assert!(!lending.close(snapshot, Txg(13)));
    }

    #[test]
    fn a_snapshot_that_is_read_is_not_destroyed() {
        let lending = Lending::default();
        let snapshot = ObjectId(9);
        assert!(lending.begin_use(snapshot) && lending.begin_use(snapshot));
        lending.end_use(snapshot);
        assert!(!lending.close(snapshot, Txg(11)));
        lending.end_use(snapshot);
        assert!(lending.close(snapshot, Txg(11)));
        assert!(!lending.begin_use(snapshot), "it is being destroyed");
    }
}
