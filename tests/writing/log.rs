//! The power fails between two txgs, and the intent log preserves the promises.
//!
//! Fsynced changes are present in the order in which they happened, and no content appears that never
//! existed.

mod repeated;
mod replay;
mod stale_clone;

use crate::sim;
use crate::soak::env;
use millpond_engine::{
    Allocate, AllocationClass, Caller, DirEntryRef, Error, FILE_SYSTEM_VERSION, FileError,
    FileSystem, NewLayout, NewMode, Node, Pool, PropertyValue, RenameMode, SetAttributes, View,
    WriteAt, XattrMode,
};
use millpond_env::mark;
use millpond_sim::{Event, Fault, FaultPlan, PowerCut, Scope, Seed, World};
use millpond_tests::oracle::zdb;
use millpond_tests::recount;
use millpond_tests::workload::SeededRng;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A file's unique identity: object id and generation.
type FileId = (u64, u64);

/// A file's own state, as described by log records about the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Inside {
    bytes: Vec<u8>,
    permissions: u32,
    xattr: Option<Vec<u8>>,
}

/// What happened: all names after each step, and the states of each file.
#[derive(Default)]
struct History {
    names: Vec<BTreeMap<String, FileId>>,
    inside: BTreeMap<FileId, Vec<(usize, Inside)>>,
    /// Promises: the number of disk requests, the promised step, and the file (`None` for all files).
    promises: Vec<(usize, usize, Option<FileId>)>,
}

impl History {
    fn step(&self) -> usize {
        self.names.len()
    }
    fn now(&self) -> BTreeMap<String, FileId> {
        self.names.last().cloned().unwrap_or_default()
    }
    fn of(&self, file: FileId) -> Inside {
        let last = self.inside.get(&file).and_then(|all| all.last());
        last.map(|(_, inside)| inside.clone()).unwrap_or_default()
    }
    fn change(&mut self, file: FileId, inside: Inside) {
        let step = self.step();
        self.inside.entry(file).or_default().push((step, inside));
    }
    /// The earliest acceptable step for names, and for a file's content.
    fn least(&self, requests: usize, file: Option<FileId>) -> usize {
        let of_file = |of: &Option<FileId>| of.is_none() || file.is_none() || *of == file;
        let promised = self
            .promises
            .iter()
            .filter(|(at, _, of)| *at <= requests && of_file(of));
        promised.map(|(_, step, _)| *step).max().unwrap_or(0)
    }

    /// Checks a pool recovered after this number of requests.
    fn judge(&self, files: &Arc<FileSystem>, requests: usize) -> Result<(), String> {
        let root = files.root().unwrap();
        let mut names = BTreeMap::new();
        let mut nodes = BTreeMap::new();
        walk(&root, "", &mut names, &mut nodes);
        let least = self.least(requests, None);
        let fits = (least..self.names.len()).any(|step| self.names[step] == names)
            || (least >= self.names.len() && names == self.now());
        if !fits {
            return Err(format!(
                "names are those of no step from {least} on: {names:?}\nat {least}: {:?}\nat the end: {:?}",
                self.names.get(least),
                self.now()
            ));
        }
        for (file, node) in &nodes {
            let found = inside(node);
            let least = self.least(requests, Some(*file));
            let all = self.inside.get(file).map_or(&[][..], Vec::as_slice);
            let first = all.iter().rposition(|(step, _)| *step < least).unwrap_or(0);
            if !all[first..].iter().any(|(_, inside)| *inside == found) {
                let wanted: Vec<_> = all[first..]
                    .iter()
                    .map(|(step, inside)| (step, short(inside)))
                    .collect();
                return Err(format!(
                    "file {file:?} holds {}, wanted one of {wanted:?} (promised: step {least})",
                    short(&found)
                ));
            }
        }
        Ok(())
    }
}

fn short(inside: &Inside) -> String {
    let Inside {
        bytes,
        permissions,
        xattr,
    } = inside;
    let sum = bytes.iter().fold(0u32, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u32::from(*byte))
    });
    format!(
        "{} bytes ({sum:x}), {permissions:o}, {xattr:?}",
        bytes.len()
    )
}

