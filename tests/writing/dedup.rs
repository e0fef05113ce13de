//! Equal blocks are stored once: written, verified, cloned, snapshotted and freed in every way. `zdb` counts the references.

use crate::cloning::{RECORD, bytes_of, copy_file, judged, judged_by_zdb, make, node, remove};
use crate::encryption::{KEY, unlock};
use crate::sim;
use millpond_engine::{
    Caller, NewLayout, NewLayout::Mirror, NewLayout::Raidz, NewLayout::Single, Pool, PropertyValue,
    WriteAt,
};
use millpond_env::mark;
use millpond_pool::{CloneTotals, DedupTotals, PruneBy};
use millpond_sim::{Seed, World, noise};
use millpond_tests::oracle::zdb;
use millpond_tests::workload::text;
use millpond_vdev::AllocationClass;
use std::collections::BTreeMap;

/// Six records of which two are equal, and a short last one.
pub(crate) fn content(seed: u64) -> Vec<u8> {
    let record = |number: u64| noise(seed * 1000 + number, RECORD as usize);
    let records = [0, 1, 2, 1, 3, 4].map(record);
    let mut bytes = records.concat();
    bytes.extend(noise(seed, RECORD as usize / 2));
    bytes
}

/// A pool with the deduplicated file systems `tank/a` and `tank/b`.
pub(crate) fn pool_on(
    world: &World,
    tops: &[(NewLayout, usize)],
    dedup: &str,
    is_fast: bool,
) -> Pool {
    let tops: Vec<_> = tops
        .iter()
        .map(|(layout, count)| (AllocationClass::Normal, *layout, *count))
        .collect();
    let without = (!is_fast).then_some("fast_dedup");
    let pool = sim::create_without(world, &tops, 128, sim::by_caller(), without);
    with_file_systems(&pool, dedup);
    pool
}

fn with_file_systems(pool: &Pool, dedup: &str) {
    let datasets = pool.datasets();
    let record = ("recordsize".to_owned(), PropertyValue::Number(RECORD));
    let dedup = text("dedup", dedup);
    let properties = [record, dedup, text("compression", "lz4")];
    datasets.set_properties("tank", &properties).unwrap();
    datasets.create_filesystem("tank/a", &[]).unwrap();
    datasets.create_filesystem("tank/b", &[]).unwrap();
}

/// Checks the last committed state. Returns the sums of the dedup tables.
pub(crate) fn counted(world: &World) -> DedupTotals {
    judged(world);
    let view = sim::read(world).unwrap();
    view.inner().space().unwrap().dedup.clone()
}

/// What `zdb -DD` counts: blocks, references and the ratio.
fn counted_by_zdb(world: &World) -> Option<(u64, u64, String)> {
    if zdb::absent().is_some() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    sim::to_files(world, folder.path());
    let output = zdb::run(folder.path(), &["-PDD", "tank"]).unwrap();
    assert_eq!(output.status, Some(0), "{output:?}");
    let total = output.lines.iter().rev();
    let total = total.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let total = total
        .into_iter()
        .find(|words| words.first() == Some(&"Total"));
    let number = |at: usize| total.as_ref().map_or(0, |words| words[at].parse().unwrap());
    let ratio = output
        .lines
        .iter()
        .find_map(|line| line.strip_prefix("dedup = "));
    let ratio = ratio.unwrap_or("1.00").split(',').next().unwrap();
    Some((number(1), number(5), ratio.to_owned()))
}

fn compare_with_zdb(world: &World) {
    let own = counted(world);
    let total = own.total();
    let ratio = total.referenced_allocated_bytes as f64 / total.allocated_bytes as f64;
    let ratio = format!("{ratio:.2}");
    if let Some(found) = counted_by_zdb(world) {
        let expected = (total.blocks, total.referenced_blocks);
        assert_eq!((found.0, found.1), expected, "{own:?}");
        if total.blocks > 0 {
            assert_eq!(found.2, ratio);
        }
    }
}

pub(crate) fn finish(pool: Pool, world: &World, what: &str) {
    pool.export().unwrap();
    compare_with_zdb(world);
    judged_by_zdb(world, what);
}

