//! Creates redaction bookmarks.
//!
//! Page `docs/format/bookmarks.md`, "Redaction list".

use crate::datasets::Datasets;
use crate::heads::features;
use crate::mos::During;
use crate::redaction::REDACTION_SNAPSHOTS_MAX;
use crate::tasks::context::SyncTaskContext;
use crate::tasks::directories::{Head, Snapshot};
use crate::{DatasetError, DatasetName, NameTail, Refusal};
use millpond_object::NewObject;
use millpond_ondisk::{Guid, ObjectId, ObjectType, RedactionEntry, RedactionListPhys};
use millpond_pool::PoolError;

const WHAT: &str = "redaction list";
/// The size of its blocks, in bytes.
const BLOCK_BYTES: u32 = 128 << 10;
/// The longest header in the bonus, in bytes.
const BONUS_BYTES_MAX: usize = 320;
/// The most entries of a list that is made here: they are written in one txg.
const ENTRIES_MAX: usize = 1 << 20;

/// What a redaction bookmark is made of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewRedaction {
    /// The full name of the snapshot.
    pub snapshot: String,
    /// The guid that it had when the entries were found.
    pub guid: Guid,
    /// The full name of the bookmark, in the dataset of the snapshot.
    pub bookmark: String,
    /// The guids of the snapshots of clones.
    pub redacted_for: Vec<Guid>,
    /// The blocks that all of them have changed, in the order of objects and blocks.
    pub entries: Vec<RedactionEntry>,
}

/// A validated redaction bookmark.
struct Plan {
    head: Head,
    name: String,
    snapshot: Snapshot,
}

impl Datasets {
    /// Creates a redaction bookmark.
    ///
    /// # Errors
    /// [`Refusal::BookmarkExists`], [`Refusal::FeatureDisabled`], [`Refusal::LongList`],
    /// [`Refusal::ManyRedactionSnapshots`]; [`Refusal::Busy`] if the snapshot is another one now.
    pub fn create_redaction_bookmark(&self, new: &NewRedaction) -> Result<(), DatasetError> {
        self.task(
            |s| s.check_redaction_bookmark(new),
            |s, plan| {
                let list = s.create_redaction_list(&new.redacted_for, &new.entries)?;
                let (head, name) = (plan.head.dataset, &plan.name);
                let snapshot = plan.snapshot.dataset;
                let mark = s.bookmark_snapshot(head, name, snapshot, Some(list))?;
                let text = format!(
                    "name={name} creation_txg={} target_snap={snapshot} redact_obj={list}",
                    mark.creation_txg
                );
                s.history(head, &plan.head.name, "bookmark", &text)
            },
        )
    }

    /// Checks whether [`Datasets::create_redaction_bookmark`] would be refused, before the entries are found.
    ///
    /// # Errors
    /// As there.
    pub fn check_redaction_bookmark(&self, new: &NewRedaction) -> Result<(), DatasetError> {
        self.task(
            |s| s.check_redaction_bookmark(new).map(drop),
            |_, ()| Ok(()),
        )
    }
}

impl SyncTaskContext<'_> {
    fn check_redaction_bookmark(&self, new: &NewRedaction) -> Result<Plan, DatasetError> {
        let refused = |why| Err(Refusal::error(&new.bookmark, why));
        let mut needed = [
            features::BOOKMARKS,
            features::BOOKMARK_V2,
            features::REDACTION_BOOKMARKS,
        ]
        .into_iter();
        if needed.any(|guid| !self.is_enabled(guid)) || !self.has_room(new.redacted_for.len()) {
            return refused(Refusal::FeatureDisabled);
        }
        // No dataset could receive what is sent with it.
        if new.redacted_for.len() > REDACTION_SNAPSHOTS_MAX {
            return refused(Refusal::ManyRedactionSnapshots);
        }
        if new.entries.len() > ENTRIES_MAX {
            return refused(Refusal::LongList);
        }
        let parsed = DatasetName::parse(&new.bookmark)?;
        let NameTail::Bookmark(name) = parsed.tail else {
            return refused(Refusal::Invalid("not a bookmark's name"));
        };
        let snapshot = self.find_snapshot(&new.snapshot)?;
        let head = self.find_head(parsed.path)?;
        if head.dataset != snapshot.head.dataset {
            return refused(Refusal::Invalid("not in the dataset of the snapshot"));
        }
        if self.bookmark(head.dataset, name)?.is_some() {
            return refused(Refusal::BookmarkExists(name.to_owned()));
        }
        if self.dataset(snapshot.dataset)?.guid != new.guid {
            return Err(Refusal::error(&new.snapshot, Refusal::Busy));
        }
        if self
            .extension(snapshot.dataset, features::REDACTED_DATASETS)?
            .is_some()
        {
            let why = Refusal::Invalid("it is redacted already");
            return Err(Refusal::error(&new.snapshot, why));
        }
        Ok(Plan {
            head,
            name: name.to_owned(),
            snapshot,
        })
    }

    /// Whether the pool can store a list of that number of snapshots. A long one needs a spill block, which is a feature.
    pub(crate) fn has_room(&self, snapshots: usize) -> bool {
        let header = header_of(&vec![Guid(0); snapshots], 0);
        header.len() <= BONUS_BYTES_MAX || self.is_enabled(features::REDACTION_LIST_SPILL)
    }

    /// Creates the object of a complete list.
    pub(crate) fn create_redaction_list(
        &self,
        redacted_for: &[Guid],
        entries: &[RedactionEntry],
    ) -> Result<ObjectId, PoolError> {
        let tx = self.ctx.tx();
        let mut header = header_of(redacted_for, entries.len());
        let is_spilled = header.len() > BONUS_BYTES_MAX;
        let bonus = match is_spilled {
            // Leaves room for the pointer of the spill block.
            true => vec![0; BONUS_BYTES_MAX],
            false => std::mem::take(&mut header),
        };
        let new = NewObject::new(ObjectType::METADATA_U64)
            .with_block_bytes(BLOCK_BYTES)
            .with_bonus(ObjectType::METADATA_U64, bonus);
        let object = self.ctx.mos().allocate(tx, new).during(WHAT)?;
        if is_spilled {
            object.set_bonus(tx, vec![]).during(WHAT)?;
            header.resize(header.len().next_multiple_of(512), 0);
            object.set_spill(tx, Some(header)).during(WHAT)?;
        }
        let bytes: Vec<u8> = entries.iter().flat_map(RedactionEntry::encode).collect();
        if !bytes.is_empty() {
            object.write(tx, 0, &bytes).during(WHAT)?;
        }
        Ok(object.id())
    }
}

fn header_of(redacted_for: &[Guid], entries: usize) -> Vec<u8> {
    let header = RedactionListPhys {
        last_object: u64::MAX,
        last_block_id: u64::MAX,
        entry_count: entries as u64,
        snapshots: redacted_for.to_vec(),
    };
    header.encode()
}
