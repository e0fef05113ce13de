//! Applies changes to the object set.

use crate::decode::{Change, ChangeKind};
use crate::error::ReceiveError;
use crate::objects::PendingSize;
use crate::receive::{ReceiveFrom, received_bytes};
use millpond_dataset::{Estimate, HeadDataset, Receiving, ResumePoint};
use millpond_env::sync::Arc;
use millpond_object::{EncodedContent, Object, ObjectError, ObjectSet};
use millpond_ondisk::{BlockId, ObjectId};
use millpond_pool::Features;
use millpond_stream::{Begin, BeginFlags, FreeObjects};
use millpond_txg::Transaction;

/// What a change of an object dirties beside its blocks, in bytes.
const DNODE_BYTES: u64 = 32 << 10;
/// About the most blocks freed in one transaction.
const FREE_BLOCKS_MAX: u64 = 1 << 15;
/// The most bytes that freeing that many blocks dirties.
const FREE_DIRTY_BYTES: u64 = 8 << 20;
/// Objects from here on do not exist.
pub(crate) const OBJECTS_END: u64 = 1 << 48;

/// Applies the changes of one stream in order.
pub(crate) struct Applier<'a> {
    pub(crate) head: &'a Arc<HeadDataset>,
    pub(crate) set: Arc<ObjectSet>,
    pub(crate) features: Features,
    /// Whether the stream has all objects, so that nothing of an older state is kept.
    pub(crate) is_full: bool,
    pub(crate) has_spill_flags: bool,
    from: ReceiveFrom,
    is_resumable: bool,
    /// Where the current record begins.
    pub(crate) at: u64,
    end: u64,
    /// The last block that was written.
    last: (u64, u64),
    /// The highest object that was mentioned.
    highest: u64,
    /// Whether blocks come as they are stored, without their key.
    pub(crate) is_raw: bool,
    /// The last block of dnodes of a raw stream.
    pub(crate) last_dnode_block: u64,
    /// The first object of the block of dnodes that a raw stream is in.
    pub(crate) range: Option<u64>,
    /// The object of the last record.
    known: Option<Arc<Object>>,
    /// A file whose blocks have another size than the sender's.
    pub(crate) pending_size: Option<PendingSize>,
}

impl<'a> Applier<'a> {
    pub(crate) fn new(
        begin: &Begin,
        receiving: &'a Receiving,
        from: ReceiveFrom,
        features: Features,
    ) -> Self {
        Self {
            head: receiving.head(),
            set: receiving.head().set(),
            features,
            is_full: begin.from_guid == 0,
            has_spill_flags: begin.flags.contains(BeginFlags::SPILL_BLOCKS),
            from,
            is_resumable: receiving.is_resumable(),
            at: from.at,
            end: from.at,
            last: (0, 0),
            // Objects up to here came with an earlier stream that this one resumes.
            highest: from.point.object,
            is_raw: receiving.is_raw(),
            last_dnode_block: receiving.last_dnode_block(),
            range: None,
            known: None,
            pending_size: None,
        }
    }

    /// The bytes of the stream so far, without the header of its beginning.
    pub(crate) fn length(&self) -> u64 {
        received_bytes(&self.from, self.end)
    }

    pub(crate) fn invalid(&self, reason: &str) -> ReceiveError {
        ReceiveError::Invalid {
            at: self.at,
            reason: reason.to_owned(),
        }
    }
    pub(crate) fn failed(&self, error: ObjectError) -> ReceiveError {
        ReceiveError::of_object(self.at, error)
    }

