//! Applies one step of work to a pool and its model.

use super::effect::Effect;
use super::model::{Content, Head, Kind, Model, Node, Path, Snapshot, Synchrony, Tree};
use crate::hostile::dice::Dice;
use millpond_engine::{
    Allocate, Caller, DatasetError, DirEntryRef, Error, FileError, FileSystem, NewMode, Pool,
    PropertyValue, RenameMode, SetAttributes, SetTime, SpecialFile, Timestamp, View, WriteAt,
    XattrMode,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A model, a random generator and the permitted operations.
#[derive(Debug, Clone)]
pub struct Life {
    /// The expected content of the pool.
    pub model: Model,
    /// The random generator that selects the operations.
    pub dice: Dice,
    /// The operations so far, oldest first.
    pub log: Vec<Act>,
    /// Maximum size of files and volumes in bytes.
    pub file_bytes_max: usize,
    /// Percentage of steps that change datasets instead of files.
    pub dataset_percent: usize,
    /// Whether a step may create many files at once, in as many transactions.
    pub makes_many: bool,
    /// Whether file systems stay open between steps.
    ///
    /// A step that changes datasets, or [`Life::close_file_systems`], closes them.
    pub keeps_open: bool,
    /// Whether steps that commit everything are rare.
    pub syncs_seldom: bool,
    /// Whether properties of intent logs are changed too.
    pub sets_synchrony: bool,
    /// The events since the caller last took them, with their datasets.
    pub deeds: Vec<(String, Deed)>,
    open: BTreeMap<String, Arc<FileSystem>>,
    pool: String,
    next_name: u64,
}

/// A description of an operation.
pub type Act = String;

/// An event of an intent log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    /// A change.
    Effect(Arc<Effect>),
    /// Changes of a file so far are ordered before everything that follows.
    Promote(u64),
    /// A promise of stable storage.
    ///
    /// It covers everything ordered, and the changes of these files in their order. If `is_all`, it also
    /// covers the changes of other files, in any order.
    Commit {
        /// Files, in the order in which their records are written.
        files: Vec<u64>,
        /// Whether it covers all files.
        is_all: bool,
    },
}

/// A step, or its refusal for a reason that the model does not know.
type Outcome = Result<Act, Error>;

fn text(name: &str, value: &str) -> (String, PropertyValue) {
    (name.to_owned(), PropertyValue::Text(value.to_owned()))
}

fn number(name: &str, value: u64) -> (String, PropertyValue) {
    (name.to_owned(), PropertyValue::Number(value))
}

const COMPRESSIONS: &[&str] = &[
    "off",
    "on",
    "lz4",
    "lzjb",
    "zle",
    "gzip-1",
    "gzip-6",
    "gzip-9",
    "zstd",
    "zstd-1",
    "zstd-19",
    "zstd-fast",
];
const CHECKSUMS: &[&str] = &[
    "on",
    "fletcher2",
    "fletcher4",
    "sha256",
    "sha512",
    "skein",
    "blake3",
];
const RECORD_BYTES: &[u64] = &[512, 4096, 16384, 131_072, 131_072, 1 << 20];
const TICK_S: i64 = 1_700_000_000;

impl Life {
    /// Creates the work of a seed and pool shape, for a pool with only its root file system.
    #[must_use]
    pub fn new(pool: &str, shape: &str, seed: u64) -> Self {
        let seed = shape.bytes().fold(seed, |sum, byte| {
            sum.wrapping_mul(0x100_0000_01b3)
                .wrapping_add(u64::from(byte))
        });
        let mut model = Model::default();
        let root = Content::Files(Arc::new(Tree::default()));
        model.heads.insert(pool.to_owned(), Head::new(root));
        Self {
            model,
            dice: Dice::new(seed),
            log: vec![],
            file_bytes_max: 400_000,
            dataset_percent: 12,
            makes_many: true,
            keeps_open: false,
            syncs_seldom: false,
            sets_synchrony: false,
            deeds: vec![],
            open: BTreeMap::new(),
            pool: pool.to_owned(),
            next_name: 0,
        }
    }

