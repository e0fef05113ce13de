//! Scrubs and resilvers on simulated disks: everything that `verify` would find is repaired, and nothing else changes.

use crate::sim;
use millpond_engine::{
    Caller,
    NewLayout::{self, Mirror, Raidz, Single},
    NewMode, Pool, ScanLimits, Scanner, ScrubRange, WriteAt,
};
use millpond_env::mark;
use millpond_ondisk::{Guid, ScanFunction, ScanPhase, ScanPhys};
use millpond_pool::{ScanLosses, SliceOutcome};
use millpond_sim::{Fault, FaultPlan, Scope, Seed, World};
use millpond_tests::oracle::zdb;
use millpond_tests::workload::Life;

use std::collections::BTreeSet;

const MIRROR: (NewLayout, usize) = (Mirror, 2);

/// Slices that are small, so that a scan needs many.
pub fn scanner() -> Scanner {
    Scanner::new(ScanLimits {
        blocks: 40,
        gather_ns: u64::MAX / 2,
        threads: 1,
    })
}

pub fn state(pool: &Pool) -> ScanPhys {
    pool.inner().scan().unwrap().0
}

/// Scans to the end. Returns the number of slices.
pub fn finish(pool: &Pool) -> usize {
    let mut slices = 0;
    while scanner().slice(pool.inner()).unwrap() {
        slices += 1;
        assert!(slices < 10_000, "a scan without an end");
    }
    slices
}

pub fn scrub(pool: &Pool) -> ScanPhys {
    pool.inner().start_scrub(ScrubRange::All).unwrap();
    finish(pool);
    let state = state(pool);
    assert_eq!(
        (state.function, state.phase),
        (ScanFunction::Scrub, ScanPhase::Finished)
    );
    state
}

/// A pool with files, snapshots and clones.
pub fn lived(
    world: &World,
    shape: &str,
    tops: &[(NewLayout, usize)],
    steps: usize,
) -> (Pool, Life) {
    let pool = sim::create(world, tops, 128);
    let mut life = Life::new("tank", shape, 5);
    life.file_bytes_max = 100_000;
    life.steps(&pool, steps);
    pool.sync().unwrap();
    (pool, life)
}

/// Overwrites random sectors behind the labels, up to `per_million` of them.
pub fn rot(world: &World, disk: usize, seed: u64, per_million: u32) {
    let disk = &world.disks()[disk];
    let mut seed = Seed::new(seed);
    let pages: Vec<u64> = disk.content().pages().map(|(offset, _)| offset).collect();
    let end = (128 << 20) - (512 << 10);
    for offset in pages {
        let is_label = offset < 4 << 20 || offset >= end;
        if !is_label && seed.happens(per_million) {
            disk.rot(offset, &seed.bytes(512));
        }
    }
}

pub fn is_sound(world: &World, life: &Life, shape: &str) {
    let view = sim::read(world).unwrap();
    sim::verify(&view).unwrap();
    life.compare(&view, shape);
}

#[test]
fn a_scrub_repairs_all_damage_that_redundancy_covers() {
    for (shape, tops, damaged) in [
        ("mirror", vec![MIRROR], vec![1]),
        ("mirrors", vec![(Mirror, 3), MIRROR], vec![0, 2, 4]),
        ("raidz1", vec![(Raidz(1), 4)], vec![2]),
        ("raidz2", vec![(Raidz(2), 5)], vec![0, 3]),
        ("raidz3", vec![(Raidz(3), 7)], vec![1, 2, 6]),
    ] {
        let world = World::without_journal(31);
        let (pool, life) = lived(&world, shape, &tops, 120);
        for disk in &damaged {
            rot(&world, *disk, 7 + *disk as u64, 500_000);
        }
        let state = scrub(&pool);
        assert_eq!(state.errors, 0, "{shape}");
        assert!(state.processed_bytes > 0, "{shape}");
        assert!(state.examined_bytes > 0 && state.skipped_bytes <= state.examined_bytes);
        let topology = pool.inner().store().topology();
        for (leaf, _) in topology.tree.leaves() {
            let errors = topology.leaf_stats(leaf).checksum_errors;
            let is_damaged = damaged.contains(&(leaf.0 as usize));
            assert_eq!(
                errors > 0,
                is_damaged,
                "{shape}: {leaf:?} has {errors} errors"
            );
        }
        // A second scrub finds nothing.
        let again = scrub(&pool);
        assert_eq!((again.processed_bytes, again.errors), (0, 0), "{shape}");
        pool.export().unwrap();
        is_sound(&world, &life, shape);
    }
}

