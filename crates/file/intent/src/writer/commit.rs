//! Makes records durable.

use super::LogWriter;
use super::bursts::Ticket;
use super::chain::{ChainBlock, header_of};
use super::queue::{Batch, Entry, Next};
use millpond_alloc::{AllocRequest, Placement};
use millpond_block::{BlockAddress, LogWrite};
use millpond_checksum::{Form, seal_zilog2};
use millpond_dataset::DatasetError;
use millpond_dataset::{Estimate, HeadDataset};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::intent_log::{
    INTENT_LOG_BLOCK_HEADER_BYTES, IntentLogBlockHeader, IntentLogVerifier,
};
use millpond_ondisk::{
    BlockPointer, ChecksumKind, CompressionKind, Endian, Level, ObjectId, ObjectSetKind,
    ObjectType, PoolVersion, StoredBlock, Txg,
};
use millpond_pool::Pool;
use millpond_txg::{BeginWait, Transaction};

/// The smallest and the largest log block, in bytes.
const BLOCK_BYTES_MIN: usize = 4096;
const BLOCK_BYTES_MAX: usize = 128 << 10;
/// The longest record that can be written, in bytes.
pub const RECORD_BYTES_MAX: usize = BLOCK_BYTES_MAX - INTENT_LOG_BLOCK_HEADER_BYTES;
/// The approximate limit of one burst, in bytes.
const BURST_BYTES_MAX: u64 = 2 << 20;
/// The offset of the sequence number in a record, in bytes.
const SEQUENCE_AT: usize = 24;
/// The offset and length of the block pointer in a write record, in bytes.
const POINTER_AT: usize = 64;
const POINTER_BYTES: usize = 128;
/// The bits of a pointer word that hold the block's size in sectors, minus one.
const LSIZE_MASK: u64 = 0xffff;
/// The feature that extended attribute records need.
const ZILSAXATTR: &str = "org.openzfs:zilsaxattr";

/// Why records were not written. No data is lost: the caller waits for the records' txgs instead.
#[derive(Debug)]
enum NotWritten {
    /// A new chain has begun. Its header must be committed before its first block is written.
    Begun,
    /// There is no space, or a device failed.
    Failed,
}

/// Ends a writer's work, as failed if the writer panics. Without it, waiting threads would wait forever.
struct CommitGuard<'l> {
    log: &'l LogWriter,
    pool: &'l Pool,
    ticket: Ticket,
}

impl CommitGuard<'_> {
    /// Waits until the writers before this one have chosen their blocks.
    fn wait_to_place(&self) -> Result<(), NotWritten> {
        let mut queue = self.log.queue.lock();
        loop {
            match queue.may_place(self.ticket) {
                Some(true) => return Ok(()),
                Some(false) => self.log.placed.wait(&mut queue),
                None => return Err(NotWritten::Failed),
            }
        }
    }
    fn placed(&self) {
        self.log.queue.lock().placed(self.ticket);
        self.log.placed.notify_all();
    }
    /// Returns whether what was written is part of the chain.
    fn finish(self, is_written: bool) -> bool {
        let is_part = self.log.end_turn(self.pool, self.ticket, is_written);
        std::mem::forget(self);
        is_part
    }
}

impl Drop for CommitGuard<'_> {
    fn drop(&mut self) {
        self.log.end_turn(self.pool, self.ticket, false);
    }
}

/// Keeps writers out of a log.
pub(super) struct Hold<'l>(&'l LogWriter);

impl<'l> Hold<'l> {
    /// `None` if a thread is writing.
    pub(super) fn begin(log: &'l LogWriter) -> Option<Self> {
        let is_held = log.queue.lock().hold();
        is_held.then(|| Self(log))
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.queue.lock().release();
        self.0.changed.notify_all();
    }
}

/// The blocks of a burst.
struct Placed {
    filled: Vec<Filling>,
    /// The block after them.
    next: BlockPointer,
}

