//! Runs random operations on a file system and on a plain tree in memory.
//!
//! Every outcome must be the same, and after each sync the read-only code must find the same tree. A crash
//! resets both to the last sync. The file system begins in any version, which is raised in between.
#![forbid(unsafe_code)]

#[path = "../support/mod.rs"]
mod support;
mod tree;

use millpond_ondisk::{ObjectId, ObjectType};
use millpond_posix::{
    Allocate, Caller, DirEntryRef, Errno, FileError, FileKind, FileSystem, NewFileSystem, NewMode,
    Node, RenameMode, Seek, SetAttributes, Settings, SpecialFile, VERSION, WriteAt, XattrMode,
    XattrPlace,
};
use proptest::prelude::*;
use proptest::test_runner::Config;
use std::sync::Arc;
use support::Rig;
use tree::{ROOT, Tree};

/// A directory and a name, both by index.
type Spot = (u8, u8);

#[derive(Debug, Clone)]
enum Op {
    Create(Spot, bool),
    MakeDirectory(Spot),
    Symlink(Spot, u16),
    Fifo(Spot),
    Unnamed(u8, Option<u8>),
    Link(Spot, Spot),
    Unlink(Spot),
    RemoveDirectory(Spot),
    Rename(Spot, Spot, u8),
    Write(Spot, u32, u16, u8),
    Append(Spot, u16, u8),
    Truncate(Spot, u32),
    Punch(Spot, u32, u32),
    Zero(Spot, u32, u32, bool),
    Copy(Spot, u32, Spot, u32, u32),
    Chmod(Spot, u16),
    Chown(Spot, u8),
    SetXattr(Spot, u8, u32),
    RemoveXattr(Spot, u8),
    Hold(Spot),
    Release(u8),
    Record(u8),
    XattrPlace(u8),
    Raise,
    Sync,
    Crash,
}

const NAMES: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"a name with blanks", &[b'l'; 255]];
const XATTRS: [&[u8]; 3] = [b"user.one", b"user.two", b"security.x"];
const RECORDS: [u32; 4] = [512, 4096, 16 << 10, 128 << 10];

fn spot() -> impl Strategy<Value = Spot> {
    (0u8..5, 0u8..NAMES.len() as u8)
}

fn op() -> impl Strategy<Value = Op> {
    let offset = || prop_oneof![0u32..3000, 0u32..60_000];
    let length = || prop_oneof![1u16..3000, 1u16..40_000];
    let wide = || prop_oneof![1u32..3000, 1u32..60_000];
    let xattr_bytes = prop_oneof![0u32..60, 0u32..3000, 30_000u32..65_000];
    prop_oneof![
        6 => (spot(), any::<bool>()).prop_map(|(at, exclusive)| Op::Create(at, exclusive)),
        4 => spot().prop_map(Op::MakeDirectory),
        1 => (spot(), 1u16..2000).prop_map(|(at, length)| Op::Symlink(at, length)),
        1 => spot().prop_map(Op::Fifo),
        1 => (0u8..5, proptest::option::of(0u8..6)).prop_map(|(at, name)| Op::Unnamed(at, name)),
        2 => (spot(), spot()).prop_map(|(from, to)| Op::Link(from, to)),
        4 => spot().prop_map(Op::Unlink),
        2 => spot().prop_map(Op::RemoveDirectory),
        5 => (spot(), spot(), 0u8..5).prop_map(|(from, to, mode)| Op::Rename(from, to, mode)),
        8 => (spot(), offset(), length(), any::<u8>())
            .prop_map(|(at, offset, length, seed)| Op::Write(at, offset, length, seed)),
        3 => (spot(), length(), any::<u8>())
            .prop_map(|(at, length, seed)| Op::Append(at, length, seed)),
        4 => (spot(), offset()).prop_map(|(at, size)| Op::Truncate(at, size)),
        3 => (spot(), offset(), wide()).prop_map(|(at, from, length)| Op::Punch(at, from, length)),
        2 => (spot(), offset(), wide(), any::<bool>())
            .prop_map(|(at, from, length, keeps)| Op::Zero(at, from, length, keeps)),
        2 => (spot(), offset(), spot(), offset(), wide())
            .prop_map(|(one, from, other, to, length)| Op::Copy(one, from, other, to, length)),
        2 => (spot(), 0u16..0o1000).prop_map(|(at, mode)| Op::Chmod(at, mode)),
        1 => (spot(), 0u8..3).prop_map(|(at, owner)| Op::Chown(at, owner)),
        4 => (spot(), 0u8..3, xattr_bytes).prop_map(|(at, name, length)| Op::SetXattr(at, name, length)),
        2 => (spot(), 0u8..3).prop_map(|(at, name)| Op::RemoveXattr(at, name)),
        2 => spot().prop_map(Op::Hold),
        2 => any::<u8>().prop_map(Op::Release),
        1 => (0u8..4).prop_map(Op::Record),
        1 => (0u8..2).prop_map(Op::XattrPlace),
        1 => Just(Op::Raise),
        3 => Just(Op::Sync),
        1 => Just(Op::Crash),
    ]
}

