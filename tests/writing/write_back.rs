//! Flushes that fail, on all disks at once or on one side of a mirror, as on Linux.
//!
//! The error is reported once and the next flush succeeds. Reads return the new bytes, but the disks hold
//! the old ones. Then the pool is resumed, or opened again, and the power fails.
//!
//! Each flush of a piece of work with `fsync` fails in turn. Every resulting state is imported and must
//! contain the promised data. By default a sample of the states is tested, with `MILLPOND_WRITING_ALL` all.

use crate::exhaustive::{files_of, is_all};
use crate::exhaustive_log::{History, begin, work};
use crate::sim;
use millpond_engine::{AllocationClass, Caller, NewLayout, NewMode, Pool, WriteAt, WriteOptions};
use millpond_env::mark;
use millpond_sim::{Event, FaultPlan, PowerCut, Seed, World};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

type Tops<'t> = &'t [(AllocationClass, NewLayout, usize)];

/// The flushes that fail.
#[derive(Debug, Clone, Copy)]
struct Failing {
    /// Number of successful flushes before.
    good: u64,
    /// Number of failing flushes, unless the pool is resumed earlier.
    count: u64,
    /// Number of disks, from the first on.
    disks: usize,
}

fn set_faults(world: &World, failing: Option<Failing>) {
    for (number, disk) in world.disks().into_iter().enumerate() {
        let failing = failing.filter(|failing| number < failing.disks);
        let plan = failing.map(|Failing { good, count, .. }| {
            FaultPlan::new(Seed::new(1)).failing_flushes_after(good, count)
        });
        disk.set_faults(plan);
    }
}

fn has_failed(world: &World) -> bool {
    world.disks().iter().any(|disk| disk.broken_promises() > 0)
}

/// Runs `zpool clear` whenever the pool is suspended.
///
/// At that time, pages whose write-back failed are dropped from memory.
fn keep_resuming(world: &World, pool: &Pool, is_over: &AtomicBool) -> usize {
    // A pool referenced only by its waiting thread is abandoned.
    let _wanted = Arc::clone(pool.inner());
    let mut resumed = 0;
    while !is_over.load(Ordering::SeqCst) {
        if pool.inner().suspension().is_some() {
            set_faults(world, None);
            pool.inner().resume().unwrap();
            world.disks().iter().for_each(|disk| disk.evict());
            resumed += 1;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    resumed
}

/// Does the work while flushes fail, and resumes the pool; `None` if no flush failed.
fn resumed(tops: Tops<'_>, failing: Failing) -> Option<(World, History, usize)> {
    // Only a separate thread waits for disks.
    let writing = WriteOptions {
        can_be_resumed: true,
        ..WriteOptions::default()
    };
    let (world, pool, mut history) = begin(tops, writing);
    set_faults(&world, Some(failing));
    let is_over = AtomicBool::new(false);
    let resumed = std::thread::scope(|scope| {
        let resuming = scope.spawn(|| keep_resuming(&world, &pool, &is_over));
        work(&pool, &world, &mut history);
        is_over.store(true, Ordering::SeqCst);
        resuming.join().unwrap()
    });
    set_faults(&world, None);
    let has_failed = has_failed(&world);
    drop(pool);
    has_failed.then_some((world, history, resumed))
}

/// Cuts the power at every flush from the first failed one on, and at the end.
fn judge(world: &World, history: &History, what: &str, number: &mut usize) -> usize {
    let journal = world.journal();
    let is_loss = |event: &Event| matches!(event, Event::LostWrites { .. });
    let first = journal.events().iter().position(is_loss).unwrap_or(0);
    let is_place = |at: &usize| {
        let event = journal.events().get(*at);
        event.is_none_or(|event| matches!(event, Event::Flush { .. } | Event::LostWrites { .. }))
    };
    let mut tried = 0;
    for count in (first..=journal.len()).filter(is_place) {
        let seed = Seed::new(count as u64);
        for cut in [
            PowerCut::EverythingWritten,
            PowerCut::NothingUnflushed,
            PowerCut::Torn(seed),
        ] {
            *number += 1;
            if !is_all() && !number.is_multiple_of(11) {
                continue;
            }
            tried += 1;
            let what = format!("{what}: after {count} of {} events, {cut:?}", journal.len());
            let after = world.reborn(count, &cut);
            history.reopen(&after, count, &what);
            let read = sim::read(&after).unwrap();
            sim::verify(&read).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }
    tried
}

/// Fails each flush in turn, on all disks or on some. Returns how many failed, how often the pool was resumed, and how many
/// states after power cuts were judged.
fn sweep_disks(tops: Tops<'_>, disks: usize) -> (usize, usize, usize) {
    let (mut tried, mut number, mut suspended, mut failed) = (0, 0, 0, 0);
    for count in [1, 2, u64::MAX] {
        for good in 0.. {
            let failing = Failing { good, count, disks };
            let Some((world, history, resumed)) = resumed(tops, failing) else {
                break;
            };
            failed += 1;
            suspended += resumed;
            let what = format!("{tops:?}, {failing:?}");
            tried += judge(&world, &history, &what, &mut number);
        }
    }
    println!(
        "{tops:?}: {failed} flushes failed, {suspended} times resumed, {tried} of {number} states"
    );
    (failed, suspended, tried)
}

fn sweep(tops: Tops<'_>) {
    let _mark = mark::expect("unflushed-written-again");
    let (failed, suspended, tried) = sweep_disks(tops, usize::MAX);
    assert!(failed > 20 && suspended > 5 && tried > 20);
}

use AllocationClass::{Log, Normal};
use NewLayout::{Mirror, Single};

#[test]
fn a_single_disk_whose_flush_failed_keeps_its_promises() {
    sweep(&[(Normal, Single, 1)]);
}

#[test]
fn a_mirror_all_of_whose_flushes_failed_keeps_its_promises() {
    sweep(&[(Normal, Mirror, 2)]);
}

/// The other side has everything. What the first one may lack is in its dirty time log, at every power cut.
#[test]
fn a_mirror_side_whose_flushes_failed_misses_what_it_lacks() {
    let _mark = mark::expect("loss-at-flush-logged");
    let (failed, suspended, tried) = sweep_disks(&[(Normal, Mirror, 2)], 1);
    assert_eq!(suspended, 0);
    assert!(failed > 20 && tried > 20);
}

#[test]
fn a_log_device_whose_flush_failed_keeps_its_promises() {
    sweep(&[(Normal, Single, 1), (Log, Mirror, 2)]);
}

/// The process ends, or abandons the pool, while the system holds pages in memory that are not on the disk.
#[test]
fn a_reopened_pool_relies_on_stable_data_only() {
    for tops in [&[(Normal, Single, 1)], &[(Normal, Mirror, 2)]] {
        let (mut tried, mut number, mut ended) = (0, 0, 0);
        for good in 0.. {
            let failing = Failing {
                good,
                count: u64::MAX,
                disks: usize::MAX,
            };
            let (world, pool, mut history) = begin(tops, sim::by_caller());
            set_faults(&world, Some(failing));
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                work(&pool, &world, &mut history);
            }));
            set_faults(&world, None);
            drop(pool);
            if !has_failed(&world) {
                break;
            }
            let what = format!("{tops:?}, {failing:?}");
            let pool = sim::open(&world).unwrap_or_else(|error| panic!("{what}: {error}"));
            if outcome.is_err() {
                ended += 1;
                history.go_on_from(files_of(&pool.committed().unwrap()).unwrap(), &world);
                for _ in 0..6 {
                    history.churn(&pool, &world);
                }
            }
            drop(pool);
            tried += judge(&world, &history, &what, &mut number);
        }
        println!("{tops:?}: {ended} times opened again, {tried} of {number} states");
        assert!(ended > 5 && tried > 10);
    }
}

