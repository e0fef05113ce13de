//! Which sides a sequential resilver copies from while one of them is silently wrong: it does not verify what it reads.

use crate::attach::of_disk;
use crate::cloning::{bytes_of, content, make, node, pool_on};
use crate::exhaustive::judge;
use crate::rebuild::{attach, finish_with};
use crate::scan::scrub;
use crate::sim;
use millpond_device::Device;
use millpond_engine::{AttachKind::Replacement, NewLayout::Mirror, Pool};
use millpond_sim::{World, noise};

const SECTOR: usize = 512;
const NAMES: [&str; 2] = ["first", "second"];

/// A mirror of two disks with two files.
fn with_files(world: &World) -> Pool {
    let pool = pool_on(world, &[(Mirror, 2)]);
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

#[test]
fn a_replacement_is_copied_from_the_side_that_it_replaces() {
    for number in [0, 1] {
        let world = World::without_journal(180);
        let pool = with_files(&world);
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
    let pool = with_files(&world);
    for number in [0, 1] {
        spoil(&world, number, number);
        let disk = world.disk(128 << 20, 512);
        attach(&pool, of_disk(&pool, number), &disk, Replacement).unwrap();
    }
    replaced(&world, pool, "both are replaced");
}
