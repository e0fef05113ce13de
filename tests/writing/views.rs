//! Views of committed states, read while the pool changes.

use crate::attach::{attach, complete, new_device, of_disk};
use crate::full::{create, fill, is_no_space};
use crate::scan::{finish, lived};
use crate::sim;
use millpond_check::{CheckOptions, Finding, Progress};
use millpond_device::Device;
use millpond_engine::{Caller, NewLayout, Pool, Symlinks, WriteAt};
use millpond_env::mark;
use millpond_pool::import::VdevState;
use millpond_pool::{AttachKind, NewVdevOptions, PoolError};
use millpond_sim::World;
use millpond_sim::noise;
use millpond_verify::Problem;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// More than the block cache holds, so that views read the disk.
const FILE_BYTES: usize = 24 << 20;

/// A pool with a file of noise, and a disk of `mib` MiB.
fn pool_with_file(world: &World, mib: u64) -> Pool {
    let pool = sim::create(world, &[(NewLayout::Single, 1)], mib);
    overwrite(&pool, 0);
    pool
}

/// Replaces the file's content in one txg.
fn overwrite(pool: &Pool, seed: u64) {
    let files = pool.file_system("tank").unwrap();
    let root = files.root().unwrap();
    let node = match root.lookup(b"file") {
        Ok(node) => node,
        Err(_) => create(&files, "file").unwrap(),
    };
    let content = noise(seed, FILE_BYTES);
    let at = WriteAt::Offset(0);
    files.write(&Caller::root(), &node, at, &content).unwrap();
    pool.sync().unwrap();
}

fn read(view: &millpond_engine::View) -> Result<Vec<u8>, millpond_engine::Error> {
    let files = view.dataset("tank")?.file_system()?;
    let node = files.resolve(b"file", Symlinks::Keep)?;
    let mut found = vec![0; FILE_BYTES];
    node.read(0, &mut found)?;
    Ok(found)
}

#[test]
fn a_view_reads_its_state_after_many_txgs() {
    let world = World::without_journal(70);
    let pool = pool_with_file(&world, 256);
    let first = pool.committed().unwrap();
    overwrite(&pool, 1);
    let second = pool.committed().unwrap();
    // The views hold two contents back; what is written in between is reused.
    for seed in 2..40 {
        overwrite(&pool, seed);
    }
    assert!(read(&first).unwrap() == noise(0, FILE_BYTES));
    assert!(read(&second).unwrap() == noise(1, FILE_BYTES));
    let free = |pool: &Pool| pool.inner().space().pool().free_bytes();
    let held = free(&pool);
    drop((first, second));
    for seed in 40..44 {
        overwrite(&pool, seed);
    }
    assert!(free(&pool) > held + FILE_BYTES as u64, "space came back");
    let last = pool.committed().unwrap();
    assert!(read(&last).unwrap() == noise(43, FILE_BYTES));
}

#[test]
fn a_view_that_is_too_old_expires() {
    let _mark = mark::expect("view-expired");
    let world = World::without_journal(71);
    let pool = pool_with_file(&world, 256);
    let view = pool.committed().unwrap();
    view.inner().check_not_expired().unwrap();
    world.advance(2 * 3600 * 1_000_000_000);
    for seed in 1..40 {
        overwrite(&pool, seed);
    }
    let expired = view.inner().check_not_expired().unwrap_err();
    assert!(matches!(expired, PoolError::ViewExpired { .. }));
    assert!(read(&view).is_err(), "its blocks are in use again");
    let verified = Progress::default();
    let on_problem = |problem: &Problem| panic!("{problem:?}");
    view.verify(&verified, &on_problem).unwrap_err();
    let on_finding = |finding: &Finding| panic!("{finding}");
    let checked = Progress::default();
    view.check(&CheckOptions::default(), &checked, &on_finding)
        .unwrap_err();
}

#[test]
fn a_view_of_a_full_pool_does_not_stop_writers() {
    let _mark = mark::expect("view-expired");
    let world = World::without_journal(72);
    let pool = sim::create(&world, &[(NewLayout::Single, 1)], 512);
    let files = pool.file_system("tank").unwrap();
    let root = files.root().unwrap();
    let (count, _) = fill(&files, "file", 4 << 20);
    pool.sync().unwrap();
    for round in 0..4 {
        // The view is never old: no time passes.
        let view = pool.committed().unwrap();
        for number in 0..count {
            files
                .unlink(&root, format!("file{number}").as_bytes())
                .unwrap();
        }
        pool.sync().unwrap();
        let (again, error) = fill(&files, "file", 4 << 20);
        assert!(is_no_space(&error), "round {round}: {error}");
        assert!(
            again + 1 >= count,
            "round {round}: {again} of {count} files"
        );
        pool.sync().unwrap();
        drop(view);
    }
}