fn inside(node: &Node) -> Inside {
    let mut bytes = vec![0; node.size_bytes() as usize];
    node.read(0, &mut bytes).unwrap();
    Inside {
        bytes,
        permissions: node.stat().unwrap().permissions,
        xattr: node.xattr(b"user.x").unwrap_or(None),
    }
}

fn id_of(node: &Node) -> FileId {
    (node.id().0, node.generation())
}

fn walk(
    directory: &Node,
    path: &str,
    names: &mut BTreeMap<String, FileId>,
    nodes: &mut BTreeMap<FileId, Node>,
) {
    for listed in directory.list(0, 10_000).unwrap() {
        let name = listed.entry.name;
        if name == b"." || name == b".." {
            continue;
        }
        let node = directory.lookup(&name).unwrap();
        let below = format!("{path}/{}", String::from_utf8(name).unwrap());
        names.insert(below.clone(), id_of(&node));
        match node.kind() {
            millpond_engine::FileKind::Directory => walk(&node, &below, names, nodes),
            millpond_engine::FileKind::Regular => {
                nodes.insert(id_of(&node), node);
            }
            _ => {}
        }
    }
}

/// Changes a file system and records the change.
fn act(
    files: &Arc<FileSystem>,
    pool: &Pool,
    world: &World,
    history: &mut History,
    rng: &mut SeededRng,
) {
    let caller = Caller::root();
    let root = files.root().unwrap();
    let other = root.lookup(b"d").unwrap();
    let directories = [(&root, ""), (&other, "/d")];
    let mut names = history.now();
    let pick = |rng: &mut SeededRng| {
        let (directory, path) = directories[rng.below(2)];
        let name = format!("f{}", rng.below(6));
        (directory, name.clone(), format!("{path}/{name}"))
    };
    let (directory, name, path) = pick(rng);
    let node = directory.lookup(name.as_bytes());
    match (rng.below(14), node) {
        (0..=1, Err(_)) => {
            let (node, _) = files
                .create(
                    &caller,
                    directory,
                    name.as_bytes(),
                    NewMode::exactly(0o644),
                    true,
                )
                .unwrap();
            names.insert(path, id_of(&node));
            history.change(
                id_of(&node),
                Inside {
                    permissions: 0o644,
                    ..Inside::default()
                },
            );
        }
        (2..=4, Ok(node)) => {
            let mut now = history.of(id_of(&node));
            let length = [1, 100, 5000, 40_000][rng.below(4)];
            let at = rng.below(now.bytes.len() + 1);
            let bytes: Vec<u8> = (0..length).map(|_| rng.below(256) as u8).collect();
            files
                .write(&caller, &node, WriteAt::Offset(at as u64), &bytes)
                .unwrap();
            now.bytes.resize(now.bytes.len().max(at + length), 0);
            now.bytes[at..at + length].copy_from_slice(&bytes);
            history.change(id_of(&node), now);
        }
        (5, Ok(node)) => {
            let mut now = history.of(id_of(&node));
            let size = rng.below(now.bytes.len() + 2000);
            let set = SetAttributes {
                size_bytes: Some(size as u64),
                ..SetAttributes::default()
            };
            files.set_attributes(&caller, &node, &set).unwrap();
            now.bytes.resize(size, 0);
            history.change(id_of(&node), now);
        }
        (6, Ok(node)) => {
            let mut now = history.of(id_of(&node));
            if rng.below(2) == 0 {
                now.permissions = 0o600 + rng.below(64) as u32;
                let set = SetAttributes {
                    permissions: Some(now.permissions),
                    ..SetAttributes::default()
                };
                files.set_attributes(&caller, &node, &set).unwrap();
            } else {
                let value = vec![rng.below(256) as u8; 1 + rng.below(200)];
                files
                    .set_xattr(&caller, &node, b"user.x", &value, XattrMode::Set)
                    .unwrap();
                now.xattr = Some(value);
            }
            history.change(id_of(&node), now);
        }
        (7, Ok(node)) => {
            let mut now = history.of(id_of(&node));
            let at = rng.below(now.bytes.len() + 1);
            let count = 1 + rng.below(9000);
            files
                .allocate(&node, Allocate::PunchHole, at as u64, count as u64)
                .unwrap();
            let end = now.bytes.len().min(at + count);
            now.bytes[at..end].fill(0);
            history.change(id_of(&node), now);
        }
        (8, Ok(_)) => {
            files.unlink(directory, name.as_bytes()).unwrap();
            names.remove(&path);
        }
        (9, Ok(node)) => {
            let (target, new, new_path) = pick(rng);
            let modes = [
                RenameMode::Replace,
                RenameMode::Exchange,
                RenameMode::Whiteout,
            ];
            let mode = modes[rng.below(3)];
            let from = DirEntryRef {
                directory,
                name: name.as_bytes(),
            };
            let to = DirEntryRef {
                directory: target,
                name: new.as_bytes(),
            };
            match files.rename(&caller, from, to, mode) {
                Ok(()) if new_path == path || names.get(&new_path) == Some(&id_of(&node)) => {}
                Ok(()) => {
                    let replaced = names.insert(new_path, id_of(&node));
                    names.remove(&path);
                    if mode == RenameMode::Exchange {
                        names.extend(replaced.map(|id| (path, id)));
                    } else if mode == RenameMode::Whiteout {
                        let node = directory.lookup(name.as_bytes()).unwrap();
                        names.insert(path.clone(), id_of(&node));
                        // Only its name is tracked.
                        files.unlink(directory, name.as_bytes()).unwrap();
                        history.names.push(names.clone());
                        names.remove(&path);
                    }
                }
                Err(FileError::NotFound) => {}
                Err(error) => panic!("{error}"),
            }
        }
        (10, Ok(node)) => {
            let (target, new, new_path) = pick(rng);
            if files.link(&node, target, new.as_bytes()).is_ok() {
                names.insert(new_path, id_of(&node));
            }
        }
        (11..=12, Ok(node)) => {
            files.fsync(&node).unwrap();
            let promise = (world.recorded(), history.step(), Some(id_of(&node)));
            history.promises.push(promise);
        }
        (13, _) => {
            if rng.below(5) == 0 {
                pool.sync().unwrap();
            } else {
                files.commit_log().unwrap();
            }
            history
                .promises
                .push((world.recorded(), history.step(), None));
        }
        _ => {}
    }
    history.names.push(names);
}

