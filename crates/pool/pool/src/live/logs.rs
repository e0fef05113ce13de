//! Intent logs found when a pool is opened for changes: what has to be claimed.
//!
//! What was written to a log after the last committed txg is in no space map. Before anything is allocated
//! it is marked allocated ("claimed"), and the header remembers how far the log went. Finding out is done
//! here, before anything is written.
//!
//! Page `docs/format/intent-log.md`.

use crate::PoolError;
use crate::error::Reading;
use millpond_block::{BlockAddress, BlockError, BlockStore};
use millpond_env::mark;
use millpond_ondisk::intent_log::{
    IntentLogBlock, IntentLogBlockForm, IntentLogFlags, IntentLogVerifier, LOG_WRITE_BYTES,
    LogRecordFrame, LogRecordFrames, LoggedPointers,
};
use millpond_ondisk::{
    BLOCK_POINTER_BYTES, BlockId, BlockPointer, Endian, IntentLogHeader, Level, ObjectId, Txg,
};
use millpond_vdev::{Health, LeafHealth};
use std::collections::BTreeSet;

const WHAT: &str = "intent log";
/// Errors name blocks of logs by this level, and their place in the chain.
const LOG_LEVEL: Level = Level(254);
/// A log of more blocks than this is no writer's. Bounds memory to some hundred megabytes.
const BLOCKS_MAX: usize = 1 << 20;
/// Blocks born this many txgs after the first unwritten one are not believed.
const AHEAD_MAX: u64 = 64;
/// Types of records that point to blocks.
const WRITE: u64 = 9;
const CLONE_RANGE: u64 = 24;
/// Where those pointers begin.
const WRITE_POINTER_AT: usize = 64;
const CLONE_POINTERS_AT: usize = 72;

/// What becomes of intent logs that a pool is found with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FoundLogs {
    /// They are claimed, and replayed before their datasets can be used; those of datasets whose key is not
    /// loaded wait claimed.
    #[default]
    Replay,
    /// Those of datasets whose key is not loaded are given up, with everything that they promised.
    DiscardLocked,
    /// All are given up, with everything that they promised. `zpool import -m` does so.
    Discard,
}

/// A block that belongs to a log, in the order in which a walk comes to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundBlock {
    /// Where it lies.
    pub pointer: BlockPointer,
    /// Whether it is a block of the chain; else one that a write record points to.
    pub is_chain: bool,
    /// The sequence number of the last block of the chain that is known when this one is taken.
    pub block_sequence: u64,
    /// The sequence number of the last record in front of it.
    pub record_sequence: u64,
}

/// A dataset's intent log, as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FoundLog {
    /// Its blocks, the one included that was allocated for the next write and never written, and those
    /// that its write records point to.
    pub blocks: Vec<FoundBlock>,
    /// Whether it holds anything to be replayed.
    pub has_records: bool,
    /// Whether records refer to blocks of other files.
    pub has_clones: bool,
    /// The sequence number of its last record; 0 without any.
    pub record_sequence: u64,
}

impl FoundLog {
    /// Walks a log from its header. `first` is the first txg that will be written: blocks born in it or
    /// later are in no space map, unless the log is claimed.
    ///
    /// # Errors
    /// If a device is missing that the log lies on: then it is not known what it holds. A log that `is_given_up`
    /// ends there instead; what lies behind stays allocated on the device that is gone.
    pub fn read(
        store: &BlockStore,
        dataset: u64,
        header: &IntentLogHeader,
        first: Txg,
        is_given_up: bool,
    ) -> Result<Self, PoolError> {
        let is_claimed = header.claim_txg.0 != 0;
        let limits = is_claimed
            && header
                .flags
                .contains(IntentLogFlags::CLAIM_RECORD_SEQUENCE_VALID);
        let mut walk = Walk {
            store,
            dataset,
            data_from: if is_claimed { header.claim_txg } else { first },
            is_claimed,
            is_given_up,
            first,
            record_sequence_max: if limits {
                header.claim_record_sequence
            } else {
                u64::MAX
            },
            found: Self {
                has_records: header.flags.contains(IntentLogFlags::REPLAY_NEEDED),
                ..Self::default()
            },
        };
        let mut seen = BTreeSet::new();
        let mut next = header.log;
        while !next.is_hole() && walk.found.blocks.len() < BLOCKS_MAX {
            let sequence = IntentLogVerifier::of(&next).sequence;
            if is_claimed && sequence > header.claim_block_sequence {
                break;
            }
            let place = next.dvas().next().map(|dva| (dva.vdev, dva.offset_bytes));
            if !seen.insert(place) {
                break;
            }
            // The pool goes on to the last birth; no writer is more than a few txgs ahead.
            if !is_claimed && next.birth().0 > first.0.saturating_add(AHEAD_MAX) {
                break;
            }
            walk.push(next, true, sequence);
            match walk.block(&next, sequence)? {
                Some(pointer) => next = pointer,
                None => break,
            }
        }
        Ok(walk.found)
    }

