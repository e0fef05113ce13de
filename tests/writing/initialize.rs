//! Free space of leaves is filled with the pattern, and nothing else is: while programs write, after power cuts, and when
//! the pool is opened again.

use crate::attach::leaf_at;
use crate::draid::{ONE, SMALL, TWO};
use crate::exhaustive::{Files, State, each_state, files_of, is_all, judge, step};
use crate::scan::{lived, online};
use crate::sim;
use millpond_device::{Device, DeviceError};
use millpond_engine::{
    ActivityAction, ActivityRefusal, LeafActivity, NewDevice,
    NewLayout::{self, Mirror, Raidz, Single},
    NewPool, NewTop, NewVdevOptions, NewVdevs, Pool, SliceLimits, TrimOptions,
};
use millpond_env::mark;
use millpond_ondisk::pool_directory::vdev_key;
use millpond_ondisk::{Guid, ObjectId};
use millpond_sim::{Seed, SimDisk, World};
use millpond_tests::leaves::{self, stored_activity};
use millpond_tests::workload::Life;
use millpond_vdev::AllocationClass::Normal;
use std::sync::{Arc, Mutex};

const MIRROR: (NewLayout, usize) = (Mirror, 2);
/// The action that starts an initialization.
pub(crate) const START: ActivityAction = ActivityAction::Start(TrimOptions {
    rate_bytes: 0,
    is_secure: false,
});
pub(crate) const INITIALIZE: LeafActivity = LeafActivity::Initialize;
pub(crate) const PATTERN: [u8; 8] = 0xdead_beef_dead_beee_u64.to_le_bytes();
const NONE: u64 = 0;
pub(crate) const ACTIVE: u64 = 1;
pub(crate) const CANCELED: u64 = 2;
const SUSPENDED: u64 = 3;
pub(crate) const COMPLETE: u64 = 4;

/// Slices that are small, so that many are needed.
pub(crate) fn small(batches: usize) -> SliceLimits {
    SliceLimits {
        held_bytes: 1 << 20,
        held_ranges: 20,
        batches,
        slice_ns: u64::MAX,
    }
}

pub(crate) fn change(pool: &Pool, leaves: &[Guid], action: ActivityAction) {
    let refused = pool
        .inner()
        .change_leaf_activity(leaves, INITIALIZE, action)
        .unwrap();
    assert_eq!(refused, [], "{action:?}");
}

/// The stored state and progress of a leaf.
pub(crate) fn stored(pool: &Pool, leaf: Guid) -> (u64, u64) {
    stored_activity(pool, leaf, INITIALIZE)
}

pub(crate) fn history(pool: &Pool) -> String {
    let view = pool.inner().committed().unwrap();
    let records = view.history().unwrap().unwrap();
    let texts = records.map(|record| format!("{:?}\n", record.unwrap()));
    texts.collect()
}

pub(crate) fn finish(pool: &Pool) -> usize {
    let mut slices = 0;
    while pool.inner().leaf_activity_slice(&small(16)).unwrap() {
        slices += 1;
        assert!(slices < 10_000, "no end");
    }
    slices
}

/// Every leaf is complete, up to its last free space. On a dRAID that lies in its last rows, and a child whose rows are all
/// kept for spares has none.
pub(crate) fn are_complete(pool: &Pool, activity: LeafActivity, shape: &str) {
    let all = leaves::all(pool);
    let stored: Vec<_> = all
        .iter()
        .map(|leaf| stored_activity(pool, *leaf, activity))
        .collect();
    let is_draid = shape.starts_with("draid");
    let least = if is_draid { 60 << 20 } else { 80 << 20 };
    let has_space = stored.iter().filter(|(_, offset)| *offset > least).count();
    let is_all = stored.iter().all(|(state, _)| *state == COMPLETE);
    let without = if is_draid { 2 } else { 0 };
    assert!(
        is_all && has_space + without >= all.len(),
        "{shape}: {stored:?}"
    );
}

