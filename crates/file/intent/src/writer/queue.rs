//! Records in memory, until they are written or their txg is committed.

use millpond_object::LoggedBlock;
use millpond_ondisk::{ObjectId, Txg};
use std::collections::{BTreeMap, VecDeque};

/// The limit for the records of one object that no commit has requested yet, in bytes.
///
/// Beyond the limit the records are dropped, and a commit of the object waits for its txg. Small writes all
/// over a file make the txg write many times as many bytes as their records hold, because the txg writes
/// whole blocks. The limit is therefore generous.
const OBJECT_BYTES_MAX: u64 = 24 << 20;
/// The same limit for the counted share of separately written blocks. It is lower because the txg writes
/// these blocks only once.
const OBJECT_BLOCKS_MAX: u64 = 2 << 20;
/// The limit for all records in memory, in bytes.
const ALL_BYTES_MAX: u64 = 48 << 20;
/// The memory an entry takes besides its record, in bytes.
const ENTRY_BYTES: u64 = 64;
/// The divisor for the size of separately written blocks. Unless overwritten earlier, these blocks stay in
/// memory until their txg is committed anyway, so only this fraction of them counts.
const BLOCK_SHARE: u64 = 8;

/// A change. If it has no record, a commit can only wait for its txg.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) txg: Txg,
    pub(super) record: Option<Vec<u8>>,
    /// The block that the record will point to.
    pub(super) block: Option<LoggedBlock>,
}

impl Entry {
    pub(super) fn new(txg: Txg, record: Option<Vec<u8>>) -> Self {
        Self {
            txg,
            record,
            block: None,
        }
    }
    fn bytes(&self) -> u64 {
        let record = self.record.as_ref().map_or(0, Vec::len);
        let record = u64::try_from(record).unwrap_or(u64::MAX);
        ENTRY_BYTES
            .saturating_add(record)
            .saturating_add(self.block_share())
    }
    /// The part of `bytes` that the entry's block contributes.
    fn block_share(&self) -> u64 {
        self.block.as_ref().map_or(0, LoggedBlock::bytes) / BLOCK_SHARE
    }
}

#[derive(Debug, Default)]
struct OfObject {
    entries: VecDeque<Entry>,
    bytes: u64,
    /// The part of `bytes` that blocks contribute.
    block_share: u64,
}

/// The entries that a writer takes out of the queue.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) entries: Vec<Entry>,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Entries in the global order, each with its number.
    ordered: VecDeque<(u64, Entry)>,
    /// Entries by object, until the object is committed.
    of_objects: BTreeMap<ObjectId, OfObject>,
    bytes: u64,
    /// The number of the next entry of `ordered`.
    next: u64,
    /// All entries with lower numbers are on stable storage.
    stable: u64,
    /// The first number that the writer took out, and the last txg of what it took.
    under_way: Option<(u64, Txg)>,
    /// The same for a batch that could not be written, until its txgs are committed.
    failed: Option<(u64, Txg)>,
    is_writing: bool,
}

impl Queue {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn append(&mut self, entry: Entry, object: Option<ObjectId>) {
        let txg = entry.txg;
        match object {
            None => {
                let last = self.ordered.back().map(|(_, last)| last);
                let says_so = last.is_some_and(|last| last.record.is_none() && last.txg >= txg);
                if entry.record.is_some() || !says_so {
                    self.push(entry);
                }
            }
            Some(object) => {
                let of_object = self.of_objects.entry(object).or_default();
                let last = of_object.entries.back();
                // A commit must wait for this txg anyway, so it needs no record.
                if last.is_some_and(|last| last.record.is_none() && last.txg >= txg) {
                    return;
                }
                let bytes = entry.bytes();
                of_object.bytes = of_object.bytes.saturating_add(bytes);
                of_object.block_share = of_object.block_share.saturating_add(entry.block_share());
                self.bytes = self.bytes.saturating_add(bytes);
                of_object.entries.push_back(entry);
                if of_object.bytes > OBJECT_BYTES_MAX || of_object.block_share > OBJECT_BLOCKS_MAX {
                    self.bytes = self.bytes.saturating_sub(collapse(of_object));
                }
            }
        }
        if self.bytes > ALL_BYTES_MAX {
            self.collapse_all();
        }
    }

    fn push(&mut self, entry: Entry) {
        self.bytes = self.bytes.saturating_add(entry.bytes());
        self.ordered.push_back((self.next, entry));
        self.next = self.next.saturating_add(1);
    }

    /// Drops all records. Commits then wait for the txgs.
    fn collapse_all(&mut self) {
        let mut saved = 0;
        for of_object in self.of_objects.values_mut() {
            saved = collapse(of_object).saturating_add(saved);
        }
        for (_, entry) in &mut self.ordered {
            let before = entry.bytes();
            (entry.record, entry.block) = (None, None);
            saved = before.saturating_sub(entry.bytes()).saturating_add(saved);
        }
        self.bytes = self.bytes.saturating_sub(saved);
    }

