//! Operations that start from snapshots: clones, rollbacks, bookmarks.

use crate::heads::features;
use crate::heads::log::HeadLog;
use crate::mos::{During, contradiction};
use crate::tasks::checks::split_snapshot;
use crate::tasks::context::SyncTaskContext;
use crate::tasks::directories::{Head, Snapshot};
use crate::{DatasetError, DatasetName, NameTail, Refusal};
use millpond_env::sync::Arc;
use millpond_object::{ObjectSet, ObjectSetView};
use millpond_ondisk::dsl::keys;
use millpond_ondisk::{
    BookmarkPhys, DslDatasetFlags, Guid, IntentLogHeader, ObjectId, ObjectSetKind, Txg,
};
use millpond_pool::PoolError;

/// A validated new bookmark.
pub(crate) struct NewBookmark {
    head: Head,
    name: String,
    source: Source,
}

enum Source {
    Snapshot(ObjectId),
    Bookmark(BookmarkPhys),
}

impl SyncTaskContext<'_> {
    /// Creates a head with the content of a snapshot.
    pub(crate) fn create_clone(
        &self,
        directory: ObjectId,
        origin: ObjectId,
    ) -> Result<ObjectId, PoolError> {
        let dataset = self.create_head(directory, Some(origin), DslDatasetFlags::default())?;
        if self.is_enabled(features::LIVELIST) {
            self.create_livelist(directory)?;
        }
        self.clear_log(dataset, directory)?;
        Ok(dataset)
    }

    /// Clears the intent log header that a clone copied from its snapshot. The log belongs to the
    /// snapshot's dataset.
    pub(crate) fn clear_log(
        &self,
        dataset: ObjectId,
        directory: ObjectId,
    ) -> Result<(), PoolError> {
        let pointer = self.dataset(dataset)?.block_pointer;
        if pointer.has_crypt_bit() {
            // The key may not be loaded, and the header is not encrypted.
            let store = std::sync::Arc::clone(self.pool.store());
            let set = ObjectSetView::open(store, dataset.0, pointer, None).during("clone")?;
            return match set.phys().intent_log_header == [0; 24] {
                true => Ok(()),
                false => self.write_raw_header(dataset, &IntentLogHeader::default()),
            };
        }
        let settings = self.settings(directory)?;
        let policy = self.write_policy(&settings, ObjectSetKind::FileSystem);
        let store = std::sync::Arc::clone(self.pool.store());
        let set = ObjectSet::open(store, dataset.0, pointer, policy, None).during("clone")?;
        set.set_policy(self.write_policy(&settings, set.kind()));
        if set.log_header() == [0; 24] {
            return Ok(());
        }
        set.set_log_header(self.ctx.tx(), [0; 24]);
        self.datasets
            .adopt(self, (dataset, directory), set, settings)
    }

    pub(crate) fn check_rollback(&self, snapshot: &Snapshot) -> Result<(), DatasetError> {
        let name = snapshot.full_name();
        let head = self.dataset(snapshot.head.dataset)?;
        if head.previous_snapshot != Some(snapshot.dataset) {
            return Err(Refusal::error(&name, Refusal::NotTheLatest));
        }
        let txg = self.dataset(snapshot.dataset)?.creation_txg;
        if txg >= self.txg() {
            return Err(Refusal::error(&name, Refusal::Busy));
        }
        let newer = |mark: &(String, BookmarkPhys)| mark.1.creation_txg > txg;
        if self.bookmarks(snapshot.head.dataset)?.iter().any(newer) {
            return Err(Refusal::error(&name, Refusal::NotTheLatest));
        }
        self.check_room_for_rollback(snapshot)?;
        // What only the head has is no longer counted against its reservation.
        let reserved = self.ref_reservation(snapshot.head.directory)?;
        let more = head.unique_bytes.min(reserved);
        if more > 0 && more > self.available(snapshot.head.directory)? {
            return Err(Refusal::error(&name, Refusal::NoSpace));
        }
        Ok(())
    }

    /// Refuses a snapshot that is larger than the refquota. As in OpenZFS, the reason is "out of space".
    pub(crate) fn check_room_for_rollback(&self, snapshot: &Snapshot) -> Result<(), DatasetError> {
        let quota = self.ref_quota(snapshot.head.directory)?;
        if quota > 0 && self.dataset(snapshot.dataset)?.referenced_bytes > quota {
            return Err(Refusal::error(&snapshot.full_name(), Refusal::NoSpace));
        }
        Ok(())
    }

    /// Rolls back a head that was closed for it, with the intent log that it had, and lets it be opened again.
    pub(crate) fn apply_rollback(
        &self,
        snapshot: &Snapshot,
        log: Option<Arc<dyn HeadLog>>,
    ) -> Result<(), PoolError> {
        self.free_log_of(log)?;
        self.free_waiting_log(snapshot.head.dataset)?;
        self.rollback(snapshot)?;
        self.wake_background();
        self.datasets.reopen(self.head_of_snapshot(snapshot)?);
        Ok(())
    }

    /// Swaps a head with a clone of its latest snapshot and destroys the clone.
    pub(crate) fn rollback(&self, snapshot: &Snapshot) -> Result<(), PoolError> {
        let head = &snapshot.head;
        let directory = self.create_directory(Some(head.directory), keys::ROLLBACK_DATASET)?;
        let origin = Some(snapshot.dataset);
        let clone = self.create_head(directory, origin, DslDatasetFlags::default())?;
        let temporary = format!("{}/{}", head.name, keys::ROLLBACK_DATASET);
        self.swap_with_clone(clone, head.dataset)?;
        let text = format!(
            "parent={}",
            head.name.rsplit('/').next().unwrap_or(&head.name)
        );
        self.history(clone, &temporary, "clone swap", &text)?;
        self.clear_log(head.dataset, head.directory)?;
        let how = self.how_destroyed(&Head {
            name: temporary.clone(),
            directory,
            dataset: clone,
        })?;
        self.history(clone, &temporary, "destroy", &how)?;
        self.destroy_head(clone, &temporary)
    }

    // ---- bookmarks ------------------------------------------------------------------------------

    /// Finds a head and the stored name of one of its bookmarks.
    pub(crate) fn find_bookmark(&self, full: &str) -> Result<(Head, String), DatasetError> {
        let missing = || DatasetError::NotFound {
            name: full.to_owned(),
        };
        let parsed = DatasetName::parse(full)?;
        let NameTail::Bookmark(name) = parsed.tail else {
            return Err(missing());
        };
        let head = self.find_head(parsed.path)?;
        self.bookmark(head.dataset, name)?.ok_or_else(missing)?;
        Ok((head, name.to_owned()))
    }

    pub(crate) fn check_bookmark(
        &self,
        source: &str,
        bookmark: &str,
    ) -> Result<NewBookmark, DatasetError> {
        let refused = |why| Err(Refusal::error(bookmark, why));
        if !self.is_enabled(features::BOOKMARKS) {
            return refused(Refusal::FeatureDisabled);
        }
        let parsed = DatasetName::parse(bookmark)?;
        let NameTail::Bookmark(name) = parsed.tail else {
            return refused(Refusal::Invalid("not a bookmark's name"));
        };
        let head = self.find_head(parsed.path)?;
        if self.bookmark(head.dataset, name)?.is_some() {
            return refused(Refusal::BookmarkExists(name.to_owned()));
        }
        let source = match DatasetName::parse(source)?.tail {
            NameTail::Bookmark(_) => {
                let (owner, name) = self.find_bookmark(source)?;
                let mark = self.bookmark(owner.dataset, &name)?;
                let mut mark = mark.ok_or_else(|| DatasetError::NotFound {
                    name: source.to_owned(),
                })?;
                if !self.has_in_past(head.dataset, mark.guid.0, owner.dataset)? {
                    return refused(Refusal::NotAnAncestor);
                }
                mark.redaction_list = None;
                Source::Bookmark(mark)
            }
            NameTail::Snapshot(_) => {
                split_snapshot(source)?;
                let snapshot = self.find_snapshot(source)?;
                if !self.is_in_past(head.dataset, snapshot.dataset)? {
                    return refused(Refusal::NotAnAncestor);
                }
                if let Some(guids) = self.listed_in_bookmark(snapshot.dataset)?
                    && !self.has_room(guids.len())
                {
                    return refused(Refusal::FeatureDisabled);
                }
                Source::Snapshot(snapshot.dataset)
            }
            NameTail::Head => return refused(Refusal::Invalid("must contain a '@' or '#'")),
        };
        Ok(NewBookmark {
            head,
            name: name.to_owned(),
            source,
        })
    }

    /// With respect to which snapshots a snapshot is redacted, if a bookmark of it says so.
    fn listed_in_bookmark(&self, snapshot: ObjectId) -> Result<Option<Vec<Guid>>, PoolError> {
        let redacted = self.extension(snapshot, features::REDACTED_DATASETS)?;
        let redacted = redacted.filter(|_| self.is_enabled(features::REDACTION_BOOKMARKS));
        Ok(redacted.map(|guids| guids.into_iter().map(Guid).collect()))
    }

    /// Whether a snapshot is in the chain of ancestors of a head, including origins.
    fn is_in_past(&self, head: ObjectId, snapshot: ObjectId) -> Result<bool, PoolError> {
        let mut at = self.dataset(head)?.previous_snapshot;
        let mut last = Txg(u64::MAX);
        while let Some(id) = at {
            if id == snapshot {
                return Ok(true);
            }
            let phys = self.dataset(id)?;
            if phys.creation_txg >= last {
                return Err(contradiction("bookmark", "snapshots do not become older"));
            }
            last = phys.creation_txg;
            at = phys.previous_snapshot;
        }
        Ok(false)
    }

    /// Whether a bookmark of `owner` is an ancestor of `head`: `head` owns it, or the bookmarked snapshot
    /// is in the head's chain.
    fn has_in_past(&self, head: ObjectId, guid: u64, owner: ObjectId) -> Result<bool, PoolError> {
        if head == owner {
            return Ok(true);
        }
        let mut at = self.dataset(head)?.previous_snapshot;
        let mut last = Txg(u64::MAX);
        while let Some(id) = at {
            let phys = self.dataset(id)?;
            if phys.guid.0 == guid {
                return Ok(true);
            }
            if phys.creation_txg >= last {
                return Err(contradiction("bookmark", "snapshots do not become older"));
            }
            last = phys.creation_txg;
            at = phys.previous_snapshot;
        }
        Ok(false)
    }

    pub(crate) fn make_bookmark(&self, new: &NewBookmark) -> Result<(), PoolError> {
        let head = new.head.dataset;
        let text = match &new.source {
            Source::Snapshot(snapshot) => {
                let redacted = self.listed_in_bookmark(*snapshot)?;
                // Nothing is left to leave out.
                let list = redacted.map(|guids| self.create_redaction_list(&guids, &[]));
                let list = list.transpose()?;
                let mark = self.bookmark_snapshot(head, &new.name, *snapshot, list)?;
                format!(
                    "name={} creation_txg={} target_snap={snapshot} redact_obj={}",
                    new.name,
                    mark.creation_txg,
                    ObjectId::number(list)
                )
            }
            Source::Bookmark(mark) => {
                self.add_bookmark(head, &new.name, mark)?;
                format!(
                    "name={} creation_txg={} source_guid={}",
                    new.name, mark.creation_txg, mark.guid
                )
            }
        };
        self.history(head, &new.head.name, "bookmark", &text)
    }
}