/// Bytes of a disk that hold the pattern, in sectors.
fn pattern_bytes(disk: &SimDisk) -> u64 {
    let content = disk.content();
    let of_page = |page: &[u8]| {
        let sectors = page.chunks_exact(512);
        let is_filled = |sector: &&[u8]| sector.chunks_exact(8).all(|word| word == PATTERN);
        sectors.filter(is_filled).count() as u64 * 512
    };
    content.pages().map(|(_, page)| of_page(page)).sum()
}

pub(crate) fn all_pattern_bytes(world: &World) -> u64 {
    world.disks().iter().map(|disk| pattern_bytes(disk)).sum()
}

pub(crate) fn free_bytes(pool: &Pool) -> u64 {
    let usage = pool.inner().allocator().usage();
    let vdevs = usage.vdevs.iter();
    vdevs
        .map(|vdev| vdev.space_bytes - vdev.allocated_bytes)
        .sum()
}

pub(crate) fn is_sound(world: &World, life: &Life, shape: &str) {
    let view = sim::read(world).unwrap();
    sim::verify(&view).unwrap();
    life.compare(&view, shape);
    drop(view);
    judge(world, shape);
}

#[test]
fn free_space_is_filled_and_nothing_else_changes() {
    let _mark = mark::expect("leaf-activity-ends");
    for (shape, tops, sides) in [
        ("one", vec![(Single, 1)], 1),
        ("mirror", vec![MIRROR], 2),
        ("raidz1", vec![(Raidz(1), 3)], 1),
        ("raidz2", vec![(Raidz(2), 5)], 1),
        ("two", vec![(Single, 1), (Single, 1)], 1),
        ("draid1", vec![ONE], 1),
        ("draid2", vec![TWO], 1),
    ] {
        let world = World::without_journal(91);
        let (pool, mut life) = lived(&world, shape, &tops, 60);
        assert_eq!(all_pattern_bytes(&world), 0);
        change(&pool, &leaves::all(&pool), START);
        let mut slices = 0;
        while pool.inner().leaf_activity_slice(&small(9)).unwrap() {
            // Programs write and free between the slices.
            if slices < 40 {
                life.steps(&pool, 2);
            }
            slices += 1;
        }
        assert!(slices > 5, "{shape}: {slices}");
        are_complete(&pool, INITIALIZE, shape);
        // A second time, while nothing else changes: only what this writes itself is missing.
        change(&pool, &leaves::all(&pool), START);
        pool.inner()
            .leaf_activity_slice(&SliceLimits::default())
            .unwrap();
        let (free, filled) = (free_bytes(&pool) * sides, all_pattern_bytes(&world));
        // Sectors that pad blocks of RAID-Z are not written.
        assert!(filled < free + (1 << 20), "{shape}: {filled} of {free}");
        assert!(filled > free - (4 << 20), "{shape}: {filled} of {free}");
        pool.export().unwrap();
        is_sound(&world, &life, shape);
    }
}

/// A disk that lets a program run when space is held and its first request is about to be made.
#[derive(Debug)]
struct Interrupted {
    disk: Arc<SimDisk>,
    program: Arc<Program>,
}

/// How often the program runs.
const RUNS: usize = 25;

type Run = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Program {
    run: Mutex<Option<Run>>,
    /// The thread that makes the requests.
    thread: Mutex<Option<std::thread::ThreadId>>,
}

impl Program {
    /// Runs the program to its end, in another thread: this one may have locks of a slice.
    fn run(&self) {
        if *self.thread.lock().unwrap() != Some(std::thread::current().id()) {
            return;
        }
        if let Some(run) = self.run.lock().unwrap().as_ref() {
            std::thread::scope(|scope| scope.spawn(run).join().unwrap());
        }
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Program")
    }
}

impl Device for Interrupted {
    fn size_bytes(&self) -> u64 {
        // Asked once for each space that is held, before its requests.
        self.program.run();
        self.disk.size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        self.disk.sector_bytes()
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.disk.read(offset_bytes, buffer)
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.disk.write(offset_bytes, bytes)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.disk.flush()
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        self.disk.discard(offset_bytes, length_bytes)
    }
}

