//! Finds what to claim in intent logs when a pool is opened for changes.
//!
//! Space maps do not contain blocks written to a log after the last committed txg. Before any other
//! allocation these blocks are claimed, that is, marked allocated, and the header stores how far the log
//! extends. This module determines the blocks to claim, before the pool writes anything.
//!
//! Page `docs/format/intent-log.md`.

use crate::PoolError;
use crate::clones;
use crate::error::Reading;
use millpond_block::{BlockAddress, BlockError, BlockStore};
use millpond_env::mark;
use millpond_ondisk::intent_log::{
    IntentLogBlock, IntentLogBlockForm, IntentLogFlags, IntentLogVerifier, LOG_WRITE_BYTES,
    LogRecordFrame, LogRecordFrames, LoggedPointers,
};
use millpond_ondisk::{
    BLOCK_POINTER_BYTES, BlockId, BlockPointer, Dva, Endian, IntentLogHeader, Level, ObjectId, Txg,
    VdevId,
};
use millpond_vdev::{Health, LeafHealth};
use std::collections::BTreeSet;

const WHAT: &str = "intent log";
/// Errors identify log blocks by this level and their position in the chain.
const LOG_LEVEL: Level = Level(254);
/// The most blocks of a log; no writer creates more. Bounds memory to some hundred megabytes.
const BLOCKS_MAX: usize = 1 << 20;
/// Blocks born more than this many txgs after the first unwritten txg are rejected as invalid. A frozen pool commits nothing for
/// as long as its user likes, and each of its sync tasks takes a txg of its own.
const AHEAD_MAX: u64 = 1 << 16;
/// Types of records that contain block pointers.
const WRITE: u64 = 9;
const CLONE_RANGE: u64 = 24;
/// Byte offsets of those pointers in the records.
const WRITE_POINTER_AT: usize = 64;
const CLONE_POINTERS_AT: usize = 72;

/// What to do with the intent logs found in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FoundLogs {
    /// Claim them and replay them before their datasets become usable. Logs of datasets whose key is not
    /// loaded stay claimed until it is.
    #[default]
    Replay,
    /// Discard logs of datasets whose key is not loaded, losing the writes recorded in them.
    DiscardLocked,
    /// Replay logs as far as their devices are there, losing the writes recorded from the first missing block on. A log that
    /// was claimed before is then discarded whole. `zpool import -m` does this.
    DiscardLost,
    /// Discard all logs, losing the writes recorded in them.
    Discard,
}

/// What points to a block of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoundBlockKind {
    /// The header, or the block before: it is part of the chain.
    Chain,
    /// A write record, which owns the block.
    Written,
    /// A clone record. The block belongs to other files; a claimed log has a reference to it in the clone table.
    Cloned,
}

/// A block that belongs to a log. Blocks are listed in the order of the walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundBlock {
    /// The pointer to the block.
    pub pointer: BlockPointer,
    /// What points to it.
    pub kind: FoundBlockKind,
    /// The sequence number of the last known block of the chain when the walk reaches this block.
    pub block_sequence: u64,
    /// The sequence number of the last record before the block.
    pub record_sequence: u64,
}

impl FoundBlock {
    /// How errors name the block, which belongs to the log of this dataset.
    #[must_use]
    pub fn address(&self, dataset: u64) -> BlockAddress {
        address(dataset, self.block_sequence)
    }
    /// The oldest txg whose state may contain the block: its birth, or the txg that claimed it if that is
    /// older.
    pub(crate) fn contained_since(&self, header: &IntentLogHeader) -> Txg {
        let birth = self.pointer.physical_birth();
        match header.claim_txg {
            Txg(0) => birth,
            claim => birth.min(claim),
        }
    }
}

