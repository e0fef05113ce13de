//! Mappings of removed vdevs are condensed while programs work, and continue after exports and power cuts.

use crate::exhaustive::{Files, State, each_state, files_of, is_all, judge};
use crate::removal::{Tops, evacuate, is_state, remove, unlink, write};
use crate::sim;
use millpond_engine::{NewLayout, Pool, View};
use millpond_env::{Tunable, mark};
use millpond_ondisk::VdevId;
use millpond_pool::CopyLimits;
use millpond_sim::{Seed, World};
use millpond_tests::workload::Life;
use millpond_vdev::AllocationClass;

use AllocationClass::{Normal, Special};
use NewLayout::{Mirror, Single};

/// Nanoseconds after which the next entry is due.
const DELAY_NS: u64 = 1_000_000;

/// Condenses small mappings too, an entry in each txg.
fn tune(world: &World) {
    let tunables = &world.env().tunables;
    for (tunable, value) in [
        (Tunable::CondenseMinMappingBytes, 0),
        (Tunable::CondenseObsoletePercent, 4),
        (Tunable::CondenseDelayMs, DELAY_NS / 1_000_000),
    ] {
        assert!(tunables.set(tunable, value));
    }
}

fn slice(world: &World, pool: &Pool) -> bool {
    world.advance(DELAY_NS);
    pool.inner().condense_slice().unwrap()
}

fn mapped(view: &View, vdev: u32) -> usize {
    let topology = view.inner().store().topology();
    let mapping = topology.indirect.get(VdevId(vdev)).unwrap();
    mapping.entries().len()
}

fn check(world: &World, life: &Life, what: &str) {
    let view = sim::read(world).unwrap();
    sim::verify(&view).unwrap_or_else(|found| panic!("{what}: {found}"));
    life.compare(&view, what);
    drop(view);
    judge(world, what);
}