#[test]
fn what_programs_write_during_the_requests_is_kept() {
    for (shape, layout, count) in [("during, one", Single, 1), ("during, raidz", Raidz(1), 3)] {
        let world = World::without_journal(92);
        let program = Arc::new(Program::default());
        let device = |_| {
            let disk = world.disk(96 << 20, 512);
            let path = format!("/sim/d{}.img", disk.number());
            let program = Arc::clone(&program);
            NewDevice::file(&path, Arc::new(Interrupted { disk, program }))
        };
        let top = NewTop {
            layout,
            class: Normal,
            devices: (0..count).map(device).collect(),
        };
        let new = NewPool {
            vdev_options: NewVdevOptions {
                ashift: Some(9),
                force: true,
            },
            // Two threads write.
            writing: Default::default(),
            system: "sim".into(),
            cache_bytes: Some(16 << 20),
            ..NewPool::new("tank", NewVdevs::of(vec![top]))
        };
        let pool = Arc::new(Pool::create(&world.env(), &new).unwrap());
        let life = Arc::new(Mutex::new(Life::new("tank", shape, 5)));
        life.lock().unwrap().file_bytes_max = 40_000;
        life.lock().unwrap().steps(&pool, 40);
        pool.sync().unwrap();
        let (writer, steps) = (Arc::clone(&pool), Arc::clone(&life));
        let runs = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&runs);
        // It must not fill the pool: it would wait for the space that is held.
        let run: Run = Box::new(move || {
            if *counted.lock().unwrap() < RUNS {
                steps.lock().unwrap().steps(&writer, 1);
                writer.sync().unwrap();
                *counted.lock().unwrap() += 1;
            }
        });
        *program.run.lock().unwrap() = Some(run);
        change(&pool, &leaves::all(&pool), START);
        *program.thread.lock().unwrap() = Some(std::thread::current().id());
        finish(&pool);
        *program.thread.lock().unwrap() = None;
        *program.run.lock().unwrap() = None;
        assert_eq!(*runs.lock().unwrap(), RUNS, "{shape}");
        for leaf in leaves::all(&pool) {
            assert_eq!(stored(&pool, leaf).0, COMPLETE, "{shape}");
        }
        let (filled, free) = (all_pattern_bytes(&world), free_bytes(&pool));
        assert!(filled > 30 << 20, "{shape}: {filled} of {free}, {runs:?}");
        life.lock().unwrap().close_file_systems();
        Arc::into_inner(pool).unwrap().export().unwrap();
        is_sound(&world, &life.lock().unwrap(), shape);
    }
}

fn cut_everywhere(shape: &str, top: (NewLayout, usize)) {
    let world = World::new(93);
    let pool = sim::create(&world, &[top], 64);
    let mut state = Files::new();
    step(&pool, 0, &mut state);
    pool.sync().unwrap();
    let all = leaves::all(&pool);
    world.forget();
    let mut states = vec![(0, state.clone())];
    change(&pool, &all, START);
    for number in 1..4 {
        pool.inner().leaf_activity_slice(&small(2)).unwrap();
        step(&pool, number, &mut state);
        pool.sync().unwrap();
        states.push((world.recorded(), state.clone()));
    }
    drop(pool);
    judge_cuts(shape, &world, &states, INITIALIZE, &mut Seed::new(94));
}

