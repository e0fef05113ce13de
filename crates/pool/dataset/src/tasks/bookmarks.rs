//! Changes bookmarks, and counts what was freed since each of them.
//!
//! Page `docs/format/bookmarks.md`.

use crate::heads::features;
use crate::mos::{During, MosView, required};
use crate::tasks::context::SyncTaskContext;
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_ondisk::dsl::keys;
use millpond_ondisk::{
    BookmarkFlags, BookmarkPhys, BookmarkSizes, DslDatasetPhys, ObjectId, ObjectType, Txg,
};
use millpond_pool::PoolError;
use millpond_pool::SpaceChange;
use std::collections::BTreeMap;

const WHAT: &str = "bookmark";

impl MosView<'_> {
    fn bookmark_table(&self, head: ObjectId) -> Result<Option<ObjectId>, PoolError> {
        let number = self.extension_number(head, keys::BOOKMARKS)?;
        Ok(number.and_then(|id| ObjectId(id).some()))
    }

    /// The bookmarks of a head, ordered by creation and name.
    pub(crate) fn bookmarks(
        &self,
        head: ObjectId,
    ) -> Result<Vec<(String, BookmarkPhys)>, PoolError> {
        let Some(table) = self.bookmark_table(head)? else {
            return Ok(vec![]);
        };
        let mut found = vec![];
        for entry in self.entries(table)? {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let words: Vec<u64> = entry.value.integers().collect();
            found.push((name, BookmarkPhys::from_words(&words).during(WHAT)?));
        }
        found.sort_by(|a, b| (a.1.creation_txg, &a.0).cmp(&(b.1.creation_txg, &b.0)));
        Ok(found)
    }

    pub(crate) fn bookmark(
        &self,
        head: ObjectId,
        name: &str,
    ) -> Result<Option<BookmarkPhys>, PoolError> {
        let Some(table) = self.bookmark_table(head)? else {
            return Ok(None);
        };
        let Some(value) = self.lookup_value(table, name)? else {
            return Ok(None);
        };
        let words: Vec<u64> = value.integers().collect();
        BookmarkPhys::from_words(&words).during(WHAT).map(Some)
    }
}

pub(crate) fn counts_frees(bookmark: &BookmarkPhys) -> bool {
    bookmark
        .flags
        .contains(BookmarkFlags::HAS_FREED_BEFORE_NEXT)
}

/// Cache of the distinct creation txgs of bookmarks that count frees, ascending, by bookmark table.
///
/// Each txg needs them for every head it writes, and the tables may be long.
#[derive(Debug, Default)]
pub(crate) struct CountingTxgs(Mutex<BTreeMap<ObjectId, Arc<[Txg]>>, rank::Leaf>);

/// The most tables that are cached. When exceeded, the cache is cleared.
const REMEMBERED_TABLES_MAX: usize = 1024;

impl CountingTxgs {
    fn get(&self, table: ObjectId) -> Option<Arc<[Txg]>> {
        self.0.lock().get(&table).cloned()
    }
    fn put(&self, table: ObjectId, txgs: Arc<[Txg]>) {
        let mut known = self.0.lock();
        if known.len() >= REMEMBERED_TABLES_MAX {
            known.clear();
        }
        known.insert(table, txgs);
    }
    /// Called when bookmarks were added to or removed from a table.
    fn forget(&self, table: ObjectId) {
        self.0.lock().remove(&table);
    }
}

