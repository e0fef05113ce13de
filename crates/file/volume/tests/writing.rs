//! Writes volumes and compares them with plain byte vectors.
#![forbid(unsafe_code)]

#[path = "../../posix/tests/support/mod.rs"]
mod support;

use millpond_block::Block;
use millpond_env::sync::Arc;
use millpond_env::thread;
use millpond_ondisk::intent_log::{LogRecord, LogRecordBody, LoggedPointers};
use millpond_ondisk::{BlockId, Endian, ObjectId, ObjectSetKind, Txg};
use millpond_posix::TransactionError;
use millpond_volume::{Volume, VolumeError, create_volume};
use proptest::prelude::*;
use proptest::test_runner::Config;
use support::Rig;

const BLOCK: u32 = 4096;

fn volume(size_bytes: u64) -> (Rig, Volume) {
    let (rig, tx) = Rig::empty(ObjectSetKind::Volume);
    create_volume("t/v", &rig.set, &tx, &rig.env, size_bytes, BLOCK).unwrap();
    drop(tx);
    rig.sync();
    let volume = Volume::open_for_change("t/v", &rig.set, rig.begin_port()).unwrap();
    (rig, volume)
}

fn committed(rig: &Rig) -> Volume {
    Volume::open("t/v", &rig.set.committed().unwrap()).unwrap()
}

#[test]
fn invalid_sizes_are_refused() {
    let (rig, tx) = Rig::empty(ObjectSetKind::Volume);
    for (size, block) in [
        (0, 4096),
        (4097, 4096),
        (8192, 3000),
        (8192, 256),
        (1 << 26, 1 << 25),
    ] {
        let made = create_volume("t/v", &rig.set, &tx, &rig.env, size, block);
        assert!(
            matches!(made, Err(VolumeError::Refused { .. })),
            "{size} {block}"
        );
    }
    drop(tx);
    let (_rig, volume) = volume(1 << 20);
    assert!(matches!(
        volume.resize(1000),
        Err(VolumeError::Refused { .. })
    ));
    let beyond = volume.write((1 << 20) - 1, b"xy");
    assert!(matches!(beyond, Err(VolumeError::BeyondEnd { .. })));
    assert!(volume.read(u64::MAX, &mut [0]).is_err());
}

#[test]
fn a_committed_volume_refuses_every_change() {
    let (rig, volume) = volume(1 << 20);
    volume.write(0, b"kept").unwrap();
    rig.sync();
    let read = committed(&rig);
    for refused in [
        read.write(0, b"x"),
        read.zero(0, 4096),
        read.discard(0, 4096),
        read.resize(2 << 20),
        read.free_beyond_end(),
    ] {
        let error = refused.unwrap_err();
        assert!(
            matches!(
                error,
                VolumeError::Transaction {
                    error: TransactionError::ReadOnly,
                    ..
                }
            ),
            "{error}"
        );
    }
    let mut found = [0; 4];
    read.read(0, &mut found).unwrap();
    assert_eq!(&found, b"kept");
}

#[test]
fn discarding_frees_blocks() {
    let (rig, volume) = volume(64 << 20);
    let empty = rig.sink.living().len();
    volume.write(10 << 20, &vec![7; 8 << 20]).unwrap();
    rig.sync();
    assert!(rig.sink.living().len() >= empty + 2048);
    volume.discard((10 << 20) - 1, (8 << 20) + 2).unwrap();
    rig.sync();
    let mut byte = [1];
    volume.read(12 << 20, &mut byte).unwrap();
    assert_eq!(byte, [0]);
    assert!(rig.sink.living().len() <= empty + 2);
    rig.check_space();
}

#[test]
fn shrinking_drops_the_content_beyond_the_end() {
    let (rig, volume) = volume(1 << 20);
    volume.write(0, &vec![3; 1 << 20]).unwrap();
    rig.with_sync_thread(|| {
        volume.resize(BLOCK.into()).unwrap();
        volume.resize(1 << 20).unwrap();
    });
    rig.sync();
    assert_eq!(committed(&rig).size_bytes(), 1 << 20);
    let mut found = vec![1; 1 << 20];
    committed(&rig).read(0, &mut found).unwrap();
    assert!(found[..BLOCK as usize].iter().all(|byte| *byte == 3));
    assert!(found[BLOCK as usize..].iter().all(|byte| *byte == 0));
    rig.check_space();
}

