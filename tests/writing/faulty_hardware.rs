//! Hardware that damages data.
//!
//! Memory flips bits before the write, or a controller corrupts everything on its side.

use crate::sim;
use millpond_engine::{
    Caller, NewLayout, NewLayout::Mirror, NewLayout::Raidz, NewLayout::Single, NewMode, Pool, View,
    WriteAt,
};
use millpond_sim::{Fault, FaultPlan, FaultyMemory, Scope, Seed, World};
use millpond_tests::workload::Life;
use millpond_verify::{Progress, VerifyReport};
use std::collections::{BTreeMap, BTreeSet};

type Files = BTreeMap<String, Vec<u8>>;

/// Writes files of one record each, with incompressible data.
fn write(pool: &Pool, files: &mut Files, names: impl Iterator<Item = String>) {
    let system = pool.file_system("tank").unwrap();
    let (root, caller) = (system.root().unwrap(), Caller::root());
    for name in names {
        let mut content = vec![0; 128 << 10];
        Seed::new(files.len() as u64 + 99).fill(&mut content);
        let mode = NewMode::exactly(0o644);
        let (node, _) = system
            .create(&caller, &root, name.as_bytes(), mode, false)
            .unwrap();
        let whole = WriteAt::Offset(0);
        system.write(&caller, &node, whole, &content).unwrap();
        files.insert(name, content);
    }
    pool.sync().unwrap();
}

/// Returns the unreadable files. Every readable file must be correct.
fn damaged(pool: &View, files: &Files) -> BTreeSet<String> {
    let system = pool.dataset("tank").and_then(|it| it.file_system());
    let system = system.unwrap();
    let mut damaged = BTreeSet::new();
    let mut met = 0;
    for entry in system.root().unwrap().entries().unwrap() {
        let entry = entry.unwrap();
        let name = String::from_utf8(entry.name.to_vec()).unwrap();
        let mut content = vec![0; 128 << 10];
        let node = system.node(entry.id).unwrap();
        met += 1;
        match node.read(0, &mut content) {
            Ok(count) => assert!(content[..count] == files[&name], "{name} reads otherwise"),
            Err(_) => assert!(damaged.insert(name)),
        }
    }
    assert_eq!(met, files.len());
    damaged
}

fn verified(pool: &View) -> VerifyReport {
    let progress = Progress::default();
    pool.verify(&progress, &|_| {}).unwrap()
}

fn named(what: &'static str, count: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |number| format!("{what}{number}"))
}

fn memory_that_flips(layout: (NewLayout, usize)) {
    let world = World::without_journal(21);
    let pool = sim::create(&world, &[layout], 128);
    let mut files = Files::new();
    write(&pool, &mut files, named("before", 10));
    world.set_memory(Some(FaultyMemory {
        seed: 4,
        per_million: 300_000,
        bytes_min: 100_000,
    }));
    write(&pool, &mut files, named("amid", 30));
    world.set_memory(None);
    pool.export().unwrap();
    let lost = damaged(&sim::read(&world).unwrap(), &files);
    // Each side got the same wrong bytes; each file is one block.
    assert_eq!(world.flips(), (lost.len() * layout.1) as u64);
    assert!((3..20).contains(&lost.len()), "{lost:?}");
    assert!(lost.iter().all(|name| name.starts_with("amid")));
    // No wrong side is copied over the other, and new writes next to it are correct.
    for round in ["then", "later"] {
        let pool = sim::open(&world).unwrap();
        let system = pool.file_system("tank").unwrap();
        let root = system.root().unwrap();
        for name in files.keys() {
            let node = root.lookup(name.as_bytes()).unwrap();
            let mut content = vec![0; 128 << 10];
            let read = node.read(0, &mut content);
            assert_eq!(read.is_err(), lost.contains(name), "{name}");
            assert!(read.is_err() || content == files[name]);
        }
        drop((system, root));
        write(&pool, &mut files, named(round, 5));
        pool.export().unwrap();
        let read = sim::read(&world).unwrap();
        assert_eq!(damaged(&read, &files), lost);
        let report = verified(&read);
        let found = (report.lost, report.repairable, report.invalid);
        assert_eq!(found, (lost.len() as u64, 0, 0));
    }
    // Files that are written again are readable.
    let pool = sim::open(&world).unwrap();
    let system = pool.file_system("tank").unwrap();
    let root = system.root().unwrap();
    for name in &lost {
        system.unlink(&root, name.as_bytes()).unwrap();
        files.remove(name);
    }
    drop((system, root));
    write(&pool, &mut files, lost.iter().cloned());
    pool.export().unwrap();
    let read = sim::read(&world).unwrap();
    assert!(damaged(&read, &files).is_empty());
    assert!(verified(&read).is_clean());
}

#[test]
fn a_bit_flipped_before_one_disk_write_is_found() {
    memory_that_flips((Single, 1));
}

#[test]
fn a_bit_flipped_before_both_mirror_writes_is_found() {
    memory_that_flips((Mirror, 2));
}

/// Damages all transfers in both directions, including labels.
fn damaging(seed: u64) -> FaultPlan {
    FaultPlan::new(Seed::new(seed))
        .with(Scope::Writes, Fault::Corrupt, 1_000_000)
        .with(Scope::Reads, Fault::Corrupt, 1_000_000)
}

fn a_controller_that_damages(shape: &str, layout: (NewLayout, usize), its: &[usize]) {
    let world = World::without_journal(22);
    let pool = sim::create(&world, &[layout], 128);
    let mut life = Life::new("tank", shape, 6);
    life.steps(&pool, 30);
    pool.sync().unwrap();
    let disks = world.disks();
    let behind: Vec<_> = its.iter().map(|number| &disks[*number]).collect();
    for disk in &behind {
        disk.set_faults(Some(damaging(disk.number() as u64)));
    }
    life.steps(&pool, 30);
    pool.sync().unwrap();
    life.compare(&pool.committed().unwrap(), shape);
    pool.export().unwrap();
    assert!(behind.iter().all(|disk| disk.broken_promises() > 50));
    // A system that opens the pool through the controller.
    life.compare(&sim::read(&world).unwrap(), &format!("{shape}, reopened"));
    let pool = sim::open(&world).unwrap();
    life.steps(&pool, 30);
    pool.export().unwrap();
    // With the side absent, and with a replacement.
    for is_absent in [true, false] {
        for disk in &behind {
            disk.set_faults(None);
            disk.set_absent(is_absent);
        }
        let read = sim::read(&world).unwrap();
        life.compare(&read, &format!("{shape}, absent: {is_absent}"));
        let report = verified(&read);
        assert_eq!((report.lost, report.invalid), (0, 0), "{shape}");
        let blamed = report.leaves.iter().filter(|(_, leaf)| leaf.wrong > 0);
        let blamed: Vec<usize> = blamed.map(|(number, _)| *number as usize).collect();
        assert!(
            blamed.iter().all(|number| its.contains(number)),
            "{blamed:?}"
        );
    }
    let pool = sim::open(&world).unwrap();
    life.steps(&pool, 30);
    pool.export().unwrap();
    life.compare(&sim::read(&world).unwrap(), &format!("{shape}, gone on"));
}

#[test]
fn a_controller_that_corrupts_one_mirror_side_is_survived() {
    a_controller_that_damages("mirror, faulty side", (Mirror, 2), &[1]);
}

#[test]
fn a_controller_that_corrupts_two_raidz2_disks_is_survived() {
    a_controller_that_damages("raidz2, two faulty", (Raidz(2), 5), &[0, 3]);
}
