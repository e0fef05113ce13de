//! Pools whose command history is lost on all disks. They keep working; new records are dropped.

use crate::sim;
use millpond_block::BlockAddress;
use millpond_check::{CheckOptions, FindingKind, check_pool};
use millpond_engine::{NewLayout, Pool};
use millpond_env::mark;
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{BlockId, Dva, Level};
use millpond_sim::World;

/// Where the block is stored that holds the records.
fn records(pool: &Pool) -> Vec<Dva> {
    let committed = pool.inner().committed().unwrap();
    let id = committed.directory_object(key::HISTORY).unwrap();
    let object = committed.mos().object(id).unwrap();
    let pointer = object.pointer(Level(0), BlockId(0)).unwrap();
    let store = pool.inner().store();
    store.extents(&pointer, BlockAddress::default()).unwrap()
}

#[test]
fn a_pool_with_a_lost_history_keeps_working() {
    let _mark = mark::expect("history-lost");
    let world = World::new(18);
    let pool = sim::create(&world, &[(NewLayout::Mirror, 2)], 128);
    pool.datasets().snapshot(&["tank@before"], &[]).unwrap();
    pool.sync().unwrap();
    let lost = records(&pool);
    pool.export().unwrap();
    sim::lose(&world, &lost);

    let pool = sim::open(&world).unwrap();
    let tasks = pool.datasets();
    tasks.snapshot(&["tank@after"], &[]).unwrap();
    tasks
        .destroy_snapshots(&["tank@before"], Default::default())
        .unwrap();
    pool.export().unwrap();
    let pool = sim::open(&world).unwrap();
    pool.export().unwrap();
    let read = sim::read(&world).unwrap();
    let names = read.dataset("tank").unwrap().snapshots().unwrap();
    let names: Vec<String> = names.iter().map(|one| format!("{one:?}")).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    let report = check_pool(read.inner(), &CheckOptions::default()).unwrap();
    let kinds: Vec<FindingKind> = report.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [FindingKind::History], "{:?}", report.findings);
}
