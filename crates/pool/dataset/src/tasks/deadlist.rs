//! Changes deadlists: the blocks that the previous snapshot references and this dataset does not.
//!
//! Page `docs/format/deadlist.md`.

use crate::heads::space::changed;
use crate::mos::{During, contradiction};
use crate::tasks::context::SyncTaskContext;
use millpond_ondisk::dsl::{hex_key, hex_key_number};
use millpond_ondisk::{
    BlockPointer, DeadlistPhys, Endian, ObjectId, ObjectType, Txg, deadlist_key_for_birth,
};
use millpond_pool::PoolError;
use millpond_pool::{BpObject, SpaceChange, is_shared_empty, new_empty_list};
use std::collections::BTreeMap;

const WHAT: &str = "deadlist";

/// The entries of a deadlist: key to list, ascending.
pub(crate) type Entries = BTreeMap<Txg, ObjectId>;

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
    pub(crate) fn deadlist_entries(&self, deadlist: ObjectId) -> Result<Entries, PoolError> {
        if self.is_old_deadlist(deadlist)? {
            return Err(contradiction(WHAT, "it is not split by txg"));
        }
        let entries = self.entries(deadlist)?;
        Ok(entries
            .iter()
            .filter_map(|entry| {
                Some((
                    Txg(hex_key_number(&entry.name)?),
                    ObjectId(entry.value.first()?),
                ))
            })
            .collect())
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
        let mut entries = self.deadlist_entries(deadlist)?;
        let mut sum = SpaceChange::default();
        for (key, bucket) in buckets(&entries, pointers)? {
            let list = self.writable_list(deadlist, &mut entries, key)?;
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
    pub(crate) fn writable_list(
        &self,
        deadlist: ObjectId,
        entries: &mut Entries,
        key: Txg,
    ) -> Result<ObjectId, PoolError> {
        let list = entries
            .get(&key)
            .copied()
            .ok_or_else(|| contradiction(WHAT, "an entry is missing"))?;
        if !is_shared_empty(self.ctx, list)? {
            return Ok(list);
        }
        millpond_pool::release_shared_empty(self.ctx)?;
        let own = BpObject::create(self.ctx)?.id();
        self.update(deadlist, &hex_key(key.0), own.0)?;
        entries.insert(key, own);
        Ok(own)
    }

    /// Creates a deadlist with the keys of `from` below `limit`, all empty. `newest` is the snapshot before
    /// the dataset that gets it: an old deadlist has no keys, so they come from its past.
    pub(crate) fn clone_deadlist(
        &self,
        from: ObjectId,
        newest: Option<ObjectId>,
        limit: Option<Txg>,
    ) -> Result<ObjectId, PoolError> {
        let made = self.create_deadlist()?;
        if !self.version().has_split_deadlists() {
            return Ok(made);
        }
        let entries = match self.is_old_deadlist(from)? {
            true => self.keys_of_past(newest)?,
            false => self.deadlist_entries(from)?,
        };
        for key in entries.keys() {
            if limit.is_none_or(|limit| *key < limit) {
                self.add_deadlist_key(made, *key)?;
            }
        }
        Ok(made)
    }

    /// Adds an empty entry, unless the key exists or the deadlist has no entries.
    pub(crate) fn add_deadlist_key(&self, deadlist: ObjectId, key: Txg) -> Result<(), PoolError> {
        if self.is_old_deadlist(deadlist)? {
            return Ok(());
        }
        let name = hex_key(key.0);
        if self.lookup(deadlist, &name)?.is_some() {
            return Ok(());
        }
        let list = new_empty_list(self.ctx)?;
        self.update(deadlist, &name, list.0)
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
        let mut entries = self.deadlist_entries(deadlist)?;
        let Some(list) = entries.remove(&key) else {
            return Ok(());
        };
        let below = entries
            .range(..key)
            .next_back()
            .map(|(below, _)| *below)
            .ok_or_else(|| contradiction(WHAT, "no entry below the one to be removed"))?;
        self.append_to_entry(deadlist, &mut entries, below, list)?;
        self.remove(deadlist, &hex_key(key.0))?;
        Ok(())
    }

    /// Appends a whole list to an entry. If the list is empty, it is only released.
    fn append_to_entry(
        &self,
        deadlist: ObjectId,
        entries: &mut Entries,
        key: Txg,
        list: ObjectId,
    ) -> Result<(), PoolError> {
        if is_shared_empty(self.ctx, list)? || BpObject::open(self.ctx, list)?.phys()?.is_empty() {
            return BpObject::free(self.ctx, list);
        }
        let own = self.writable_list(deadlist, entries, key)?;
        BpObject::open(self.ctx, own)?.append_list(self.ctx, list)
    }

    /// Moves all content of another deadlist into this one, each list to the largest key at or below its
    /// own. The other deadlist then has no entries.
    pub(crate) fn merge_deadlist(&self, into: ObjectId, other: ObjectId) -> Result<(), PoolError> {
        if self.is_old_deadlist(other)? {
            return self.merge_old_deadlist(into, other);
        }
        let mut entries = self.deadlist_entries(into)?;
        let space = self.deadlist_space(other)?;
        for (key, list) in self.deadlist_entries(other)? {
            let to = entries.range(..=key).next_back().map(|(to, _)| *to);
            let to = to.ok_or_else(|| contradiction(WHAT, "no entry to merge into"))?;
            self.append_to_entry(into, &mut entries, to, list)?;
            self.remove(other, &hex_key(key.0))?;
        }
        self.add_to_deadlist(into, space)?;
        self.add_to_deadlist(other, -space)
    }

    /// Moves the content of all entries from `from` on to a list, and returns its space.
    pub(crate) fn move_dead_from(
        &self,
        deadlist: ObjectId,
        from: Txg,
        to: ObjectId,
    ) -> Result<SpaceChange, PoolError> {
        let mut moved = SpaceChange::default();
        let target = BpObject::open(self.ctx, to)?;
        for (key, list) in self.deadlist_entries(deadlist)?.range(from..) {
            moved += self.list_space(*list)?;
            target.append_list(self.ctx, *list)?;
            self.remove(deadlist, &hex_key(key.0))?;
        }
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
        for (key, list) in self.deadlist_entries(deadlist)?.range(low..) {
            if high.is_some_and(|high| *key >= high) {
                break;
            }
            sum += self.list_space(*list)?;
        }
        Ok(sum)
    }

    /// Frees a deadlist, but not the blocks in it.
    pub(crate) fn free_deadlist(&self, deadlist: ObjectId) -> Result<(), PoolError> {
        if self.is_old_deadlist(deadlist)? {
            return BpObject::free(self.ctx, deadlist);
        }
        for list in self.deadlist_entries(deadlist)?.values() {
            BpObject::free(self.ctx, *list)?;
        }
        self.free_object(deadlist)
    }
}

/// Groups pointers by the entries that they belong to, keeping their order.
pub(crate) fn buckets(
    entries: &Entries,
    pointers: &[BlockPointer],
) -> Result<BTreeMap<Txg, Vec<BlockPointer>>, PoolError> {
    let keys: Vec<Txg> = entries.keys().copied().collect();
    let mut sorted: BTreeMap<Txg, Vec<BlockPointer>> = BTreeMap::new();
    for pointer in pointers {
        let key = deadlist_key_for_birth(&keys, pointer.allocation_birth())
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
