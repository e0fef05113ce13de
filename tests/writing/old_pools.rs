//! Pools of versions 1 to 28, made, changed and raised here.
//!
//! Random work on pools of every version, power cuts, raising, and `zdb`.

use crate::{crash, sim};
use millpond_check::{CheckOptions, check_pool};
use millpond_engine::NewLayout::{self, Mirror, Raidz, Single};
use millpond_engine::{Pool, View};
use millpond_env::mark;
use millpond_ondisk::PoolVersion;
use millpond_sim::World;
use millpond_tests::oracle::zdb;
use millpond_tests::raised;
use millpond_tests::workload::Life;

fn judge(world: &World, what: &str) {
    let folder = tempfile::tempdir().unwrap();
    sim::to_files(world, folder.path());
    let verdict = zdb::judge(folder.path(), "tank").unwrap();
    verdict.require(what);
}

fn is_whole(read: &View, what: &str) {
    let report = check_pool(read.inner(), &CheckOptions::default()).unwrap();
    assert!(report.findings.is_empty(), "{what}: {:#?}", report.findings);
    sim::verify(read).unwrap_or_else(|error| panic!("{what}: {error}"));
}

fn life_in(version: u64, seed: u64) -> Life {
    let mut life = Life::new("tank", "old pools", seed);
    life.pool_version = PoolVersion(version);
    life.makes_old_file_systems = true;
    life.dataset_percent = 40;
    life.file_bytes_max = 60_000;
    life
}

/// Closes the pool, and judges it and what is in it.
fn judged(world: &World, pool: Pool, life: &Life, what: &str) -> Pool {
    pool.export().unwrap();
    let read = sim::read(world).unwrap();
    life.compare(&read, what);
    assert_eq!(read.inner().version(), life.pool_version.0, "{what}");
    is_whole(&read, what);
    drop(read);
    judge(world, what);
    sim::open(world).unwrap_or_else(|error| panic!("{what}: {error}"))
}

fn layout_of(version: u64) -> (NewLayout, usize) {
    match version % 3 {
        0 => (Raidz(1), 3),
        1 => (Single, 1),
        _ => (Mirror, 2),
    }
}

fn random_work(versions: impl Iterator<Item = u64>) {
    for version in versions {
        for seed in crash::seeds() {
            let world = World::new(seed + version);
            let mut pool = sim::create_old(&world, &[layout_of(version)], 512, version);
            let mut life = life_in(version, seed + version);
            for round in 0..4 {
                life.steps(&pool, 50);
                let what = format!("version {version}, seed {seed}, round {round}");
                pool = judged(&world, pool, &life, &what);
            }
        }
    }
}

#[test]
fn random_work_in_pools_of_versions_1_to_10_is_as_in_memory() {
    random_work(1..=10);
}

#[test]
fn random_work_in_pools_of_versions_11_to_19_is_as_in_memory() {
    random_work(11..=19);
}

#[test]
fn random_work_in_pools_of_versions_20_to_28_is_as_in_memory() {
    random_work(20..=28);
}

#[test]
fn power_cuts_keep_synced_work_in_old_pools() {
    for seed in crash::seeds() {
        for version in [1, 2, 10, 14, 25, 27] {
            let create = |world: &World| sim::create_old(world, &[(Single, 1)], 1024, version);
            let prepare = |life: &mut Life| {
                life.pool_version = PoolVersion(version);
                life.dataset_percent = 30;
            };
            crash::cut_life_in("crash old pools", create, seed + version, 10, prepare);
        }
    }
}

/// The versions from which and to which a pool is raised.
const RAISED: [(u64, &[u64]); 11] = [
    (1, &[2, 3, 5000]),
    (2, &[11, 5000]),
    (3, &[5000]),
    (9, &[11, 26, 5000]),
    (11, &[25, 5000]),
    (14, &[15, 28, 5000]),
    (15, &[24, 5000]),
    (20, &[26, 5000]),
    (25, &[26, 28, 5000]),
    (26, &[27, 5000]),
    (28, &[5000]),
];

fn raise(pool: &Pool, life: &mut Life, to: u64) {
    life.pool_version = PoolVersion(to);
    raised::raise(pool, life.pool_version).unwrap();
}

#[test]
fn raised_pools_keep_everything_and_work_on() {
    let _marks = [
        mark::expect("origin-made-for-old-datasets"),
        mark::expect("clones-noted-in-directories"),
        mark::expect("old-deadlist-settled"),
        mark::expect("old-deadlist-split"),
    ];
    for (from, steps) in RAISED {
        for seed in crash::seeds() {
            let world = World::new(seed + from);
            let layout = match from {
                1 => (Raidz(1), 3),
                _ => layout_of(from),
            };
            let mut pool = sim::create_old(&world, &[layout], 512, from);
            let mut life = life_in(from, seed + 100 + from);
            life.steps(&pool, 80);
            for to in steps {
                let what = format!("version {from}, seed {seed}, raised to {to}");
                raise(&pool, &mut life, *to);
                pool = judged(&world, pool, &life, &what);
                // The old deadlists are settled, and new ones beside them.
                life.steps(&pool, 80);
                pool = judged(&world, pool, &life, &what);
            }
        }
    }
}

#[test]
fn a_pool_that_is_raised_during_a_power_cut_is_the_old_or_the_new_one() {
    for (from, to) in [(1, 5000), (2, 3), (10, 11), (9, 28), (25, 26), (28, 5000)] {
        let world = World::new(from);
        let pool = sim::create_old(&world, &[(Mirror, 2)], 512, from);
        let mut life = life_in(from, 300 + from);
        life.steps(&pool, 60);
        pool.sync().unwrap();
        world.forget();
        pool.inner().raise(PoolVersion(to)).unwrap();
        pool.sync().unwrap();
        drop(pool);
        let requests = world.journal().len();
        let mut found = std::collections::BTreeSet::new();
        for (round, count) in (0..=requests).enumerate() {
            let variants = crash::variants(from, round, count);
            let variant = &variants[round % variants.len()];
            let what = format!("{from} to {to}, {count} of {requests} requests, {variant:?}");
            let after = world.reborn(count, variant);
            let read = sim::read(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
            let version = read.inner().version();
            assert!([from, to].contains(&version), "{what}: {version}");
            found.insert(version);
            life.compare(&read, &what);
            let report = check_pool(read.inner(), &CheckOptions::default()).unwrap();
            assert!(
                report.findings.iter().all(is_of_label),
                "{what}: {report:#?}"
            );
            drop(read);
            if round % 12 == 0 || count == requests {
                let pool = sim::open(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(pool.inner().version(), version, "{what}");
                let mut later = life.clone();
                raise(&pool, &mut later, version);
                later.steps(&pool, 20);
                judged(&after, pool, &later, &what);
            }
        }
        assert_eq!(found, [from, to].into(), "{from} to {to}");
    }
}

/// A power cut may tear a label.
fn is_of_label(finding: &millpond_check::Finding) -> bool {
    format!("{:?}", finding.kind).contains("Label")
}