#[test]
fn what_is_lost_is_logged_until_a_scrub_finds_it_whole() {
    let world = World::without_journal(32);
    let (pool, _) = lived(&world, "lost", &[(Single, 1)], 80);
    rot(&world, 0, 3, 120_000);
    let state = scrub(&pool);
    assert!(state.errors > 0);
    let logged = pool.committed().unwrap().inner().logged_errors().unwrap();
    assert!(!logged.is_empty());
    // Metadata has two copies: what is logged are data blocks of files.
    assert!(
        logged
            .iter()
            .all(|error| error.level == 0 && error.birth.is_some()),
        "{logged:?}"
    );
    pool.export().unwrap();
    let view = sim::read(&world).unwrap();
    assert_eq!(view.inner().logged_errors().unwrap(), logged);
    drop(view);
    let pool = sim::open(&world).unwrap();
    assert_eq!(scrub(&pool).errors, state.errors);
    let datasets: Vec<String> = (pool.committed().unwrap().datasets())
        .filter_map(|dataset| Some(dataset.ok()?.name().to_owned()))
        .collect();
    for name in datasets.iter().rev().filter(|name| *name != "tank") {
        let _ = pool.datasets().destroy(name, Default::default());
    }
    pool.export().unwrap();
}

#[test]
fn datasets_that_change_during_a_scrub_are_visited_all_the_same() {
    for seed in 0..12 {
        let world = World::without_journal(40 + seed);
        let shape = "changing";
        let (pool, mut life) = lived(&world, shape, &[MIRROR], 100);
        rot(&world, 1, seed, 600_000);
        pool.inner().start_scrub(ScrubRange::All).unwrap();
        let mut slices = 0;
        while scanner().slice(pool.inner()).unwrap() {
            slices += 1;
            life.steps(&pool, 3);
            assert!(slices < 20_000);
        }
        let state = state(&pool);
        assert_eq!((state.phase, state.errors), (ScanPhase::Finished, 0));
        pool.export().unwrap();
        is_sound(&world, &life, shape);
    }
}

#[test]
fn a_scrub_continues_after_export_and_power_cuts() {
    let world = World::without_journal(33);
    let (mut pool, mut life) = lived(&world, "resumed", &[(Raidz(1), 3)], 120);
    rot(&world, 2, 9, 500_000);
    pool.inner().start_scrub(ScrubRange::All).unwrap();
    let mut rounds = 0;
    while state(&pool).phase == ScanPhase::Scanning {
        scanner().slice(pool.inner()).unwrap();
        life.steps(&pool, 4);
        pool.sync().unwrap();
        match rounds % 2 {
            0 => pool.export().unwrap(),
            _ => drop(pool),
        }
        pool = sim::open(&world).unwrap();
        rounds += 1;
        assert!(rounds < 1_000);
    }
    assert!(rounds > 2);
    assert_eq!(state(&pool).errors, 0);
    pool.export().unwrap();
    is_sound(&world, &life, "resumed");
}

