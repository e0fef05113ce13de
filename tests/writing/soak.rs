//! Random work on pools of every layout, compared with a model and judged.
//!
//! By default a few seeds each; `MILLPOND_WRITING_SEEDS=N` runs N, `MILLPOND_WRITING_STEPS` sets the
//! length, `MILLPOND_WRITING_FROM` the first seed.

use crate::rig::Rig;
use millpond_engine::{NewLayout, PoolBuilder};
use millpond_tests::workload::Life;

pub fn env(name: &str, otherwise: u64) -> u64 {
    let value = std::env::var(name).ok();
    value
        .and_then(|value| value.parse().ok())
        .unwrap_or(otherwise)
}

/// Runs random work on the pool, with exports in between. All states are compared, the last one is judged.
fn live(shape: &str, disks: usize, mib: u64, plan: impl Fn(&Rig) -> PoolBuilder) {
    let seeds = env("MILLPOND_WRITING_SEEDS", 1);
    let steps = env("MILLPOND_WRITING_STEPS", 150) as usize;
    let from = env("MILLPOND_WRITING_FROM", 1);
    for seed in from..from + seeds {
        let what = format!("{shape}, seed {seed}");
        let rig = Rig::new(disks, mib);
        let mut pool = plan(&rig).create().unwrap();
        let mut life = Life::new("tank", shape, seed);
        for round in 0..3 {
            life.steps(&pool, steps / 3);
            pool.sync().unwrap();
            life.compare(&pool.committed().unwrap(), &what);
            pool.export().unwrap();
            life.compare(&rig.read("tank"), &what);
            if round == 2 {
                break;
            }
            pool = rig.open("tank");
        }
        if let Err(fault) = std::panic::catch_unwind(|| rig.judge("tank")) {
            rig.keep(&format!("{shape}-{seed}"));
            println!("{what}:\n  {}", life.log.join("\n  "));
            std::panic::resume_unwind(fault);
        }
    }
}

use millpond_vdev::AllocationClass::{Log, Normal, Special};

#[test]
fn random_work_on_one_disk() {
    live("single", 1, 256, |rig| rig.stripe("tank"));
}

#[test]
fn random_work_on_a_stripe_of_three() {
    live("stripe3", 3, 128, |rig| rig.stripe("tank").ashift(9));
}

#[test]
fn random_work_on_mirrors() {
    live("mirrors", 5, 192, |rig| {
        PoolBuilder::new("tank")
            .mirror(rig.some(0..2))
            .mirror(rig.some(2..5))
            .force()
    });
}

#[test]
fn random_work_on_raidz1() {
    live("raidz1", 3, 160, |rig| {
        PoolBuilder::new("tank").raidz(1, &rig.images).ashift(9)
    });
}

#[test]
fn random_work_on_raidz2() {
    live("raidz2", 5, 128, |rig| {
        PoolBuilder::new("tank").raidz(2, &rig.images)
    });
}

#[test]
fn random_work_on_raidz3() {
    live("raidz3", 7, 128, |rig| {
        PoolBuilder::new("tank").raidz(3, &rig.images).ashift(13)
    });
}

#[test]
fn random_work_with_special_log_cache_and_spare() {
    live("all classes", 7, 160, |rig| {
        PoolBuilder::new("tank")
            .top(Normal, NewLayout::Mirror, rig.some(0..2))
            .top(Special, NewLayout::Mirror, rig.some(2..4))
            .top(Log, NewLayout::Single, rig.some(4..5))
            .cache(&rig.images[5])
            .spare(&rig.images[6])
    });
}
