//! The log of one dataset: its header, blocks and records.

use crate::{Chain, ChainEnd, Pending};
use millpond_block::{BlockAddress, BlockError, LogBlock};
use millpond_env::sync::Arc;
use millpond_object::{Block, ObjectSetView};
use millpond_ondisk::intent_log::{IntentLogVerifier, LogRecord, LogRecordFrame};
use millpond_ondisk::{
    BlockId, BlockPointer, DecodeError, Endian, IntentLogHeader, Level, ObjectId, Txg,
};

/// Reads one verified block of a log, given its pointer.
pub type ReadLogBlock = Box<dyn FnMut(&BlockPointer) -> Result<LogBlock, BlockError> + Send>;

/// The intent log of a file system or volume. Page `docs/format/intent-log.md`.
#[derive(Debug, Clone)]
pub struct IntentLog {
    set: Arc<ObjectSetView>,
    header: IntentLogHeader,
}

impl IntentLog {
    /// Opens the log of an object set, or returns `None` if it has none.
    ///
    /// The set must belong to a head: the header in a snapshot is a stale copy.
    ///
    /// Without the dataset's key, the records of an encrypted log are listed but cannot be decoded.
    #[must_use]
    pub fn open(set: &Arc<ObjectSetView>) -> Option<Self> {
        let header = IntentLogHeader::from_words(&set.phys().intent_log_header);
        header.has_chain().then(|| Self {
            set: Arc::clone(set),
            header,
        })
    }
    /// The header, as of the object set's txg.
    #[must_use]
    pub fn header(&self) -> &IntentLogHeader {
        &self.header
    }
    /// The object set that the log belongs to.
    #[must_use]
    pub fn object_set(&self) -> &Arc<ObjectSetView> {
        &self.set
    }
    /// Walks the blocks in order. Each block is read on demand, and none is kept.
    #[must_use]
    pub fn blocks(&self) -> Chain<ReadLogBlock> {
        let set = Arc::clone(&self.set);
        Chain::new(
            &self.header,
            Box::new(move |pointer| {
                let sequence = IntentLogVerifier::of(pointer).sequence;
                let address = BlockAddress::log_block(set.dataset(), sequence);
                set.store().read_log_block(pointer, address, set.key())
            }),
        )
    }
    /// The records in order, each with what replay would do with it.
    ///
    /// `synced` is the pool's last synced txg, which is that of its uberblock.
    #[must_use]
    pub fn records(&self, synced: Txg) -> LogRecords {
        LogRecords {
            chain: self.blocks(),
            pending: Pending::new(&self.header, synced),
            replayed: self.header.replay_sequence,
            queue: Vec::new().into_iter(),
        }
    }
    /// Reads the block that a write record points to: the file's whole block that holds the byte at
    /// `offset_bytes`. A hole with a size reads as zeros.
    ///
    /// # Errors
    /// If it cannot be read, or if it is encrypted and the object set has no key.
    pub fn read_indirect(
        &self,
        pointer: &BlockPointer,
        object: ObjectId,
        offset_bytes: u64,
    ) -> Result<Arc<Block>, BlockError> {
        let block = offset_bytes.checked_div(pointer.lsize_bytes());
        let address = BlockAddress {
            dataset: self.set.dataset(),
            object,
            level: Level(0),
            block: BlockId(block.unwrap_or(0)),
        };
        self.set.store().read(pointer, address, self.set.key())
    }
}

/// What replay would do with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordFate {
    /// Apply it.
    Pending,
    /// Skip it: its txg was synced before the log was claimed.
    Synced,
    /// Skip it: an earlier, interrupted replay has applied it.
    Replayed,
}

/// A record with its own copy of the bytes (at most one log block).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedRecord {
    /// The record type with its flags, as stored.
    pub number: u64,
    /// The txg of the change.
    pub txg: Txg,
    /// The record's sequence number.
    pub sequence: u64,
    /// The sequence number of the block that holds the record.
    pub block_sequence: u64,
    /// What replay would do with it.
    pub fate: RecordFate,
    /// Whether the body is encrypted and cannot be decoded.
    pub has_ciphertext: bool,
    bytes: Vec<u8>,
    endian: Endian,
}

