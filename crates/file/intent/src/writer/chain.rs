//! The chain of log blocks on disk, and the blocks to free.

use millpond_dataset::{LogTrim, header_words};
use millpond_env::sync::{Arc, Weak};
use millpond_ondisk::{BlockPointer, IntentLogHeader, Txg, VdevId};
use std::collections::VecDeque;

/// A block of the chain with its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChainBlock {
    pointer: BlockPointer,
    /// The last txg of the block's records.
    last_txg: Txg,
    /// It is on stable storage. Until then a thread may be writing it, and its space must not be reused.
    is_written: bool,
}

impl ChainBlock {
    pub(super) fn new(pointer: BlockPointer, last_txg: Txg) -> Self {
        Self {
            pointer,
            last_txg,
            is_written: false,
        }
    }
    /// Whether the block can be freed once `txg` is committed: all its records belong to that txg or earlier
    /// ones, and the block was allocated in that txg or an earlier one.
    fn is_history(&self, txg: Txg) -> bool {
        self.is_written && self.last_txg <= txg && self.pointer.birth() <= txg
    }
}

/// A chain from the header's first block to the block that is allocated for the next write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenChain {
    pub(super) blocks: VecDeque<ChainBlock>,
    pub(super) next: BlockPointer,
    /// The txg in which the header was set to point to this chain.
    pub(super) made_in: Txg,
}

/// The blocks of a chain after a failed write. The header points to them until `txg` is synced.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ruin {
    blocks: Vec<BlockPointer>,
    /// All records that are stable in this chain belong to this txg or earlier ones. From its commit on, a reader would
    /// not find the blocks that were allocated in it after the one that is missing.
    txg: Txg,
}

/// A block that a record points to.
///
/// The sync of the block's txg writes this pointer into the file, unless the file's dirty block was dropped
/// or overwritten before: then `in_file` no longer upgrades.
#[derive(Debug)]
struct Data {
    pointer: BlockPointer,
    in_file: Weak<BlockPointer>,
}

#[derive(Debug, Default)]
pub(super) struct ChainWriter {
    /// The blocks that records point to, until their txg syncs.
    data: Vec<Data>,
    open: Option<OpenChain>,
    ruin: Option<Ruin>,
    /// Blocks that belong to no chain, until the txg syncs in which each was allocated.
    orphans: Vec<BlockPointer>,
    /// The sequence number of the last record.
    pub(super) record_sequence: u64,
    /// The sizes of the last bursts in bytes.
    pub(super) bursts: VecDeque<u64>,
}

/// The number of burst sizes that are remembered.
const BURSTS_MAX: usize = 4;