#[test]
fn a_slice_makes_progress_however_small_it_is() {
    let world = World::without_journal(51);
    let (pool, _) = lived(&world, "smallest", &[MIRROR], 10);
    pool.inner().start_scrub(ScrubRange::All).unwrap();
    for gather_ns in [0, u64::MAX / 2] {
        let smallest = Scanner::new(ScanLimits {
            blocks: 1,
            gather_ns,
            threads: 1,
        });
        let mut slices = 0;
        while slices < 20_000 && smallest.slice(pool.inner()).unwrap() {
            slices += 1;
        }
        assert!(slices < 20_000);
        assert_eq!(state(&pool).phase, ScanPhase::Finished);
        pool.inner().start_scrub(ScrubRange::All).unwrap();
    }
}

#[test]
fn scrubs_are_paused_resumed_and_cancelled() {
    let world = World::without_journal(34);
    let (pool, _) = lived(&world, "paused", &[MIRROR], 60);
    let inner = pool.inner();
    let refused =
        |outcome: Result<(), millpond_engine::PoolError>| outcome.unwrap_err().to_string();
    assert_eq!(refused(inner.cancel_scrub()), "there is no active scrub");
    inner.start_scrub(ScrubRange::All).unwrap();
    assert!(refused(inner.start_scrub(ScrubRange::All)).starts_with("currently scrubbing"));
    assert!(scanner().slice(inner).unwrap());
    let before = state(&pool);
    inner.pause_scrub().unwrap();
    assert!(refused(inner.pause_scrub()).starts_with("scrub is paused"));
    assert!(!scanner().slice(inner).unwrap());
    drop(pool);
    let pool = sim::open(&world).unwrap();
    assert!(state(&pool).is_paused());
    assert_eq!(state(&pool).bookmark, before.bookmark);
    pool.inner().start_scrub(ScrubRange::All).unwrap();
    assert!(!state(&pool).is_paused());
    pool.inner().cancel_scrub().unwrap();
    assert_eq!(state(&pool).phase, ScanPhase::Cancelled);
    assert_eq!(finish(&pool), 0);
    pool.export().unwrap();
    sim::verify(&sim::read(&world).unwrap()).unwrap();
}

#[test]
fn a_scrub_since_the_last_one_reads_only_what_is_new() {
    let world = World::without_journal(35);
    let (pool, mut life) = lived(&world, "since", &[MIRROR], 100);
    let first = scrub(&pool);
    life.steps(&pool, 5);
    pool.sync().unwrap();
    pool.inner()
        .start_scrub(ScrubRange::SinceLastScrub)
        .unwrap();
    finish(&pool);
    let second = state(&pool);
    assert_eq!(second.min_txg, first.max_txg);
    assert!(second.examined_bytes < first.examined_bytes);
}

/// The number of txgs that a leaf misses.
pub fn missed(pool: &Pool, number: usize) -> u64 {
    let view = pool.committed().unwrap();
    let assembly = view.inner().assembly();
    assembly.nodes[assembly.leaves[number].node].missed_txgs
}

pub fn leaf(pool: &Pool, number: usize) -> Guid {
    let topology = pool.inner().store().topology();
    let mut leaves = topology.tree.leaves();
    leaves.nth(number).unwrap().1.config.guid
}

/// Brings a leaf back that was taken offline.
pub fn online(world: &World, pool: &Pool, number: usize) {
    let disk = world.disks()[number].clone() as _;
    let guid = leaf(pool, number);
    pool.inner().online_leaf(guid, Some(&disk)).unwrap();
}

