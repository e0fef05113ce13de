//! Log vdevs are removed: every promise of `fsync` is kept, and every crash leaves the pool with the vdev or without it.

use crate::attach::{attach, complete, new_device, of_disk, tops};
use crate::exhaustive::{Files, State, each_state, files_of, is_all, judge};
use crate::initialize::history;
use crate::rebuild;
use crate::scan::scrub;
use crate::sim;
use millpond_engine::{
    AttachKind, Caller, FoundLogs, NewLayout, NewMode, NewTop, NewVdevOptions, NewVdevs, Offline,
    OpenOptions, Pool, WriteAt, WriteOptions,
};
use millpond_env::mark;
use millpond_ondisk::Guid;
use millpond_pool::find_use;
use millpond_sim::{PowerCut, Seed, SimDisk, World};
use millpond_tests::workload::Life;
use millpond_vdev::{AllocationClass, VdevType};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use AllocationClass::{Log, Normal, Special};
use NewLayout::{Mirror, Raidz, Single};

type Tops<'t> = &'t [(AllocationClass, NewLayout, usize)];

/// The guid of the log vdev with this number.
fn log_at(pool: &Pool, number: usize) -> Guid {
    let top = &tops(pool)[number];
    assert!(top.is_log);
    top.guid
}

fn is_free(disk: &SimDisk) -> bool {
    find_use(disk, &|_| false).is_none()
}

fn write(pool: &Pool, number: u8, files: &mut Files, is_synced: bool) {
    let system = pool.file_system("tank").unwrap();
    let (root, caller) = (system.root().unwrap(), Caller::root());
    let (name, bytes) = (vec![b'a' + number], Seed::new(number.into()).bytes(9000));
    let mode = NewMode::exactly(0o600);
    let (node, _) = system.create(&caller, &root, &name, mode, true).unwrap();
    let at = WriteAt::Offset(0);
    system.write(&caller, &node, at, &bytes).unwrap();
    if is_synced {
        system.fsync(&node).unwrap();
    }
    files.insert(name, bytes);
}

fn new_log(disks: &[Arc<SimDisk>]) -> NewVdevs {
    NewVdevs::of(vec![NewTop {
        layout: if disks.len() == 1 { Single } else { Mirror },
        class: Log,
        devices: disks.iter().map(new_device).collect(),
    }])
}

