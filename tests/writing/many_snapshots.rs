//! What takes longer the more snapshots there are is counted, and the tables that grow with them stay right.

use crate::rig::Rig;
use millpond_engine::{Caller, DestroyOptions, NewMode, Pool, SendRequest, WriteAt};

const POOL: &str = "chains";

fn snapshot(pool: &Pool, name: &str) {
    pool.datasets().snapshot(&[name], &[]).unwrap();
}

/// So long that each leaf of the table of names has few.
fn long(number: usize) -> String {
    format!("{POOL}/fs@{number:0180}")
}

/// Look-ups in the cache for the plan of a stream of all snapshots, and its steps.
fn lookups_of_plan(pool: &Pool, last: usize) -> (u64, u64) {
    let view = pool.committed().unwrap();
    let count = || view.inner().store().cache_statistics().demand.count();
    let before = count();
    let request = SendRequest {
        name: long(last),
        from: Some(long(0)),
        has_between: true,
        ..SendRequest::default()
    };
    let plan = view.send_plan(&request).unwrap();
    (count() - before, plan.steps.len() as u64)
}

#[test]
fn the_plan_of_many_streams_does_not_list_all_snapshots_for_each() {
    let rig = Rig::new(1, 256);
    let pool = rig.stripe(POOL).create().unwrap();
    let datasets = pool.datasets();
    datasets
        .create_filesystem(&format!("{POOL}/fs"), &[])
        .unwrap();
    let mut per_step = vec![];
    for (first, last) in [(0, 40), (41, 400)] {
        for number in first..=last {
            snapshot(&pool, &long(number));
        }
        let (lookups, steps) = lookups_of_plan(&pool, last);
        assert_eq!(steps, last as u64);
        per_step.push(lookups / steps);
    }
    let [few, many] = per_step[..] else { panic!() };
    assert!(few > 0 && many <= few + 6, "{few} look-ups, then {many}");
    pool.export().unwrap();
    rig.judge(POOL);
}

/// Writes some of ten files anew, so that blocks of different ages die.
fn change(pool: &Pool, dataset: &str, number: usize) {
    let files = pool.file_system(dataset).unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    for file in [number % 10, number % 7] {
        let (name, mode) = (format!("f{file}"), NewMode::exactly(0o644));
        let made = files.create(&caller, &root, name.as_bytes(), mode, false);
        let content = format!("{number} ").repeat(5000);
        let at = WriteAt::Offset(0);
        files
            .write(&caller, &made.unwrap().0, at, content.as_bytes())
            .unwrap();
    }
    pool.sync().unwrap();
}

/// Snapshots, clones and changes in between: each deadlist has a key for each snapshot before it.
#[test]
fn chains_of_snapshots_are_right_after_ranges_were_destroyed() {
    let rig = Rig::new(1, 512);
    let mut pool = rig.stripe(POOL).create().unwrap();
    for part in ["a", "b"] {
        let head = format!("{POOL}/{part}");
        pool.datasets().create_filesystem(&head, &[]).unwrap();
        let name = |number: usize| format!("{head}@s{number}");
        for number in 0..60 {
            change(&pool, &head, number);
            snapshot(&pool, &name(number));
        }
        let clone = format!("{POOL}/clone-{part}");
        pool.datasets()
            .clone_snapshot(&name(30), &clone, &[])
            .unwrap();
        for number in 0..5 {
            change(&pool, &clone, number);
            change(&pool, &head, number + 3);
            snapshot(&pool, &format!("{clone}@{number}"));
        }
        // From the middle, the oldest and the newest, in one txg each. The origin of the clone stays.
        for range in [10..30, 0..10, 31..60] {
            let names: Vec<String> = range.map(name).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let options = DestroyOptions::default();
            pool.datasets().destroy_snapshots(&names, options).unwrap();
        }
        if part == "b" {
            pool.datasets().promote(&clone).unwrap();
            change(&pool, &head, 1);
            snapshot(&pool, &format!("{head}@late"));
        }
        pool.export().unwrap();
        rig.judge(POOL);
        pool = rig.open(POOL);
    }
    pool.export().unwrap();
}

/// A snapshot behind many destroyed ones has an entry for each of them in its deadlist.
#[test]
fn a_long_range_of_snapshots_costs_little_more_for_each_than_a_short_one() {
    let rig = Rig::new(1, 256);
    let pool = rig.stripe(POOL).create().unwrap();
    let head = format!("{POOL}/fs");
    pool.datasets().create_filesystem(&head, &[]).unwrap();
    let name = |number: usize| format!("{head}@s{number}");
    for number in 0..300 {
        snapshot(&pool, &name(number));
    }
    // Look-ups in the cache for each of them.
    let destroyed = |range: std::ops::Range<usize>| {
        let count = || (pool.inner().store().cache_statistics().demand).count();
        let (before, length) = (count(), range.len() as u64);
        let names: Vec<String> = range.map(name).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let options = DestroyOptions::default();
        pool.datasets().destroy_snapshots(&names, options).unwrap();
        (count() - before) / length
    };
    let (short, long) = (destroyed(20..40), destroyed(60..260));
    assert!(
        short > 0 && long <= 2 * short,
        "{short} look-ups, then {long}"
    );
    pool.export().unwrap();
    rig.judge(POOL);
}