    /// The differences of a pool from the model.
    #[must_use]
    pub fn differences(&self, pool: &View) -> Vec<String> {
        self.model.differences(pool)
    }

    /// Fails the test if a pool differs from the model.
    ///
    /// # Panics
    /// With the differences and the last operations.
    pub fn compare(&self, pool: &View, what: &str) {
        let differences = self.differences(pool);
        let from = self.log.len().saturating_sub(40);
        assert!(
            differences.is_empty(),
            "{what}:\n  {}\nafter:\n  {}",
            differences.join("\n  "),
            self.log[from..].join("\n  ")
        );
    }

    /// Runs `count` steps.
    ///
    /// # Panics
    /// If a step is refused that must succeed.
    pub fn steps(&mut self, pool: &Pool, count: usize) {
        for _ in 0..count {
            if let Err(error) = self.step(pool) {
                let from = self.log.len().saturating_sub(40);
                panic!(
                    "{error}: {error:?}\nafter:\n  {}",
                    self.log[from..].join("\n  ")
                );
            }
        }
    }

    /// Runs one step.
    ///
    /// # Errors
    /// Those of the library. The model is then unchanged.
    pub fn step(&mut self, pool: &Pool) -> Result<(), Error> {
        let act = if self.dice.below(100) < self.dataset_percent {
            self.close_file_systems();
            self.dataset_step(pool)?
        } else {
            self.content_step(pool)?
        };
        self.log.push(act);
        Ok(())
    }

    /// Closes the file systems that [`Life::keeps_open`] kept open.
    pub fn close_file_systems(&mut self) {
        self.open.clear();
    }

    fn files(&mut self, pool: &Pool, name: &str) -> Result<Arc<FileSystem>, Error> {
        if let Some(open) = self.open.get(name) {
            return Ok(Arc::clone(open));
        }
        let files = pool.file_system(name)?;
        if self.keeps_open {
            self.open.insert(name.to_owned(), Arc::clone(&files));
        }
        Ok(files)
    }

    fn name(&mut self, prefix: &str) -> String {
        self.next_name += 1;
        format!("{prefix}{}", self.next_name)
    }

    fn new_dataset(&mut self, prefix: &str) -> String {
        let name = self.name(prefix);
        format!("{}/{name}", self.pool)
    }

