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
use millpond_ondisk::{BlockId, Level, VDEV_DATA_START_BYTES};
use millpond_sim::{Seed, World};

const RECORD: u64 = 512;
/// Number of blocks below one indirect block of 128 KiB.
const SPAN: u64 = 1024;

fn write(pool: &Pool, name: &str, blocks: u64) {
    let files = pool.file_system("tank").unwrap();
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
    pool.sync().unwrap();
    let lost = {
        let committed = pool.committed().unwrap();
        let files = committed.dataset("tank").unwrap().file_system().unwrap();
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