/// Every power cut during an activity leaves one of the states, and an activity that was still running ends after the
/// import. `states` are the files, and from which number of requests on they are known to be there.
pub(crate) fn judge_cuts(
    shape: &str,
    world: &World,
    states: &[(usize, Files)],
    activity: LeafActivity,
    seed: &mut Seed,
) {
    let (mut judged, mut resumed) = (0, 0);
    let tried = each_state(shape, world, seed, &mut |one| {
        let State {
            count,
            after,
            what,
            tried,
        } = one;
        let read = sim::read(after).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = files_of(&read).unwrap_or_else(|error| panic!("{what}: {error}"));
        let least = states.iter().rposition(|(at, _)| *at <= count).unwrap();
        let is_known = states.iter().skip(least).any(|(_, state)| *state == found);
        assert!(is_known, "{what}: is no state from {least} on");
        sim::verify(&read).unwrap_or_else(|error| panic!("{what}: {error}"));
        let faults = millpond_tests::recount::faults_of(read.inner());
        assert!(faults.is_empty(), "{what}: {}", faults.join("\n"));
        drop(read);
        if tried % 20 == 3 || is_all() && tried % 200 == 3 {
            judge(after, what);
            judged += 1;
        }
        if tried % 10 != 7 {
            return;
        }
        after.set_discards(Seed::new(7));
        let pool = sim::open(after).unwrap_or_else(|error| panic!("{what}: {error}"));
        resumed += usize::from(pool.inner().is_leaf_active(activity));
        finish(&pool);
        for leaf in leaves::all(&pool) {
            let state = stored_activity(&pool, leaf, activity).0;
            assert!([NONE, COMPLETE].contains(&state), "{what}");
        }
        pool.export().unwrap();
        let read = sim::read(after).unwrap();
        assert_eq!(files_of(&read).unwrap(), found, "{what}, resumed");
        sim::verify(&read).unwrap_or_else(|error| panic!("{what}, resumed: {error}"));
    });
    println!("{shape}: {judged} judged by zdb, {resumed} resumed");
    assert!(tried > 20 && judged > 0 && resumed > 0, "{shape}: {tried}");
}

#[test]
fn every_crash_is_survived_on_one_disk() {
    cut_everywhere("initialize one", (Single, 1));
}

#[test]
fn every_crash_is_survived_on_a_raidz() {
    cut_everywhere("initialize raidz", (Raidz(1), 3));
}

#[test]
fn every_crash_is_survived_on_a_draid() {
    cut_everywhere("initialize draid", SMALL);
}

#[test]
fn it_is_suspended_resumed_cancelled_and_reset() {
    let world = World::without_journal(95);
    let (pool, life) = lived(&world, "states", &[MIRROR], 30);
    let all = leaves::all(&pool);
    let (first, second) = (all[0], all[1]);
    let refused = |pool: &Pool, action| {
        let refused = pool
            .inner()
            .change_leaf_activity(&[first], INITIALIZE, action)
            .unwrap();
        refused.first().map(|(_, why)| *why)
    };
    use ActivityAction::{Cancel, Reset, Suspend};
    assert_eq!(
        refused(&pool, Suspend),
        Some(ActivityRefusal::NotActive(INITIALIZE))
    );
    assert_eq!(
        refused(&pool, Cancel),
        Some(ActivityRefusal::NotActive(INITIALIZE))
    );
    change(&pool, &[first], START);
    assert_eq!(
        refused(&pool, START),
        Some(ActivityRefusal::Active(INITIALIZE))
    );
    assert_eq!(
        refused(&pool, Reset),
        Some(ActivityRefusal::Active(INITIALIZE))
    );
    pool.inner().leaf_activity_slice(&small(8)).unwrap();
    change(&pool, &[first], Suspend);
    assert_eq!(
        refused(&pool, Suspend),
        Some(ActivityRefusal::NotActive(INITIALIZE))
    );
    let (state, offset) = stored(&pool, first);
    assert!(state == SUSPENDED && offset >= 8 << 20, "{state} {offset}");
    assert!(!pool.inner().leaf_activity_slice(&small(8)).unwrap());
    assert_eq!(stored(&pool, second), (NONE, 0));
    // It stays suspended, and continues from there.
    drop(pool);
    let pool = sim::open(&world).unwrap();
    assert!(!pool.inner().is_leaf_active(INITIALIZE));
    let filled = all_pattern_bytes(&world);
    change(&pool, &[first], START);
    assert_eq!(stored(&pool, first), (ACTIVE, offset));
    pool.inner().leaf_activity_slice(&small(1)).unwrap();
    let more = all_pattern_bytes(&world) - filled;
    assert!((900 << 10..=1 << 20).contains(&more), "{more}");
    // Active, it continues when the pool is opened.
    drop(pool);
    let pool = sim::open(&world).unwrap();
    assert!(pool.inner().is_leaf_active(INITIALIZE));
    change(&pool, &[first], Cancel);
    assert_eq!(stored(&pool, first), (CANCELED, 0));
    assert_eq!(finish(&pool), 0);
    change(&pool, &all, START);
    finish(&pool);
    assert_eq!(stored(&pool, second).0, COMPLETE);
    change(&pool, &all, Reset);
    assert_eq!(stored(&pool, second), (NONE, 0));
    let text = history(&pool);
    for event in ["activated", "suspended", "canceled", "complete"] {
        let event = format!("vdev=/sim/d0.img {event}");
        assert!(text.contains(&event), "{event} in {text}");
    }
    pool.export().unwrap();
    is_sound(&world, &life, "states");
}

