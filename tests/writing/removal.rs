//! Data vdevs are removed by evacuation, while programs work, and continue after exports and power cuts.

use crate::attach::{attach, of_disk, tops};
use crate::exhaustive::{Files, State, each_state, files_of, is_all, judge};
use crate::initialize::{self, history};
use crate::scan::scrub;
use crate::sim;
use millpond_engine::{
    AttachKind, Caller, NewLayout, NewMode, Offline, Pool, View, WriteAt, WriteOptions,
};
use millpond_env::mark;
use millpond_ondisk::{Guid, RemovalPhase};
use millpond_pool::{CheckpointRefusal, CopyLimits, RemoveError, find_use};
use millpond_sim::{Seed, World};
use millpond_tests::workload::Life;
use millpond_vdev::{AllocationClass, VdevType};

use AllocationClass::{Log, Normal, Special};
use NewLayout::{Mirror, Raidz, Single};

pub(crate) type Tops<'t> = &'t [(AllocationClass, NewLayout, usize)];

/// Slices so small that a removal takes many.
fn small() -> CopyLimits {
    CopyLimits {
        bytes: 12 << 10,
        slice_ns: u64::MAX,
    }
}

pub(crate) fn guid(pool: &Pool, number: usize) -> Guid {
    tops(pool)[number].guid
}

pub(crate) fn remove(pool: &Pool, number: usize) {
    pool.inner().remove_data(guid(pool, number)).unwrap();
    assert!(tops(pool)[number].removing);
}

/// Copies to the end, with some work of `life` between the slices.
pub(crate) fn evacuate(pool: &Pool, life: &mut Life, steps: usize) -> usize {
    let mut slices = 0;
    while pool.inner().is_removing() {
        assert!(pool.inner().removal_slice(&small()).unwrap());
        life.steps(pool, steps);
        slices += 1;
        assert!(slices < 5000, "the removal does not end");
    }
    slices
}

fn phase(view: &View) -> RemovalPhase {
    let removal = view.inner().removal().unwrap();
    removal.map_or(RemovalPhase::None, |removal| removal.phase)
}

pub(crate) fn write(pool: &Pool, number: u8, length: usize, files: &mut Files) {
    let system = pool.file_system("tank").unwrap();
    let (root, caller) = (system.root().unwrap(), Caller::root());
    let (name, bytes) = (vec![b'a' + number], Seed::new(number.into()).bytes(length));
    let mode = NewMode::exactly(0o600);
    let (node, _) = system.create(&caller, &root, &name, mode, true).unwrap();
    let at = WriteAt::Offset(0);
    system.write(&caller, &node, at, &bytes).unwrap();
    files.insert(name, bytes);
}

pub(crate) fn unlink(pool: &Pool, number: u8, files: &mut Files) {
    let system = pool.file_system("tank").unwrap();
    let name = vec![b'a' + number];
    system.unlink(&system.root().unwrap(), &name).unwrap();
    files.remove(&name);
}