fn blocks(world: &World) -> (u64, u64) {
    let total = counted(world).total();
    (total.blocks, total.referenced_blocks)
}

fn files_in_two_file_systems(dedup: &str, tops: &[(NewLayout, usize)], is_fast: bool) {
    let world = World::without_journal(600);
    let pool = pool_on(&world, tops, dedup, is_fast);
    let a = pool.file_system("tank/a").unwrap();
    let b = pool.file_system("tank/b").unwrap();
    make(&a, "one", &content(1));
    make(&a, "two", &content(1));
    make(&a, "other", &content(2));
    pool.sync().unwrap();
    assert_eq!(blocks(&world), (12, 21), "within one txg");
    make(&b, "one", &content(1));
    pool.sync().unwrap();
    assert_eq!(blocks(&world), (12, 28), "in a later txg");
    for (files, name, seed) in [
        (&a, "one", 1),
        (&a, "two", 1),
        (&a, "other", 2),
        (&b, "one", 1),
    ] {
        assert!(bytes_of(&node(files, name)) == content(seed), "{name}");
    }
    // Overwritten, and with the content of another file.
    let two = node(&a, "two");
    let bytes = &content(2)[..2 * RECORD as usize];
    (a.write(&Caller::root(), &two, WriteAt::Offset(0), bytes)).unwrap();
    pool.sync().unwrap();
    assert_eq!(blocks(&world), (12, 28));
    remove(&a, "other");
    pool.sync().unwrap();
    assert_eq!(blocks(&world), (8, 21));
    // Freed and written again in one txg.
    remove(&b, "one");
    make(&b, "again", &content(1));
    pool.sync().unwrap();
    assert_eq!(blocks(&world), (8, 21));
    compare_with_zdb(&world);
    judged_by_zdb(&world, "before the end");
    drop((two, a, b));
    let names = ["tank/a/one", "tank/a/two", "tank/b/again"];
    for name in names {
        let (set, file) = name.rsplit_once('/').unwrap();
        remove(&pool.file_system(set).unwrap(), file);
        pool.sync().unwrap();
        counted(&world);
    }
    assert_eq!(blocks(&world), (0, 0));
    let features = sim::read(&world).unwrap().inner().features().clone();
    let expected = is_fast.then_some(0);
    assert_eq!(features.count("com.klarasystems:fast_dedup"), expected);
    finish(pool, &world, dedup);
}

#[test]
fn equal_blocks_are_stored_once_in_a_fast_table() {
    files_in_two_file_systems("on", &[(Single, 1)], true);
}

#[test]
fn equal_blocks_are_stored_once_in_a_legacy_table() {
    files_in_two_file_systems("on", &[(Single, 1)], false);
}

#[test]
fn every_checksum_function_and_layout_does() {
    let cases: [(&str, &[(NewLayout, usize)]); 8] = [
        ("verify", &[(Mirror, 2)]),
        ("sha256,verify", &[(Single, 1), (Single, 1)]),
        ("sha512", &[(Raidz(1), 3)]),
        ("sha512,verify", &[(Single, 1)]),
        ("skein", &[(Raidz(2), 4)]),
        ("edonr,verify", &[(Single, 1)]),
        ("blake3", &[(Single, 1)]),
        ("blake3,verify", &[(Mirror, 2)]),
    ];
    for (number, (dedup, tops)) in cases.into_iter().enumerate() {
        files_in_two_file_systems(dedup, tops, number % 2 == 0);
    }
}