    pub(super) fn promote(&mut self, object: ObjectId) {
        let Some(of_object) = self.of_objects.remove(&object) else {
            return;
        };
        self.bytes = self.bytes.saturating_sub(of_object.bytes);
        for entry in of_object.entries {
            self.push(entry);
        }
    }
    /// Moves the records of an object, or of all objects, to the global order.
    ///
    /// Returns the number below which all entries must be stable.
    pub(super) fn aim(&mut self, object: Option<ObjectId>) -> u64 {
        match object {
            Some(object) => self.promote(object),
            None => {
                let objects: Vec<_> = self.of_objects.keys().copied().collect();
                for object in objects {
                    self.promote(object);
                }
            }
        }
        self.next
    }
    pub(super) fn forget(&mut self, object: ObjectId) {
        if let Some(of_object) = self.of_objects.remove(&object) {
            self.bytes = self.bytes.saturating_sub(of_object.bytes);
        }
    }

    pub(super) fn is_stable(&self, number: u64) -> bool {
        self.stable >= number
    }
    pub(super) fn is_writing(&self) -> bool {
        self.is_writing
    }

    /// Takes out the next entries, about `bytes_max` bytes at most, for one writer at a time.
    ///
    /// Returns `None` if a change without a record comes first, or if an earlier batch could not be written.
    pub(super) fn take(&mut self, synced: Txg, bytes_max: u64) -> Option<Batch> {
        if self.failed.is_some() {
            return None;
        }
        let mut batch = Batch::default();
        let (mut bytes, mut last) = (0u64, Txg(0));
        let first = self
            .ordered
            .front()
            .map_or(self.next, |(number, _)| *number);
        while let Some((_, entry)) = self.ordered.front() {
            let is_history = entry.txg <= synced;
            if !is_history && (entry.record.is_none() || bytes > bytes_max) {
                break;
            }
            let Some((_, entry)) = self.ordered.pop_front() else {
                break;
            };
            self.bytes = self.bytes.saturating_sub(entry.bytes());
            if is_history {
                continue;
            }
            bytes = bytes.saturating_add(entry.bytes());
            last = last.max(entry.txg);
            batch.entries.push(entry);
        }
        if batch.entries.is_empty() && !self.ordered.is_empty() {
            return None;
        }
        self.under_way = Some((first, last));
        self.is_writing = true;
        Some(batch)
    }
    /// Becomes the one writer, with nothing to write. Returns false if there is one already.
    pub(super) fn take_turn(&mut self) -> bool {
        !std::mem::replace(&mut self.is_writing, true)
    }
    /// Ends the writer's work. If it succeeded, its batch is stable. If it failed, the batch becomes stable
    /// when its txgs are committed; the writer waits for them.
    pub(super) fn finish(&mut self, is_stable: bool) {
        self.is_writing = false;
        let taken = self.under_way.take();
        if !is_stable {
            self.failed = taken;
        }
        self.raise();
    }
    fn raise(&mut self) {
        let front = self
            .ordered
            .front()
            .map_or(self.next, |(number, _)| *number);
        let not_yet = [self.under_way, self.failed];
        let firsts = not_yet.iter().flatten().map(|(first, _)| *first);
        self.stable = self.stable.max(firsts.fold(front, u64::min));
    }

    pub(super) fn committed(&mut self, txg: Txg) {
        let mut freed = 0u64;
        let mut keep = |entry: &Entry| {
            let keeps = entry.txg > txg;
            if !keeps {
                freed = freed.saturating_add(entry.bytes());
            }
            keeps
        };
        self.ordered.retain(|(_, entry)| keep(entry));
        self.of_objects.retain(|_, of_object| {
            of_object.entries.retain(&mut keep);
            let sum = |bytes: fn(&Entry) -> u64| {
                let entries = of_object.entries.iter().map(bytes);
                entries.fold(0, u64::saturating_add)
            };
            (of_object.bytes, of_object.block_share) = (sum(Entry::bytes), sum(Entry::block_share));
            !of_object.entries.is_empty()
        });
        self.bytes = self.bytes.saturating_sub(freed);
        for taken in [&mut self.under_way, &mut self.failed] {
            if taken.is_some_and(|(_, last)| last <= txg) {
                *taken = None;
            }
        }
        self.raise();
    }
}

