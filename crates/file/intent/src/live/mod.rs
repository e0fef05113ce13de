//! The intent log of a dataset that changes: what is promised between two txgs.
//!
//! A [`LiveLog`] takes in the records of changes in memory ([`LiveLog::append`]), forgets them when their txg
//! is committed, and writes those that somebody waits for to a chain of log blocks ([`LiveLog::commit`]).
//!
//! Page `docs/format/intent-log.md`, "Writing".

mod chain;
mod commit;
mod queue;
mod replay;

pub use commit::RECORD_BYTES_MAX;
pub use replay::{ReplayStep, replay};

use chain::LiveChain;
use millpond_dataset::live::{HeadLog, LiveDataset, LogTrim, OtherLog};
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_object::LoggedBlock;
use millpond_ondisk::{BlockPointer, ObjectId, Txg};
use millpond_txg::Transaction;
use queue::{Entry, Queue};

/// The intent log of one head. Shared by all threads; lives as long as the head is open.
///
/// Locks: queue, chain; each held for moments, never both. Whoever commits writes for everybody who waits.
#[derive(Debug, Default)]
pub struct LiveLog {
    queue: Mutex<Queue>,
    /// Told when records became stable, and when a writer has finished.
    changed: Condvar,
    chain: Mutex<LiveChain>,
}

impl LiveLog {
    /// The log of a head; everybody gets the same one.
    ///
    /// # Errors
    /// [`OtherLog`] if somebody gave the head a log of another kind.
    pub fn of(head: &LiveDataset) -> Result<Arc<Self>, OtherLog> {
        head.log_or(Self::default)
    }

    /// Takes in the record of a change made in `tx`, in the order of these calls: for `object` alone until it
    /// is committed, or (`None`) at once in the order of everything. The record's sequence number is filled in
    /// when it is written.
    pub fn append(&self, tx: &Transaction, object: Option<ObjectId>, record: Vec<u8>) {
        let entry = Entry::new(tx.txg(), Some(record));
        self.queue.lock().append(entry, object);
    }
    /// As [`LiveLog::append`], for the record of a write that is a whole block of its file: if somebody commits it,
    /// the block is written for itself, and the record points to it. The record has room for the pointer.
    pub fn append_block(
        &self,
        tx: &Transaction,
        object: ObjectId,
        record: Vec<u8>,
        block: LoggedBlock,
    ) {
        let entry = Entry {
            block: Some(block),
            ..Entry::new(tx.txg(), Some(record))
        };
        self.queue.lock().append(entry, Some(object));
    }
    /// Takes note of a change that no record can tell, or none is worth: whoever commits the object (or,
    /// with `None`, anything) waits for the txg.
    pub fn append_unlogged(&self, tx: &Transaction, object: Option<ObjectId>) {
        self.queue.lock().append(Entry::new(tx.txg(), None), object);
    }
    /// Puts the records of an object in the order of everything: what follows depends on them.
    pub fn promote(&self, object: ObjectId) {
        self.queue.lock().promote(object);
    }
    /// Drops the records of an object that is gone.
    pub fn forget(&self, object: ObjectId) {
        self.queue.lock().forget(object);
    }
    /// Bytes of records in memory.
    #[must_use]
    pub fn queued_bytes(&self) -> u64 {
        self.queue.lock().bytes()
    }
}

impl HeadLog for LiveLog {
    fn trim(&self, txg: Txg) -> LogTrim {
        self.chain.lock().trim(txg)
    }
    fn let_go(&self, txg: Txg) -> Option<Vec<BlockPointer>> {
        self.chain.lock().let_go(txg)
    }
    fn committed(&self, txg: Txg) {
        self.queue.lock().committed(txg);
        self.changed.notify_all();
    }
}
