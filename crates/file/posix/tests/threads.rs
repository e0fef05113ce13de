//! Many threads work on one directory, one file or one tree while txgs sync continuously.
//!
//! Every committed txg must be consistent, not only the last.
#![forbid(unsafe_code)]

mod support;

use millpond_env::thread;
use millpond_posix::{
    Caller, DirEntryRef, FileError, FileSystem, NewFileSystem, NewMode, Node, RenameMode,
    SetAttributes, Settings, Symlinks, WriteAt, XattrMode,
};
use millpond_sim::Seed;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{Rig, check_consistency};

const MODE: NewMode = NewMode {
    mode: 0o644,
    umask: 0,
};
const THREADS: u64 = 4;

/// Counts a thread as finished, also if it panics.
struct Leaving<'r>(&'r AtomicUsize);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

fn set_up(record_bytes: u32) -> (Rig, Arc<FileSystem>, Node) {
    let settings = Settings {
        record_bytes,
        ..Settings::default()
    };
    let (rig, files) = Rig::new(&NewFileSystem::default(), settings);
    let top = files.root().unwrap();
    (rig, files, top)
}

/// Runs `body` on several threads, syncs continuously, and checks committed txgs in the meantime.
fn hammer(rig: &Rig, body: impl Fn(u64, &mut Seed) + Sync) -> usize {
    let looks = rig.with_sync_thread(|| {
        let running = AtomicUsize::new(THREADS as usize);
        thread::scope(|scope| {
            for number in 0..THREADS {
                let (body, running) = (&body, &running);
                scope.spawn(move || {
                    let _leaving = Leaving(running);
                    body(number, &mut Seed::new(number * 7919 + 1));
                });
            }
            let mut looks = 0;
            while running.load(Ordering::Acquire) > 0 {
                check_consistency(&rig.set.committed().unwrap());
                looks += 1;
            }
            looks
        })
    });
    rig.sync();
    check_consistency(&rig.set.committed().unwrap());
    rig.check_space();
    rig.check_accounting();
    looks
}

