//! Collects records in order, and merges those of adjacent ranges.

use crate::batch::{Entry, Part};
use millpond_block::BlockAddress;
use millpond_ondisk::BlockPointer;
use millpond_stream::{Free, FreeObjects, Record, StreamFeatures, TO_THE_END};

/// A batch is passed on when its blocks have this many bytes,
const BATCH_BYTES: u64 = 8 << 20;
/// or it has this many records.
const BATCH_RECORDS: usize = 1024;

/// Records on their way to the stream.
pub(crate) struct Output<'a> {
    pub(crate) to_guid: u64,
    pub(crate) features: StreamFeatures,
    batch: Vec<Entry>,
    bytes: u64,
    /// The last range, which may grow.
    pending: Option<Record>,
    /// Returns whether more is wanted.
    pass_on: &'a mut dyn FnMut(Vec<Entry>) -> bool,
    is_wanted: bool,
}

impl<'a> Output<'a> {
    pub(crate) fn new(
        to_guid: u64,
        features: StreamFeatures,
        pass_on: &'a mut dyn FnMut(Vec<Entry>) -> bool,
    ) -> Self {
        Self {
            to_guid,
            features,
            batch: vec![],
            bytes: 0,
            pending: None,
            pass_on,
            is_wanted: true,
        }
    }

    /// Whether what is put here is still read by anyone.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    fn put(&mut self, entry: Entry, bytes: u64) {
        self.batch.push(entry);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= BATCH_BYTES || self.batch.len() >= BATCH_RECORDS {
            self.pass_on();
        }
    }

    fn pass_on(&mut self) {
        self.bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        if self.is_wanted && !batch.is_empty() {
            self.is_wanted = (self.pass_on)(batch);
        }
    }

    /// Ends the range that may grow.
    fn settle(&mut self) {
        if let Some(record) = self.pending.take() {
            self.put(Entry::Record(record, vec![]), 0);
        }
    }

    /// Passes on everything.
    pub(crate) fn finish(&mut self) {
        self.settle();
        self.pass_on();
    }

    /// A record with its payload.
    pub(crate) fn record(&mut self, record: Record, payload: Vec<u8>) {
        self.settle();
        let bytes = payload.len() as u64;
        self.put(Entry::Record(record, payload), bytes);
    }

    /// A record whose payload must be read.
    pub(crate) fn block(&mut self, pointer: &BlockPointer, address: BlockAddress, part: Part) {
        self.settle();
        let entry = Entry::Block(Box::new((*pointer, address, part)));
        self.put(entry, pointer.lsize_bytes());
    }

    /// A range of an object is a hole.
    pub(crate) fn free(&mut self, object: u64, offset: u64, length: u64) {
        let free = Free {
            object,
            offset,
            length,
            to_guid: self.to_guid,
        };
        if length == TO_THE_END {
            return self.record(Record::Free(free), vec![]);
        }
        if let Some(Record::Free(last)) = &mut self.pending
            && last.object == object
            && last.offset.checked_add(last.length) == Some(offset)
        {
            last.length = last.length.saturating_add(length);
            return;
        }
        self.settle();
        self.pending = Some(Record::Free(free));
    }

    /// A range of an object is redacted.
    pub(crate) fn redact(&mut self, object: u64, offset: u64, length: u64) {
        if let Some(Record::Redact(last)) = &mut self.pending
            && last.object == object
            && last.offset.checked_add(last.length) == Some(offset)
        {
            last.length = last.length.saturating_add(length);
            return;
        }
        self.settle();
        self.pending = Some(Record::Redact(Free {
            object,
            offset,
            length,
            to_guid: self.to_guid,
        }));
    }

    /// No object of a range exists.
    pub(crate) fn free_objects(&mut self, first: u64, count: u64) {
        if count == 0 {
            return;
        }
        if let Some(Record::FreeObjects(last)) = &mut self.pending
            && last.first.checked_add(last.count) == Some(first)
        {
            last.count = last.count.saturating_add(count);
            return;
        }
        self.settle();
        self.pending = Some(Record::FreeObjects(FreeObjects {
            first,
            count,
            to_guid: self.to_guid,
        }));
    }
}
