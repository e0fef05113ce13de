//! The state from which an interrupted receive can be resumed.
//!
//! Page `docs/format/dsl-dataset.md`, "Half received".

use super::{IncomingSnapshot, ReceiveTarget, Receiving, Replaced, UnderWay, hidden_name};
use crate::datasets::Datasets;
use crate::heads::features;
use crate::heads::head::HeadDataset;
use crate::mos::During;
use crate::tasks::context::SyncTaskContext;
use crate::tasks::directories::Head;
use crate::{DatasetError, Refusal};
use millpond_ondisk::dsl::keys::{RECEIVE_DATASET, resume};
use millpond_ondisk::{DslDatasetFlags, Guid, ObjectId, Txg};
use millpond_pool::PoolError;
use millpond_txg::Transaction;
use millpond_zap::ZapValue;

/// How far a stream was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResumePoint {
    /// The object of the last record that was applied.
    pub object: u64,
    /// Its offset in bytes.
    pub offset: u64,
    /// The bytes of the stream up to the end of that record, without the header of its beginning.
    pub bytes: u64,
}

/// What a stream that resumes may contain, because the first one did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResumeAllowances {
    /// Blocks above 128 KiB.
    pub large_blocks: bool,
    /// Blocks that pointers hold.
    pub embedded: bool,
    /// Compressed blocks.
    pub compressed: bool,
}

impl HeadDataset {
    /// Records how far a resumable receive is with the changes of `tx`. The state goes to disk in the same txg.
    pub fn note_received(&self, tx: &Transaction, point: ResumePoint) {
        self.resume.lock().insert(tx.txg(), point);
    }

    /// Takes the newest point of a txg.
    pub(crate) fn received_in(&self, txg: Txg) -> Option<ResumePoint> {
        self.resume.lock().remove(&txg)
    }
}

impl SyncTaskContext<'_> {
    /// Makes a dataset one whose receive can be resumed.
    pub(super) fn begin_resumable(
        &self,
        dataset: ObjectId,
        incoming: &IncomingSnapshot,
        allowances: &ResumeAllowances,
    ) -> Result<(), PoolError> {
        self.zapify(dataset)?;
        if let Some(from) = incoming.from {
            self.update(dataset, resume::FROM_GUID, from.0)?;
        }
        self.update(dataset, resume::TO_GUID, incoming.guid.0)?;
        let mut name = incoming.sent_name.as_bytes().to_vec();
        name.push(0);
        self.zap(dataset)?
            .update(resume::TO_NAME.as_bytes(), &ZapValue::from_bytes(&name))
            .during("resume state")?;
        let begin = ResumePoint {
            object: 1,
            ..ResumePoint::default()
        };
        self.put_resume_point(dataset, begin)?;
        for (key, is_set) in [
            (resume::LARGE_BLOCK_OK, allowances.large_blocks),
            (resume::EMBED_OK, allowances.embedded),
            (resume::COMPRESS_OK, allowances.compressed),
            (resume::RAW_OK, incoming.raw.is_some()),
        ] {
            if is_set {
                self.update(dataset, key, 1)?;
            }
        }
        if let Some(guids) = &incoming.redacted_from {
            self.update_words(dataset, resume::REDACT_BOOKMARK_SNAPSHOTS, guids)?;
        }
        Ok(())
    }

    /// Stores how far a receive is.
    pub(crate) fn put_resume_point(
        &self,
        dataset: ObjectId,
        point: ResumePoint,
    ) -> Result<(), PoolError> {
        self.update(dataset, resume::OBJECT, point.object)?;
        self.update(dataset, resume::OFFSET, point.offset)?;
        self.update(dataset, resume::BYTES, point.bytes)
    }

    /// Removes the state from which a receive is resumed.
    pub(super) fn end_resumable(&self, dataset: ObjectId) -> Result<(), PoolError> {
        if !self.is_zapified(dataset)? {
            return Ok(());
        }
        for key in [
            resume::FROM_GUID,
            resume::TO_GUID,
            resume::TO_NAME,
            resume::OBJECT,
            resume::OFFSET,
            resume::BYTES,
            resume::LARGE_BLOCK_OK,
            resume::EMBED_OK,
            resume::COMPRESS_OK,
            resume::RAW_OK,
            resume::REDACT_BOOKMARK_SNAPSHOTS,
        ] {
            self.remove(dataset, key)?;
        }
        Ok(())
    }
}

/// A receive that can be resumed.
struct Found {
    own: Head,
    replaced: Option<Replaced>,
    point: ResumePoint,
    has_origin: bool,
}

