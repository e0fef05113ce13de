//! Copies of devices that lie beside the originals when a pool is imported: the devices that belong together are used, or
//! none for writing.

use crate::exhaustive::{files_of, judge};
use crate::sim;
use millpond_device::Candidate;
use millpond_engine::{
    Caller,
    NewLayout::{Mirror, Single},
    NewMode, Pool, WriteAt,
};
use millpond_pool::import::{ImportCondition, PoolCandidate, find_pools, scan_devices};
use millpond_sim::{Content, SimDisk, World};
use std::sync::Arc;

const MIB: u64 = 96;

fn write(pool: &Pool, name: &str) {
    let files = pool.file_system("tank").unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o600);
    let created = files.create(&caller, &root, name.as_bytes(), mode, true);
    let (node, _) = created.unwrap();
    let content = name.as_bytes().repeat(3000);
    let at = WriteAt::Offset(0);
    files.write(&caller, &node, at, &content).unwrap();
    drop((node, files, root));
    pool.sync().unwrap();
}

fn names(pool: &Pool) -> Vec<String> {
    let files = files_of(&pool.committed().unwrap()).unwrap();
    let names = files.keys();
    names
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

fn found(disks: &[(&str, &Arc<SimDisk>)]) -> PoolCandidate {
    let candidates = disks.iter().map(|(path, disk)| Candidate {
        path: (*path).into(),
        aliases: vec![],
        partition: None,
        device: Arc::clone(disk) as _,
        is_live: false,
    });
    let mut pools = find_pools(&scan_devices(candidates.collect()), 0);
    assert_eq!(pools.len(), 1);
    pools.remove(0)
}

/// Uses copies of devices on another system.
fn used_elsewhere(seed: u64, contents: Vec<Content>, writes: usize) -> Vec<Arc<SimDisk>> {
    let world = World::without_journal(seed);
    for content in contents {
        let _disk = world.disk_with(MIB << 20, 512, content);
    }
    let pool = sim::open(&world).unwrap();
    for number in 0..writes {
        write(&pool, &format!("elsewhere-{number}"));
    }
    pool.export().unwrap();
    world.disks()
}

fn pages(disk: &SimDisk) -> Vec<(u64, Vec<u8>)> {
    let content = disk.content();
    let pages = content.pages();
    pages.map(|(at, page)| (at, page.to_vec())).collect()
}

fn rivals(candidate: &PoolCandidate) -> Vec<usize> {
    let conditions = candidate.conditions.iter();
    let rivals = conditions.filter_map(|condition| match condition {
        ImportCondition::DuplicateDevice { rivals, .. } => Some(rivals.len()),
        _ => None,
    });
    rivals.collect()
}

#[test]
fn a_copy_of_one_side_used_elsewhere_does_not_displace_the_pool() {
    for (writes, there_first) in [(2, false), (40, false), (40, true)] {
        let what = format!("{writes} writes elsewhere, {there_first}");
        let world = World::without_journal(211);
        let pool = sim::create(&world, &[(Mirror, 2)], MIB);
        write(&pool, "both");
        pool.export().unwrap();
        let copy = used_elsewhere(212, vec![world.disks()[0].content()], writes).remove(0);
        let pool = sim::open(&world).unwrap();
        write(&pool, "new");
        pool.export().unwrap();
        let before = pages(&copy);
        let disks = world.disks();
        let mut list = vec![("/a", &disks[0]), ("/b", &disks[1]), ("/copy", &copy)];
        if there_first {
            list.rotate_right(1);
        }
        let candidate = found(&list);
        assert_eq!(rivals(&candidate), [0], "{what}");
        let pool = sim::open_candidate(&world, &candidate).unwrap();
        assert_eq!(names(&pool), ["both", "new"], "{what}");
        write(&pool, "newer");
        pool.export().unwrap();
        assert!(pages(&copy) == before, "{what}: the copy was written to");
        judge(&world, &what);
        for alone in [0, 1] {
            let pool = sim::open_candidate(&world, &found(&[("/one", &disks[alone])])).unwrap();
            assert_eq!(names(&pool), ["both", "new", "newer"], "{what}");
            sim::verify_blocks(&pool.committed().unwrap()).unwrap();
            drop(pool);
        }
    }
}

/// The originals were not used since: what the copy has may be all that was written, or that of another system.
#[test]
fn a_copy_that_goes_on_where_the_pool_ends_is_not_chosen_silently() {
    let world = World::without_journal(213);
    let pool = sim::create(&world, &[(Mirror, 2)], MIB);
    write(&pool, "both");
    pool.export().unwrap();
    let copy = used_elsewhere(214, vec![world.disks()[0].content()], 3).remove(0);
    let disks = world.disks();
    let before: Vec<_> = disks.iter().map(|disk| pages(disk)).collect();
    let candidate = found(&[("/a", &disks[0]), ("/b", &disks[1]), ("/copy", &copy)]);
    assert_eq!(rivals(&candidate), [2]);
    let refused = sim::open_candidate(&world, &candidate).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("/copy and /a"), "{text}");
    assert!(disks.iter().map(|disk| pages(disk)).eq(before));
    let candidate = found(&[("/a", &disks[0]), ("/b", &disks[1])]);
    let pool = sim::open_candidate(&world, &candidate).unwrap();
    assert_eq!(names(&pool), ["both"]);
}