#[test]
fn a_query_reads_a_newer_state_if_its_view_expires() {
    let world = World::without_journal(74);
    let pool = pool_with_file(&world, 256);
    let tries = Cell::new(0);
    let expire = || {
        world.advance(2 * 3600 * 1_000_000_000);
        (0..4).for_each(|seed| overwrite(&pool, seed));
    };
    let name = pool.read_committed(|view| {
        tries.set(tries.get() + 1);
        if tries.get() == 1 {
            expire();
            view.inner().check_not_expired()?;
        }
        Ok(view.name().to_owned())
    });
    assert_eq!((name.unwrap().as_str(), tries.get()), ("tank", 2));
    let expired = pool.read_committed(|_| {
        expire();
        Ok(())
    });
    assert!(expired.is_err());
}

/// Changes a few bytes of each record of a file in one txg: much more is written than was dirtied.
fn touch(pool: &Pool, seed: u64, bytes: usize) {
    let files = pool.file_system("tank").unwrap();
    let node = files.root().unwrap().lookup(b"file0").unwrap();
    for at in (0..bytes as u64).step_by(128 << 10) {
        let content = noise(seed ^ at, 512);
        files
            .write(&Caller::root(), &node, WriteAt::Offset(at), &content)
            .unwrap();
    }
    pool.sync().unwrap();
}

#[test]
fn writers_get_the_space_that_views_and_earlier_txgs_hold_back() {
    const BYTES: usize = 56 << 20;
    for has_view in [false, true] {
        let world = World::without_journal(73);
        let pool = sim::create(&world, &[(NewLayout::Single, 1)], 512);
        let files = pool.file_system("tank").unwrap();
        let node = create(&files, "file0").unwrap();
        for at in (0..BYTES).step_by(1 << 20) {
            let content = noise(at as u64, 1 << 20);
            let place = WriteAt::Offset(at as u64);
            files
                .write(&Caller::root(), &node, place, &content)
                .unwrap();
        }
        pool.sync().unwrap();
        pool.sync().unwrap();
        let mut views = vec![];
        for seed in 1..=12 {
            views.extend(has_view.then(|| pool.committed().unwrap()));
            touch(&pool, seed, BYTES);
            if let (1, [view]) = (seed, views.as_slice()) {
                view.inner().check_not_expired().expect("there was space");
            }
        }
        if let Some(view) = views.first() {
            view.inner()
                .check_not_expired()
                .expect_err("space was needed");
        }
        let mut found = vec![0; 512];
        node.read(0, &mut found).unwrap();
        assert!(found == noise(12, 512));
    }
}

/// Tells the other threads to end, also after a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_view_beside_replacements_leaves_no_old_tree_behind() {
    let world = World::without_journal(61);
    let (pool, _) = lived(&world, "queried", &[(NewLayout::Mirror, 2)], 20);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&is_over);
        // As `zpool status` in a loop.
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    drop(pool.committed());
                }
            });
        }
        for _ in 0..40 {
            let disk = world.disk(128 << 20, 512);
            let device = new_device(&disk);
            let tree = pool.inner().store().topology();
            let (_, old) = tree.tree.leaves().last().unwrap();
            let (kind, options) = (AttachKind::Replacement, NewVdevOptions::default());
            (pool.inner())
                .attach_leaf(old.config.guid, &device, kind, options, &|_| false)
                .unwrap();
            finish(&pool);
            pool.inner().finish_replacements().unwrap();
            let view = pool.committed().unwrap();
            let assembly = view.inner().assembly();
            assert_eq!(assembly.state(), VdevState::Healthy, "{assembly:?}");
        }
    });
}

/// An open snapshot is read from the disks that the pool has now. Those that it had when the snapshot was opened may
/// hold anything.
#[test]
fn an_open_snapshot_follows_the_disks_of_its_pool() {
    let world = World::without_journal(77);
    let pool = sim::create(&world, &[(NewLayout::Mirror, 2)], 128);
    overwrite(&pool, 3);
    pool.datasets().snapshot(&["tank@s"], &[]).unwrap();
    let served = pool.served_snapshot("tank@s").unwrap();
    for number in 0..2 {
        let disk = world.disk(128 << 20, 512);
        attach(
            &pool,
            of_disk(&pool, number),
            &disk,
            AttachKind::Replacement,
        )
        .unwrap();
        complete(&pool);
    }
    for disk in &world.disks()[..2] {
        let junk = noise(9, 1 << 20);
        for offset in (4 << 20..disk.size_bytes() - (1 << 20)).step_by(1 << 20) {
            disk.write(offset, &junk).unwrap();
        }
    }
    let node = served
        .file_system()
        .resolve(b"file", Symlinks::Keep)
        .unwrap();
    let mut found = vec![0; FILE_BYTES];
    node.read(0, &mut found).unwrap();
    assert!(found == noise(3, FILE_BYTES));
}