impl Datasets {
    /// Continues an interrupted receive at a point. Returns also how far the earlier streams went.
    ///
    /// # Errors
    /// [`Refusal::NotResumable`]; [`Refusal::ResumeReplaces`] if it would replace an existing dataset and is not forced;
    /// [`Refusal::Busy`] if it is still under way.
    pub fn resume_receive(
        &self,
        incoming: &IncomingSnapshot,
        target: &ReceiveTarget,
        (object, offset): (u64, u64),
    ) -> Result<(Receiving, ResumePoint), DatasetError> {
        let (found, under_way) = self.task(
            |s| s.check_resume(incoming, target, (object, offset)),
            |s, found| {
                let own = &found.own;
                s.history(own.dataset, &own.name, "resume receive", " ")?;
                let under_way = UnderWay::begin(self, own.dataset);
                Ok((found, under_way))
            },
        )?;
        let Found {
            own,
            replaced,
            point,
            has_origin,
        } = found;
        let under_way = under_way.ok_or_else(|| Refusal::error(&target.name, Refusal::Busy))?;
        let head = self.open_receiving(incoming, own.dataset, &own.name)?;
        let receiving = Receiving {
            head,
            target: target.clone(),
            guid: incoming.guid,
            creation_s: incoming.creation_s,
            replaced,
            has_origin,
            raw: incoming.raw.clone(),
            _under_way: under_way,
        };
        Ok((receiving, point))
    }

    /// Checks whether [`Datasets::resume_receive`] would be refused.
    ///
    /// # Errors
    /// As [`Datasets::resume_receive`].
    pub fn check_resume_receive(
        &self,
        incoming: &IncomingSnapshot,
        target: &ReceiveTarget,
        point: (u64, u64),
    ) -> Result<(), DatasetError> {
        self.task(
            |s| s.check_resume(incoming, target, point).map(drop),
            |_, ()| Ok(()),
        )
    }

    /// Destroys the state of an interrupted receive into a dataset, which may be the dataset itself.
    ///
    /// # Errors
    /// [`Refusal::NotResumable`] if there is none; [`Refusal::Busy`] if it is still under way.
    pub fn abort_resumable(&self, name: &str) -> Result<(), DatasetError> {
        let partial = self.task(|s| s.resumable_of(name), |_, own| Ok(own.name))?;
        self.destroy_dataset(&partial)
    }
}

impl SyncTaskContext<'_> {
    /// The dataset that holds the state of an interrupted receive.
    fn resumable_of(&self, name: &str) -> Result<Head, DatasetError> {
        let head = self.find_head(name)?;
        let hidden = match self.child(head.directory, RECEIVE_DATASET)? {
            Some(_) => self.find_head(&hidden_name(name))?,
            None => head,
        };
        let phys = self.dataset(hidden.dataset)?;
        let is_partial = phys.flags.contains(DslDatasetFlags::INCONSISTENT);
        let state = self.extension_number(hidden.dataset, resume::TO_GUID)?;
        match is_partial && state.is_some() {
            true => Ok(hidden),
            false => Err(Refusal::error(name, Refusal::NotResumable)),
        }
    }

    fn check_resume(
        &self,
        incoming: &IncomingSnapshot,
        target: &ReceiveTarget,
        (object, offset): (u64, u64),
    ) -> Result<Found, DatasetError> {
        let refused = |why| Err(Refusal::error(&target.name, why));
        if incoming.needs.iter().any(|guid| !self.is_enabled(guid)) {
            return refused(Refusal::FeatureDisabled);
        }
        let own = self.resumable_of(&target.name)?;
        let number = |key| self.extension_number(own.dataset, key);
        let point = ResumePoint {
            object: number(resume::OBJECT)?.unwrap_or(0),
            offset: number(resume::OFFSET)?.unwrap_or(0),
            bytes: number(resume::BYTES)?.unwrap_or(0),
        };
        let from = number(resume::FROM_GUID)?.map(Guid);
        let is_same = number(resume::TO_GUID)? == Some(incoming.guid.0)
            && number(resume::RAW_OK)?.is_some() == incoming.raw.is_some()
            // Objects would get blocks of another size, and lose what was received.
            && number(resume::LARGE_BLOCK_OK)?.is_some() == incoming.has_large_blocks
            && from == incoming.from
            && (point.object, point.offset) == (object, offset);
        let is_same = is_same
            && self.extension(own.dataset, features::REDACTED_DATASETS)? == incoming.redacted;
        let phys = self.dataset(own.dataset)?;
        if !is_same || !self.snapshot_entries(&phys)?.is_empty() {
            return refused(Refusal::NotResumable);
        }
        if UnderWay::has_begun(self.datasets, own.dataset) {
            return refused(Refusal::Busy);
        }
        let replaced = match own.name == target.name {
            true => None,
            false => {
                // Before anything is read: what was received so far stays for another attempt.
                if from.is_none() && !target.is_forced {
                    return refused(Refusal::ResumeReplaces);
                }
                let above = self.find_head(&target.name)?;
                let above_phys = self.dataset(above.dataset)?;
                if self
                    .snapshot_entry(&above_phys, &target.snapshot)?
                    .is_some()
                {
                    return refused(Refusal::SnapshotExists(target.snapshot.clone()));
                }
                Some(Replaced {
                    head: above.dataset,
                    origin: phys.previous_snapshot,
                })
            }
        };
        Ok(Found {
            own,
            replaced,
            point,
            has_origin: phys.previous_snapshot.is_some()
                && phys.previous_snapshot != self.empty_origin()?,
        })
    }
}