/// A block being filled.
struct Filling {
    place: BlockPointer,
    records: Vec<u8>,
    last_txg: Txg,
}

impl Filling {
    fn new(place: BlockPointer) -> Self {
        Self {
            place,
            records: vec![],
            last_txg: Txg(0),
        }
    }
    fn has_room(&self, bytes: usize) -> bool {
        let size = usize::try_from(self.place.psize_bytes()).unwrap_or(0);
        let used = INTENT_LOG_BLOCK_HEADER_BYTES.saturating_add(self.records.len());
        used.saturating_add(bytes) <= size
    }
}

impl LogWriter {
    /// Returns when the records of `object` (with `None`: of all objects) are on stable storage.
    ///
    /// This covers the records appended before the call, and everything in the global order. A record is
    /// stable when it is in a log block or when its txg is committed.
    ///
    /// A few threads write at the same time, each its own blocks. Threads that call meanwhile wait, and one of
    /// them then writes for all. Do not call this while holding a transaction.
    ///
    /// # Errors
    /// If the pool is suspended.
    pub fn commit(&self, head: &HeadDataset, object: Option<ObjectId>) -> Result<(), DatasetError> {
        let pool = head.pool()?;
        let begun_ns = pool.store().begin_log_commit();
        self.settle(head, &pool, object)?;
        pool.store().end_log_commit(begun_ns);
        Ok(())
    }

    fn end_turn(&self, pool: &Pool, ticket: Ticket, is_written: bool) -> bool {
        let now_ns = pool.env().clock.monotonic_ns();
        let is_part = self.queue.lock().finish(ticket, is_written, now_ns);
        self.placed.notify_all();
        self.changed.notify_all();
        is_part
    }

    fn settle(
        &self,
        head: &HeadDataset,
        pool: &Arc<Pool>,
        object: Option<ObjectId>,
    ) -> Result<(), DatasetError> {
        let target = self.queue.lock().aim(object);
        loop {
            let mut queue = self.queue.lock();
            if queue.is_stable(target) {
                return Ok(());
            }
            let (synced, now_ns) = (pool.stable_txg(), pool.env().clock.monotonic_ns());
            let (ticket, batch) = match queue.next(target, synced, BURST_BYTES_MAX, now_ns) {
                Next::Write(ticket, batch) => (ticket, batch),
                Next::Again => continue,
                Next::Wait => {
                    self.changed.wait(&mut queue);
                    continue;
                }
                Next::WaitFor(limit) => {
                    self.changed.wait_for(&mut queue, limit);
                    continue;
                }
                Next::Txg => {
                    drop(queue);
                    mark::hit("fsync-by-txg");
                    tracing::trace!(dataset = head.id().0, "fsync waits for the txg");
                    pool.sync()?;
                    return Ok(());
                }
            };
            drop(queue);
            if self.write(head, pool, ticket, batch).is_err() {
                // All records appended so far belong to the open txg or an earlier one.
                pool.sync()?;
                return Ok(());
            }
        }
    }

    fn write(
        &self,
        head: &HeadDataset,
        pool: &Arc<Pool>,
        ticket: Ticket,
        mut batch: Batch,
    ) -> Result<(), NotWritten> {
        let guard = CommitGuard {
            log: self,
            pool,
            ticket,
        };
        // No transaction is held while waiting for those before, who may wait to begin theirs. As each begins in
        // turn, the births of a chain's blocks never fall.
        guard.wait_to_place()?;
        let first = self.first_place(head, pool)?;
        // This transaction keeps the txg of the new blocks from syncing. So either the blocks are part of the
        // chain on disk before that sync, or the chain is abandoned in the same txg, and the blocks with it.
        let tx = begin(head)?;
        self.write_data(pool, &tx, &mut batch)?;
        let placed = self.place(head, pool, &tx, (first, &batch))?;
        guard.placed();
        let successors = placed.filled.iter().skip(1).map(|block| block.place);
        let successors = successors.chain([placed.next]);
        let writes: Option<Vec<LogWrite>> = placed
            .filled
            .iter()
            .zip(successors)
            .map(|(block, next)| seal(head, block, next))
            .collect();
        let is_written =
            writes.is_some_and(|writes| pool.store().write_log_blocks(&writes).is_ok());
        if !is_written {
            return self.give_up(&tx, &first, &[]);
        }
        let blocks = placed.filled.iter().map(|block| block.place);
        self.chain.lock().note_written(blocks);
        match guard.finish(true) {
            true => Ok(()),
            // An earlier burst failed meanwhile, and no reader gets past it.
            false => Err(NotWritten::Failed),
        }
    }

