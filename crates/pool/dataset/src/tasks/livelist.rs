//! Livelists: the blocks that a clone allocated and freed since its origin, so that destroying it needs no
//! traversal.
//!
//! Page `docs/format/deadlist.md`, "Livelist".

use crate::heads::features;
use crate::mos::{MosView, contradiction};
use crate::tasks::context::SyncTaskContext;
use crate::tasks::deadlist::buckets;
use millpond_env::{Tunable, mark};
use millpond_ondisk::dsl::keys;
use millpond_ondisk::{BlockPointer, BpObjectEntry, ObjectId, Txg, live_pointers};
use millpond_pool::PoolError;
use millpond_pool::{BpObject, SpaceChange};

const WHAT: &str = "livelist";

impl MosView<'_> {
    /// The livelist of a clone's directory.
    pub(crate) fn livelist_of(&self, directory: ObjectId) -> Result<Option<ObjectId>, PoolError> {
        let number = self.extension_number(directory, keys::LIVELIST)?;
        Ok(number.and_then(|id| ObjectId(id).some()))
    }
}

impl SyncTaskContext<'_> {
    /// Creates a livelist for a new clone.
    pub(crate) fn create_livelist(&self, directory: ObjectId) -> Result<(), PoolError> {
        let livelist = self.create_deadlist()?;
        self.zapify(directory)?;
        self.update(directory, keys::LIVELIST, livelist.0)?;
        self.ctx.feature_increment(features::LIVELIST)
    }

    /// Drops a directory's livelist, if it has one. Destroying the clone then needs a traversal.
    pub(crate) fn drop_livelist(&self, directory: ObjectId) -> Result<(), PoolError> {
        let Some(livelist) = self.livelist_of(directory)? else {
            return Ok(());
        };
        self.remove(directory, keys::LIVELIST)?;
        self.free_deadlist(livelist)?;
        self.ctx.feature_decrement(features::LIVELIST)
    }

    /// Records the blocks that the clone allocated and freed in this txg.
    pub(crate) fn append_to_livelist(
        &self,
        directory: ObjectId,
        allocated: &[BlockPointer],
        freed: &[BlockPointer],
    ) -> Result<(), PoolError> {
        let Some(livelist) = self.livelist_of(directory)? else {
            return Ok(());
        };
        if allocated.is_empty() && freed.is_empty() {
            return Ok(());
        }
        let mut entries = self.deadlist_entries(livelist)?;
        if self.needs_new_list(entries.values().next_back().copied())? {
            // All blocks born from now on are above this key.
            let key = Txg(self.txg().0.saturating_sub(1));
            let list = BpObject::create(self.ctx)?.id();
            self.put_deadlist_entry(livelist, key, list)?;
            entries = self.deadlist_entries(livelist)?;
        }
        let mut sum = SpaceChange::default();
        for (pointers, is_freed) in [(allocated, false), (freed, true)] {
            for (key, bucket) in buckets(&entries, pointers)? {
                let list = entries.get(&key).copied();
                let list = list.ok_or_else(|| contradiction(WHAT, "an entry is missing"))?;
                for pointer in &bucket {
                    let space = self.ctx.space_of(pointer);
                    sum += if is_freed { -space } else { space };
                }
                let marked: Vec<_> = bucket.into_iter().map(|p| (p, is_freed)).collect();
                BpObject::open(self.ctx, list)?.append_all(self.ctx, &marked)?;
            }
        }
        self.add_to_deadlist(livelist, sum)?;
        self.condense_livelist(livelist)
    }

    /// Merges two neighbouring lists whose live entries fit into one, if there are such. At most one pair in a txg.
    ///
    /// The newest list is left alone. Each other one has grown beyond the most entries of a list, so at least half of the
    /// entries that this reads are gone afterwards.
    fn condense_livelist(&self, livelist: ObjectId) -> Result<(), PoolError> {
        let entries = self.deadlist_entries(livelist)?;
        let entries: Vec<(Txg, ObjectId)> = entries.iter().map(|(k, list)| (*k, *list)).collect();
        let Some((_newest, older)) = entries.split_last() else {
            return Ok(());
        };
        let mut live = Vec::with_capacity(older.len());
        for (_, list) in older {
            let phys = BpObject::open(self.ctx, *list)?.phys()?;
            let freed = phys.freed_count.saturating_mul(2);
            live.push(phys.pointer_count.saturating_sub(freed));
        }
        let most = self.tunable(Tunable::LivelistMaxEntries);
        let fits = |pair: &[u64]| {
            pair.iter()
                .fold(0, |sum: u64, one| sum.saturating_add(*one))
                <= most
        };
        let Some(at) = live.windows(2).position(fits) else {
            return Ok(());
        };
        let Some([(key, first), (next_key, next)]) = older.get(at..at + 2) else {
            return Ok(());
        };
        mark::hit("livelist-condensed");
        let merged = BpObject::create(self.ctx)?;
        for list in [first, next] {
            let pointers: Vec<_> = self.live_entries(*list)?;
            let pointers: Vec<_> = pointers
                .into_iter()
                .map(|pointer| (pointer, false))
                .collect();
            merged.append_all(self.ctx, &pointers)?;
            BpObject::free(self.ctx, *list)?;
        }
        self.drop_deadlist_entry(livelist, *next_key)?;
        self.put_deadlist_entry(livelist, *key, merged.id())
    }

    /// The pointers of a list that no later entry frees.
    fn live_entries(&self, list: ObjectId) -> Result<Vec<BlockPointer>, PoolError> {
        let mut entries = vec![];
        BpObject::open(self.ctx, list)?.for_each(self.ctx, &mut |entry: &BpObjectEntry| {
            entries.push(*entry);
            Ok(())
        })?;
        Ok(live_pointers(&entries))
    }

    fn tunable(&self, tunable: Tunable) -> u64 {
        self.ctx.pool().env().tunables.get(tunable)
    }

    fn needs_new_list(&self, newest: Option<ObjectId>) -> Result<bool, PoolError> {
        let Some(newest) = newest else {
            return Ok(true);
        };
        // Frees count too: a few blocks that are overwritten repeatedly would otherwise grow the list
        // without limit, with few live entries.
        // Later a list gains only one entry for each of its blocks that is freed, so it holds at most twice the number,
        // plus the entries of one txg. This bounds memory, since freeing a list loads all of it.
        let most = self.tunable(Tunable::LivelistMaxEntries);
        Ok(BpObject::open(self.ctx, newest)?.phys()?.pointer_count > most)
    }

    /// Drops the livelist of a clone that shares little with its origin.
    pub(crate) fn drop_livelist_if_useless(&self, head: ObjectId) -> Result<(), PoolError> {
        let phys = self.dataset(head)?;
        let own = self.directory(phys.directory)?.used_breakdown.head_bytes;
        if phys.referenced_bytes == 0 {
            return Ok(());
        }
        let shared = phys.referenced_bytes.saturating_sub(own);
        let percent = u128::from(shared) * 100 / u128::from(phys.referenced_bytes);
        // A traversal is then no slower than the livelist.
        let least = self.tunable(Tunable::LivelistMinPercentShared);
        if percent <= u128::from(least) {
            self.drop_livelist(phys.directory)?;
        }
        Ok(())
    }
}