#[test]
fn the_devices_are_free_and_the_pool_goes_on() {
    let _mark = mark::expect("log-vdev-removed");
    // The last vdev, one before others, and a mirror; the disks that leave.
    let shapes: [(&str, Tops<'_>, usize, &[usize]); 4] = [
        ("last", &[(Normal, Single, 1), (Log, Single, 1)], 1, &[1]),
        (
            "hole",
            &[(Normal, Mirror, 2), (Log, Single, 1), (Normal, Mirror, 2)],
            1,
            &[2],
        ),
        (
            "mirror",
            &[
                (Normal, Raidz(1), 3),
                (Log, Mirror, 2),
                (Special, Single, 1),
            ],
            1,
            &[3, 4],
        ),
        (
            "two",
            &[(Normal, Single, 1), (Log, Single, 1), (Log, Mirror, 2)],
            2,
            &[2, 3],
        ),
    ];
    for (shape, layout, number, disks) in shapes {
        let world = World::without_journal(231);
        let pool = sim::create_of(&world, layout, 96, sim::by_caller());
        let mut life = Life::new("tank", shape, 7);
        life.file_bytes_max = 100_000;
        life.steps(&pool, 60);
        let count = tops(&pool).len();
        pool.inner().remove_log(log_at(&pool, number)).unwrap();
        let left = tops(&pool);
        match number + 1 == count {
            true => assert_eq!(left.len(), number, "{shape}"),
            false => {
                assert_eq!(left.len(), count, "{shape}");
                let hole = &left[number];
                assert_eq!((hole.kind, hole.guid), (VdevType::Hole, Guid(0)), "{shape}");
            }
        }
        let all = world.disks();
        assert!(disks.iter().all(|disk| is_free(&all[*disk])), "{shape}");
        assert!(history(&pool).contains("(log)"), "{shape}");
        life.steps(&pool, 30);
        scrub(&pool);
        pool.export().unwrap();
        for disk in disks {
            all[*disk].set_absent(true);
        }
        let view = sim::read(&world).unwrap();
        sim::verify(&view).unwrap_or_else(|found| panic!("{shape}: {found}"));
        life.compare(&view, shape);
        drop(view);
        judge(&world, shape);
        // The same disks become a log vdev again, behind the hole.
        for disk in disks {
            all[*disk].set_absent(false);
        }
        let pool = sim::open(&world).unwrap();
        life.steps(&pool, 20);
        let disks: Vec<_> = disks.iter().map(|disk| all[*disk].clone()).collect();
        let options = NewVdevOptions::default();
        (pool
            .inner()
            .add_vdevs(&new_log(&disks), options, &|_| false))
        .unwrap();
        let behind = tops(&pool).len() - 1;
        assert!(behind >= number, "{shape}");
        life.steps(&pool, 30);
        pool.sync().unwrap();
        drop(pool);
        let pool = sim::open(&world).unwrap();
        life.steps(&pool, 20);
        pool.inner().remove_log(log_at(&pool, behind)).unwrap();
        life.steps(&pool, 10);
        scrub(&pool);
        pool.export().unwrap();
        let view = sim::read(&world).unwrap();
        sim::verify(&view).unwrap_or_else(|found| panic!("{shape}, again: {found}"));
        life.compare(&view, shape);
        judge(&world, &format!("{shape}, again"));
    }
}

#[test]
fn what_is_no_log_vdev_is_refused() {
    let world = World::without_journal(232);
    let layout = [(Normal, Mirror, 2), (Log, Mirror, 2)];
    let pool = sim::create_of(&world, &layout, 96, sim::by_caller());
    let before = tops(&pool);
    let why = |guid| pool.inner().remove_log(guid).unwrap_err().to_string();
    let unsupported = "operation not supported on this type of pool";
    assert_eq!(why(before[0].guid), unsupported);
    assert_eq!(why(of_disk(&pool, 0)), unsupported);
    assert_eq!(why(of_disk(&pool, 3)), unsupported);
    assert_eq!(why(Guid(5)), "no such device in pool");
    assert_eq!(why(Guid(0)), "no such device in pool");
    assert_eq!(tops(&pool), before);
    pool.export().unwrap();
}

#[test]
fn a_side_is_replaced_and_a_leaf_fails_while_the_vdev_leaves() {
    for is_dead in [false, true] {
        let world = World::without_journal(233);
        let layout = [(Normal, Single, 1), (Log, Mirror, 2)];
        let pool = sim::create_of(&world, &layout, 96, sim::by_caller());
        let mut files = Files::new();
        write(&pool, 0, &mut files, true);
        let disk = world.disk(96 << 20, 512);
        attach(&pool, of_disk(&pool, 1), &disk, AttachKind::Replacement).unwrap();
        write(&pool, 1, &mut files, true);
        world.disks()[2].set_absent(is_dead);
        pool.inner().remove_log(log_at(&pool, 1)).unwrap();
        write(&pool, 2, &mut files, true);
        complete(&pool);
        pool.export().unwrap();
        assert!(is_free(&world.disks()[1]) && is_free(&disk));
        // What the dead disk says is old.
        world.disks()[2].set_absent(false);
        let pool = sim::open(&world).unwrap();
        assert_eq!(tops(&pool).len(), 1);
        write(&pool, 3, &mut files, true);
        pool.export().unwrap();
        let view = sim::read(&world).unwrap();
        assert_eq!(files_of(&view).unwrap(), files);
        sim::verify(&view).unwrap();
        judge(&world, "a side that was replaced");
    }
}

#[test]
fn the_rebuild_of_a_side_ends_when_the_vdev_leaves() {
    let world = World::without_journal(238);
    let layout = [(Normal, Single, 1), (Log, Mirror, 2), (Normal, Single, 1)];
    let pool = sim::create_of(&world, &layout, 96, sim::by_caller());
    let mut files = Files::new();
    write(&pool, 0, &mut files, true);
    let disk = world.disk(96 << 20, 512);
    rebuild::attach(&pool, of_disk(&pool, 1), &disk, AttachKind::Mirror).unwrap();
    assert_eq!(pool.inner().features().count(rebuild::REBUILD), Some(1));
    write(&pool, 1, &mut files, true);
    pool.inner().remove_log(log_at(&pool, 1)).unwrap();
    assert_eq!(pool.inner().features().count(rebuild::REBUILD), Some(0));
    assert!(!pool.inner().is_rebuilding() && pool.inner().rebuilds().is_empty());
    assert!(!rebuild::slice(&pool));
    write(&pool, 2, &mut files, true);
    pool.export().unwrap();
    let pool = sim::open(&world).unwrap();
    assert!(pool.inner().rebuilds().is_empty());
    pool.export().unwrap();
    assert_eq!(files_of(&sim::read(&world).unwrap()).unwrap(), files);
    judge(&world, "a vdev whose side was rebuilt");
}

#[test]
fn a_log_device_that_failed_is_removed_and_loses_nothing() {
    for is_absent in [false, true] {
        let world = World::without_journal(234);
        let layout = [(Normal, Single, 1), (Log, Single, 1), (Normal, Single, 1)];
        let pool = sim::create_of(&world, &layout, 96, sim::by_caller());
        let mut files = Files::new();
        write(&pool, 0, &mut files, true);
        write(&pool, 1, &mut files, true);
        match is_absent {
            true => world.disks()[1].set_absent(true),
            false => {
                let how = Offline {
                    is_fault: true,
                    is_temporary: false,
                };
                let leaf = of_disk(&pool, 1);
                pool.inner().offline_leaf(leaf, how).unwrap();
            }
        }
        write(&pool, 2, &mut files, true);
        pool.inner().remove_log(log_at(&pool, 1)).unwrap();
        write(&pool, 3, &mut files, true);
        // A crash: what was promised comes from the logs that are left.
        drop(pool);
        world.disks()[1].set_absent(true);
        let pool = sim::open(&world).unwrap();
        assert_eq!(files_of(&pool.committed().unwrap()).unwrap(), files);
        world.disks()[1].set_absent(false);
        pool.export().unwrap();
        let view = sim::read(&world).unwrap();
        sim::verify(&view).unwrap();
        judge(&world, "a failed log device");
    }
}

#[test]
fn a_log_device_that_was_given_up_at_import_is_removed() {
    let world = World::without_journal(235);
    let layout = [(Normal, Single, 1), (Log, Single, 1)];
    let pool = sim::create_of(&world, &layout, 96, sim::by_caller());
    let mut files = Files::new();
    write(&pool, 0, &mut files, true);
    pool.sync().unwrap();
    let committed = files.clone();
    for number in 1..4 {
        write(&pool, number, &mut files, true);
    }
    drop(pool);
    world.disks()[1].set_absent(true);
    let options = OpenOptions {
        allow_missing_tops: true,
        ..OpenOptions::default()
    };
    let writing = WriteOptions {
        found_logs: FoundLogs::Discard,
        ..sim::by_caller()
    };
    let candidate = sim::candidate(&world);
    let pool = Pool::open_candidate(&world.env(), &candidate, &options, &writing).unwrap();
    let mut files = committed;
    assert_eq!(files_of(&pool.committed().unwrap()).unwrap(), files);
    write(&pool, 5, &mut files, true);
    pool.inner().remove_log(log_at(&pool, 1)).unwrap();
    write(&pool, 6, &mut files, true);
    pool.export().unwrap();
    // The disk comes back with its old labels, and belongs to nothing.
    world.disks()[1].set_absent(false);
    let view = sim::read(&world).unwrap();
    assert_eq!(files_of(&view).unwrap(), files);
    sim::verify(&view).unwrap();
    drop(view);
    judge(&world, "a log device that was given up");
    let pool = sim::open(&world).unwrap();
    assert_eq!(tops(&pool).len(), 1);
    pool.export().unwrap();
}

/// Removes a log vdev between fsyncs; the power fails at every point.
fn cut_everywhere(shape: &str, layout: Tops<'_>, number: usize) {
    let world = World::new(236);
    let pool = sim::create_of(&world, layout, 64, sim::by_caller());
    let mut files = Files::new();
    write(&pool, 0, &mut files, true);
    pool.sync().unwrap();
    world.forget();
    let mut states = vec![(0, files.clone())];
    let mut promised = |files: &Files| states.push((world.recorded(), files.clone()));
    write(&pool, 1, &mut files, true);
    promised(&files);
    write(&pool, 2, &mut files, false);
    pool.inner().remove_log(log_at(&pool, number)).unwrap();
    promised(&files);
    for number in 3..5 {
        write(&pool, number, &mut files, true);
        promised(&files);
    }
    drop(pool);
    let (mut judged, mut with, mut without) = (0, 0, 0);
    let mut visit = |state: State<'_>| {
        let (what, after) = (state.what, state.after);
        if is_all() && !state.tried.is_multiple_of(5) {
            return;
        }
        let pool = sim::open(after).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = files_of(&pool.committed().unwrap());
        let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
        let (_, least) = states.iter().rfind(|(at, _)| *at <= state.count).unwrap();
        let is_kept = |(name, bytes): (&Vec<u8>, &Vec<u8>)| found.get(name) == Some(bytes);
        assert!(least.iter().all(is_kept), "{what}: a promise is broken");
        // A file that was not promised may be there without its content.
        let is_known = |(name, bytes): (&Vec<u8>, &Vec<u8>)| match bytes.is_empty() {
            true => !least.contains_key(name),
            false => files.get(name) == Some(bytes),
        };
        assert!(found.iter().all(is_known), "{what}: unknown content");
        let logs: Vec<_> = tops(&pool).into_iter().filter(|top| top.is_log).collect();
        let mut wanted = found;
        write(&pool, 9, &mut wanted, true);
        // Begun or not, it can be done now.
        let is_there = logs.len() == layout.iter().filter(|(class, ..)| *class == Log).count();
        match is_there {
            true => {
                with += 1;
                pool.inner().remove_log(log_at(&pool, number)).unwrap();
            }
            false => without += 1,
        }
        write(&pool, 10, &mut wanted, true);
        pool.export().unwrap();
        let read = sim::read(after).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(files_of(&read).unwrap(), wanted, "{what}, gone on");
        sim::verify(&read).unwrap_or_else(|found| panic!("{what}: {found}"));
        drop(read);
        if state.tried.is_multiple_of(if is_all() { 150 } else { 12 }) {
            judge(after, what);
            judged += 1;
        }
    };
    each_state(shape, &world, &mut Seed::new(237), &mut visit);
    println!("{shape}: {with} with the log vdev, {without} without, {judged} judged by zdb");
    assert!(with > 0 && without > 0 && judged > 0, "{shape}");
}

