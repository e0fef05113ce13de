//! Gang blocks whose headers are lost on all disks.
//!
//! Their pieces leak when they are freed. Everything else is freed, and the pool keeps working. A header that is left at
//! another address is restored by a scrub.

use crate::{scan, sim};
use millpond_block::BlockAddress;
use millpond_check::{CheckOptions, FindingKind, check_pool};
use millpond_engine::{Caller, FileError, NewLayout, NewMode, Pool, WriteAt};
use millpond_env::mark;
use millpond_ondisk::{BlockId, BlockPointer, Dva, Level};
use millpond_sim::{PowerCut, World, noise};

/// One record, in pieces that are gang blocks too.
const RECORD: usize = 128 << 10;
const PIECE_MAX: u64 = 16 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// The header that the file's pointer names.
    Leader,
    /// The header of one piece.
    Piece,
}

/// How the blocks of the file are freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Freed {
    Unlinked,
    /// The removal is in the intent log when the power fails.
    Logged,
    WithSnapshot,
}

fn write(pool: &Pool, name: &str, seed: u64) {
    let files = pool.file_system("tank").unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o644);
    let (node, _) = (files.create(&caller, &root, name.as_bytes(), mode, false)).unwrap();
    let content = noise(seed, 3 * RECORD);
    files
        .write(&caller, &node, WriteAt::Offset(0), &content)
        .unwrap();
}

fn unlink(pool: &Pool, name: &str) {
    let files = pool.file_system("tank").unwrap();
    files
        .unlink(&files.root().unwrap(), name.as_bytes())
        .unwrap();
    files.commit_log().unwrap();
}

/// The pointer to the second record of `name`, and all space that it owns.
fn second_record(pool: &Pool, name: &[u8]) -> (BlockPointer, Vec<Dva>) {
    let committed = pool.committed().unwrap();
    let files = committed.dataset("tank").unwrap().file_system().unwrap();
    let node = files.root().unwrap().lookup(name).unwrap();
    let object = node.object().committed().unwrap();
    let pointer = object.pointer(Level(0), BlockId(1)).unwrap();
    let store = pool.inner().store();
    let owned = store.extents(&pointer, BlockAddress::default()).unwrap();
    (pointer, owned)
}

fn leaks_told(pool: &Pool) -> Vec<String> {
    let history = pool.inner().committed().unwrap().history().unwrap();
    let records = history.unwrap().map(|record| format!("{record:?}"));
    records
        .filter(|record| record.contains("could not be freed"))
        .collect()
}