#[test]
fn mappings_are_condensed_while_programs_work() {
    let _marks = [
        mark::expect("condense-started"),
        mark::expect("condense-finished"),
    ];
    let disk = (Normal, Single, 1);
    let mirror = (Normal, Mirror, 2);
    let shapes: [(&str, Tops<'_>, u32, u32); 3] = [
        ("disks", &[disk, disk, disk, disk], 1, 2),
        ("mirrors", &[mirror, mirror, mirror, disk], 0, 1),
        ("special", &[disk, (Special, Mirror, 2), disk, disk], 1, 0),
    ];
    for (number, (shape, layout, first, second)) in (0..).zip(shapes) {
        let world = World::without_journal(501 + number);
        tune(&world);
        let mut pool = sim::create_of(&world, layout, 256, sim::by_caller());
        let mut life = Life::new("tank", shape, 21 + number);
        life.file_bytes_max = 100_000;
        life.steps(&pool, 120);
        remove(&pool, first as usize);
        evacuate(&pool, &mut life, 1);
        remove(&pool, second as usize);
        evacuate(&pool, &mut life, 1);
        let all = mapped(&pool.committed().unwrap(), first);
        let (mut finished, mut judged) = (0, 0);
        for round in 0..400 {
            life.steps(&pool, 2);
            let was_condensing = pool.inner().is_condensing();
            slice(&world, &pool);
            let is_condensing = pool.inner().is_condensing();
            finished += u32::from(was_condensing && !is_condensing);
            // In the middle of it.
            if is_condensing && round % 9 == 0 && judged < 6 {
                judged += 1;
                life.commit(&pool).unwrap();
                life.close_file_systems();
                let what = format!("{shape}, round {round}");
                if judged % 2 == 0 {
                    pool.export().unwrap();
                    check(&world, &life, &what);
                } else {
                    drop(pool);
                    judge(&world, &what);
                }
                pool = sim::open(&world).unwrap();
                assert!(pool.inner().is_condensing(), "{what}");
            }
        }
        println!("{shape}: {all} entries, condensed {finished} times, judged {judged} times");
        assert!(finished > 1 && judged > 1, "{shape}");
        while pool.inner().is_condensing() {
            slice(&world, &pool);
        }
        life.close_file_systems();
        pool.export().unwrap();
        check(&world, &life, shape);
        let left = mapped(&sim::read(&world).unwrap(), first);
        assert!(left < all, "{shape}: {left} of {all} entries");
        // What left is not missed later.
        let pool = sim::open(&world).unwrap();
        life.steps(&pool, 60);
        life.close_file_systems();
        pool.export().unwrap();
        check(&world, &life, &format!("{shape}, later"));
    }
}

/// A pool with files on a removed vdev.
fn removed(world: &World, files: &mut Files) -> Pool {
    tune(world);
    let layout = [
        (Normal, Single, 1),
        (Normal, Single, 1),
        (Normal, Single, 1),
    ];
    let pool = sim::create_of(world, &layout, 192, sim::by_caller());
    for number in 0..8 {
        write(&pool, number, 60_000, files);
        pool.sync().unwrap();
    }
    remove(&pool, 1);
    let limits = CopyLimits {
        bytes: 16 << 10,
        slice_ns: u64::MAX,
    };
    while pool.inner().is_removing() {
        assert!(pool.inner().removal_slice(&limits).unwrap());
    }
    pool
}

/// Deletes files until the mapping is worth condensing.
fn begin(world: &World, pool: &Pool, files: &mut Files, commit: &mut dyn FnMut(&Pool, &Files)) {
    for number in 0..7 {
        unlink(pool, number, files);
        commit(pool, files);
        if slice(world, pool) {
            break;
        }
    }
    assert!(pool.inner().is_condensing());
}

#[test]
fn a_view_of_an_older_state_reads_what_left_the_mapping() {
    let world = World::without_journal(511);
    let mut files = Files::new();
    let pool = removed(&world, &mut files);
    let (view, before) = (pool.committed().unwrap(), files.clone());
    begin(&world, &pool, &mut files, &mut |pool, _| {
        pool.sync().unwrap();
    });
    while pool.inner().is_condensing() {
        slice(&world, &pool);
    }
    assert_eq!(files_of(&view).unwrap(), before);
    assert_eq!(files_of(&pool.committed().unwrap()).unwrap(), files);
    drop(view);
    pool.export().unwrap();
    judge(&world, "a view");
}

#[test]
fn condensing_survives_every_crash() {
    let world = World::new(512);
    let mut files = Files::new();
    let pool = removed(&world, &mut files);
    pool.sync().unwrap();
    world.forget();
    let mut states = vec![files.clone()];
    let mut commit = |pool: &Pool, files: &Files| {
        states.push(files.clone());
        pool.sync().unwrap();
    };
    begin(&world, &pool, &mut files, &mut commit);
    let mut step = 8;
    while pool.inner().is_condensing() {
        slice(&world, &pool);
        if step < 11 {
            unlink(&pool, step - 1, &mut files);
            write(&pool, step, 12_000, &mut files);
            commit(&pool, &files);
            step += 1;
        }
    }
    write(&pool, step, 7000, &mut files);
    commit(&pool, &files);
    drop(pool);
    let (mut judged, mut during, mut others) = (0, 0, 0);
    let mut visit = |state: State<'_>| {
        let (what, after) = (state.what, state.after);
        if is_all() && !state.tried.is_multiple_of(5) {
            return;
        }
        tune(after);
        let pool = sim::open(after).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = files_of(&pool.committed().unwrap());
        let mut found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(is_state(&states, &found), "{what}: unknown content");
        match pool.inner().is_condensing() {
            true => during += 1,
            false => others += 1,
        }
        let is_judged = state.tried.is_multiple_of(if is_all() { 150 } else { 12 });
        if is_judged {
            judge(after, what);
            judged += 1;
        }
        write(&pool, 20, 5000, &mut found);
        while pool.inner().is_condensing() {
            slice(after, &pool);
        }
        pool.export().unwrap();
        let read = sim::read(after).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(files_of(&read).unwrap(), found, "{what}, gone on");
        sim::verify(&read).unwrap_or_else(|found| panic!("{what}: {found}"));
        drop(read);
        if is_judged {
            judge(after, &format!("{what}, gone on"));
        }
    };
    each_state("condense", &world, &mut Seed::new(513), &mut visit);
    println!("condense: {during} during, {others} before or after, {judged} judged by zdb");
    assert!(during > 0 && others > 0 && judged > 0);
}