#[test]
fn encrypted_blocks_of_one_key_are_shared() {
    for (suite, is_fast) in [("aes-256-gcm", true), ("aes-128-ccm", false)] {
        let world = World::without_journal(601);
        let pool = pool_on(&world, &[(Single, 1)], "on", is_fast);
        crate::encryption::root(&world, &pool, "tank/e", suite, &[]);
        let datasets = pool.datasets();
        datasets.create_filesystem("tank/e/x", &[]).unwrap();
        crate::encryption::root(&world, &pool, "tank/f", suite, &[]);
        let e = pool.file_system("tank/e").unwrap();
        let f = pool.file_system("tank/f").unwrap();
        make(&e, "one", &content(1));
        make(&e, "two", &content(1));
        make(&f, "one", &content(1));
        pool.sync().unwrap();
        assert_eq!(blocks(&world), (12, 21), "of other master keys: apart");
        pool.sync().unwrap();
        let copied = copy_file(&e, &node(&e, "one"), "copy");
        pool.sync().unwrap();
        assert!(bytes_of(&copied) == content(1));
        assert_eq!(blocks(&world), (12, 28));
        remove(&e, "one");
        remove(&e, "two");
        pool.sync().unwrap();
        assert!(bytes_of(&copied) == content(1));
        drop((copied, e, f));
        compare_with_zdb(&world);
        finish(pool, &world, suite);
        let pool = sim::open(&world).unwrap();
        unlock(&pool, "tank/e", KEY);
        let e = pool.file_system("tank/e").unwrap();
        assert!(bytes_of(&node(&e, "copy")) == content(1));
    }
}

/// Clones of blocks with entries are references of the entries; of pruned blocks, of the clone tables.
#[test]
fn clones_and_pruned_entries_count_where_they_belong() {
    let _pruned = mark::expect("dedup-entry-pruned");
    let world = World::without_journal(602);
    let pool = pool_on(&world, &[(Single, 1)], "on", true);
    let a = pool.file_system("tank/a").unwrap();
    let source = make(&a, "source", &noise(1, 6 * RECORD as usize));
    pool.sync().unwrap();
    let copied = copy_file(&a, &source, "copy");
    pool.sync().unwrap();
    assert_eq!(blocks(&world), (6, 12));
    assert_eq!(judged(&world), CloneTotals::default());
    drop(copied);
    remove(&a, "copy");
    let settle = || {
        for round in 0..24 {
            (a.write(
                &Caller::root(),
                &source,
                WriteAt::Offset(6 * RECORD),
                &[round; 9],
            ))
            .unwrap();
            pool.sync().unwrap();
        }
    };
    settle();
    world.advance(100_000_000_000);
    let pruned = pool.inner().prune_dedup(PruneBy::Age(50)).unwrap();
    assert_eq!(pruned.pruned, 6, "{pruned:?}");
    counted(&world);
    judged_by_zdb(&world, "pruned");
    let copied = copy_file(&a, &source, "copy");
    pool.sync().unwrap();
    assert_eq!(judged(&world).entries, 6, "the table has forgotten them");
    // The same content is new to the table.
    let again = make(&a, "again", &noise(1, 6 * RECORD as usize));
    pool.sync().unwrap();
    counted(&world);
    let third = copy_file(&a, &again, "third");
    pool.sync().unwrap();
    // zdb 2.3.2 ends with an assertion where a key has a new block while a pruned one is in use.
    for (order, name) in [(0, "source"), (1, "again"), (2, "copy"), (3, "third")] {
        for (number, left) in [&source, &again, &copied, &third].into_iter().enumerate() {
            if number >= order {
                let mut bytes = bytes_of(left);
                bytes.truncate(6 * RECORD as usize);
                assert!(bytes == noise(1, 6 * RECORD as usize), "{name}");
            }
        }
        remove(&a, name);
        pool.sync().unwrap();
        counted(&world);
    }
    drop((source, again, copied, third));
    a.reap().unwrap();
    pool.sync().unwrap();
    assert_eq!(judged(&world), CloneTotals::default());
    assert_eq!(blocks(&world), (0, 0));
    drop(a);
    finish(pool, &world, "pruned and freed");
}

