//! Copies from one side of a mirror to another, and to a child of a dRAID, with writes at the worst moments.

use crate::pool::{Moody, Pool, TXG, Vdev, address, job, noise};
use millpond_block::{BlockWrite, Copied, LogWrite};
use millpond_device::Device;
use millpond_env::mark::{self, Watch};
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::Ordering;
use millpond_env::thread::{self, JoinHandle};
use millpond_ondisk::{BlockPointer, CompressionKind, Guid, VDEV_DATA_START_BYTES, VdevId};
use millpond_vdev::LeafId;
use std::sync::mpsc::{Receiver, Sender, channel};

const MIB: u64 = 1 << 20;
const TOP: VdevId = VdevId(0);
/// The guids of the sides are 11 and up.
const FIRST: Guid = Guid(11);

/// A mirror whose last side holds nothing and lacks everything.
fn mirror(sides: u64) -> (Arc<Pool>, Guid) {
    with_empty_last(Vdev::Mirror(sides), sides)
}

/// A dRAID of three children whose last one lacks everything.
fn draid() -> (Arc<Pool>, Guid) {
    with_empty_last(Vdev::Draid(3, 1), 3)
}

fn with_empty_last(vdev: Vdev, sides: u64) -> (Arc<Pool>, Guid) {
    let pool = Pool::new(&[(vdev, 9)]);
    let last = sides as u32 - 1;
    pool.store.change_topology(|topology| {
        let entry = topology.health.entry(LeafId(last)).unwrap();
        entry.missed.push(4..TXG.0 + 1);
    });
    (Arc::new(pool), Guid(10 + sides))
}

fn raw(seed: u64) -> BlockWrite {
    BlockWrite {
        compression: CompressionKind::Off,
        ..job(noise(seed, 16 << 10))
    }
}

fn content(device: &Moody) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    device
        .inner
        .read(VDEV_DATA_START_BYTES, &mut bytes)
        .unwrap();
    bytes
}

fn copied() -> Copied {
    Copied::Read { failed: vec![] }
}

fn start<R: Send + 'static>(
    pool: &Arc<Pool>,
    work: impl FnOnce(&Pool) -> R + Send + 'static,
) -> JoinHandle<R> {
    let pool = Arc::clone(pool);
    thread::spawn("test", move || work(&pool)).unwrap()
}

fn copy_first(pool: &Pool, target: Guid) -> Copied {
    let pass = pool.store.begin_copies(TOP, &[target]).unwrap();
    pass.copy(&(0..MIB))
}

/// Stops a device at its next read or write.
fn stop(set: impl FnOnce(Box<dyn FnOnce() + Send>)) -> (Receiver<()>, Sender<()>) {
    let ((there, arrived), (go_on, may_go)) = (channel(), channel());
    set(Box::new(move || {
        there.send(()).unwrap();
        let _ = may_go.recv();
    }));
    (arrived, go_on)
}

/// Waits until a thread has ended, or waits for the other one.
fn settled(is_over: impl Fn() -> bool, watch: &Watch, mark: &str) {
    while !is_over() && watch.count(mark) == 0 {
        thread::yield_now();
    }
}

#[test]
fn a_copy_has_the_bytes_of_a_complete_side() {
    let (pool, target) = mirror(3);
    for side in 0..2 {
        let device = &pool.devices[side].inner;
        device
            .write(VDEV_DATA_START_BYTES, &noise(3, 3 << 20))
            .unwrap();
    }
    let pass = pool.store.begin_copies(TOP, &[target]).unwrap();
    assert_eq!(pass.copy(&(0..MIB)), copied());
    assert_eq!(pass.copy(&(2 * MIB + 512..2 * MIB + 1024)), copied());
    assert_eq!(pass.finish(), []);
    let mut bytes = vec![0; 3 << 20];
    pool.devices[2]
        .inner
        .read(VDEV_DATA_START_BYTES, &mut bytes)
        .unwrap();
    let mut expected = vec![0xa5; 3 << 20];
    let right = noise(3, 3 << 20);
    for range in [0..1 << 20, (2 << 20) + 512..(2 << 20) + 1024] {
        expected[range.clone()].copy_from_slice(&right[range]);
    }
    assert!(bytes == expected);
    assert!(
        pool.devices[2].medium.lock()[VDEV_DATA_START_BYTES as usize..][..1 << 20]
            == right[..1 << 20]
    );
}

