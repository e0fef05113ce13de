//! Files share blocks by reference: copies within and across datasets and from snapshots, freed in every way. `zdb` counts
//! the references at the end.

use crate::sim;
use millpond_engine::{
    Caller, FileSystem, NewLayout, NewLayout::Single, NewMode, Node, Pool, PropertyValue,
    SetAttributes, View, WriteAt,
};
use millpond_env::mark;
use millpond_pool::CloneTotals;
use millpond_sim::{World, noise};
use millpond_tests::oracle::zdb;
use millpond_tests::recount;
use std::sync::Arc;

pub(crate) const RECORD: u64 = 16 << 10;
/// Ten records and a half.
pub(crate) const LENGTH: usize = (10 * RECORD + RECORD / 2) as usize;

fn number(name: &str, value: u64) -> (String, PropertyValue) {
    (name.to_owned(), PropertyValue::Number(value))
}

/// A pool with the file systems `tank/a` and `tank/b`.
pub(crate) fn pool_on(world: &World, tops: &[(NewLayout, usize)]) -> Pool {
    let pool = sim::create(world, tops, 128);
    let datasets = pool.datasets();
    (datasets.set_properties("tank", &[number("recordsize", RECORD)])).unwrap();
    datasets.create_filesystem("tank/a", &[]).unwrap();
    datasets.create_filesystem("tank/b", &[]).unwrap();
    pool
}

pub(crate) fn content(seed: u64) -> Vec<u8> {
    noise(seed, LENGTH)
}

pub(crate) fn make(files: &Arc<FileSystem>, name: &str, bytes: &[u8]) -> Node {
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o644);
    let made = files.create(&caller, &root, name.as_bytes(), mode, true);
    let (node, _) = made.unwrap();
    files
        .write(&caller, &node, WriteAt::Offset(0), bytes)
        .unwrap();
    node
}

pub(crate) fn node(files: &Arc<FileSystem>, name: &str) -> Node {
    files.root().unwrap().lookup(name.as_bytes()).unwrap()
}

pub(crate) fn remove(files: &Arc<FileSystem>, name: &str) {
    let root = files.root().unwrap();
    files.unlink(&root, name.as_bytes()).unwrap();
    files.reap().unwrap();
}

pub(crate) fn copy(
    files: &Arc<FileSystem>,
    from: (&Node, u64),
    to: (&Node, u64),
    length: usize,
) -> u64 {
    let copied = files.copy_range(&Caller::root(), from, to, length as u64);
    copied.unwrap()
}

/// Makes a copy of a whole file.
pub(crate) fn copy_file(files: &Arc<FileSystem>, from: &Node, name: &str) -> Node {
    let to = make(files, name, &[]);
    let length = from.size_bytes();
    assert_eq!(copy(files, (from, 0), (&to, 0), length as usize), length);
    to
}

pub(crate) fn bytes_of(node: &Node) -> Vec<u8> {
    let mut bytes = vec![0; node.size_bytes() as usize];
    let mut done = 0;
    while done < bytes.len() {
        done += node.read(done as u64, &mut bytes[done..]).unwrap();
    }
    bytes
}

/// Checks the last committed state: counters, references, every block. Returns the sums of the clone tables.
pub(crate) fn judged(world: &World) -> CloneTotals {
    let view = sim::read(world).unwrap();
    judge_view(&view)
}

fn judge_view(view: &View) -> CloneTotals {
    let faults = recount::faults_after_a_cut(view);
    assert!(faults.is_empty(), "{faults:#?}");
    sim::verify(view).unwrap();
    view.inner().space().unwrap().clones
}

pub(crate) fn judged_by_zdb(world: &World, what: &str) {
    let folder = tempfile::tempdir().unwrap();
    sim::to_files(world, folder.path());
    zdb::judge(folder.path(), "tank").unwrap().require(what);
}

fn finish(pool: Pool, world: &World, what: &str) {
    pool.export().unwrap();
    judged(world);
    judged_by_zdb(world, what);
}