    /// The block that the chain has for the next burst. Begins a chain if there is none.
    fn first_place(&self, head: &HeadDataset, pool: &Pool) -> Result<BlockPointer, NotWritten> {
        let chain = self.chain.lock();
        match chain.place(pool.stable_txg()) {
            Some(place) => Ok(place),
            None if chain.is_open() => Err(NotWritten::Begun),
            None if !chain.may_begin() => Err(NotWritten::Failed),
            None => {
                drop(chain);
                self.begin_chain(head, pool)?;
                Err(NotWritten::Begun)
            }
        }
    }

    /// Fills blocks with the records: `first`, further ones if needed, and allocates the block after them.
    fn place(
        &self,
        head: &HeadDataset,
        pool: &Arc<Pool>,
        tx: &Transaction,
        (first, batch): (BlockPointer, &Batch),
    ) -> Result<Placed, NotWritten> {
        let (mut sequence, predicted_bytes) = {
            let chain = self.chain.lock();
            (chain.record_sequence, predicted_bytes(&chain.bursts))
        };
        let mut allocated = vec![];
        let mut filled: Vec<Filling> = vec![];
        let mut filling = Filling::new(first);
        let mut left = batch
            .entries
            .iter()
            .map(record_bytes)
            .fold(0, usize::saturating_add);
        let burst = left;
        for entry in &batch.entries {
            let bytes = record_bytes(entry);
            if bytes > RECORD_BYTES_MAX {
                return self.give_up(tx, &first, &allocated);
            }
            while !filling.has_room(bytes) {
                let size = size_for(left.max(bytes));
                let Some(next) = allocate(head, pool, tx, &filling.place, size) else {
                    return self.give_up(tx, &first, &allocated);
                };
                mark::hit("burst-of-several-log-blocks");
                allocated.push(next);
                filled.push(std::mem::replace(&mut filling, Filling::new(next)));
            }
            sequence = sequence.saturating_add(1);
            let start = filling.records.len();
            if let Some(record) = &entry.record {
                filling.records.extend_from_slice(record);
            }
            let at = start.saturating_add(SEQUENCE_AT);
            let number = filling.records.get_mut(at..at.saturating_add(8));
            let Some(number) = number else {
                return self.give_up(tx, &first, &allocated);
            };
            number.copy_from_slice(&sequence.to_le_bytes());
            filling.last_txg = filling.last_txg.max(entry.txg);
            left = left.saturating_sub(bytes);
        }
        let size = predicted_bytes.max(size_for(burst));
        let Some(next) = allocate(head, pool, tx, &filling.place, size) else {
            return self.give_up(tx, &first, &allocated);
        };
        allocated.push(next);
        filled.push(filling);
        let blocks = filled
            .iter()
            .map(|block| ChainBlock::new(block.place, block.last_txg));
        let mut chain = self.chain.lock();
        if !chain.extend(blocks.collect(), next) {
            drop(chain);
            return self.give_up(tx, &first, &allocated);
        }
        chain.record_sequence = sequence;
        chain.note_burst(u64::try_from(burst).unwrap_or(u64::MAX));
        drop(chain);
        Ok(Placed { filled, next })
    }