/// Stops a copy when it has read and is about to write, starts a write beside it, and lets the copy go on.
fn write_during_copy<R: Send + 'static>(
    pool: &Arc<Pool>,
    target: Guid,
    write: impl FnOnce(&Pool) -> R + Send + 'static,
) -> R {
    let watch = mark::expect("write-waits-for-copy");
    let device = pool.devices.last().unwrap();
    let (arrived, go_on) = stop(|hook| device.before_write(hook));
    let copying = start(pool, move |pool| copy_first(pool, target));
    arrived.recv().unwrap();
    let writing = start(pool, write);
    settled(|| writing.is_finished(), &watch, "write-waits-for-copy");
    go_on.send(()).unwrap();
    assert_eq!(copying.join().unwrap(), copied());
    writing.join().unwrap()
}

/// Stops a write when it is about to write to a device, starts a copy beside it, and lets the write go on.
fn copy_during_write(pool: &Arc<Pool>, target: Guid, device: usize) {
    let watch = mark::expect("copy-waits-for-write");
    let (arrived, go_on) = stop(|hook| pool.devices[device].before_write(hook));
    let writing = start(pool, |pool| pool.write_one(raw(1)));
    arrived.recv().unwrap();
    let copying = start(pool, move |pool| copy_first(pool, target));
    settled(|| copying.is_finished(), &watch, "copy-waits-for-write");
    go_on.send(()).unwrap();
    writing.join().unwrap();
    assert_eq!(copying.join().unwrap(), copied());
}

#[test]
fn a_write_waits_for_the_copy_of_its_range() {
    let (pool, target) = mirror(2);
    write_during_copy(&pool, target, |pool| pool.write_one(raw(1)));
    assert!(content(&pool.devices[0]) == content(&pool.devices[1]));
}

/// Log blocks are written outside of a txg.
#[test]
fn a_log_write_waits_for_the_copy_of_its_range() {
    let (pool, target) = mirror(2);
    write_log_during_copy(&pool, target);
    assert!(content(&pool.devices[0]) == content(&pool.devices[1]));
}

fn write_log_during_copy(pool: &Arc<Pool>, target: Guid) {
    let log = LogWrite {
        address: address(),
        pointer: pool.write_one(raw(1)).pointer,
        bytes: Arc::new(noise(2, 4096)),
    };
    let written = write_during_copy(pool, target, move |pool| {
        pool.store.write_log_blocks(&[log])
    });
    written.unwrap();
}

/// Whether each stripe of the first blocks adds up: parity is the sum of two columns.
fn has_parity(pool: &Pool) -> bool {
    let columns = [0, 1, 2].map(|child| content(&pool.devices[child]));
    let [a, b, c] = &columns;
    let mut sums = a.iter().zip(b).zip(c).take(8 << 10);
    sums.all(|((a, b), c)| a ^ b ^ c == 0)
}

#[test]
fn on_draid_writes_and_copies_wait_for_each_other() {
    let (pool, target) = draid();
    write_during_copy(&pool, target, |pool| pool.write_one(raw(1)));
    assert!(has_parity(&pool));
    let (pool, target) = draid();
    write_log_during_copy(&pool, target);
    assert!(has_parity(&pool));
    let (pool, target) = draid();
    let written = write_during_copy(&pool, target, |pool| {
        let device = pool.store.topology().background_device(LeafId(2)).unwrap();
        device.write(VDEV_DATA_START_BYTES + 512, &noise(5, 512))
    });
    written.unwrap();
    assert!(content(&pool.devices[2])[512..1024] == noise(5, 512));
    // The new bytes are on the target, and on the others not yet.
    let (pool, target) = draid();
    copy_during_write(&pool, target, 0);
    assert!(has_parity(&pool));
}

