//! A clone record of a committed txg names a block that is gone. Another block has its place, and is freed before the log ends.

use super::repeated::{blocks, change_record};
use super::replay::is_claimed;
use super::*;
use crate::cloning::{copy_file, make};
use millpond_ondisk::{
    BlockPointer, ChecksumKind, CompressionKind, Dva, Level, ObjectType, StoredBlock, Txg,
};
use millpond_pool::FoundBlockKind;
use millpond_sim::noise;

const RECORD: u64 = 128 << 10;
/// Byte offsets in a record.
const TXG_AT: usize = 16;
const POINTERS_AT: usize = 72;

/// Makes a pool with a log in which a file of one block is cloned and removed.
fn cloned_and_removed(world: &World) {
    let pool = sim::create(world, &[(NewLayout::Single, 1)], 64);
    let files = pool.file_system("tank").unwrap();
    let a = make(&files, "a", &noise(7, RECORD as usize));
    // The log begins, so that the next records are in it.
    files.commit_log().unwrap();
    pool.sync().unwrap();
    world.forget();
    let b = copy_file(&files, &a, "b");
    files.fsync(&b).unwrap();
    files.unlink(&files.root().unwrap(), b"a").unwrap();
    files.commit_log().unwrap();
}

/// Makes the clone record one of a txg long ago, whose block was at the same place and had this size.
fn make_stale(world: &World, size_bytes: u64) {
    let read = sim::read(world).unwrap();
    let blocks = blocks(&read);
    drop(read);
    let mut cloned = blocks
        .iter()
        .filter(|block| block.kind == FoundBlockKind::Cloned);
    let cloned = (cloned.next()).expect("a clone record");
    let change = |bytes: &mut [u8], place: usize| {
        let at = place - POINTERS_AT + TXG_AT;
        bytes[at..at + 8].copy_from_slice(&1u64.to_le_bytes());
    };
    let stale = before(&cloned.pointer, size_bytes);
    change_record(world, &blocks, cloned, &stale, &change);
}

fn before(pointer: &BlockPointer, size_bytes: u64) -> BlockPointer {
    let dvas = [Dva {
        asize_bytes: size_bytes,
        ..pointer.dvas().next().unwrap()
    }];
    let stored = StoredBlock {
        dvas: &dvas,
        lsize_bytes: size_bytes,
        psize_bytes: size_bytes,
        compression: CompressionKind::Off,
        checksum: ChecksumKind::Fletcher4,
        checksum_words: [1, 2, 3, 4],
        object_type: ObjectType::PLAIN_FILE,
        level: Level(0),
        birth: Txg(pointer.physical_birth().0 - 1),
        fill: 1,
    };
    stored.pointer()
}

fn judge(world: &World, what: &str) {
    let pool = sim::open(world).unwrap_or_else(|error| panic!("{what}: {error}"));
    let root = pool.file_system("tank").unwrap().root().unwrap();
    assert!(root.lookup(b"a").is_err(), "{what}: it is not removed");
    pool.export().unwrap();
    let read = sim::read(world).unwrap();
    assert_eq!(recount::faults_after_a_cut(&read), [""; 0], "{what}");
    sim::verify(&read).unwrap();
    drop(read);
    sim::open(world).unwrap().export().unwrap();
}

#[test]
fn a_log_with_a_clone_of_a_block_that_is_gone_is_replayed() {
    let _mark = mark::expect("log-holds-other-block");
    let world = World::new(38);
    cloned_and_removed(&world);
    for size_bytes in [RECORD / 2, RECORD, RECORD * 2] {
        let after = world.reborn(world.recorded(), &PowerCut::EverythingWritten);
        make_stale(&after, size_bytes);
        judge(&after, &format!("{size_bytes} bytes"));
    }
}

/// The power fails between the claim and the end of the log.
#[test]
fn a_claimed_log_with_a_clone_of_a_block_that_is_gone_is_replayed() {
    let _mark = mark::expect("log-holds-other-block");
    let world = World::new(39);
    cloned_and_removed(&world);
    for size_bytes in [RECORD / 2, RECORD * 2] {
        let claiming = world.reborn(world.recorded(), &PowerCut::EverythingWritten);
        make_stale(&claiming, size_bytes);
        claiming.forget();
        drop(sim::open(&claiming).unwrap());
        let mut tried = 0;
        for count in 0..claiming.recorded() {
            let claimed = claiming.reborn(count, &PowerCut::EverythingWritten);
            if is_claimed(&sim::read(&claimed).unwrap()) {
                judge(&claimed, &format!("{size_bytes} bytes, after {count}"));
                tried += 1;
            }
        }
        assert!(tried > 0);
    }
}
