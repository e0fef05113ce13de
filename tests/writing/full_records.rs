//! Large records in almost full pools: what a txg writes fits, and only what takes further space waits for a txg.

use crate::full::{create, is_no_space};
use crate::rig::Rig;
use millpond_engine::{Caller, FileSystem, Node, Pool, PropertyValue, WriteAt};
use millpond_env::mark;
use millpond_sim::noise;
use std::sync::{Arc, Barrier};

const MIB: u64 = 1 << 20;
const RECORD: u64 = 16 * MIB;

fn available(files: &FileSystem, node: &Node) -> u64 {
    let stat = files.stat_file_system(node).unwrap();
    stat.blocks_free * stat.block_bytes
}

fn write(files: &FileSystem, node: &Node, at: u64, bytes: &[u8]) {
    (files.write(&Caller::root(), node, WriteAt::Offset(at), bytes)).unwrap();
}

/// A file system with records of `record` bytes, and a file of `bytes` bytes in it.
fn file_of_records(pool: &Pool, record: u64, bytes: u64) -> (Arc<FileSystem>, Node) {
    let property = ("recordsize".to_owned(), PropertyValue::Number(record));
    (pool.datasets())
        .create_filesystem("tank/records", &[property])
        .unwrap();
    let files = pool.file_system("tank/records").unwrap();
    let node = create(&files, "f").unwrap();
    for at in (0..bytes).step_by(4 << 20) {
        write(&files, &node, at, &noise(at, 4 << 20));
        if (at + (4 << 20)).is_multiple_of(RECORD) {
            pool.sync().unwrap();
        }
    }
    (files, node)
}

/// Writes another file until `left` bytes are available.
fn fill(pool: &Pool, left: u64) {
    let files = pool.file_system("tank").unwrap();
    let node = create(&files, "filler").unwrap();
    let mut end = 0;
    while available(&files, &node) > left {
        write(&files, &node, end, &noise(end, MIB as usize));
        end += MIB;
        if end.is_multiple_of(4 * MIB) {
            pool.sync().unwrap();
        }
    }
    for _ in 0..3 {
        pool.sync().unwrap();
    }
}

fn judge(rig: &Rig, pool: Pool) {
    pool.export().unwrap();
    rig.judge("tank");
}

#[test]
fn further_changes_of_a_record_wait_for_no_txg() {
    let _mark = mark::expect("blocks-dirty-already");
    let rig = Rig::new(1, 512);
    let pool = rig.stripe("tank").create().unwrap();
    let (files, node) = file_of_records(&pool, RECORD, 2 * RECORD);
    fill(&pool, 24 * MIB);
    let synced = || pool.inner().groups().synced_txg().0;
    let before = synced();
    for number in 0..200u64 {
        let at = number * 7919 % (RECORD / 4096) * 4096;
        write(&files, &node, at, &noise(number, 4096));
    }
    // A slow machine commits some because of their age.
    assert!(synced() - before < 100, "{} txgs", synced() - before);
    pool.sync().unwrap();
    drop((files, node));
    judge(&rig, pool);
}

/// The only record of a file grows with it. What it grows by is dirty, too.
#[test]
fn growing_records_fit_into_an_almost_full_pool_or_are_refused() {
    let rig = Rig::new(1, 512);
    let pool = rig.stripe("tank").create().unwrap();
    let (files, _) = file_of_records(&pool, RECORD, RECORD);
    fill(&pool, 24 * MIB);
    let grown: Vec<Node> = (0..20)
        .map(|number| create(&files, &format!("grown{number}")).unwrap())
        .collect();
    let piece = noise(1, MIB as usize);
    for at in (0..RECORD).step_by(MIB as usize) {
        for node in &grown {
            let written = files.write(&Caller::root(), node, WriteAt::Offset(at), &piece);
            if let Err(error) = written {
                assert!(is_no_space(&error), "{error:?}");
            }
        }
    }
    pool.sync().unwrap();
    drop((files, grown));
    judge(&rig, pool);
}

/// Each thread is admitted before the others have begun.
#[test]
fn records_that_many_threads_change_at_once_fit_into_an_almost_full_pool() {
    for parity in [0, 2] {
        let rig = Rig::new(
            if parity > 0 { 5 } else { 1 },
            if parity > 0 { 192 } else { 512 },
        );
        let plan = match parity {
            0 => rig.stripe("tank"),
            parity => millpond_engine::PoolBuilder::new("tank").raidz(parity, &rig.images),
        };
        let pool = plan.create().unwrap();
        let records = 12;
        let (files, node) = file_of_records(&pool, RECORD, records * RECORD);
        fill(&pool, 24 * MIB);
        let barrier = Barrier::new(records as usize);
        for round in 0..4u64 {
            std::thread::scope(|scope| {
                for record in 0..records {
                    let (barrier, files, node) = (&barrier, &files, &node);
                    scope.spawn(move || {
                        barrier.wait();
                        let bytes = noise(record + round, 4096);
                        let at = WriteAt::Offset(record * RECORD + round * 8192);
                        if let Err(error) = files.write(&Caller::root(), node, at, &bytes) {
                            assert!(is_no_space(&error), "{error:?}");
                        }
                    });
                }
            });
            pool.sync().unwrap();
        }
        drop((files, node));
        judge(&rig, pool);
    }
}

/// Prints how many random writes of 4 KiB a pool takes in a second: `cargo test --release -p millpond-tests --test writing
/// -- --ignored --nocapture random_writes_into_full_pools`.
#[test]
#[ignore = "measures"]
fn random_writes_into_full_pools() {
    for record in [128 << 10, RECORD] {
        for percent in [50, 90] {
            let rig = Rig::new(1, 512);
            let pool = rig.stripe("tank").create().unwrap();
            let (files, node) = file_of_records(&pool, record, 9 * RECORD);
            let space = available(&files, &node) + 9 * RECORD;
            fill(&pool, space / 100 * (100 - percent));
            let mut writes = 0u64;
            let txgs = pool.inner().groups().synced_txg().0;
            let started = std::time::Instant::now();
            while started.elapsed().as_secs() < 10 {
                let at = noise(writes, 8);
                let at = u64::from_le_bytes(at.try_into().unwrap()) % (9 * RECORD / 4096) * 4096;
                write(&files, &node, at, &noise(writes, 4096));
                writes += 1;
            }
            let rate = writes as f64 / started.elapsed().as_secs_f64();
            let txgs = pool.inner().groups().synced_txg().0 - txgs;
            println!("record {record}, {percent} % full: {rate:.1} writes/s, {txgs} txgs");
            pool.sync().unwrap();
            drop((files, node));
            pool.export().unwrap();
        }
    }
}