/// A column that another leaf cannot read, or that it lacks, leaves too little.
#[test]
fn on_draid_nothing_is_copied_from_too_few_columns() {
    let (pool, target) = draid();
    pool.write_one(raw(1));
    pool.devices[2]
        .inner
        .write(VDEV_DATA_START_BYTES, &[0; 8192])
        .unwrap();
    assert!(!has_parity(&pool));
    let _mark = mark::expect("copy-not-computed");
    pool.devices[0].fails_reads.store(true, Ordering::SeqCst);
    assert_eq!(copy_first(&pool, target), Copied::Unreadable);
    pool.devices[0].fails_reads.store(false, Ordering::SeqCst);
    assert_eq!(copy_first(&pool, target), copied());
    assert!(has_parity(&pool));
    // A source that loses writes, and a target that does.
    let pass = pool.store.begin_copies(TOP, &[target]).unwrap();
    assert_eq!(pass.copy(&(0..MIB)), copied());
    pool.devices[1].flushes_to_fail.store(1, Ordering::SeqCst);
    assert_eq!(pass.finish(), [target]);
    pool.devices[2].fail_writes(true);
    let failed = vec![target];
    assert_eq!(copy_first(&pool, target), Copied::Read { failed });
    pool.devices[2].fail_writes(false);
    pool.devices[1].fail_writes(true);
    pool.write_one(raw(2));
    assert_eq!(copy_first(&pool, target), Copied::NoSource);
    assert!(!pool.store.topology().has_copy_source(TOP, &[target]));
}

/// Free space is filled or discarded outside of a txg too.
#[test]
fn work_on_free_space_waits_for_the_copy_of_its_range() {
    let (pool, target) = mirror(2);
    let written = write_during_copy(&pool, target, |pool| {
        let device = pool.store.topology().background_device(LeafId(1)).unwrap();
        device.write(VDEV_DATA_START_BYTES + 512, &noise(5, 512))
    });
    written.unwrap();
    assert!(content(&pool.devices[1])[512..1024] == noise(5, 512));
    let discarded = write_during_copy(&pool, target, |pool| {
        let device = pool.store.topology().background_device(LeafId(1)).unwrap();
        device.discard(VDEV_DATA_START_BYTES + 512, 512)
    });
    discarded.unwrap();
}

/// The new bytes are on one side of the mirror only, and that is the side that is copied to.
#[test]
fn a_copy_waits_for_writes_of_all_sides() {
    for is_early in [false, true] {
        let (pool, target) = mirror(2);
        let begin = || pool.store.begin_copies(TOP, &[target]).unwrap();
        let _early = is_early.then(begin);
        copy_during_write(&pool, target, 0);
        let sides = [0, 1].map(|side| content(&pool.devices[side]));
        assert!(sides[0] == sides[1], "{is_early}");
    }
}

/// A side that failed a write has older bytes. It is no source from the moment on when the write ends.
#[test]
fn nothing_is_copied_from_a_side_that_missed_a_write() {
    let (pool, target) = mirror(3);
    pool.devices[0].fail_writes(true);
    copy_during_write(&pool, target, 1);
    assert!(content(&pool.devices[1]) == content(&pool.devices[2]));
    assert!(content(&pool.devices[0]) != content(&pool.devices[2]));
    // Nothing is left to copy from once the other one missed something too.
    pool.devices[1].fail_writes(true);
    pool.devices[0].fail_writes(false);
    pool.write_one(raw(2));
    assert_eq!(copy_first(&pool, target), Copied::NoSource);
    assert!(!pool.store.topology().has_copy_source(TOP, &[target]));
}