#[test]
fn a_limit_of_copied_bytes_does_not_end_sharing() {
    let world = World::without_journal(502);
    let pool = pool_on(&world, &[(Single, 1)]);
    let files = pool.file_system("tank/a").unwrap();
    let source = make(&files, "source", &content(1));
    pool.sync().unwrap();
    let target = make(&files, "target", &[]);
    let (from, to) = ((&source, 0), (&target, 0));
    let copied = files.copy_range_within(&Caller::root(), from, to, LENGTH as u64, 1);
    assert_eq!(copied.unwrap(), LENGTH as u64);
    assert!(bytes_of(&target) == content(1));
}

#[test]
fn a_copy_refers_to_the_blocks_of_its_source() {
    let world = World::without_journal(501);
    let pool = pool_on(&world, &[(Single, 1)]);
    let files = pool.file_system("tank/a").unwrap();
    let source = make(&files, "source", &content(1));
    pool.sync().unwrap();
    let copied = copy_file(&files, &source, "copy");
    assert!(bytes_of(&copied) == content(1), "before the txg is written");
    pool.sync().unwrap();
    assert!(bytes_of(&copied) == content(1));
    let clones = judged(&world);
    // The last block is half zeros.
    let last = clones.used_bytes - 10 * RECORD;
    assert!((RECORD / 2..RECORD).contains(&last), "{last}");
    assert_eq!(
        (clones.entries, clones.saved_bytes),
        (11, clones.used_bytes)
    );
    judged_by_zdb(&world, "a copy");
    // A part is overwritten, in the txg of a second copy and after it.
    let second = copy_file(&files, &source, "second");
    let mut expected = content(1);
    for (at, count) in [(100, 50), (RECORD as usize * 3 - 10, 20)] {
        let bytes = noise(at as u64, count);
        expected[at..at + count].copy_from_slice(&bytes);
        let at = WriteAt::Offset(at as u64);
        files.write(&Caller::root(), &second, at, &bytes).unwrap();
    }
    assert!(bytes_of(&second) == expected);
    pool.sync().unwrap();
    let clones = judged(&world);
    // The records 0, 2 and 3 of the second copy are its own.
    assert_eq!(
        (clones.entries, clones.saved_bytes),
        (11, 17 * RECORD + 2 * last)
    );
    drop((source, copied));
    remove(&files, "source");
    pool.sync().unwrap();
    let clones = judged(&world);
    assert_eq!((clones.entries, clones.saved_bytes), (8, 7 * RECORD + last));
    assert!(bytes_of(&second) == expected);
    remove(&files, "copy");
    pool.sync().unwrap();
    assert_eq!(judged(&world), CloneTotals::default());
    assert!(bytes_of(&second) == expected);
    drop((second, files));
    finish(pool, &world, "copies freed");
    let view = sim::read(&world).unwrap();
    let features = view.inner().features().clone();
    assert_eq!(features.count("com.fudosecurity:block_cloning"), Some(0));
}

