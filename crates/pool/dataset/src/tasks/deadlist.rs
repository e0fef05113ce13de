//! Changes deadlists: the blocks that the previous snapshot references and this dataset does not.
//!
//! Page `docs/format/deadlist.md`.

use crate::heads::space::changed;
use crate::mos::{During, contradiction};
use crate::tasks::context::SyncTaskContext;
use crate::tasks::deadlist_cache::Entries;
use millpond_env::sync::Arc;
use millpond_ondisk::dsl::{hex_key, hex_key_number};
use millpond_ondisk::{BlockPointer, DeadlistPhys, Endian, ObjectId, ObjectType, Txg};
use millpond_pool::PoolError;
use millpond_pool::{
    BpObject, SpaceChange, acquire_shared_empty, is_shared_empty, new_empty_list,
    release_shared_empty, shared_empty,
};
use std::collections::BTreeMap;

const WHAT: &str = "deadlist";

impl SyncTaskContext<'_> {
    /// Creates a deadlist without entries, in the form of the pool's version.
    pub(crate) fn create_deadlist(&self) -> Result<ObjectId, PoolError> {
        if !self.version().has_split_deadlists() {
            return BpObject::create(self.ctx).map(|list| list.id());
        }
        self.create_zap_with_bonus(
            ObjectType::DEADLIST,
            ObjectType::DEADLIST_HEADER,
            DeadlistPhys::default().encode(),
        )
    }

    /// The deadlist's totals.
    pub(crate) fn deadlist_space(&self, deadlist: ObjectId) -> Result<SpaceChange, PoolError> {
        if self.is_old_deadlist(deadlist)? {
            return self.old_deadlist_space(deadlist);
        }
        let phys = self.deadlist_phys(deadlist)?;
        Ok(stored(
            phys.used_bytes,
            phys.compressed_bytes,
            phys.uncompressed_bytes,
        ))
    }

    fn deadlist_phys(&self, deadlist: ObjectId) -> Result<DeadlistPhys, PoolError> {
        let bonus = self.bonus(deadlist, ObjectType::DEADLIST_HEADER, WHAT)?;
        DeadlistPhys::decode(&bonus, Endian::Little).during(WHAT)
    }

    /// The totals of a list, including its sub-lists.
    pub(crate) fn list_space(&self, list: ObjectId) -> Result<SpaceChange, PoolError> {
        let phys = BpObject::open(self.ctx, list)?.phys()?;
        Ok(stored(
            phys.bytes,
            phys.compressed_bytes,
            phys.uncompressed_bytes,
        ))
    }

    /// Changes a deadlist's totals. Only a livelist's totals may be negative within a txg.
    pub(crate) fn add_to_deadlist(
        &self,
        deadlist: ObjectId,
        space: SpaceChange,
    ) -> Result<(), PoolError> {
        let mut phys = self.deadlist_phys(deadlist)?;
        let below = "its total below 0";
        phys.used_bytes = changed(phys.used_bytes, space.used, below).during(WHAT)?;
        phys.compressed_bytes =
            changed(phys.compressed_bytes, space.compressed, below).during(WHAT)?;
        phys.uncompressed_bytes =
            changed(phys.uncompressed_bytes, space.uncompressed, below).during(WHAT)?;
        self.put_bonus(deadlist, phys.encode(), WHAT)
    }

    /// The entries of a deadlist that is split by txg. Names that are not hexadecimal numbers are ignored.
    pub(crate) fn deadlist_entries(&self, deadlist: ObjectId) -> Result<Arc<Entries>, PoolError> {
        if let Some(entries) = self.datasets.deadlists.get(deadlist) {
            return Ok(entries);
        }
        if self.is_old_deadlist(deadlist)? {
            return Err(contradiction(WHAT, "it is not split by txg"));
        }
        let entries = self.entries(deadlist)?;
        let entries: Entries = entries
            .iter()
            .filter_map(|entry| {
                Some((
                    Txg(hex_key_number(&entry.name)?),
                    ObjectId(entry.value.first()?),
                ))
            })
            .collect();
        let entries = Arc::new(entries);
        let cached = Arc::clone(&entries);
        self.datasets.deadlists.put(deadlist, cached);
        Ok(entries)
    }

    /// Adds an entry to a deadlist or replaces its list.
    pub(crate) fn put_deadlist_entry(
        &self,
        deadlist: ObjectId,
        key: Txg,
        list: ObjectId,
    ) -> Result<(), PoolError> {
        self.update(deadlist, &hex_key(key.0), list.0)?;
        self.datasets.deadlists.change(deadlist, |entries| {
            entries.insert(key, list);
        });
        Ok(())
    }

    /// Removes an entry from a deadlist, if there is one. Its list stays.
    pub(crate) fn drop_deadlist_entry(
        &self,
        deadlist: ObjectId,
        key: Txg,
    ) -> Result<(), PoolError> {
        self.remove(deadlist, &hex_key(key.0))?;
        self.datasets.deadlists.change(deadlist, |entries| {
            entries.remove(&key);
        });
        Ok(())
    }

    /// Inserts dead pointers, each into the entry of its birth txg if there are entries. Returns their space.
    pub(crate) fn insert_dead(
        &self,
        deadlist: ObjectId,
        pointers: &[BlockPointer],
    ) -> Result<SpaceChange, PoolError> {
        if pointers.is_empty() {
            return Ok(SpaceChange::default());
        }
        if self.is_old_deadlist(deadlist)? {
            return self.append_dead(deadlist, pointers);
        }
        let mut sum = SpaceChange::default();
        let sorted = buckets(&*self.deadlist_entries(deadlist)?, pointers)?;
        for (key, bucket) in sorted {
            let list = self.writable_list(deadlist, key)?;
            for pointer in &bucket {
                sum += self.ctx.space_of(pointer);
            }
            let marked: Vec<_> = bucket.into_iter().map(|pointer| (pointer, false)).collect();
            BpObject::open(self.ctx, list)?.append_all(self.ctx, &marked)?;
        }
        self.add_to_deadlist(deadlist, sum)?;
        Ok(sum)
    }

    /// The list of an entry. Replaces the shared empty list by a new one.
    fn writable_list(&self, deadlist: ObjectId, key: Txg) -> Result<ObjectId, PoolError> {
        let list = self.deadlist_entries(deadlist)?.get(&key).copied();
        let list = list.ok_or_else(|| contradiction(WHAT, "an entry is missing"))?;
        if !is_shared_empty(self.ctx, list)? {
            return Ok(list);
        }
        release_shared_empty(self.ctx, 1)?;
        let own = BpObject::create(self.ctx)?.id();
        self.put_deadlist_entry(deadlist, key, own)?;
        Ok(own)
    }

    /// Creates a deadlist with the keys of `from` below `limit` and `more` keys, all empty. `newest` is the
    /// snapshot before the dataset that gets it: an old deadlist has no keys, so they come from its past.
    pub(crate) fn clone_deadlist(
        &self,
        from: ObjectId,
        newest: Option<ObjectId>,
        limit: Option<Txg>,
        more: &[Txg],
    ) -> Result<ObjectId, PoolError> {
        if !self.version().has_split_deadlists() {
            return self.create_deadlist();
        }
        let mut keys: Vec<Txg> = match self.is_old_deadlist(from)? {
            true => self.past_keys(newest)?,
            false => self.deadlist_entries(from)?.keys().copied().collect(),
        };
        keys.retain(|key| limit.is_none_or(|limit| *key < limit));
        keys.extend(more);
        keys.sort_unstable();
        keys.dedup();
        self.create_empty_entries(&keys)
    }

    /// Creates a deadlist with these keys, all empty.
    fn create_empty_entries(&self, keys: &[Txg]) -> Result<ObjectId, PoolError> {
        if keys.is_empty() {
            return self.create_deadlist();
        }
        let shared = acquire_shared_empty(self.ctx, keys.len())?;
        let mut entries = vec![];
        for key in keys {
            let list = match shared {
                Some(shared) => shared,
                None => new_empty_list(self.ctx)?,
            };
            entries.push((*key, list));
        }
        let deadlist = self.allocate(
            ObjectType::DEADLIST,
            ObjectType::DEADLIST_HEADER,
            DeadlistPhys::default().encode(),
        )?;
        let named = entries.iter().map(|(key, list)| (hex_key(key.0), list.0));
        let named: Vec<(String, u64)> = named.collect();
        (self.zap(deadlist)?)
            .create_with(&self.new_zap(0), &named)
            .during(WHAT)?;
        let entries = Arc::new(entries.into_iter().collect());
        self.datasets.deadlists.put(deadlist, entries);
        Ok(deadlist)
    }

    /// Removes an entry and moves its content to the next lower entry. A missing key is not an error.
    pub(crate) fn remove_deadlist_key(
        &self,
        deadlist: ObjectId,
        key: Txg,
    ) -> Result<(), PoolError> {
        if self.is_old_deadlist(deadlist)? {
            return Ok(());
        }
        let entries = self.deadlist_entries(deadlist)?;
        let Some(list) = entries.get(&key).copied() else {
            return Ok(());
        };
        let below = key_below(&entries, key)
            .ok_or_else(|| contradiction(WHAT, "no entry below the one to be removed"))?;
        drop(entries);
        let shared = shared_empty(self.ctx)?;
        let empty = self.append_to_entry(deadlist, below, list, shared)?;
        self.drop_deadlist_entry(deadlist, key)?;
        release_shared_empty(self.ctx, empty)
    }

    /// Gives a whole list to an entry. If the list is empty, it is only released. Returns how many references to the
    /// shared empty list the caller must release.
    fn append_to_entry(
        &self,
        deadlist: ObjectId,
        key: Txg,
        list: ObjectId,
        shared: Option<ObjectId>,
    ) -> Result<usize, PoolError> {
        if Some(list) == shared {
            return Ok(1);
        }
        if BpObject::open(self.ctx, list)?.phys()?.is_empty() {
            return BpObject::free(self.ctx, list).map(|()| 0);
        }
        let own = self.deadlist_entries(deadlist)?.get(&key).copied();
        let own = own.ok_or_else(|| contradiction(WHAT, "an entry is missing"))?;
        if Some(own) == shared {
            // The list itself takes the place of the empty one: nothing is copied.
            self.put_deadlist_entry(deadlist, key, list)?;
            return Ok(1);
        }
        BpObject::open(self.ctx, own)?.append_list(self.ctx, list)?;
        Ok(0)
    }

    /// Moves all content of another deadlist into this one, each list to the largest key at or below its
    /// own, and frees the other one.
    pub(crate) fn merge_deadlist(&self, into: ObjectId, other: ObjectId) -> Result<(), PoolError> {
        if self.is_old_deadlist(other)? {
            self.merge_old_deadlist(into, other)?;
            return self.free_deadlist(other);
        }
        let space = self.deadlist_space(other)?;
        let shared = shared_empty(self.ctx)?;
        let entries = self.deadlist_entries(into)?;
        // Most lists are the shared empty one. Its references are released all at once.
        let (mut moves, mut empty) = (vec![], 0);
        for (key, list) in self.deadlist_entries(other)?.iter() {
            let to = key_below(&entries, Txg(key.0.saturating_add(1)));
            let to = to.ok_or_else(|| contradiction(WHAT, "no entry to merge into"))?;
            match Some(*list) == shared {
                true => empty += 1,
                false => moves.push((to, *list)),
            }
        }
        drop(entries);
        for (to, list) in moves {
            empty += self.append_to_entry(into, to, list, shared)?;
        }
        release_shared_empty(self.ctx, empty)?;
        self.add_to_deadlist(into, space)?;
        self.free_deadlist_table(other)
    }

    /// Moves the content of all entries from `from` on to a list, and returns its space.
    pub(crate) fn move_dead_from(
        &self,
        deadlist: ObjectId,
        from: Txg,
        to: ObjectId,
    ) -> Result<SpaceChange, PoolError> {
        let (mut moved, mut empty) = (SpaceChange::default(), 0);
        let target = BpObject::open(self.ctx, to)?;
        let shared = shared_empty(self.ctx)?;
        let chosen: Vec<(Txg, ObjectId)> = {
            let entries = self.deadlist_entries(deadlist)?;
            entries.range(from..).map(|(k, list)| (*k, *list)).collect()
        };
        // Only a head's deadlist loses the keys of destroyed snapshots. So a snapshot after many of them has an
        // entry for each, with the shared empty list, whose references are released all at once.
        for (key, list) in chosen {
            if Some(list) == shared {
                empty += 1;
            } else {
                moved += self.list_space(list)?;
                target.append_list(self.ctx, list)?;
            }
            self.drop_deadlist_entry(deadlist, key)?;
        }
        release_shared_empty(self.ctx, empty)?;
        self.add_to_deadlist(deadlist, -moved)?;
        Ok(moved)
    }

    /// The space of blocks born after `low` and up to `high` (`None`: no upper limit). Both must be keys or
    /// outside the range of keys.
    pub(crate) fn dead_space_between(
        &self,
        deadlist: ObjectId,
        low: Txg,
        high: Option<Txg>,
    ) -> Result<SpaceChange, PoolError> {
        if self.is_old_deadlist(deadlist)? {
            return self.old_space_between(deadlist, low, high);
        }
        let mut sum = SpaceChange::default();
        let shared = shared_empty(self.ctx)?;
        for (key, list) in self.deadlist_entries(deadlist)?.range(low..) {
            if high.is_some_and(|high| *key >= high) {
                break;
            }
            if Some(*list) != shared {
                sum += self.list_space(*list)?;
            }
        }
        Ok(sum)
    }

    /// Frees a deadlist, but not the blocks in it.
    pub(crate) fn free_deadlist(&self, deadlist: ObjectId) -> Result<(), PoolError> {
        if self.is_old_deadlist(deadlist)? {
            return BpObject::free(self.ctx, deadlist);
        }
        let shared = shared_empty(self.ctx)?;
        let mut empty = 0;
        for list in self.deadlist_entries(deadlist)?.values() {
            match Some(*list) == shared {
                true => empty += 1,
                false => BpObject::free(self.ctx, *list)?,
            }
        }
        release_shared_empty(self.ctx, empty)?;
        self.free_deadlist_table(deadlist)
    }

    fn free_deadlist_table(&self, deadlist: ObjectId) -> Result<(), PoolError> {
        self.datasets.deadlists.forget(deadlist);
        self.free_object(deadlist)
    }
}