    /// Bytes of several kinds: noise, text, zeros, mixtures.
    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let kind = self.dice.below(5);
        let mut bytes = vec![0u8; length];
        match kind {
            0 => {}
            1 => bytes.chunks_mut(8).for_each(|piece| {
                let word = self.dice.word().to_le_bytes();
                piece.copy_from_slice(&word[..piece.len()]);
            }),
            2 => {
                let word = self.dice.word();
                for (at, byte) in bytes.iter_mut().enumerate() {
                    *byte = b"the same again "[(at + word as usize % 15) % 15];
                }
            }
            _ => bytes.chunks_mut(64).for_each(|piece| {
                let word = self.dice.word().to_le_bytes();
                let count = piece.len().min(8);
                piece[..count].copy_from_slice(&word[..count]);
            }),
        }
        bytes
    }

    fn length(&mut self) -> usize {
        let max = self.file_bytes_max;
        match self.dice.below(10) {
            0 => 0,
            1 => 1 + self.dice.below(112),
            2 | 3 => self.dice.below(5000),
            4 => 512 * self.dice.below(300),
            5 => (128 << 10) + self.dice.below(3) - 1,
            6 | 7 => self.dice.below(max / 4),
            _ => self.dice.below(max),
        }
        .min(max)
    }

    fn content_step(&mut self, pool: &Pool) -> Outcome {
        let names: Vec<String> = self.model.heads.keys().cloned().collect();
        let name = self.dice.pick(&names).cloned().unwrap_or_default();
        match self.model.heads[&name].content.clone() {
            Content::Volume(bytes) => self.volume_step(pool, &name, bytes),
            Content::Files(tree) => {
                // The model's own reference is released first, so that changing the tree copies nothing.
                self.set_content(&name, Content::Volume(Arc::default()));
                let mut changed = tree;
                let files = self.files(pool, &name);
                let outcome = match &files {
                    Ok(files) => {
                        let outcome = self.file_step(files, Arc::make_mut(&mut changed), &name);
                        // Files that were unlinked while the step held them open.
                        outcome.and_then(|act| Ok(files.reap().map(|()| act)?))
                    }
                    Err(error) => Err(error.clone()),
                };
                self.set_content(&name, Content::Files(changed));
                outcome
            }
        }
    }

    fn set_content(&mut self, name: &str, content: Content) {
        if let Some(head) = self.model.heads.get_mut(name) {
            head.content = content;
        }
    }

    /// Records a completed change of a dataset, and a promise that came with it.
    fn note(&mut self, dataset: &str, effect: Effect) {
        let mut note = |deed| self.deeds.push((dataset.to_owned(), deed));
        note(Deed::Effect(Arc::new(effect)));
        if self.model.synchrony(dataset) == Synchrony::Always {
            note(Deed::Commit {
                files: vec![],
                is_all: true,
            });
        }
    }
    /// Like [`Life::note`], for a file system whose tree the caller holds. Applies the change to the tree.
    fn did(&mut self, dataset: &str, tree: &mut Tree, effect: Effect) {
        effect.apply_to(tree);
        self.note(dataset, effect);
    }
    fn promised(&mut self, dataset: &str, files: Vec<u64>, is_all: bool) {
        if self.model.synchrony(dataset) != Synchrony::Disabled {
            let deed = Deed::Commit { files, is_all };
            self.deeds.push((dataset.to_owned(), deed));
        }
    }

    /// Syncs a file, a file system or a volume through an intent log.
    ///
    /// # Errors
    /// Those of the library. The promise is recorded before it is kept: [`Life::deeds`] contains the
    /// attempt.
    pub fn commit(&mut self, pool: &Pool) -> Result<(), Error> {
        let names: Vec<String> = self.model.heads.keys().cloned().collect();
        let name = self.dice.pick(&names).cloned().unwrap_or_default();
        let tree = match &self.model.heads[&name].content {
            Content::Volume(_) => {
                let volume = pool.volume(&name)?;
                self.promised(&name, vec![], true);
                self.log.push(format!("{name}: flush"));
                return Ok(volume.flush()?);
            }
            Content::Files(tree) => Arc::clone(tree),
        };
        let files = self.files(pool, &name)?;
        let (_, all) = tree.survey();
        let plain: Vec<_> = all.iter().filter(|named| named.is_file).collect();
        let picked = self
            .dice
            .pick(&plain)
            .filter(|_| self.dice.clone().below(8) > 0);
        let Some(picked) = picked.copied() else {
            // Records of files are ordered by object id, and ids may be reused from older files.
            let mut numbers = vec![];
            for named in &plain {
                let node = walk(&files, &named.path)?.lookup(named.name)?;
                numbers.push((node.id(), named.id));
            }
            numbers.sort_unstable();
            let order = numbers.into_iter().map(|(_, id)| id).collect();
            self.promised(&name, order, true);
            self.log.push(format!("{name}: commit"));
            return Ok(files.commit_log()?);
        };
        let node = walk(&files, &picked.path)?.lookup(picked.name)?;
        self.promised(&name, vec![picked.id], false);
        let shown = String::from_utf8_lossy(picked.name);
        self.log.push(format!("{name}: fsync {shown}"));
        Ok(files.fsync(&node)?)
    }

    fn volume_step(&mut self, pool: &Pool, name: &str, bytes: Arc<Vec<u8>>) -> Outcome {
        let volume = pool.volume(name)?;
        let size = bytes.len();
        let at = self.dice.below(size);
        let length = (1 + self.length()).min(size - at);
        drop(bytes);
        let (act, effect) = match self.dice.below(8) {
            0 => {
                volume.discard(at as u64, length as u64)?;
                let block = volume.block_bytes() as usize;
                let (start, end) = (at.div_ceil(block) * block, (at + length) / block * block);
                let effect = Effect::VolumeZeros {
                    at: start,
                    length: end.saturating_sub(start),
                };
                let effect = (start < end).then_some(effect);
                (format!("{name}: discard {at}+{length}"), effect)
            }
            1 => {
                volume.zero(at as u64, length as u64)?;
                let effect = Effect::VolumeZeros { at, length };
                (format!("{name}: zero {at}+{length}"), Some(effect))
            }
            2 => {
                let block = volume.block_bytes() as usize;
                let size = (1 + self.dice.below(2 * self.file_bytes_max / block)) * block;
                volume.resize(size as u64)?;
                let effect = Effect::VolumeSize(size);
                (format!("{name}: volsize {size}"), Some(effect))
            }
            _ => {
                let new = self.bytes(length);
                volume.write(at as u64, &new)?;
                let bytes = Arc::new(new);
                let effect = Effect::VolumeBytes { at, bytes };
                (format!("{name}: write {at}+{length}"), Some(effect))
            }
        };
        if let Some(effect) = effect {
            effect.apply(&mut self.head(name).content);
            self.note(name, effect);
        }
        Ok(act)
    }

    fn file_step(&mut self, files: &Arc<FileSystem>, tree: &mut Tree, dataset: &str) -> Outcome {
        let caller = Caller::root();
        let (directories, all) = tree.survey();
        let (path, directory) = self.dice.pick(&directories).cloned().unwrap_or_default();
        let at = walk(files, &path)?;
        let plain: Vec<_> = all.iter().filter(|named| named.is_file).collect();
        let what = self.dice.below(100);
        let new = self.name("n");
        let name = new.as_bytes();
        if what < 18 || plain.is_empty() {
            // Occasionally many small files at once, so that directories and their tables grow.
            let is_many = self.dice.below(12) == 0 && self.makes_many;
            let count = if is_many { 60 } else { 1 };
            for number in 0..count {
                let name = match (count, self.dice.below(10)) {
                    (1, 0) => format!("{new}-{}", "long".repeat(50)).into_bytes(),
                    (1, 1) => format!("{new}-ünïcödé").into_bytes(),
                    (1, _) => name.to_vec(),
                    _ => format!("{new}-{number}").into_bytes(),
                };
                let length = if count == 1 { self.length() } else { number };
                let content = self.bytes(length);
                let (node, _) = files.create(&caller, &at, &name, NewMode::exactly(0o640), true)?;
                let made = Node::new(Kind::File(Arc::default()), 0o640);
                let id = self.made(dataset, tree, directory, &name, made);
                for (index, piece) in content.chunks(280_000).enumerate() {
                    let at = index * 280_000;
                    files.write(&caller, &node, WriteAt::Offset(at as u64), piece)?;
                    let bytes = Arc::new(piece.to_vec());
                    self.did(dataset, tree, Effect::Bytes { id, at, bytes });
                }
            }
            return Ok(format!("{dataset}: create {new} x{count}"));
        }
        let Some(picked) = self.dice.pick(&plain).copied() else {
            return Ok(String::new());
        };
        let (of_path, of_directory, id) = (Arc::clone(&picked.path), picked.directory, picked.id);
        let of_name = picked.name.to_vec();
        let holder = walk(files, &of_path)?;
        let node = holder.lookup(&of_name)?;
        let shown = String::from_utf8_lossy(&of_name).into_owned();
        let size = match &tree.nodes[&id].kind {
            Kind::File(bytes) => bytes.len(),
            _ => 0,
        };
        match what {
            18..=41 => {
                let offset = match self.dice.below(6) {
                    0 => size,
                    1 => (size + self.dice.below(300_000)).min(self.file_bytes_max),
                    _ => self.dice.below(size + 1),
                };
                let length = 1 + self.length().min(self.file_bytes_max);
                let new = self.bytes(length);
                for (index, piece) in new.chunks(280_000).enumerate() {
                    let at = offset + index * 280_000;
                    files.write(&caller, &node, WriteAt::Offset(at as u64), piece)?;
                    let bytes = Arc::new(piece.to_vec());
                    self.did(dataset, tree, Effect::Bytes { id, at, bytes });
                }
                Ok(format!(
                    "{dataset}: write {shown} {offset}+{length} of {size}"
                ))
            }
            42..=49 => {
                let length = match self.dice.below(3) {
                    0 => 0,
                    1 => self.dice.below(size + 1),
                    _ => self.dice.below(self.file_bytes_max),
                };
                let set = SetAttributes {
                    size_bytes: Some(length as u64),
                    ..SetAttributes::default()
                };
                files.set_attributes(&caller, &node, &set)?;
                self.did(dataset, tree, Effect::Length { id, length });
                Ok(format!("{dataset}: truncate {shown} {size} -> {length}"))
            }
            50..=54 if size > 0 => {
                let offset = self.dice.below(size);
                let length = 1 + self.dice.below(size - offset);
                files.allocate(&node, Allocate::PunchHole, offset as u64, length as u64)?;
                let at = offset;
                self.did(dataset, tree, Effect::Hole { id, at, length });
                Ok(format!(
                    "{dataset}: punch {shown} {offset}+{length} of {size}"
                ))
            }
            55..=61 => {
                files.unlink(&holder, &of_name)?;
                let removed = Effect::Removed {
                    directory: of_directory,
                    name: of_name,
                };
                self.did(dataset, tree, removed);
                Ok(format!("{dataset}: unlink {shown}"))
            }
            62..=66 => {
                files.link(&node, &at, name)?;
                let linked = Effect::Linked {
                    directory,
                    name: name.to_vec(),
                    id,
                };
                self.did(dataset, tree, linked);
                Ok(format!("{dataset}: link {shown} {new}"))
            }
            67..=70 => {
                files.make_directory(&caller, &at, name, NewMode::exactly(0o755))?;
                let made = Node::new(Kind::Directory(BTreeMap::new()), 0o755);
                self.made(dataset, tree, directory, name, made);
                Ok(format!("{dataset}: mkdir {new}"))
            }
            71..=73 => {
                let target = "target/".repeat(1 + self.dice.below(40)).into_bytes();
                files.make_symlink(&caller, &at, name, &target)?;
                let made = Node::new(Kind::Link(target), 0o777);
                self.made(dataset, tree, directory, name, made);
                Ok(format!("{dataset}: symlink {new}"))
            }
            74 => {
                let mode = NewMode::exactly(0o600);
                files.make_special(&caller, &at, name, SpecialFile::Fifo, mode)?;
                self.made(dataset, tree, directory, name, Node::new(Kind::Fifo, 0o600));
                Ok(format!("{dataset}: fifo {new}"))
            }
            75..=81 => {
                let Some(picked) = self.dice.pick(&all) else {
                    return Ok("nothing".to_owned());
                };
                let (from_path, from_directory) = (Arc::clone(&picked.path), picked.directory);
                let (from_name, moved) = (picked.name.to_vec(), picked.id);
                let mut full = Path::clone(&from_path);
                full.push(from_name.clone());
                if path.starts_with(&full) {
                    return Ok("nothing".to_owned());
                }
                // Sometimes onto an existing file.
                let onto_file =
                    matches!(tree.nodes[&moved].kind, Kind::File(_)) && self.dice.below(3) == 0;
                let source = walk(files, &from_path)?;
                let from = DirEntryRef {
                    directory: &source,
                    name: &from_name,
                };
                if onto_file {
                    let to = DirEntryRef {
                        directory: &holder,
                        name: &of_name,
                    };
                    files.rename(&caller, from, to, RenameMode::Replace)?;
                    if moved != id {
                        self.moved(
                            dataset,
                            tree,
                            (from_directory, from_name),
                            (of_directory, of_name),
                            moved,
                        );
                    }
                    return Ok(format!("{dataset}: rename onto {shown}"));
                }
                let to = DirEntryRef {
                    directory: &at,
                    name,
                };
                files.rename(&caller, from, to, RenameMode::NoReplace)?;
                let to = (directory, name.to_vec());
                self.moved(dataset, tree, (from_directory, from_name), to, moved);
                Ok(format!("{dataset}: rename to {new}"))
            }
            82..=86 => {
                let (mode, uid, gid) = (
                    self.dice.below(0o1000) as u32,
                    self.dice.below(3000) as u32,
                    self.dice.below(3000) as u32,
                );
                let seconds = TICK_S + self.dice.below(1_000_000) as i64;
                let set = SetAttributes {
                    permissions: Some(mode),
                    uid: Some(uid),
                    gid: Some(gid),
                    mtime: Some(SetTime::To(Timestamp {
                        seconds,
                        nanoseconds: self.dice.below(1_000_000_000) as u64,
                    })),
                    ..SetAttributes::default()
                };
                files.set_attributes(&caller, &node, &set)?;
                self.did(dataset, tree, Effect::Owner { id, mode, uid, gid });
                Ok(format!("{dataset}: owner and mode of {shown}"))
            }
            87..=94 => {
                let name = format!("user.x{}", self.dice.below(8)).into_bytes();
                let has_it = tree.nodes[&id].xattrs.contains_key(&name);
                if has_it && self.dice.below(2) == 0 {
                    files.remove_xattr(&node, &name)?;
                    let value = None;
                    self.did(dataset, tree, Effect::Xattr { id, name, value });
                    return Ok(format!("{dataset}: remove xattr of {shown}"));
                }
                let length = match self.dice.below(4) {
                    0 => self.dice.below(20),
                    1 => self.dice.below(300),
                    2 => self.dice.below(3000),
                    _ => self.dice.below(40_000),
                };
                let value = self.bytes(length);
                files.set_xattr(&caller, &node, &name, &value, XattrMode::Set)?;
                let value = Some(value);
                self.did(dataset, tree, Effect::Xattr { id, name, value });
                Ok(format!("{dataset}: set xattr of {shown}, {length}"))
            }
            95..=97 => {
                let empty = directories.iter().skip(1).find(|(_, id)| {
                    matches!(&tree.nodes[id].kind, Kind::Directory(entries) if entries.is_empty())
                });
                let Some((path, _)) = empty else {
                    return Ok("nothing".to_owned());
                };
                let (last, above) = path.split_last().expect("not the root");
                let holder = walk(files, above)?;
                files.remove_directory(&holder, last)?;
                let above = directories.iter().find(|(path, _)| path[..] == *above);
                let removed = Effect::Removed {
                    directory: above.map_or(0, |(_, id)| *id),
                    name: last.clone(),
                };
                self.did(dataset, tree, removed);
                Ok(format!("{dataset}: rmdir"))
            }
            // A whole txg is expensive, so it is rare in tests with another subject.
            _ if !self.syncs_seldom || self.dice.below(8) == 0 => {
                files.sync()?;
                Ok(format!("{dataset}: sync"))
            }
            _ => Ok("nothing".to_owned()),
        }
    }

    fn made(
        &mut self,
        dataset: &str,
        tree: &mut Tree,
        directory: u64,
        name: &[u8],
        node: Node,
    ) -> u64 {
        let (id, node) = (tree.next, Arc::new(node));
        let name = name.to_vec();
        let effect = Effect::Made {
            directory,
            name,
            id,
            node,
        };
        self.did(dataset, tree, effect);
        id
    }

    fn moved(
        &mut self,
        dataset: &str,
        tree: &mut Tree,
        from: (u64, Vec<u8>),
        to: (u64, Vec<u8>),
        id: u64,
    ) {
        self.deeds.push((dataset.to_owned(), Deed::Promote(id)));
        self.did(dataset, tree, Effect::Moved { from, to, id });
    }

    fn dataset_step(&mut self, pool: &Pool) -> Outcome {
        let datasets = pool.datasets();
        let names: Vec<String> = self.model.heads.keys().cloned().collect();
        let name = self.dice.pick(&names).cloned().unwrap_or_default();
        let snapshots: Vec<(String, u64, String)> = self
            .model
            .heads
            .iter()
            .flat_map(|(head, holds)| {
                let all = holds.snapshots.iter();
                all.map(move |s| (head.clone(), s.id, s.name.clone()))
            })
            .collect();
        let snapshot = self.dice.pick(&snapshots).cloned();
        match self.dice.below(100) {
            0..=24 => {
                let new = self.name("s");
                datasets.snapshot(&[&format!("{name}@{new}")], &[])?;
                self.model.next_snapshot += 1;
                let id = self.model.next_snapshot;
                let head = self.head(&name);
                let content = head.content.clone();
                head.snapshots.push(Snapshot {
                    id,
                    name: new.clone(),
                    content,
                });
                Ok(format!("snapshot {name}@{new}"))
            }
            25..=36 => {
                let Some((head, id, short)) = snapshot else {
                    return Ok("nothing".to_owned());
                };
                let full = format!("{head}@{short}");
                let outcome = datasets.destroy_snapshots(&[&full], Default::default());
                if self.model.has_clones(id) {
                    return must_fail(outcome, &format!("destroy {full}, which has clones"));
                }
                outcome?;
                self.head(&head).snapshots.retain(|s| s.id != id);
                Ok(format!("destroy {full}"))
            }
            37..=46 if self.model.heads.len() < 12 => {
                let Some((head, id, short)) = snapshot else {
                    return Ok("nothing".to_owned());
                };
                let at = self.model.heads[&head]
                    .snapshots
                    .iter()
                    .find(|s| s.id == id);
                let content = at.map(|s| s.content.clone());
                let full = format!("{head}@{short}");
                let new = self.new_dataset("c");
                datasets.clone_snapshot(&full, &new, &[])?;
                let mut made = Head::new(content.expect("it was picked"));
                made.origin = Some(id);
                self.model.heads.insert(new.clone(), made);
                Ok(format!("clone {full} {new}"))
            }
            47..=54 => {
                let outcome = datasets.promote(&name);
                let Some(origin) = self.model.heads[&name].origin else {
                    return must_fail(outcome, &format!("promote {name}, no clone"));
                };
                outcome?;
                let (from, at) = self.model.snapshot(origin).expect("a clone's origin");
                let from = from.to_owned();
                let old = self.head(&from);
                let rest = old.snapshots.split_off(at + 1);
                let mut moved = std::mem::replace(&mut old.snapshots, rest);
                let inherited = old.origin.replace(origin);
                let head = self.head(&name);
                moved.append(&mut head.snapshots);
                head.snapshots = moved;
                head.origin = inherited;
                Ok(format!("promote {name} over {from}"))
            }
            55..=62 => {
                let Some(last) = self.model.heads[&name].snapshots.last().cloned() else {
                    return Ok("nothing".to_owned());
                };
                let full = format!("{name}@{}", last.name);
                datasets.rollback(&full)?;
                self.set_content(&name, last.content);
                Ok(format!("rollback {full}"))
            }
            63..=67 if self.model.heads.len() < 12 => {
                let new = self.new_dataset("fs");
                datasets.create_filesystem(&new, &[])?;
                let content = Content::Files(Arc::new(Tree::default()));
                self.model.heads.insert(new.clone(), Head::new(content));
                Ok(format!("create {new}"))
            }
            68..=70 if self.model.heads.len() < 12 => {
                let new = self.new_dataset("vol");
                let block = 512u64 << self.dice.below(9);
                let size =
                    (1 + self.dice.below(self.file_bytes_max) as u64).div_ceil(block) * block;
                let properties = [
                    number("volsize", size),
                    number("volblocksize", block),
                    // Sparse, because this test does not cover reservations.
                    number("refreservation", 0),
                ];
                datasets.create_volume(&new, &properties)?;
                let content = Content::Volume(Arc::new(vec![0; size as usize]));
                self.model.heads.insert(new.clone(), Head::new(content));
                Ok(format!("create -V {size} -b {block} {new}"))
            }
            71..=74 if name != self.pool => {
                let head = &self.model.heads[&name];
                let is_refused = !head.snapshots.is_empty() || self.model.has_children(&name);
                let outcome = datasets.destroy(&name, Default::default());
                if is_refused {
                    return must_fail(outcome, &format!("destroy {name}, in use"));
                }
                outcome?;
                self.model.heads.remove(&name);
                Ok(format!("destroy {name}"))
            }
            75..=78 if name != self.pool && !self.model.has_children(&name) => {
                let new = self.new_dataset("r");
                datasets.rename(&name, &new)?;
                let head = self.model.heads.remove(&name).expect("it was picked");
                self.model.heads.insert(new.clone(), head);
                Ok(format!("rename {name} {new}"))
            }
            79..=88 if self.sets_synchrony => {
                let values = [
                    ("standard", Synchrony::Standard),
                    ("always", Synchrony::Always),
                    ("disabled", Synchrony::Disabled),
                ];
                let (value, synchrony) = *self.dice.pick(&values).unwrap_or(&values[0]);
                datasets.set_properties(&name, &[text("sync", value)])?;
                self.head(&name).synchrony = Some(synchrony);
                Ok(format!("set sync={value} {name}"))
            }
            89..=92 if self.sets_synchrony => {
                let value = self
                    .dice
                    .pick(&["latency", "throughput"])
                    .unwrap_or(&"latency");
                datasets.set_properties(&name, &[text("logbias", value)])?;
                Ok(format!("set logbias={value} {name}"))
            }
            _ => {
                let is_volume = matches!(self.model.heads[&name].content, Content::Volume(_));
                let property = match self.dice.below(if is_volume { 4 } else { 9 }) {
                    0 => text("compression", self.dice.pick(COMPRESSIONS).unwrap_or(&"on")),
                    1 => text("checksum", self.dice.pick(CHECKSUMS).unwrap_or(&"on")),
                    2 => text("copies", self.dice.pick(&["1", "2", "3"]).unwrap_or(&"1")),
                    3 => text(
                        "redundant_metadata",
                        self.dice
                            .pick(&["all", "most", "some", "none"])
                            .unwrap_or(&"all"),
                    ),
                    4 | 5 => number("recordsize", *self.dice.pick(RECORD_BYTES).unwrap_or(&4096)),
                    6 => text(
                        "dnodesize",
                        self.dice
                            .pick(&["legacy", "auto", "1k", "4k", "16k"])
                            .unwrap_or(&"auto"),
                    ),
                    7 => text("xattr", self.dice.pick(&["on", "sa"]).unwrap_or(&"sa")),
                    _ => number(
                        "special_small_blocks",
                        *self.dice.pick(&[0, 4096, 131_072]).unwrap_or(&0),
                    ),
                };
                let shown = format!("set {}={:?} {name}", property.0, property.1);
                datasets.set_properties(&name, &[property])?;
                Ok(shown)
            }
        }
    }

    fn head(&mut self, name: &str) -> &mut Head {
        self.model
            .heads
            .get_mut(name)
            .expect("a dataset of the model")
    }
}

fn must_fail(outcome: Result<(), DatasetError>, what: &str) -> Outcome {
    match outcome {
        Ok(()) => panic!("was done: {what}"),
        Err(error) => Ok(format!("refused ({error}): {what}")),
    }
}

fn walk(files: &Arc<FileSystem>, path: &[Vec<u8>]) -> Result<millpond_engine::Node, FileError> {
    let mut at = files.root()?;
    for name in path {
        at = at.lookup(name)?;
    }
    Ok(at)
}
