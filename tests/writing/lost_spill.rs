//! Files whose spill block is lost on all disks.
//!
//! What is in the bonus stays usable: content, entries, mode and times. Only the attributes in the lost
//! block fail. The file can be deleted.

use crate::sim;
use millpond_block::BlockAddress;
use millpond_check::{CheckOptions, FindingKind, check_pool};
use millpond_engine::{
    Caller, FileError, FileSystem, NewLayout, NewMode, Node, Pool, SetAttributes, WriteAt,
    XattrMode,
};
use millpond_env::mark;
use millpond_ondisk::Dva;
use millpond_sim::{World, noise};
use std::sync::Arc;

const CONTENT: usize = 70_000;
const LISTED: &[u8] = b"user.listed";

fn set(files: &FileSystem, node: &Node, name: &[u8], value: &[u8]) -> Result<(), FileError> {
    files.set_xattr(&Caller::root(), node, name, value, XattrMode::Set)
}

/// Makes a directory with a file in it, both with a packed list in a spill block.
fn make(pool: &Pool) {
    let files = pool.file_system("tank").unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o755);
    let directory = files.make_directory(&caller, &root, b"dir", mode).unwrap();
    let mode = NewMode::exactly(0o644);
    let (file, _) = (files.create(&caller, &directory, b"file", mode, false)).unwrap();
    files
        .write(&caller, &file, WriteAt::Offset(0), &noise(1, CONTENT))
        .unwrap();
    for node in [&directory, &file] {
        set(&files, node, LISTED, &noise(2, 2000)).unwrap();
    }
}

/// Where the spill blocks of `dir` and `dir/file` are stored.
fn spills(pool: &Pool) -> Vec<Dva> {
    let committed = pool.committed().unwrap();
    let files = committed.dataset("tank").unwrap().file_system().unwrap();
    let directory = files.root().unwrap().lookup(b"dir").unwrap();
    let file = directory.lookup(b"file").unwrap();
    let store = pool.inner().store();
    let of = |node: &Node| {
        let object = node.object().committed().unwrap();
        let pointer = object.dnode().spill.expect("the list is in a spill block");
        store.extents(&pointer, BlockAddress::default()).unwrap()
    };
    [of(&directory), of(&file)].concat()
}

/// What works and what does not, in any view of the file system.
fn judge(files: &Arc<FileSystem>) {
    let directory = files.root().unwrap().lookup(b"dir").unwrap();
    let file = directory.lookup(b"file").unwrap();
    assert_eq!(directory.stat().unwrap().permissions & 0o777, 0o755);
    assert_eq!(file.stat().unwrap().size_bytes, CONTENT as u64);
    let mut found = vec![0; CONTENT];
    file.read(0, &mut found).unwrap();
    assert!(found == noise(1, CONTENT));
    for node in [&directory, &file] {
        node.xattr_names().unwrap_err();
        node.xattr(LISTED).unwrap_err();
    }
}

fn only_its_attributes_are_lost(layout: NewLayout, disks: usize) {
    let _mark = mark::expect("spill-block-lost");
    let world = World::new(17);
    let pool = sim::create(&world, &[(layout, disks)], 128);
    make(&pool);
    pool.sync().unwrap();
    let lost = spills(&pool);
    pool.export().unwrap();
    sim::lose(&world, &lost);

    let read = sim::read(&world).unwrap();
    judge(&read.dataset("tank").unwrap().file_system().unwrap());
    let report = check_pool(read.inner(), &CheckOptions::default()).unwrap();
    let told = |kind| report.findings.iter().any(|finding| finding.kind == kind);
    assert!(told(FindingKind::Attributes), "{:?}", report.findings);
    drop(read);

    let pool = sim::open(&world).unwrap();
    let files = pool.file_system("tank").unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    judge(&files);
    let directory = root.lookup(b"dir").unwrap();
    let file = directory.lookup(b"file").unwrap();
    // What is in the bonus can change. What may be in the lost block is refused, and nothing takes its place.
    let owner = SetAttributes {
        uid: Some(1000),
        ..SetAttributes::default()
    };
    files.set_attributes(&caller, &file, &owner).unwrap();
    // The ACL follows the permissions. It is in the lost block.
    let permissions = SetAttributes {
        permissions: Some(0o640),
        ..SetAttributes::default()
    };
    files
        .set_attributes(&caller, &file, &permissions)
        .unwrap_err();
    files
        .write(&caller, &file, WriteAt::Offset(0), &noise(1, CONTENT))
        .unwrap();
    for name in [LISTED, b"user.new"] {
        set(&files, &file, name, b"short").unwrap_err();
        set(&files, &file, name, &noise(3, 60_000)).unwrap_err();
        files.remove_xattr(&file, name).unwrap_err();
    }
    files
        .create(&caller, &directory, b"new", NewMode::exactly(0o600), false)
        .unwrap();
    pool.sync().unwrap();
    let found = file.stat().unwrap();
    assert_eq!((found.uid, found.permissions), (1000, 0o644));
    judge(&files);
    drop(file);

    for name in [&b"file"[..], b"new"] {
        files.unlink(&directory, name).unwrap();
    }
    drop(directory);
    files.remove_directory(&root, b"dir").unwrap();
    drop(root);
    files.close_unused().unwrap();
    drop(files);
    pool.sync().unwrap();
    pool.export().unwrap();
    let read = sim::read(&world).unwrap();
    sim::verify(&read).unwrap();
    let report = check_pool(read.inner(), &CheckOptions::default()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn a_lost_spill_block_costs_only_the_attributes_in_it() {
    for (layout, disks) in [(NewLayout::Single, 1), (NewLayout::Mirror, 2)] {
        only_its_attributes_are_lost(layout, disks);
    }
}
