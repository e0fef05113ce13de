//! Changes of datasets as channel programs make them: many in one txg, each on top of those before.

use crate::cloning::judged_by_zdb;
use crate::sim;
use millpond_check::{CheckOptions, check_pool};
use millpond_dataset::{ProgramDataset, ProgramMode, ProgramTasks, Refused};
use millpond_engine::{
    Caller, DatasetError, NewLayout, NewMode, Pool, PoolError, Refusal, WriteAt,
};
use millpond_sim::{Seed, World, noise};
use std::collections::BTreeMap;

const HEADS: [&str; 4] = ["tank/a", "tank/a/b", "tank/clone", "tank/other"];
const SHORT: [&str; 3] = ["x", "y", "z"];

fn write(pool: &Pool, head: &str, seed: u64) {
    let files = pool.file_system(head).unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let name = format!("f{}", seed % 3);
    let mode = NewMode::exactly(0o644);
    let (node, _) = (files.create(&caller, &root, name.as_bytes(), mode, false)).unwrap();
    let content = noise(seed, 20_000);
    files
        .write(&caller, &node, WriteAt::Offset(0), &content)
        .unwrap();
}

/// Kinds of changes, and how often each was made and refused.
type Done = BTreeMap<String, (u32, u32)>;

/// Makes one random change, after it was checked: the check and the change must agree.
fn one(tasks: &ProgramTasks<'_>, choices: &mut Seed) -> Result<(String, Refused), PoolError> {
    let head = HEADS[choices.below(HEADS.len() as u64) as usize];
    let short = SHORT[choices.below(SHORT.len() as u64) as usize];
    let other = SHORT[choices.below(SHORT.len() as u64) as usize];
    let snapshot = format!("{head}@{short}");
    let bookmark = format!("{head}#{other}");
    let what = choices.below(12);
    let make = |mode| match what {
        0..=3 => tasks.snapshot(mode, &snapshot),
        4 | 5 => tasks.destroy(mode, &snapshot, choices_defer(short)),
        6 => tasks.promote(mode, head),
        7 => tasks.rollback(mode, head),
        8 => tasks.rename_snapshot(mode, head, short, other),
        9 => tasks.bookmark(mode, &snapshot, &bookmark),
        10 => tasks.set_user_property(mode, head, "user:p", short),
        _ => tasks.destroy(mode, head, false),
    };
    let name = format!("{what} {snapshot} {other}");
    let checked = make(ProgramMode::Check)?;
    let changed = make(ProgramMode::Change)?;
    // Whether a snapshot is being read is only known when it is closed.
    let is_busy = |refused: &Refused| {
        matches!(
            refused,
            Err(DatasetError::Refused {
                why: Refusal::Busy,
                ..
            })
        )
    };
    if !is_busy(&changed) {
        assert_eq!(checked, changed, "{name}");
    }
    Ok((name, changed))
}

fn choices_defer(short: &str) -> bool {
    short == "z"
}

/// All datasets and snapshots, as a program lists them.
fn listed(tasks: &ProgramTasks<'_>) -> Vec<String> {
    let mut found = vec![];
    let mut open = vec!["tank".to_owned()];
    while let Some(head) = open.pop() {
        assert!(matches!(
            tasks.kind(&head),
            Ok(Some(ProgramDataset::FileSystem))
        ));
        open.extend(tasks.children(&head).unwrap());
        found.extend(tasks.snapshots(&head).unwrap());
        found.extend(tasks.bookmarks(&head).unwrap());
        found.push(head);
    }
    found.sort();
    found
}

/// All datasets and snapshots of a committed state.
fn committed(pool: &Pool) -> Vec<String> {
    let view = pool.committed().unwrap();
    let mut found = vec![];
    for dataset in view.datasets() {
        let dataset = dataset.unwrap();
        found.push(dataset.name().to_owned());
        let snapshots = dataset.snapshots().unwrap();
        found.extend(snapshots.iter().map(|one| one.name().to_owned()));
        let marks = dataset.inner().bookmarks().unwrap();
        found.extend(
            marks
                .iter()
                .map(|mark| format!("{}#{}", dataset.name(), mark.name)),
        );
    }
    found.sort();
    found
}

fn random_programs(seed: u64, rounds: u64, done: &mut Done) {
    let world = World::without_journal(seed);
    let mut choices = Seed::new(seed);
    let mut pool = sim::create(&world, &[(NewLayout::Mirror, 2)], 128);
    for round in 0..rounds {
        for (at, head) in HEADS.iter().enumerate() {
            let is_there = pool.committed().unwrap().dataset(head).is_ok();
            if !is_there {
                let tasks = pool.datasets();
                let made = match (at, tasks.snapshot(&["tank/a@x"], &[])) {
                    (2, _) => tasks.clone_snapshot("tank/a@x", head, &[]),
                    _ => tasks.create_filesystem(head, &[]),
                };
                let _ = made;
            }
            if pool.committed().unwrap().dataset(head).is_ok() {
                write(&pool, head, seed * 1000 + round * 10 + at as u64);
                let _ = pool.file_system(head).map(|files| files.close_unused());
            }
        }
        let count = 1 + choices.below(12);
        let (steps, names) = pool
            .datasets()
            .run_program(|tasks| {
                let mut steps = vec![];
                for _ in 0..count {
                    steps.push(one(tasks, &mut choices)?);
                }
                Ok((steps, listed(tasks)))
            })
            .unwrap();
        for (name, outcome) in &steps {
            let kind = name.split(' ').next().unwrap().to_owned();
            let sums = done.entry(kind).or_default();
            match outcome {
                Ok(()) => sums.0 += 1,
                Err(_) => sums.1 += 1,
            }
        }
        assert_eq!(
            names,
            committed(&pool),
            "seed {seed}, round {round}: {steps:#?}"
        );
        pool.export().unwrap();
        let read = sim::read(&world).unwrap();
        sim::verify(&read).unwrap();
        let report = check_pool(read.inner(), &CheckOptions::default()).unwrap();
        assert!(
            report.findings.is_empty(),
            "seed {seed}, round {round}: {steps:#?} {:#?}",
            report.findings
        );
        drop(read);
        if round % 8 == 7 {
            judged_by_zdb(&world, &format!("seed {seed}, round {round}"));
        }
        pool = sim::open(&world).unwrap();
    }
    pool.export().unwrap();
}

#[test]
fn many_changes_in_one_txg_leave_a_sound_pool() {
    let mut done = Done::new();
    for seed in 1..=4 {
        random_programs(seed, 24, &mut done);
    }
    // Each kind was made and, all but properties, refused.
    assert_eq!(done.len(), 12, "{done:?}");
    for (kind, (made, refused)) in &done {
        assert!(
            *made > 0 && (kind == "10" || *refused > 0),
            "{kind}: {done:?}"
        );
    }
}