/// A dataset's intent log as found on disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FoundLog {
    /// Its blocks: the chain, including the block that was allocated for the next write but never written,
    /// and the blocks that its write and clone records point to.
    pub blocks: Vec<FoundBlock>,
    /// Whether it has records to replay.
    pub has_records: bool,
    /// Whether records reference blocks of other files.
    pub has_clones: bool,
    /// The sequence number of its last record; 0 if it has none.
    pub record_sequence: u64,
    /// Whether the walk ended at a missing device, as [`FoundLogs::DiscardLost`] allows.
    pub is_lost: bool,
}

impl FoundLog {
    /// Walks a log from its header.
    ///
    /// `first` is the first txg that will be written. No space map contains blocks born in it or later,
    /// unless the log is claimed. `choice` is what is to be done with this log.
    ///
    /// # Errors
    /// If a device with blocks of the log is missing, since the content of the log is then unknown. A log that may be
    /// discarded ends there instead, and its remaining blocks stay allocated on the missing device.
    pub fn read(
        store: &BlockStore,
        dataset: u64,
        header: &IntentLogHeader,
        first: Txg,
        choice: FoundLogs,
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
            choice,
            first,
            record_sequence_max: if limits {
                header.claim_record_sequence
            } else {
                u64::MAX
            },
            seen: BTreeSet::new(),
            found: Self {
                has_records: header.flags.contains(IntentLogFlags::REPLAY_NEEDED),
                ..Self::default()
            },
        };
        let mut next = header.log;
        while !next.is_hole() && walk.found.blocks.len() < BLOCKS_MAX {
            let sequence = IntentLogVerifier::of(&next).sequence;
            if is_claimed && sequence > header.claim_block_sequence {
                break;
            }
            if !walk.is_new(&next) {
                break;
            }
            // The pool continues after the last birth txg, and no writer is more than a few txgs ahead.
            if !is_claimed && next.birth().0 > first.0.saturating_add(AHEAD_MAX) {
                break;
            }
            walk.push(next, FoundBlockKind::Chain, sequence);
            match walk.block(&next, sequence)? {
                Some(pointer) => next = pointer,
                None => break,
            }
        }
        Ok(walk.found)
    }

    /// Gives up the records, and the blocks from the first on that was born in `first` or later: the pool was rewound,
    /// and they may belong to something else.
    pub fn end_before(&mut self, first: Txg) {
        let known = self.blocks.iter();
        let count = known
            .take_while(|block| block.pointer.birth() < first)
            .count();
        self.blocks.truncate(count);
        self.blocks
            .retain(|block| block.kind == FoundBlockKind::Chain);
        *self = Self {
            blocks: std::mem::take(&mut self.blocks),
            ..Self::default()
        };
    }

    /// The highest birth txg of the log's blocks.
    #[must_use]
    pub fn last_birth(&self) -> Txg {
        let births = self.blocks.iter().map(|block| block.pointer.birth());
        births.max().unwrap_or_default()
    }
}

fn address(dataset: u64, sequence: u64) -> BlockAddress {
    BlockAddress {
        dataset,
        object: ObjectId(0),
        level: LOG_LEVEL,
        block: BlockId(sequence),
    }
}

struct Walk<'s> {
    store: &'s BlockStore,
    dataset: u64,
    /// Blocks of write records born before this txg belong to the dataset's tree.
    data_from: Txg,
    is_claimed: bool,
    choice: FoundLogs,
    first: Txg,
    record_sequence_max: u64,
    /// Where the blocks are that the log owns, as far as the walk went.
    seen: BTreeSet<Option<(VdevId, u64)>>,
    found: FoundLog,
}

