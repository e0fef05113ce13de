//! Which sides a sequential resilver copies from while one of them is silently wrong: it does not verify what it reads.

use crate::attach::of_disk;
use crate::cloning::{bytes_of, content, make, node, pool_on};
use crate::exhaustive::judge;
use crate::rebuild::{attach, finish_with};
use crate::scan::{finish, scrub};
use crate::sim;
use millpond_device::Device;
use millpond_engine::{
    AttachKind::Replacement,
    NewLayout::{Mirror, Single},
    Pool, ScrubRange,
};
use millpond_sim::{World, noise};
use std::sync::Arc;

const SECTOR: usize = 512;
const NAMES: [&str; 2] = ["first", "second"];

/// A disk or mirror with two files.
fn with_files(world: &World, disks: usize) -> Pool {
    let layout = if disks == 1 { Single } else { Mirror };
    let pool = pool_on(world, &[(layout, disks)]);
    let files = pool.file_system("tank/a").unwrap();
    for (name, seed) in NAMES.iter().zip(1..) {
        make(&files, name, &content(seed));
    }
    drop(files);
    pool.sync().unwrap();
    pool
}

/// Damages each sector of a disk that has bytes of one of the two files.
fn spoil(world: &World, disk: usize, file: usize) {
    let disk = &world.disks()[disk];
    let bytes = content(1 + file as u64);
    let own: Vec<&[u8]> = bytes.chunks_exact(SECTOR).collect();
    let pages: Vec<u64> = disk.content().pages().map(|(offset, _)| offset).collect();
    let mut spoiled = 0;
    for offset in pages {
        let mut page = vec![0; 4096];
        disk.read(offset, &mut page).unwrap();
        for (at, sector) in (offset..).step_by(SECTOR).zip(page.chunks(SECTOR)) {
            if own.contains(&sector) {
                disk.rot(at, &noise(at, SECTOR));
                spoiled += 1;
            }
        }
    }
    // The last block is compressed.
    assert!(spoiled * 10 > own.len() * 9, "{spoiled} of {}", own.len());
}

/// Copies to the end. The replaced sides go, and a scrub repairs what is wrong.
fn replaced(world: &World, pool: Pool, what: &str) {
    finish_with(&pool, |_| ());
    assert!(pool.inner().take_scrub_due());
    assert!(pool.inner().finish_replacements().unwrap() > 0);
    let scan = scrub(&pool);
    assert!(scan.processed_bytes > 0, "{what}");
    assert_eq!(scan.errors, 0, "{what}");
    are_whole(world, pool, what);
}

fn are_whole(world: &World, pool: Pool, what: &str) {
    pool.export().unwrap();
    let view = sim::read(world).unwrap();
    sim::verify(&view).unwrap_or_else(|found| panic!("{what}: {found}"));
    let files = view.dataset("tank/a").unwrap().file_system().unwrap();
    for (name, seed) in NAMES.iter().zip(1..) {
        let found = bytes_of(&node(&files, name));
        assert!(found == content(seed), "{what}: {name}");
    }
    judge(world, what);
}

/// What was copied is compared with nothing before the scrub: until then the replaced side stays.
#[test]
fn a_replaced_side_stays_until_the_copy_is_verified() {
    let world = World::without_journal(182);
    let pool = with_files(&world, 1);
    let disk = world.disk(128 << 20, 512);
    attach(&pool, of_disk(&pool, 0), &disk, Replacement).unwrap();
    finish_with(&pool, |_| ());
    // The new disk wrote something else than it was given.
    spoil(&world, 1, 0);
    let inner = pool.inner();
    assert_eq!(inner.finish_replacements().unwrap(), 0);
    assert!(inner.take_scrub_due());
    inner.start_scrub(ScrubRange::All).unwrap();
    assert!(!inner.has_finished_replacement());
    finish(&pool);
    assert_eq!(inner.finish_replacements().unwrap(), 1);
    let (scan, _) = inner.scan().unwrap();
    assert!(scan.processed_bytes > 0);
    assert_eq!(scan.errors, 0);
    world.disks()[0].set_absent(true);
    are_whole(&world, pool, "one disk is replaced");
}

/// It is newer than the copy, but says nothing of what was copied.
#[test]
fn a_resilver_of_others_does_not_let_a_replaced_side_go() {
    let world = World::without_journal(183);
    let pool = pool_on(&world, &[(Single, 1), (Mirror, 2)]);
    let inner = pool.inner();
    let disk = world.disk(128 << 20, 512);
    attach(&pool, of_disk(&pool, 0), &disk, Replacement).unwrap();
    finish_with(&pool, |_| ());
    let away = of_disk(&pool, 2);
    inner.offline_leaf(away, Default::default()).unwrap();
    make(&pool.file_system("tank/a").unwrap(), "first", &content(1));
    pool.sync().unwrap();
    let device = Arc::clone(&world.disks()[2]) as _;
    inner.online_leaf(away, Some(&device)).unwrap();
    assert!(inner.start_resilver().unwrap());
    finish(&pool);
    assert!(!inner.needs_resilver());
    assert_eq!(inner.finish_replacements().unwrap(), 0);
    assert!(inner.take_scrub_due());
    inner.start_scrub(ScrubRange::All).unwrap();
    assert!(!inner.has_finished_replacement());
    finish(&pool);
    assert_eq!(inner.finish_replacements().unwrap(), 1);
    pool.export().unwrap();
    judge(&world, "a resilver meanwhile");
}

#[test]
fn a_replacement_is_copied_from_the_side_that_it_replaces() {
    for number in [0, 1] {
        let world = World::without_journal(180);
        let pool = with_files(&world, 2);
        let disk = world.disk(128 << 20, 512);
        // The other one is wrong.
        for file in [0, 1] {
            spoil(&world, 1 - number, file);
        }
        attach(&pool, of_disk(&pool, number), &disk, Replacement).unwrap();
        replaced(&world, pool, &format!("disk {number} is replaced"));
    }
}

/// Each new side gets what its own predecessor has.
#[test]
fn two_replacements_of_a_mirror_are_copied_from_two_sides() {
    let world = World::without_journal(181);
    let pool = with_files(&world, 2);
    for number in [0, 1] {
        spoil(&world, number, number);
        let disk = world.disk(128 << 20, 512);
        attach(&pool, of_disk(&pool, number), &disk, Replacement).unwrap();
    }
    replaced(&world, pool, "both are replaced");
}
