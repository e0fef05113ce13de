//! Trees are destroyed with their snapshots and clones: all of it, or nothing.

use crate::bench::Bench;
use crate::{number, why};
use millpond_dataset::{Dataset, DatasetError, DestroyOptions, Refusal};
use std::collections::BTreeSet;

#[test]
fn a_tree_with_snapshots_and_clones_is_destroyed_in_one_txg() {
    let bench = Bench::new("tree at once");
    let datasets = bench.datasets();
    for name in ["tank/t", "tank/t/a", "tank/t/a/b"] {
        datasets.create_filesystem(name, &[]).unwrap();
        bench.write(name, 5, 10);
    }
    datasets.snapshot_recursively("tank/t@s").unwrap();
    bench.write("tank/t/a", 5, 4);
    datasets.snapshot(&["tank/t/a@u"], &[]).unwrap();
    datasets
        .clone_snapshot("tank/t/a@s", "tank/t/clone", &[])
        .unwrap();
    bench.write("tank/t/clone", 7, 3);
    bench.pool().sync().unwrap();
    datasets.hold(&["tank/t/a@u"], "keep").unwrap();
    let all = [
        "tank/t/clone",
        "tank/t/a/b@s",
        "tank/t/a/b",
        "tank/t/a@s",
        "tank/t/a@u",
        "tank/t/a",
        "tank/t@s",
        "tank/t",
    ];
    // One that cannot be destroyed keeps them all: held, being read, a clone outside, a head in use, a snapshot that is not
    // in the list.
    let refused = |names: &[&str], expected: Refusal| {
        assert_eq!(why(datasets.destroy_in_order(names, None)), expected);
        assert!(all.iter().all(|name| bench.exists(name)), "{expected:?}");
    };
    refused(&all, Refusal::IsHeld);
    datasets.release(&["tank/t/a@u"], "keep").unwrap();
    let last = Dataset::find(&bench.read_back(), "tank/t@s").unwrap();
    let used = datasets.use_snapshot(last.id()).unwrap().unwrap();
    refused(&all, Refusal::Busy);
    drop(used);
    refused(&all[1..], Refusal::HasClones);
    let open = datasets.open_head("tank/t").unwrap();
    refused(&all, Refusal::Busy);
    drop(open);
    let without: Vec<&str> = (all.iter().copied())
        .filter(|name| *name != "tank/t/a@u")
        .collect();
    refused(&without, Refusal::HasSnapshots);
    // A refused snapshot can be used again at once.
    assert!(datasets.use_snapshot(last.id()).unwrap().is_some());
    bench.settle();
    bench.check();
    datasets.destroy_in_order(&all, None).unwrap();
    let history = bench.read_back().history().unwrap().unwrap();
    let destroyed: Vec<u64> = (history.map(Result::unwrap))
        .filter(|record| record.string("internal_name").ok() == Some("destroy"))
        .map(|record| record.u64("history txg").unwrap())
        .collect();
    assert_eq!(destroyed.len(), all.len());
    assert!(destroyed.iter().all(|txg| *txg == destroyed[0]));
    assert_eq!(datasets.names_below("tank").unwrap(), ["tank"]);
    bench.settle();
    bench.check();
    bench.judge();
}

