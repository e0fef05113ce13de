//! The intent log of an open head, as far as its sync is concerned. The layer that knows records
//! implements it.
//!
//! Page `docs/format/intent-log.md`, "Writing".

use super::datasets::LiveDatasets;
use super::head::LiveDataset;
use super::syncing::Syncing;
use super::view::contradiction;
use super::{features, may_write::HeadLogFound};
use crate::DatasetError;
use core::any::Any;
use millpond_env::sync::Arc;
use millpond_ondisk::intent_log::IntentLogFlags;
use millpond_ondisk::{BlockPointer, IntentLogHeader, Txg};
use millpond_pool::PoolError;
use millpond_pool::live::FoundLog;

/// What the sync of a txg does to a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogTrim {
    /// Blocks whose records are all in the tree with this txg.
    pub free: Vec<BlockPointer>,
    /// The header's words, if they change.
    pub header: Option<[u64; 24]>,
}

/// A head's intent log while it is in use. All methods are called by whoever writes a txg; none may wait for
/// one.
pub trait HeadLog: Send + Sync {
    /// What of it is history with `txg`. Called once a txg, before the head's objects are written.
    fn trim(&self, txg: Txg) -> LogTrim;
    /// Gives up the whole chain: its blocks, for good. The caller zeroes the header. `None` if blocks were
    /// allocated in a later txg: somebody still uses it.
    fn let_go(&self, txg: Txg) -> Option<Vec<BlockPointer>>;
    /// `txg` is on stable storage: its records need not be kept.
    fn committed(&self, txg: Txg);
}

/// The head's intent log is of another kind: two programs that write logs share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its intent log is written by something else")]
pub struct OtherLog;

/// A head's log, as its sync knows it and as its owner does.
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

impl LiveDatasets {
    /// Names of file systems and volumes whose logs were found with records, those first whose records
    /// refer to blocks of other files: that must be looked at before anything is freed.
    #[must_use]
    pub fn logs_to_replay(&self) -> Vec<String> {
        let to_replay = self.to_replay.lock();
        let mut names: Vec<_> = to_replay.iter().collect();
        names.sort_by_key(|(name, has_clones)| (!**has_clones, (*name).clone()));
        names.into_iter().map(|(name, _)| name.clone()).collect()
    }

    /// Ends a log whose records are all in the tree: its blocks are freed, its header is zeros.
    ///
    /// # Errors
    /// If the pool is suspended, or the log cannot be read again.
    pub fn finish_replay(&self, head: &LiveDataset) -> Result<(), DatasetError> {
        let pool = self.pool()?;
        let set = head.set();
        let header = IntentLogHeader::from_words(&set.log_header());
        if !header.has_chain() {
            return Ok(());
        }
        let first = Txg(pool.uberblock().txg.0.saturating_add(1));
        let found = FoundLog::read(pool.store(), set.dataset(), &header, first, false)?;
        pool.sync_task(|ctx| {
            for block in &found.blocks {
                if block.is_chain {
                    ctx.free_log_block(&block.pointer)?;
                } else {
                    ctx.free_block(&block.pointer)?;
                }
            }
            set.set_log_header(ctx.tx(), [0; 24]);
            head.mark(ctx.txg());
            Syncing::new(self, ctx).deactivate_feature(head.id(), features::ZILSAXATTR)
        })?;
        Ok(())
    }
}

impl Syncing<'_> {
    /// Claims a log that was found. In the first txg, before anything is allocated.
    pub(crate) fn claim_log(&self, found: &HeadLogFound) -> Result<(), PoolError> {
        let txg = self.txg();
        let mut header = found.header;
        let mut taken = vec![];
        for block in &found.log.blocks {
            let is_known = block.pointer.birth() < txg;
            // What cannot be claimed is somebody else's: the log ended in front of it.
            if !is_known && !self.ctx.claim(&block.pointer)? {
                break;
            }
            taken.push(*block);
        }
        let Some(last) = taken.last() else {
            return self.put_log_header(found, &IntentLogHeader::default());
        };
        header.claim_txg = txg;
        header.claim_block_sequence = last.block_sequence;
        header.claim_record_sequence = if taken.len() == found.log.blocks.len() {
            found.log.record_sequence
        } else {
            last.record_sequence
        };
        header.flags = IntentLogFlags::CLAIM_RECORD_SEQUENCE_VALID | IntentLogFlags::REPLAY_NEEDED;
        self.put_log_header(found, &header)
    }

    /// Lets go of a log that holds nothing, or nothing that is wanted.
    pub(crate) fn drop_log(&self, found: &HeadLogFound) -> Result<(), PoolError> {
        self.put_log_header(found, &IntentLogHeader::default())?;
        for block in &found.log.blocks {
            // What was never claimed is free as it is.
            let is_known = found.header.claim_txg != Txg(0) || block.pointer.birth() < self.txg();
            match (is_known, block.is_chain) {
                (false, _) => {}
                (true, true) => self.ctx.free_log_block(&block.pointer)?,
                (true, false) => self.ctx.free_block(&block.pointer)?,
            }
        }
        self.deactivate_feature(found.dataset, features::ZILSAXATTR)
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

    /// What the sync of this txg does to a head's log.
    pub(crate) fn trim_log(&self, head: &LiveDataset) -> Result<(), PoolError> {
        let Some(log) = head.log() else {
            return Ok(());
        };
        let trim = log.trim(self.txg());
        for block in &trim.free {
            self.ctx.free_log_block(block)?;
        }
        if let Some(header) = trim.header {
            head.set().set_log_header(self.ctx.tx(), header);
        }
        Ok(())
    }

    /// Ends the log of a head in use.
    pub(crate) fn end_log(&self, head: &LiveDataset) -> Result<(), PoolError> {
        let Some(log) = head.log() else {
            return Ok(());
        };
        let Some(blocks) = log.let_go(self.txg()) else {
            return Ok(());
        };
        for block in &blocks {
            self.ctx.free_log_block(block)?;
        }
        if head.set().log_header() != [0; 24] {
            head.set().set_log_header(self.ctx.tx(), [0; 24]);
            head.mark(self.txg());
        }
        head.forget_feature(features::ZILSAXATTR);
        self.deactivate_feature(head.id(), features::ZILSAXATTR)
    }

    /// The same, of a head that is being destroyed or exchanged, whose header goes with it.
    pub(crate) fn free_log_of(&self, log: Option<Arc<dyn HeadLog>>) -> Result<(), PoolError> {
        let Some(log) = log else {
            return Ok(());
        };
        let blocks = log.let_go(self.txg());
        let blocks = blocks.ok_or_else(|| contradiction("intent log", "in use by nobody"))?;
        blocks
            .iter()
            .try_for_each(|block| self.ctx.free_log_block(block))
    }
}

/// A header as words.
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