#[test]
fn parts_that_do_not_match_are_copied() {
    let world = World::without_journal(502);
    let pool = pool_on(&world, &[(Single, 1)]);
    let files = pool.file_system("tank/a").unwrap();
    let source = make(&files, "source", &content(2));
    pool.sync().unwrap();
    let entries = || {
        pool.sync().unwrap();
        judged(&world).entries
    };
    // Changes that are not on stable storage.
    (files.write(&Caller::root(), &source, WriteAt::Offset(RECORD), &[7; 5])).unwrap();
    let dirty = copy_file(&files, &source, "dirty");
    assert!(bytes_of(&dirty) == bytes_of(&source));
    assert_eq!(entries(), 10);
    // Ranges with other offsets within records.
    let target = make(&files, "target", &content(3));
    pool.sync().unwrap();
    let mut expected = content(3);
    let part = |range: std::ops::Range<usize>| bytes_of(&source)[range].to_vec();
    copy(&files, (&source, 100), (&target, 200), 40_000);
    expected[200..40_200].copy_from_slice(&part(100..40_100));
    assert_eq!(entries(), 10);
    // The whole records within.
    let from = RECORD as usize * 4 - 100;
    copy(
        &files,
        (&source, from as u64),
        (&target, from as u64),
        3 * RECORD as usize,
    );
    expected[from..from + 3 * RECORD as usize]
        .copy_from_slice(&part(from..from + 3 * RECORD as usize));
    assert!(bytes_of(&target) == expected);
    let clones = entries();
    assert_eq!(clones, 10, "records 4 and 5 have entries already");
    // The end of a file is not cloned into the middle of another.
    copy(
        &files,
        (&source, 10 * RECORD),
        (&target, 0),
        RECORD as usize,
    );
    expected[..RECORD as usize / 2].copy_from_slice(&part(10 * RECORD as usize..LENGTH));
    assert!(bytes_of(&target) == expected);
    // Within one file.
    copy(
        &files,
        (&source, 0),
        (&source, 5 * RECORD),
        2 * RECORD as usize,
    );
    assert!(part(0..2 * RECORD as usize) == part(5 * RECORD as usize..7 * RECORD as usize));
    entries();
    // Small files have a block of their size.
    let small = make(&files, "small", &noise(9, 3000));
    pool.sync().unwrap();
    let before = entries();
    let other = copy_file(&files, &small, "small copy");
    assert_eq!(entries(), before + 1);
    copy(&files, (&small, 0), (&other, 3000), 3000);
    assert_eq!(bytes_of(&other), [noise(9, 3000), noise(9, 3000)].concat());
    drop((source, dirty, target, small, other, files));
    finish(pool, &world, "parts");
}

#[test]
fn holes_and_embedded_blocks_are_cloned_without_references() {
    let world = World::without_journal(503);
    let pool = pool_on(&world, &[(Single, 1)]);
    let files = pool.file_system("tank/a").unwrap();
    let record = RECORD as usize;
    let bytes = [
        vec![0; record],
        vec![7; record],
        noise(1, record),
        vec![0; 2 * record],
    ]
    .concat();
    let source = make(&files, "source", &bytes);
    pool.sync().unwrap();
    let target = make(&files, "target", &noise(2, bytes.len()));
    pool.sync().unwrap();
    copy(&files, (&source, 0), (&target, 0), bytes.len());
    assert!(bytes_of(&target) == bytes);
    pool.sync().unwrap();
    assert!(bytes_of(&target) == bytes);
    assert_eq!(judged(&world).entries, 1);
    drop((source, target, files));
    finish(pool, &world, "holes and embedded blocks");
}