/// Accepts only errors that a race can cause.
fn allow(result: Result<(), FileError>) {
    match result {
        Ok(())
        | Err(
            FileError::NotFound
            | FileError::Exists
            | FileError::NotEmpty
            | FileError::NotADirectory
            | FileError::IsADirectory
            | FileError::NotPermitted
            | FileError::Invalid { .. },
        ) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn concurrent_operations_in_one_directory() {
    let (rig, files, top) = set_up(4096);
    let root = Caller::root();
    hammer(&rig, |_, rng| {
        for _ in 0..600 {
            let name = format!("n{}", rng.below(12)).into_bytes();
            let other = format!("n{}", rng.below(12)).into_bytes();
            let place = |name| DirEntryRef {
                directory: &top,
                name,
            };
            match rng.below(9) {
                0 | 1 => allow(files.create(&root, &top, &name, MODE, true).map(|_| ())),
                2 => allow(files.make_directory(&root, &top, &name, MODE).map(|_| ())),
                3 => allow(files.unlink(&top, &name)),
                4 => allow(files.remove_directory(&top, &name)),
                5 => {
                    let mode = [
                        RenameMode::Replace,
                        RenameMode::Exchange,
                        RenameMode::Whiteout,
                    ][rng.below(3) as usize];
                    allow(files.rename(&root, place(&name), place(&other), mode));
                }
                6 => allow(
                    top.lookup(&name)
                        .and_then(|node| files.link(&node, &top, &other)),
                ),
                7 => allow(top.lookup(&name).and_then(|node| {
                    files.write(&root, &node, WriteAt::End, &[1; 700])?;
                    files.set_xattr(&root, &node, b"user.x", &[2; 300], XattrMode::Set)
                })),
                _ => {
                    let node = files.create_tmpfile(&root, &top, MODE).unwrap();
                    if rng.below(2) == 0 {
                        allow(files.link(&node, &top, &name));
                    }
                    drop(node);
                    files.reap().unwrap();
                }
            }
        }
    });
    files.close_unused().unwrap();
    drop(top);
    files.free_unlinked().unwrap();
    rig.sync();
    assert_eq!(rig.committed().unlinked().unwrap(), []);
    rig.check_space();
}

#[test]
fn concurrent_writes_to_different_ranges_are_kept() {
    const SLOT: u64 = 1000;
    let (rig, files, top) = set_up(4096);
    let root = Caller::root();
    let (file, _) = files.create(&root, &top, b"f", MODE, true).unwrap();
    let slots = 64u64;
    let last: Vec<_> = (0..THREADS * slots).map(|_| AtomicUsize::new(0)).collect();
    hammer(&rig, |number, rng| {
        for round in 1..200u64 {
            // Each slot belongs to one thread; several threads share a block.
            let slot = rng.below(slots) * THREADS + number;
            let value = (round % 250 + 1) as u8;
            let content = vec![value; SLOT as usize];
            files
                .write(&root, &file, WriteAt::Offset(slot * SLOT), &content)
                .unwrap();
            last[slot as usize].store(usize::from(value), Ordering::Relaxed);
            let mut found = vec![0; SLOT as usize];
            file.read(slot * SLOT, &mut found).unwrap();
            assert!(found == content, "what was written is read");
        }
    });
    let node = rig.committed().resolve(b"f", Symlinks::Keep).unwrap();
    let mut found = vec![0; (THREADS * slots * SLOT) as usize];
    node.read(0, &mut found).unwrap();
    for (slot, value) in last.iter().enumerate() {
        let value = value.load(Ordering::Relaxed) as u8;
        let part = &found[slot * SLOT as usize..(slot + 1) * SLOT as usize];
        assert!(part.iter().all(|byte| *byte == value), "slot {slot}");
    }
}

#[test]
fn appends_stay_whole_while_the_file_is_truncated() {
    const RECORD: usize = 300;
    let (rig, files, top) = set_up(4096);
    let root = Caller::root();
    let (file, _) = files.create(&root, &top, b"f", MODE, true).unwrap();
    hammer(&rig, |number, rng| {
        for _ in 0..200 {
            if number == 0 && rng.below(20) == 0 {
                let cut = SetAttributes {
                    size_bytes: Some(0),
                    ..SetAttributes::default()
                };
                files.set_attributes(&root, &file, &cut).unwrap();
            }
            let value = rng.below(255) as u8 + 1;
            files
                .write(&root, &file, WriteAt::End, &[value; RECORD])
                .unwrap();
            let at = rng.below(file.size_bytes() / RECORD as u64 + 1) * RECORD as u64;
            let mut found = [0; RECORD];
            let count = file.read(at, &mut found).unwrap();
            assert!(count == 0 || count == RECORD, "{count}");
            assert!(
                found[..count].iter().all(|byte| *byte == found[0]),
                "a torn record"
            );
        }
    });
    assert_eq!(file.size_bytes() % RECORD as u64, 0);
}

#[test]
fn concurrent_moves_of_directories_make_no_cycle() {
    let (rig, files, top) = set_up(4096);
    let root = Caller::root();
    // A tree of eight directories, with a file in each.
    let mut nodes = vec![top.clone()];
    for number in 0..8u64 {
        let parent = nodes[(number / 2) as usize].clone();
        let name = format!("d{number}").into_bytes();
        let made = files.make_directory(&root, &parent, &name, MODE).unwrap();
        files.create(&root, &made, b"file", MODE, true).unwrap();
        nodes.push(made);
    }
    hammer(&rig, |_, rng| {
        for _ in 0..400 {
            let pick = |rng: &mut Seed| &nodes[rng.below(9) as usize];
            let (from, to) = (pick(rng), pick(rng));
            let name = format!("d{}", rng.below(8)).into_bytes();
            let other = format!("d{}", rng.below(8)).into_bytes();
            let mode = if rng.below(3) == 0 {
                RenameMode::Exchange
            } else {
                RenameMode::NoReplace
            };
            let place = |directory, name| DirEntryRef { directory, name };
            allow(files.rename(&root, place(from, &name), place(to, &other), mode));
        }
    });
    assert_eq!(check_consistency(&rig.set.committed().unwrap()), 17);
    let committed = rig.committed();
    for node in &nodes[1..] {
        assert!(committed.path_of(node.id()).unwrap().is_some());
    }
}

#[test]
fn concurrent_attribute_changes_are_kept() {
    let (rig, files, top) = set_up(128 << 10);
    let root = Caller::root();
    let (file, _) = files.create(&root, &top, b"f", MODE, true).unwrap();
    hammer(&rig, |number, rng| {
        let name = format!("user.of-{number}").into_bytes();
        for round in 0..150u64 {
            let length = rng.below(3000) as usize + 8;
            let mut value = vec![number as u8; length];
            value[..8].copy_from_slice(&round.to_le_bytes());
            files
                .set_xattr(&root, &file, &name, &value, XattrMode::Set)
                .unwrap();
            assert!(file.xattr(&name).unwrap().unwrap() == value);
            let set = SetAttributes {
                permissions: Some(rng.below(0o1000) as u32),
                ..SetAttributes::default()
            };
            files.set_attributes(&root, &file, &set).unwrap();
        }
    });
    let node = rig.committed().resolve(b"f", Symlinks::Keep).unwrap();
    assert_eq!(node.stat().unwrap(), file.stat().unwrap());
    for number in 0..THREADS {
        let name = format!("user.of-{number}").into_bytes();
        let value = node.xattr(&name).unwrap().unwrap();
        assert_eq!(value[..8], 149u64.to_le_bytes());
        assert!(value[8..].iter().all(|byte| *byte == number as u8));
    }
}
