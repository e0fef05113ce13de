use super::*;
use millpond_block::BlockAddress;
use millpond_ondisk::intent_log::{IntentLogBlockHeader, LogRecordBody};
use millpond_ondisk::{LogRecord, ObjectId};
use std::collections::BTreeMap;

fn pointer(sequence: u64) -> BlockPointer {
    let mut pointer = BlockPointer::default();
    pointer.words[0] = 8;
    pointer.words[1] = sequence * 8;
    pointer.words[6] = 0x8009_0902_0007_0007;
    pointer.words[10] = 30;
    pointer.words[12..].copy_from_slice(&[11, 12, 5, sequence]);
    pointer
}

fn records(sequences: &[u64]) -> Vec<u8> {
    let record = |sequence| LogRecord {
        txg: Txg(30),
        sequence,
        is_case_insensitive: false,
        body: LogRecordBody::Truncate {
            object: ObjectId(7),
            offset: 0,
            length: 0,
        },
    };
    sequences
        .iter()
        .flat_map(|sequence| record(*sequence).encode().unwrap())
        .collect()
}

fn block(next: BlockPointer, records: &[u8]) -> Vec<u8> {
    let header = IntentLogBlockHeader {
        next,
        used_bytes: 184 + records.len() as u64,
        checksum: [0; 4],
        endian: Endian::Little,
    };
    let mut bytes = header.encode();
    bytes.extend(records);
    bytes.resize(4096, 0);
    bytes
}

/// Three blocks of a log. The fourth was never written; block 1 is already freed.
fn blocks() -> BTreeMap<u64, Vec<u8>> {
    BTreeMap::from([
        (2, block(pointer(3), &records(&[1, 2]))),
        (3, block(pointer(4), &records(&[4]))),
        (4, block(pointer(5), &records(&[5, 6]))),
    ])
}

fn header(first: u64) -> IntentLogHeader {
    IntentLogHeader {
        log: pointer(first),
        ..IntentLogHeader::default()
    }
}

fn walk(blocks: &BTreeMap<u64, Vec<u8>>, header: &IntentLogHeader) -> (Vec<u64>, ChainEnd) {
    let mut chain = Chain::new(header, |pointer: &BlockPointer| {
        let sequence = IntentLogVerifier::of(pointer).sequence;
        match blocks.get(&sequence) {
            Some(bytes) => Ok(LogBlock {
                bytes: bytes.clone(),
                endian: Endian::Little,
                has_ciphertext: false,
            }),
            None => Err(BlockError::Corrupt {
                address: BlockAddress::log_block(5, sequence),
                copies: vec![],
            }),
        }
    });
    let mut seen = Vec::new();
    for block in chain.by_ref() {
        seen.extend(block.records().map(|record| record.sequence));
        assert!(block.records().all(|record| record.decode().is_ok()));
    }
    assert!(chain.next().is_none());
    (seen, chain.end().unwrap().clone())
}

#[test]
fn a_log_ends_at_a_block_that_was_never_written() {
    let (seen, end) = walk(&blocks(), &header(2));
    assert_eq!(seen, [1, 2, 4, 5, 6]);
    assert!(matches!(
        end,
        ChainEnd::Unreadable(BlockError::Corrupt { .. })
    ));
}

#[test]
fn a_log_ends_without_a_chain_or_a_successor() {
    assert_eq!(
        walk(&blocks(), &IntentLogHeader::default()),
        (vec![], ChainEnd::NoLog)
    );
    let mut blocks = blocks();
    blocks.insert(3, block(BlockPointer::default(), &records(&[4])));
    assert_eq!(
        walk(&blocks, &header(2)),
        (vec![1, 2, 4], ChainEnd::NoSuccessor)
    );
}

#[test]
fn a_block_that_points_to_another_chain_ends_the_log() {
    let mut blocks = blocks();
    blocks.insert(3, block(pointer(3), &records(&[4])));
    let (seen, end) = walk(&blocks, &header(2));
    assert_eq!(seen, [1, 2]);
    assert!(matches!(end, ChainEnd::Broken(_)));
}

#[test]
fn a_block_with_an_impossible_record_is_not_part_of_the_log() {
    let mut blocks = blocks();
    let mut bad = records(&[4]);
    bad[8] = 200;
    blocks.insert(3, block(pointer(4), &bad));
    let (seen, end) = walk(&blocks, &header(2));
    assert_eq!(seen, [1, 2]);
    assert!(matches!(end, ChainEnd::Broken(_)));
}

#[test]
fn a_claimed_log_ends_where_it_ended_when_it_was_claimed() {
    let claimed = IntentLogHeader {
        claim_txg: Txg(31),
        claim_block_sequence: 3,
        claim_record_sequence: 4,
        flags: IntentLogFlags::CLAIM_RECORD_SEQUENCE_VALID | IntentLogFlags::REPLAY_NEEDED,
        ..header(2)
    };
    assert_eq!(
        walk(&blocks(), &claimed),
        (vec![1, 2, 4], ChainEnd::ClaimLimit)
    );
    let within_block = IntentLogHeader {
        claim_block_sequence: 4,
        claim_record_sequence: 5,
        ..claimed
    };
    assert_eq!(walk(&blocks(), &within_block).0, [1, 2, 4, 5]);
    let without_flag = IntentLogHeader {
        claim_block_sequence: 4,
        flags: IntentLogFlags::REPLAY_NEEDED,
        ..claimed
    };
    assert_eq!(walk(&blocks(), &without_flag).0, [1, 2, 4, 5, 6]);
}

#[test]
fn a_pointer_with_another_checksum_leads_to_no_log_block() {
    let mut odd = header(2);
    odd.log.words[6] = 0x8009_0702_0007_0007;
    assert!(matches!(walk(&blocks(), &odd).1, ChainEnd::Broken(_)));
}

#[test]
fn a_chain_that_returns_to_an_address_ends() {
    // Twenty blocks lead into a loop of seven.
    let place = |step: u64| {
        if step < 20 {
            step
        } else {
            20 + (step - 20) % 7
        }
    };
    let at = |step: u64| {
        let mut at = pointer(step);
        at.words[1] = place(step) * 8;
        at
    };
    let mut reads = 0;
    let mut chain = Chain::new(&header(1), |pointer: &BlockPointer| {
        reads += 1;
        let sequence = IntentLogVerifier::of(pointer).sequence;
        Ok(LogBlock {
            bytes: block(at(sequence + 1), &records(&[sequence])),
            endian: Endian::Little,
            has_ciphertext: false,
        })
    });
    assert!(chain.by_ref().count() < 64);
    assert!(matches!(chain.end(), Some(ChainEnd::Broken(_))));
    assert!(reads < 64);
}