#[test]
fn what_a_rollback_destroys_is_kept_if_the_rollback_is_refused() {
    let bench = Bench::new("rollback refused");
    let datasets = bench.datasets();
    datasets.create_filesystem("tank/t", &[]).unwrap();
    for name in ["tank/t@1", "tank/t@2", "tank/t@3"] {
        datasets.snapshot(&[name], &[]).unwrap();
    }
    datasets
        .clone_snapshot("tank/t@3", "tank/clone", &[])
        .unwrap();
    let newer = ["tank/clone", "tank/t@3", "tank/t@2"];
    let refused = |names: &[&str], expected: Refusal| {
        let done = datasets.destroy_in_order(names, Some("tank/t@1"));
        assert_eq!(why(done), expected);
        assert!(newer.iter().all(|name| bench.exists(name)), "{expected:?}");
    };
    let open = datasets.open_head("tank/t").unwrap();
    refused(&newer, Refusal::Busy);
    drop(open);
    refused(&newer[..2], Refusal::NotTheLatest);
    datasets.hold(&["tank/t@2"], "keep").unwrap();
    refused(&newer, Refusal::IsHeld);
    datasets.release(&["tank/t@2"], "keep").unwrap();
    // A snapshot that is marked for destruction goes with its clone.
    datasets
        .destroy("tank/t@3", DestroyOptions { defer: true })
        .unwrap();
    datasets.destroy_in_order(&newer, Some("tank/t@1")).unwrap();
    datasets.rollback("tank/t@1").unwrap();
    assert!(!newer.iter().any(|name| bench.exists(name)));
    bench.settle();
    bench.check();
    bench.judge();
}

#[test]
fn a_rollback_beyond_a_refquota_or_a_reservation_is_refused() {
    let bench = Bench::new("rollback quota");
    let datasets = bench.datasets();
    datasets.create_filesystem("tank/t", &[]).unwrap();
    bench.write("tank/t", 5, 40);
    datasets.snapshot(&["tank/t@1"], &[]).unwrap();
    bench.free("tank/t", 5);
    datasets.snapshot(&["tank/t@2"], &[]).unwrap();
    bench.settle();
    let snapshot = Dataset::find(&bench.read_back(), "tank/t@1").unwrap();
    let size = snapshot.phys().referenced_bytes;
    let set = |name, value| datasets.set_properties("tank/t", &[number(name, value)]);
    set("refquota", size - 1).unwrap();
    // The newer snapshot is kept, because the rollback could not follow.
    let done = datasets.destroy_in_order(&["tank/t@2"], Some("tank/t@1"));
    assert_eq!(why(done), Refusal::NoSpace);
    assert!(bench.exists("tank/t@2"));
    datasets.destroy_in_order(&["tank/t@2"], None).unwrap();
    assert_eq!(why(datasets.rollback("tank/t@1")), Refusal::NoSpace);
    set("refquota", size).unwrap();
    datasets.rollback("tank/t@1").unwrap();
    // What only the head has would be reserved again.
    set("refquota", 0).unwrap();
    bench.write("tank/t", 7, 200);
    bench.settle();
    set("refreservation", 4 << 20).unwrap();
    set("quota", 5 << 20).unwrap();
    assert_eq!(why(datasets.rollback("tank/t@1")), Refusal::NoSpace);
    set("quota", 0).unwrap();
    datasets.rollback("tank/t@1").unwrap();
    bench.settle();
    bench.check();
    bench.judge();
}

#[test]
fn others_see_how_much_of_a_destroy_is_done() {
    let bench = Bench::new("destroy progress");
    let datasets = bench.datasets();
    datasets.create_filesystem("tank/t", &[]).unwrap();
    let names: Vec<String> = (0..600).map(|n| format!("tank/t@{n:03}")).collect();
    for name in &names {
        datasets.snapshot(&[name.as_str()], &[]).unwrap();
    }
    assert_eq!(datasets.destroy_progress(), None);
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let (first, rest) = all.split_at(300);
    let destroy: [&(dyn Fn() -> Result<(), DatasetError> + Sync); 2] = [
        &|| datasets.destroy_snapshots(first, DestroyOptions::default()),
        &|| datasets.destroy_in_order(rest, None),
    ];
    for destroy in destroy {
        let mut seen = BTreeSet::new();
        std::thread::scope(|scope| {
            let destroying = scope.spawn(destroy);
            while !destroying.is_finished() {
                seen.extend(datasets.destroy_progress());
            }
            destroying.join().unwrap().unwrap();
        });
        assert!(
            seen.iter()
                .all(|(done, total)| done <= total && *total == 300)
        );
        // The destroy lasts much longer than a look.
        assert!(seen.len() > 10, "{seen:?}");
        assert_eq!(datasets.destroy_progress(), None);
    }
    bench.settle();
    bench.check();
}