    /// Applies a change. Returns whether it was the last one.
    pub(crate) fn apply(&mut self, change: Change) -> Result<bool, ReceiveError> {
        (self.at, self.end) = (change.at, change.end);
        match change.kind {
            ChangeKind::Object(record, bonus) => {
                self.highest = self.highest.max(record.object);
                self.known = None;
                self.object(&record, bonus)?;
            }
            ChangeKind::FreeObjects(free) => self.free_objects(&free)?,
            ChangeKind::Free {
                object,
                offset,
                length,
            } => {
                let object = self.existing(object)?;
                self.check_whole(&object, offset, length)?;
                if length.is_none() {
                    self.note_end(object.id().0, offset);
                }
                let end = length.map_or(u64::MAX, |length| offset.saturating_add(length));
                self.resize_if_replaced(&object, offset..end)?;
                self.free(&object, offset, length)?;
            }
            ChangeKind::Range(first, seal) => self.range(first, seal)?,
            ChangeKind::RawObject(record, raw) => {
                self.highest = self.highest.max(record.object);
                self.known = None;
                self.raw_object(&record, &raw)?;
            }
            ChangeKind::SealedWrite {
                object,
                offset,
                bytes,
                stored,
            } => {
                self.check_order(object, offset)?;
                self.sealed_write(object, offset, bytes, stored)?;
            }
            ChangeKind::SealedSpill {
                object,
                bytes,
                stored,
                is_unmodified,
            } => {
                let object = self.existing(object)?;
                if !(is_unmodified && object.keeps_spill()) {
                    self.sealed_spill(&object, bytes, stored)?;
                }
            }
            ChangeKind::Write {
                object,
                offset,
                content,
                encoded,
            } => {
                self.check_order(object, offset)?;
                self.write(object, offset, content, encoded)?;
            }
            ChangeKind::Spill {
                object,
                content,
                is_unmodified,
            } => {
                let object = self.existing(object)?;
                // The one that is here is the same.
                if !(is_unmodified && object.has_spill()) {
                    let tx = self.begin(content.len() as u64)?;
                    let done = object.set_spill(&tx, Some(content));
                    done.map_err(|error| self.failed(error))?;
                }
            }
            ChangeKind::End => {
                if self.from.is_over_origin {
                    self.free_above(self.highest)?;
                }
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checks that blocks come in order.
    fn check_order(&mut self, object: u64, offset: u64) -> Result<(), ReceiveError> {
        if (object, offset) < self.last {
            return Err(self.invalid("a block before the last one"));
        }
        self.last = (object, offset);
        Ok(())
    }

    /// Begins a transaction that dirties about this many bytes of content.
    pub(crate) fn begin(&self, bytes: u64) -> Result<Transaction, ReceiveError> {
        Ok(self.head.begin(Estimate {
            bytes: bytes.saturating_add(DNODE_BYTES),
            written_bytes: bytes,
            ..Estimate::default()
        })?)
    }

    /// Begins a transaction that writes this many bytes of blocks.
    pub(crate) fn begin_writing(&self, bytes: u64) -> Result<Transaction, ReceiveError> {
        Ok(self.head.begin(Estimate {
            bytes: bytes.saturating_mul(3),
            written_bytes: bytes,
            ..Estimate::default()
        })?)
    }

    fn begin_freeing(&self, blocks: u64) -> Result<Transaction, ReceiveError> {
        Ok(self.head.begin(Estimate {
            bytes: FREE_DIRTY_BYTES,
            is_freeing: true,
            freed_blocks: blocks,
            ..Estimate::default()
        })?)
    }

    /// Records how far the stream was received with the changes of a transaction.
    pub(crate) fn note(&self, tx: &Transaction, object: u64, offset: u64) {
        if self.is_resumable {
            let bytes = self.from.point.bytes.saturating_add(self.length());
            let point = ResumePoint {
                object,
                offset,
                bytes,
            };
            self.head.note_received(tx, point);
        }
    }

    pub(crate) fn existing(&mut self, id: u64) -> Result<Arc<Object>, ReceiveError> {
        if let Some(known) = &self.known
            && known.id() == ObjectId(id)
        {
            return Ok(Arc::clone(known));
        }
        let object = self.set.object(ObjectId(id));
        let object = object.map_err(|error| self.failed(error))?;
        self.known = Some(Arc::clone(&object));
        Ok(object)
    }

    fn write(
        &mut self,
        id: u64,
        offset: u64,
        content: Vec<u8>,
        encoded: Option<EncodedContent>,
    ) -> Result<(), ReceiveError> {
        let object = self.existing(id)?;
        let end = offset.saturating_add(content.len() as u64);
        self.resize_if_replaced(&object, offset..end)?;
        self.resize_single(&object)?;
        let block_bytes = object.block_bytes();
        let tx = self.begin_writing(content.len() as u64)?;
        let is_whole =
            content.len() as u64 == block_bytes && offset.is_multiple_of(block_bytes.max(1));
        let block = BlockId(offset.checked_div(block_bytes).unwrap_or(0));
        let done = match encoded {
            Some(encoded) if is_whole => object.write_encoded(&tx, block, content, encoded),
            None if is_whole => object.write_block(&tx, block, content),
            // The object has other blocks than the sender's.
            _ => object.write(&tx, offset, &content),
        };
        done.map_err(|error| self.failed(error))?;
        self.note(&tx, id, offset);
        Ok(())
    }

    /// Frees a range of an object, to its end if there is no length.
    pub(crate) fn free(
        &self,
        object: &Object,
        offset: u64,
        length: Option<u64>,
    ) -> Result<(), ReceiveError> {
        let size = object.block_bytes().max(1);
        let end = length.map(|length| offset.saturating_add(length));
        let last = end.map_or(u64::MAX, |end| end.checked_div(size).unwrap_or(0));
        let mut at = offset;
        loop {
            let first = at.div_ceil(size);
            let chunk = object.next_free_chunk(BlockId(first)..BlockId(last), FREE_BLOCKS_MAX);
            let tx = self.begin_freeing(chunk.blocks)?;
            let until = chunk.end.map(|end| end.0.saturating_mul(size));
            let length = match until.or(end) {
                Some(until) => until.saturating_sub(at),
                None => u64::MAX,
            };
            let done = object.free_range(&tx, at, length);
            done.map_err(|error| self.failed(error))?;
            match until {
                Some(until) if until > at => at = until,
                _ => return Ok(()),
            }
        }
    }

    /// Frees an object with its contents.
    pub(crate) fn free_object(&self, id: ObjectId) -> Result<(), ReceiveError> {
        let object = self.set.object(id).map_err(|error| self.failed(error))?;
        let mut first = BlockId(0);
        let blocks = loop {
            let chunk = object.next_free_chunk(first..BlockId(u64::MAX), FREE_BLOCKS_MAX);
            let Some(end) = chunk.end else {
                break chunk.blocks;
            };
            let size = object.block_bytes();
            let tx = self.begin_freeing(chunk.blocks)?;
            let from = first.0.saturating_mul(size);
            let length = end.0.saturating_mul(size).saturating_sub(from);
            let done = object.free_range(&tx, from, length);
            done.map_err(|error| self.failed(error))?;
            first = end;
        };
        let tx = self.begin_freeing(blocks)?;
        self.set.free(&tx, id).map_err(|error| self.failed(error))
    }

    fn free_objects(&mut self, free: &FreeObjects) -> Result<(), ReceiveError> {
        self.known = None;
        let end = free.first.saturating_add(free.count).min(OBJECTS_END);
        if free.count > 0 {
            self.highest = self.highest.max(end.saturating_sub(1));
        }
        self.free_until(free.first, end)
    }

    fn free_above(&self, highest: u64) -> Result<(), ReceiveError> {
        self.free_until(highest.saturating_add(1), u64::MAX)
    }

    /// Frees the objects of a range.
    fn free_until(&self, first: u64, end: u64) -> Result<(), ReceiveError> {
        let mut after = ObjectId(first.saturating_sub(1));
        loop {
            let next = self.set.next_object(after);
            match next.map_err(|error| self.failed(error))? {
                Some(id) if id.0 < end => {
                    self.free_object(id)?;
                    after = id;
                }
                _ => return Ok(()),
            }
        }
    }
}