    /// Writes the blocks of the batch durably, and stores their pointers in the records.
    ///
    /// Returns whether there are any such blocks on disk. On failure the chain is still unchanged.
    fn write_data(
        &self,
        pool: &Pool,
        tx: &Transaction,
        batch: &mut Batch,
    ) -> Result<bool, NotWritten> {
        let blocks = batch
            .entries
            .iter()
            .filter_map(|entry| entry.block.as_ref());
        let jobs: Vec<_> = blocks.map(|block| block.job(tx.txg())).collect();
        if jobs.is_empty() {
            return Ok(false);
        }
        let mut outcomes = pool.write_log_data(tx, jobs).into_iter();
        let mut is_whole = true;
        let mut has_places = false;
        for entry in &mut batch.entries {
            let (Some(block), Some(record)) = (&entry.block, &mut entry.record) else {
                continue;
            };
            let Some(Ok(mut pointer)) = outcomes.next() else {
                is_whole = false;
                continue;
            };
            if pointer.is_hole() {
                // A block of zeros: the record holds only its size.
                let size = pointer.words[6] & LSIZE_MASK;
                pointer = BlockPointer::default();
                pointer.words[6] = size;
            } else if !pointer.is_embedded() {
                mark::hit("log-record-points-to-block");
                has_places = true;
                let stored = self.chain.lock().keep_data(pointer);
                // If the file does not adopt the block, it lives until its txg syncs.
                let _ = block.hand_over(stored);
            }
            let place = record.get_mut(POINTER_AT..POINTER_AT.saturating_add(POINTER_BYTES));
            let Some(place) = place else {
                is_whole = false;
                continue;
            };
            for (bytes, word) in place.chunks_exact_mut(8).zip(pointer.words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        match is_whole {
            true => Ok(has_places),
            false => Err(NotWritten::Failed),
        }
    }

    /// Abandons the chain after a failure of the burst that begins with `first`.
    ///
    /// It is unknown which of the last blocks are on disk. Any that are describe changes that did happen, but
    /// no further block can be written after them. Blocks that other threads are writing are abandoned with the
    /// chain: each of these threads keeps the txg open in which its last block was allocated.
    fn give_up<T>(
        &self,
        tx: &Transaction,
        first: &BlockPointer,
        allocated: &[BlockPointer],
    ) -> Result<T, NotWritten> {
        mark::hit("log-given-up");
        tracing::debug!("a log block could not be written; fsync waits for txgs from now on");
        self.chain.lock().ruin(tx.txg(), first, allocated);
        Err(NotWritten::Failed)
    }

    /// Points the header to a new chain of one block that is not written yet.
    ///
    /// Pools before version 27 get none: their snapshots must not contain the header of a log in use, and before
    /// version 26 its blocks have another form. So `fsync` waits for the txg there.
    fn begin_chain(&self, head: &HeadDataset, pool: &Pool) -> Result<(), NotWritten> {
        if !PoolVersion(pool.version()).has_logs_in_snapshots() {
            return Err(NotWritten::Failed);
        }
        let tx = begin(head)?;
        let mut guid = [0; 16];
        pool.env().entropy.fill(&mut guid);
        let (first, second) = guid.split_at(8);
        let word = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |word, byte| word << 8 | u64::from(*byte))
        };
        let verifier = IntentLogVerifier {
            guid: [word(first), word(second)],
            object_set: head.set().dataset(),
            sequence: 1,
        };
        let first = allocate_as(head, pool, &tx, verifier, BLOCK_BYTES_MIN);
        let first = first.ok_or(NotWritten::Failed)?;
        head.set().set_log_header(&tx, header_of(first));
        if head.kind() == ObjectSetKind::FileSystem && pool.features().count(ZILSAXATTR).is_some() {
            head.use_feature(&tx, ZILSAXATTR);
        }
        let mut chain = self.chain.lock();
        chain.begin(first, tx.txg());
        chain.record_sequence = 0;
        Ok(())
    }
}