#[test]
fn a_leaf_that_was_away_is_resilvered_with_what_it_missed() {
    for (shape, top) in [
        ("mirror away", MIRROR),
        ("mirror of three away", (Mirror, 3)),
        ("raidz away", (Raidz(1), 4)),
        ("raidz2 away", (Raidz(2), 5)),
    ] {
        let world = World::without_journal(36);
        let (pool, mut life) = lived(&world, shape, &[top], 120);
        let away = leaf(&pool, 1);
        pool.inner().offline_leaf(away, Default::default()).unwrap();
        life.steps(&pool, 20);
        pool.sync().unwrap();
        assert!(!pool.inner().needs_resilver());
        online(&world, &pool, 1);
        assert!(
            pool.inner().needs_resilver() && missed(&pool, 1) > 0,
            "{shape}"
        );
        assert!(pool.inner().start_resilver().unwrap());
        assert!(!pool.inner().start_resilver().unwrap(), "twice");
        finish(&pool);
        let state = state(&pool);
        assert_eq!(
            (state.function, state.phase, state.errors),
            (ScanFunction::Resilver, ScanPhase::Finished, 0)
        );
        assert!(state.processed_bytes > 0, "{shape}");
        assert!(state.skipped_bytes < state.examined_bytes);
        assert_eq!(missed(&pool, 1), 0, "{shape}");
        assert!(!pool.inner().needs_resilver());
        // The other side may go now, also by order.
        let other = leaf(&pool, 0);
        pool.inner()
            .offline_leaf(other, Default::default())
            .unwrap();
        online(&world, &pool, 0);
        pool.inner().start_resilver().unwrap();
        finish(&pool);
        world.disks()[0].set_absent(true);
        life.compare(&pool.committed().unwrap(), shape);
        world.disks()[0].set_absent(false);
        pool.export().unwrap();
        is_sound(&world, &life, shape);
    }
}

#[test]
fn a_leaf_that_refuses_its_resilver_stays_stale() {
    let world = World::without_journal(37);
    let (pool, mut life) = lived(&world, "refusing", &[MIRROR], 60);
    let away = leaf(&pool, 1);
    pool.inner().offline_leaf(away, Default::default()).unwrap();
    life.steps(&pool, 20);
    pool.sync().unwrap();
    online(&world, &pool, 1);
    let disk = world.disks()[1].clone();
    let plan = FaultPlan::new(Seed::new(3)).with(Scope::Writes, Fault::Fail, 400_000);
    assert!(pool.inner().start_resilver().unwrap());
    disk.set_faults(Some(plan));
    finish(&pool);
    disk.set_faults(None);
    assert!(missed(&pool, 1) > 0);
    // It is complete only after a resilver without failures.
    assert!(pool.inner().start_resilver().unwrap());
    finish(&pool);
    assert_eq!(missed(&pool, 1), 0);
    world.disks()[0].set_absent(true);
    life.compare(&pool.committed().unwrap(), "refusing");
    world.disks()[0].set_absent(false);
    pool.export().unwrap();
    is_sound(&world, &life, "refusing");
}

#[test]
fn refusals_are_remembered_when_a_resilver_continues_after_import() {
    let world = World::without_journal(38);
    let (pool, mut life) = lived(&world, "remembered", &[MIRROR], 60);
    let away = leaf(&pool, 1);
    pool.inner().offline_leaf(away, Default::default()).unwrap();
    life.steps(&pool, 60);
    pool.sync().unwrap();
    online(&world, &pool, 1);
    assert!(pool.inner().start_resilver().unwrap());
    // The leaf refuses a block; all else that is written to it goes well.
    let slice = pool.inner().begin_slice().unwrap();
    let mut losses = ScanLosses::default();
    losses
        .leaves
        .insert(away, BTreeSet::from([slice.phys.max_txg]));
    let outcome = SliceOutcome {
        losses,
        ..SliceOutcome::default()
    };
    pool.inner().end_slice(slice, outcome).unwrap();
    assert_eq!(state(&pool).phase, ScanPhase::Scanning);
    pool.export().unwrap();
    let pool = sim::open(&world).unwrap();
    assert_eq!(state(&pool).phase, ScanPhase::Scanning);
    finish(&pool);
    assert!(missed(&pool, 1) > 0);
    assert!(pool.inner().start_resilver().unwrap());
    finish(&pool);
    assert_eq!(missed(&pool, 1), 0);
    pool.export().unwrap();
    is_sound(&world, &life, "remembered");
}