#[test]
fn removing_the_last_vdev_survives_every_crash() {
    let layout = [(Normal, Single, 1), (Log, Single, 1)];
    cut_everywhere("remove log", &layout, 1);
}

#[test]
fn removing_a_mirror_before_others_survives_every_crash() {
    let layout = [(Normal, Single, 1), (Log, Mirror, 2), (Normal, Single, 1)];
    cut_everywhere("remove log, hole", &layout, 1);
}

/// Threads that call `fsync` all the time, each for files of its own.
#[test]
fn programs_call_fsync_while_the_vdev_leaves() {
    const THREADS: u8 = 3;
    for (shape, layout) in [
        ("threads", vec![(Normal, Single, 1), (Log, Single, 1)]),
        (
            "threads, hole",
            vec![(Normal, Single, 1), (Log, Mirror, 2), (Log, Single, 1)],
        ),
    ] {
        let world = World::new(238);
        let pool = sim::create_of(&world, &layout, 96, WriteOptions::default());
        pool.sync().unwrap();
        world.forget();
        let (stop, promises) = (AtomicBool::new(false), Mutex::new(vec![]));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (pool, world, stop, promises) = (&pool, &world, &stop, &promises);
                scope.spawn(move || {
                    let system = pool.file_system("tank").unwrap();
                    let (root, caller) = (system.root().unwrap(), Caller::root());
                    let name = vec![b'a' + thread];
                    let mode = NewMode::exactly(0o600);
                    let (node, _) = system.create(&caller, &root, &name, mode, true).unwrap();
                    for round in 1u64.. {
                        let at = WriteAt::Offset((round - 1) * 500);
                        let bytes = [thread * 64 + (round % 64) as u8; 500];
                        system.write(&caller, &node, at, &bytes).unwrap();
                        system.fsync(&node).unwrap();
                        let promise = (world.recorded(), name.clone(), round);
                        promises.lock().unwrap().push(promise);
                        if stop.load(Ordering::SeqCst) {
                            break;
                        }
                    }
                });
            }
            let rounds = |least: usize| {
                let before = promises.lock().unwrap().len();
                while promises.lock().unwrap().len() < before + least {
                    std::thread::yield_now();
                }
            };
            rounds(20);
            pool.inner().remove_log(log_at(&pool, 1)).unwrap();
            rounds(20);
            stop.store(true, Ordering::SeqCst);
        });
        assert_eq!(
            tops(&pool).iter().filter(|top| top.is_log).count(),
            layout.len() - 2
        );
        drop(pool);
        let promises = promises.into_inner().unwrap();
        let (last, mut judged) = (world.recorded(), 0);
        for cut in 1..=12 {
            let count = last * cut / 12;
            let how = match cut % 2 {
                0 => PowerCut::NothingUnflushed,
                _ => PowerCut::Torn(Seed::new(cut as u64)),
            };
            let (after, what) = (
                world.reborn(count, &how),
                format!("{shape}, {count} of {last}"),
            );
            let pool = sim::open(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
            let found = files_of(&pool.committed().unwrap());
            let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
            for (at, name, round) in &promises {
                if *at > count {
                    continue;
                }
                let bytes = found.get(name).map_or(0, Vec::len);
                assert!(bytes as u64 >= round * 500, "{what}: {name:?} has {bytes}");
            }
            for (name, bytes) in &found {
                let thread = name[0] - b'a';
                for (round, chunk) in (1u64..).zip(bytes.chunks(500)) {
                    let byte = thread * 64 + (round % 64) as u8;
                    assert!(chunk.iter().all(|one| *one == byte), "{what}: {round}");
                }
            }
            pool.export().unwrap();
            let read = sim::read(&after).unwrap();
            sim::verify(&read).unwrap_or_else(|found| panic!("{what}: {found}"));
            drop(read);
            if cut % 4 == 0 {
                judge(&after, &what);
                judged += 1;
            }
        }
        assert_eq!(judged, 3, "{shape}");
    }
}