/// Joins the open txg without reserving space. Log blocks use the reserve that keeps a full pool usable.
fn begin(head: &HeadDataset) -> Result<Transaction, NotWritten> {
    let estimate = Estimate {
        is_freeing: true,
        // A log block dirties nothing, and fsync must not be throttled together with writers.
        wait: BeginWait::UnlessPaused,
        ..Estimate::default()
    };
    head.begin(estimate).map_err(|_| NotWritten::Failed)
}

fn record_bytes(entry: &Entry) -> usize {
    entry.record.as_ref().map_or(0, Vec::len)
}

/// The size of a log block for this many bytes of records, within the limits of a log block.
fn size_for(record_bytes: usize) -> usize {
    let bytes = record_bytes.saturating_add(INTENT_LOG_BLOCK_HEADER_BYTES);
    bytes
        .checked_next_multiple_of(BLOCK_BYTES_MIN)
        .unwrap_or(BLOCK_BYTES_MAX)
        .clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX)
}

/// Predicts the block size for the next burst from the last ones.
fn predicted_bytes(bursts: &std::collections::VecDeque<u64>) -> usize {
    let largest = bursts.iter().max().copied().unwrap_or(0);
    size_for(usize::try_from(largest).unwrap_or(BLOCK_BYTES_MAX))
}

/// Allocates the block that follows `last`.
fn allocate(
    head: &HeadDataset,
    pool: &Pool,
    tx: &Transaction,
    last: &BlockPointer,
    bytes: usize,
) -> Option<BlockPointer> {
    let verifier = IntentLogVerifier::of(last).next()?;
    allocate_as(head, pool, tx, verifier, bytes)
}

fn allocate_as(
    head: &HeadDataset,
    pool: &Pool,
    tx: &Transaction,
    verifier: IntentLogVerifier,
    bytes: usize,
) -> Option<BlockPointer> {
    let bytes = u64::try_from(bytes).ok()?;
    let request = AllocRequest::new(Placement::Log, bytes, 1);
    let dvas = pool.allocator().allocate(tx.txg(), &request).ok()?;
    let block = StoredBlock {
        dvas: &dvas,
        lsize_bytes: bytes,
        psize_bytes: bytes,
        compression: CompressionKind::Off,
        checksum: ChecksumKind::Zilog2,
        checksum_words: verifier.words(),
        object_type: ObjectType::INTENT_LOG,
        level: Level(0),
        birth: tx.txg(),
        fill: 0,
    };
    let mut pointer = block.pointer();
    if let Some(key) = head.set().write_key() {
        // A reader of the chain learns them from the pointer, so they are chosen before the records.
        let (salt, iv) = key.salt_and_iv();
        pointer.set_crypt_bit();
        pointer.set_crypt_salt_and_iv(salt, iv);
    }
    Some(pointer)
}

/// Encodes a block: header, records (encrypted in encrypted datasets), and zeros up to the next multiple of 4096
/// bytes.
fn seal(head: &HeadDataset, block: &Filling, next: BlockPointer) -> Option<LogWrite> {
    let used = INTENT_LOG_BLOCK_HEADER_BYTES.saturating_add(block.records.len());
    let header = IntentLogBlockHeader {
        next,
        used_bytes: u64::try_from(used).ok()?,
        checksum: [0; 4],
        endian: Endian::Little,
    };
    let mut bytes = header.encode();
    bytes.extend_from_slice(&block.records);
    bytes.resize(used.checked_next_multiple_of(BLOCK_BYTES_MIN)?, 0);
    if let Some(key) = head.set().write_key() {
        let (salt, iv) = (block.place.crypt_salt(), block.place.crypt_iv());
        (key.key())
            .encrypt_log(salt, iv, &mut bytes, Endian::Little)
            .ok()?;
    }
    let words = block.place.checksum_words();
    seal_zilog2(&mut bytes, words, Form::of(&block.place)).ok()?;
    let sequence = IntentLogVerifier::of(&block.place).sequence;
    Some(LogWrite {
        address: BlockAddress::log_block(head.set().dataset(), sequence),
        pointer: block.place,
        bytes: Arc::new(bytes),
    })
}
