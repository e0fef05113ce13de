//! The intent log of an open head, as its sync uses it. The layer that knows log records implements it.
//!
//! Page `docs/format/intent-log.md`, "Writing".

use super::features;
use crate::DatasetError;
use crate::datasets::Datasets;
use crate::heads::claim::{ClaimedEnd, claim_all};
use crate::heads::head::HeadDataset;
use crate::mos::{During, contradiction};
use crate::tasks::context::SyncTaskContext;
use crate::writability::HeadLogFound;
use core::any::Any;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::Ordering;
use millpond_object::ObjectSetView;
use millpond_ondisk::intent_log::IntentLogFlags;
use millpond_ondisk::{BlockPointer, IntentLogHeader, ObjectId, Txg, VdevId};
use millpond_pool::{FoundBlockKind, FoundLog, FoundLogs, PoolError};

/// The changes that the sync of a txg makes to a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogTrim {
    /// Blocks to free: all their records are in the tree as of this txg.
    pub free: Vec<BlockPointer>,
    /// The new header, if it changes.
    pub header: Option<[u64; 24]>,
}

/// A head's intent log while it is in use. The thread that writes a txg calls all methods but one; none of these may wait
/// for a txg.
pub trait HeadLog: Send + Sync {
    /// Returns the part of the log that `txg` makes obsolete. Called once per txg, before the head's
    /// objects are written.
    fn trim(&self, txg: Txg) -> LogTrim;
    /// Drops the whole chain, passes its blocks to `drop_blocks`, and returns true. `drop_blocks` zeroes the header; no
    /// new chain begins before it has returned.
    ///
    /// Returns false if a thread is writing to the log, or if blocks were allocated in a later txg: the log is then still
    /// in use, and nothing changes.
    ///
    /// # Errors
    /// The error of `drop_blocks`.
    fn retire(
        &self,
        txg: Txg,
        drop_blocks: &mut dyn FnMut(&[BlockPointer]) -> Result<(), PoolError>,
    ) -> Result<bool, PoolError>;
    /// Whether a block of the log is on a vdev.
    fn uses(&self, vdev: VdevId) -> bool;
    /// Called when `txg` is on stable storage. Its records are no longer needed.
    fn committed(&self, txg: Txg);
    /// Writes all records, as `fsync` of everything would. Called by another thread; it may wait.
    ///
    /// # Errors
    /// If the pool is suspended.
    fn write_out(&self, head: &HeadDataset) -> Result<(), PoolError>;
}

/// The head's intent log has another type, because two different writers of logs share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its intent log is written by something else")]
pub struct OtherLog;

/// A head's log, with its interface for syncing and its concrete type for its owner.
pub(crate) struct AttachedLog {
    log: Arc<dyn HeadLog>,
    kind: Arc<dyn Any + Send + Sync>,
}

impl AttachedLog {
    pub(crate) fn new<L: HeadLog + 'static>(log: L) -> Self {
        let log = Arc::new(log);
        Self {
            log: Arc::clone(&log) as _,
            kind: log,
        }
    }
    pub(crate) fn log(&self) -> Arc<dyn HeadLog> {
        Arc::clone(&self.log)
    }
    pub(crate) fn kind<L: HeadLog + 'static>(&self) -> Result<Arc<L>, OtherLog> {
        Arc::clone(&self.kind).downcast().map_err(|_| OtherLog)
    }
}

impl Datasets {
    /// Names of the file systems and volumes whose logs contain records.
    ///
    /// Logs whose records refer to blocks of other files come first. They must be replayed before anything
    /// is freed.
    #[must_use]
    pub fn logs_to_replay(&self) -> Vec<String> {
        let to_replay = self.to_replay.lock();
        let mut names: Vec<_> = to_replay.iter().collect();
        names.sort_by_key(|(name, has_clones)| (!**has_clones, (*name).clone()));
        names.into_iter().map(|(name, _)| name.clone()).collect()
    }

