//! Applies one step of work to a pool and its model.

mod copy;
mod dataset;
mod file;

use super::effect::Effect;
use super::model::{Content, Head, Kind, Model, Node, Path, Snapshot, Synchrony, Tree};
use crate::hostile::rng::SeededRng;
use millpond_engine::{
    Allocate, Caller, DatasetError, DirEntryRef, Error, FileError, FileSystem, NewMode, Pool,
    PropertyValue, RenameMode, SetAttributes, SetTime, SpecialFile, Timestamp, View, WriteAt,
    XattrMode,
};
use millpond_ondisk::PoolVersion;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A model, a random generator and the permitted operations.
#[derive(Debug, Clone)]
pub struct Life {
    /// The expected content of the pool.
    pub model: Model,
    /// The random generator that selects the operations.
    pub rng: SeededRng,
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
    /// Percentage of steps in file systems that copy blocks between files, datasets and from snapshots.
    pub copy_percent: usize,
    /// Whether new file systems are of any version, 1 to 5.
    pub makes_old_file_systems: bool,
    /// The pool's version, which limits the properties and file systems that it can have.
    pub pool_version: PoolVersion,
    /// Whether the pool's root is encrypted, so that no dataset can have three copies.
    pub is_encrypted: bool,
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

/// A property with a text.
#[must_use]
pub fn text(name: &str, value: &str) -> (String, PropertyValue) {
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
            rng: SeededRng::new(seed),
            log: vec![],
            file_bytes_max: 400_000,
            dataset_percent: 12,
            makes_many: true,
            keeps_open: false,
            syncs_seldom: false,
            copy_percent: 0,
            makes_old_file_systems: false,
            pool_version: PoolVersion::FEATURES,
            is_encrypted: false,
            sets_synchrony: false,
            deeds: vec![],
            open: BTreeMap::new(),
            pool: pool.to_owned(),
            next_name: 0,
        }
    }

    /// A property value that needs features or a version, and can be set in this pool.
    fn fitting(&mut self, values: &[&'static str]) -> &'static str {
        let version = self.pool_version;
        let fits = |value: &&&'static str| match **value {
            value if value.starts_with("gzip") => version.has_gzip(),
            "zle" => version.has_zle(),
            "2" | "3" => version.has_copies(),
            "lz4" | "sha512" | "skein" | "blake3" => version.has_features(),
            value if value.starts_with("zstd") => version.has_features(),
            _ => true,
        };
        let fitting: Vec<&'static str> = values.iter().filter(fits).copied().collect();
        self.rng.pick(&fitting).copied().unwrap_or("on")
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
        let act = if self.rng.below(100) < self.dataset_percent {
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
        let kind = self.rng.below(5);
        let mut bytes = vec![0u8; length];
        match kind {
            0 => {}
            1 => bytes.chunks_mut(8).for_each(|piece| {
                let word = self.rng.word().to_le_bytes();
                piece.copy_from_slice(&word[..piece.len()]);
            }),
            2 => {
                let word = self.rng.word();
                for (at, byte) in bytes.iter_mut().enumerate() {
                    *byte = b"the same again "[(at + word as usize % 15) % 15];
                }
            }
            _ => bytes.chunks_mut(64).for_each(|piece| {
                let word = self.rng.word().to_le_bytes();
                let count = piece.len().min(8);
                piece[..count].copy_from_slice(&word[..count]);
            }),
        }
        bytes
    }

    fn length(&mut self) -> usize {
        let max = self.file_bytes_max;
        match self.rng.below(10) {
            0 => 0,
            1 => 1 + self.rng.below(112),
            2 | 3 => self.rng.below(5000),
            4 => 512 * self.rng.below(300),
            5 => (128 << 10) + self.rng.below(3) - 1,
            6 | 7 => self.rng.below(max / 4),
            _ => self.rng.below(max),
        }
        .min(max)
    }

    fn content_step(&mut self, pool: &Pool) -> Outcome {
        let names: Vec<String> = self.model.heads.keys().cloned().collect();
        let name = self.rng.pick(&names).cloned().unwrap_or_default();
        match self.model.heads[&name].content.clone() {
            Content::Volume(bytes) => self.volume_step(pool, &name, bytes),
            Content::Files(tree) => {
                // The model's own reference is released first, so that changing the tree copies nothing.
                self.set_content(&name, Content::Volume(Arc::default()));
                let mut changed = tree;
                let files = self.files(pool, &name);
                let outcome = match &files {
                    Ok(files) => {
                        let tree = Arc::make_mut(&mut changed);
                        let copies =
                            self.copy_percent > 0 && self.rng.below(100) < self.copy_percent;
                        let outcome = match copies {
                            true => self.copy_step(pool, files, tree, &name),
                            false => self.file_step(files, tree, &name),
                        };
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
        let name = self.rng.pick(&names).cloned().unwrap_or_default();
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
            .rng
            .pick(&plain)
            .filter(|_| self.rng.clone().below(8) > 0);
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
        let at = self.rng.below(size);
        let length = (1 + self.length()).min(size - at);
        drop(bytes);
        let (act, effect) = match self.rng.below(8) {
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
                let size = (1 + self.rng.below(2 * self.file_bytes_max / block)) * block;
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
