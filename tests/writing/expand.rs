//! RAID-Z vdevs are expanded while programs work, and continue after exports, power cuts and failed disks.

use crate::attach::{attach, new_device, of_disk, tops};
use crate::exhaustive::{Files, files_of, is_all, judge};
use crate::expanded::with_case;
use crate::initialize::history;
use crate::sim;
use millpond_engine::{
    AttachKind, Caller, NewLayout, NewMode, NewVdevOptions, Offline, Pool, View, WriteAt,
    WriteOptions,
};
use millpond_env::mark;
use millpond_pool::{AttachError, CopyLimits};
use millpond_sim::{Event, FaultPlan, PowerCut, Scope, Seed, SimDisk, World};
use millpond_tests::oracle::zdb;
use millpond_tests::workload::{Life, manifest};
use std::sync::Arc;

use NewLayout::Raidz;

/// Slices so small that an expansion takes many.
fn small() -> CopyLimits {
    CopyLimits {
        bytes: 256 << 10,
        slice_ns: u64::MAX,
    }
}

fn expand(pool: &Pool, disk: &Arc<SimDisk>) -> Result<(), AttachError> {
    let device = new_device(disk);
    let options = NewVdevOptions {
        ashift: None,
        force: true,
    };
    let top = tops(pool)[0].guid;
    (pool.inner().expand_raidz(top, &device, options, &|_| false)).map(|_| ())
}

/// Moves rows to the end, with some work of `life` between the slices.
fn move_all(pool: &Pool, life: &mut Life, steps: usize) -> usize {
    let mut slices = 0;
    while pool.inner().is_expanding() {
        assert!(pool.inner().expansion_slice(&small()).unwrap());
        life.steps(pool, steps);
        slices += 1;
        assert!(slices < 5000, "the expansion does not end");
    }
    slices
}

#[test]
fn vdevs_are_expanded_while_programs_work() {
    let _marks = [
        mark::expect("expansion-started"),
        mark::expect("expansion-finished"),
    ];
    for (parity, width) in [(1, 3), (1, 2), (2, 4), (3, 5)] {
        let what = format!("raidz{parity} of {width}");
        let world = World::without_journal(601);
        let pool = sim::create(&world, &[(Raidz(parity), width)], 128);
        let mut life = Life::new("tank", &what, 11);
        life.file_bytes_max = 200_000;
        life.steps(&pool, 60);
        let size = tops(&pool)[0].asize_bytes;
        // Twice, one after the other.
        for round in 1..=2 {
            let disk = world.disk(128 << 20, 512);
            expand(&pool, &disk).unwrap();
            life.steps(&pool, 5);
            let slices = move_all(&pool, &mut life, 3);
            println!("{what}: {slices} slices");
            assert!(slices > 3, "{what}: {slices} slices");
            crate::scan::finish(&pool);
            assert_eq!(crate::scan::state(&pool).errors, 0, "{what}");
            life.steps(&pool, 20);
            let top = &tops(&pool)[0];
            assert_eq!(top.raidz_expand_txgs.len(), round, "{what}");
            let expected = size / width as u64 * (width + round) as u64;
            assert_eq!(top.asize_bytes, expected, "{what}");
            assert!(history(&pool).contains("raidz vdev expansion completed"));
        }
        life.close_file_systems();
        pool.export().unwrap();
        let view = sim::read(&world).unwrap();
        sim::verify(&view).unwrap_or_else(|found| panic!("{what}: {found}"));
        life.compare(&view, &what);
        drop(view);
        judge(&world, &what);
        // As many disks may be away as there is parity.
        for away in 0..parity as usize {
            world.disks()[away].set_absent(true);
        }
        let view = sim::read(&world).unwrap();
        life.compare(&view, &format!("{what}, without disks"));
    }
}

fn write(pool: &Pool, number: u8, length: usize, files: &mut Files) {
    let system = pool.file_system("tank").unwrap();
    let (root, caller) = (system.root().unwrap(), Caller::root());
    let (name, bytes) = (vec![b'a' + number], Seed::new(number.into()).bytes(length));
    let mode = NewMode::exactly(0o600);
    let (node, _) = system.create(&caller, &root, &name, mode, true).unwrap();
    system
        .write(&caller, &node, WriteAt::Offset(0), &bytes)
        .unwrap();
    files.insert(name, bytes);
    pool.sync().unwrap();
}

fn is_sound(view: &View, files: &Files, what: &str) {
    sim::verify_blocks(view).unwrap_or_else(|found| panic!("{what}: {found}"));
    let found = files_of(view).unwrap_or_else(|error| panic!("{what}: {error}"));
    for (name, bytes) in files {
        assert_eq!(found.get(name), Some(bytes), "{what}");
    }
}