    /// Frees logs without records and logs to be discarded, and zeroes their headers. Claims the others.
    ///
    /// The header of a locked dataset is written at once, which takes space. So the blocks of all logs are claimed before the
    /// first header changes.
    pub(crate) fn claim_found_logs(&self, syncing: &SyncTaskContext<'_>) -> Result<(), PoolError> {
        let all_found = std::mem::take(&mut *self.found_logs.lock());
        let (mut to_drop, mut to_claim) = (vec![], vec![]);
        for found in all_found {
            if found.header.claim_txg != Txg(0) {
                // An earlier claim added the references, maybe that of another program.
                let blocks = found.log.blocks.iter();
                let cloned = blocks.filter(|block| block.kind == FoundBlockKind::Cloned);
                cloned.for_each(|block| syncing.ctx.hold_for_log(&block.pointer));
            }
            if !found.log.has_records || found.is_given_up {
                to_drop.push(found);
                continue;
            }
            if !found.is_locked {
                let has_clones = found.log.has_clones;
                self.to_replay.lock().insert(found.name.clone(), has_clones);
            } else {
                self.waiting_logs.lock().insert(found.dataset);
            }
            if found.header.claim_txg == Txg(0) {
                let birth = found.log.last_birth();
                self.last_claimed_birth.fetch_max(birth.0, Ordering::AcqRel);
                to_claim.push(found);
            }
        }
        let claimed = syncing.claim_logs(&to_claim)?;
        for (found, (header, count)) in to_claim.iter().zip(&claimed) {
            syncing.complete_log(found, *count);
            syncing.put_log_header(found, header)?;
            if !found.is_locked {
                let blocks = found.log.blocks.iter().take(*count);
                let mut claimed_logs = self.claimed_logs.lock();
                claimed_logs.insert(found.dataset, blocks.copied().collect());
            }
        }
        to_drop.iter().try_for_each(|found| syncing.drop_log(found))
    }

    /// Whether a head has a log that was claimed without its key, and waits to be replayed.
    #[must_use]
    pub fn has_waiting_log(&self, head: ObjectId) -> bool {
        self.waiting_logs.lock().contains(&head)
    }

    /// Ends a log whose records are all in the tree: frees its blocks and zeroes its header.
    ///
    /// Those are the blocks that were claimed when the pool was opened. A block that is damaged since, or that was read by
    /// luck because its write was cut off, would hide the blocks behind it, and their space would be lost.
    ///
    /// # Errors
    /// If the pool is suspended, or the log cannot be read again.
    pub fn finish_replay(&self, head: &HeadDataset) -> Result<(), DatasetError> {
        let pool = self.pool()?;
        let set = head.set();
        let header = IntentLogHeader::from_words(&set.log_header());
        if !header.has_chain() {
            self.waiting_logs.lock().remove(&head.id());
            self.claimed_logs.lock().remove(&head.id());
            return Ok(());
        }
        let claimed = self.claimed_logs.lock().get(&head.id()).cloned();
        let blocks = match claimed {
            Some(blocks) => blocks,
            // It was claimed before, or waited for its key.
            None => {
                let first = Txg(pool.uberblock().txg.0.saturating_add(1));
                let (store, dataset) = (pool.store(), set.dataset());
                FoundLog::read(store, dataset, &header, first, FoundLogs::Replay)?.blocks
            }
        };
        pool.sync_task(|ctx| {
            for block in &blocks {
                ctx.free_found_block(block, &header)?;
            }
            set.set_log_header(ctx.tx(), [0; 24]);
            head.mark(ctx.txg());
            SyncTaskContext::new(self, ctx).deactivate_feature(head.id(), features::ZILSAXATTR)
        })?;
        self.waiting_logs.lock().remove(&head.id());
        self.claimed_logs.lock().remove(&head.id());
        Ok(())
    }
}

