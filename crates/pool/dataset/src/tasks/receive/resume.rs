//! The state from which an interrupted receive can be resumed.
//!
//! Page `docs/format/dsl-dataset.md`, "Half received".

use super::IncomingSnapshot;
use crate::heads::head::HeadDataset;
use crate::mos::During;
use crate::tasks::context::SyncTaskContext;
use millpond_ondisk::dsl::keys::resume;
use millpond_ondisk::{ObjectId, Txg};
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
        ] {
            if is_set {
                self.update(dataset, key, 1)?;
            }
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