#[test]
fn zdb_finds_nothing_after_scrubs_and_resilvers() {
    if let Some(reason) = zdb::absent() {
        eprintln!("not judged by zdb: {reason}");
        return;
    }
    let _mark = mark::expect("third-sync-pass");
    let world = World::without_journal(38);
    let (pool, mut life) = lived(&world, "judged", &[(Raidz(2), 5), MIRROR], 100);
    let away = leaf(&pool, 3);
    pool.inner().offline_leaf(away, Default::default()).unwrap();
    life.steps(&pool, 20);
    online(&world, &pool, 3);
    assert!(pool.inner().start_resilver().unwrap());
    finish(&pool);
    rot(&world, 0, 5, 300_000);
    scrub(&pool);
    // Unfinished.
    pool.inner().start_scrub(ScrubRange::All).unwrap();
    scanner().slice(pool.inner()).unwrap();
    life.steps(&pool, 10);
    pool.sync().unwrap();
    pool.export().unwrap();
    let folder = tempfile::tempdir().unwrap();
    sim::to_files(&world, folder.path());
    let verdict = zdb::judge(folder.path(), "tank").unwrap();
    verdict.require("after scrubs and a resilver");
}

/// Writes `count` files of 20 blocks.
pub fn fill(pool: &Pool, dataset: &str, prefix: &str, count: u64) {
    let system = pool.file_system(dataset).unwrap();
    let (root, caller) = (system.root().unwrap(), Caller::root());
    for number in 0..count {
        let name = format!("{prefix}{number}");
        let mode = NewMode::exactly(0o644);
        let (node, _) = (system.create(&caller, &root, name.as_bytes(), mode, false)).unwrap();
        let content = Seed::new(number).bytes(20 << 12);
        let at = WriteAt::Offset(0);
        system.write(&caller, &node, at, &content).unwrap();
    }
    pool.sync().unwrap();
}

/// A chain of snapshots, and a clone with snapshots of its own.
pub fn chained(world: &World) -> Pool {
    let pool = sim::create(world, &[MIRROR], 128);
    let datasets = pool.datasets();
    datasets.create_filesystem("tank/a", &[]).unwrap();
    for name in ["one", "two", "three"] {
        fill(&pool, "tank/a", name, 2);
        datasets
            .snapshot(&[&format!("tank/a@{name}")], &[])
            .unwrap();
    }
    fill(&pool, "tank/a", "head", 2);
    datasets
        .clone_snapshot("tank/a@two", "tank/b", &[])
        .unwrap();
    fill(&pool, "tank/b", "clone", 2);
    datasets.snapshot(&["tank/b@four"], &[]).unwrap();
    fill(&pool, "tank/b", "later", 2);
    pool
}