fn cut(tops: &[(AllocationClass, NewLayout, usize)], seed: u64, steps: usize, cuts_wanted: usize) {
    cut_version(tops, FILE_SYSTEM_VERSION, seed, steps, cuts_wanted);
}

/// Like [`cut`], in a file system of this version.
pub(crate) fn cut_version(
    tops: &[(AllocationClass, NewLayout, usize)],
    version: u64,
    seed: u64,
    steps: usize,
    cuts_wanted: usize,
) {
    let what = format!("{tops:?}, version {version}, seed {seed}");
    let world = World::new(seed);
    let pool = sim::create_of_version(&world, tops, 256, version);
    let files = pool.file_system("tank").unwrap();
    let root = files.root().unwrap();
    let mode = NewMode::exactly(0o755);
    files
        .make_directory(&Caller::root(), &root, b"d", mode)
        .unwrap();
    files.commit_log().unwrap();
    pool.sync().unwrap();
    world.forget();
    let mut history = History::default();
    let directory = root.lookup(b"d").unwrap();
    history
        .names
        .push(BTreeMap::from([("/d".to_owned(), id_of(&directory))]));
    let mut rng = SeededRng::new(seed);
    for _ in 0..steps {
        act(&files, &pool, &world, &mut history, &mut rng);
    }
    drop((directory, root, files));
    drop(pool);
    let length = world.recorded();
    let is_all = std::env::var_os("MILLPOND_WRITING_ALL").is_some();
    let cuts = if is_all {
        cuts_wanted * 20
    } else {
        cuts_wanted
    };
    let step = (length / cuts).max(1);
    let (mut tried, mut judged) = (0, 0);
    for (round, count) in (0..=length).step_by(step).enumerate() {
        let cut = match round % 4 {
            0 => PowerCut::EverythingWritten,
            1 => PowerCut::NothingUnflushed,
            2 => PowerCut::Torn(Seed::new(seed * 7919 + count as u64)),
            _ => PowerCut::First(1 + round % 3),
        };
        let what = format!("{what}: after {count} of {length} requests, {cut:?}");
        let after = world.reborn(count, &cut);
        let is_judged = zdb::absent().is_none() && (is_all && round % 20 == 3 || round == 2);
        let judge = |world: &World, what: &str| {
            let folder = tempfile::tempdir().unwrap();
            sim::to_files(world, folder.path());
            zdb::judge(folder.path(), "tank").unwrap().require(what);
        };
        if is_judged {
            judge(&after, &format!("{what}, as it was left"));
            judged += 1;
        }
        after.forget();
        let look = |world: &World, what: &str| {
            let pool = sim::open(world).unwrap_or_else(|error| panic!("{what}: {error}"));
            let files = pool.file_system("tank").unwrap();
            let fault = history.judge(&files, count);
            assert_eq!(fault, Ok(()), "{what}");
            drop(files);
            pool
        };
        let pool = look(&after, &what);
        let replayed = after.recorded();
        pool.export().unwrap();
        let read = sim::read(&after).unwrap();
        sim::verify(&read).unwrap_or_else(|error| panic!("{what}, replayed: {error}"));
        drop(read);
        // The replay itself is interrupted and repeated.
        let again = if is_all { 6 } else { 2 };
        for at in (0..replayed).step_by((replayed / again).max(1)).skip(1) {
            let twice = after.reborn(at, &PowerCut::Torn(Seed::new(at as u64)));
            let what = format!("{what}, then {at} of {replayed} requests of the replay");
            drop(look(&twice, &what));
            tried += 1;
        }
        if is_judged {
            judge(&after, &format!("{what}, replayed"));
        }
        tried += 1;
    }
    println!("{what}: {tried} crashes of {length} requests, {judged} judged by zdb");
}