/// Replaces an object's records with one entry that makes commits wait. Returns the bytes saved.
fn collapse(of_object: &mut OfObject) -> u64 {
    let Some(last) = of_object.entries.iter().map(|entry| entry.txg).max() else {
        return 0;
    };
    let note = Entry::new(last, None);
    let saved = of_object.bytes.saturating_sub(note.bytes());
    (of_object.bytes, of_object.block_share) = (note.bytes(), 0);
    of_object.entries = VecDeque::from([note]);
    saved
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(byte: u8) -> Option<Vec<u8>> {
        Some(vec![byte; 32])
    }
    fn bytes_of(batch: Option<Batch>) -> Vec<u8> {
        let entries = batch.unwrap().entries;
        entries
            .iter()
            .map(|entry| entry.record.as_ref().unwrap()[0])
            .collect()
    }

    #[test]
    fn records_of_an_object_follow_the_ordered_ones() {
        let mut queue = Queue::default();
        queue.append(Entry::new(Txg(5), record(1)), Some(ObjectId(7)));
        queue.append(Entry::new(Txg(5), record(2)), None);
        queue.append(Entry::new(Txg(5), record(3)), Some(ObjectId(8)));
        assert_eq!(queue.aim(Some(ObjectId(7))), 2);
        assert_eq!(bytes_of(queue.take(Txg(4), 1 << 20)), [2, 1]);
        queue.finish(true);
        assert!(queue.is_stable(2));
        assert_eq!(queue.aim(None), 3);
        assert!(!queue.is_stable(3));
    }

    #[test]
    fn an_unlogged_change_blocks_later_records() {
        let mut queue = Queue::default();
        queue.append(Entry::new(Txg(5), record(1)), None);
        queue.append(Entry::new(Txg(5), None), None);
        queue.append(Entry::new(Txg(6), record(2)), None);
        assert_eq!(bytes_of(queue.take(Txg(4), 1 << 20)), [1]);
        queue.finish(true);
        assert_eq!(queue.take(Txg(4), 1 << 20), None);
        assert!(!queue.is_stable(2));
        queue.committed(Txg(5));
        assert!(queue.is_stable(2) && !queue.is_stable(3));
        assert_eq!(bytes_of(queue.take(Txg(5), 1 << 20)), [2]);
    }

    #[test]
    fn taken_records_are_stable_when_written_or_committed() {
        let mut queue = Queue::default();
        queue.append(Entry::new(Txg(5), record(1)), None);
        queue.append(Entry::new(Txg(6), record(2)), None);
        let _ = queue.take(Txg(4), 1 << 20);
        queue.committed(Txg(5));
        assert!(!queue.is_stable(1));
        queue.committed(Txg(6));
        assert!(queue.is_stable(2));
    }

    #[test]
    fn a_failed_write_blocks_the_log_until_its_txgs_commit() {
        let mut queue = Queue::default();
        queue.append(Entry::new(Txg(5), record(1)), None);
        let _ = queue.take(Txg(4), 1 << 20);
        queue.finish(false);
        queue.append(Entry::new(Txg(6), record(2)), None);
        assert_eq!(queue.take(Txg(4), 1 << 20), None);
        assert!(!queue.is_stable(1));
        queue.committed(Txg(5));
        assert!(queue.is_stable(1) && !queue.is_stable(2));
        assert_eq!(bytes_of(queue.take(Txg(5), 1 << 20)), [2]);
    }

    #[test]
    fn memory_is_bounded_by_waiting_for_the_txg_instead() {
        let mut queue = Queue::default();
        for _ in 0..1000 {
            queue.append(
                Entry::new(Txg(5), Some(vec![0; 100_000])),
                Some(ObjectId(7)),
            );
        }
        assert!(queue.bytes() < OBJECT_BYTES_MAX + 200_000);
        queue.aim(None);
        assert_eq!(queue.take(Txg(4), 1 << 20), None);
        for _ in 0..1000 {
            queue.append(Entry::new(Txg(5), Some(vec![0; 100_000])), None);
        }
        assert!(queue.bytes() <= ALL_BYTES_MAX + 200_000);
        queue.committed(Txg(5));
        assert_eq!(queue.bytes(), 0);
    }

    #[test]
    fn thousands_of_small_writes_to_one_object_keep_their_records() {
        let mut queue = Queue::default();
        for _ in 0..4096 {
            queue.append(Entry::new(Txg(5), Some(vec![0; 4300])), Some(ObjectId(7)));
        }
        queue.aim(Some(ObjectId(7)));
        let mut taken = 0;
        while let Some(batch) = queue.take(Txg(4), 2 << 20) {
            if batch.entries.is_empty() {
                break;
            }
            taken += batch.entries.len();
            queue.finish(true);
        }
        assert_eq!(taken, 4096);
    }

    #[test]
    fn records_of_removed_objects_are_dropped() {
        let mut queue = Queue::default();
        queue.append(Entry::new(Txg(5), record(1)), Some(ObjectId(7)));
        queue.forget(ObjectId(7));
        assert_eq!((queue.aim(None), queue.bytes()), (0, 0));
    }
}
