//! Runs every operation with each of its device requests failing, one at a time, until no request fails.
//!
//! Without redundancy the operation may be refused, and a failed write suspends the pool. The pool is then
//! opened again: it contains all of the operation or nothing of it, is consistent, and the operation can be
//! completed. On a mirror, the operation succeeds although one side fails.
//!
//! By default some requests are tested, with `MILLPOND_WRITING_ALL` all.

use crate::exhaustive::{files_in, is_all, judge};
use crate::sim;
use millpond_check::{CheckOptions, Progress};
use millpond_dataset::PermissionGrant;
use millpond_engine::{
    Caller, DatasetKind, DirEntryRef, FileSystem, NewLayout, NewLayout::Mirror, NewLayout::Single,
    NewMode, Pool, PropertyValue, RenameMode, SetAttributes, View, WriteAt,
};
use millpond_env::mark;
use millpond_ondisk::dsl::{PermissionHolder, PermissionReach};
use millpond_sim::{Content, FaultPlan, Seed, World};
use millpond_tests::workload::text;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

/// By default, one of this many requests fails.
const EVERY_DAY: usize = 37;

/// An operation: its name and its function.
pub(crate) type Operation = (&'static str, fn(&Pool) -> Result<(), String>);

fn to_text<T>(outcome: Result<T, impl Display>) -> Result<T, String> {
    outcome.map_err(|error| error.to_string())
}

fn number(name: &str, value: u64) -> (String, PropertyValue) {
    (name.to_owned(), PropertyValue::Number(value))
}

pub(crate) fn write(
    files: &Arc<FileSystem>,
    name: &[u8],
    length: usize,
    factor: usize,
) -> Result<(), String> {
    let root = to_text(files.root())?;
    let caller = Caller::root();
    let node = match root.lookup(name) {
        Ok(node) => node,
        Err(_) => to_text(files.create(&caller, &root, name, NewMode::exactly(0o600), true))?.0,
    };
    let bytes: Vec<u8> = (0..length).map(|at| ((at * factor) >> 5) as u8).collect();
    to_text(files.write(&caller, &node, WriteAt::Offset(0), &bytes))?;
    Ok(())
}

/// Permissions of a user at a dataset.
fn grant(id: u64, permissions: &[&str]) -> PermissionGrant {
    PermissionGrant::new(
        PermissionHolder::User(id),
        PermissionReach::Local,
        permissions,
    )
}

pub(crate) const OPERATIONS: &[Operation] = &[
    ("create a file system", |pool| {
        let properties = [number("compression", 15), text("org.example:note", "new")];
        to_text(pool.datasets().create_filesystem("tank/new", &properties))
    }),
    ("create a volume", |pool| {
        to_text(
            pool.datasets()
                .create_volume("tank/volume", &[number("volsize", 1 << 20)]),
        )
    }),
    ("snapshot", |pool| {
        to_text(
            pool.datasets()
                .snapshot(&["tank@new", "tank/a@new", "tank/b@new"], &[]),
        )
    }),
    ("clone", |pool| {
        to_text(
            pool.datasets()
                .clone_snapshot("tank/a@old", "tank/clone", &[]),
        )
    }),
    ("promote", |pool| {
        to_text(pool.datasets().promote("tank/cloned"))
    }),
    ("roll back", |pool| {
        to_text(pool.datasets().rollback("tank/b@old"))
    }),
    ("rename", |pool| {
        to_text(pool.datasets().rename("tank/a", "tank/b/a"))
    }),
    ("set properties", |pool| {
        let changes = [
            number("quota", 20 << 20),
            text("org.example:note", "changed"),
        ];
        to_text(pool.datasets().set_properties("tank/a", &changes))
    }),
    ("hold", |pool| {
        to_text(pool.datasets().hold(&["tank/a@old"], "kept"))
    }),
    ("bookmark", |pool| {
        to_text(pool.datasets().bookmark("tank/a@old", "tank/a#mark"))
    }),
    ("destroy a file system", |pool| {
        to_text(pool.datasets().destroy("tank/cloned", Default::default()))
    }),
    ("destroy a snapshot", |pool| {
        to_text(pool.datasets().destroy("tank/b@old", Default::default()))
    }),
    ("grant permissions", |pool| {
        let grants = [grant(7, &["send", "@set"]), grant(8, &["diff"])];
        to_text(pool.datasets().allow("tank/a", &grants))
    }),
    ("remove permissions", |pool| {
        to_text(pool.datasets().unallow("tank", true, &[grant(8, &[])]))
    }),
    ("write a file", |pool| {
        let files = to_text(pool.file_system("tank/b"))?;
        write(&files, b"written", 200_000, 11)?;
        to_text(pool.sync())
    }),
    ("fsync a file", |pool| {
        let files = to_text(pool.file_system("tank/b"))?;
        write(&files, b"synced", 9_000, 13)?;
        let node = to_text(to_text(files.root())?.lookup(b"synced"))?;
        to_text(files.fsync(&node))
    }),
    ("rename over a file", |pool| {
        let files = to_text(pool.file_system("tank/b"))?;
        let root = to_text(files.root())?;
        let (from, to): (&[u8], &[u8]) = (b"one", b"two");
        let place = |name| DirEntryRef {
            directory: &root,
            name,
        };
        let mode = RenameMode::Replace;
        to_text(files.rename(&Caller::root(), place(from), place(to), mode))?;
        to_text(files.reap())?;
        to_text(pool.sync())
    }),
    ("cut a file", |pool| {
        let files = to_text(pool.file_system("tank/b"))?;
        let node = to_text(to_text(files.root())?.lookup(b"one"))?;
        let set = SetAttributes {
            size_bytes: Some(1000),
            ..SetAttributes::default()
        };
        to_text(files.set_attributes(&Caller::root(), &node, &set))?;
        to_text(pool.sync())
    }),
];

pub(crate) fn prepared(tops: &[(NewLayout, usize)]) -> Vec<Content> {
    let world = World::without_journal(21);
    let pool = sim::create(&world, tops, 64);
    let datasets = pool.datasets();
    datasets.create_filesystem("tank/a", &[]).unwrap();
    datasets.create_filesystem("tank/b", &[]).unwrap();
    let write_all = |name: &str, factor| {
        let files = pool.file_system(name).unwrap();
        write(&files, b"one", 300_000, factor).unwrap();
        write(&files, b"two", 5_000, factor).unwrap();
    };
    write_all("tank/a", 3);
    write_all("tank/b", 5);
    datasets
        .snapshot(&["tank/a@old", "tank/b@old"], &[])
        .unwrap();
    write_all("tank/b", 7);
    datasets
        .clone_snapshot("tank/a@old", "tank/cloned", &[])
        .unwrap();
    write_all("tank/cloned", 9);
    for dataset in ["tank", "tank/b"] {
        datasets
            .allow(dataset, &[grant(8, &["hold", "@set"])])
            .unwrap();
    }
    pool.export().unwrap();
    world.disks().iter().map(|disk| disk.content()).collect()
}

pub(crate) fn world_of(contents: &[Content]) -> World {
    let world = World::without_journal(22);
    for content in contents {
        drop(world.disk_with(64 << 20, 512, content.clone()));
    }
    world
}

/// The visible state of a pool: datasets, some of their properties, snapshots, bookmarks, holds, files.
pub(crate) type State = BTreeMap<String, String>;

const TOLD: &[&str] = &[
    "compression",
    "quota",
    "origin",
    "org.example:note",
    "volsize",
];

fn state_of(pool: &View) -> Result<State, millpond_engine::Error> {
    let mut state = State::new();
    for dataset in pool.datasets() {
        let dataset = dataset?;
        let mut all = dataset.snapshots()?;
        for bookmark in dataset.bookmarks()? {
            state.insert(
                format!("{}#{}", dataset.name(), bookmark.name),
                String::new(),
            );
        }
        all.push(dataset);
        for one in all {
            let kind = one.kind()?;
            let mut words = format!("{kind:?}");
            for property in one.literal_properties()? {
                if TOLD.contains(&property.name.as_str()) {
                    words += &format!(" {}={}", property.name, property.value);
                }
            }
            if !one.name().contains('@') {
                let table = one.inner().directory().permissions()?;
                let grants: Vec<_> = table.grants().collect();
                words += &format!(" grants {grants:?}");
            } else {
                let holds = one.holds()?.into_iter().map(|hold| hold.tag);
                words += &format!(" held by {:?}", holds.collect::<Vec<_>>());
            }
            if kind == DatasetKind::Filesystem {
                for (name, bytes) in files_in(&one)? {
                    let sum: u64 = bytes
                        .iter()
                        .zip(1u64..)
                        .map(|(a, b)| u64::from(*a) * b)
                        .sum();
                    let name = String::from_utf8_lossy(&name).into_owned();
                    words += &format!(" {name}:{}:{sum}", bytes.len());
                }
            }
            state.insert(one.name().to_owned(), words);
        }
    }
    Ok(state)
}

pub(crate) fn sound(world: &World, what: &str) -> State {
    let read = sim::read(world).unwrap_or_else(|error| panic!("{what}: {error}"));
    let report = read
        .check(&CheckOptions::default(), &Progress::default(), &|_| {})
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(report.is_clean(), "{what}: {:#?}", report.findings);
    state_of(&read).unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Exports the pool, so that all pending work is written.
fn settled(pool: Pool, what: &str) {
    pool.export()
        .unwrap_or_else(|error| panic!("{what}: export: {error}"));
}

fn sweep(tops: &[(NewLayout, usize)]) {
    let contents = prepared(tops);
    let before = sound(&world_of(&contents), "prepared");
    for operation in OPERATIONS {
        sweep_one(tops, &contents, &before, operation);
    }
}

fn sweep_one(
    tops: &[(NewLayout, usize)],
    contents: &[Content],
    before: &State,
    operation: &Operation,
) {
    let (name, act) = operation;
    let has_redundancy = tops.iter().any(|(layout, _)| *layout != Single);
    let after = {
        let world = world_of(contents);
        let pool = sim::open(&world).unwrap();
        act(&pool).unwrap_or_else(|error| panic!("{name}: {error}"));
        settled(pool, name);
        sound(&world, name)
    };
    assert_ne!(before, &after, "{name} does nothing");
    let step = if is_all() { 1 } else { EVERY_DAY };
    let (mut refused, mut lived, mut tried) = (0, 0, 0);
    for good in (0..).step_by(step) {
        let what = format!("{name}, request {good} fails");
        let world = world_of(contents);
        let pool = sim::open(&world).unwrap();
        let disk = world.disks()[0].clone();
        disk.set_faults(Some(FaultPlan::new(Seed::new(1)).failing_once_after(good)));
        let outcome = act(&pool);
        let has_failed = disk.broken_promises() > 0;
        disk.set_faults(None);
        if !has_failed {
            outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
            break;
        }
        tried += 1;
        refused += usize::from(outcome.is_err());
        if has_redundancy {
            outcome
                .clone()
                .unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        if outcome.is_err() && pool.inner().suspension().is_none() {
            // The pool continues to work as if the operation had not been tried.
            act(&pool).unwrap_or_else(|error| panic!("{what}: at once again: {error}"));
            settled(pool, &what);
            assert_eq!(sound(&world, &what), after, "{what}, at once again");
            lived += 1;
            continue;
        }
        drop(pool);
        let found = sound(&world, &what);
        if outcome.is_ok() {
            let pool = sim::open(&world).unwrap_or_else(|error| panic!("{what}: {error}"));
            settled(pool, &what);
            assert_eq!(sound(&world, &what), after, "{what}, acknowledged");
        } else {
            assert!(
                &found == before || found == after,
                "{what}: half of it: {found:#?}"
            );
            let pool = sim::open(&world).unwrap_or_else(|error| panic!("{what}: {error}"));
            let now = state_of(&pool.committed().unwrap()).unwrap();
            if now != after {
                act(&pool).unwrap_or_else(|error| panic!("{what}: again: {error}"));
            }
            settled(pool, &what);
            assert_eq!(sound(&world, &what), after, "{what}, done again");
        }
        let is_judged = match is_all() {
            true => tried % 60 == 3,
            false => tried == 1 && *name == "rename",
        };
        if is_judged {
            judge(&world, &what);
        }
    }
    println!(
        "{name}, {tops:?}: {tried} requests failed, {refused} times refused, {lived} times without an end"
    );
    assert!(tried > 0, "{name}: no request failed");
}

#[test]
fn without_redundancy_a_failed_operation_is_all_or_nothing() {
    sweep(&[(Single, 1)]);
}

#[test]
fn one_failed_request_on_a_mirror_fails_no_operation() {
    sweep(&[(Mirror, 2)]);
}

#[test]
fn where_the_log_cannot_be_written_fsync_waits_for_its_txg() {
    let _mark = mark::expect("log-given-up");
    let contents = prepared(&[(Single, 1)]);
    for good in 0..3 {
        let what = format!("request {good} of an fsync fails");
        let world = world_of(&contents);
        let pool = sim::open(&world).unwrap();
        let files = pool.file_system("tank/b").unwrap();
        let fsync = |length| {
            write(&files, b"synced", length, 13).unwrap();
            let node = files.root().unwrap().lookup(b"synced").unwrap();
            to_text(files.fsync(&node))
        };
        // The first call creates a chain, the second writes to it.
        fsync(9_000).unwrap();
        fsync(10_000).unwrap();
        let disk = world.disks()[0].clone();
        disk.set_faults(Some(FaultPlan::new(Seed::new(1)).failing_once_after(good)));
        let outcome = fsync(11_000);
        disk.set_faults(None);
        drop((files, pool));
        if outcome.is_ok() {
            let pool = sim::open(&world).unwrap_or_else(|error| panic!("{what}: {error}"));
            let files = pool.file_system("tank/b").unwrap();
            let node = files.root().unwrap().lookup(b"synced").unwrap();
            assert_eq!(node.stat().unwrap().size_bytes, 11_000, "{what}");
            drop((node, files));
            settled(pool, &what);
        }
        sound(&world, &what);
    }
}
