//! The power fails during work on whole pools: file systems, snapshots, clones, volumes.
//!
//! By default the tests cut at some requests; with `MILLPOND_WRITING_ALL` at all of them, and `zdb` judges
//! some of the images.

use crate::sim;
use crate::soak::env;
use millpond_engine::{NewLayout, NewLayout::Mirror, NewLayout::Raidz, NewLayout::Single, Pool};
use millpond_sim::{PowerCut, Seed, World};
use millpond_tests::oracle::zdb;
use millpond_tests::workload::Life;

/// A state: the number of requests after which it was promised (if ever), and its content.
struct Committed {
    at: usize,
    life: Life,
}

fn cut(shape: &str, tops: &[(NewLayout, usize)], seed: u64, cuts_wanted: usize) {
    cut_life(shape, tops, seed, cuts_wanted, |_| {});
}

/// The ways in which the power fails after `count` requests.
pub(crate) fn variants(seed: u64, round: usize, count: usize) -> [PowerCut; 5] {
    [
        PowerCut::EverythingWritten,
        PowerCut::NothingUnflushed,
        PowerCut::Torn(Seed::new(seed * 7919 + count as u64)),
        PowerCut::First(1 + round % 5),
        PowerCut::AllBut(round % 7),
    ]
}

/// Like [`cut`], with work that `prepare` changes.
pub(crate) fn cut_life(
    shape: &str,
    tops: &[(NewLayout, usize)],
    seed: u64,
    cuts_wanted: usize,
    prepare: impl Fn(&mut Life),
) {
    // Large enough that no space estimate waits for a commit within a step.
    let create = |world: &World| sim::create(world, tops, 1024);
    cut_life_in(shape, create, seed, cuts_wanted, prepare);
}

/// Like [`cut_life`], in a pool that `create` makes.
pub(crate) fn cut_life_in(
    shape: &str,
    create: impl Fn(&World) -> Pool,
    seed: u64,
    cuts_wanted: usize,
    prepare: impl Fn(&mut Life),
) {
    let world = World::new(seed);
    let pool = create(&world);
    let mut life = Life::new("tank", shape, seed);
    life.file_bytes_max = 60_000;
    life.dataset_percent = 15;
    prepare(&mut life);
    life.steps(&pool, 60);
    pool.sync().unwrap();
    // From here on each step is one state, so it must not be committed in part.
    life.makes_many = false;
    world.forget();
    let mut committed = vec![Committed {
        at: 0,
        life: life.clone(),
    }];
    // Work may be committed after any step. Steps followed by a sync are promised.
    for round in 0..60 {
        life.steps(&pool, 1);
        let at = if round % 7 == 6 {
            pool.sync().unwrap();
            world.journal().len()
        } else {
            usize::MAX
        };
        committed.push(Committed {
            at,
            life: life.clone(),
        });
    }
    pool.sync().unwrap();
    drop(pool);
    let journal = world.journal();
    let is_all = std::env::var_os("MILLPOND_WRITING_ALL").is_some();
    let cuts = if is_all {
        cuts_wanted * 20
    } else {
        cuts_wanted
    };
    let step = (journal.len() / cuts).max(1);
    let (mut judged, mut tried) = (0, 0);
    for (round, count) in (0..=journal.len()).step_by(step).enumerate() {
        let variants = variants(seed, round, count);
        let chosen = if is_all {
            0..5
        } else {
            round % 5..round % 5 + 1
        };
        for variant in &variants[chosen] {
            let what = format!(
                "{shape}, seed {seed}: after {count} of {} requests, {variant:?}",
                journal.len()
            );
            let after = world.reborn(count, variant);
            let read = sim::read(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
            let least = committed
                .iter()
                .rposition(|state| state.at <= count)
                .unwrap();
            // The promised state is present, or a later one.
            let matching = committed
                .iter()
                .skip(least)
                .position(|state| state.life.differences(&read).is_empty());
            if matching.is_none() {
                let near: Vec<_> = committed
                    .iter()
                    .skip(least)
                    .take(6)
                    .map(|state| (state.life.log.last(), state.life.differences(&read)))
                    .collect();
                panic!("{what}: is no state at or after {least}: {near:#?}");
            }
            sim::verify(&read).unwrap_or_else(|error| panic!("{what}: {error}"));
            drop(read);
            tried += 1;
            if is_all && tried % 40 == 0 || tried == 7 {
                judged += 1;
                let folder = tempfile::tempdir().unwrap();
                sim::to_files(&after, folder.path());
                zdb::judge(folder.path(), "tank").unwrap().require(&what);
            }
            // The simulated run continues.
            let pool = sim::open(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
            let mut on = committed[least + matching.unwrap()].life.clone();
            on.dataset_percent = 20;
            on.steps(&pool, 5);
            pool.export().unwrap();
            let read = sim::read(&after).unwrap();
            on.compare(&read, &what);
            if round % 8 == 0 {
                sim::verify(&read).unwrap_or_else(|error| panic!("{what}, gone on: {error}"));
            }
        }
    }
    println!(
        "{shape}: {tried} crashes of {} requests, {judged} judged by zdb",
        journal.len()
    );
}

pub(crate) fn seeds() -> std::ops::Range<u64> {
    let from = env("MILLPOND_WRITING_FROM", 1);
    from..from + env("MILLPOND_WRITING_SEEDS", 1)
}

#[test]
fn one_disk_keeps_fsynced_data_after_a_power_cut() {
    seeds().for_each(|seed| cut("crash one", &[(Single, 1)], seed, 30));
}

#[test]
fn files_that_share_blocks_keep_fsynced_data_after_a_power_cut() {
    let shares = |life: &mut Life| life.copy_percent = 40;
    seeds().for_each(|seed| cut_life("crash copies", &[(Single, 1)], seed, 30, shares));
}

#[test]
fn a_mirror_keeps_fsynced_data_after_a_power_cut() {
    seeds().for_each(|seed| cut("crash mirror", &[(Mirror, 2)], seed, 20));
}

#[test]
fn a_raidz_keeps_fsynced_data_after_a_power_cut() {
    seeds().for_each(|seed| cut("crash raidz", &[(Raidz(1), 3), (Raidz(1), 3)], seed, 12));
}
