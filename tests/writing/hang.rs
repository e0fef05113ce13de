//! Disks that stop answering during work with `fsync`, at any request of any kind.
//!
//! With redundancy, the work continues without the disk. All acknowledged data survives a power cut,
//! whether the disk is absent or present afterwards. Requests that the disk completes late damage nothing.
//! A pool that requires the disk waits for it, reports this and loses no data.
//!
//! By default a sample of the requests is tested, with `MILLPOND_WRITING_ALL` all.

use crate::exhaustive::is_all;
use crate::exhaustive_log::{History, begin, work};
use crate::{sim, sweep};
use millpond_block::{LeafReason, LeafState};
use millpond_engine::{
    AllocationClass, NewLayout, OpenOptions, Pool, RequestDeadline, WriteOptions,
};
use millpond_env::mark;
use millpond_sim::{Content, HangPlan, Hanging, PowerCut, Seed, SimDisk, World};
use millpond_vdev::LeafId;
use std::time::Duration;

type Tops<'t> = &'t [(AllocationClass, NewLayout, usize)];

const SECOND_NS: u64 = 1_000_000_000;
/// Size of the two labels at the start of a disk.
const LABEL_BYTES: u64 = 512 << 10;

fn writing() -> WriteOptions {
    WriteOptions {
        can_be_resumed: true,
        deadline: RequestDeadline(Some(Duration::from_secs(2))),
        ..WriteOptions::default()
    }
}

