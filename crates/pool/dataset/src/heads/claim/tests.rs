use super::*;
use FoundBlockKind::{Chain, Cloned, Written};
use core::cell::RefCell;
use millpond_ondisk::{ChecksumKind, CompressionKind, Dva, Level, ObjectType, StoredBlock, VdevId};
use std::collections::BTreeSet;

const FIRST: Txg = Txg(50);
const SECTOR: u64 = 4096;

/// The sectors that are allocated, and the references that were added.
#[derive(Default)]
struct Sectors {
    taken: RefCell<BTreeSet<u64>>,
    references: RefCell<Vec<BlockPointer>>,
}

fn sectors(pointer: &BlockPointer) -> impl Iterator<Item = u64> {
    let dva = pointer.dvas().next().unwrap();
    let start = dva.offset_bytes / SECTOR;
    start..start + dva.asize_bytes / SECTOR
}

impl Space for Sectors {
    fn claim(&self, pointer: &BlockPointer) -> Result<bool, PoolError> {
        let mut taken = self.taken.borrow_mut();
        let is_free = sectors(pointer).all(|sector| !taken.contains(&sector));
        if is_free {
            taken.extend(sectors(pointer));
        }
        Ok(is_free)
    }
    fn add_reference(&self, pointer: &BlockPointer) {
        self.references.borrow_mut().push(*pointer);
    }
}

/// A block at a sector, of this many sectors.
fn block(kind: FoundBlockKind, at: u64, count: u64, birth: Txg) -> FoundBlock {
    let dvas = [Dva {
        vdev: VdevId(0),
        offset_bytes: at * SECTOR,
        asize_bytes: count * SECTOR,
        is_gang: false,
    }];
    let stored = StoredBlock {
        dvas: &dvas,
        lsize_bytes: count * SECTOR,
        psize_bytes: count * SECTOR,
        compression: CompressionKind::Off,
        checksum: ChecksumKind::Fletcher4,
        checksum_words: [at, 2, 3, 4],
        object_type: ObjectType::PLAIN_FILE,
        level: Level(0),
        birth,
        fill: 1,
    };
    FoundBlock {
        pointer: stored.pointer(),
        kind,
        block_sequence: 1,
        record_sequence: 1,
    }
}

fn log(blocks: &[FoundBlock]) -> FoundLog {
    FoundLog {
        blocks: blocks.to_vec(),
        has_records: true,
        has_clones: true,
        record_sequence: 1,
        is_lost: false,
    }
}

/// The block that a record of a committed txg cloned is free, and a later block has its space.
#[test]
fn a_stale_clone_record_does_not_end_a_log() {
    let head = block(Chain, 1, 1, Txg(49));
    let stale = block(Cloned, 8, 4, Txg(40));
    for (kind, at, count) in [
        (Chain, 8, 4),
        (Written, 8, 4),
        (Written, 10, 1),
        (Chain, 6, 8),
    ] {
        let later = block(kind, at, count, FIRST);
        let last = block(Chain, 20, 1, FIRST);
        let whole = log(&[head, stale, later, last]);
        let (cloning, other) = (log(&[head, stale]), log(&[later, last]));
        for logs in [vec![&whole], vec![&cloning, &other], vec![&other, &cloning]] {
            let space = Sectors::default();
            let counts = claim_all(&space, FIRST, &logs).unwrap();
            let lengths: Vec<usize> = logs.iter().map(|log| log.blocks.len()).collect();
            assert_eq!(counts, lengths, "{kind:?} at {at}");
            assert_eq!(*space.references.borrow(), [stale.pointer]);
        }
    }
}

#[test]
fn clone_records_own_free_space_and_refer_to_the_rest() {
    let (free, used) = (block(Cloned, 8, 1, Txg(40)), block(Cloned, 9, 1, Txg(40)));
    let space = Sectors::default();
    space.taken.borrow_mut().extend(sectors(&used.pointer));
    let found = log(&[block(Chain, 1, 1, FIRST), free, used, free]);
    assert_eq!(claim_all(&space, FIRST, &[&found]).unwrap(), [4]);
    assert_eq!(*space.taken.borrow(), BTreeSet::from([1, 8, 9]));
    assert_eq!(
        *space.references.borrow(),
        [used.pointer, free.pointer],
        "the first record of a free block owns it"
    );
}

#[test]
fn a_log_ends_before_a_block_of_another_owner() {
    let (before, after) = (block(Cloned, 8, 1, Txg(40)), block(Cloned, 9, 1, Txg(40)));
    let space = Sectors::default();
    space.taken.borrow_mut().insert(5);
    let found = log(&[
        block(Chain, 1, 1, Txg(49)),
        before,
        block(Written, 5, 1, FIRST),
        after,
        block(Chain, 6, 1, FIRST),
    ]);
    assert_eq!(claim_all(&space, FIRST, &[&found]).unwrap(), [2]);
    // The chain block of an earlier txg is in the space maps.
    assert_eq!(*space.taken.borrow(), BTreeSet::from([5, 8]));
    assert_eq!(*space.references.borrow(), []);
}

/// A block that the walk reached with these numbers of the chain's last block and of the last record before it.
fn reached(kind: FoundBlockKind, at: u64, block_sequence: u64, record_sequence: u64) -> FoundBlock {
    FoundBlock {
        block_sequence,
        record_sequence,
        ..block(kind, at, 1, FIRST)
    }
}

#[test]
fn a_log_keeps_the_records_before_a_block_of_another_owner() {
    let claimed = |blocks: &[FoundBlock], last_record| {
        let space = Sectors::default();
        space.taken.borrow_mut().insert(5);
        let found = FoundLog {
            record_sequence: last_record,
            ..log(blocks)
        };
        let counts = claim_all(&space, FIRST, &[&found]).unwrap();
        let end = ClaimedEnd::of(&found, counts[0]);
        end.map(|end| (end.block_sequence, end.record_sequence))
    };
    // The record of the last claimed block stays, that of the refused one goes.
    let chain = reached(Chain, 1, 1, 0);
    let first = reached(Written, 2, 1, 0);
    let refused = reached(Written, 5, 1, 1);
    assert_eq!(claimed(&[chain, first, refused], 2), Some((1, 1)));
    // Records without blocks stay too.
    let refused = reached(Written, 5, 1, 8);
    assert_eq!(claimed(&[chain, first, refused], 9), Some((1, 8)));
    // All records before a refused block of the chain stay, and the chain ends before it.
    let refused = reached(Chain, 5, 2, 8);
    assert_eq!(claimed(&[chain, first, refused], 9), Some((1, 8)));
    let whole = [chain, first, reached(Chain, 6, 2, 8)];
    assert_eq!(claimed(&whole, 9), Some((2, 9)));
    assert_eq!(claimed(&[reached(Chain, 5, 1, 0)], 9), None);
}