#[test]
fn growing_frees_blocks_that_a_crash_left_beyond_the_end() {
    let (rig, volume) = volume(BLOCK.into());
    // Simulate a power failure after the smaller size was committed, and before the rest was freed.
    let data = rig.set.object(ObjectId(1)).unwrap();
    let tx = rig.groups.begin(0).unwrap();
    data.write(&tx, u64::from(BLOCK) * 3, &[9; 100]).unwrap();
    drop(tx);
    rig.sync();
    volume.resize(1 << 20).unwrap();
    rig.sync();
    let mut found = vec![1; 1 << 20];
    committed(&rig).read(0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 0));
    rig.check_space();
}

#[test]
fn opening_frees_blocks_that_a_crash_left_beyond_the_end() {
    let (rig, volume) = volume(BLOCK.into());
    volume.write(0, &[7; BLOCK as usize]).unwrap();
    let data = rig.set.object(ObjectId(1)).unwrap();
    let far = u64::from(BLOCK) * 1_000_000;
    for at in [u64::from(BLOCK), far] {
        let tx = rig.groups.begin(0).unwrap();
        data.write(&tx, at, &[9; 100]).unwrap();
    }
    rig.sync();
    assert!(data.next_data(BlockId(1), false).unwrap().is_some());
    volume.free_beyond_end().unwrap();
    rig.sync();
    assert_eq!(data.next_data(BlockId(1), false).unwrap(), None);
    let mut found = vec![0; BLOCK as usize];
    committed(&rig).read(0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 7));
    rig.check_space();
}

#[test]
fn concurrent_writes_to_different_sectors_are_kept() {
    const SECTOR: u64 = 512;
    let (rig, volume) = volume(1 << 20);
    rig.with_sync_thread(|| {
        thread::scope(|scope| {
            for number in 0..4u64 {
                let volume = &volume;
                scope.spawn(move || {
                    // Four threads each write their own sectors; blocks hold several sectors.
                    for round in 0..3u8 {
                        for at in (number..2048).step_by(4) {
                            let value = number as u8 * 50 + round + (at % 40) as u8;
                            volume
                                .write(at * SECTOR, &[value; SECTOR as usize])
                                .unwrap();
                        }
                    }
                });
            }
        });
    });
    rig.sync();
    let mut found = vec![0; 1 << 20];
    committed(&rig).read(0, &mut found).unwrap();
    for (at, sector) in found.chunks(SECTOR as usize).enumerate() {
        let value = (at % 4) as u8 * 50 + 2 + (at % 40) as u8;
        assert!(sector.iter().all(|byte| *byte == value), "sector {at}");
    }
    rig.check_space();
}

/// A zeroed pointer does not say how long its hole is: it is a block of the record.
#[test]
fn a_replayed_clone_record_writes_holes() {
    let block = u64::from(BLOCK);
    let (rig, volume) = volume(1 << 20);
    let cloned = vec![5; BLOCK as usize];
    volume.write(0, &cloned).unwrap();
    volume.write(8 * block, &[7; 4 * BLOCK as usize]).unwrap();
    rig.sync();
    let data = rig.set.object(ObjectId(1)).unwrap();
    let pointer = data.stored_pointer(BlockId(0)).unwrap().unwrap();
    let mut pointers = pointer.encode().to_vec();
    pointers.resize(3 * pointers.len(), 0);
    let clone_at = |offset, block_bytes| {
        let body = LogRecordBody::CloneRange {
            object: ObjectId(1),
            offset,
            length: 2 * block + 100,
            block_bytes,
            pointers: LoggedPointers::new(&pointers, Endian::Little),
        };
        let record = LogRecord::new(Txg(9), body);
        volume.replay_record(&record, [0; 24], &mut |pointer, _, _| {
            let bytes = match pointer.is_hole() {
                true => vec![0; pointer.lsize_bytes() as usize],
                false => cloned.clone(),
            };
            Ok(Arc::new(Block {
                bytes: Arc::new(bytes),
                endian: Endian::Little,
                has_ciphertext: false,
            }))
        })
    };
    let holds = |changed: &[u8]| {
        let mut wanted = vec![7; 4 * BLOCK as usize];
        wanted[..changed.len()].copy_from_slice(changed);
        let mut found = vec![1; wanted.len()];
        volume.read(8 * block, &mut found).unwrap();
        assert!(found == wanted);
    };
    clone_at(8 * block, block).unwrap();
    let mut changed = cloned.clone();
    changed.resize(2 * BLOCK as usize + 100, 0);
    holds(&changed);
    for (offset, block_bytes) in [(8 * block + 512, block), (8 * block, 0)] {
        let refused = clone_at(offset, block_bytes);
        assert!(matches!(refused, Err(VolumeError::Refused { .. })));
        holds(&changed);
    }
    // A record of larger blocks than it has content for.
    let refused = clone_at(8 * block, 2 * block);
    assert!(matches!(refused, Err(VolumeError::Refused { .. })));
    holds(&changed);
    rig.sync();
    rig.check_space();
}

