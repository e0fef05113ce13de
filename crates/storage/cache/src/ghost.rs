//! Ghosts: what remains of evicted entries, to learn which of them should have been kept.

use crate::lists::Lists;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// What a ghost takes in memory, with its share of the table, in bytes.
const GHOST_BYTES: u64 = 56;
/// What the ghosts of a small cache may take in memory, in bytes.
const GHOSTS_BYTES_MIN: u64 = 16 << 10;

/// An evicted entry is known by its hash only. Two keys of the same hash are taken for one: a wrong guess
/// costs a little adaptation, and nothing else.
#[derive(Debug)]
pub(crate) struct Ghosts<const N: usize> {
    lists: Lists<u64, N>,
    table: HashTable<u32>,
}

impl<const N: usize> Ghosts<N> {
    pub(crate) fn new() -> Self {
        Self {
            lists: Lists::new(),
            table: HashTable::new(),
        }
    }

    /// The weight of the entries that were evicted from a list and are still known, in bytes.
    pub(crate) fn weight_bytes(&self, list: usize) -> u64 {
        self.lists.list(list).weight_bytes
    }

    /// Remembers an evicted entry. The ghosts of a list weigh at most half of `share_bytes`, and all ghosts take
    /// at most a 64th of it in memory; the oldest are forgotten.
    pub(crate) fn add(&mut self, list: usize, hash: u64, weight_bytes: u64, share_bytes: u64) {
        self.forget(hash);
        while self.weight_bytes(list) + weight_bytes > share_bytes / 2
            || (self.lists.len() + 1) * GHOST_BYTES > (share_bytes / 64).max(GHOSTS_BYTES_MIN)
        {
            // The heaviest list of the others gives way where this one has nothing.
            let longest = (0..N).max_by_key(|list| self.lists.list(*list).entries);
            let Some(oldest) =
                (self.lists.oldest(list)).or_else(|| self.lists.oldest(longest.unwrap_or(list)))
            else {
                return;
            };
            if let Some(hash) = self.lists.item(oldest).copied() {
                self.forget(hash);
            }
        }
        let Some(slot) = self.lists.push(list, hash, weight_bytes) else {
            return;
        };
        let lists = &self.lists;
        let hash_of = |slot: &u32| lists.item(*slot).copied().unwrap_or(0);
        self.table.insert_unique(hash, slot, hash_of);
    }

    /// Forgets an entry. Returns the list from which it was evicted, and its weight in bytes.
    pub(crate) fn forget(&mut self, hash: u64) -> Option<(usize, u64)> {
        let lists = &self.lists;
        let is_same = |slot: &u32| lists.item(*slot) == Some(&hash);
        let hash_of = |slot: &u32| lists.item(*slot).copied().unwrap_or(0);
        let Entry::Occupied(found) = self.table.entry(hash, is_same, hash_of) else {
            return None;
        };
        let (slot, _) = found.remove();
        let list = self.lists.list_of(slot);
        let (_, weight_bytes) = self.lists.remove(slot)?;
        Some((list, weight_bytes))
    }
}