#[test]
fn vdevs_are_removed_while_programs_work() {
    let _marks = [
        mark::expect("removal-finished"),
        mark::expect("block-of-removed-vdev-freed"),
    ];
    // The vdev that leaves first, its disks, and the vdev that leaves after it.
    let shapes: [(&str, Tops<'_>, usize, &[usize], usize); 4] = [
        (
            "disks",
            &[
                (Normal, Single, 1),
                (Normal, Single, 1),
                (Normal, Single, 1),
                (Normal, Single, 1),
            ],
            1,
            &[1],
            2,
        ),
        (
            "mirrors",
            &[
                (Normal, Mirror, 2),
                (Normal, Mirror, 2),
                (Normal, Mirror, 2),
                (Normal, Single, 1),
            ],
            0,
            &[0, 1],
            1,
        ),
        (
            "special",
            &[
                (Normal, Single, 1),
                (Special, Mirror, 2),
                (Normal, Single, 1),
                (Normal, Single, 1),
            ],
            1,
            &[1, 2],
            0,
        ),
        (
            "log",
            &[
                (Normal, Single, 1),
                (Log, Single, 1),
                (Normal, Single, 1),
                (Normal, Single, 1),
                (Normal, Single, 1),
            ],
            2,
            &[2],
            0,
        ),
    ];
    for (shape, layout, first, disks, second) in shapes {
        let world = World::without_journal(301);
        let pool = sim::create_of(&world, layout, 256, sim::by_caller());
        let mut life = Life::new("tank", shape, 11);
        life.file_bytes_max = 200_000;
        life.steps(&pool, 80);
        remove(&pool, first);
        assert_eq!(phase(&pool.committed().unwrap()), RemovalPhase::Active);
        let slices = evacuate(&pool, &mut life, 3);
        println!("{shape}: {slices} slices");
        assert!(slices > 3, "{shape}: {slices} slices");
        let left = &tops(&pool)[first];
        assert_eq!(left.kind, VdevType::Indirect, "{shape}");
        let all = world.disks();
        for disk in disks {
            assert!(
                find_use(all[*disk].as_ref(), &|_| false).is_none(),
                "{shape}"
            );
            all[*disk].set_absent(true);
        }
        assert!(history(&pool).contains("vdev remove completed"), "{shape}");
        life.steps(&pool, 40);
        scrub(&pool);
        pool.export().unwrap();
        let check = |what: &str| {
            let view = sim::read(&world).unwrap();
            assert_eq!(phase(&view), RemovalPhase::Finished, "{shape}");
            sim::verify(&view).unwrap_or_else(|found| panic!("{shape}, {what}: {found}"));
            life.compare(&view, shape);
            drop(view);
            judge(&world, &format!("{shape}, {what}"));
        };
        check("one removed");
        // The mapping leads to a vdev that leaves too; in between a crash and an export.
        let pool = sim::open(&world).unwrap();
        life.close_file_systems();
        life.steps(&pool, 30);
        remove(&pool, second);
        for _ in 0..3 {
            assert!(pool.inner().removal_slice(&small()).unwrap());
        }
        life.commit(&pool).unwrap();
        life.close_file_systems();
        drop(pool);
        judge(&world, &format!("{shape}, crashed in the second removal"));
        let pool = sim::open(&world).unwrap();
        assert!(pool.inner().is_removing(), "{shape}");
        assert!(pool.inner().removal_slice(&small()).unwrap());
        life.steps(&pool, 10);
        life.close_file_systems();
        pool.export().unwrap();
        judge(&world, &format!("{shape}, exported in the second removal"));
        let pool = sim::open(&world).unwrap();
        evacuate(&pool, &mut life, 2);
        life.steps(&pool, 40);
        scrub(&pool);
        life.close_file_systems();
        pool.export().unwrap();
        let view = sim::read(&world).unwrap();
        sim::verify(&view).unwrap_or_else(|found| panic!("{shape}, both: {found}"));
        life.compare(&view, shape);
        drop(view);
        judge(&world, &format!("{shape}, both removed"));
    }
}

#[test]
fn a_vdev_that_is_removed_is_initialized_no_further() {
    let world = World::without_journal(61);
    let tops = [(Normal, Single, 1); 3];
    let pool = sim::create_of(&world, &tops, 128, sim::by_caller());
    let leaves = [0, 1].map(|number| guid(&pool, number));
    initialize::change(&pool, &leaves, initialize::START);
    remove(&pool, 0);
    let states = leaves.map(|leaf| initialize::stored(&pool, leaf).0);
    assert_eq!(states, [initialize::CANCELED, initialize::ACTIVE]);
    evacuate(&pool, &mut Life::new("tank", "initialized, removed", 7), 1);
    initialize::finish(&pool);
    pool.export().unwrap();
}

#[test]
fn a_cancelled_removal_leaves_nothing() {
    let _mark = mark::expect("removal-cancelled");
    let world = World::without_journal(302);
    let layout = [
        (Normal, Single, 1),
        (Normal, Mirror, 2),
        (Normal, Single, 1),
    ];
    let pool = sim::create_of(&world, &layout, 256, sim::by_caller());
    let counts = |pool: &Pool| {
        let features = pool.inner().features();
        let count = |name: &str| features.count(name);
        [
            count("com.delphix:device_removal"),
            count("com.delphix:obsolete_counts"),
        ]
    };
    let mut life = Life::new("tank", "cancelled", 5);
    life.file_bytes_max = 200_000;
    life.steps(&pool, 60);
    let before = tops(&pool);
    let refused = pool.inner().cancel_removal().unwrap_err();
    assert!(matches!(refused, RemoveError::NotRemoving), "{refused}");
    for round in 0..3 {
        remove(&pool, 1);
        assert_eq!(counts(&pool), [Some(1), Some(2)]);
        for _ in 0..4 * round {
            assert!(pool.inner().removal_slice(&small()).unwrap());
            life.steps(&pool, 3);
        }
        pool.inner().cancel_removal().unwrap();
        assert_eq!(counts(&pool), [Some(0), Some(0)], "round {round}");
        assert_eq!(phase(&pool.committed().unwrap()), RemovalPhase::Cancelled);
        let strip = |mut all: Vec<millpond_vdev::VdevConfig>| {
            all.iter_mut()
                .for_each(|top| top.metaslab_array = Default::default());
            all
        };
        assert_eq!(strip(tops(&pool)), strip(before.clone()));
        life.steps(&pool, 20);
    }
    pool.export().unwrap();
    let view = sim::read(&world).unwrap();
    sim::verify(&view).unwrap();
    life.compare(&view, "cancelled");
    drop(view);
    judge(&world, "cancelled removals");
}

#[test]
fn what_cannot_be_removed_is_refused() {
    let world = World::without_journal(303);
    let layout = [
        (Normal, Mirror, 2),
        (Normal, Single, 1),
        (Normal, Single, 1),
    ];
    let pool = sim::create_of(&world, &layout, 256, sim::by_caller());
    let why = |guid| pool.inner().remove_data(guid).unwrap_err().to_string();
    let unsupported = "operation not supported on this type of pool";
    assert_eq!(why(of_disk(&pool, 0)), unsupported);
    assert_eq!(why(Guid(5)), "no such device in pool");
    pool.inner().take_checkpoint().unwrap();
    assert_eq!(why(guid(&pool, 1)), "checkpoint exists");
    pool.inner().discard_checkpoint().unwrap();
    while pool.inner().has_more_to_discard() {
        pool.sync().unwrap();
    }
    let busy = "Pool busy; removal may already be in progress";
    let how = Offline::default();
    pool.inner().offline_leaf(of_disk(&pool, 0), how).unwrap();
    assert_eq!(why(guid(&pool, 1)), busy);
    crate::scan::online(&world, &pool, 0);
    pool.inner().start_resilver().unwrap();
    crate::scan::finish(&pool);
    remove(&pool, 1);
    assert_eq!(
        why(guid(&pool, 1)),
        "removal for this vdev is already in progress."
    );
    assert_eq!(why(guid(&pool, 2)), busy);
    let refused = pool.inner().take_checkpoint().unwrap_err().to_string();
    assert!(
        refused.contains(&CheckpointRefusal::Removing.to_string()),
        "{refused}"
    );
    let disk = world.disk(256 << 20, 512);
    let refused = attach(&pool, of_disk(&pool, 3), &disk, AttachKind::Mirror).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("device removal is in progress"),
        "{refused}"
    );
    while pool.inner().is_removing() {
        assert!(pool.inner().removal_slice(&CopyLimits::default()).unwrap());
    }
    assert_eq!(why(tops(&pool)[1].guid), "no such device in pool");
    attach(&pool, of_disk(&pool, 3), &disk, AttachKind::Mirror).unwrap();
    pool.export().unwrap();
    judge(&world, "refusals");

    for (layout, reason) in [
        (vec![(Normal, Single, 1)], "out of space"),
        (
            vec![
                (Normal, Raidz(1), 3),
                (Normal, Raidz(1), 3),
                (Normal, Raidz(1), 3),
            ],
            "invalid config; all top-level vdevs must have the same sector size and not be raidz.",
        ),
    ] {
        let world = World::without_journal(304);
        let pool = sim::create_of(&world, &layout, 256, sim::by_caller());
        let refused = pool.inner().remove_data(guid(&pool, 0)).unwrap_err();
        assert_eq!(refused.to_string(), reason);
        pool.export().unwrap();
    }
}