fn bytes(seed: u8, length: usize) -> Vec<u8> {
    // One in four is zeros, which become holes.
    let factor = if seed.is_multiple_of(4) { 0 } else { 31 };
    (0..length)
        .map(|at| (at as u8 ^ seed).wrapping_mul(factor))
        .collect()
}

struct World {
    rig: Rig,
    files: Option<Arc<FileSystem>>,
    tree: Tree,
    tree_at_sync: Tree,
    held: Vec<(u64, Node)>,
    settings: Settings,
    /// The version at the beginning.
    born_as: u64,
}

fn to_errno<T>(result: Result<T, FileError>) -> Result<T, Errno> {
    result.map_err(|error| error.errno())
}

impl World {
    fn new(version: u64) -> Self {
        let settings = Settings {
            record_bytes: 4096,
            ..Settings::default()
        };
        let new = NewFileSystem {
            version,
            ..NewFileSystem::default()
        };
        let (rig, files) = Rig::new(&new, settings);
        let tree = Tree::new(files.root_id());
        Self {
            rig,
            files: Some(files),
            tree_at_sync: tree.clone(),
            tree,
            held: vec![],
            settings,
            born_as: version,
        }
    }
    fn files(&self) -> Arc<FileSystem> {
        Arc::clone(self.files.as_ref().unwrap())
    }

    /// The directory with an index, in both trees.
    fn directory(&self, index: u8) -> (u64, Node) {
        let directories = self.tree.directories();
        let (number, path) = &directories[usize::from(index) % directories.len()];
        let files = self.files();
        let mut node = files.root().unwrap();
        for name in path {
            node = node.lookup(name).unwrap();
        }
        assert_eq!(node.id(), self.tree.file(*number).id);
        (*number, node)
    }
    /// The file at a spot, in both trees; an error if there is none.
    fn at(&self, spot: Spot) -> Result<(u64, Node), Errno> {
        let (directory, node) = self.directory(spot.0);
        let name = NAMES[usize::from(spot.1)];
        let number = self.tree.find(directory, name);
        let found = to_errno(node.lookup(name));
        assert_eq!(
            found.as_ref().map(Node::id).ok(),
            number.ok().map(|n| self.tree.file(n).id)
        );
        Ok((number?, found?))
    }
    fn regular_at(&self, spot: Spot) -> Result<(u64, Node), Errno> {
        let found = self.at(spot)?;
        if found.1.kind() != FileKind::Regular {
            return Err(Errno::EINVAL);
        }
        Ok(found)
    }

    /// Removes files from the model that have no name and are not open.
    fn settle(&mut self) {
        let held: Vec<u64> = self.held.iter().map(|(number, _)| *number).collect();
        self.tree
            .files
            .retain(|number, file| file.links > 0 || held.contains(number));
    }

