//! The intent log of a head that is open for changes: makes changes durable between two txgs.
//!
//! A [`LogWriter`] keeps the records of changes in memory ([`LogWriter::append`]) and drops them when their txg
//! is committed. When a caller needs them on stable storage earlier, it writes them to a chain of log blocks
//! ([`LogWriter::commit`]).
//!
//! Page `docs/format/intent-log.md`, "Writing".

mod bursts;
mod chain;
mod commit;
mod queue;

pub use commit::RECORD_BYTES_MAX;

use chain::ChainWriter;
use commit::Hold;
use millpond_dataset::{DatasetError, HeadDataset, HeadLog, LogTrim, OtherLog};
use millpond_env::rank;
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_object::LoggedBlock;
use millpond_ondisk::{BlockPointer, ObjectId, Txg, VdevId};
use millpond_pool::PoolError;
use millpond_txg::Transaction;
use queue::{Entry, Queue};

/// The intent log of one head. All threads share it; it lives as long as the head is open.
///
/// Locks: queue and chain. Each is held briefly, never both at once. A thread that commits takes the records of
/// all waiting threads, chooses their blocks when those before it have done so, and writes them beside others.
#[derive(Debug, Default)]
pub struct LogWriter {
    queue: Mutex<Queue, rank::IntentQueue>,
    /// Notified when records become stable, and when a writer ends.
    changed: Condvar,
    /// For writers that wait for their turn. Notified when another one has chosen its blocks or ends.
    placed: Condvar,
    chain: Mutex<ChainWriter, rank::IntentChain>,
}

impl LogWriter {
    /// The log of a head. All callers get the same one.
    ///
    /// # Errors
    /// [`OtherLog`] if the head already has a log of another type.
    pub fn of(head: &HeadDataset) -> Result<Arc<Self>, OtherLog> {
        head.log_or(Self::default)
    }

    /// Appends the record of a change made in `tx`. Calls define the order.
    ///
    /// With an `object`, the record stays in that object's list until the object is committed. With `None`,
    /// it joins the global order at once. The sequence number is filled in when the record is written.
    pub fn append(&self, tx: &Transaction, object: Option<ObjectId>, record: Vec<u8>) {
        let entry = Entry::new(tx.txg(), Some(record));
        self.queue.lock().append(entry, object);
    }
    /// Like [`LogWriter::append`], for the record of a write that covers a whole block of its file.
    ///
    /// If the record is committed, the block is written separately and the record points to it. The record
    /// has space for the pointer.
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
    /// Notes a change that has no record. A commit of the object (with `None`: any commit) waits for its txg.
    pub fn append_unlogged(&self, tx: &Transaction, object: Option<ObjectId>) {
        self.queue.lock().append(Entry::new(tx.txg(), None), object);
    }
    /// Moves the records of an object to the global order, because later records depend on them.
    pub fn promote(&self, object: ObjectId) {
        self.queue.lock().promote(object);
    }
    /// Drops the records of a removed object.
    pub fn forget(&self, object: ObjectId) {
        self.queue.lock().forget(object);
    }
    /// The size of the records in memory, in bytes.
    #[must_use]
    pub fn queued_bytes(&self) -> u64 {
        self.queue.lock().bytes()
    }
}

impl HeadLog for LogWriter {
    fn trim(&self, txg: Txg) -> LogTrim {
        self.chain.lock().trim(txg)
    }
    fn retire(
        &self,
        txg: Txg,
        drop_blocks: &mut dyn FnMut(&[BlockPointer]) -> Result<(), PoolError>,
    ) -> Result<bool, PoolError> {
        // A thread that writes may be about to use the block that comes next.
        let Some(_hold) = Hold::begin(self) else {
            return Ok(false);
        };
        let blocks = self.chain.lock().retire(txg);
        if let Some(blocks) = &blocks {
            drop_blocks(blocks)?;
        }
        Ok(blocks.is_some())
    }
    fn uses(&self, vdev: VdevId) -> bool {
        self.chain.lock().uses(vdev)
    }
    fn committed(&self, txg: Txg) {
        self.queue.lock().committed(txg);
        self.changed.notify_all();
    }
    fn write_out(&self, head: &HeadDataset) -> Result<(), PoolError> {
        self.commit(head, None).map_err(|error| match error {
            DatasetError::Pool(error) => error,
            other => PoolError::Suspended {
                reason: other.to_string(),
            },
        })
    }
}
