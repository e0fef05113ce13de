//! Holes of files that programs change through mappings.
//!
//! A program must not map files that it serves itself, so another process does: this program, started again.

use crate::mapped::Mapping;
use crate::rig::{Rig, absent};
use millpond_env::mark;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

const RECORD: u64 = 128 << 10;
const LENGTH: u64 = 32 * RECORD;

/// The folder in which the other process works.
const FOLDER: &str = "MILLPOND_MAPPED_FOLDER";

/// Runs a test of this file in another process, on a mounted file system.
fn elsewhere(test: &str) {
    // The threads of the server inherit the watch, so it begins before them.
    let _mark = absent()
        .is_none()
        .then(|| mark::expect("fuse-pages-written-back"));
    let Some(rig) = Rig::new(&[]) else { return };
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(FOLDER, rig.path(""))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
    rig.finish();
}
fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

fn sparse(folder: &Path, name: &str) -> File {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(folder.join(name))
        .unwrap();
    file.set_len(LENGTH).unwrap();
    file
}
fn data(file: &File, from: u64) -> Result<u64, Errno> {
    seek(file, SeekFrom::Data(from))
}
fn hole(file: &File, from: u64) -> Result<u64, Errno> {
    seek(file, SeekFrom::Hole(from))
}

#[test]
fn data_of_mappings_is_never_taken_for_a_hole() {
    elsewhere("sparse::one_mapping");
}

#[test]
#[ignore = "runs in the other process"]
fn one_mapping() {
    let Some(folder) = folder() else { return };
    let file = sparse(&folder, "mapped");
    assert_eq!(data(&file, 0), Err(Errno::NXIO));
    assert_eq!(hole(&file, 5), Ok(5));
    let mut mapping = Mapping::new(&file, LENGTH as usize);
    let at = 5 * RECORD + 77;
    mapping.write(at as usize, b"first");
    assert_eq!(data(&file, 0), Ok(5 * RECORD));
    // The page is dropped and comes back.
    assert_eq!(mapping.read(at as usize, 5), b"first");
    mapping.write(6 * RECORD as usize, b"second");
    mapping.write(9 * RECORD as usize, b"third");
    assert_eq!(hole(&file, 5 * RECORD), Ok(7 * RECORD));
    assert_eq!(hole(&file, 0), Ok(0));
    assert_eq!(data(&file, 7 * RECORD), Ok(9 * RECORD));
    // Changed pages where data is known already.
    mapping.write((at + 4096) as usize, b"fourth");
    assert_eq!(data(&file, 0), Ok(5 * RECORD));
    assert_eq!(hole(&file, LENGTH - 1), Ok(LENGTH - 1));
    assert_eq!(hole(&file, LENGTH), Err(Errno::NXIO));
    // Copies like `cp`: only data is read.
    mapping.write(20 * RECORD as usize, b"fifth");
    let copy = File::create(folder.join("copy")).unwrap();
    copy.set_len(LENGTH).unwrap();
    let mut from = 0;
    while let Ok(start) = data(&file, from) {
        from = hole(&file, start).unwrap();
        let mut bytes = vec![0; (from - start) as usize];
        file.read_exact_at(&mut bytes, start).unwrap();
        copy.write_all_at(&bytes, start).unwrap();
    }
    let expected = mapping.read(0, LENGTH as usize);
    assert!(fs::read(folder.join("copy")).unwrap() == expected);
}

/// Each of them waits for its pages, and the pages need threads, too.
#[test]
fn many_at_once_get_their_data() {
    elsewhere("sparse::many_mappings");
}

#[test]
#[ignore = "runs in the other process"]
fn many_mappings() {
    let Some(folder) = folder() else { return };
    std::thread::scope(|scope| {
        for number in 0..48 {
            let folder = &folder;
            scope.spawn(move || {
                let file = sparse(folder, &format!("of-{number}"));
                let mut mapping = Mapping::new(&file, LENGTH as usize);
                for record in (0..32).rev() {
                    let start = record * RECORD;
                    mapping.write(start as usize, &[1]);
                    assert!(data(&file, 0).unwrap() <= start);
                    let end = hole(&file, start).unwrap();
                    assert!(end == LENGTH || end == 0, "{end}");
                }
            });
        }
    });
}

#[test]
fn asking_for_holes_changes_nothing() {
    let Some(rig) = Rig::new(&[]) else { return };
    let mut file = sparse(&rig.path(""), "plain");
    file.write_all(b"begin").unwrap();
    file.write_all_at(b"end", LENGTH - 3).unwrap();
    let before = fs::read(rig.path("plain")).unwrap();
    let changed = file.metadata().unwrap().mtime_nsec();
    assert_eq!(data(&file, 0), Ok(0));
    assert_eq!(hole(&file, 0), Ok(RECORD));
    assert_eq!(data(&file, RECORD), Ok(LENGTH - RECORD));
    assert!(fs::read(rig.path("plain")).unwrap() == before);
    assert_eq!(file.metadata().unwrap().mtime_nsec(), changed);
    drop(file);
    rig.finish();
}