    /// Performs one operation on both. Returns an error if the operation's file or directory does not exist.
    fn perform(&mut self, op: &Op) -> Result<(), Errno> {
        let files = self.files();
        let root = Caller::root();
        match *op {
            Op::Create((directory, name), exclusive) => {
                let name = NAMES[usize::from(name)];
                let (parent, node) = self.directory(directory);
                let made =
                    to_errno(files.create(&root, &node, name, NewMode::exactly(0o640), exclusive));
                match (self.tree.find(parent, name), exclusive) {
                    (Ok(_), true) => assert_eq!(made.unwrap_err(), Errno::EEXIST),
                    (Ok(there), false) => {
                        let (found, is_new) = made.unwrap();
                        assert_eq!((found.id(), is_new), (self.tree.file(there).id, false));
                    }
                    (Err(_), _) => {
                        let (made, is_new) = made.unwrap();
                        assert!(is_new);
                        self.tree
                            .add(parent, name, FileKind::Regular, 0o640, made.id());
                    }
                }
            }
            Op::MakeDirectory((directory, name)) => {
                let name = NAMES[usize::from(name)];
                let (parent, node) = self.directory(directory);
                let made =
                    to_errno(files.make_directory(&root, &node, name, NewMode::exactly(0o750)));
                assert_eq!(
                    made.as_ref().err().copied(),
                    self.tree.check_free(parent, name).err()
                );
                self.tree
                    .add(parent, name, FileKind::Directory, 0o750, made?.id());
            }
            Op::Symlink((directory, name), length) => {
                let name = NAMES[usize::from(name)];
                let (parent, node) = self.directory(directory);
                let target = vec![b't'; usize::from(length)];
                let made = to_errno(files.make_symlink(&root, &node, name, &target));
                assert_eq!(
                    made.as_ref().err().copied(),
                    self.tree.check_free(parent, name).err()
                );
                let number = self
                    .tree
                    .add(parent, name, FileKind::Symlink, 0o777, made?.id());
                self.tree.file_mut(number).target = target;
            }
            Op::Fifo((directory, name)) => {
                let name = NAMES[usize::from(name)];
                let (parent, node) = self.directory(directory);
                let mode = NewMode::exactly(0o600);
                let made =
                    to_errno(files.make_special(&root, &node, name, SpecialFile::Fifo, mode));
                assert_eq!(
                    made.as_ref().err().copied(),
                    self.tree.check_free(parent, name).err()
                );
                self.tree
                    .add(parent, name, FileKind::Fifo, 0o600, made?.id());
            }
            Op::Unnamed(directory, name) => {
                let (parent, node) = self.directory(directory);
                let made = files
                    .create_tmpfile(&root, &node, NewMode::exactly(0o600))
                    .unwrap();
                let number = self.tree.add_unnamed(parent, 0o600, made.id());
                if let Some(name) = name {
                    let name = NAMES[usize::from(name)];
                    let linked = to_errno(files.link(&made, &node, name));
                    assert_eq!(linked, self.tree.link(number, parent, name));
                }
                self.held.push((number, made));
            }
            Op::Link(from, (directory, name)) => {
                let (number, file) = self.at(from)?;
                let name = NAMES[usize::from(name)];
                let (parent, node) = self.directory(directory);
                let linked = to_errno(files.link(&file, &node, name));
                assert_eq!(linked, self.tree.link(number, parent, name));
            }
            Op::Unlink((directory, name)) => {
                let name = NAMES[usize::from(name)];
                let (parent, node) = self.directory(directory);
                let done = to_errno(files.unlink(&node, name));
                assert_eq!(done, self.tree.unlink(parent, name).map(|_| ()));
            }
            Op::RemoveDirectory((directory, name)) => {
                let name = NAMES[usize::from(name)];
                let (parent, node) = self.directory(directory);
                let done = to_errno(files.remove_directory(&node, name));
                assert_eq!(done, self.tree.remove_directory(parent, name).map(|_| ()));
            }
            Op::Rename(from, to, mode) => {
                let mode = [
                    RenameMode::Replace,
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                    RenameMode::Whiteout,
                    RenameMode::WhiteoutNoReplace,
                ][usize::from(mode)];
                let (from_name, to_name) = (NAMES[usize::from(from.1)], NAMES[usize::from(to.1)]);
                let (from_number, from_node) = self.directory(from.0);
                let (to_number, to_node) = self.directory(to.0);
                let place = |directory, name| DirEntryRef { directory, name };
                let (one, other) = (place(&from_node, from_name), place(&to_node, to_name));
                let done = to_errno(files.rename(&root, one, other, mode));
                let wanted = self
                    .tree
                    .rename((from_number, from_name), (to_number, to_name), mode);
                assert_eq!(done, wanted.map(|_| ()), "{mode:?}");
                if let Ok((_, true)) = wanted {
                    let white = from_node.lookup(from_name).unwrap();
                    let kind = FileKind::CharacterDevice;
                    self.tree.add(from_number, from_name, kind, 0, white.id());
                }
            }
            Op::Write(at, offset, length, seed) => {
                let (number, file) = self.regular_at(at)?;
                let content = bytes(seed, usize::from(length));
                let at = WriteAt::Offset(u64::from(offset));
                files.write(&root, &file, at, &content).unwrap();
                self.tree.write(number, offset as usize, &content);
            }
            Op::Append(at, length, seed) => {
                let (number, file) = self.regular_at(at)?;
                let content = bytes(seed, usize::from(length));
                let start = files.write(&root, &file, WriteAt::End, &content).unwrap();
                assert_eq!(start as usize, self.tree.file(number).content.len());
                self.tree.write(number, start as usize, &content);
            }
            Op::Truncate(at, size) => {
                let (number, file) = self.regular_at(at)?;
                let set = SetAttributes {
                    size_bytes: Some(u64::from(size)),
                    ..SetAttributes::default()
                };
                files.set_attributes(&root, &file, &set).unwrap();
                self.tree.file_mut(number).content.resize(size as usize, 0);
            }
            Op::Punch(at, offset, length) => {
                let (number, file) = self.regular_at(at)?;
                let (from, count) = (u64::from(offset), u64::from(length));
                files
                    .allocate(&file, Allocate::PunchHole, from, count)
                    .unwrap();
                self.tree
                    .zero(number, offset as usize, length as usize, false);
            }
            Op::Zero(at, offset, length, keeps_size) => {
                let (number, file) = self.regular_at(at)?;
                let (from, count) = (u64::from(offset), u64::from(length));
                files
                    .allocate(&file, Allocate::ZeroRange { keeps_size }, from, count)
                    .unwrap();
                self.tree
                    .zero(number, offset as usize, length as usize, !keeps_size);
            }
            Op::Copy(one, from, other, to, length) => {
                let (source, source_node) = self.regular_at(one)?;
                let (target, target_node) = self.regular_at(other)?;
                let copied = to_errno(files.copy_range(
                    &root,
                    (&source_node, u64::from(from)),
                    (&target_node, u64::from(to)),
                    u64::from(length),
                ));
                let content = &self.tree.file(source).content;
                let end = (from as usize + length as usize).min(content.len());
                let part = content.get(from as usize..end).unwrap_or(&[]).to_vec();
                let (from, to, length) = (from as usize, to as usize, part.len());
                if source == target && from < to + length && to < from + length {
                    assert_eq!(copied, Err(Errno::EINVAL));
                    return Ok(());
                }
                assert_eq!(copied, Ok(length as u64));
                if !part.is_empty() {
                    self.tree.write(target, to, &part);
                }
            }
            Op::Chmod(at, mode) => {
                let (number, file) = self.at(at)?;
                let set = SetAttributes {
                    permissions: Some(u32::from(mode)),
                    ..SetAttributes::default()
                };
                files.set_attributes(&root, &file, &set).unwrap();
                self.tree.file_mut(number).mode = u32::from(mode);
            }
            Op::Chown(at, owner) => {
                let (number, file) = self.at(at)?;
                let (uid, gid) = (u32::from(owner), u32::from(owner) * 10);
                let set = SetAttributes {
                    uid: Some(uid),
                    gid: Some(gid),
                    ..SetAttributes::default()
                };
                files.set_attributes(&root, &file, &set).unwrap();
                let file = self.tree.file_mut(number);
                (file.uid, file.gid) = (uid, gid);
            }
            Op::SetXattr(at, name, length) => {
                let (number, file) = self.at(at)?;
                let name = XATTRS[usize::from(name)];
                let value = bytes(length as u8, length as usize);
                let set = to_errno(files.set_xattr(&root, &file, name, &value, XattrMode::Set));
                let takes_user = matches!(file.kind(), FileKind::Regular | FileKind::Directory);
                if name.starts_with(b"user.") && !takes_user {
                    assert_eq!(set, Err(Errno::EPERM));
                } else {
                    assert_eq!(set, Ok(()));
                    self.tree
                        .file_mut(number)
                        .xattrs
                        .insert(name.to_vec(), value);
                }
            }
            Op::RemoveXattr(at, name) => {
                let (number, file) = self.at(at)?;
                let name = XATTRS[usize::from(name)];
                let removed = self.tree.file_mut(number).xattrs.remove(name).is_some();
                let done = to_errno(files.remove_xattr(&file, name));
                let takes_user = matches!(file.kind(), FileKind::Regular | FileKind::Directory);
                match (removed, name.starts_with(b"user.") && !takes_user) {
                    (true, _) => assert_eq!(done, Ok(())),
                    (false, false) => assert_eq!(done, Err(Errno::ENODATA)),
                    (false, true) => assert_eq!(done, Err(Errno::EPERM)),
                }
            }
            Op::Hold(at) => {
                let (number, file) = self.at(at)?;
                self.held.push((number, file));
            }
            Op::Release(index) => {
                if !self.held.is_empty() {
                    let index = usize::from(index) % self.held.len();
                    self.held.swap_remove(index);
                    files.reap().unwrap();
                }
            }
            Op::Record(index) => {
                self.settings.record_bytes = RECORDS[usize::from(index)];
                files.set_settings(self.settings);
            }
            Op::XattrPlace(index) => {
                self.settings.xattr =
                    [XattrPlace::Attributes, XattrPlace::Directory][usize::from(index)];
                files.set_settings(self.settings);
            }
            Op::Raise => {
                let next = (files.version() + 1).min(VERSION);
                files.raise_version(next).unwrap();
            }
            Op::Sync => {
                self.settle();
                self.rig.sync();
                self.tree_at_sync = self.tree.clone();
                self.compare();
            }
            Op::Crash => {
                drop(files);
                self.files = None;
                self.held.clear();
                let files = self.rig.reopen(self.settings);
                files.free_unlinked().unwrap();
                self.files = Some(files);
                self.tree = self.tree_at_sync.clone();
            }
        }
        self.settle();
        Ok(())
    }

