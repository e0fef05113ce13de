//! A volume's intent log: recording and replaying changes. Page `docs/format/intent-log-records.md`.

use crate::resize::TABLE_BYTES;
use crate::volume::DATA;
use crate::{Volume, VolumeError};
use millpond_env::sync::Arc;
use millpond_object::{Block, Object, ObjectError};
use millpond_ondisk::intent_log::{LogRecord, LogRecordBody, LoggedPointers, WriteContent};
use millpond_ondisk::{BlockPointer, ObjectId};
use millpond_posix::{ChangeLog, FREE_DIRTY_BYTES, record_write};
use millpond_txg::Transaction;

/// Reads the block that a record points to, given the object and the byte offset it belongs to.
pub type ReplayBlock<'a> =
    dyn FnMut(&BlockPointer, ObjectId, u64) -> Result<Arc<Block>, ObjectError> + 'a;

impl Volume {
    fn log(&self) -> Option<&dyn ChangeLog> {
        self.writing().ok()?.source().log()
    }

    fn record(&self, tx: &Transaction, body: LogRecordBody<'_>) {
        let Some(log) = self.log() else { return };
        match LogRecord::new(tx.txg(), body).encode() {
            Ok(bytes) if log.is_wanted() => log.append(tx, Some(DATA), bytes),
            _ => log.append_unlogged(tx, None),
        }
    }

    pub(crate) fn record_write(
        &self,
        tx: &Transaction,
        data: &Arc<Object>,
        offset: u64,
        bytes: &[u8],
    ) {
        let Some(log) = self.log() else { return };
        match log.is_wanted() {
            true => record_write(log, tx, data, offset, bytes),
            false => log.append_unlogged(tx, None),
        }
    }
    pub(crate) fn record_free(&self, tx: &Transaction, offset: u64, length: u64) {
        let body = LogRecordBody::Truncate {
            object: DATA,
            offset,
            length,
        };
        self.record(tx, body);
    }

    /// Runs at the end of a request. With `sync=always`, commits the request to stable storage before it
    /// returns.
    pub(crate) fn settle(&self) -> Result<(), VolumeError> {
        match self.log() {
            Some(log) if log.commits_always() => self.commit_log(),
            _ => Ok(()),
        }
    }

    /// Replays a record.
    ///
    /// The transaction that completes the record also stores `header` as the intent log's header. Bytes
    /// beyond the volume's end are ignored. Replay writes no new records.
    ///
    /// # Errors
    /// [`VolumeError::Refused`] for a record that is invalid for a volume; the errors of writing.
    pub fn replay_record(
        &self,
        record: &LogRecord<'_>,
        header: [u64; 24],
        read: &mut ReplayBlock<'_>,
    ) -> Result<(), VolumeError> {
        match &record.body {
            LogRecordBody::Write {
                object: DATA,
                offset,
                content,
                ..
            } => match content {
                WriteContent::Immediate(bytes) => self.write_again(*offset, bytes, Some(header)),
                WriteContent::Indirect(pointer) => {
                    let start = offset - offset % pointer.lsize_bytes().max(1);
                    let block = self.read_replayed(read, pointer, start)?;
                    self.write_again(start, &block.bytes, Some(header))
                }
            },
            LogRecordBody::Truncate {
                object: DATA,
                offset,
                length,
            } => {
                let length = match *length {
                    0 => u64::MAX,
                    length => length,
                };
                self.free_again(*offset, length, Some(header))
            }
            LogRecordBody::CloneRange {
                object: DATA,
                offset,
                length,
                block_bytes,
                pointers,
            } => {
                let range = (*offset, *length, *block_bytes);
                self.replay_clone(range, *pointers, header, read)
            }
            _ => Err(self
                .errors()
                .refused("a record of the intent log that no volume can have")),
        }
    }

    /// Writes the content of cloned blocks. OpenZFS logs holes, too: as pointers that need not say how long they are.
    fn replay_clone(
        &self,
        (offset, length, block_bytes): (u64, u64, u64),
        pointers: LoggedPointers<'_>,
        header: [u64; 24],
        read: &mut ReplayBlock<'_>,
    ) -> Result<(), VolumeError> {
        let not_valid = || {
            let reason = "a clone record of the intent log that does not fit its blocks";
            self.errors().refused(reason)
        };
        let end = offset.checked_add(length).ok_or_else(not_valid)?;
        if block_bytes == 0 || !offset.is_multiple_of(block_bytes) {
            return Err(not_valid());
        }
        let mut at = offset;
        for pointer in pointers.iter() {
            if at >= end {
                break;
            }
            let count = block_bytes.min(end - at);
            if pointer.is_hole() {
                self.free_again(at, count, None)?;
            } else {
                let block = self.read_replayed(read, &pointer, at)?;
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                let bytes = block.bytes.get(..count).ok_or_else(not_valid)?;
                self.write_again(at, bytes, None)?;
            }
            at = at.saturating_add(block_bytes);
        }
        let tx = self.begin_freeing(TABLE_BYTES, 0)?;
        self.writing()?.set().set_log_header(&tx, header);
        Ok(())
    }

    fn read_replayed(
        &self,
        read: &mut ReplayBlock<'_>,
        pointer: &BlockPointer,
        offset: u64,
    ) -> Result<Arc<Block>, VolumeError> {
        read(pointer, DATA, offset).map_err(|error| self.errors().object(error))
    }

    /// Frees a range, up to the volume's end.
    fn free_again(
        &self,
        offset: u64,
        length: u64,
        header: Option<[u64; 24]>,
    ) -> Result<(), VolumeError> {
        let length = length.min(self.size_bytes().saturating_sub(offset));
        if length == 0 {
            return Ok(());
        }
        let tx = self.begin_freeing(FREE_DIRTY_BYTES, 0)?;
        let freed = self.writing()?.data().free_range(&tx, offset, length);
        freed.map_err(|error| self.errors().object(error))?;
        if let Some(header) = header {
            self.writing()?.set().set_log_header(&tx, header);
        }
        Ok(())
    }

    fn write_again(
        &self,
        offset: u64,
        bytes: &[u8],
        header: Option<[u64; 24]>,
    ) -> Result<(), VolumeError> {
        let left = self.size_bytes().saturating_sub(offset);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let bytes = bytes.get(..count).unwrap_or_default();
        let tx = self.begin_freeing(bytes.len() as u64 + 2 * self.block_bytes(), 0)?;
        let written = self.writing()?.data().write(&tx, offset, bytes);
        written.map_err(|error| self.errors().object(error))?;
        if let Some(header) = header {
            self.writing()?.set().set_log_header(&tx, header);
        }
        Ok(())
    }
}
