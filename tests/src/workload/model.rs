//! The expected content of a pool.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The root dataset and all datasets below it.
#[derive(Debug, Clone, Default)]
pub struct Model {
    /// By full name.
    pub heads: BTreeMap<String, Head>,
    pub(super) next_snapshot: u64,
}

/// A file system or volume.
#[derive(Debug, Clone)]
pub struct Head {
    /// Its current content.
    pub content: Content,
    /// Oldest first.
    pub snapshots: Vec<Snapshot>,
    /// The id of the snapshot that it is a clone of.
    pub origin: Option<u64>,
    /// The property `sync`, if it is set.
    pub synchrony: Option<Synchrony>,
}

/// When changes are on stable storage: the property `sync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synchrony {
    /// When a caller requests it.
    Standard,
    /// When the call returns.
    Always,
    /// When their txg is committed, even if a caller requests it earlier.
    Disabled,
}

/// A snapshot.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Never changes, even if the snapshot is renamed.
    pub id: u64,
    /// The name after the `@`.
    pub name: String,
    /// Its content.
    pub content: Content,
}

/// The content of a dataset.
#[derive(Debug, Clone)]
pub enum Content {
    /// Files.
    Files(Arc<Tree>),
    /// Bytes.
    Volume(Arc<Vec<u8>>),
}

/// The names from the root down; an empty path is the root.
pub type Path = Vec<Vec<u8>>;

/// A name in a tree.
#[derive(Debug, Clone)]
pub struct Named<'t> {
    /// The path of its directory.
    pub path: Arc<Path>,
    /// Its directory.
    pub directory: u64,
    /// The last component.
    pub name: &'t [u8],
    /// The file that it refers to.
    pub id: u64,
    /// Whether the file is a regular file.
    pub is_file: bool,
}

/// Files by numbers of the model; the root is 0.
#[derive(Debug, Clone)]
pub struct Tree {
    /// All files. A file is shared with the trees of clones and origins until it changes.
    pub nodes: BTreeMap<u64, Arc<Node>>,
    pub(super) next: u64,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its kind and content.
    pub kind: Kind,
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Kinds of files with their content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Names with the numbers of their files.
    Directory(BTreeMap<Vec<u8>, u64>),
    /// Bytes.
    File(Arc<Vec<u8>>),
    /// Its target.
    Link(Vec<u8>),
    /// A named pipe.
    Fifo,
}

impl Node {
    pub(super) fn new(kind: Kind, mode: u32) -> Self {
        Self {
            kind,
            mode,
            uid: 0,
            gid: 0,
            xattrs: BTreeMap::new(),
        }
    }
}

impl Default for Tree {
    fn default() -> Self {
        let root = Node::new(Kind::Directory(BTreeMap::new()), 0o755);
        Self {
            nodes: BTreeMap::from([(0, Arc::new(root))]),
            next: 1,
        }
    }
}

impl Tree {
    /// Every directory with its path, starting with the root, and every name.
    #[must_use]
    pub fn survey(&self) -> (Vec<(Arc<Path>, u64)>, Vec<Named<'_>>) {
        let mut directories = vec![(Arc::new(vec![]), 0)];
        let mut names = Vec::with_capacity(self.nodes.len());
        let mut next = 0;
        while let Some((path, directory)) = directories.get(next).cloned() {
            next += 1;
            let Kind::Directory(entries) = &self.nodes[&directory].kind else {
                continue;
            };
            for (name, id) in entries {
                let kind = &self.nodes[id].kind;
                if matches!(kind, Kind::Directory(_)) {
                    let mut below = Path::clone(&path);
                    below.push(name.clone());
                    directories.push((Arc::new(below), *id));
                }
                names.push(Named {
                    path: Arc::clone(&path),
                    directory,
                    name,
                    id: *id,
                    is_file: matches!(kind, Kind::File(_)),
                });
            }
        }
        (directories, names)
    }
    /// The number of names of each file; for directories the link count that `stat` reports.
    #[must_use]
    pub fn link_counts(&self) -> BTreeMap<u64, u64> {
        let mut counts = BTreeMap::new();
        for (id, node) in &self.nodes {
            let Kind::Directory(entries) = &node.kind else {
                continue;
            };
            *counts.entry(*id).or_default() += 2;
            for child in entries.values() {
                match self.nodes[child].kind {
                    Kind::Directory(_) => *counts.entry(*id).or_default() += 1,
                    _ => *counts.entry(*child).or_default() += 1,
                }
            }
        }
        counts
    }
    pub(super) fn entries(&mut self, directory: u64) -> &mut BTreeMap<Vec<u8>, u64> {
        match &mut self.node(directory).kind {
            Kind::Directory(entries) => entries,
            other => panic!("{other:?} is no directory"),
        }
    }
    pub(super) fn remove(&mut self, directory: u64, name: &[u8]) {
        let id = self.entries(directory).remove(name).unwrap();
        if !self.has_name(id) {
            self.nodes.remove(&id);
        }
    }
    fn has_name(&self, id: u64) -> bool {
        self.nodes.values().any(|node| match &node.kind {
            Kind::Directory(entries) => entries.values().any(|entry| *entry == id),
            _ => false,
        })
    }
    /// A file, for changes.
    pub(super) fn node(&mut self, id: u64) -> &mut Node {
        Arc::make_mut(self.nodes.get_mut(&id).unwrap())
    }
    pub(super) fn bytes(&mut self, id: u64) -> &mut Vec<u8> {
        match &mut self.node(id).kind {
            Kind::File(bytes) => Arc::make_mut(bytes),
            other => panic!("{other:?} is no file"),
        }
    }
}

impl Head {
    pub(super) fn new(content: Content) -> Self {
        Self {
            content,
            snapshots: vec![],
            origin: None,
            synchrony: None,
        }
    }
}

impl Model {
    /// The `sync` property in force for a dataset: its own, or the pool's.
    #[must_use]
    pub fn synchrony(&self, name: &str) -> Synchrony {
        let pool = name.split('/').next().unwrap_or(name);
        let set = |name: &str| self.heads.get(name).and_then(|head| head.synchrony);
        set(name)
            .or_else(|| set(pool))
            .unwrap_or(Synchrony::Standard)
    }
    /// Whether a dataset is a clone of this snapshot.
    #[must_use]
    pub fn has_clones(&self, snapshot: u64) -> bool {
        self.heads
            .values()
            .any(|head| head.origin == Some(snapshot))
    }
    /// Whether there are datasets below this one.
    #[must_use]
    pub fn has_children(&self, name: &str) -> bool {
        let below = format!("{name}/");
        self.heads.keys().any(|other| other.starts_with(&below))
    }
    /// The dataset and position of a snapshot.
    #[must_use]
    pub fn snapshot(&self, id: u64) -> Option<(&str, usize)> {
        self.heads.iter().find_map(|(name, head)| {
            let at = head
                .snapshots
                .iter()
                .position(|snapshot| snapshot.id == id)?;
            Some((name.as_str(), at))
        })
    }
}