/// Copies from a snapshot and across datasets, which are then destroyed, rolled back and promoted in turn.
#[test]
fn datasets_that_share_blocks_are_destroyed_in_any_order() {
    for order in 0..6u64 {
        let world = World::without_journal(510 + order);
        let pool = pool_on(&world, &[(Single, 1)]);
        let datasets = pool.datasets();
        let a = pool.file_system("tank/a").unwrap();
        let source = make(&a, "source", &content(4));
        pool.sync().unwrap();
        datasets.snapshot(&["tank/a@s"], &[]).unwrap();
        (a.write(&Caller::root(), &source, WriteAt::Offset(0), &content(5))).unwrap();
        pool.sync().unwrap();
        let b = pool.file_system("tank/b").unwrap();
        let crossed = copy_file(&b, &source, "crossed");
        let view = pool.committed().unwrap();
        let old = view.dataset("tank/a@s").unwrap().file_system().unwrap();
        let restored = copy_file(&b, &node(&old, "source"), "restored");
        let again = copy_file(&a, &node(&old, "source"), "again");
        drop((old, view));
        pool.sync().unwrap();
        assert_eq!(judged(&world).entries, 22, "all are cloned");
        datasets.snapshot(&["tank/b@t"], &[]).unwrap();
        datasets.clone_snapshot("tank/a@s", "tank/c", &[]).unwrap();
        let c = pool.file_system("tank/c").unwrap();
        let third = copy_file(&c, &restored, "third");
        drop((source, crossed, restored, again, third, a, b, c));
        pool.sync().unwrap();
        judged(&world);
        let destroy = |name: &str| {
            datasets.destroy(name, Default::default()).unwrap();
            for _ in 0..4 {
                pool.sync().unwrap();
            }
            judged(&world);
        };
        let steps: [&dyn Fn(); 4] = [
            &|| {
                let b = pool.file_system("tank/b").unwrap();
                let crossed = node(&b, "crossed");
                (b.write(&Caller::root(), &crossed, WriteAt::Offset(0), &content(6))).unwrap();
                remove(&b, "restored");
                drop((crossed, b));
                pool.sync().unwrap();
                judged(&world);
                datasets.rollback("tank/b@t").unwrap();
                pool.sync().unwrap();
                judged(&world);
            },
            &|| datasets.promote("tank/c").unwrap(),
            &|| {
                let a = pool.file_system("tank/a").unwrap();
                remove(&a, "again");
                let source = node(&a, "source");
                let set = SetAttributes {
                    size_bytes: Some(3 * RECORD + 5),
                    ..SetAttributes::default()
                };
                a.set_attributes(&Caller::root(), &source, &set).unwrap();
            },
            &|| {
                datasets.snapshot(&["tank/b@u"], &[]).unwrap();
                destroy("tank/b@u");
            },
        ];
        for step in 0..4 {
            steps[((step + order) % 4) as usize]();
            pool.sync().unwrap();
            judged(&world);
        }
        // The dataset that has the snapshot is destroyed after the other.
        let b = pool.file_system("tank/b").unwrap();
        assert!(bytes_of(&node(&b, "crossed")) == content(5));
        assert!(bytes_of(&node(&b, "restored")) == content(4));
        drop(b);
        destroy("tank/a");
        if order % 2 == 0 {
            destroy("tank/b@t");
            destroy("tank/b");
        }
        let c = pool.file_system("tank/c").unwrap();
        assert!(bytes_of(&node(&c, "third")) == content(4));
        drop(c);
        finish(pool, &world, &format!("order {order}"));
    }
}

/// A snapshot that blocks are cloned from is not destroyed by a txg before that of the clone; afterwards it can be.
#[test]
fn a_view_of_a_destroyed_snapshot_is_copied() {
    let world = World::without_journal(520);
    let pool = pool_on(&world, &[(Single, 1)]);
    let a = pool.file_system("tank/a").unwrap();
    let source = make(&a, "source", &content(4));
    drop(source);
    pool.sync().unwrap();
    pool.datasets().snapshot(&["tank/a@s"], &[]).unwrap();
    remove(&a, "source");
    pool.sync().unwrap();
    let view = pool.committed().unwrap();
    let old = view.dataset("tank/a@s").unwrap().file_system().unwrap();
    let old = node(&old, "source");
    pool.datasets()
        .destroy("tank/a@s", Default::default())
        .unwrap();
    let copied = copy_file(&a, &old, "copy");
    assert!(bytes_of(&copied) == content(4));
    pool.sync().unwrap();
    assert!(bytes_of(&copied) == content(4));
    assert_eq!(judged(&world), CloneTotals::default());
    drop((copied, old, view, a));
    finish(pool, &world, "a copy of a destroyed snapshot");
}

#[test]
fn clones_count_against_quotas() {
    let world = World::without_journal(521);
    let pool = pool_on(&world, &[(Single, 1)]);
    let a = pool.file_system("tank/a").unwrap();
    let source = make(&a, "source", &noise(3, 4 << 20));
    pool.sync().unwrap();
    let quota = [number("quota", 6 << 20)];
    pool.datasets().set_properties("tank/b", &quota).unwrap();
    let b = pool.file_system("tank/b").unwrap();
    let first = copy_file(&b, &source, "first");
    let second = make(&b, "second", &[]);
    let refused = b.copy_range(&Caller::root(), (&source, 0), (&second, 0), 4 << 20);
    let copied = refused.unwrap_or(0);
    assert!(copied < 4 << 20, "{copied}");
    pool.sync().unwrap();
    let view = pool.committed().unwrap();
    let used = view
        .dataset("tank/b")
        .unwrap()
        .inner()
        .phys()
        .referenced_bytes;
    assert!(used <= 6 << 20, "{used}");
    drop((first, second, source, a, b, view));
    finish(pool, &world, "quotas");
}

