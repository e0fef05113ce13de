//! Files created by OpenZFS and changed by us.
//!
//! Their content is the old content plus the additions. `zdb` finds no errors and prints the files as our
//! reader sees them. `MILLPOND_CHANGED` selects cases by name, separated by commas.

use crate::printed;
use millpond_engine::{
    Caller, DirEntryRef, FileError, FileSystem, NewMode, Node, OpenOptions, Pool, RenameMode,
    Search, SetAttributes, View, WriteAt, WriteOptions, XattrMode,
};
use millpond_posix::{Errno, FileKind};
use millpond_tests::oracle::zdb;
use millpond_tests::{images, record};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Maximum number of files examined per file system.
const FILES_MAX: usize = 400;
/// Maximum number of file systems per pool that are compared with the slow output of `zdb`.
const PRINTED_MAX: usize = 3;
/// Longer files are changed but not compared.
const COMPARED_BYTES_MAX: usize = 8 << 20;

/// The expected content of each changed file, by file system and object id.
type Wanted = BTreeMap<(String, u64), Vec<u8>>;

#[derive(Debug, Default)]
struct Tally {
    changed: usize,
    refused: BTreeMap<&'static str, usize>,
}

impl Tally {
    /// Counts an outcome. Only refusals that are justified for some files are accepted.
    fn count<T>(&mut self, result: Result<T, FileError>) -> Option<T> {
        let why = match result {
            Ok(value) => {
                self.changed += 1;
                return Some(value);
            }
            Err(error) => match error.errno() {
                Errno::EPERM => "flags or kind",
                Errno::EOPNOTSUPP => "not supported",
                Errno::EDQUOT => "quota",
                Errno::EEXIST => "there already",
                Errno::EXDEV => "another project",
                Errno::ENAMETOOLONG => "name too long",
                _ => panic!("{error}"),
            },
        };
        *self.refused.entry(why).or_default() += 1;
        None
    }
}

#[test]
fn files_made_by_openzfs_are_changed() {
    let set = match images::golden_set() {
        Ok(set) => set,
        Err(error) => {
            println!("not tried: {error:#}");
            return;
        }
    };
    let usual = "names";
    let cases = std::env::var("MILLPOND_CHANGED").unwrap_or_else(|_| usual.to_owned());
    for case in cases.split(',') {
        let folder = set.folder.join(case);
        if folder.is_dir() {
            one(case, &folder);
        } else {
            println!("{case}: not in {}", set.description);
        }
    }
}

fn one(case: &str, folder: &Path) {
    let record = record::load(folder).unwrap();
    let place = tempfile::tempdir().unwrap();
    for image in &record.images {
        let from = images::unpacked(&folder.join(&image.file), &image.sha256, image.size_bytes);
        let to = place.path().join(image.file.trim_end_matches(".zst"));
        images::copy_sparse(&from.unwrap(), &to).unwrap();
    }
    let search = Search::new([place.path()]);
    let candidates = search.pools();
    let name = candidates[0].name.clone();
    drop(candidates);
    let names = file_systems(&search, &name);
    let pool = Pool::open(
        &search,
        &name,
        &OpenOptions::default(),
        &WriteOptions::default(),
    );
    let pool = match pool {
        Ok(pool) => pool,
        Err(error) => {
            println!("{case}: not changed: {error}");
            return;
        }
    };
    let mut tally = Tally::default();
    let mut wanted = Wanted::new();
    let mut changed = vec![];
    for name in &names {
        let files = match pool.file_system(name) {
            Ok(files) => files,
            Err(error) => {
                println!("{case}: {name}: not changed: {error}");
                continue;
            }
        };
        if files.settings().is_read_only {
            continue;
        }
        let top = files.root().unwrap();
        let mut left = FILES_MAX;
        change(name, &files, &top, &mut left, &mut tally, &mut wanted);
        files.close_unused().unwrap();
        changed.push(name.as_str());
    }
    pool.export().unwrap();
    zdb::judge(place.path(), &name).unwrap().require(case);
    let pool = View::open(&search, &name, &OpenOptions::default()).unwrap();
    for (number, name) in changed.iter().enumerate() {
        let files = pool.dataset(name).unwrap().file_system().unwrap();
        // For the pool's root file system, zdb prints all file systems, one after another.
        if number < PRINTED_MAX && name.contains('/') {
            printed::compare(place.path(), name, &files);
        }
        for ((_, id), content) in wanted.iter().filter(|((at, _), _)| at == name) {
            let node = files.node(millpond_ondisk::ObjectId(*id)).unwrap();
            let mut found = vec![0; content.len()];
            assert_eq!(
                node.size_bytes(),
                content.len() as u64,
                "{name} object {id}"
            );
            node.read(0, &mut found).unwrap();
            assert!(found == *content, "{name} object {id}");
        }
    }
    println!(
        "{case}: {} file systems, {tally:?}, {} compared",
        changed.len(),
        wanted.len()
    );
    assert!(tally.changed > 3, "{case}: hardly anything was changed");
}