type Change = (&'static str, fn(&Pool));

/// Each changes what a scan visits, and no blocks that it has to find are freed by all of them.
const CHANGES: [Change; 7] = [
    ("first snapshot destroyed", |pool| {
        destroy_snapshot(pool, "tank/a@one");
    }),
    ("last snapshot destroyed", |pool| {
        destroy_snapshot(pool, "tank/a@three");
    }),
    ("clone's snapshot destroyed", |pool| {
        destroy_snapshot(pool, "tank/b@four");
    }),
    ("snapshot taken", |pool| {
        let names = ["tank/a@new", "tank/b@new"];
        pool.datasets().snapshot(&names, &[]).unwrap();
        fill(pool, "tank/a", "newer", 1);
    }),
    ("rolled back", |pool| {
        pool.datasets().rollback("tank/a@three").unwrap();
        pool.datasets().rollback("tank/b@four").unwrap();
    }),
    ("promoted", |pool| {
        pool.datasets().promote("tank/b").unwrap()
    }),
    ("clone destroyed", |pool| {
        destroy_snapshot(pool, "tank/b@four");
        pool.datasets()
            .destroy("tank/b", Default::default())
            .unwrap();
    }),
];

fn destroy_snapshot(pool: &Pool, name: &str) {
    let options = Default::default();
    pool.datasets().destroy_snapshots(&[name], options).unwrap();
}

#[test]
fn a_scan_follows_each_change_of_datasets_at_each_place() {
    let small = Scanner::new(ScanLimits {
        blocks: 12,
        gather_ns: u64::MAX / 2,
        threads: 1,
    });
    for (what, change) in CHANGES {
        for after in 0.. {
            let world = World::without_journal(50);
            let pool = chained(&world);
            rot(&world, 1, 4, 1_000_000);
            pool.inner().start_scrub(ScrubRange::All).unwrap();
            let mut slices = 0;
            while slices < after && small.slice(pool.inner()).unwrap() {
                slices += 1;
            }
            let is_over = slices < after;
            change(&pool);
            while small.slice(pool.inner()).unwrap() {
                slices += 1;
                assert!(slices < 1_000, "{what}, after {after}");
            }
            let state = state(&pool);
            assert_eq!((state.phase, state.errors), (ScanPhase::Finished, 0));
            pool.export().unwrap();
            let verified = sim::verify(&sim::read(&world).unwrap());
            verified.unwrap_or_else(|found| panic!("{what}, after {after} slices: {found}"));
            if is_over {
                assert!(after > 10, "{after} slices");
                break;
            }
        }
    }
}

#[test]
fn a_leaf_that_returns_is_resilvered_by_itself() {
    let _mark = mark::expect("resilver-started-by-itself");
    let world = World::without_journal(39);
    let pool = sim::create_with(&world, &[MIRROR], 128, Default::default());
    pool.start_scanner().unwrap();
    let away = leaf(&pool, 1);
    pool.inner().offline_leaf(away, Default::default()).unwrap();
    fill(&pool, "tank", "while away", 5);
    online(&world, &pool, 1);
    let begun = std::time::Instant::now();
    while missed(&pool, 1) > 0 {
        assert!(begun.elapsed().as_secs() < 60, "{:?}", pool.inner().scan());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(state(&pool).function, ScanFunction::Resilver);
    pool.inner().start_scrub(ScrubRange::All).unwrap();
    while pool.inner().is_scanning() {
        assert!(begun.elapsed().as_secs() < 60);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!((state(&pool).processed_bytes, state(&pool).errors), (0, 0));
    pool.export().unwrap();
    sim::verify(&sim::read(&world).unwrap()).unwrap();
}

/// Each leaf failed other writes of the same txgs, so none of them is whole.
#[test]
fn leaves_that_failed_different_writes_resilver_each_other() {
    for (shape, top) in [("mirror gaps", MIRROR), ("raidz gaps", (Raidz(1), 3))] {
        let world = World::without_journal(40);
        let (pool, mut life) = lived(&world, shape, &[top], 60);
        let leaves = world.disks().len();
        // One request of each leaf fails in each round.
        for round in 0..8 {
            for (disk, number) in world.disks().iter().zip(0..) {
                let plan = FaultPlan::new(Seed::new(round));
                disk.set_faults(Some(plan.failing_once_after(2 + round + number * 7)));
            }
            life.steps(&pool, 5);
            pool.sync().unwrap();
            (world.disks().iter()).for_each(|disk| disk.set_faults(None));
        }
        pool.inner().clear_leaves(None);
        assert!(
            (0..leaves).all(|number| missed(&pool, number) > 0),
            "{shape}"
        );
        life.compare(&pool.committed().unwrap(), shape);
        assert!(pool.inner().start_resilver().unwrap());
        finish(&pool);
        assert_eq!(state(&pool).errors, 0);
        assert!(
            (0..leaves).all(|number| missed(&pool, number) == 0),
            "{shape}"
        );
        for disk in world.disks() {
            disk.set_absent(true);
            life.compare(&pool.committed().unwrap(), shape);
            disk.set_absent(false);
        }
        pool.export().unwrap();
        is_sound(&world, &life, shape);
    }
}