#[test]
fn disks_of_a_stripe_and_of_its_copy_are_not_mixed() {
    let world = World::without_journal(215);
    let pool = sim::create(&world, &[(Single, 1), (Single, 1)], MIB);
    write(&pool, "both");
    pool.export().unwrap();
    let contents = world.disks().iter().map(|disk| disk.content()).collect();
    let copies = used_elsewhere(216, contents, 3);
    let pool = sim::open(&world).unwrap();
    for name in ["new-1", "new-2", "new-3"] {
        write(&pool, name);
    }
    pool.export().unwrap();
    let disks = world.disks();
    let all = [&disks[0], &disks[1], &copies[0], &copies[1]];
    let before: Vec<_> = all.iter().map(|disk| pages(disk)).collect();
    let candidate = found(&[
        ("/a1", &disks[0]),
        ("/d2", &copies[1]),
        ("/c2", &copies[0]),
        ("/b1", &disks[1]),
    ]);
    assert_eq!(rivals(&candidate), [2, 2]);
    let refused = sim::open_candidate(&world, &candidate).unwrap_err();
    let text = refused.to_string();
    for path in ["/a1", "/b1", "/c2", "/d2"] {
        assert!(text.contains(path), "{text}");
    }
    // Those of one set belong together.
    for (list, own) in [
        (
            [("/a1", &disks[0]), ("/b1", &disks[1]), ("/d2", &copies[1])],
            true,
        ),
        (
            [("/d2", &copies[1]), ("/b1", &disks[1]), ("/a1", &disks[0])],
            true,
        ),
        (
            [("/a1", &disks[0]), ("/c2", &copies[0]), ("/d2", &copies[1])],
            false,
        ),
    ] {
        let candidate = found(&list);
        assert_eq!(rivals(&candidate), [0]);
        let used = candidate.members().map(|leaf| leaf.path());
        assert!(used.into_iter().all(|path| path.ends_with('1') == own));
    }
    assert!(all.iter().map(|disk| pages(disk)).eq(before));
    let candidate = found(&[("/a1", &disks[0]), ("/b1", &disks[1]), ("/d2", &copies[1])]);
    let pool = sim::open_candidate(&world, &candidate).unwrap();
    assert_eq!(names(&pool), ["both", "new-1", "new-2", "new-3"]);
    pool.export().unwrap();
    judge(&world, "beside a copy");
}

#[test]
fn equal_copies_and_older_ones_are_no_obstacle() {
    let world = World::without_journal(217);
    let pool = sim::create(&world, &[(Mirror, 2), (Single, 1)], MIB);
    write(&pool, "first");
    pool.export().unwrap();
    let older: Vec<Content> = world.disks().iter().map(|disk| disk.content()).collect();
    let pool = sim::open(&world).unwrap();
    write(&pool, "second");
    pool.export().unwrap();
    let others = World::without_journal(218);
    let equal: Vec<Content> = world.disks().iter().map(|disk| disk.content()).collect();
    let copy = |content: &Content| others.disk_with(MIB << 20, 512, content.clone());
    let older: Vec<_> = older.iter().map(copy).collect();
    let equal: Vec<_> = equal.iter().map(copy).collect();
    let disks = world.disks();
    let own = [("/a", &disks[0]), ("/b", &disks[1]), ("/c", &disks[2])];
    for copies in [
        vec![&older[0]],
        vec![&equal[1]],
        older.iter().collect(),
        equal.iter().collect(),
    ] {
        let copies: Vec<_> = copies.into_iter().map(|disk| ("/copy", disk)).collect();
        for list in [[&own[..], &copies].concat(), [&copies, &own[..]].concat()] {
            let candidate = found(&list);
            assert_eq!(rivals(&candidate), vec![0; copies.len()]);
            assert!(candidate.undecided_copies().is_empty());
            let newest = candidate.newest().unwrap().uberblock.txg;
            assert_eq!(newest, found(&own).newest().unwrap().uberblock.txg);
            let leaves = candidate.assembly.unwrap().leaves;
            assert!(leaves.iter().all(|leaf| leaf.stale_since.is_none()));
        }
    }
}