/// A txg that frees a large file is written, but the flush of its uberblock fails.
///
/// Opened again from memory, the pool must not use the freed space before that uberblock is on the disk:
/// after a power cut the disk holds the previous txg, and the file.
#[test]
fn a_reopened_pool_does_not_overwrite_the_committed_txg() {
    const LARGE: usize = 24 << 20;
    const DISK_MIB: u64 = 96;
    /// At each end of a disk.
    const LABELS_BYTES: u64 = 512 << 10;
    let mut tried = 0;
    for good in 0.. {
        let world = World::new(77);
        let pool = sim::create(&world, &[(Single, 1)], DISK_MIB);
        let files = pool.file_system("tank").unwrap();
        let (root, caller) = (files.root().unwrap(), Caller::root());
        let mode = NewMode::exactly(0o600);
        let (node, _) = files.create(&caller, &root, b"large", mode, true).unwrap();
        let noise: Vec<u8> = (0..LARGE as u32)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 9) as u8)
            .collect();
        files
            .write(&caller, &node, WriteAt::Offset(0), &noise)
            .unwrap();
        drop(node);
        pool.sync().unwrap();
        files.unlink(&root, b"large").unwrap();
        files.reap().unwrap();
        world.forget();
        let failing = Failing {
            good,
            count: u64::MAX,
            disks: usize::MAX,
        };
        set_faults(&world, Some(failing));
        let outcome = pool.sync();
        set_faults(&world, None);
        drop((files, root, pool));
        if !has_failed(&world) {
            break;
        }
        assert!(outcome.is_err(), "{failing:?}");
        let opened = sim::read(&world).unwrap().inner().uberblock().txg;
        let begun = world.recorded();
        let pool = sim::open(&world).unwrap_or_else(|error| panic!("{failing:?}: {error}"));
        drop(pool);
        let journal = world.journal();
        let data = LABELS_BYTES..(DISK_MIB << 20) - LABELS_BYTES;
        let is_data = |event: &Event| matches!(event, Event::Write { offset_bytes, .. } if data.contains(offset_bytes));
        let first = journal.events()[begun..].iter().position(is_data).unwrap();
        for count in begun..=journal.len() {
            let after = world.reborn(count, &PowerCut::NothingUnflushed);
            let what = format!("{failing:?}, cut after {count} events");
            let read = sim::read(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
            sim::verify(&read).unwrap_or_else(|error| panic!("{what}: {error}"));
            let txg = read.inner().uberblock().txg;
            assert!(count < begun + first || txg >= opened, "{what}: {txg}");
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried} states");
}