impl SyncTaskContext<'_> {
    /// The distinct creation txgs of bookmarks that count frees and are not older than `from`.
    pub(crate) fn counting_bookmarks(
        &self,
        head: ObjectId,
        from: Txg,
    ) -> Result<Vec<Txg>, PoolError> {
        let Some(table) = self.bookmark_table(head)? else {
            return Ok(vec![]);
        };
        let known = &self.datasets.counting_txgs;
        let txgs = match known.get(table) {
            Some(txgs) => txgs,
            None => {
                let bookmarks = self.bookmarks(head)?;
                let counting = bookmarks.iter().filter(|(_, one)| counts_frees(one));
                let mut txgs: Vec<Txg> = counting.map(|(_, one)| one.creation_txg).collect();
                txgs.dedup();
                let txgs: Arc<[Txg]> = txgs.into();
                known.put(table, Arc::clone(&txgs));
                txgs
            }
        };
        let first = txgs.partition_point(|txg| *txg < from);
        Ok(txgs[first..].to_vec())
    }

    /// The keys that a head's deadlist needs for bookmarks newer than `after`.
    pub(crate) fn bookmark_keys_after(
        &self,
        head: ObjectId,
        after: Txg,
    ) -> Result<Vec<Txg>, PoolError> {
        let mut keys = self.counting_bookmarks(head, after)?;
        keys.retain(|key| *key > after);
        Ok(keys)
    }

    fn put_bookmark(
        &self,
        table: ObjectId,
        name: &str,
        bookmark: &BookmarkPhys,
    ) -> Result<(), PoolError> {
        self.update_words(table, name, &bookmark.to_words())
    }

    /// Adds freed space to the bookmarks of a head, per creation txg.
    pub(crate) fn count_freed_of_bookmarks(
        &self,
        head: ObjectId,
        txgs: &[Txg],
        freed: &[SpaceChange],
    ) -> Result<(), PoolError> {
        if freed.iter().all(SpaceChange::is_zero) {
            return Ok(());
        }
        let Some(table) = self.bookmark_table(head)? else {
            return Ok(());
        };
        for (name, mut bookmark) in self.bookmarks(head)? {
            let at = txgs.iter().position(|txg| *txg == bookmark.creation_txg);
            if let Some(space) = at.and_then(|at| freed.get(at))
                && counts_frees(&bookmark)
                && !space.is_zero()
            {
                add(&mut bookmark.freed_before_next, *space);
                self.put_bookmark(table, &name, &bookmark)?;
            }
        }
        Ok(())
    }

    /// Creates a bookmark of a snapshot that is an ancestor of `head`.
    pub(crate) fn bookmark_snapshot(
        &self,
        head: ObjectId,
        name: &str,
        snapshot: ObjectId,
        redaction_list: Option<ObjectId>,
    ) -> Result<BookmarkPhys, PoolError> {
        let phys = self.dataset(snapshot)?;
        let ivset = self.extension_number(snapshot, keys::IVSET_GUID)?;
        let mut bookmark = BookmarkPhys {
            guid: phys.guid,
            creation_txg: phys.creation_txg,
            creation_time: phys.creation_time,
            redaction_list,
            ivset_guid: millpond_ondisk::Guid(ivset.unwrap_or(0)),
            ..BookmarkPhys::default()
        };
        if self.is_enabled(features::BOOKMARK_WRITTEN) {
            bookmark.flags = BookmarkFlags::HAS_FREED_BEFORE_NEXT | BookmarkFlags::SNAPSHOT_EXISTS;
            bookmark.sizes = BookmarkSizes {
                referenced: phys.referenced_bytes,
                compressed: phys.compressed_bytes,
                uncompressed: phys.uncompressed_bytes,
            };
            let freed = self.freed_after(&phys)?;
            bookmark.freed_before_next = BookmarkSizes::default();
            add(&mut bookmark.freed_before_next, freed);
        }
        self.add_bookmark(head, name, &bookmark)?;
        Ok(bookmark)
    }

    /// The space that a snapshot references but the next dataset does not.
    fn freed_after(&self, snapshot: &DslDatasetPhys) -> Result<SpaceChange, PoolError> {
        let next = required(snapshot.next_snapshot, "a snapshot without a successor")?;
        let deadlist = self.dataset(next)?.deadlist;
        self.deadlist_space(required(deadlist, "a dataset without a deadlist")?)
    }

    /// Adds a bookmark to a head and increments the reference counts of its features.
    pub(crate) fn add_bookmark(
        &self,
        head: ObjectId,
        name: &str,
        bookmark: &BookmarkPhys,
    ) -> Result<(), PoolError> {
        let table = match self.bookmark_table(head)? {
            Some(table) => table,
            None => {
                let made = self.create_folded_zap(ObjectType::METADATA_ZAP)?;
                self.zapify(head)?;
                self.update(head, keys::BOOKMARKS, made.0)?;
                self.ctx.feature_increment(features::BOOKMARKS)?;
                made
            }
        };
        self.put_bookmark(table, name, bookmark)?;
        self.datasets.counting_txgs.forget(table);
        for guid in self.bookmark_features(bookmark)? {
            self.ctx.feature_increment(guid)?;
        }
        Ok(())
    }

    /// The features that a bookmark uses, besides that of its table.
    fn bookmark_features(&self, bookmark: &BookmarkPhys) -> Result<Vec<&'static str>, PoolError> {
        let mut guids = vec![];
        if bookmark.to_words().len() > 3 {
            guids.push(features::BOOKMARK_V2);
        }
        if counts_frees(bookmark) {
            guids.push(features::BOOKMARK_WRITTEN);
        }
        if let Some(list) = bookmark.redaction_list {
            guids.push(features::REDACTION_BOOKMARKS);
            if self.object(list, WHAT)?.spill().during(WHAT)?.is_some() {
                guids.push(features::REDACTION_LIST_SPILL);
            }
        }
        Ok(guids)
    }

    /// Removes a bookmark, and its deadlist key if nothing else needs the key.
    pub(crate) fn remove_bookmark(&self, head: ObjectId, name: &str) -> Result<(), PoolError> {
        let Some(bookmark) = self.take_bookmark(head, name)? else {
            return Ok(());
        };
        if let Some(list) = bookmark.redaction_list {
            self.free_object(list)?;
        }
        if !counts_frees(&bookmark) || bookmark.flags.contains(BookmarkFlags::SNAPSHOT_EXISTS) {
            return Ok(());
        }
        let txg = bookmark.creation_txg;
        let phys = self.dataset(head)?;
        let is_last = !self
            .bookmarks(head)?
            .iter()
            .any(|(_, other)| other.creation_txg == txg && counts_frees(other));
        if is_last && txg < phys.previous_snapshot_txg {
            if let Some(deadlist) = phys.deadlist {
                self.remove_deadlist_key(deadlist, txg)?;
            }
            self.remove_key_of_clones(phys.directory, txg)?;
        }
        Ok(())
    }

    /// Removes a bookmark from its table, and the table with its last bookmark.
    pub(crate) fn take_bookmark(
        &self,
        head: ObjectId,
        name: &str,
    ) -> Result<Option<BookmarkPhys>, PoolError> {
        let Some(table) = self.bookmark_table(head)? else {
            return Ok(None);
        };
        let Some(bookmark) = self.bookmark(head, name)? else {
            return Ok(None);
        };
        self.remove(table, name)?;
        self.datasets.counting_txgs.forget(table);
        for guid in self.bookmark_features(&bookmark)? {
            // Other software may leave this feature's reference count wrong.
            if guid != features::BOOKMARK_V2 || self.feature_count(guid) > 0 {
                self.ctx.feature_decrement(guid)?;
            }
        }
        if self.entry_count(table)? == 0 {
            self.free_object(table)?;
            self.remove(head, keys::BOOKMARKS)?;
            self.ctx.feature_decrement(features::BOOKMARKS)?;
        }
        Ok(Some(bookmark))
    }

    /// Updates bookmarks before a snapshot is destroyed. Returns whether a bookmark needs the snapshot's
    /// key in the deadlists.
    ///
    /// Bookmarks within the snapshot's interval count the blocks freed from the next deadlist. Bookmarks of
    /// the snapshot itself record that it no longer exists.
    pub(crate) fn bookmarks_lose_snapshot(
        &self,
        snapshot: &DslDatasetPhys,
        next_deadlist: ObjectId,
    ) -> Result<bool, PoolError> {
        let head = self.directory(snapshot.directory)?.head_dataset;
        let head = required(head, "a snapshot without a head")?;
        let Some(table) = self.bookmark_table(head)? else {
            return Ok(false);
        };
        let mut key_stays = false;
        for (name, mut bookmark) in self.bookmarks(head)? {
            let txg = bookmark.creation_txg;
            if txg == snapshot.creation_txg {
                bookmark.flags.remove(BookmarkFlags::SNAPSHOT_EXISTS);
                key_stays |= counts_frees(&bookmark);
                self.put_bookmark(table, &name, &bookmark)?;
            } else if counts_frees(&bookmark)
                && txg >= snapshot.previous_snapshot_txg
                && txg < snapshot.creation_txg
            {
                let space = self.dead_space_between(next_deadlist, Txg(0), Some(txg))?;
                add(&mut bookmark.freed_before_next, space);
                self.put_bookmark(table, &name, &bookmark)?;
            }
        }
        Ok(key_stays)
    }

    /// Recomputes the frees counted by the bookmarks of `head` that were made of `snapshot`.
    pub(crate) fn recount_bookmarks_at(
        &self,
        head: ObjectId,
        snapshot: ObjectId,
    ) -> Result<(), PoolError> {
        let Some(table) = self.bookmark_table(head)? else {
            return Ok(());
        };
        let phys = self.dataset(snapshot)?;
        for (name, mut bookmark) in self.bookmarks(head)? {
            if bookmark.creation_txg == phys.creation_txg && counts_frees(&bookmark) {
                // The chain of `head` continues the snapshot: its oldest dataset has the deadlist with
                // these frees.
                let oldest = self.oldest_after(head, snapshot)?;
                let deadlist = self.dataset(oldest)?.deadlist;
                let deadlist = required(deadlist, "a dataset without a deadlist")?;
                bookmark.freed_before_next = BookmarkSizes::default();
                add(
                    &mut bookmark.freed_before_next,
                    self.deadlist_space(deadlist)?,
                );
                self.put_bookmark(table, &name, &bookmark)?;
            }
        }
        Ok(())
    }

    /// Frees the bookmark table of a destroyed head.
    pub(crate) fn free_bookmarks(&self, head: ObjectId) -> Result<(), PoolError> {
        let names: Vec<String> = self
            .bookmarks(head)?
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        for name in names {
            if let Some(bookmark) = self.take_bookmark(head, &name)?
                && let Some(list) = bookmark.redaction_list
            {
                self.free_object(list)?;
            }
        }
        Ok(())
    }
}

fn add(sizes: &mut BookmarkSizes, space: SpaceChange) {
    for (stored, change) in [
        (&mut sizes.referenced, space.used),
        (&mut sizes.compressed, space.compressed),
        (&mut sizes.uncompressed, space.uncompressed),
    ] {
        *stored = stored.saturating_add_signed(change);
    }
}
