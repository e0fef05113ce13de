//! Records in memory, until they are written or their txg is committed.

use super::bursts::{Bursts, Ticket};
use millpond_object::LoggedBlock;
use millpond_ondisk::{ObjectId, Txg};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

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

/// What a caller has to do whose entries are not on stable storage.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Write these entries.
    Write(Ticket, Batch),
    /// Wait for another thread, and ask again.
    Wait,
    /// The same, at most this long.
    WaitFor(Duration),
    /// Ask again.
    Again,
    /// Wait for the txg: a change without a record comes first, or an earlier burst could not be written.
    Txg,
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
    /// What writers took out.
    bursts: Bursts,
    /// No thread may write, because the log is being retired.
    is_held: bool,
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

    /// The next step of a caller that needs the entries below `target`.
    ///
    /// Takes out about `bytes_max` bytes of entries at most. They are in order, and the tickets are in the order of
    /// the entries.
    pub(super) fn next(&mut self, target: u64, synced: Txg, bytes_max: u64, now_ns: u64) -> Next {
        if self
            .bursts
            .first_failed()
            .is_some_and(|first| first < target)
        {
            return Next::Txg;
        }
        let has_all = self.ordered.front().is_none_or(|(n, _)| *n >= target);
        if self.is_held || has_all || self.bursts.is_full() {
            return Next::Wait;
        }
        let patience_ns = self.bursts.patience_ns(now_ns);
        if patience_ns > 0 {
            return Next::WaitFor(Duration::from_nanos(patience_ns));
        }
        let mut batch = Batch::default();
        let (mut bytes, mut last) = (0u64, Txg(0));
        let first = self.front();
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
        if !batch.entries.is_empty() {
            return Next::Write(self.bursts.add(first, last, now_ns), batch);
        }
        if self.front() > first {
            self.raise();
            return Next::Again;
        }
        Next::Txg
    }
    /// The number of the first entry that no writer has taken.
    fn front(&self) -> u64 {
        let front = self.ordered.front();
        front.map_or(self.next, |(number, _)| *number)
    }
    /// Keeps writers out. Returns false if a thread writes or keeps them out.
    pub(super) fn hold(&mut self) -> bool {
        if self.is_held || !self.bursts.is_empty() {
            return false;
        }
        self.is_held = true;
        true
    }
    pub(super) fn release(&mut self) {
        self.is_held = false;
    }
    /// Whether it is the turn of a writer to choose its blocks. `None` if it has failed with an earlier one.
    pub(super) fn may_place(&mut self, ticket: Ticket) -> Option<bool> {
        self.bursts.may_place(ticket)
    }
    pub(super) fn placed(&mut self, ticket: Ticket) {
        self.bursts.placed(ticket);
    }
    /// Ends the work of a writer. What it wrote is stable when all before it is.
    ///
    /// If it failed, its entries and those of later writers become stable when their txgs are committed; the
    /// callers wait for them. Returns whether its blocks are part of the chain.
    pub(super) fn finish(&mut self, ticket: Ticket, is_written: bool, now_ns: u64) -> bool {
        let is_part = self.bursts.finish(ticket, is_written, now_ns);
        self.raise();
        is_part
    }
    fn raise(&mut self) {
        let front = self.front();
        let first = self.bursts.first_unstable().unwrap_or(front);
        self.stable = self.stable.max(first.min(front));
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
        self.bursts.committed(txg);
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
    use super::super::bursts::IN_FLIGHT_MAX;
    use super::*;

    /// Bursts begin at once so long after each other.
    const LATER_NS: u64 = 1 << 30;

    fn record(byte: u8) -> Option<Vec<u8>> {
        Some(vec![byte; 32])
    }
    fn take(queue: &mut Queue, synced: u64) -> (Ticket, Batch) {
        let now_ns = LATER_NS * (queue.next + 1);
        match queue.next(u64::MAX, Txg(synced), 2 << 20, now_ns) {
            Next::Write(ticket, batch) => (ticket, batch),
            other => panic!("{other:?}"),
        }
    }
    fn bytes_of(batch: &Batch) -> Vec<u8> {
        let records = batch.entries.iter();
        records
            .map(|entry| entry.record.as_ref().unwrap()[0])
            .collect()
    }
    /// Takes records, compares their first bytes, and writes them.
    fn write(queue: &mut Queue, synced: u64, bytes: &[u8]) {
        let (ticket, batch) = take(queue, synced);
        assert_eq!(bytes_of(&batch), bytes);
        assert!(queue.finish(ticket, true, LATER_NS));
    }

    #[test]
    fn records_of_an_object_follow_the_ordered_ones() {
        let mut queue = Queue::default();
        queue.append(Entry::new(Txg(5), record(1)), Some(ObjectId(7)));
        queue.append(Entry::new(Txg(5), record(2)), None);
        queue.append(Entry::new(Txg(5), record(3)), Some(ObjectId(8)));
        assert_eq!(queue.aim(Some(ObjectId(7))), 2);
        write(&mut queue, 4, &[2, 1]);
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
        write(&mut queue, 4, &[1]);
        assert_eq!(queue.next(u64::MAX, Txg(4), 1 << 20, LATER_NS), Next::Txg);
        assert!(!queue.is_stable(2));
        queue.committed(Txg(5));
        assert!(queue.is_stable(2) && !queue.is_stable(3));
        write(&mut queue, 5, &[2]);
    }

    #[test]
    fn taken_records_are_stable_when_written_or_committed() {
        let mut queue = Queue::default();
        queue.append(Entry::new(Txg(5), record(1)), None);
        queue.append(Entry::new(Txg(6), record(2)), None);
        let _ = take(&mut queue, 4);
        queue.committed(Txg(5));
        assert!(!queue.is_stable(1));
        queue.committed(Txg(6));
        assert!(queue.is_stable(2));
    }

    #[test]
    fn a_failed_write_blocks_the_log_until_its_txgs_commit() {
        let mut queue = Queue::default();
        queue.append(Entry::new(Txg(5), record(1)), None);
        let (ticket, _) = take(&mut queue, 4);
        queue.finish(ticket, false, LATER_NS);
        queue.append(Entry::new(Txg(6), record(2)), None);
        assert_eq!(queue.next(u64::MAX, Txg(4), 1 << 20, LATER_NS), Next::Txg);
        assert!(!queue.is_stable(1));
        queue.committed(Txg(5));
        assert!(queue.is_stable(1) && !queue.is_stable(2));
        write(&mut queue, 5, &[2]);
    }

    #[test]
    fn several_writers_take_records_until_the_limit() {
        let mut queue = Queue::default();
        let mut tickets = vec![];
        for number in 0..u8::try_from(IN_FLIGHT_MAX).unwrap() {
            queue.append(Entry::new(Txg(5), record(number)), None);
            // A caller whose records others have taken waits.
            let target = queue.aim(None);
            tickets.push(take(&mut queue, 4).0);
            assert_eq!(queue.next(target, Txg(4), 1 << 20, LATER_NS), Next::Wait);
        }
        queue.append(Entry::new(Txg(5), record(9)), None);
        assert_eq!(queue.next(u64::MAX, Txg(4), 1 << 20, LATER_NS), Next::Wait);
        assert!(!queue.hold());
        queue.finish(tickets[1], true, LATER_NS);
        assert!(!queue.is_stable(1));
        queue.finish(tickets[0], true, LATER_NS);
        assert!(queue.is_stable(2) && !queue.is_stable(3));
        write(&mut queue, 4, &[9]);
        for ticket in &tickets[2..] {
            queue.finish(*ticket, true, LATER_NS);
        }
        assert!(queue.is_stable(queue.next) && queue.hold());
        assert_eq!(queue.next(u64::MAX, Txg(4), 1 << 20, LATER_NS), Next::Wait);
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
        assert_eq!(queue.next(u64::MAX, Txg(4), 1 << 20, LATER_NS), Next::Txg);
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
        while taken < 4096 {
            let (ticket, batch) = take(&mut queue, 4);
            taken += batch.entries.len();
            queue.finish(ticket, true, LATER_NS);
        }
        let number = queue.aim(None);
        assert!(queue.is_stable(number));
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
