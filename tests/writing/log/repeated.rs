//! Logs in which two records name one written block.

use super::replay::{is_claimed, three_logged_writes};
use super::*;
use millpond_checksum::{Form, seal_zilog2};
use millpond_device::Device;
use millpond_ondisk::{BlockPointer, IntentLogHeader, VDEV_DATA_START_BYTES};
use millpond_pool::{FoundBlock, FoundBlockKind, FoundLog, FoundLogs};

/// The bytes of one record of the file.
const RECORD: usize = 128 << 10;

/// The blocks of the log of `tank`.
pub(super) fn blocks(pool: &View) -> Vec<FoundBlock> {
    let dataset = pool.dataset("tank").unwrap();
    let set = dataset.object_set().unwrap();
    let header = IntentLogHeader::from_words(&set.phys().intent_log_header);
    let first = millpond_ondisk::Txg(pool.inner().uberblock().txg.0 + 1);
    let store = pool.inner().store();
    let found = FoundLog::read(store, set.dataset(), &header, first, FoundLogs::Replay);
    found.unwrap().blocks
}

fn written(blocks: &[FoundBlock]) -> impl Iterator<Item = &FoundBlock> {
    (blocks.iter()).filter(|block| block.kind == FoundBlockKind::Written)
}

/// Makes the third write record point to the block of the second one. They are in different blocks of the log.
fn repeat_a_block(world: &World) {
    let read = sim::read(world).unwrap();
    let blocks = blocks(&read);
    drop(read);
    let written: Vec<_> = written(&blocks).collect();
    assert_eq!(written.len(), 6);
    let (known, changed) = (written[1], written[2]);
    assert_ne!(known.block_sequence, changed.block_sequence);
    change_record(world, &blocks, changed, &known.pointer, &|_, _| {});
}

/// Puts another pointer into the record that has this one. `change` may change more of the log block; it gets the place of
/// the pointer.
pub(super) fn change_record(
    world: &World,
    blocks: &[FoundBlock],
    changed: &FoundBlock,
    pointer: &BlockPointer,
    change: &dyn Fn(&mut [u8], usize),
) {
    let holder = blocks.iter().find(|block| {
        block.kind == FoundBlockKind::Chain && block.block_sequence == changed.block_sequence
    });
    let holder = holder.unwrap().pointer;
    let at = VDEV_DATA_START_BYTES + holder.dvas().next().unwrap().offset_bytes;
    let disk = world.disks()[0].clone();
    let mut bytes = vec![0; holder.psize_bytes() as usize];
    disk.read(at, &mut bytes).unwrap();
    let old = changed.pointer.encode();
    let place = bytes.windows(old.len()).position(|part| part == old);
    let place = place.unwrap();
    bytes[place..place + old.len()].copy_from_slice(&pointer.encode());
    change(&mut bytes, place);
    seal_zilog2(&mut bytes, holder.checksum_words(), Form::of(&holder)).unwrap();
    disk.rot(at, &bytes);
}

/// The file has all that was synced, and in the third record what the second block holds.
fn has_all(pool: &Pool, bytes: &[u8]) {
    let files = pool.file_system("tank").unwrap();
    let node = files.root().unwrap().lookup(b"a").unwrap();
    let mut found = vec![0; 3 * bytes.len()];
    assert_eq!(node.read(0, &mut found).unwrap(), found.len());
    let [first, second] = [&bytes[..RECORD], &bytes[RECORD..]];
    let expected = [first, second, second, second, first, second];
    for (number, (found, expected)) in found.chunks(RECORD).zip(expected).enumerate() {
        assert!(found == expected, "record {number}");
    }
}

#[test]
fn a_log_that_names_a_block_again_is_claimed_and_replayed_whole() {
    let _mark = mark::expect("log-names-block-again");
    let world = World::new(35);
    let bytes = three_logged_writes(&world);
    let after = world.reborn(world.recorded(), &PowerCut::EverythingWritten);
    repeat_a_block(&after);
    let read = sim::read(&after).unwrap();
    assert_eq!(written(&blocks(&read)).count(), 5);
    drop(read);
    after.forget();
    let pool = sim::open(&after).unwrap();
    has_all(&pool, &bytes);
    pool.export().unwrap();
    let mut claimed = 0;
    for count in 0..after.recorded() {
        let state = after.reborn(count, &PowerCut::EverythingWritten);
        let read = sim::read(&state).unwrap();
        claimed += usize::from(is_claimed(&read));
        assert_eq!(recount::faults_after_a_cut(&read), [""; 0], "after {count}");
    }
    assert!(claimed > 0);
    let pool = sim::open(&after).unwrap();
    has_all(&pool, &bytes);
    pool.export().unwrap();
    sim::verify(&sim::read(&after).unwrap()).unwrap();
}

/// Another program claimed the log.
#[test]
fn a_claimed_log_that_names_a_block_again_is_replayed_and_freed() {
    let _mark = mark::expect("log-names-block-again");
    let world = World::new(36);
    let bytes = three_logged_writes(&world);
    let claiming = world.reborn(world.recorded(), &PowerCut::EverythingWritten);
    claiming.forget();
    drop(sim::open(&claiming).unwrap());
    let mut tried = 0;
    for count in 0..claiming.recorded() {
        let claimed = claiming.reborn(count, &PowerCut::EverythingWritten);
        let read = sim::read(&claimed).unwrap();
        // Logs that were replayed in part have lost nothing yet, and can be claimed no more.
        if !is_claimed(&read) || written(&blocks(&read)).count() != 6 {
            continue;
        }
        drop(read);
        repeat_a_block(&claimed);
        let pool = sim::open(&claimed).unwrap_or_else(|error| panic!("after {count}: {error}"));
        pool.sync().unwrap();
        has_all(&pool, &bytes);
        pool.export().unwrap();
        let pool = sim::open(&claimed).unwrap();
        has_all(&pool, &bytes);
        pool.export().unwrap();
        sim::verify(&sim::read(&claimed).unwrap()).unwrap();
        tried += 1;
    }
    assert!(tried > 0);
}

/// A log that is claimed and given up frees each block once.
#[test]
fn a_claimed_log_that_names_a_block_again_is_discarded() {
    let world = World::new(37);
    three_logged_writes(&world);
    let claiming = world.reborn(world.recorded(), &PowerCut::EverythingWritten);
    claiming.forget();
    drop(sim::open(&claiming).unwrap());
    let states = (0..claiming.recorded()).map(|count| {
        let state = claiming.reborn(count, &PowerCut::EverythingWritten);
        let is_first = is_claimed(&sim::read(&state).unwrap());
        is_first.then_some(state)
    });
    let claimed = states.flatten().next().unwrap();
    repeat_a_block(&claimed);
    let options = millpond_engine::OpenOptions::default();
    let writing = millpond_engine::WriteOptions {
        found_logs: FoundLogs::Discard,
        ..sim::by_caller()
    };
    let candidate = sim::candidate(&claimed);
    let pool = Pool::open_candidate(&claimed.env(), &candidate, &options, &writing).unwrap();
    pool.sync().unwrap();
    pool.export().unwrap();
    sim::open(&claimed).unwrap().export().unwrap();
}