/// What both sides of a mirror had right together is right after the removal.
#[test]
fn sides_that_differ_go_to_different_sides() {
    let _mark = mark::expect("sides-differ-in-removal");
    let world = World::without_journal(306);
    let layout = [
        (Normal, Mirror, 2),
        (Normal, Mirror, 2),
        (Normal, Mirror, 2),
    ];
    let pool = sim::create_of(&world, &layout, 256, sim::by_caller());
    let mut files = Files::new();
    for number in 0..12 {
        write(&pool, number, 150_000, &mut files);
    }
    pool.sync().unwrap();
    crate::scan::rot(&world, 0, 9, 200_000);
    remove(&pool, 0);
    while pool.inner().is_removing() {
        assert!(pool.inner().removal_slice(&small()).unwrap());
    }
    assert_eq!(files_of(&pool.committed().unwrap()).unwrap(), files);
    scrub(&pool);
    pool.export().unwrap();
    let view = sim::read(&world).unwrap();
    sim::verify(&view).unwrap();
    assert_eq!(files_of(&view).unwrap(), files);
    drop(view);
    judge(&world, "sides that differ");
}

/// Removes a vdev between changes of files; the power fails at every point.
fn cut_everywhere(shape: &str, layout: Tops<'_>, number: usize, is_cancelled: bool) {
    let world = World::new(307);
    let pool = sim::create_of(&world, layout, 192, sim::by_caller());
    let mut files = Files::new();
    for number in 0..5 {
        write(&pool, number, 20_000, &mut files);
    }
    pool.sync().unwrap();
    world.forget();
    let mut states = vec![files.clone()];
    let mut commit = |pool: &Pool, files: &Files| {
        states.push(files.clone());
        pool.sync().unwrap();
    };
    write(&pool, 5, 9000, &mut files);
    commit(&pool, &files);
    remove(&pool, number);
    let limits = CopyLimits {
        bytes: 16 << 10,
        slice_ns: u64::MAX,
    };
    let mut step = 6;
    while pool.inner().is_removing() {
        assert!(pool.inner().removal_slice(&limits).unwrap());
        if step < 9 {
            unlink(&pool, step - 6, &mut files);
            write(&pool, step, 12_000, &mut files);
            commit(&pool, &files);
            step += 1;
        } else if is_cancelled && step == 9 {
            pool.inner().cancel_removal().unwrap();
        }
    }
    write(&pool, step, 7000, &mut files);
    commit(&pool, &files);
    drop(pool);
    let (mut judged, mut before, mut during, mut after_all) = (0, 0, 0, 0);
    let mut visit = |state: State<'_>| {
        let (what, after) = (state.what, state.after);
        if is_all() && !state.tried.is_multiple_of(5) {
            return;
        }
        let pool = sim::open(after).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = files_of(&pool.committed().unwrap());
        let mut found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(is_state(&states, &found), "{what}: unknown content");
        match phase(&pool.committed().unwrap()) {
            RemovalPhase::None => before += 1,
            RemovalPhase::Active => during += 1,
            RemovalPhase::Finished | RemovalPhase::Cancelled => after_all += 1,
        }
        if state.tried.is_multiple_of(if is_all() { 150 } else { 12 }) {
            judge(after, what);
            judged += 1;
        }
        write(&pool, 20, 5000, &mut found);
        // Begun or not, it can be done now.
        if !pool.inner().is_removing()
            && !is_cancelled
            && tops(&pool)[number].kind != VdevType::Indirect
        {
            remove(&pool, number);
        }
        while pool.inner().is_removing() {
            assert!(pool.inner().removal_slice(&limits).unwrap(), "{what}");
        }
        pool.export().unwrap();
        let read = sim::read(after).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(files_of(&read).unwrap(), found, "{what}, gone on");
        sim::verify(&read).unwrap_or_else(|found| panic!("{what}: {found}"));
        drop(read);
        if state.tried.is_multiple_of(if is_all() { 150 } else { 12 }) {
            judge(after, &format!("{what}, gone on"));
        }
    };
    each_state(shape, &world, &mut Seed::new(308), &mut visit);
    println!(
        "{shape}: {before} before, {during} during, {after_all} after, {judged} judged by zdb"
    );
    assert!(during > 0 && after_all > 0 && judged > 0, "{shape}");
}

