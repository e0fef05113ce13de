//! Files that share blocks: cloned here, by the module, and here again, and freed by each.

use crate::{Rig, run_script};
use millpond_engine::{Caller, FileSystem, NewMode, Node, Pool, PropertyValue, WriteAt};
use millpond_pool::CloneTotals;
use millpond_sim::noise;
use millpond_tests::oracle::kernel::{self, Release, written};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;

const NAME: &str = "cloning";
const LENGTH: usize = 1_000_000;

pub(crate) fn file(files: &Arc<FileSystem>, name: &str, bytes: &[u8]) -> Node {
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o644);
    let made = files.create(&caller, &root, name.as_bytes(), mode, true);
    let (node, _) = made.unwrap();
    (files.write(&caller, &node, WriteAt::Offset(0), bytes)).unwrap();
    node
}

pub(crate) fn node(files: &Arc<FileSystem>, name: &str) -> Node {
    files.root().unwrap().lookup(name.as_bytes()).unwrap()
}

fn clone(files: &Arc<FileSystem>, from: &Node, name: &str) -> Node {
    let to = file(files, name, &[]);
    let length = from.size_bytes();
    let copied = files.copy_range(&Caller::root(), (from, 0), (&to, 0), length);
    assert_eq!(copied.unwrap(), length);
    to
}

pub(crate) fn remove(files: &Arc<FileSystem>, name: &str) {
    (files.unlink(&files.root().unwrap(), name.as_bytes())).unwrap();
    files.reap().unwrap();
}

fn digest(node: &Node) -> String {
    let mut bytes = vec![0; node.size_bytes() as usize];
    let mut done = 0;
    while done < bytes.len() {
        done += node.read(done as u64, &mut bytes[done..]).unwrap();
    }
    let digest = Sha256::digest(&bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn totals(pool: &Pool) -> CloneTotals {
    pool.committed().unwrap().inner().space().unwrap().clones
}

fn make(rig: &Rig, is_endian: bool) {
    let mut builder = rig.stripe(NAME).root_property("recordsize", "65536");
    if is_endian {
        builder = builder.property("feature@block_cloning_endian", "enabled");
    }
    let pool = builder.create().unwrap();
    for name in ["a", "b"] {
        let name = format!("{NAME}/{name}");
        let mount = (
            "mountpoint".to_owned(),
            PropertyValue::Text(format!("/{name}")),
        );
        pool.datasets().create_filesystem(&name, &[mount]).unwrap();
    }
    let (a, b) = (
        pool.file_system(&format!("{NAME}/a")).unwrap(),
        pool.file_system(&format!("{NAME}/b")).unwrap(),
    );
    let base = file(&a, "base", &noise(1, LENGTH));
    pool.sync().unwrap();
    clone(&a, &base, "clone-0");
    clone(&b, &base, "clone-1");
    clone(&b, &base, "clone-2");
    let own = clone(&a, &base, "own-changed");
    let gone = clone(&a, &base, "gone");
    drop(gone);
    pool.sync().unwrap();
    (a.write(
        &Caller::root(),
        &own,
        WriteAt::Offset(70_000),
        b"changed here",
    ))
    .unwrap();
    remove(&a, "gone");
    drop((base, own, a, b));
    pool.sync().unwrap();
    println!("    made: {:?}", totals(&pool));
    pool.export().unwrap();
}

fn run(release: Release, rig: &Rig, share: &Path) {
    run_script(release, rig, "cloning", Some(share), &[NAME, "base"]);
}

/// The files as the module left them.
pub(crate) fn is_as_it_says(pool: &Pool, name: &str, share: &Path) -> usize {
    let sums = written(share, "sums.txt");
    for line in &sums {
        let (sum, path) = line.split_once("  ").unwrap();
        let (dataset, file) = path.split_once('/').unwrap();
        let files = pool.file_system(&format!("{name}/{dataset}")).unwrap();
        assert_eq!(digest(&node(&files, file)), sum, "{path}");
    }
    sums.len()
}

/// Destroys one file system, and removes all files of the other.
pub(crate) fn free_everything(pool: &Pool, name: &str) {
    let second = format!("{name}/b");
    let destroyed = pool.datasets().destroy(&second, Default::default());
    destroyed.unwrap();
    let a = pool.file_system(&format!("{name}/a")).unwrap();
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
}

fn to_and_fro(release: Release, is_endian: bool) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(2, 256);
    make(&rig, is_endian);
    let judge = || match is_endian {
        // zdb 2.3 does not know this form; the module's own has judged.
        true => {
            let faults = millpond_tests::recount::faults_of(rig.read(NAME).inner());
            assert!(faults.is_empty(), "{}", faults.join("\n"));
        }
        false => rig.judge(NAME),
    };
    judge();
    let share = tempfile::tempdir().unwrap();
    run(release, &rig, share.path());
    judge();
    let pool = rig.open(NAME);
    let count = is_as_it_says(&pool, NAME, share.path());
    println!("    {count} files, {:?}", totals(&pool));
    // What the module cloned is cloned again, changed and freed here.
    let (a, b) = (
        pool.file_system(&format!("{NAME}/a")).unwrap(),
        pool.file_system(&format!("{NAME}/b")).unwrap(),
    );
    clone(&b, &node(&b, "module-2"), "clone-3");
    clone(&a, &node(&b, "module-2"), "clone-0");
    remove(&b, "clone-1");
    remove(&b, "module-2");
    remove(&a, "own-module");
    drop((a, b));
    pool.sync().unwrap();
    pool.export().unwrap();
    judge();
    run(release, &rig, share.path());
    judge();
    let pool = rig.open(NAME);
    is_as_it_says(&pool, NAME, share.path());
    // The last reference to each block is released here.
    free_everything(&pool, NAME);
    assert_eq!(totals(&pool), CloneTotals::default());
    pool.export().unwrap();
    judge();
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn clones_of_both_are_counted_and_freed_by_2_3_and_here() {
    to_and_fro(Release::V2_3, false);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn clones_of_both_are_counted_and_freed_by_2_4_and_here() {
    to_and_fro(Release::V2_4, false);
    to_and_fro(Release::V2_4, true);
}