/// Opens the state after a power cut and compares it with the promises.
fn judge(after: &World, history: &History, count: usize, what: &str, is_whole: bool) {
    history.reopen(after, count, what);
    if is_whole {
        let read = sim::read(after).unwrap();
        sim::verify(&read).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

/// Power cuts at one point: with the disk absent, and with it present.
fn cut(world: &World, number: usize, history: &History, count: usize, what: &str) {
    let torn = PowerCut::Torn(Seed::new(count as u64));
    for cut in [
        PowerCut::NothingUnflushed,
        PowerCut::EverythingWritten,
        torn,
    ] {
        for is_gone in [true, false] {
            let what = format!("{what}: cut after {count}, {cut:?}, gone: {is_gone}");
            let after = world.reborn(count, &cut);
            after.disks()[number].set_absent(is_gone);
            judge(&after, history, count, &what, is_gone);
        }
    }
}

/// Does the work while a disk hangs as planned. Returns false if it never hung.
fn hangs(tops: Tops<'_>, number: usize, plan: &HangPlan, what: &str) -> bool {
    let (world, pool, mut history) = begin(tops, writing());
    let disk = &world.disks()[number];
    disk.hang(plan.clone().passing(3 * SECOND_NS));
    let begun = world.recorded();
    work(&pool, &world, &mut history);
    if disk.hanging() == 0 {
        return false;
    }
    assert_eq!(pool.inner().suspension(), None, "{what}");
    expect_hung(&pool, number, what);
    // The export does not wait for the disk.
    let end = world.recorded();
    pool.export()
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    for count in [begun + (end - begun) / 2, end, world.recorded()] {
        cut(&world, number, &history, count, what);
    }
    // All hanging requests of the disk are completed late.
    let before = world.recorded();
    release(disk);
    for count in before..=world.recorded() {
        let after = world.reborn(count, &PowerCut::EverythingWritten);
        judge(
            &after,
            &history,
            count,
            &format!("{what}: late {count}"),
            false,
        );
    }
    true
}

/// Lets the disk carry out everything that hangs.
fn release(disk: &SimDisk) {
    disk.release();
    while disk.hanging() > 0 {
        std::thread::yield_now();
    }
}

fn expect_hung(pool: &Pool, number: usize, what: &str) {
    let condition = pool
        .inner()
        .store()
        .topology()
        .condition(LeafId(number as u32));
    let is_hung = (condition.state, condition.reason) == (LeafState::Faulted, LeafReason::Hung);
    assert!(is_hung, "{what}: {condition:?}");
}

/// Hangs a disk at each of the tested requests of each kind.
fn sweep(tops: Tops<'_>, number: usize, step: usize) {
    let _mark = mark::expect("leaf-hung");
    let everywhere = 0..u64::MAX;
    let kinds = [
        (Hanging::Writes, everywhere.clone()),
        (Hanging::Writes, 0..LABEL_BYTES),
        (Hanging::DurableWrites, everywhere.clone()),
        (Hanging::Flushes, everywhere),
    ];
    let mut tried = 0;
    for (first, (kind, within)) in kinds.into_iter().enumerate() {
        let step = if is_all() { 1 } else { step };
        for good in (first as u64..).step_by(step) {
            let what = format!("{tops:?}, {kind:?} in {within:?} after {good}");
            let plan = HangPlan::new(kind).after(good).within(within.clone());
            if !hangs(tops, number, &plan, &what) {
                break;
            }
            tried += 1;
        }
    }
    println!("{tops:?}: {tried} hangs");
    assert!(tried > 3, "{tried}");
}

use AllocationClass::{Log, Normal};
use NewLayout::{Mirror, Raidz, Single};

#[test]
fn a_mirror_works_while_one_side_hangs() {
    sweep(&[(Normal, Mirror, 2)], 0, 19);
}

#[test]
fn a_raidz_works_while_one_disk_hangs() {
    sweep(&[(Normal, Raidz(1), 3)], 0, 23);
}

#[test]
fn a_mirrored_log_works_while_one_side_hangs() {
    sweep(&[(Normal, Single, 1), (Log, Mirror, 2)], 1, 4);
}

/// Runs an operation while a side of the pool's mirror hangs at one request of any kind.
///
/// The pool is opened before and exported after the operation. Returns false if the disk never hung.
fn operates(
    (name, act): &sweep::Operation,
    contents: &[Content],
    expected: &sweep::State,
    good: u64,
) -> bool {
    let what = format!("{name}, hangs after {good}");
    let world = sweep::world_of(contents);
    let candidate = sim::candidate(&world);
    let disk = world.disks()[0].clone();
    disk.hang(
        HangPlan::new(Hanging::Everything)
            .after(good)
            .passing(3 * SECOND_NS),
    );
    let options = OpenOptions::default();
    let pool = Pool::open_candidate(&world.env(), &candidate, &options, &writing());
    let pool = pool.unwrap_or_else(|error| panic!("{what}: {error}"));
    act(&pool).unwrap_or_else(|error| panic!("{what}: {error}"));
    if disk.hanging() > 0 {
        expect_hung(&pool, 0, &what);
    }
    pool.export()
        .unwrap_or_else(|error| panic!("{what}: export: {error}"));
    if disk.hanging() == 0 {
        return false;
    }
    for is_late in [false, true] {
        if is_late {
            release(&disk);
        }
        disk.set_absent(!is_late);
        let found = sweep::sound(&world, &what);
        assert_eq!(found, *expected, "{what}, late: {is_late}");
    }
    true
}

#[test]
fn every_operation_works_while_one_side_hangs() {
    let _mark = mark::expect("leaf-hung");
    let contents = sweep::prepared(&[(Mirror, 2)]);
    for (first, operation) in (0..).zip(sweep::OPERATIONS) {
        let world = sweep::world_of(&contents);
        let pool = sim::open(&world).unwrap();
        operation.1(&pool).unwrap();
        pool.export().unwrap();
        let expected = sweep::sound(&world, operation.0);
        let step = if is_all() { 1 } else { 53 };
        let numbers = (first..).step_by(step);
        let hung = numbers.take_while(|good| operates(operation, &contents, &expected, *good));
        let tried = hung.count();
        println!("{}: {tried} hangs", operation.0);
        assert!(tried > 0, "{}", operation.0);
    }
}

#[test]
fn a_log_is_replayed_without_a_side_that_hangs() {
    let _mark = mark::expect("leaf-hung");
    let contents = sweep::prepared(&[(Mirror, 2)]);
    // Not exported: the last change is in the log alone.
    let world = sweep::world_of(&contents);
    let pool = sim::open(&world).unwrap();
    // The first makes the log's chain, the second writes to it.
    for (name, seed) in [(b"first".as_slice(), 1), (b"second", 2)] {
        let files = pool.file_system("tank/b").unwrap();
        sweep::write(&files, name, 9_000, seed).unwrap();
        let node = files.root().unwrap().lookup(name).unwrap();
        files.fsync(&node).unwrap();
    }
    drop(pool);
    let disks = world.disks().into_iter();
    let contents: Vec<Content> = disks.map(|disk| disk.content()).collect();
    let before = sweep::sound(&world, "before the replay");
    sim::open(&world).unwrap().export().unwrap();
    let expected = sweep::sound(&world, "replayed");
    assert_ne!(before, expected, "nothing was replayed");
    let replay: sweep::Operation = ("replay", |_| Ok(()));
    let step = if is_all() { 1 } else { 17 };
    let numbers = (0..).step_by(step);
    let hung = numbers.take_while(|good| operates(&replay, &contents, &expected, *good));
    let tried = hung.count();
    println!("replay: {tried} hangs");
    assert!(tried > 5, "{tried}");
}