impl ChainWriter {
    /// The block for the next write. `None` if the header that points to the chain is not committed
    /// (`synced`).
    pub(super) fn place(&self, synced: Txg) -> Option<BlockPointer> {
        let open = self.open.as_ref()?;
        (open.made_in <= synced).then_some(open.next)
    }
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }
    /// Whether a new chain can begin: there is no open chain and no failed one.
    pub(super) fn may_begin(&self) -> bool {
        self.open.is_none() && self.ruin.is_none()
    }
    pub(super) fn begin(&mut self, first: BlockPointer, txg: Txg) {
        self.open = Some(OpenChain {
            blocks: VecDeque::new(),
            next: first,
            made_in: txg,
        });
    }
    /// Adds blocks that a thread is going to write. `next` is the block allocated after them. Returns false, and does
    /// nothing, if the chain does not end with the first of them any more: it was abandoned meanwhile.
    #[must_use]
    pub(super) fn extend(&mut self, blocks: Vec<ChainBlock>, next: BlockPointer) -> bool {
        let Some(open) = &mut self.open else {
            return false;
        };
        let is_next = (blocks.first()).is_some_and(|first| first.pointer == open.next);
        if is_next {
            open.blocks.extend(blocks);
            open.next = next;
        }
        is_next
    }
    /// Notes that these blocks are on stable storage. Nothing happens if the chain was abandoned meanwhile.
    pub(super) fn note_written(&mut self, mut blocks: impl Iterator<Item = BlockPointer>) {
        let Some(open) = &mut self.open else {
            return;
        };
        let mut written = blocks.next();
        for block in &mut open.blocks {
            if Some(block.pointer) == written {
                block.is_written = true;
                written = blocks.next();
            }
        }
    }
    /// Registers a block that a record will point to, in its birth txg, which must still be open.
    ///
    /// The file adopts the block by holding the returned pointer.
    pub(super) fn keep_data(&mut self, pointer: BlockPointer) -> Arc<BlockPointer> {
        let in_file = Arc::new(pointer);
        self.data.push(Data {
            pointer,
            in_file: Arc::downgrade(&in_file),
        });
        in_file
    }
    /// Returns the data blocks born in `txg` or earlier that no file adopted, and forgets all data blocks up
    /// to `txg`. The sync of `txg` calls this when dirty blocks can no longer change, and frees the blocks at
    /// its end.
    fn data_to_free(&mut self, txg: Txg) -> Vec<BlockPointer> {
        let mut free = vec![];
        self.data.retain(|data| {
            let is_now = data.pointer.birth() <= txg;
            if is_now && data.in_file.strong_count() == 0 {
                free.push(data.pointer);
            }
            !is_now
        });
        free
    }
    pub(super) fn note_burst(&mut self, bytes: u64) {
        self.bursts.push_back(bytes);
        if self.bursts.len() > BURSTS_MAX {
            self.bursts.pop_front();
        }
    }
    /// Abandons the chain because a burst failed that holds `txg` open and begins with `first`. If a later burst of the chain
    /// has failed, its records end earlier now. Another chain stays. `allocated` are blocks that did not become part of the
    /// chain.
    pub(super) fn ruin(&mut self, txg: Txg, first: &BlockPointer, allocated: &[BlockPointer]) {
        self.orphans.extend(allocated);
        let is_own = |open: &mut OpenChain| {
            let mut blocks = open.blocks.iter().map(|block| &block.pointer);
            open.next == *first || blocks.any(|block| block == first)
        };
        if let Some(open) = self.open.take_if(is_own) {
            let blocks = all_blocks(open);
            self.ruin = Some(Ruin { blocks, txg });
        } else if let Some(ruin) = &mut self.ruin
            && ruin.blocks.contains(first)
        {
            ruin.txg = ruin.txg.min(txg);
        }
    }

    /// Takes the orphans that were allocated in `txg` or earlier.
    fn orphans_to_free(&mut self, txg: Txg) -> Vec<BlockPointer> {
        let (now, later) = std::mem::take(&mut self.orphans)
            .into_iter()
            .partition(|block| block.birth() <= txg);
        self.orphans = later;
        now
    }

    pub(super) fn trim(&mut self, txg: Txg) -> LogTrim {
        let mut trim = LogTrim {
            free: self.data_to_free(txg),
            header: None,
        };
        if let Some(ruin) = self.ruin.take_if(|ruin| ruin.txg <= txg) {
            self.orphans.extend(ruin.blocks);
            trim.header = Some([0; 24]);
        }
        trim.free.extend(self.orphans_to_free(txg));
        let others = trim.free.len();
        let Some(open) = &mut self.open else {
            return trim;
        };
        while let Some(first) = open.blocks.pop_front() {
            if !first.is_history(txg) {
                open.blocks.push_front(first);
                break;
            }
            trim.free.push(first.pointer);
        }
        if trim.free.len() > others {
            let first = open.blocks.front();
            let first = first.map_or(open.next, |block| block.pointer);
            trim.header = Some(header_of(first));
        }
        trim
    }

    /// Whether a block of the chain, or one that waits to be freed, is on a vdev.
    pub(super) fn uses(&self, vdev: VdevId) -> bool {
        let chain = self.open.iter().flat_map(|open| {
            let blocks = open.blocks.iter().map(|block| &block.pointer);
            blocks.chain([&open.next])
        });
        let ruin = self.ruin.iter().flat_map(|ruin| &ruin.blocks);
        let data = self.data.iter().map(|data| &data.pointer);
        let mut blocks = chain.chain(ruin).chain(&self.orphans).chain(data);
        blocks.any(|block| block.dvas().any(|dva| dva.vdev == vdev))
    }

    pub(super) fn retire(&mut self, txg: Txg) -> Option<Vec<BlockPointer>> {
        let open = self.open.iter();
        let mut births = open.flat_map(|open| {
            let blocks = open.blocks.iter().map(|block| block.pointer.birth());
            blocks.chain([open.next.birth(), open.made_in])
        });
        let is_later = births.any(|birth| birth > txg)
            || self.ruin.as_ref().is_some_and(|ruin| ruin.txg > txg)
            || self.orphans.iter().any(|block| block.birth() > txg)
            || self.data.iter().any(|data| data.pointer.birth() > txg);
        if is_later {
            return None;
        }
        let mut blocks = self.open.take().map(all_blocks).unwrap_or_default();
        blocks.extend(self.ruin.take().map(|ruin| ruin.blocks).unwrap_or_default());
        blocks.append(&mut self.orphans);
        Some(blocks)
    }
}

