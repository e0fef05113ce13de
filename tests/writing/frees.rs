//! Large files are freed in bounded steps, in the background of a mount.

use crate::sim;
use millpond_check::{CheckOptions, check_pool};
use millpond_dataset::DestroyOptions;
use millpond_engine::{
    Caller, NewLayout::Single, NewMode, Pool, PropertyValue, Vfs, WriteAt, WriteOptions, ZfsCtlDir,
};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::ObjectId;
use millpond_sim::World;

const RECORD: usize = 512;
/// Enough that several txgs are needed to free them.
const BLOCKS: usize = 220_000;

/// A pool with a file of very many small blocks, and the file's object id.
fn with_large_file(world: &World) -> (Pool, ObjectId) {
    let pool = sim::create_with(world, &[(Single, 1)], 512, WriteOptions::default());
    let record = (
        "recordsize".to_owned(),
        PropertyValue::Number(RECORD as u64),
    );
    let plain = ("compression".to_owned(), PropertyValue::Number(2));
    pool.datasets()
        .set_properties("tank", &[record, plain])
        .unwrap();
    let files = pool.file_system("tank").unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o644);
    let (node, _) = files.create(&caller, &root, b"large", mode, false).unwrap();
    let piece = vec![1; 1 << 20];
    for at in (0..RECORD * BLOCKS).step_by(piece.len()) {
        files
            .write(&caller, &node, WriteAt::Offset(at as u64), &piece)
            .unwrap();
    }
    pool.sync().unwrap();
    let id = node.id();
    (pool, id)
}

/// Removes the file's only name, as a mount does.
fn unlink(served: &Arc<ZfsCtlDir>) {
    let root = served.root().unwrap();
    served
        .files()
        .unlink(&served.files().root().unwrap(), b"large")
        .unwrap();
    drop(root);
    served.files().close_unused().unwrap();
}

fn is_there(served: &ZfsCtlDir, id: ObjectId) -> bool {
    served.files().object_set().unwrap().object(id).is_ok()
}

fn whole(pool: Pool, world: &World) {
    pool.export().unwrap();
    let read = sim::read(world).unwrap();
    let report = check_pool(read.inner(), &CheckOptions::default()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn a_large_file_is_freed_in_the_background_over_several_txgs() {
    let _mark = mark::expect("frees-wait-for-next-txg");
    let world = World::without_journal(41);
    let (pool, id) = with_large_file(&world);
    let served = pool.served("tank").unwrap();
    let before = pool.inner().uberblock().txg;
    unlink(&served);
    while is_there(&served, id) {
        pool.sync().unwrap();
    }
    // The last blocks may still be in the open txg.
    pool.sync().unwrap();
    let txgs = pool.inner().uberblock().txg.0 - before.0;
    assert!(txgs >= 3, "freed within {txgs} txgs");
    drop(served);
    whole(pool, &world);
}

#[test]
fn deferred_frees_of_a_file_system_continue_after_mount() {
    let world = World::without_journal(42);
    let (pool, id) = with_large_file(&world);
    let served = pool.served("tank").unwrap();
    unlink(&served);
    drop(served);
    // Nothing keeps the file system open any more, so it could be destroyed now.
    pool.sync().unwrap();
    let served = pool.served("tank").unwrap();
    while is_there(&served, id) {
        pool.sync().unwrap();
    }
    drop(served);
    whole(pool, &world);
}

#[test]
fn empty_files_are_freed_in_bounded_steps() {
    let world = World::without_journal(9);
    let pool = sim::create(&world, &[(Single, 1)], 128);
    pool.datasets().create_filesystem("tank/fs", &[]).unwrap();
    let files = pool.file_system("tank/fs").unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    for number in 0..2000 {
        let (name, mode) = (format!("{number}"), NewMode::exactly(0o644));
        (files.create(&caller, &root, name.as_bytes(), mode, false)).unwrap();
    }
    drop((root, files));
    pool.sync().unwrap();
    // Some sixty blocks of dnodes, and hardly any others.
    pool.datasets().limit_background(5);
    let options = DestroyOptions::default();
    pool.datasets().destroy("tank/fs", options).unwrap();
    let mut steps = 0;
    while has_destroyed_trees(&world) {
        steps += 1;
        let report =
            check_pool(sim::read(&world).unwrap().inner(), &CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "step {steps}: {:?}", report.findings);
        pool.sync().unwrap();
    }
    assert!(steps > 5, "{steps}");
    whole(pool, &world);
}

fn has_destroyed_trees(world: &World) -> bool {
    let read = sim::read(world).unwrap();
    let queue = read.inner().find_directory_object("bptree_obj");
    queue.unwrap().is_some()
}
