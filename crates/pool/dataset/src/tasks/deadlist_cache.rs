//! The entries of deadlists in memory.
//!
//! A deadlist has an entry for each snapshot before it, and every txg in which blocks die needs them, as do taking and
//! destroying a snapshot. Reading a table of thousands of entries each time would take longer than all the rest.

use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_ondisk::{ObjectId, Txg};
use std::collections::BTreeMap;

/// The entries of a deadlist: key to list, ascending.
pub(crate) type Entries = BTreeMap<Txg, ObjectId>;

/// The most entries of all deadlists together, about 32 bytes each. One deadlist is kept in any case.
const ENTRIES_MAX: usize = 1 << 18;
/// The most deadlists: finding one looks at all.
const LISTS_MAX: usize = 64;

/// The entries of the deadlists that were used last. Only the thread that changes the MOS uses it, and it changes a
/// deadlist's table and these entries together.
#[derive(Debug, Default)]
pub(crate) struct DeadlistCache {
    /// The one that was used last is at the end.
    lists: Mutex<Vec<(ObjectId, Arc<Entries>)>, rank::Leaf>,
}

impl DeadlistCache {
    /// The entries of a deadlist.
    pub(crate) fn get(&self, deadlist: ObjectId) -> Option<Arc<Entries>> {
        let mut lists = self.lists.lock();
        let at = lists.iter().position(|(id, _)| *id == deadlist)?;
        let found = lists.remove(at);
        let entries = Arc::clone(&found.1);
        lists.push(found);
        Some(entries)
    }

    /// Keeps the entries of a deadlist, in place of those that were not used for longest.
    pub(crate) fn put(&self, deadlist: ObjectId, entries: Arc<Entries>) {
        let mut lists = self.lists.lock();
        lists.retain(|(id, _)| *id != deadlist);
        lists.push((deadlist, entries));
        let mut total: usize = lists.iter().map(|(_, entries)| entries.len()).sum();
        while lists.len() > 1 && (total > ENTRIES_MAX || lists.len() > LISTS_MAX) {
            total -= lists.remove(0).1.len();
        }
    }

    /// Changes the entries of a deadlist whose table has been changed in the same way.
    pub(crate) fn change(&self, deadlist: ObjectId, change: impl FnOnce(&mut Entries)) {
        let mut lists = self.lists.lock();
        if let Some((_, entries)) = lists.iter_mut().find(|(id, _)| *id == deadlist) {
            change(Arc::make_mut(entries));
        }
    }

    /// Forgets a deadlist that is freed: its number may get another object.
    pub(crate) fn forget(&self, deadlist: ObjectId) {
        self.lists.lock().retain(|(id, _)| *id != deadlist);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: u64) -> Arc<Entries> {
        Arc::new((0..count).map(|key| (Txg(key), ObjectId(1))).collect())
    }

    #[test]
    fn what_was_not_used_for_longest_makes_room() {
        let cache = DeadlistCache::default();
        let third = ENTRIES_MAX as u64 / 3;
        for id in 1..=3 {
            cache.put(ObjectId(id), entries(third));
        }
        assert!(cache.get(ObjectId(1)).is_some());
        cache.put(ObjectId(4), entries(third));
        assert!(cache.get(ObjectId(2)).is_none());
        assert!(cache.get(ObjectId(1)).is_some());
        // One that is too large itself stays alone.
        cache.put(ObjectId(5), entries(ENTRIES_MAX as u64 + 1));
        assert!(cache.get(ObjectId(5)).is_some());
        assert!(cache.get(ObjectId(4)).is_none());
    }

    #[test]
    fn a_change_is_seen_by_later_readers_only() {
        let cache = DeadlistCache::default();
        cache.put(ObjectId(1), entries(2));
        let before = cache.get(ObjectId(1));
        cache.change(ObjectId(1), |entries| {
            entries.insert(Txg(9), ObjectId(2));
        });
        assert_eq!(before.map(|entries| entries.len()), Some(2));
        assert_eq!(cache.get(ObjectId(1)).map(|entries| entries.len()), Some(3));
        cache.forget(ObjectId(1));
        assert!(cache.get(ObjectId(1)).is_none());
    }
}