/// The largest key of a deadlist below a txg: the key of the blocks born in it.
fn key_below(entries: &Entries, txg: Txg) -> Option<Txg> {
    entries.range(..txg).next_back().map(|(key, _)| *key)
}

/// Groups pointers by the entries that they belong to, keeping their order.
pub(crate) fn buckets(
    entries: &Entries,
    pointers: &[BlockPointer],
) -> Result<BTreeMap<Txg, Vec<BlockPointer>>, PoolError> {
    let mut sorted: BTreeMap<Txg, Vec<BlockPointer>> = BTreeMap::new();
    for pointer in pointers {
        let key = key_below(entries, pointer.allocation_birth())
            .ok_or_else(|| contradiction(WHAT, "no entry is old enough for a block"))?;
        sorted.entry(key).or_default().push(*pointer);
    }
    Ok(sorted)
}

pub(crate) fn stored(used: u64, compressed: u64, uncompressed: u64) -> SpaceChange {
    use crate::heads::space::signed;
    SpaceChange {
        used: signed(used),
        compressed: signed(compressed),
        uncompressed: signed(uncompressed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_go_to_the_keys_that_cover_them() {
        // Head with keys 0, 1, 0x1c, 0x2a: a block born at 28 belongs to key 1, one born at 29 to 0x1c.
        let keys = [0, 1, 28, 42].map(Txg);
        let entries = keys.into_iter().map(|key| (key, ObjectId(1))).collect();
        assert_eq!(key_below(&entries, Txg(28)), Some(Txg(1)));
        assert_eq!(key_below(&entries, Txg(29)), Some(Txg(28)));
        assert_eq!(key_below(&entries, Txg(1000)), Some(Txg(42)));
        assert_eq!(key_below(&entries, Txg(0)), None);
        assert_eq!(key_below(&Entries::new(), Txg(5)), None);
    }
}