#[test]
fn leaves_may_leave_and_return_meanwhile() {
    let world = World::without_journal(96);
    let (pool, life) = lived(&world, "leave", &[(Mirror, 3)], 30);
    let all = leaves::all(&pool);
    change(&pool, &all, START);
    pool.inner().leaf_activity_slice(&small(2)).unwrap();
    pool.inner()
        .offline_leaf(all[1], Default::default())
        .unwrap();
    let before = pattern_bytes(&world.disks()[1]);
    pool.inner().leaf_activity_slice(&small(2)).unwrap();
    assert_eq!(pattern_bytes(&world.disks()[1]), before);
    pool.inner().detach_leaf(all[2]).unwrap();
    let before = pattern_bytes(&world.disks()[2]);
    online(&world, &pool, 1);
    finish(&pool);
    assert_eq!(pattern_bytes(&world.disks()[2]), before);
    for leaf in [leaf_at(&pool, "/sim/d0.img"), leaf_at(&pool, "/sim/d1.img")] {
        assert_eq!(stored(&pool, leaf).0, COMPLETE);
    }
    pool.inner().start_resilver().unwrap();
    crate::scan::finish(&pool);
    pool.export().unwrap();
    let view = sim::read(&world).unwrap();
    sim::verify(&view).unwrap();
    life.compare(&view, "leave");
}

#[test]
fn stored_values_are_not_trusted() {
    for (state, offset) in [
        (1, u64::MAX),
        (1, 511),
        (u64::MAX, 3),
        (5, 0),
        (3, u64::MAX),
    ] {
        let world = World::without_journal(97);
        let (pool, life) = lived(&world, "values", &[(Raidz(1), 3)], 20);
        let topology = pool.inner().store().topology();
        let zaps: Vec<ObjectId> = topology
            .tree
            .leaves()
            .map(|(_, node)| node.config.zap_leaf.unwrap())
            .collect();
        drop(topology);
        let store = |zap: &ObjectId| {
            pool.inner().sync_task(|ctx| {
                ctx.set_table_number(*zap, vdev_key::INITIALIZE_STATE, state)?;
                ctx.set_table_number(*zap, vdev_key::INITIALIZE_OFFSET, offset)
            })
        };
        zaps.iter().for_each(|zap| store(zap).unwrap());
        drop(pool);
        let pool = sim::open(&world).unwrap();
        assert_eq!(pool.inner().is_leaf_active(INITIALIZE), state == 1);
        finish(&pool);
        let refused = pool
            .inner()
            .change_leaf_activity(&leaves::all(&pool), INITIALIZE, START);
        assert_eq!(refused.unwrap(), []);
        finish(&pool);
        pool.export().unwrap();
        is_sound(&world, &life, "values");
    }
}

#[test]
fn the_thread_does_it_while_programs_write() {
    let world = World::without_journal(98);
    let pool = sim::create_with(&world, &[MIRROR], 128, Default::default());
    let mut life = Life::new("tank", "thread", 5);
    life.file_bytes_max = 100_000;
    pool.inner().start_leaf_activities().unwrap();
    let all = leaves::all(&pool);
    change(&pool, &all, START);
    let begun = std::time::Instant::now();
    while pool.inner().is_leaf_active(INITIALIZE) {
        assert!(begun.elapsed().as_secs() < 120);
        life.steps(&pool, 3);
        pool.sync().unwrap();
    }
    assert_eq!(stored(&pool, all[1]).0, COMPLETE);
    change(&pool, &all, START);
    // It runs when the pool is exported.
    pool.export().unwrap();
    let before = all_pattern_bytes(&world);
    is_sound(&world, &life, "thread");
    assert_eq!(all_pattern_bytes(&world), before);
}