    /// The highest txg that one of its blocks was born in.
    #[must_use]
    pub fn last_birth(&self) -> Txg {
        let births = self.blocks.iter().map(|block| block.pointer.birth());
        births.max().unwrap_or_default()
    }
}

struct Walk<'s> {
    store: &'s BlockStore,
    dataset: u64,
    /// Blocks behind write records that are born earlier belong to the tree.
    data_from: Txg,
    is_claimed: bool,
    is_given_up: bool,
    first: Txg,
    record_sequence_max: u64,
    found: FoundLog,
}

impl Walk<'_> {
    fn address(&self, sequence: u64) -> BlockAddress {
        BlockAddress {
            dataset: self.dataset,
            object: ObjectId(0),
            level: LOG_LEVEL,
            block: BlockId(sequence),
        }
    }

    fn push(&mut self, pointer: BlockPointer, is_chain: bool, block_sequence: u64) {
        self.found.blocks.push(FoundBlock {
            pointer,
            is_chain,
            block_sequence,
            record_sequence: self.found.record_sequence,
        });
    }

    /// Takes in one block; gives the pointer to the next, or `None` at the end.
    fn block(
        &mut self,
        pointer: &BlockPointer,
        sequence: u64,
    ) -> Result<Option<BlockPointer>, PoolError> {
        let read = self
            .store
            .read_log_block(pointer, self.address(sequence), None);
        let block = match read {
            Ok(block) => block,
            // A chain ends at the first block that does not verify.
            Err(error) => {
                self.judge(pointer, error)?;
                mark::hit("log-ends-at-unwritten-block");
                return Ok(None);
            }
        };
        let Some(form) = IntentLogBlockForm::of(pointer) else {
            return Ok(None);
        };
        let Ok(parsed) = IntentLogBlock::parse(&block.bytes, form) else {
            return Ok(None);
        };
        let frames = LogRecordFrames::new(parsed.records, parsed.header.endian);
        let Ok(frames) = frames.collect::<Result<Vec<_>, _>>() else {
            return Ok(None);
        };
        if !parsed.continues(pointer) {
            return Ok(None);
        }
        for frame in frames {
            if frame.sequence > self.record_sequence_max {
                return Ok(None);
            }
            if !self.record(&frame, sequence)? {
                return Ok(None);
            }
            self.found.has_records = true;
            self.found.record_sequence = self.found.record_sequence.max(frame.sequence);
        }
        Ok(Some(parsed.header.next))
    }

    /// Takes in a record; whether the log goes on with it.
    fn record(&mut self, frame: &LogRecordFrame<'_>, sequence: u64) -> Result<bool, PoolError> {
        let is_foreign = frame.endian != Endian::Little;
        match frame.number {
            WRITE if frame.bytes.len() == LOG_WRITE_BYTES => {
                let bytes = frame.bytes.get(WRITE_POINTER_AT..).unwrap_or_default();
                let Ok(pointer) = BlockPointer::decode(bytes, frame.endian) else {
                    return Ok(false);
                };
                if pointer.is_hole() || pointer.is_embedded() || pointer.birth() < self.data_from {
                    return Ok(true);
                }
                if !self.is_claimed && pointer.birth().0 > self.first.0.saturating_add(AHEAD_MAX) {
                    return Ok(false);
                }
                if !self.is_claimed {
                    let read = self.store.read_stored(&pointer, self.address(sequence));
                    if let Err(error) = read {
                        // The write was never finished: the log ends in front of it.
                        return self.judge(&pointer, error).map(|()| false);
                    }
                }
                self.push(pointer, false, sequence);
            }
            CLONE_RANGE => {
                let bytes = frame.bytes.get(CLONE_POINTERS_AT..).unwrap_or_default();
                let whole = bytes.len() / BLOCK_POINTER_BYTES * BLOCK_POINTER_BYTES;
                let bytes = bytes.get(..whole).unwrap_or_default();
                let mut is_live = false;
                for pointer in LoggedPointers::new(bytes, frame.endian).iter() {
                    is_live |= !pointer.is_hole() && !pointer.is_embedded();
                    if !self.is_claimed && pointer.physical_birth() >= self.first {
                        return Ok(false);
                    }
                }
                self.found.has_clones |= is_live || is_foreign;
            }
            _ => {}
        }
        Ok(true)
    }

    /// Whether a block that cannot be read ends the log, or is on a device that is not there.
    fn judge(&self, pointer: &BlockPointer, error: BlockError) -> Result<(), PoolError> {
        let is_end = match error {
            BlockError::Invalid { .. } => return Ok(()),
            BlockError::Corrupt { .. } => true,
            _ => false,
        };
        let topology = self.store.topology();
        let is_lost = |leaf| topology.leaf(leaf, Txg(u64::MAX)) == LeafHealth::Unreadable;
        let is_there = pointer
            .dvas()
            .all(|dva| topology.tree.survives(dva.vdev, &is_lost));
        if self.is_given_up || is_end && is_there {
            return Ok(());
        }
        mark::hit("log-on-missing-device");
        Err(error).reading(WHAT)
    }
}