/// Cuts the power at each flush of what the journal has. `files` were committed before. Every `judged`th state is judged
/// by `zdb`. Returns how many states had an expansion under way.
fn cut(world: &World, files: &Files, step: usize, judged: usize, what: &str) -> usize {
    let journal = world.journal();
    let is_flush = |at: &usize| matches!(journal.events()[*at], Event::Flush { .. });
    let places: Vec<usize> = (0..journal.len()).filter(is_flush).collect();
    let (mut during, mut tried) = (0, 0usize);
    for (number, count) in places.iter().enumerate().step_by(step) {
        for cut in [
            PowerCut::NothingUnflushed,
            PowerCut::EverythingWritten,
            PowerCut::Torn(Seed::new(700 + number as u64)),
            PowerCut::Torn(Seed::new(900 + number as u64)),
        ] {
            let what = format!("{what}: after {count} of {} events, {cut:?}", journal.len());
            let after = world.reborn(*count, &cut);
            tried += 1;
            let read = sim::read(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
            is_sound(&read, files, &format!("{what}, as found"));
            drop(read);
            if tried.is_multiple_of(judged) {
                judge(&after, &format!("{what}, as found"));
            }
            let pool = sim::open(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
            let mut files = files.clone();
            write(&pool, 25, 30_000, &mut files);
            during += usize::from(pool.inner().is_expanding());
            while pool.inner().is_expanding() {
                let has_moved = pool.inner().expansion_slice(&CopyLimits::default());
                assert!(has_moved.unwrap(), "{what}");
            }
            crate::scan::finish(&pool);
            if let Some((scan, _)) = pool.inner().scan() {
                assert_eq!(scan.errors, 0, "{what}");
            }
            pool.export().unwrap();
            let read = sim::read(&after).unwrap();
            sim::verify(&read).unwrap_or_else(|found| panic!("{what}: {found}"));
            is_sound(&read, &files, &what);
            drop(read);
            if tried.is_multiple_of(judged) {
                judge(&after, &what);
            }
        }
    }
    println!(
        "{what}: {tried} states at {} flushes, {during} during",
        places.len()
    );
    during
}

#[test]
fn expanding_survives_power_cuts() {
    let _mark = mark::expect("scratch-copied-on-import");
    let world = World::new(602);
    let pool = sim::create(&world, &[(Raidz(1), 3)], 96);
    let disk = world.disk(96 << 20, 512);
    let mut files = Files::new();
    for number in 0..8 {
        write(&pool, number, 90_000, &mut files);
    }
    let (every, judged) = if is_all() { (1, 20) } else { (3, 16) };
    let limits = CopyLimits::default();
    world.forget();
    let before = files.clone();
    expand(&pool, &disk).unwrap();
    assert!(cut(&world, &before, every, judged, "start") > 0);
    world.forget();
    assert!(pool.inner().expansion_slice(&limits).unwrap());
    assert!(cut(&world, &files, every, judged, "first rows") > 0);
    // Blocks of before and of now, in a place that is being moved.
    world.forget();
    let before = files.clone();
    for number in 8..11 {
        assert!(pool.inner().expansion_slice(&limits).unwrap());
        write(&pool, number, 50_000, &mut files);
    }
    assert!(cut(&world, &before, 3 * every, judged, "rows") > 0);
    while pool.inner().is_expanding() {
        world.forget();
        assert!(pool.inner().expansion_slice(&limits).unwrap());
    }
    assert!(cut(&world, &files, every, judged, "end") > 0);
}

#[test]
fn a_child_that_is_away_stops_the_moves_until_it_is_complete() {
    let world = World::without_journal(603);
    let pool = sim::create(&world, &[(Raidz(1), 4)], 128);
    let mut life = Life::new("tank", "away", 12);
    life.file_bytes_max = 200_000;
    life.steps(&pool, 60);
    let disk = world.disk(128 << 20, 512);
    expand(&pool, &disk).unwrap();
    let mut resilvers = 0;
    for round in 0..4 {
        // Also the new one.
        let number = 4 - round;
        let how = Offline::default();
        (pool.inner().offline_leaf(of_disk(&pool, number), how)).unwrap();
        assert!(pool.inner().is_expansion_paused());
        assert!(!pool.inner().expansion_slice(&small()).unwrap());
        life.steps(&pool, 15);
        crate::scan::online(&world, &pool, number);
        // The new one has no part of blocks whose rows have not moved.
        if pool.inner().is_expansion_paused() {
            assert!(!pool.inner().expansion_slice(&small()).unwrap());
            pool.inner().start_resilver().unwrap();
            crate::scan::finish(&pool);
            resilvers += 1;
        }
        assert!(!pool.inner().is_expansion_paused(), "disk {number}");
        for _ in 0..2 {
            assert!(pool.inner().expansion_slice(&small()).unwrap());
        }
        life.steps(&pool, 10);
    }
    assert!(resilvers >= 3, "{resilvers} resilvers");
    // One is replaced in the middle.
    let new = world.disk(128 << 20, 512);
    attach(&pool, of_disk(&pool, 1), &new, AttachKind::Replacement).unwrap();
    assert!(!pool.inner().expansion_slice(&small()).unwrap());
    life.steps(&pool, 10);
    crate::scan::finish(&pool);
    assert_eq!(pool.inner().finish_replacements().unwrap(), 1);
    move_all(&pool, &mut life, 2);
    crate::scan::finish(&pool);
    assert_eq!(crate::scan::state(&pool).errors, 0);
    life.close_file_systems();
    pool.export().unwrap();
    let view = sim::read(&world).unwrap();
    sim::verify(&view).unwrap();
    life.compare(&view, "away");
    drop(view);
    judge(&world, "away");
}

#[test]
fn an_expansion_continues_after_exports_and_crashes() {
    let world = World::without_journal(604);
    let pool = sim::create(&world, &[(Raidz(2), 4)], 128);
    let mut life = Life::new("tank", "exported", 13);
    life.file_bytes_max = 200_000;
    life.steps(&pool, 60);
    let disk = world.disk(128 << 20, 512);
    expand(&pool, &disk).unwrap();
    let mut pool = Some(pool);
    for round in 0..6 {
        let open = pool.take().unwrap();
        assert!(open.inner().expansion_slice(&small()).unwrap());
        life.steps(&open, 5);
        if round % 2 == 0 {
            life.close_file_systems();
            open.export().unwrap();
        } else {
            life.commit(&open).unwrap();
            life.close_file_systems();
            drop(open);
        }
        let view = sim::read(&world).unwrap();
        life.compare(&view, &format!("round {round}"));
        drop(view);
        judge(&world, &format!("round {round}"));
        let open = sim::open(&world).unwrap();
        assert!(open.inner().is_expanding());
        pool = Some(open);
    }
    let pool = pool.unwrap();
    move_all(&pool, &mut life, 1);
    crate::scan::finish(&pool);
    life.close_file_systems();
    pool.export().unwrap();
    let view = sim::read(&world).unwrap();
    sim::verify(&view).unwrap();
    life.compare(&view, "in the end");
    drop(view);
    judge(&world, "in the end");
}

/// Moves stop where the last uberblock says, also in free space. What is later written across that place lies partly
/// below it, where nothing is moved again.
#[test]
fn blocks_written_across_the_place_where_moves_stopped_are_kept() {
    let world = World::without_journal(608);
    let pool = sim::create(&world, &[(Raidz(1), 3)], 160);
    let disk = world.disk(160 << 20, 512);
    expand(&pool, &disk).unwrap();
    let mut rounds = 0;
    while pool.inner().is_expanding() {
        let has_moved = pool.inner().expansion_slice(&CopyLimits::default());
        assert!(has_moved.unwrap());
        // Half of the space, in large blocks.
        let mut files = Files::new();
        for number in 0..150 {
            let space = pool.inner().space().pool();
            if space.allocated_bytes < space.space_bytes / 2 {
                write(&pool, number, 1 << 20, &mut files);
            }
        }
        rounds += usize::from(pool.inner().is_expanding());
        pool.inner()
            .expansion_slice(&CopyLimits::default())
            .unwrap();
        let view = pool.committed().unwrap();
        is_sound(&view, &files, &format!("round {rounds}"));
        drop(view);
        let system = pool.file_system("tank").unwrap();
        let root = system.root().unwrap();
        for name in files.keys() {
            system.unlink(&root, name).unwrap();
        }
        for _ in 0..4 {
            pool.sync().unwrap();
        }
    }
    assert!(rounds >= 3, "{rounds} rounds");
    crate::scan::finish(&pool);
    assert_eq!(crate::scan::state(&pool).errors, 0);
    pool.export().unwrap();
    judge(&world, "written across");
}

#[test]
fn what_cannot_be_expanded_is_refused() {
    let world = World::without_journal(605);
    let pool = sim::create(&world, &[(Raidz(1), 3)], 128);
    let why = |disk: &Arc<SimDisk>| expand(&pool, disk).unwrap_err().to_string();
    let small_disk = world.disk(80 << 20, 512);
    assert_eq!(why(&small_disk), "device is too small");
    let coarse = world.disk(128 << 20, 4096);
    assert!(why(&coarse).contains("different optimal sector size"));
    let disk = world.disk(128 << 20, 512);
    pool.inner().take_checkpoint().unwrap();
    assert_eq!(why(&disk), "checkpoint exists");
    pool.inner().discard_checkpoint().unwrap();
    while pool.inner().has_more_to_discard() {
        pool.sync().unwrap();
    }
    let away = "raidz vdev has devices that are are offline or being replaced";
    let how = Offline::default();
    pool.inner().offline_leaf(of_disk(&pool, 0), how).unwrap();
    assert_eq!(why(&disk), away);
    crate::scan::online(&world, &pool, 0);
    pool.inner().start_resilver().unwrap();
    crate::scan::finish(&pool);
    expand(&pool, &disk).unwrap();
    let another = world.disk(128 << 20, 512);
    assert_eq!(why(&another), "raidz expansion in progress");
    let refused = pool.inner().take_checkpoint().unwrap_err().to_string();
    assert!(refused.contains("raidz expansion in progress"), "{refused}");
    drop(pool);

    let world = World::without_journal(606);
    let feature = Some("raidz_expansion");
    let layout = [(millpond_vdev::AllocationClass::Normal, Raidz(1), 3)];
    let pool = sim::create_without(&world, &layout, 128, sim::by_caller(), feature);
    let disk = world.disk(128 << 20, 512);
    assert_eq!(
        expand(&pool, &disk).unwrap_err().to_string(),
        "raidz_expansion feature must be enabled in order to attach a device to raidz"
    );
}

/// Threads work and call `fsync` while rows move, with the pool's own threads.
#[test]
fn programs_call_fsync_while_rows_move() {
    let world = World::without_journal(607);
    let layout = [(millpond_vdev::AllocationClass::Normal, Raidz(1), 3)];
    let pool = sim::create_of(&world, &layout, 128, WriteOptions::default());
    let disk = world.disk(128 << 20, 512);
    std::thread::scope(|scope| {
        for thread in 0..3u8 {
            let pool = &pool;
            scope.spawn(move || {
                let system = pool.file_system("tank").unwrap();
                let (root, caller) = (system.root().unwrap(), Caller::root());
                let name = vec![b'a' + thread];
                let mode = NewMode::exactly(0o600);
                let (node, _) = system.create(&caller, &root, &name, mode, true).unwrap();
                for round in 0..200u64 {
                    let at = WriteAt::Offset((round % 40) * 5000);
                    let bytes = vec![thread * 64 + (round % 64) as u8; 5000];
                    system.write(&caller, &node, at, &bytes).unwrap();
                    system.fsync(&node).unwrap();
                }
            });
        }
        expand(&pool, &disk).unwrap();
        let mut slices = 0;
        while pool.inner().is_expanding() {
            pool.inner().expansion_slice(&small()).unwrap();
            slices += 1;
            assert!(slices < 5000, "the expansion does not end");
        }
    });
    // A crash: what was promised comes from the logs.
    drop(pool);
    world.disks()[1].set_absent(true);
    let pool = sim::open(&world).unwrap();
    let files = files_of(&pool.committed().unwrap()).unwrap();
    for thread in 0..3u8 {
        let content = &files[&vec![b'a' + thread]];
        assert_eq!(content.len(), 200_000);
        for (piece, bytes) in content.chunks(5000).enumerate() {
            let last = thread * 64 + ((piece + 160) % 64) as u8;
            assert!(
                bytes.iter().all(|byte| *byte == last),
                "thread {thread}, piece {piece}"
            );
        }
    }
}

#[test]
fn views_of_before_read_on_to_the_end_and_after_it() {
    let world = World::without_journal(610);
    let pool = sim::create(&world, &[(Raidz(1), 3)], 128);
    let mut life = Life::new("tank", "views", 15);
    life.file_bytes_max = 200_000;
    life.steps(&pool, 60);
    let before = pool.committed().unwrap();
    expand(&pool, &world.disk(128 << 20, 512)).unwrap();
    sim::verify(&before).unwrap();
    let mut meanwhile = None;
    while pool.inner().is_expanding() {
        assert!(pool.inner().expansion_slice(&small()).unwrap());
        life.steps(&pool, 1);
        sim::verify(&before).unwrap();
        meanwhile.get_or_insert_with(|| pool.committed().unwrap());
    }
    life.steps(&pool, 20);
    sim::verify(&before).unwrap();
    sim::verify(&meanwhile.unwrap()).unwrap();
    drop(before);
    crate::scan::finish(&pool);
    pool.export().unwrap();
    life.close_file_systems();
    judge(&world, "views");
}

#[test]
fn moves_do_not_count_if_a_child_lost_one() {
    let _mark = mark::expect("moves-taken-back");
    let world = World::without_journal(608);
    let pool = sim::create(&world, &[(Raidz(1), 3)], 128);
    let mut life = Life::new("tank", "lost", 14);
    life.file_bytes_max = 200_000;
    life.steps(&pool, 60);
    let disk = world.disk(128 << 20, 512);
    expand(&pool, &disk).unwrap();
    for _ in 0..2 {
        assert!(pool.inner().expansion_slice(&small()).unwrap());
    }
    let offset = || pool.inner().uberblock().raidz_reflow.offset_bytes();
    let before = offset();
    let no_flush = FaultPlan::failing(Scope::Flushes);
    world.disks()[1].set_faults(Some(no_flush));
    let _ = pool.inner().expansion_slice(&small()).unwrap();
    assert_eq!(offset(), before);
    world.disks()[1].set_faults(None);
    drop(pool);
    // The crash leaves a child that lacks a txg.
    life.close_file_systems();
    judge(&world, "lost");
    let pool = sim::open(&world).unwrap();
    assert!(pool.inner().is_expansion_paused());
    assert!(!pool.inner().expansion_slice(&small()).unwrap());
    pool.inner().start_resilver().unwrap();
    crate::scan::finish(&pool);
    while pool.inner().is_expanding() {
        assert!(pool.inner().expansion_slice(&small()).unwrap());
    }
    crate::scan::finish(&pool);
    pool.export().unwrap();
    let view = sim::read(&world).unwrap();
    sim::verify(&view).unwrap();
    drop(view);
    judge(&world, "lost and moved");
}

#[test]
fn a_row_that_cannot_be_read_stops_the_moves_and_is_tried_again() {
    let world = World::without_journal(610);
    let pool = sim::create(&world, &[(Raidz(1), 3)], 128);
    let mut life = Life::new("tank", "unread", 15);
    life.file_bytes_max = 200_000;
    life.steps(&pool, 60);
    let disk = world.disk(128 << 20, 512);
    expand(&pool, &disk).unwrap();
    let offset = || pool.inner().uberblock().raidz_reflow.offset_bytes();
    // The first rows, and later ones.
    for _ in 0..2 {
        let unreadable = FaultPlan::failing(Scope::Reads);
        world.disks()[1].set_faults(Some(unreadable));
        // Rows with nothing on this child still move.
        while pool.inner().expansion_slice(&small()).unwrap() {
            assert!(pool.inner().is_expanding());
        }
        let before = offset();
        for _ in 0..3 {
            assert!(!pool.inner().expansion_slice(&small()).unwrap());
        }
        assert!(pool.inner().has_expansion_failed());
        assert!(!pool.inner().is_expansion_paused());
        assert_eq!(offset(), before);
        // Programs work on: every block is rebuilt from parity.
        life.steps(&pool, 10);
        world.disks()[1].set_faults(None);
        assert!(pool.inner().expansion_slice(&small()).unwrap());
        assert!(!pool.inner().has_expansion_failed());
        assert!(offset() > before);
    }
    move_all(&pool, &mut life, 2);
    crate::scan::finish(&pool);
    life.close_file_systems();
    pool.export().unwrap();
    let view = sim::read(&world).unwrap();
    sim::verify(&view).unwrap();
    life.compare(&view, "unread");
    drop(view);
    judge(&world, "unread");
}

#[test]
fn an_expansion_that_openzfs_began_is_finished() {
    let world = World::without_journal(609);
    if !with_case(&world, "expanding") {
        return;
    }
    let old = manifest(&sim::read(&world).unwrap()).unwrap();
    let pool = sim::open(&world).unwrap();
    assert!(pool.inner().is_expanding());
    while pool.inner().is_expanding() {
        let has_moved = pool.inner().expansion_slice(&CopyLimits::default());
        assert!(has_moved.unwrap());
    }
    crate::scan::finish(&pool);
    assert_eq!(crate::scan::state(&pool).errors, 0);
    let name = pool.inner().name();
    pool.export().unwrap();
    let view = sim::read(&world).unwrap();
    sim::verify(&view).unwrap();
    assert_eq!(manifest(&view).unwrap(), old);
    drop(view);
    let folder = tempfile::tempdir().unwrap();
    sim::to_files(&world, folder.path());
    zdb::judge(folder.path(), &name)
        .unwrap()
        .require("finished");
}