fn its_pieces_leak(layout: NewLayout, disks: usize, lost: Lost, freed: Freed) {
    let _mark = mark::expect("freed-gang-unreadable");
    let world = World::new(91);
    let pool = sim::create(&world, &[(layout, disks)], 128);
    pool.inner().allocator().force_gangs(PIECE_MAX);
    write(&pool, "big", 1);
    write(&pool, "other", 2);
    pool.sync().unwrap();
    let (pointer, owned) = second_record(&pool, b"big");
    let own_count = pointer.dvas().count();
    let (own, pieces) = owned.split_at(own_count);
    let nested: Vec<Dva> = pieces.iter().copied().filter(|dva| dva.is_gang).collect();
    assert!(pointer.is_gang() && !nested.is_empty(), "{pieces:?}");
    if freed == Freed::WithSnapshot {
        pool.datasets().snapshot(&["tank@s"], &[]).unwrap();
        unlink(&pool, "big");
        pool.file_system("tank").unwrap().close_unused().unwrap();
        pool.sync().unwrap();
    }
    pool.export().unwrap();
    let headers = match lost {
        Lost::Leader => own,
        Lost::Piece => &nested[..own_count],
    };
    sim::lose(&world, headers);

    let pool = sim::open(&world).unwrap();
    let world = match freed {
        Freed::Unlinked => {
            unlink(&pool, "big");
            finish(pool);
            world
        }
        Freed::Logged => {
            // The first record of a log waits for a txg. The removal must not.
            write(&pool, "logged", 4);
            pool.file_system("tank").unwrap().commit_log().unwrap();
            pool.sync().unwrap();
            unlink(&pool, "big");
            assert!(leaks_told(&pool).is_empty());
            let world = world.reborn(world.recorded(), &PowerCut::EverythingWritten);
            finish(sim::open(&world).unwrap());
            world
        }
        Freed::WithSnapshot => {
            pool.datasets()
                .destroy_snapshots(&["tank@s"], Default::default())
                .unwrap();
            finish(pool);
            world
        }
    };

    // The pool can be opened again. The only error is the leaked space: all pieces, and nothing twice.
    let pool = sim::open(&world).unwrap();
    let files = pool.file_system("tank").unwrap();
    let root = files.root().unwrap();
    assert!(matches!(root.lookup(b"big"), Err(FileError::NotFound)));
    for (name, seed) in [("other", 2), ("after", 3)] {
        let node = root.lookup(name.as_bytes()).unwrap();
        let mut found = vec![0; 3 * RECORD];
        node.read(0, &mut found).unwrap();
        assert!(found == noise(seed, 3 * RECORD), "{name}");
    }
    drop((files, root));
    pool.export().unwrap();
    let read = sim::read(&world).unwrap();
    sim::verify(&read).unwrap();
    let report = check_pool(read.inner(), &CheckOptions::default()).unwrap();
    let mut kinds: Vec<FindingKind> = report.findings.iter().map(|finding| finding.kind).collect();
    kinds.dedup();
    assert_eq!(kinds, [FindingKind::LeakedSpace], "{:?}", report.findings);
    let leaked: u64 = pieces.iter().map(|dva| dva.asize_bytes).sum();
    assert_eq!(report.totals.leaked_bytes, leaked);
}

/// Frees what is due, works on and exports the pool.
fn finish(pool: Pool) {
    pool.file_system("tank").unwrap().close_unused().unwrap();
    for _ in 0..4 {
        pool.sync().unwrap();
    }
    write(&pool, "after", 3);
    pool.sync().unwrap();
    let told = leaks_told(&pool);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("gang block"), "{told:?}");
    pool.export().unwrap();
}

fn each_loss_of(freed: Freed) {
    for (layout, disks) in [(NewLayout::Single, 1), (NewLayout::Mirror, 2)] {
        for lost in [Lost::Leader, Lost::Piece] {
            println!("{layout:?}, {lost:?}");
            its_pieces_leak(layout, disks, lost, freed);
        }
    }
}

#[test]
fn a_file_with_a_lost_gang_header_is_removed() {
    each_loss_of(Freed::Unlinked);
}

#[test]
fn a_logged_removal_of_a_file_with_a_lost_gang_header_is_replayed() {
    each_loss_of(Freed::Logged);
}

#[test]
fn a_snapshot_of_a_file_with_a_lost_gang_header_is_destroyed() {
    each_loss_of(Freed::WithSnapshot);
}

#[test]
fn a_scrub_restores_a_header_that_all_disks_lost_at_one_address() {
    for (layout, disks) in [(NewLayout::Single, 1), (NewLayout::Mirror, 2)] {
        for lost in [Lost::Leader, Lost::Piece] {
            let world = World::without_journal(92);
            let pool = sim::create(&world, &[(layout, disks)], 128);
            pool.inner().allocator().force_gangs(PIECE_MAX);
            write(&pool, "big", 1);
            pool.sync().unwrap();
            let (pointer, owned) = second_record(&pool, b"big");
            let (own, pieces) = owned.split_at(pointer.dvas().count());
            let nested = pieces.iter().copied().find(|dva| dva.is_gang);
            pool.export().unwrap();
            sim::lose(
                &world,
                &[match lost {
                    Lost::Leader => own[0],
                    Lost::Piece => nested.unwrap(),
                }],
            );
            sim::verify(&sim::read(&world).unwrap()).unwrap_err();
            let pool = sim::open(&world).unwrap();
            assert_eq!(scan::scrub(&pool).errors, 0);
            pool.export().unwrap();
            let verified = sim::verify(&sim::read(&world).unwrap());
            assert_eq!(verified, Ok(()), "{layout:?}, {lost:?}");
        }
    }
}