fn all_blocks(open: OpenChain) -> Vec<BlockPointer> {
    let blocks = open.blocks.iter().map(|block| block.pointer);
    blocks.chain([open.next]).collect()
}

/// The words of a header that points to `first`, for a log that is not claimed.
pub(super) fn header_of(first: BlockPointer) -> [u64; 24] {
    header_words(&IntentLogHeader {
        log: first,
        ..IntentLogHeader::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64, birth: u64) -> BlockPointer {
        let mut pointer = BlockPointer::default();
        pointer.words[0] = 8;
        pointer.words[1] = number;
        pointer.words[10] = birth;
        pointer
    }
    fn written(number: u64, birth: u64, last_txg: u64) -> ChainBlock {
        ChainBlock {
            is_written: true,
            ..ChainBlock::new(block(number, birth), Txg(last_txg))
        }
    }

    #[test]
    fn a_sync_frees_the_oldest_blocks_that_are_in_space_maps() {
        let mut chain = ChainWriter::default();
        chain.begin(block(1, 5), Txg(5));
        assert_eq!(
            (chain.place(Txg(4)), chain.place(Txg(5))),
            (None, Some(block(1, 5)))
        );
        assert!(chain.extend(
            vec![written(1, 5, 6), written(2, 6, 7), written(3, 7, 6)],
            block(4, 8),
        ));
        let trim = chain.trim(Txg(6));
        assert_eq!(trim.free, [block(1, 5)]);
        assert_eq!(trim.header, Some(header_of(block(2, 6))));
        let trim = chain.trim(Txg(7));
        assert_eq!(trim.free, [block(2, 6), block(3, 7)]);
        // The block for the next write stays, even if it is younger than the header.
        assert_eq!(trim.header, Some(header_of(block(4, 8))));
        assert_eq!(chain.trim(Txg(8)), LogTrim::default());
        assert_eq!(chain.retire(Txg(7)), None);
        assert_eq!(chain.retire(Txg(8)), Some(vec![block(4, 8)]));
    }

    #[test]
    fn a_block_that_is_being_written_is_not_freed() {
        let mut chain = ChainWriter::default();
        chain.begin(block(1, 5), Txg(5));
        let blocks = (1..=3).map(|number| ChainBlock::new(block(number, 5), Txg(5)));
        assert!(chain.extend(blocks.collect(), block(4, 5)));
        chain.note_written([block(1, 5), block(3, 5)].into_iter());
        let trim = chain.trim(Txg(6));
        assert_eq!(trim.free, [block(1, 5)]);
        assert_eq!(trim.header, Some(header_of(block(2, 5))));
        chain.note_written([block(2, 5)].into_iter());
        let trim = chain.trim(Txg(6));
        assert_eq!(trim.free, [block(2, 5), block(3, 5)]);
        assert_eq!(trim.header, Some(header_of(block(4, 5))));
    }

    #[test]
    fn a_data_block_is_freed_unless_a_file_keeps_it() {
        let mut chain = ChainWriter::default();
        let kept = chain.keep_data(block(1, 5));
        drop(chain.keep_data(block(2, 5)));
        drop(chain.keep_data(block(3, 6)));
        assert_eq!(chain.retire(Txg(5)), None);
        assert_eq!(chain.trim(Txg(4)), LogTrim::default());
        assert_eq!(chain.trim(Txg(5)).free, [block(2, 5)]);
        drop(kept);
        let trim = chain.trim(Txg(6));
        assert_eq!((trim.free, trim.header), (vec![block(3, 6)], None));
    }

    #[test]
    fn a_failed_chain_is_freed_when_all_of_its_records_are_committed() {
        let mut chain = ChainWriter::default();
        chain.begin(block(1, 5), Txg(5));
        assert!(chain.extend(vec![written(1, 5, 6)], block(2, 6)));
        chain.ruin(Txg(7), &block(2, 6), &[block(3, 7)]);
        assert!(!chain.may_begin());
        // The records of the first block may belong to the seventh txg.
        assert_eq!(chain.trim(Txg(6)), LogTrim::default());
        let trim = chain.trim(Txg(7));
        assert_eq!((trim.free.len(), trim.header), (3, Some([0; 24])));
        assert!(chain.may_begin());
    }

    /// After a crash the blocks behind the one that is missing would not be found, and stay allocated for ever.
    #[test]
    fn blocks_of_later_txgs_do_not_keep_a_failed_chain() {
        let mut chain = ChainWriter::default();
        chain.begin(block(1, 5), Txg(5));
        let own = |number, birth| vec![ChainBlock::new(block(number, birth), Txg(birth))];
        assert!(chain.extend(own(1, 5), block(2, 6)));
        assert!(chain.extend(own(2, 6), block(3, 7)));
        chain.ruin(Txg(6), &block(1, 5), &[]);
        let trim = chain.trim(Txg(6));
        assert_eq!(trim.free, [block(1, 5), block(2, 6)]);
        assert_eq!(trim.header, Some([0; 24]));
        assert!(chain.uses(VdevId(0)));
        assert_eq!(chain.retire(Txg(6)), None);
        // The next chain is not that of the second burst, which fails now too.
        chain.begin(block(7, 7), Txg(7));
        chain.ruin(Txg(7), &block(2, 6), &[]);
        assert!(chain.is_open());
        assert_eq!(chain.trim(Txg(7)).free, [block(3, 7)]);
        assert_eq!(chain.retire(Txg(7)), Some(vec![block(7, 7)]));
    }

    /// The burst that fails last may be the earliest.
    #[test]
    fn an_earlier_burst_that_fails_later_ends_the_chain_earlier() {
        let mut chain = ChainWriter::default();
        chain.begin(block(1, 5), Txg(5));
        let own = |number, birth| vec![ChainBlock::new(block(number, birth), Txg(birth))];
        assert!(chain.extend(own(1, 5), block(2, 6)));
        assert!(chain.extend(own(2, 6), block(3, 7)));
        chain.ruin(Txg(7), &block(2, 6), &[]);
        chain.ruin(Txg(6), &block(1, 5), &[]);
        let trim = chain.trim(Txg(6));
        assert_eq!(trim.free, [block(1, 5), block(2, 6)]);
        assert_eq!(trim.header, Some([0; 24]));
        assert_eq!(chain.trim(Txg(7)).free, [block(3, 7)]);
    }

    #[test]
    fn what_a_thread_allocated_for_a_failed_chain_is_freed_too() {
        let mut chain = ChainWriter::default();
        chain.begin(block(1, 5), Txg(5));
        let own = |number| vec![ChainBlock::new(block(number, 5), Txg(5))];
        assert!(chain.extend(own(1), block(2, 5)));
        chain.ruin(Txg(5), &block(1, 5), &[]);
        // Another thread had been about to write the next block.
        assert!(!chain.extend(own(2), block(3, 6)));
        chain.ruin(Txg(6), &block(2, 5), &[block(3, 6)]);
        assert_eq!(chain.trim(Txg(5)).free.len(), 2);
        assert_eq!(chain.trim(Txg(6)).free, [block(3, 6)]);
        // Nor is a later chain its own.
        chain.begin(block(7, 7), Txg(7));
        assert!(!chain.extend(own(2), block(3, 6)));
    }
}
