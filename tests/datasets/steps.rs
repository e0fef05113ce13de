//! Random sequences of operations.

use crate::bench::Bench;
use millpond_dataset::DestroyOptions;
use millpond_dataset::{DatasetError, PropertyValue};
use millpond_sim::Seed;

/// The state of the pool, as read back.
struct State {
    heads: Vec<String>,
    snapshots: Vec<String>,
    bookmarks: Vec<String>,
}

fn state_of(bench: &Bench) -> State {
    use millpond_dataset::Directory;
    let pool = bench.read_back();
    let mut state = State {
        heads: vec![],
        snapshots: vec![],
        bookmarks: vec![],
    };
    let mut open = vec![Directory::root(&pool).unwrap()];
    while let Some(directory) = open.pop() {
        open.extend(directory.children().unwrap());
        let head = directory.head().unwrap().unwrap();
        state.heads.push(directory.name().to_owned());
        for snapshot in head.snapshots().unwrap() {
            state.snapshots.push(snapshot.name().to_owned());
        }
        for mark in head.bookmarks().unwrap() {
            state
                .bookmarks
                .push(format!("{}#{}", directory.name(), mark.name));
        }
    }
    state.heads.sort();
    state.snapshots.sort();
    state.bookmarks.sort();
    state
}

/// Runs `count` random steps and recomputes all counters after each.
///
/// Returns the numbers of completed and refused steps.
pub fn run(bench: &Bench, seed: u64, count: u64) -> (u64, u64) {
    let mut rng = Seed::new(seed);
    let (mut done, mut refused) = (0, 0);
    let mut log: Vec<String> = vec![];
    for step in 0..count {
        let state = state_of(bench);
        let (text, outcome) = one(bench, &mut rng, &state, step);
        log.push(format!("{step}: {text}: {outcome:?}"));
        match outcome {
            Ok(()) => done += 1,
            Err(DatasetError::Pool(error)) => {
                panic!("seed {seed}: {error}\n{}", log.join("\n"))
            }
            Err(_) => refused += 1,
        }
        if rng.below(3) > 0 {
            bench.pool().sync().unwrap();
        }
        let faults = millpond_tests::recount::faults_of(&bench.read_back());
        assert!(
            faults.is_empty(),
            "seed {seed}:\n{}\n{}",
            log.join("\n"),
            faults.join("\n")
        );
    }
    (done, refused)
}

fn one(
    bench: &Bench,
    rng: &mut Seed,
    state: &State,
    step: u64,
) -> (String, Result<(), DatasetError>) {
    let datasets = bench.datasets();
    let head = rng.choose(&state.heads).unwrap().clone();
    let snapshot = rng.choose(&state.snapshots).cloned();
    let bookmark = rng.choose(&state.bookmarks).cloned();
    let missing = || {
        snapshot
            .clone()
            .unwrap_or_else(|| format!("{}@none", bench.root()))
    };
    let heads_max = bench.heads_at_first + 8;
    match rng.below(28) {
        0 | 1 if state.heads.len() < heads_max => {
            let name = format!("{head}/f{step}");
            (
                format!("create {name}"),
                datasets.create_filesystem(&name, &[]),
            )
        }
        2..=7 => {
            let (seed, blocks) = (rng.below(1000), 1 + rng.below(12));
            let outcome = bench.try_write(&head, seed, blocks);
            (format!("write {head} {seed} {blocks}"), outcome)
        }
        8 | 9 => {
            let seed = rng.below(1000);
            bench.free(&head, seed);
            (format!("free {head} {seed}"), Ok(()))
        }
        10..=13 => {
            let name = format!("{head}@s{step}");
            (format!("snapshot {name}"), datasets.snapshot(&[&name], &[]))
        }
        14 => {
            let name = format!("{}@r{step}", bench.root());
            (
                format!("snapshot -r {name}"),
                datasets.snapshot_recursively(&name),
            )
        }
        15 | 16 if state.heads.len() < heads_max => {
            let (from, name) = (missing(), format!("{}/c{step}", bench.root()));
            (
                format!("clone {from} {name}"),
                datasets.clone_snapshot(&from, &name, &[]),
            )
        }
        17..=19 => {
            let name = missing();
            let options = DestroyOptions {
                defer: rng.below(3) == 0,
            };
            (
                format!("destroy {name} {options:?}"),
                datasets.destroy(&name, options),
            )
        }
        20 | 21 => (
            format!("destroy {head}"),
            datasets.destroy(&head, DestroyOptions::default()),
        ),
        22 => (format!("promote {head}"), datasets.promote(&head)),
        23 => {
            let name = missing();
            (format!("rollback {name}"), datasets.rollback(&name))
        }
        24 => {
            let which = rng.below(4) as usize;
            // Smaller quotas would refuse almost every step.
            let size = rng.below(40) << if which < 2 { 14 } else { 21 };
            let change = |name: &str| (name.to_owned(), PropertyValue::Number(size));
            let name = ["refreservation", "reservation", "quota", "refquota"][which];
            (
                format!("set {name}={size} {head}"),
                datasets.set_properties(&head, &[change(name)]),
            )
        }
        25 => {
            let to = format!("{}/n{step}", rng.choose(&state.heads).unwrap());
            (format!("rename {head} {to}"), datasets.rename(&head, &to))
        }
        26 => {
            let name = missing();
            let mark = format!("{head}#m{step}");
            (
                format!("bookmark {name} {mark}"),
                datasets.bookmark(&name, &mark),
            )
        }
        _ => match bookmark {
            Some(mark) if rng.below(2) == 0 => (
                format!("destroy {mark}"),
                datasets.destroy_bookmarks(&[&mark]),
            ),
            _ => {
                let name = missing();
                if rng.below(2) == 0 {
                    (format!("hold {name}"), datasets.hold(&[&name], "keep"))
                } else {
                    (
                        format!("release {name}"),
                        datasets.release(&[&name], "keep"),
                    )
                }
            }
        },
    }
}