/// What a txg clones and what it frees in the same moment: the references come first.
#[test]
fn a_source_is_destroyed_in_the_txg_of_its_clone() {
    type Destroy = fn(&Pool);
    let ways: [(&str, Destroy); 3] = [
        ("snapshot", |pool| {
            let a = pool.file_system("tank/a").unwrap();
            remove(&a, "source");
            drop(a);
            let datasets = pool.datasets();
            datasets.destroy("tank/a@s", Default::default()).unwrap();
        }),
        ("rollback", |pool| {
            pool.datasets().rollback("tank/a@s").unwrap()
        }),
        ("dataset", |pool| {
            let datasets = pool.datasets();
            datasets.destroy("tank/a@s", Default::default()).unwrap();
            datasets.destroy("tank/a", Default::default()).unwrap();
        }),
    ];
    for (way, destroy) in ways {
        let world = World::without_journal(550);
        let pool = pool_on(&world, &[(Single, 1)]);
        let a = pool.file_system("tank/a").unwrap();
        let source = make(&a, "source", &content(4));
        pool.sync().unwrap();
        pool.datasets().snapshot(&["tank/a@s"], &[]).unwrap();
        (a.write(&Caller::root(), &source, WriteAt::Offset(0), &content(5))).unwrap();
        pool.sync().unwrap();
        let before = pool.inner().groups().open_txg();
        let view = pool.committed().unwrap();
        let old = view.dataset("tank/a@s").unwrap().file_system().unwrap();
        let b = pool.file_system("tank/b").unwrap();
        let from_head = copy_file(&b, &source, "from head");
        let from_snapshot = copy_file(&b, &node(&old, "source"), "from snapshot");
        drop((source, old, view, a));
        assert_eq!(pool.inner().groups().open_txg(), before, "one txg");
        destroy(&pool);
        for _ in 0..5 {
            pool.sync().unwrap();
        }
        judged(&world);
        assert!(bytes_of(&from_head) == content(5), "{way}");
        assert!(bytes_of(&from_snapshot) == content(4), "{way}");
        drop((from_head, from_snapshot, b));
        finish(pool, &world, way);
    }
}

/// The list by which a clone of a dataset is destroyed has several entries of one block.
#[test]
fn a_livelist_frees_blocks_that_its_files_share() {
    let _mark = mark::expect("clone-freed-by-livelist");
    let world = World::without_journal(551);
    let pool = pool_on(&world, &[(Single, 1)]);
    let a = pool.file_system("tank/a").unwrap();
    let large = noise(4, 8 << 20);
    let source = make(&a, "source", &large);
    pool.sync().unwrap();
    let datasets = pool.datasets();
    datasets.snapshot(&["tank/a@s"], &[]).unwrap();
    datasets.clone_snapshot("tank/a@s", "tank/c", &[]).unwrap();
    let c = pool.file_system("tank/c").unwrap();
    let own = make(&c, "own", &content(6));
    pool.sync().unwrap();
    for name in ["one", "two", "three"] {
        copy_file(&c, &own, name);
        let part = make(&c, &format!("{name} of the origin"), &[]);
        let length = 3 * RECORD as usize;
        copy(&c, (&node(&c, "source"), 0), (&part, 0), length);
        pool.sync().unwrap();
    }
    let outside = copy_file(&a, &own, "outside");
    drop(own);
    remove(&c, "own");
    remove(&c, "two");
    remove(&c, "one of the origin");
    (c.write(
        &Caller::root(),
        &node(&c, "one"),
        WriteAt::Offset(0),
        &content(7),
    ))
    .unwrap();
    copy_file(&c, &node(&c, "three"), "four");
    pool.sync().unwrap();
    judged(&world);
    drop(c);
    datasets.destroy("tank/c", Default::default()).unwrap();
    for _ in 0..5 {
        pool.sync().unwrap();
        judged(&world);
    }
    assert!(bytes_of(&outside) == content(6));
    assert!(bytes_of(&source) == large);
    assert_eq!(judged(&world), CloneTotals::default());
    drop((outside, source, a));
    finish(pool, &world, "livelist");
}
