//! Files with unreadable indirect blocks.
//!
//! The rest of the file is usable, the file can be removed, and the pool keeps working.

use crate::sim;
use millpond_check::{CheckOptions, FindingKind, check_pool};
use millpond_dataset::PropertyValue;
use millpond_device::Device;
use millpond_engine::{
    Caller, FileError, NewLayout, NewLayout::Mirror, NewLayout::Single, NewMode, Pool, WriteAt,
};
use millpond_env::Tunable;
use millpond_env::mark;
use millpond_ondisk::{BlockId, Level, VDEV_DATA_START_BYTES};
use millpond_sim::{Seed, World};

const RECORD: u64 = 512;
/// Number of blocks below one indirect block of 128 KiB.
const SPAN: u64 = 1024;

fn write(pool: &Pool, name: &str, blocks: u64) {
    write_in(pool, "tank", name, blocks);
}

fn write_in(pool: &Pool, dataset: &str, name: &str, blocks: u64) {
    let files = pool.file_system(dataset).unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mut content = vec![0; (blocks * RECORD) as usize];
    Seed::new(blocks).fill(&mut content);
    let mode = NewMode::exactly(0o644);
    let (node, _) = (files.create(&caller, &root, name.as_bytes(), mode, false)).unwrap();
    files
        .write(&caller, &node, WriteAt::Offset(0), &content)
        .unwrap();
}

/// A pool with the file `other` and the file `big`, which has four indirect blocks.
///
/// One of these is lost on all disks.
fn damaged(world: &World, layout: NewLayout, disks: usize) -> Pool {
    let pool = sim::create(world, &[(layout, disks)], 128);
    let record = ("recordsize".to_owned(), PropertyValue::Number(RECORD));
    pool.datasets().set_properties("tank", &[record]).unwrap();
    write(&pool, "big", 4 * SPAN);
    write(&pool, "other", 10);
    lose_indirect_block(world, pool, "tank")
}

/// Loses an indirect block of the file `big` on all disks.
fn lose_indirect_block(world: &World, pool: Pool, dataset: &str) -> Pool {
    pool.sync().unwrap();
    let lost = {
        let committed = pool.committed().unwrap();
        let files = committed.dataset(dataset).unwrap().file_system().unwrap();
        let entries = files.root().unwrap().entries().unwrap();
        let big = entries
            .map(Result::unwrap)
            .find(|entry| &entry.name[..] == b"big");
        let node = files.node(big.unwrap().id).unwrap();
        node.object()
            .committed()
            .unwrap()
            .pointer(Level(1), BlockId(2))
            .unwrap()
    };
    pool.export().unwrap();
    for disk in world.disks() {
        for dva in lost.dvas() {
            let junk = vec![0x5a; lost.psize_bytes() as usize];
            disk.write(VDEV_DATA_START_BYTES + dva.offset_bytes, &junk)
                .unwrap();
        }
    }
    sim::open(world).unwrap()
}

fn leaks_told(pool: &Pool) -> usize {
    let history = pool.inner().committed().unwrap().history().unwrap();
    let records = history.unwrap().map(|record| format!("{record:?}"));
    records
        .filter(|record| record.contains("could not be freed"))
        .count()
}

fn one_file_is_lost_not_the_pool(layout: NewLayout, disks: usize) {
    let world = World::without_journal(31);
    let pool = damaged(&world, layout, disks);
    let caller = Caller::root();
    {
        let files = pool.file_system("tank").unwrap();
        let root = files.root().unwrap();
        let big = root.lookup(b"big").unwrap();
        // Whole records below the lost block: the write fails, not the next txg.
        let record = vec![7; RECORD as usize];
        let lost = WriteAt::Offset((2 * SPAN + 5) * RECORD);
        let refused = files.write(&caller, &big, lost, &record);
        assert!(
            matches!(&refused, Err(error) if error.is_failure()),
            "{refused:?}"
        );
        let good = WriteAt::Offset((3 * SPAN + 5) * RECORD);
        files.write(&caller, &big, good, &record).unwrap();
        pool.sync().unwrap();
        files.unlink(&root, b"big").unwrap();
    }
    pool.file_system("tank").unwrap().close_unused().unwrap();
    pool.sync().unwrap();
    write(&pool, "after", 20);
    pool.sync().unwrap();
    assert_eq!(leaks_told(&pool), 1);
    pool.export().unwrap();
    // After the next open nothing remains to be done, and the only error is the leaked space.
    let pool = sim::open(&world).unwrap();
    let files = pool.file_system("tank").unwrap();
    let root = files.root().unwrap();
    assert!(matches!(root.lookup(b"big"), Err(FileError::NotFound)));
    for name in ["other", "after"] {
        root.lookup(name.as_bytes()).unwrap();
    }
    drop((files, root));
    pool.export().unwrap();
    let read = sim::read(&world).unwrap();
    sim::verify(&read).unwrap();
    let report = check_pool(read.inner(), &CheckOptions::default()).unwrap();
    let mut kinds: Vec<FindingKind> = report.findings.iter().map(|finding| finding.kind).collect();
    kinds.dedup();
    // The space stays charged to the file system.
    let expected = [
        FindingKind::LeakedSpace,
        FindingKind::DatasetSpace,
        FindingKind::DirectorySpace,
    ];
    assert_eq!(kinds, expected, "{:?}", report.findings);
    assert_eq!(report.totals.leaked_bytes, SPAN * RECORD);
}