fn seeds() -> std::ops::Range<u64> {
    let from = env("MILLPOND_WRITING_FROM", 1);
    from..from + env("MILLPOND_WRITING_SEEDS", 1)
}

#[test]
fn fsynced_data_survives_a_crash_at_any_request() {
    let one = [(AllocationClass::Normal, NewLayout::Single, 1)];
    seeds().for_each(|seed| cut(&one, seed, 300, 8));
}

#[test]
fn a_mirrored_log_device_keeps_what_was_fsynced() {
    let tops = [
        (AllocationClass::Normal, NewLayout::Raidz(1), 3),
        (AllocationClass::Log, NewLayout::Mirror, 2),
    ];
    seeds().for_each(|seed| cut(&tops, seed + 100, 120, 3));
}

#[test]
fn a_volume_is_as_large_as_was_promised() {
    let _mark = mark::expect("log-ends-at-unwritten-block");
    let _mark = mark::expect("fsync-by-txg");
    let tops = [(AllocationClass::Normal, NewLayout::Single, 1)];
    let world = World::new(5);
    let pool = sim::create_of(&world, &tops, 256, sim::by_caller());
    let number = |name: &str, value| (name.to_owned(), PropertyValue::Number(value));
    let always = ("sync".to_owned(), PropertyValue::Text("always".to_owned()));
    let properties = [
        number("volsize", 1 << 20),
        number("volblocksize", 8192),
        always,
    ];
    pool.datasets()
        .create_volume("tank/disk", &properties)
        .unwrap();
    let volume = pool.volume("tank/disk").unwrap();
    volume.write(0, &[1; 5000]).unwrap();
    volume.resize(3 << 20).unwrap();
    let after = world.reborn(world.recorded(), &PowerCut::NothingUnflushed);
    drop(volume);
    drop(pool);
    let pool = sim::open(&after).unwrap();
    assert_eq!(pool.volume("tank/disk").unwrap().size_bytes(), 3 << 20);
}