impl SyncTaskContext<'_> {
    /// Claims the blocks of logs found when the pool was opened, in the first txg, before anything is allocated. Returns
    /// their new headers, each with the number of blocks that were claimed.
    fn claim_logs(
        &self,
        found: &[HeadLogFound],
    ) -> Result<Vec<(IntentLogHeader, usize)>, PoolError> {
        let logs: Vec<&FoundLog> = found.iter().map(|found| &found.log).collect();
        let counts = claim_all(self.ctx, self.txg(), &logs)?;
        let headers = found.iter().zip(counts);
        Ok(headers
            .map(|(found, count)| (self.claimed_header(found, count), count))
            .collect())
    }

    /// Writes what the leaves lack of the blocks that were claimed. Later walks then find them all, also if they were
    /// read from the last leaf that has them, or by combining what a crash left.
    fn complete_log(&self, found: &HeadLogFound, count: usize) {
        let blocks = found.log.blocks.iter().take(count);
        let owned = blocks.filter(|block| block.kind != FoundBlockKind::Cloned);
        let wanted = owned.map(|block| (block.pointer, block.address(found.dataset.0)));
        let wanted: Vec<_> = wanted.collect();
        // The last block of a chain was never written, so that one is unreadable.
        let store = self.ctx.pool().store();
        store.complete_batch(&wanted, |_, _| ());
    }

    /// The header of a log of which this many blocks were claimed.
    fn claimed_header(&self, found: &HeadLogFound, count: usize) -> IntentLogHeader {
        let Some(end) = ClaimedEnd::of(&found.log, count) else {
            return IntentLogHeader::default();
        };
        let mut header = found.header;
        header.claim_txg = self.txg();
        header.claim_block_sequence = end.block_sequence;
        header.claim_record_sequence = end.record_sequence;
        header.flags = IntentLogFlags::CLAIM_RECORD_SEQUENCE_VALID | IntentLogFlags::REPLAY_NEEDED;
        header
    }

    /// Frees a log that has no records or is to be discarded.
    pub(crate) fn drop_log(&self, found: &HeadLogFound) -> Result<(), PoolError> {
        self.put_log_header(found, &IntentLogHeader::default())?;
        for block in &found.log.blocks {
            let is_claimed = found.header.claim_txg != Txg(0);
            // A block that was never claimed is already free, and an unclaimed log has no references to cloned ones.
            let is_known =
                block.kind != FoundBlockKind::Cloned && block.pointer.birth() < self.txg();
            if is_claimed || is_known {
                self.ctx.free_found_block(block, &found.header)?;
            }
        }
        self.deactivate_feature(found.dataset, features::ZILSAXATTR)
    }

    /// Frees a log that waits for the key of its head, which is being destroyed or rolled back.
    pub(crate) fn free_waiting_log(&self, head: ObjectId) -> Result<(), PoolError> {
        if !self.datasets.waiting_logs.lock().remove(&head) {
            return Ok(());
        }
        let pointer = self.dataset(head)?.block_pointer;
        let store = self.ctx.pool().store();
        let set = ObjectSetView::open(Arc::clone(store), head.0, pointer, None);
        let set = set.during("intent log")?;
        let header = IntentLogHeader::from_words(&set.phys().intent_log_header);
        if !header.has_chain() {
            return Ok(());
        }
        let first = Txg(self.txg().0.saturating_add(1));
        let found = FoundLog::read(store, head.0, &header, first, FoundLogs::Replay)?;
        for block in &found.blocks {
            self.ctx.free_found_block(block, &header)?;
        }
        Ok(())
    }

    fn put_log_header(
        &self,
        found: &HeadLogFound,
        header: &IntentLogHeader,
    ) -> Result<(), PoolError> {
        if found.is_locked {
            return self.write_raw_header(found.dataset, header);
        }
        let head = self.datasets.open_head(&found.name);
        let head = head.map_err(|error| match error {
            DatasetError::Pool(error) => error,
            other => PoolError::Suspended {
                reason: other.to_string(),
            },
        })?;
        head.set()
            .set_log_header(self.ctx.tx(), header_words(header));
        head.mark(self.txg());
        Ok(())
    }

    /// Applies the changes of this txg's sync to a head's log.
    pub(crate) fn trim_log(&self, head: &HeadDataset) -> Result<(), PoolError> {
        let Some(log) = head.log() else {
            return Ok(());
        };
        let trim = log.trim(self.ctx.pool().stable_part_of(self.txg()));
        for block in &trim.free {
            self.ctx.free_log_block(block)?;
        }
        if let Some(header) = trim.header {
            head.set().set_log_header(self.ctx.tx(), header);
        }
        Ok(())
    }

    /// Ends the log of a head, unless a thread uses it just now, or the pool is frozen and needs it. One that waits for its
    /// replay stays: a mount that failed has opened a log to write to, which does not know of it.
    pub(crate) fn end_log(&self, head: &HeadDataset) -> Result<(), PoolError> {
        if self.datasets.has_waiting_log(head.id()) {
            return Ok(());
        }
        let Some(log) = head.log().filter(|_| !self.ctx.pool().is_frozen()) else {
            return Ok(());
        };
        log.retire(self.txg(), &mut |blocks| {
            for block in blocks {
                self.ctx.free_log_block(block)?;
            }
            if head.set().log_header() != [0; 24] {
                head.set().set_log_header(self.ctx.tx(), [0; 24]);
                head.mark(self.txg());
            }
            head.forget_feature(features::ZILSAXATTR);
            self.deactivate_feature(head.id(), features::ZILSAXATTR)
        })?;
        Ok(())
    }

    /// Ends the log of a head that is being destroyed or swapped. Its header is discarded with the head.
    pub(crate) fn free_log_of(&self, log: Option<Arc<dyn HeadLog>>) -> Result<(), PoolError> {
        let Some(log) = log else {
            return Ok(());
        };
        let mut free = |blocks: &[BlockPointer]| {
            let mut blocks = blocks.iter();
            blocks.try_for_each(|block| self.ctx.free_log_block(block))
        };
        match log.retire(self.txg(), &mut free)? {
            true => Ok(()),
            false => Err(contradiction("intent log", "not open for writing")),
        }
    }
}

/// Encodes a header as words.
#[must_use]
pub fn header_words(header: &IntentLogHeader) -> [u64; 24] {
    let mut words = [0; 24];
    let bytes = header.encode();
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    words
}