/// What a read would repair is dropped: the copy may just be overwriting it.
#[test]
fn repairs_by_reads_do_not_come_between() {
    let _mark = mark::expect("repair-dropped-for-copy");
    let (pool, target) = mirror(2);
    pool.store.change_topology(|topology| {
        topology.health.entry(LeafId(1)).unwrap().missed.clear();
    });
    let pointer: BlockPointer = pool.write_one(raw(1)).pointer;
    // Of two idle sides the first one is read.
    let device = &pool.devices[0].inner;
    device
        .write(VDEV_DATA_START_BYTES, &noise(9, 16 << 10))
        .unwrap();
    pool.store.set_repair(true);
    let (arrived, go_on) = stop(|hook| pool.devices[1].before_write(hook));
    let copying = start(&pool, move |pool| copy_first(pool, target));
    arrived.recv().unwrap();
    let read = pool.store.read_uncached(&pointer, address(), None);
    assert_eq!(read.unwrap().bytes, Arc::new(noise(1, 16 << 10)));
    let written = pool.devices[0].writes.load(Ordering::SeqCst);
    assert_eq!(written, 1, "only that of the block");
    go_on.send(()).unwrap();
    let copied = copying.join().unwrap();
    assert!(matches!(copied, Copied::Read { failed } if failed.is_empty()));
}

#[test]
fn the_next_source_is_asked_if_one_fails() {
    let (pool, target) = mirror(3);
    pool.write_one(raw(1));
    pool.devices[2]
        .inner
        .write(VDEV_DATA_START_BYTES, &[0; 4096])
        .unwrap();
    let _mark = mark::expect("copy-read-failed");
    pool.devices[0].fails_reads.store(true, Ordering::SeqCst);
    let pass = pool.store.begin_copies(TOP, &[target]).unwrap();
    assert_eq!(pass.copy(&(0..MIB)), copied());
    assert!(content(&pool.devices[1]) == content(&pool.devices[2]));
    let errors = pool.store.topology().leaf_stats(LeafId(0)).read_errors;
    assert_eq!(errors, 1);
    pool.devices[1].fails_reads.store(true, Ordering::SeqCst);
    assert_eq!(pass.copy(&(0..MIB)), Copied::Unreadable);
}

/// What a source loses it may have returned before.
#[test]
fn copies_from_a_side_that_loses_writes_do_not_count() {
    let _mark = mark::expect("copy-source-lost-writes");
    let (pool, target) = mirror(2);
    pool.write_one(raw(1));
    let begin = || pool.store.begin_copies(TOP, &[target]).unwrap();
    let fail_flush = || pool.devices[0].flushes_to_fail.store(1, Ordering::SeqCst);
    // It lost some before: they are written again first.
    fail_flush();
    assert_eq!(begin().copy(&(0..MIB)), Copied::NoAnswer);
    let pass = begin();
    assert_eq!(pass.copy(&(0..MIB)), copied());
    assert_eq!(pass.finish(), []);
    let pass = begin();
    assert_eq!(pass.copy(&(0..MIB)), copied());
    fail_flush();
    assert_eq!(pass.finish(), [target]);
    // Nothing was copied from it.
    let pass = begin();
    fail_flush();
    assert_eq!(pass.finish(), []);
}

#[test]
fn a_side_that_takes_no_copy_or_loses_one_is_named() {
    let (pool, target) = mirror(3);
    let both = [FIRST, target];
    pool.store.change_topology(|topology| {
        topology.health.entry(LeafId(0)).unwrap().missed.push(4..5);
    });
    let pass = pool.store.begin_copies(TOP, &both).unwrap();
    pool.devices[2].fail_writes(true);
    let failed = vec![target];
    assert_eq!(pass.copy(&(0..MIB)), Copied::Read { failed });
    pool.devices[2].fail_writes(false);
    pool.devices[0].flushes_to_fail.store(1, Ordering::SeqCst);
    assert_eq!(pass.finish(), [FIRST]);
    // An error that another flush has seen counts too.
    let pass = pool.store.begin_copies(TOP, &both).unwrap();
    assert_eq!(pass.copy(&(0..MIB)), copied());
    pool.devices[0].flushes_to_fail.store(1, Ordering::SeqCst);
    assert!(pool.devices[0].flush().is_err());
    assert_eq!(pass.finish(), [FIRST]);
}
