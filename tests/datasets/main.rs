//! Datasets made, changed and destroyed, then looked at from outside: what is on the devices is
//! read again by the reading side, every figure is counted anew from the blocks, and `zdb` judges.

mod bench;
mod recount;
mod steps;

use bench::Bench;
use millpond_dataset::PropertyValue;
use millpond_dataset::live::DestroyOptions;

fn number(name: &str, value: u64) -> (String, PropertyValue) {
    (name.to_owned(), PropertyValue::Number(value))
}
fn text(name: &str, value: &str) -> (String, PropertyValue) {
    (name.to_owned(), PropertyValue::Text(value.to_owned()))
}

#[test]
fn a_new_pool_has_the_skeleton_that_openzfs_makes() {
    let bench = Bench::new("skeleton");
    bench.check();
    bench.judge();
}

#[test]
fn file_systems_and_volumes_are_made_and_destroyed() {
    let bench = Bench::new("create");
    let datasets = bench.datasets();
    datasets.create_filesystem("tank/a", &[]).unwrap();
    datasets
        .create_filesystem(
            "tank/a/b",
            &[text("compression", "off"), text("org.x:note", "hello")],
        )
        .unwrap();
    datasets
        .create_volume(
            "tank/a/v",
            &[number("volsize", 1 << 20), number("volblocksize", 8192)],
        )
        .unwrap();
    bench.write("tank/a/b", 1, 40);
    bench.write("tank", 2, 20);
    bench.pool().sync().unwrap();
    bench.check();
    datasets
        .destroy("tank/a/b", DestroyOptions::default())
        .unwrap();
    bench.pool().sync().unwrap();
    bench.check();
    bench.settle();
    bench.check();
    datasets
        .destroy("tank/a/v", DestroyOptions::default())
        .unwrap();
    datasets
        .destroy("tank/a", DestroyOptions::default())
        .unwrap();
    bench.settle();
    bench.check();
    bench.judge();
}

#[test]
fn snapshots_clones_and_promotion_keep_every_figure() {
    let bench = Bench::new("snapshots");
    let datasets = bench.datasets();
    datasets
        .create_filesystem("tank/fs", &[text("compression", "off")])
        .unwrap();
    bench.write("tank/fs", 1, 8);
    datasets.snapshot(&["tank/fs@s1"], &[]).unwrap();
    bench.check();
    bench.write("tank/fs", 1, 3);
    datasets
        .snapshot(&["tank/fs@s2"], &[text("org.x:why", "test")])
        .unwrap();
    bench.check();
    bench.write("tank/fs", 6, 5);
    bench.write("tank/fs", 1, 2);
    datasets.snapshot(&["tank/fs@s3"], &[]).unwrap();
    bench.check();
    bench.write("tank/fs", 11, 7);
    bench.pool().sync().unwrap();
    bench.check();
    datasets
        .clone_snapshot("tank/fs@s2", "tank/c", &[])
        .unwrap();
    bench.check();
    bench.write("tank/c", 21, 9);
    bench.pool().sync().unwrap();
    bench.check();
    datasets.promote("tank/c").unwrap();
    bench.check();
    datasets
        .destroy("tank/c@s1", DestroyOptions::default())
        .unwrap();
    bench.settle();
    bench.check();
    datasets.rollback("tank/fs@s3").unwrap();
    bench.settle();
    bench.check();
    bench.judge();
}

fn random(bench: &Bench, name: &str, seed: u64, steps: u64) {
    for round in 0..3 {
        let (done, refused) = steps::run(bench, seed * 10 + round, steps / 3);
        eprintln!("{name} {seed}: {done} done, {refused} refused");
        assert!(done > 0);
        bench.settle();
        bench.check();
        bench.judge();
        bench.reopen();
    }
}

#[test]
fn random_operations_keep_every_figure_and_satisfy_zdb() {
    // More of them: MILLPOND_SEEDS=FIRST..END, and longer: MILLPOND_STEPS=300.
    let seeds = std::env::var("MILLPOND_SEEDS").ok();
    let range = seeds.as_deref().and_then(|text| {
        let (first, end) = text.split_once("..")?;
        Some(first.parse().ok()?..end.parse().ok()?)
    });
    let steps = std::env::var("MILLPOND_STEPS").ok();
    let steps = steps.and_then(|text| text.parse().ok()).unwrap_or(60);
    for seed in range.unwrap_or(1..2) {
        random(&Bench::new("random"), "random", seed, steps);
    }
}

#[test]
fn pools_of_openzfs_go_on_changing_and_satisfy_zdb() {
    // All of them: MILLPOND_CASES=all, or names with commas.
    let all = [
        "single",
        "snapshots",
        "quotas",
        "zvols",
        "ashift9",
        "log-spacemap",
        "async-destroy",
        "livelist",
        "compat-legacy",
        "compat-2.1",
        "v24-default",
        "compress",
        "recordsize",
    ];
    let wanted = std::env::var("MILLPOND_CASES").ok();
    let cases: Vec<&str> = match wanted.as_deref() {
        Some("all") => all.to_vec(),
        Some(names) => names.split(',').collect(),
        None => vec!["snapshots", "async-destroy"],
    };
    for case in cases {
        let Some(bench) = Bench::of_golden(case) else {
            continue;
        };
        bench.settle();
        bench.check();
        random(&bench, case, 5, 24);
    }
}