#[test]
fn an_unreadable_indirect_block_of_one_disk_costs_one_file() {
    one_file_is_lost_not_the_pool(Single, 1);
}

#[test]
fn an_unreadable_indirect_block_of_a_mirror_costs_one_file() {
    one_file_is_lost_not_the_pool(Mirror, 2);
}

fn number(pool: &Pool, property: &str) -> u64 {
    let view = pool.inner().committed().unwrap();
    match view
        .property(property)
        .unwrap()
        .and_then(|found| found.value)
    {
        Some(millpond_pool::properties::PropertyValue::Number(number)) => number,
        other => panic!("{property}: {other:?}"),
    }
}

fn sync_some(pool: &Pool) {
    for _ in 0..4 {
        pool.sync().unwrap();
    }
}

/// A destroyed dataset with an unreadable indirect block, and one that was destroyed after it.
#[test]
fn a_destroyed_dataset_that_cannot_be_read_holds_up_no_other_and_leaks_on_demand() {
    let _marks = [
        mark::expect("stuck-tree-moved-back"),
        mark::expect("destroyed-tree-leaks"),
    ];
    let world = World::without_journal(32);
    let pool = sim::create(&world, &[(Single, 1)], 128);
    let record = ("recordsize".to_owned(), PropertyValue::Number(RECORD));
    for name in ["tank/lost", "tank/next"] {
        let properties = [record.clone()];
        pool.datasets()
            .create_filesystem(name, &properties)
            .unwrap();
        write_in(&pool, name, "big", 4 * SPAN);
    }
    let pool = lose_indirect_block(&world, pool, "tank/lost");
    let used = pool.inner().space().pool().allocated_bytes;
    let whole = 4 * SPAN * RECORD;
    assert!(used > 2 * whole);
    for name in ["tank/lost", "tank/next"] {
        pool.datasets().destroy(name, Default::default()).unwrap();
    }
    sync_some(&pool);
    // Half of the first is free: what comes before the lost block.
    let left = number(&pool, "freeing");
    assert!((whole / 2..whole).contains(&left), "{left} of {whole}");
    let stuck = pool.datasets().stuck_freeing().unwrap();
    assert_eq!(stuck.datasets, 1);
    assert!(!stuck.reason.is_empty());
    pool.export().unwrap();
    // It is tried again, and nothing but it is left.
    let pool = sim::open(&world).unwrap();
    sync_some(&pool);
    assert_eq!((number(&pool, "freeing"), leaks_told(&pool)), (left, 0));
    assert_eq!(pool.datasets().stuck_freeing(), Some(stuck));
    assert!(world.env().tunables.set(Tunable::FreeLeakOnEio, 1));
    sync_some(&pool);
    assert_eq!(number(&pool, "freeing"), 0);
    assert_eq!(number(&pool, "leaked"), SPAN * RECORD);
    assert_eq!(pool.datasets().stuck_freeing(), None);
    assert_eq!(leaks_told(&pool), 1);
    pool.export().unwrap();
    let read = sim::read(&world).unwrap();
    sim::verify(&read).unwrap();
    let report = check_pool(read.inner(), &CheckOptions::default()).unwrap();
    let kinds: Vec<FindingKind> = report.findings.iter().map(|finding| finding.kind).collect();
    assert!(
        kinds.iter().all(|kind| *kind == FindingKind::LeakedSpace),
        "{:?}",
        report.findings
    );
    assert_eq!(report.totals.leaked_bytes, SPAN * RECORD);
}