fn file_systems(search: &Search, name: &str) -> Vec<String> {
    let pool = View::open(search, name, &OpenOptions::default()).unwrap();
    let mut names = vec![];
    for dataset in pool.datasets() {
        let Ok(dataset) = dataset else { continue };
        let is_open = dataset.has_files().unwrap_or(false) && !dataset.is_locked().unwrap_or(true);
        if is_open && !dataset.name().contains('@') {
            names.push(dataset.name().to_owned());
        }
    }
    names
}

fn change(
    name: &str,
    files: &Arc<FileSystem>,
    directory: &Node,
    left: &mut usize,
    tally: &mut Tally,
    wanted: &mut Wanted,
) {
    let root = Caller::root();
    let mode = NewMode::exactly(0o640);
    for (number, listed) in directory
        .list(0, FILES_MAX)
        .unwrap()
        .into_iter()
        .enumerate()
    {
        let entry = listed.entry;
        // `.zfs` is listed if it is visible, but only the front end opens it.
        let is_special = [&b"."[..], b"..", b".zfs"].contains(&&entry.name[..]);
        if is_special || *left == 0 {
            continue;
        }
        *left -= 1;
        let node = directory
            .lookup(&entry.name)
            .unwrap_or_else(|error| panic!("{name}: {}: {error}", entry.name.escape_ascii()));
        if node.kind() == FileKind::Directory {
            change(name, files, &node, left, tally, wanted);
        }
        if node.kind() == FileKind::Regular {
            let end = node.size_bytes();
            let added = vec![number as u8 | 1; 700];
            let is_compared = end < COMPARED_BYTES_MAX as u64;
            let mut content = vec![0; if is_compared { end as usize } else { 0 }];
            node.read(0, &mut content).unwrap();
            let written = tally.count(files.write(&root, &node, WriteAt::End, &added));
            if is_compared {
                if written.is_some() {
                    // A file with several names gets one addition per name.
                    content.extend(&added);
                }
                wanted.insert((name.to_owned(), node.id().0), content);
            }
        }
        let set = SetAttributes {
            permissions: Some(0o600 | (number as u32 % 8)),
            ..SetAttributes::default()
        };
        tally.count(files.set_attributes(&root, &node, &set));
        let value = vec![7; number * 37 % 3000];
        tally.count(files.set_xattr(&root, &node, b"user.of-ours", &value, XattrMode::Set));
        assert!(node.xattr_names().is_ok());
        let id = node.id().0;
        let is_removed = number % 5 == 4 && node.kind() != FileKind::Directory;
        let other = [&entry.name[..entry.name.len().min(200)], b".moved"].concat();
        if is_removed {
            let is_last = node.stat().unwrap().links == 1;
            drop(node);
            if tally.count(files.unlink(directory, &entry.name)).is_some() && is_last {
                wanted.remove(&(name.to_owned(), id));
            }
        } else if number % 3 == 0 {
            let place = |name| DirEntryRef { directory, name };
            let (from, to) = (place(&entry.name[..]), place(&other[..]));
            tally.count(files.rename(&root, from, to, RenameMode::NoReplace));
        } else if number % 3 == 1 {
            tally.count(files.link(&node, directory, &other));
        }
    }
    tally.count(files.make_directory(&root, directory, b"made here", mode));
    if let Some((node, _)) = tally.count(files.create(&root, directory, b"new", mode, true)) {
        let content = vec![9; 200_000];
        if tally
            .count(files.write(&root, &node, WriteAt::Offset(0), &content))
            .is_some()
        {
            wanted.insert((name.to_owned(), node.id().0), content);
        }
    }
}