/// Random files of equal content in snapshots, clones and heads, with other properties from time to time.
fn random_files(seed: u64, is_fast: bool, tops: &[(NewLayout, usize)]) {
    let world = World::without_journal(seed);
    let mut pool = pool_on(&world, tops, "on", is_fast);
    let mut random = Seed::new(seed);
    let mut files: BTreeMap<(usize, u64), Vec<u8>> = BTreeMap::new();
    let sets = ["tank/a", "tank/b"];
    let mut snapshots: Vec<String> = vec![];
    for round in 0..60u64 {
        let at = random.below(2) as usize;
        let files_of = pool.file_system(sets[at]).unwrap();
        let number = random.below(6);
        let name = format!("f{number}");
        match random.below(10) {
            0..4 => {
                let bytes = content(1 + random.below(4));
                if files.insert((at, number), bytes.clone()).is_some() {
                    remove(&files_of, &name);
                }
                make(&files_of, &name, &bytes);
            }
            4 => {
                if files.remove(&(at, number)).is_some() {
                    remove(&files_of, &name);
                }
            }
            5 => {
                if let Some(bytes) = files.get_mut(&(at, number)) {
                    let part = content(1 + random.below(4));
                    let (from, to) = (random.below(7) * RECORD, random.below(7) * RECORD);
                    let end = (from + 2 * RECORD).min(part.len() as u64);
                    let part = &part[from.min(end) as usize..end as usize];
                    let end = to as usize + part.len();
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[to as usize..end].copy_from_slice(part);
                    let node = node(&files_of, &name);
                    (files_of.write(&Caller::root(), &node, WriteAt::Offset(to), part)).unwrap();
                    if random.below(2) == 0 {
                        files_of.fsync(&node).unwrap();
                    }
                }
            }
            6 => {
                let source = (files.iter()).nth(random.below(12) as usize);
                if let Some(((from, file), bytes)) = source
                    && !files.contains_key(&(at, number))
                {
                    let bytes = bytes.clone();
                    let from_files = pool.file_system(sets[*from]).unwrap();
                    let source = node(&from_files, &format!("f{file}"));
                    let to = make(&files_of, &name, &[]);
                    let copied = files_of.copy_range(
                        &Caller::root(),
                        (&source, 0),
                        (&to, 0),
                        bytes.len() as u64,
                    );
                    assert_eq!(copied.unwrap(), bytes.len() as u64);
                    files.insert((at, number), bytes);
                }
            }
            7 => {
                let name = format!("{}@s{round}", sets[at]);
                pool.datasets().snapshot(&[name.as_str()], &[]).unwrap();
                snapshots.push(name);
            }
            8 => {
                if !snapshots.is_empty() {
                    let at = random.below(snapshots.len() as u64) as usize;
                    let name = snapshots.swap_remove(at);
                    (pool.datasets().destroy(&name, Default::default())).unwrap();
                }
            }
            _ => {
                let dedup = ["on", "off", "verify", "sha512", "blake3"];
                let dedup = dedup[random.below(5) as usize];
                let copies = ["1", "1", "2", "3"][random.below(4) as usize];
                let set = [text("dedup", dedup), text("copies", copies)];
                pool.datasets().set_properties(sets[at], &set).unwrap();
            }
        }
        drop(files_of);
        if random.below(3) == 0 {
            pool.sync().unwrap();
            counted(&world);
        }
        if round % 20 == 19 {
            finish(pool, &world, &format!("seed {seed}, round {round}"));
            pool = sim::open(&world).unwrap();
        }
        for ((at, number), bytes) in &files {
            let files = pool.file_system(sets[*at]).unwrap();
            assert!(bytes_of(&node(&files, &format!("f{number}"))) == *bytes);
        }
    }
    for name in snapshots.iter().chain(&sets.map(str::to_owned)) {
        pool.datasets().destroy(name, Default::default()).unwrap();
        pool.sync().unwrap();
        counted(&world);
    }
    for _ in 0..4 {
        pool.sync().unwrap();
    }
    assert_eq!(blocks(&world), (0, 0));
    finish(pool, &world, &format!("seed {seed}"));
}

#[test]
fn random_files_of_fast_tables_keep_their_bytes() {
    random_files(610, true, &[(Single, 1)]);
    random_files(611, true, &[(Raidz(1), 3)]);
}

#[test]
fn random_files_of_legacy_tables_keep_their_bytes() {
    random_files(612, false, &[(Single, 1), (Single, 1)]);
}
