//! Datasets are created, changed and destroyed, then judged from outside.
//!
//! The reader reads the devices, all space counters are recomputed from the blocks, and `zdb` checks the
//! pool.

mod bench;
mod destroying;
mod steps;

use bench::Bench;
use millpond_dataset::{Dataset, DatasetError, PropertyValue, Refusal};
use millpond_dataset::{DestroyOptions, PropertyChanges};
use millpond_env::{Tunable, mark};
use millpond_ondisk::ObjectId;
use millpond_pool::FeatureChoice;
use millpond_zap::Zap;

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
fn an_empty_root_can_be_snapshot_and_cloned() {
    let bench = Bench::of_empty_root("empty root");
    let datasets = bench.datasets();
    datasets.create_filesystem("tank/a", &[]).unwrap();
    datasets.snapshot(&["tank@s", "tank/a@s"], &[]).unwrap();
    datasets.clone_snapshot("tank@s", "tank/c", &[]).unwrap();
    datasets.create_filesystem("tank/c/below", &[]).unwrap();
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
fn many_made_and_destroyed_in_one_txg_are_as_those_of_their_own() {
    let bench = Bench::new("many at once");
    let datasets = bench.datasets();
    let folding = [text("casesensitivity", "insensitive")];
    datasets.create_filesystem("tank/dos", &folding).unwrap();
    let names = ["tank/dos/a", "tank/dos/a/b", "tank/dos/a/b/c"];
    datasets.create_filesystems(&names, &[]).unwrap();
    let pool = bench.read_back();
    for name in names {
        // Also if the parent was created in the same txg.
        let files = Dataset::find(&pool, name)
            .unwrap()
            .object_set(None)
            .unwrap();
        let table = Zap::open(files.object(ObjectId(1)).unwrap()).unwrap();
        let folds = table.lookup_u64(b"casesensitivity").unwrap();
        assert_eq!(folds, Some(1), "{name}");
    }
    bench.write("tank/dos/a/b/c", 3, 20);
    bench.pool().sync().unwrap();
    let disordered = ["tank/dos/a/b/c", "tank/dos/a", "tank/dos/a/b"];
    let refused = why(datasets.destroy_datasets(&disordered));
    assert_eq!(refused, Refusal::HasChildren);
    assert_eq!(
        datasets.names_below("tank").unwrap(),
        ["tank", "tank/dos", "tank/dos/a", "tank/dos/a/b"]
    );
    bench.settle();
    bench.check();
    datasets
        .destroy_datasets(&["tank/dos/a/b", "tank/dos/a"])
        .unwrap();
    assert!(!bench.exists("tank/dos/a"));
    bench.settle();
    bench.check();
    bench.judge();
}

#[test]
fn snapshots_clones_and_promotion_keep_all_space_counts() {
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
fn random_operations_keep_all_space_counts_and_satisfy_zdb() {
    // `MILLPOND_SEEDS=FIRST..END` selects more seeds, `MILLPOND_STEPS=300` longer runs.
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
fn pools_of_openzfs_can_be_changed_and_satisfy_zdb() {
    // `MILLPOND_CASES=all` runs all cases; it also accepts names separated by commas.
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

#[test]
fn embedded_blocks_of_a_destroyed_clone_are_uncharged() {
    let _mark = mark::expect("clone-freed-by-livelist");
    let bench = Bench::new("embedded");
    let datasets = bench.datasets();
    datasets.create_filesystem("tank/fs", &[]).unwrap();
    // Large enough that the clone shares most of its blocks and keeps its livelist.
    bench.write("tank/fs", 1, 60);
    datasets.snapshot(&["tank/fs@a"], &[]).unwrap();
    datasets
        .clone_snapshot("tank/fs@a", "tank/clone", &[])
        .unwrap();
    bench.write_embedded("tank/clone", 18);
    bench.pool().sync().unwrap();
    bench.check();
    datasets
        .destroy("tank/clone", DestroyOptions::default())
        .unwrap();
    bench.settle();
    bench.check();
    bench.judge();
}

#[test]
fn lists_of_a_livelist_are_merged_when_few_of_their_blocks_are_left() {
    let _marks = [
        mark::expect("livelist-condensed"),
        mark::expect("clone-freed-by-livelist"),
    ];
    let bench = Bench::new("condense");
    let pool = bench.pool();
    let tunables = &pool.env().tunables;
    assert!(tunables.set(Tunable::LivelistMaxEntries, 20));
    assert!(tunables.set(Tunable::LivelistMinPercentShared, 10));
    let datasets = bench.datasets();
    datasets.create_filesystem("tank/fs", &[]).unwrap();
    bench.write("tank/fs", 1, 60);
    bench.write("tank/fs", 5, 60);
    datasets.snapshot(&["tank/fs@a"], &[]).unwrap();
    datasets
        .clone_snapshot("tank/fs@a", "tank/clone", &[])
        .unwrap();
    // Three objects, in turn; 320 more is the same place in the same object.
    for (round, seed) in (0..4).flat_map(|round| (2..5).map(move |seed| (round, seed))) {
        bench.write("tank/clone", seed + 320 * round, 25);
        pool.sync().unwrap();
        bench.check();
    }
    bench.free("tank/clone", 2);
    pool.sync().unwrap();
    bench.check();
    datasets
        .destroy("tank/clone", DestroyOptions::default())
        .unwrap();
    bench.settle();
    bench.check();
    bench.judge();
}

#[test]
fn holds_keep_snapshots_and_the_last_release_destroys_deferred() {
    let bench = Bench::new("holds");
    let datasets = bench.datasets();
    let now = DestroyOptions::default();
    let later = DestroyOptions { defer: true };
    datasets.create_filesystem("tank/fs", &[]).unwrap();
    bench.write("tank/fs", 1, 9);
    datasets.snapshot(&["tank/fs@a"], &[]).unwrap();
    bench.write("tank/fs", 1, 9);
    datasets.snapshot(&["tank/fs@b"], &[]).unwrap();
    datasets.hold(&["tank/fs@a", "tank/fs@b"], "keep").unwrap();
    assert_eq!(
        why(datasets.hold(&["tank/fs@a"], "keep")),
        Refusal::TagExists
    );
    assert_eq!(why(datasets.destroy("tank/fs@a", now)), Refusal::IsHeld);
    datasets.destroy("tank/fs@a", later).unwrap();
    bench.check();
    datasets.clone_snapshot("tank/fs@a", "tank/c", &[]).unwrap();
    datasets.release(&["tank/fs@a"], "keep").unwrap();
    assert_eq!(
        why(datasets.release(&["tank/fs@a"], "keep")),
        Refusal::NoSuchTag
    );
    assert!(bench.exists("tank/fs@a"), "its clone keeps it");
    bench.write("tank/c", 31, 9);
    bench.pool().sync().unwrap();
    bench.check();
    datasets.destroy("tank/c", now).unwrap();
    assert!(!bench.exists("tank/fs@a"));
    bench.settle();
    bench.check();
    bench.judge();
}

#[test]
fn quotas_reservations_and_limits_refuse_with_their_reasons() {
    let _mark = mark::expect("space-known-after-txg");
    let _mark = mark::expect("quota-full");
    let bench = Bench::new("quotas");
    let datasets = bench.datasets();
    datasets
        .create_filesystem(
            "tank/fs",
            &[text("compression", "off"), number("quota", 4 << 20)],
        )
        .unwrap();
    datasets.create_filesystem("tank/fs/sub", &[]).unwrap();
    let mut refusal = None;
    for seed in 0..400 {
        if let Err(error) = bench.try_write("tank/fs/sub", seed, 16) {
            refusal = Some(why(Err(error)));
            break;
        }
    }
    assert_eq!(refusal, Some(Refusal::OverQuota));
    bench.free("tank/fs/sub", 3);
    bench.settle();
    bench.check();
    let set = |name: &str, value| datasets.set_properties("tank/fs", &[number(name, value)]);
    assert_eq!(why(set("quota", 100)), Refusal::BelowUse);
    assert_eq!(why(set("reservation", 1 << 40)), Refusal::AboveAvailable);
    assert_eq!(why(set("refreservation", 5 << 20)), Refusal::AboveAvailable);
    set("quota", 0).unwrap();
    set("reservation", 30 << 20).unwrap();
    set("refreservation", 10 << 20).unwrap();
    bench.check();
    datasets.snapshot(&["tank/fs@a"], &[]).unwrap();
    bench.check();
    set("filesystem_limit", 1).unwrap();
    set("snapshot_limit", 2).unwrap();
    bench.check();
    let create = |name| datasets.create_filesystem(name, &[]);
    assert_eq!(why(create("tank/fs/more")), Refusal::LimitReached);
    datasets.snapshot(&["tank/fs/sub@a"], &[]).unwrap();
    assert_eq!(
        why(datasets.snapshot(&["tank/fs@b"], &[])),
        Refusal::LimitReached
    );
    datasets.rename("tank/fs/sub", "tank/moved").unwrap();
    create("tank/fs/more").unwrap();
    bench.check();
    set("filesystem_limit", 5).unwrap();
    datasets.snapshot(&["tank/moved@b"], &[]).unwrap();
    (datasets.clone_snapshot("tank/moved@b", "tank/fs/clone", &[])).unwrap();
    assert_eq!(
        why(datasets.promote("tank/fs/clone")),
        Refusal::LimitReached
    );
    set("snapshot_limit", 3).unwrap();
    datasets.promote("tank/fs/clone").unwrap();
    bench.check();
    bench.judge();
}

#[test]
fn names_have_as_many_components_as_the_tunable_permits() {
    let bench = Bench::new("nesting");
    let datasets = bench.datasets();
    let pool = bench.pool();
    let tunables = &pool.env().tunables;
    for name in ["tank/a", "tank/a/b", "tank/a/b/c", "tank/a/b/c/d", "tank/z"] {
        datasets.create_filesystem(name, &[]).unwrap();
    }
    assert!(tunables.set(Tunable::MaxDatasetNesting, 4));
    let create = |name| datasets.create_filesystem(name, &[]);
    assert_eq!(why(create("tank/a/b/c/e")), Refusal::TooDeep);
    create("tank/a/b/e").unwrap();
    let rename = |from, to| datasets.rename(from, to);
    assert_eq!(why(rename("tank/a/b/e", "tank/a/b/c/e")), Refusal::TooDeep);
    // One that is deeper already does not get deeper, but may get another name.
    assert_eq!(why(rename("tank/a", "tank/z/a")), Refusal::TooDeep);
    rename("tank/a/b/c/d", "tank/a/b/c/f").unwrap();
    rename("tank/a/b", "tank/z/b").unwrap();
    bench.check();
    bench.judge();
}

#[test]
fn properties_are_stored_as_openzfs_stores_them() {
    let bench = Bench::new("properties");
    let datasets = bench.datasets();
    datasets.create_filesystem("tank/a", &[]).unwrap();
    datasets.create_filesystem("tank/a/b", &[]).unwrap();
    let set = |name: &str, changes: &PropertyChanges| datasets.set_properties(name, changes);
    set(
        "tank/a",
        &[
            text("compression", "zstd-5"),
            text("redundant_metadata", "none"),
        ],
    )
    .unwrap();
    set(
        "tank/a",
        &[
            text("org.x:k", "v"),
            text("mountpoint", "/else"),
            number("recordsize", 1 << 20),
        ],
    )
    .unwrap();
    let head = bench.open_head("tank/a/b");
    assert_eq!(head.settings().number("compression"), 16 + 128 * 5);
    assert_eq!(head.settings().number("recordsize"), 1 << 20);
    assert_eq!(head.settings().number("redundant_metadata"), 3);
    drop(head);
    bench.write("tank/a/b", 1, 4);
    let value = |name: &str, property| {
        let dataset = Dataset::find(&bench.read_back(), name).unwrap();
        dataset
            .property(property, true)
            .unwrap()
            .map(|(value, _)| value)
    };
    assert_eq!(
        value("tank/a/b", "org.x:k"),
        Some(PropertyValue::Text("v".into()))
    );
    assert_eq!(
        value("tank/a/b", "redundant_metadata"),
        Some(PropertyValue::Number(3))
    );
    for (name, bad) in [
        ("recordsize", PropertyValue::Number(3000)),
        ("compression", PropertyValue::Text("best".into())),
        ("used", PropertyValue::Number(1)),
        ("volsize", PropertyValue::Number(1 << 20)),
        ("mountpoint", PropertyValue::Text("here".into())),
        ("dedup", PropertyValue::Text("edonr".into())),
        ("nonsense", PropertyValue::Number(1)),
    ] {
        let outcome = set("tank/a", &[(name.to_owned(), bad)]);
        assert!(
            matches!(outcome, Err(DatasetError::InvalidProperty { .. })),
            "{name}"
        );
    }
    datasets.inherit("tank/a", "compress", false).unwrap();
    datasets.inherit("tank/a", "org.x:k", false).unwrap();
    assert!(datasets.inherit("tank/a", "quota", false).is_err());
    assert_eq!(value("tank/a/b", "compression"), None);
    assert_eq!(value("tank/a/b", "org.x:k"), None);
    datasets
        .snapshot(&["tank/a@s"], &[text("org.x:why", "because")])
        .unwrap();
    assert_eq!(
        value("tank/a@s", "org.x:why"),
        Some(PropertyValue::Text("because".into()))
    );
    datasets.inherit("tank/a@s", "org.x:why", false).unwrap();
    assert_eq!(value("tank/a@s", "org.x:why"), None);
    bench.check();
    bench.judge();
}

#[test]
fn a_destroyed_dataset_is_freed_across_an_export() {
    let bench = Bench::new("slices");
    let datasets = bench.datasets();
    datasets
        .create_filesystem("tank/fs", &[text("compression", "off")])
        .unwrap();
    for seed in 0..40 {
        bench.write("tank/fs", seed, 20);
    }
    bench.pool().sync().unwrap();
    // About sixty blocks take several txgs, regardless of other txgs in between.
    datasets.limit_background(7);
    datasets
        .destroy("tank/fs", DestroyOptions::default())
        .unwrap();
    bench.pool().sync().unwrap();
    let is_queued = |bench: &Bench| {
        let pool = bench.read_back();
        pool.find_directory_object("bptree_obj").unwrap().is_some()
    };
    assert!(is_queued(&bench));
    bench.judge();
    bench.reopen_with(9);
    bench.pool().sync().unwrap();
    assert!(is_queued(&bench));
    bench.judge();
    bench.reopen();
    bench.settle();
    assert!(!is_queued(&bench));
    bench.check();
    bench.judge();
}

#[test]
fn a_pool_without_features_keeps_all_space_counts() {
    let bench = Bench::with_features("none", FeatureChoice::OnlyNamed);
    steps::run(&bench, 7, 40);
    bench.settle();
    bench.check();
    bench.judge();
}

#[test]
fn open_datasets_are_neither_destroyed_nor_rolled_back() {
    let bench = Bench::new("busy");
    let datasets = bench.datasets();
    datasets.create_filesystem("tank/fs", &[]).unwrap();
    datasets.snapshot(&["tank/fs@a"], &[]).unwrap();
    let open = bench.open_head("tank/fs");
    bench.write("tank/fs", 1, 3);
    assert_eq!(why(datasets.rollback("tank/fs@a")), Refusal::Busy);
    datasets
        .destroy("tank/fs@a", DestroyOptions::default())
        .unwrap();
    assert_eq!(
        why(datasets.destroy("tank/fs", DestroyOptions::default())),
        Refusal::Busy
    );
    drop(open);
    datasets
        .destroy("tank/fs", DestroyOptions::default())
        .unwrap();
    assert!(datasets.open_head("tank/fs").is_err());
    bench.settle();
    bench.check();
}

fn why(outcome: Result<(), DatasetError>) -> Refusal {
    match outcome {
        Err(DatasetError::Refused { why, .. }) => why,
        other => panic!("not refused: {other:?}"),
    }
}