    /// Compares the committed state with the model, and the live state with the committed one.
    fn compare(&self) {
        let committed = self.rig.committed();
        let root = committed.root().unwrap();
        let live = self.files().root().unwrap();
        self.compare_file(ROOT, &root, &live);
        let mut lost: Vec<ObjectId> = committed.unlinked().unwrap();
        lost.sort();
        let nameless = self.tree.files.values().filter(|file| file.links == 0);
        let mut wanted: Vec<ObjectId> = nameless.map(|file| file.id).collect();
        wanted.sort();
        assert_eq!(lost, wanted, "the unlinked set");
        for (number, node) in &self.held {
            if self.tree.file(*number).kind == FileKind::Regular {
                let content = &self.tree.file(*number).content;
                let mut found = vec![0; content.len() + 10];
                let count = node.read(0, &mut found).unwrap();
                assert!(found[..count] == content[..], "content of a held file");
            }
        }
        self.rig.check_space();
        self.rig.check_accounting();
    }

    fn compare_file(&self, number: u64, node: &Node, live: &Node) {
        let file = self.tree.file(number);
        let stat = node.stat().unwrap();
        assert_eq!(stat, live.stat().unwrap());
        assert_eq!(stat.id, file.id);
        let form = node.object().committed().unwrap().dnode().bonus_type;
        match (self.born_as, live.file_system().version()) {
            (VERSION, _) => assert_eq!(form, ObjectType::SA),
            (_, VERSION) => {}
            _ => assert_eq!(form, ObjectType::ZNODE),
        }
        assert_eq!((stat.kind, stat.permissions), (file.kind, file.mode));
        assert_eq!(
            (stat.links, stat.uid, stat.gid),
            (file.links, file.uid, file.gid)
        );
        assert_eq!(node.parent_id().unwrap(), self.tree.file(file.parent).id);
        let names: Vec<Vec<u8>> = file.xattrs.keys().cloned().collect();
        assert_eq!(node.xattr_names().unwrap(), names);
        for (name, value) in &file.xattrs {
            assert!(
                node.xattr(name).unwrap().as_ref() == Some(value),
                "an attribute's value"
            );
        }
        let acl = node.nfs4_acl().unwrap().unwrap();
        assert!(acl.len() >= 3);
        match file.kind {
            FileKind::Directory => {
                assert_eq!(stat.size_bytes, file.entries.len() as u64 + 2);
                let mut found: Vec<_> = node
                    .entries()
                    .unwrap()
                    .map(|entry| entry.unwrap())
                    .map(|entry| {
                        // Entries of version 1 have no type.
                        let kind = match self.born_as {
                            1 => entry
                                .kind
                                .unwrap_or(live.lookup(&entry.name).unwrap().kind()),
                            _ => entry.kind.unwrap(),
                        };
                        (entry.name, entry.id, kind)
                    })
                    .collect();
                found.sort();
                let wanted: Vec<_> = file
                    .entries
                    .iter()
                    .map(|(name, child)| {
                        let child = self.tree.file(*child);
                        (name.clone(), child.id, child.kind)
                    })
                    .collect();
                assert_eq!(found, wanted);
                for (name, child) in &file.entries {
                    let child_node = node.lookup(name).unwrap();
                    let live = live.lookup(name).unwrap();
                    self.compare_file(*child, &child_node, &live);
                }
            }
            FileKind::Symlink => {
                assert_eq!(node.link_target().unwrap().as_ref(), Some(&file.target));
                assert_eq!(stat.size_bytes, file.target.len() as u64);
            }
            FileKind::Regular => self.compare_content(&file.content, node, live),
            _ => assert_eq!(stat.size_bytes, 0),
        }
    }

