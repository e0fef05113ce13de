//! A frozen pool is found as it was at the freeze, and its intent logs bring the rest.

use crate::sim;
use millpond_engine::{Caller, FileSystem, NewLayout, NewMode, Pool, WriteAt};
use millpond_env::Tunable;
use millpond_env::mark;
use millpond_ondisk::Txg;
use millpond_sim::{PowerCut, World};
use millpond_tests::recount;

/// Writes a file of a letter. Its records are not in the log yet.
fn write(files: &FileSystem, name: &str, bytes: usize) {
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o600);
    let created = files.create(&caller, &root, name.as_bytes(), mode, true);
    let node = created.unwrap().0;
    let content = vec![name.as_bytes()[0]; bytes];
    files
        .write(&caller, &node, WriteAt::Offset(0), &content)
        .unwrap();
}

/// The letter's file as it is, if there is one.
fn read(pool: &Pool, name: &str) -> Option<Vec<u8>> {
    let files = pool.file_system("tank").unwrap();
    let node = files.root().unwrap().lookup(name.as_bytes()).ok()?;
    let size = usize::try_from(node.stat().unwrap().size_bytes).unwrap();
    let mut content = vec![0; size];
    node.read(0, &mut content).unwrap();
    Some(content)
}

/// A pool with a log whose header is committed.
fn frozen(world: &World) -> Pool {
    let pool = sim::create(world, &[(NewLayout::Mirror, 2)], 128);
    let files = pool.file_system("tank").unwrap();
    write(&files, "before", 10);
    files.commit_log().unwrap();
    write(&files, "old", 1 << 20);
    assert!(world.env().tunables.set(Tunable::AllowFreeze, 1));
    pool.inner().freeze().unwrap();
    pool
}

fn txg_on_disk(world: &World) -> Txg {
    sim::read(world).unwrap().inner().uberblock().txg
}

#[test]
fn a_frozen_pool_keeps_what_its_log_has() {
    let _mark = mark::expect("pool-frozen");
    let world = World::new(61);
    let pool = frozen(&world);
    let frozen_at = txg_on_disk(&world);
    let files = pool.file_system("tank").unwrap();
    // More than once the whole pool: nothing that was overwritten is used again, so not too much more.
    for round in 0..4_u64 {
        write(&files, &format!("unsynced{round}"), 1 << 20);
        let root = files.root().unwrap();
        files.unlink(&root, b"old").unwrap();
        write(&files, "old", 1 << 20);
        pool.sync().unwrap();
    }
    write(&files, "logged", 300_000);
    files.commit_log().unwrap();
    pool.datasets().create_filesystem("tank/late", &[]).unwrap();
    pool.sync().unwrap();
    write(&files, "never", 1000);
    pool.sync().unwrap();
    assert_eq!(read(&pool, "never"), Some(vec![b'n'; 1000]));
    assert_eq!(txg_on_disk(&world), frozen_at, "no uberblock is written");
    drop((files, pool));

    let after = world.reborn(world.recorded(), &PowerCut::EverythingWritten);
    let faults = recount::faults_after_a_cut(&sim::read(&after).unwrap());
    assert_eq!(faults, [""; 0]);
    let pool = sim::open(&after).unwrap();
    assert_eq!(read(&pool, "before"), Some(vec![b'b'; 10]));
    assert_eq!(read(&pool, "logged"), Some(vec![b'l'; 300_000]));
    assert_eq!(read(&pool, "unsynced3"), Some(vec![b'u'; 1 << 20]));
    assert_eq!(read(&pool, "old"), Some(vec![b'o'; 1 << 20]));
    assert_eq!(read(&pool, "never"), None, "it was in no log");
    assert!(pool.datasets().open_head("tank/late").is_err());
    pool.export().unwrap();
    sim::verify(&sim::read(&after).unwrap()).unwrap();
}

#[test]
fn export_of_a_frozen_pool_writes_its_logs_and_nothing_else() {
    let world = World::new(62);
    let pool = frozen(&world);
    let files = pool.file_system("tank").unwrap();
    write(&files, "unsynced", 2000);
    drop(files);
    let refused = pool.inner().destroy().unwrap_err().to_string();
    assert!(refused.contains("it is frozen"), "{refused}");
    let frozen_at = txg_on_disk(&world);
    pool.export().unwrap();
    assert_eq!(txg_on_disk(&world), frozen_at);
    let pool = sim::open(&world).unwrap();
    assert!(!pool.inner().is_frozen());
    assert_eq!(read(&pool, "unsynced"), Some(vec![b'u'; 2000]));
    pool.inner().destroy().unwrap();
}

#[test]
fn a_pool_is_frozen_only_where_that_is_allowed() {
    let world = World::new(63);
    let pool = sim::create(&world, &[(NewLayout::Single, 1)], 64);
    let refused = pool.inner().freeze().unwrap_err().to_string();
    assert!(refused.contains("millpond_allow_freeze"), "{refused}");
    assert!(!pool.inner().is_frozen());
    assert!(world.env().tunables.set(Tunable::AllowFreeze, 1));
    pool.inner().freeze().unwrap();
    let refused = pool.inner().freeze().unwrap_err().to_string();
    assert!(refused.contains("already"), "{refused}");
}