/// Whether these are the files of one of the states.
pub(crate) fn is_state(states: &[Files], found: &Files) -> bool {
    states.iter().any(|state| state == found)
}

#[test]
fn removing_a_disk_survives_every_crash() {
    let layout = [
        (Normal, Single, 1),
        (Normal, Single, 1),
        (Normal, Single, 1),
    ];
    cut_everywhere("remove data", &layout, 1, false);
}

#[test]
fn removing_a_mirror_survives_every_crash() {
    let layout = [
        (Normal, Mirror, 2),
        (Normal, Single, 1),
        (Normal, Single, 1),
    ];
    cut_everywhere("remove data, mirror", &layout, 0, false);
}

#[test]
fn cancelling_survives_every_crash() {
    let layout = [
        (Normal, Single, 1),
        (Normal, Single, 1),
        (Normal, Single, 1),
    ];
    cut_everywhere("remove data, cancelled", &layout, 2, true);
}

/// Threads work and call `fsync` while the vdev leaves, with the pool's own threads.
#[test]
fn programs_call_fsync_while_a_data_vdev_leaves() {
    let world = World::without_journal(309);
    let layout = [
        (Normal, Single, 1),
        (Normal, Single, 1),
        (Normal, Single, 1),
    ];
    let pool = sim::create_of(&world, &layout, 256, WriteOptions::default());
    std::thread::scope(|scope| {
        for thread in 0..3u8 {
            let pool = &pool;
            scope.spawn(move || {
                let system = pool.file_system("tank").unwrap();
                let (root, caller) = (system.root().unwrap(), Caller::root());
                let name = vec![b'a' + thread];
                let mode = NewMode::exactly(0o600);
                let (node, _) = system.create(&caller, &root, &name, mode, true).unwrap();
                for round in 0..120u64 {
                    let at = WriteAt::Offset((round % 40) * 5000);
                    let bytes = vec![thread * 64 + (round % 64) as u8; 5000];
                    system.write(&caller, &node, at, &bytes).unwrap();
                    system.fsync(&node).unwrap();
                }
            });
        }
        pool.inner().remove_data(guid(&pool, 1)).unwrap();
        while pool.inner().is_removing() {
            pool.inner().removal_slice(&small()).unwrap();
        }
    });
    assert_eq!(tops(&pool)[1].kind, VdevType::Indirect);
    // A crash: what was promised comes from the logs.
    drop(pool);
    world.disks()[1].set_absent(true);
    let pool = sim::open(&world).unwrap();
    let files = files_of(&pool.committed().unwrap()).unwrap();
    for thread in 0..3u8 {
        let content = &files[&vec![b'a' + thread]];
        assert_eq!(content.len(), 200_000);
        for (piece, bytes) in content.chunks(5000).enumerate() {
            let last = thread * 64 + ((piece + 80) % 64) as u8;
            assert!(
                bytes.iter().all(|byte| *byte == last),
                "thread {thread}, piece {piece}"
            );
        }
    }
    pool.export().unwrap();
    sim::verify(&sim::read(&world).unwrap()).unwrap();
    judge(&world, "fsync beside a removal");
}
