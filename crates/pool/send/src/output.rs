//! Collects records in order, and merges those of adjacent ranges.

use crate::batch::{Entry, Unread};
use millpond_block::BlockAddress;
use millpond_ondisk::BlockPointer;
use millpond_stream::{Free, FreeObjects, Record, StreamFeatures, TO_THE_END};

/// A batch is passed on when its blocks have this many bytes,
const BATCH_BYTES: u64 = 4 << 20;
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

    /// Whether blocks of an encrypted dataset are sent as they are stored.
    pub(crate) fn is_raw(&self) -> bool {
        self.features.contains(StreamFeatures::RAW)
    }

    /// Whether what is put here is still written.
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
    pub(crate) fn block(&mut self, pointer: &BlockPointer, address: BlockAddress, unread: Unread) {
        self.settle();
        let entry = Entry::Block(Box::new((*pointer, address, unread)));
        self.put(entry, pointer.lsize_bytes());
    }

    /// A range of an object is a hole.
    pub(crate) fn free(&mut self, object: u64, offset: u64, length: u64) {
        let free = Record::Free(self.range(object, offset, length));
        match length {
            TO_THE_END => self.record(free, vec![]),
            _ => self.grow(free),
        }
    }

    /// A range of an object is redacted.
    pub(crate) fn redact(&mut self, object: u64, offset: u64, length: u64) {
        self.grow(Record::Redact(self.range(object, offset, length)));
    }

    /// No object of a range exists.
    pub(crate) fn free_objects(&mut self, first: u64, count: u64) {
        if count > 0 {
            self.grow(Record::FreeObjects(FreeObjects {
                first,
                count,
                to_guid: self.to_guid,
            }));
        }
    }

    fn range(&self, object: u64, offset: u64, length: u64) -> Free {
        Free {
            object,
            offset,
            length,
            to_guid: self.to_guid,
        }
    }

    /// Adds a range to the last one if it follows that, else begins a new one.
    fn grow(&mut self, next: Record) {
        let is_joined = self.pending.as_mut().is_some_and(|last| join(last, &next));
        if !is_joined {
            self.settle();
            self.pending = Some(next);
        }
    }
}

/// Adds a range to the one before, if they are of one kind and adjacent.
fn join(last: &mut Record, next: &Record) -> bool {
    match (last, next) {
        (Record::Free(last), Record::Free(next)) | (Record::Redact(last), Record::Redact(next))
            if last.object == next.object
                && last.offset.checked_add(last.length) == Some(next.offset) =>
        {
            last.length = last.length.saturating_add(next.length);
            true
        }
        (Record::FreeObjects(last), Record::FreeObjects(next))
            if last.first.checked_add(last.count) == Some(next.first) =>
        {
            last.count = last.count.saturating_add(next.count);
            true
        }
        _ => false,
    }
}