    fn compare_content(&self, content: &[u8], node: &Node, live: &Node) {
        assert_eq!(node.size_bytes(), content.len() as u64);
        let mut found = vec![1; content.len()];
        node.read(0, &mut found).unwrap();
        assert!(found == content, "content on disk");
        live.read(0, &mut found).unwrap();
        assert!(found == content, "content as seen");
        let block = node.object().block_bytes() as usize;
        if !block.is_power_of_two() || content.len() <= block {
            return;
        }
        // Blocks of zeros are holes, all others are data.
        for (at, part) in content.chunks(block).enumerate() {
            let offset = (at * block) as u64;
            let is_zero = part.iter().all(|byte| *byte == 0);
            let data = live.seek(Seek::Data, offset);
            assert_eq!(data.ok() == Some(offset), !is_zero, "block {at}");
            let extent = node.next_extent(offset).unwrap();
            let is_data = extent.is_some_and(|extent| extent.offset_bytes == offset);
            assert_eq!(is_data, !is_zero, "block {at}");
        }
    }
}

proptest! {
    #![proptest_config(Config { cases: 48, max_shrink_iters: 400, ..Config::default() })]
    #[test]
    fn any_sequence_of_operations_leaves_the_same_tree(
        version in 1..=VERSION,
        ops in proptest::collection::vec(op(), 1..150)
    ) {
        let mut world = World::new(version);
        for op in &ops {
            let _ = world.perform(op);
        }
        world.perform(&Op::Sync).unwrap();
        world.perform(&Op::Crash).unwrap();
        world.perform(&Op::Sync).unwrap();
    }
}
