//! Writes to a volume and frees its blocks.

use crate::{Volume, VolumeError};
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex, MutexGuard};
use millpond_object::{Object, ObjectSet, unhurried};
use millpond_ondisk::BlockId;
use millpond_posix::{
    CHUNK_BYTES, Estimate, FREE_BLOCKS_MAX, FREE_DIRTY_BYTES, RangeLocks, TransactionSource,
};
use millpond_txg::Transaction;

/// What a volume that is open for change has in addition.
pub(crate) struct Writing {
    set: Arc<ObjectSet>,
    data: Arc<Object>,
    table: Arc<Object>,
    source: Arc<dyn TransactionSource>,
    /// Held while the size changes.
    resizing: Mutex<(), rank::VolumeSize>,
    ranges: RangeLocks,
}

impl Writing {
    pub(crate) fn new(
        set: &Arc<ObjectSet>,
        data: &Arc<Object>,
        table: &Arc<Object>,
        source: Arc<dyn TransactionSource>,
    ) -> Self {
        Self {
            set: Arc::clone(set),
            data: Arc::clone(data),
            table: Arc::clone(table),
            source,
            resizing: Mutex::new(()),
            ranges: RangeLocks::default(),
        }
    }
    pub(crate) fn set(&self) -> &Arc<ObjectSet> {
        &self.set
    }
    pub(crate) fn data(&self) -> &Arc<Object> {
        &self.data
    }
    pub(crate) fn table(&self) -> &Arc<Object> {
        &self.table
    }
    pub(crate) fn source(&self) -> &dyn TransactionSource {
        &*self.source
    }
    pub(crate) fn ranges(&self) -> &RangeLocks {
        &self.ranges
    }
    pub(crate) fn lock_size(&self) -> MutexGuard<'_, ()> {
        self.resizing.lock()
    }
}

impl Volume {
    pub(crate) fn begin(&self, bytes: u64) -> Result<Transaction, VolumeError> {
        self.begin_as(Estimate {
            bytes,
            ..Estimate::default()
        })
    }
    pub(crate) fn begin_freeing(
        &self,
        bytes: u64,
        freed_blocks: u64,
    ) -> Result<Transaction, VolumeError> {
        self.begin_as(Estimate {
            bytes,
            is_freeing: true,
            freed_blocks,
            ..Estimate::default()
        })
    }
    fn begin_as(&self, estimate: Estimate) -> Result<Transaction, VolumeError> {
        let begun = self.writing()?.source.begin(estimate);
        begun.map_err(|error| self.errors().begin(error))
    }
    /// Extends a range to whole blocks, because changes to one block must happen in txg order.
    fn blocks_around(&self, start: u64, end: u64) -> std::ops::Range<u64> {
        let block = self.block_bytes();
        start - start % block..end.div_ceil(block).saturating_mul(block)
    }

    /// Writes bytes. A long write uses several transactions.
    ///
    /// # Errors
    /// [`VolumeError::BeyondEnd`] before anything is written; [`VolumeError::Transaction`]; if a block that
    /// is only partly overwritten cannot be read.
    pub fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), VolumeError> {
        let writing = self.writing()?;
        let length = bytes.len() as u64;
        let around = self.blocks_around(offset_bytes, offset_bytes.saturating_add(length));
        let range = writing.ranges.write(around);
        let end = self.check_range(offset_bytes, length)?;
        self.write_all(offset_bytes, end, bytes)?;
        drop(range);
        self.settle()
    }

    fn write_all(&self, offset_bytes: u64, end: u64, bytes: &[u8]) -> Result<(), VolumeError> {
        let data = &self.writing()?.data;
        let (mut from, mut rest) = (offset_bytes, bytes);
        while from < end {
            let to = (from - from % CHUNK_BYTES + CHUNK_BYTES).min(end);
            let (now, later) = rest.split_at((to - from) as usize);
            // While this read waits for a device, it blocks only requests for the same blocks.
            let edges = unhurried(|| data.read_edges(from, to - from));
            let edges = edges.map_err(|error| self.errors().object(error))?;
            let tx = self.begin_as(Estimate {
                bytes: (to - from) + 2 * self.block_bytes(),
                written_bytes: to - from,
                ..Estimate::default()
            })?;
            let written = data.write_over(&tx, from, now, &edges);
            written.map_err(|error| self.errors().object(error))?;
            self.record_write(&tx, data, from, now);
            (from, rest) = (to, later);
        }
        Ok(())
    }

    /// Frees the blocks that lie wholly inside a range. They then read as zeros.
    ///
    /// The rest of the range does not change.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), VolumeError> {
        let end = self.check_range(offset_bytes, length_bytes)?;
        let block = self.block_bytes();
        let start = offset_bytes.div_ceil(block).saturating_mul(block);
        let end = end - end % block;
        if start >= end {
            return Ok(());
        }
        self.zero(start, end - start)
    }

    /// Makes a range read as zeros, and frees the blocks that lie wholly inside it.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn zero(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), VolumeError> {
        let around = self.blocks_around(offset_bytes, offset_bytes.saturating_add(length_bytes));
        let range = self.writing()?.ranges.write(around);
        let end = self.check_range(offset_bytes, length_bytes)?;
        self.free(offset_bytes, end)?;
        drop(range);
        self.settle()
    }

    /// Frees a range that the caller has locked, a limited number of blocks per transaction.
    pub(crate) fn free(&self, start: u64, end: u64) -> Result<(), VolumeError> {
        self.free_each(start, end, &|tx, at, length| {
            self.record_free(tx, at, length);
        })
    }

    pub(crate) fn free_each(
        &self,
        start: u64,
        end: u64,
        record: &dyn Fn(&Transaction, u64, u64),
    ) -> Result<(), VolumeError> {
        let data = &self.writing()?.data;
        let block = self.block_bytes();
        let mut at = start;
        while at < end {
            let range = BlockId(at / block)..BlockId(end.div_ceil(block));
            let chunk = data.next_free_chunk(range.clone(), FREE_BLOCKS_MAX);
            if chunk.blocks == 0 {
                let next = data.next_data(range.start, false);
                let next = next.map_err(|error| self.errors().object(error))?;
                if next.is_none_or(|next| next >= range.end) {
                    return Ok(());
                }
            }
            let to = chunk.end.map_or(end, |to| to.0.saturating_mul(block));
            let tx = self.begin_freeing(FREE_DIRTY_BYTES + 2 * block, chunk.blocks)?;
            let freed = data.free_range(&tx, at, to - at);
            freed.map_err(|error| self.errors().object(error))?;
            record(&tx, at, to - at);
            at = to;
        }
        Ok(())
    }

    /// Puts everything written before the call on stable storage. Does nothing in a volume that can only be read.
    ///
    /// # Errors
    /// [`VolumeError::Transaction`] if the pool is suspended before that.
    pub fn commit_log(&self) -> Result<(), VolumeError> {
        let Ok(writing) = self.writing() else {
            return Ok(());
        };
        let synced = match writing.source.log() {
            Some(log) => log.commit(None),
            None => writing.source.wait_open_synced(),
        };
        synced.map_err(|error| self.errors().begin(error))
    }

    /// The block device name for [`Volume::commit_log`].
    ///
    /// # Errors
    /// [`VolumeError::Transaction`] if the pool is suspended before that.
    pub fn flush(&self) -> Result<(), VolumeError> {
        self.commit_log()
    }
}
