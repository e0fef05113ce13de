//! Indexes of the names in directories.
//!
//! A directory of up to 2047 names is a microzap, in which finding a name means looking at every entry. A
//! directory that is used often therefore has an index in memory.

use crate::error::FileError;
use millpond_env::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use millpond_env::sync::{Arc, OnceLock};
use millpond_zap::{MicroIndex, Zap, ZapError};

/// After this many searches in a directory its names are indexed. An index costs as much as five searches.
const SEARCHES_UNINDEXED: u32 = 8;
/// While the indexes of a file system have this many slots, no more are made. Each slot takes about 12 bytes.
const SLOTS_MAX: usize = 1 << 20;

/// Counts the slots of the indexes of a file system.
#[derive(Debug, Clone, Default)]
pub(crate) struct IndexBudget(Arc<AtomicUsize>);

impl IndexBudget {
    fn has_room(&self) -> bool {
        self.0.load(Ordering::Relaxed) < SLOTS_MAX
    }
    fn share(&self, slots: usize) -> Share {
        self.0.fetch_add(slots, Ordering::Relaxed);
        let budget = self.clone();
        Share { budget, slots }
    }
}

/// One index of the budget, with the slots that it had when it was made.
#[derive(Debug)]
struct Share {
    budget: IndexBudget,
    slots: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.slots, Ordering::Relaxed);
    }
}

/// The index of one directory, made when it pays. Lies under the lock of the directory's entries.
#[derive(Debug, Default)]
pub(crate) struct NameIndex {
    made: OnceLock<(MicroIndex, Share)>,
    searches: AtomicU32,
    is_off: bool,
}

impl NameIndex {
    /// For a directory whose table also changes elsewhere, without this lock.
    pub(crate) fn off() -> Self {
        Self {
            is_off: true,
            ..Self::default()
        }
    }

    /// The index for a search in `table`, which is the directory's.
    pub(crate) fn get(&self, table: &Zap, budget: &IndexBudget) -> Option<&MicroIndex> {
        if self.made.get().is_none()
            // Corrupt tables are for the search to report.
            && let Ok(Some(made)) = self.make(table, budget)
        {
            // Another reader may have been faster.
            let _ = self.made.set(made);
        }
        Some(&self.made.get()?.0)
    }

    /// Makes a change to the table with `change`, which gets the index, if there is one, and keeps it right.
    pub(crate) fn change<R>(
        &mut self,
        change: impl FnOnce(&mut Option<MicroIndex>) -> Result<R, FileError>,
    ) -> Result<R, FileError> {
        let (mut index, share) = self.made.take().unzip();
        let outcome = change(&mut index)?;
        if let (Some(index), Some(share)) = (index, share) {
            self.made = OnceLock::from((index, share));
        }
        Ok(outcome)
    }

    fn make(
        &self,
        table: &Zap,
        budget: &IndexBudget,
    ) -> Result<Option<(MicroIndex, Share)>, ZapError> {
        let searches = self.searches.load(Ordering::Relaxed);
        if self.is_off || searches < SEARCHES_UNINDEXED {
            self.searches
                .store(searches.saturating_add(1), Ordering::Relaxed);
            return Ok(None);
        }
        if !budget.has_room() {
            return Ok(None);
        }
        Ok(table.micro_index()?.map(|index| {
            let share = budget.share(index.slots());
            (index, share)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_share_a_budget_of_slots() {
        let budget = IndexBudget::default();
        let mut shares: Vec<Share> = (0..512).map(|_| budget.share(2047)).collect();
        assert!(budget.has_room());
        shares.push(budget.share(16_383));
        assert!(!budget.has_room());
        shares.pop();
        assert!(budget.has_room());
        shares.clear();
        assert_eq!(budget.0.load(Ordering::Relaxed), 0);
    }
}
