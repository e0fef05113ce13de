//! Simulated runs: a few short ones by default. `make soak` runs them for hours.

use millpond_env::mark;
use millpond_tests::soak::{Crowd, Op, Options, Plan, Shape, run};

fn live(shape: &str, seeds: std::ops::Range<u64>, ops: usize) {
    let shape = Shape::named(shape).unwrap();
    for seed in seeds {
        let options = Options {
            recount_every: 2,
            ..Options::default()
        };
        if let Err(failure) = run(&Plan::new(shape, seed, ops), &options) {
            panic!(
                "operation {}: {}\nafter:\n  {}\nagain: cargo run -p millpond-tests --bin soak -- --shape {} --seed {seed} --ops {ops}",
                failure.at,
                failure.text,
                failure.log.join("\n  "),
                shape.name
            );
        }
    }
}

#[test]
fn simulated_runs_on_one_and_two_disks() {
    live("single", 1..3, 300);
    live("stripe", 1..2, 300);
}

#[test]
fn simulated_runs_on_mirrors_with_failing_sides() {
    live("mirror2", 1..3, 300);
    live("mirror3", 1..2, 300);
    live("classes", 1..2, 300);
}

#[test]
fn simulated_runs_on_raidz_with_failing_disks() {
    live("raidz1", 1..2, 250);
    live("raidz2", 1..2, 250);
    live("raidz3", 1..2, 250);
}

#[test]
fn simulated_runs_with_log_devices() {
    live("log", 1..3, 250);
    live("logmirror", 1..2, 250);
}

#[test]
fn simulated_runs_with_vdevs_that_are_removed_or_expanded() {
    live("removed", 1..2, 600);
    live("removedmirror", 1..2, 600);
    live("removedlocked", 1..2, 400);
    live("expanded", 1..2, 600);
    live("expandedlocked", 1..2, 400);
}

#[test]
fn a_lost_log_device_loses_only_its_own_records() {
    let _mark = mark::expect("log-on-missing-device");
    let shape = Shape::named("log").unwrap();
    let mut lost = 0;
    // In some runs the power fails before the first promise on the device, in others after it.
    for seed in [1, 2, 38, 39] {
        // The first commit creates the chain and waits for its txg.
        let ops = vec![
            Op::Work(seed),
            Op::Commit(seed),
            Op::Work(seed + 10),
            Op::Commit(seed + 1),
            Op::Work(seed + 20),
            Op::Commit(seed + 2),
            Op::LoseLog(seed),
            Op::Work(seed + 30),
            Op::Commit(seed + 3),
            Op::Cut(seed),
            Op::Reopen,
        ];
        let plan = Plan { shape, seed, ops };
        let stats = run(&plan, &Options::default()).map_err(|failure| failure.text);
        lost += stats.unwrap().lost_logs;
    }
    assert_eq!(lost, 4);
}

/// The header of a locked dataset is written at once. That must not take the space of a log that is claimed later: here of the
/// only block with a promised write.
#[test]
fn logs_of_locked_datasets_are_claimed_before_anything_is_written() {
    let mut plan = Plan::new(Shape::named("locked").unwrap(), 210_008, 1500);
    let kept = [6, 7, 8, 78, 136, 137, 152, 155, 202, 205, 208];
    plan.ops = kept.map(|number| plan.ops[number]).to_vec();
    if let Err(failure) = run(&plan, &Options::default()) {
        panic!("operation {}: {}", failure.at, failure.text);
    }
}

#[test]
fn equal_plans_issue_equal_requests_in_equal_order() {
    // A mirror with failing sides, RAID-Z and log devices, some with little memory.
    let mut traces = vec![];
    for (shape, seed) in [("mirror3", 5), ("raidz2", 2), ("log", 3), ("logmirror", 7)] {
        let plan = Plan::new(Shape::named(shape).unwrap(), seed, 150);
        let lived = || run(&plan, &Options::default()).map_err(|failure| failure.text);
        let first = lived().unwrap();
        assert!(first.trace.requests > 500, "{first:?}");
        assert_eq!(lived().unwrap(), first, "{shape}");
        traces.push(first.trace);
    }
    let other = Plan::new(Shape::named("mirror3").unwrap(), 6, 150);
    let other = run(&other, &Options::default()).map_err(|failure| failure.text);
    assert_ne!(other.unwrap().trace, traces[0]);
}

fn few(shape: &str, seed: u64) -> Crowd {
    Crowd {
        shape: Shape::named(shape).unwrap(),
        seed,
        threads: 4,
        rounds: 3,
        steps: 60,
        loses_flushes: false,
    }
}

#[test]
fn threads_on_one_pool_lose_nothing() {
    few("mirror2", 1).meet(Options::default().limit).unwrap();
}

/// Requires `--cfg millpond_sim` (`make test-threads`).
#[cfg(millpond_sim)]
#[test]
fn slow_disks_have_several_bursts_of_log_blocks_at_once() {
    let _mark = mark::expect("log-bursts-in-flight");
    let limit = Options::default().limit;
    for (shape, seed) in [("mirror2", 4), ("log", 5), ("raidz1", 7)] {
        few(shape, seed).meet(limit).unwrap();
    }
}

/// Requires `--cfg millpond_sim` (`make test-threads`).
#[cfg(millpond_sim)]
#[test]
fn threads_lose_nothing_when_flushes_fail() {
    let _mark = mark::expect("pool-resumed");
    let limit = Options::default().limit;
    // With the first seed both sides of the mirror fail writes of one txg; with the second a burst of log blocks fails.
    for (shape, seed) in [
        ("mirror2", 113),
        ("mirror2", 5170),
        ("raidz1", 2),
        ("log", 3),
    ] {
        let crowd = Crowd {
            loses_flushes: true,
            rounds: 4,
            ..few(shape, seed)
        };
        crowd.meet(limit).unwrap();
    }
}

/// Requires `--cfg millpond_sim` (`make test-threads`).
#[cfg(millpond_sim)]
#[test]
fn equal_seeds_schedule_threads_equally() {
    let limit = Options::default().limit;
    let mut seen = std::collections::BTreeSet::new();
    for shape in ["mirror2", "raidz1", "log"] {
        for seed in 1..7 {
            let stats = few(shape, seed).meet(limit).unwrap();
            assert!(stats.switches > 1000 && stats.left == 0, "{stats:?}");
            assert_eq!(few(shape, seed).meet(limit).unwrap(), stats);
            assert!(seen.insert(stats.trace.digest), "{shape} {seed}");
        }
    }
}