#[derive(Debug, Clone)]
enum Op {
    Write(u32, u16, u8),
    Discard(u32, u32),
    Zero(u32, u32),
    Resize(u8),
    Sync,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u32..300_000, 1u16..20_000, any::<u8>()).prop_map(|(at, length, value)| Op::Write(at, length, value)),
        2 => (0u32..300_000, 1u32..100_000).prop_map(|(at, length)| Op::Discard(at, length)),
        2 => (0u32..300_000, 1u32..100_000).prop_map(|(at, length)| Op::Zero(at, length)),
        1 => (1u8..70).prop_map(Op::Resize),
        2 => Just(Op::Sync),
    ]
}

proptest! {
    #![proptest_config(Config { cases: 40, ..Config::default() })]
    #[test]
    fn random_requests_match_a_byte_vector(ops in proptest::collection::vec(op(), 1..60)) {
        let (rig, volume) = volume(64 * u64::from(BLOCK));
        let mut wanted = vec![0u8; 64 * BLOCK as usize];
        for op in ops {
            let size = wanted.len();
            match op {
                Op::Write(at, length, value) => {
                    let content = vec![value; usize::from(length)];
                    let end = at as usize + content.len();
                    let outcome = volume.write(u64::from(at), &content);
                    prop_assert_eq!(outcome.is_ok(), end <= size);
                    if end <= size {
                        wanted[at as usize..end].copy_from_slice(&content);
                    }
                }
                Op::Discard(at, length) => {
                    let end = at as usize + length as usize;
                    let outcome = volume.discard(u64::from(at), u64::from(length));
                    prop_assert_eq!(outcome.is_ok(), end <= size);
                    let block = BLOCK as usize;
                    let (from, to) = ((at as usize).div_ceil(block) * block, end / block * block);
                    if end <= size && from < to {
                        wanted[from..to].fill(0);
                    }
                }
                Op::Zero(at, length) => {
                    let end = at as usize + length as usize;
                    let outcome = volume.zero(u64::from(at), u64::from(length));
                    prop_assert_eq!(outcome.is_ok(), end <= size);
                    if end <= size {
                        wanted[at as usize..end].fill(0);
                    }
                }
                Op::Resize(blocks) => {
                    let size = usize::from(blocks) * BLOCK as usize;
                    rig.with_sync_thread(|| volume.resize(size as u64)).unwrap();
                    wanted.resize(size, 0);
                }
                Op::Sync => rig.sync(),
            }
        }
        let mut found = vec![1; wanted.len()];
        volume.read(0, &mut found).unwrap();
        prop_assert!(found == wanted, "as seen");
        rig.sync();
        committed(&rig).read(0, &mut found).unwrap();
        prop_assert!(found == wanted, "on disk");
        prop_assert_eq!(committed(&rig).size_bytes(), wanted.len() as u64);
        rig.check_space();
    }
}

#[test]
fn a_search_for_data_waits_for_writers() {
    let (rig, volume) = volume(1 << 20);
    let mut extents = rig.search_during(
        || volume.write(0, &[1; 1 << 16]).unwrap(),
        || volume.extents(0).collect::<Result<Vec<_>, _>>().unwrap(),
    );
    extents.truncate(1);
    let first = extents.pop().unwrap();
    assert_eq!((first.is_data, first.length_bytes), (true, 1 << 16));
}