impl Walk<'_> {
    fn address(&self, sequence: u64) -> BlockAddress {
        address(self.dataset, sequence)
    }

    fn push(&mut self, pointer: BlockPointer, kind: FoundBlockKind, block_sequence: u64) {
        self.found.blocks.push(FoundBlock {
            pointer,
            kind,
            block_sequence,
            record_sequence: self.found.record_sequence,
        });
    }

    /// Whether the log owns no block at this address yet.
    fn is_new(&mut self, pointer: &BlockPointer) -> bool {
        let first = pointer.dvas().next();
        self.seen
            .insert(first.map(|dva| (dva.vdev, dva.offset_bytes)))
    }

    /// Processes one block; returns the pointer to the next one, or `None` at the end.
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
            // A chain ends at the first block with an invalid checksum.
            Err(error) => {
                self.judge(pointer, error)?;
                if self.found.is_lost && self.found.has_records && !self.is_claimed {
                    // The log is claimed up to here, so that it can be walked again without the missing device.
                    self.found.blocks.pop();
                }
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

    /// Processes a record; returns whether the log continues after it.
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
                // A log owns its blocks, so they are in no dedup table, and their frees release no reference there.
                if pointer.is_dedup() {
                    return Ok(false);
                }
                if !self.is_claimed {
                    let read = self.store.read_stored(&pointer, self.address(sequence));
                    if let Err(error) = read {
                        // The write was not completed: the log ends before this record.
                        return self.judge(&pointer, error).map(|()| false);
                    }
                }
                // Two records may name one block. It is claimed once and freed once.
                match self.is_new(&pointer) {
                    true => self.push(pointer, FoundBlockKind::Written, sequence),
                    false => mark::hit("log-names-block-again"),
                }
            }
            CLONE_RANGE => {
                let bytes = frame.bytes.get(CLONE_POINTERS_AT..).unwrap_or_default();
                let whole = bytes.len() / BLOCK_POINTER_BYTES * BLOCK_POINTER_BYTES;
                let bytes = bytes.get(..whole).unwrap_or_default();
                let pointers = LoggedPointers::new(bytes, frame.endian);
                let owns_space =
                    |pointer: &BlockPointer| !pointer.is_hole() && !pointer.is_embedded();
                for pointer in pointers.iter().filter(owns_space) {
                    if !self.is_claimed && !self.may_be_referenced(&pointer) {
                        return Ok(false);
                    }
                }
                for pointer in pointers.iter().filter(owns_space) {
                    self.push(pointer, FoundBlockKind::Cloned, sequence);
                    self.found.has_clones = true;
                }
                self.found.has_clones |= is_foreign;
            }
            _ => {}
        }
        Ok(true)
    }

    /// Whether a pointer of a clone record can be one to a data block of the last committed state. Others end the log.
    fn may_be_referenced(&self, pointer: &BlockPointer) -> bool {
        let topology = self.store.topology();
        let is_inside = |dva: Dva| {
            let end = dva.offset_bytes.checked_add(dva.asize_bytes);
            let top = topology.tree.top(dva.vdev);
            top.is_some_and(|top| end.is_some_and(|end| end <= top.config.asize_bytes))
        };
        clones::may_be_cloned(&pointer.without_dedup_bit())
            && pointer.birth() < self.first
            && pointer.physical_birth() < self.first
            && pointer.dvas().all(is_inside)
    }

    /// Whether an unreadable block ends the log or is an error because its device is missing.
    fn judge(&mut self, pointer: &BlockPointer, error: BlockError) -> Result<(), PoolError> {
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
        if self.choice == FoundLogs::Discard || is_end && is_there {
            return Ok(());
        }
        mark::hit("log-on-missing-device");
        if self.choice == FoundLogs::DiscardLost && !is_there {
            self.found.is_lost = true;
            return Ok(());
        }
        Err(error).reading(WHAT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_ondisk::ObjectType;

    #[test]
    fn a_claimed_block_is_contained_since_its_claim() {
        let block = |birth| FoundBlock {
            pointer: BlockPointer::hole(512, ObjectType::INTENT_LOG, Level(0), Txg(birth)),
            kind: FoundBlockKind::Chain,
            block_sequence: 1,
            record_sequence: 1,
        };
        let header = |claim| IntentLogHeader {
            claim_txg: Txg(claim),
            ..IntentLogHeader::default()
        };
        assert_eq!(block(103).contained_since(&header(101)), Txg(101));
        assert_eq!(block(99).contained_since(&header(101)), Txg(99));
        assert_eq!(
            block(99).contained_since(&header(0)),
            Txg(99),
            "not claimed"
        );
    }
}
