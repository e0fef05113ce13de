//! Files whose equal blocks are stored once: written here, by the module, and here again, and freed by each.

use crate::Rig;
use crate::cloning::{file, is_as_it_says, node, remove};
use millpond_engine::{Caller, FileSystem, Node, Pool, WriteAt};
use millpond_pool::{DedupBucket, PruneBy};
use millpond_sim::noise;
use millpond_tests::images::workspace;
use millpond_tests::oracle::kernel::{self, Disks, Release};
use std::path::Path;
use std::sync::Arc;

const NAME: &str = "dedup";
const LENGTH: usize = 1_000_000;

fn copy(files: &Arc<FileSystem>, name: &str) -> Node {
    file(files, name, &noise(1, LENGTH))
}

fn totals(pool: &Pool) -> DedupBucket {
    let view = pool.committed().unwrap();
    view.inner().space().unwrap().dedup.total()
}

fn make(rig: &Rig, is_fast: bool) {
    let mut builder = rig
        .stripe(NAME)
        .root_property("recordsize", "65536")
        .root_property("dedup", "on");
    if !is_fast {
        builder = builder.property("feature@fast_dedup", "disabled");
    }
    let pool = builder.create().unwrap();
    for name in ["a", "b"] {
        let name = format!("{NAME}/{name}");
        let mount = millpond_tests::workload::text("mountpoint", &format!("/{name}"));
        pool.datasets().create_filesystem(&name, &[mount]).unwrap();
    }
    let a = pool.file_system(&format!("{NAME}/a")).unwrap();
    let b = pool.file_system(&format!("{NAME}/b")).unwrap();
    copy(&a, "base");
    copy(&a, "copy-0");
    pool.sync().unwrap();
    copy(&b, "copy-1");
    let own = copy(&a, "own-changed");
    copy(&a, "gone");
    pool.sync().unwrap();
    let at = WriteAt::Offset(70_000);
    (a.write(&Caller::root(), &own, at, b"changed here")).unwrap();
    remove(&a, "gone");
    drop((own, a, b));
    // Some entries are in the objects of the table, some in each log.
    for number in 0..12 {
        let a = pool.file_system(&format!("{NAME}/a")).unwrap();
        file(&a, &format!("own-{number}"), &noise(number, 200_000));
        drop(a);
        pool.sync().unwrap();
    }
    println!("    made: {:?}", totals(&pool));
    pool.export().unwrap();
}

fn run(release: Release, rig: &Rig, share: &Path) {
    let script = workspace().join("tools/kernel/dedup");
    let arguments = [NAME, "base"];
    let share = Some(share);
    let output = kernel::run(
        release,
        &rig.images,
        Disks::Changed,
        share,
        &script,
        &arguments,
    );
    let output = output.unwrap();
    output.lines.iter().for_each(|line| println!("    {line}"));
    if output.status != Some(0) {
        rig.keep("dedup");
    }
    assert_eq!(output.status, Some(0), "{release:?}");
}

fn to_and_fro(release: Release, is_fast: bool) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(2, 256);
    make(&rig, is_fast);
    rig.judge(NAME);
    let share = tempfile::tempdir().unwrap();
    run(release, &rig, share.path());
    rig.judge(NAME);
    let pool = rig.open(NAME);
    let count = is_as_it_says(&pool, NAME, share.path());
    println!("    {count} files, {:?}", totals(&pool));
    // What the module wrote is written again, cloned, changed and freed here.
    let a = pool.file_system(&format!("{NAME}/a")).unwrap();
    let b = pool.file_system(&format!("{NAME}/b")).unwrap();
    let before = totals(&pool);
    copy(&b, "copy-2");
    copy(&a, "copy-0");
    pool.sync().unwrap();
    let after = totals(&pool);
    assert_eq!(after.blocks, before.blocks, "all blocks were known");
    assert_eq!(after.referenced_blocks, before.referenced_blocks + 32);
    let from = node(&b, "module-2");
    let to = file(&b, "copy-3", &[]);
    let copied = b.copy_range(&Caller::root(), (&from, 0), (&to, 0), LENGTH as u64);
    assert_eq!(copied.unwrap(), LENGTH as u64);
    remove(&b, "copy-1");
    remove(&a, "own-module");
    drop((from, to));
    remove(&b, "module-2");
    drop((a, b));
    pool.sync().unwrap();
    pool.export().unwrap();
    rig.judge(NAME);
    run(release, &rig, share.path());
    rig.judge(NAME);
    let pool = rig.open(NAME);
    is_as_it_says(&pool, NAME, share.path());
    if is_fast {
        let pruned = pool.inner().prune_dedup(PruneBy::Percent(50)).unwrap();
        println!("    {pruned:?}");
    }
    // The last reference to each block is released here.
    (pool
        .datasets()
        .destroy(&format!("{NAME}/b"), Default::default()))
    .unwrap();
    let a = pool.file_system(&format!("{NAME}/a")).unwrap();
    let names: Vec<Vec<u8>> = (a.root().unwrap().entries().unwrap())
        .map(|entry| entry.unwrap().name)
        .collect();
    for name in names {
        remove(&a, std::str::from_utf8(&name).unwrap());
    }
    drop(a);
    for _ in 0..4 {
        pool.sync().unwrap();
    }
    assert_eq!(totals(&pool), DedupBucket::default());
    pool.export().unwrap();
    rig.judge(NAME);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn dedup_tables_of_both_are_changed_by_2_3_and_here() {
    to_and_fro(Release::V2_3, true);
    to_and_fro(Release::V2_3, false);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn dedup_tables_of_both_are_changed_by_2_4_and_here() {
    to_and_fro(Release::V2_4, true);
    to_and_fro(Release::V2_4, false);
}