impl LoggedRecord {
    /// The record's length in bytes.
    #[must_use]
    pub fn length_bytes(&self) -> usize {
        self.bytes.len()
    }
    /// The record, borrowed.
    #[must_use]
    pub fn frame(&self) -> LogRecordFrame<'_> {
        LogRecordFrame {
            number: self.number,
            txg: self.txg,
            sequence: self.sequence,
            bytes: &self.bytes,
            endian: self.endian,
        }
    }
    /// Decodes the record.
    ///
    /// # Errors
    /// If the type is unknown, the body does not fit the type, or the record is encrypted.
    pub fn decode(&self) -> Result<LogRecord<'_>, DecodeError> {
        if self.has_ciphertext {
            return Err(DecodeError::new("intent log record", "it is encrypted", 32));
        }
        self.frame().decode()
    }
    /// The record type's ZFS name ("TX_WRITE").
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        record_type_name(self.number)
    }
}

/// The records of a log, in order. One block's records are in memory at a time.
#[derive(Debug)]
pub struct LogRecords {
    chain: Chain<ReadLogBlock>,
    pending: Pending,
    replayed: u64,
    queue: std::vec::IntoIter<LoggedRecord>,
}

impl LogRecords {
    /// Why the log ended; `None` while there may be more records.
    #[must_use]
    pub fn end(&self) -> Option<&ChainEnd> {
        self.chain.end()
    }
    fn fate(&self, frame: &LogRecordFrame<'_>) -> RecordFate {
        if self.pending.contains(frame) {
            RecordFate::Pending
        } else if frame.sequence <= self.replayed {
            RecordFate::Replayed
        } else {
            RecordFate::Synced
        }
    }
}

impl Iterator for LogRecords {
    type Item = LoggedRecord;
    fn next(&mut self) -> Option<LoggedRecord> {
        loop {
            if let Some(record) = self.queue.next() {
                return Some(record);
            }
            let block = self.chain.next()?;
            let records: Vec<_> = block
                .records()
                .map(|frame| LoggedRecord {
                    number: frame.number,
                    txg: frame.txg,
                    sequence: frame.sequence,
                    block_sequence: block.sequence,
                    fate: self.fate(&frame),
                    has_ciphertext: block.has_ciphertext,
                    bytes: frame.bytes.to_vec(),
                    endian: frame.endian,
                })
                .collect();
            self.queue = records.into_iter();
        }
    }
}

/// The type flag for case-insensitive names.
const CASE_INSENSITIVE: u64 = 1 << 63;

/// The ZFS name of a record type, as stored.
#[must_use]
pub fn record_type_name(number: u64) -> &'static str {
    usize::try_from(number & !CASE_INSENSITIVE)
        .ok()
        .and_then(|index| TYPE_NAMES.get(index))
        .copied()
        .unwrap_or("unknown")
}

/// Names by type number.
const TYPE_NAMES: [&str; 25] = [
    "TX_COMMIT",
    "TX_CREATE",
    "TX_MKDIR",
    "TX_MKXATTR",
    "TX_SYMLINK",
    "TX_REMOVE",
    "TX_RMDIR",
    "TX_LINK",
    "TX_RENAME",
    "TX_WRITE",
    "TX_TRUNCATE",
    "TX_SETATTR",
    "TX_ACL_V0",
    "TX_ACL",
    "TX_CREATE_ACL",
    "TX_CREATE_ATTR",
    "TX_CREATE_ACL_ATTR",
    "TX_MKDIR_ACL",
    "TX_MKDIR_ATTR",
    "TX_MKDIR_ACL_ATTR",
    "TX_WRITE2",
    "TX_SETSAXATTR",
    "TX_RENAME_EXCHANGE",
    "TX_RENAME_WHITEOUT",
    "TX_CLONE_RANGE",
];
