//! What a pool must hold.

use std::collections::BTreeMap;
use std::sync::Arc;

/// All datasets below (and with) the root.
#[derive(Debug, Clone, Default)]
pub struct Model {
    /// By full name.
    pub heads: BTreeMap<String, Head>,
    pub(super) next_snapshot: u64,
}

/// A file system or volume.
#[derive(Debug, Clone)]
pub struct Head {
    /// What it holds now.
    pub content: Content,
    /// Oldest first.
    pub snapshots: Vec<Snapshot>,
    /// The snapshot it is a clone of.
    pub origin: Option<u64>,
}

/// A snapshot.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Never changes, whatever it is renamed to.
    pub id: u64,
    /// After the `@`.
    pub name: String,
    /// What it holds.
    pub content: Content,
}

/// What a dataset holds.
#[derive(Debug, Clone)]
pub enum Content {
    /// Files.
    Files(Arc<Tree>),
    /// Bytes.
    Volume(Arc<Vec<u8>>),
}

/// Names from the root down; none is the root.
pub type Path = Vec<Vec<u8>>;

/// Files by numbers of the model's own; the root is 0.
#[derive(Debug, Clone)]
pub struct Tree {
    /// All files.
    pub nodes: BTreeMap<u64, Node>,
    pub(super) next: u64,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// What it is.
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

/// Kinds of files with what they hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Names of files.
    Directory(BTreeMap<Vec<u8>, u64>),
    /// Bytes.
    File(Arc<Vec<u8>>),
    /// A target.
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
            nodes: BTreeMap::from([(0, root)]),
            next: 1,
        }
    }
}

impl Tree {
    /// Every name, as (directory's path, directory, name, file), breadth first.
    #[must_use]
    pub fn names(&self) -> Vec<(Path, u64, Vec<u8>, u64)> {
        let mut all = vec![];
        let mut open = vec![(vec![], 0)];
        while let Some((path, id)) = open.pop() {
            let Kind::Directory(entries) = &self.nodes[&id].kind else {
                continue;
            };
            for (name, child) in entries {
                all.push((path.clone(), id, name.clone(), *child));
                if matches!(self.nodes[child].kind, Kind::Directory(_)) {
                    let mut below: Path = path.clone();
                    below.push(name.clone());
                    open.push((below, *child));
                }
            }
        }
        all
    }
    /// Directories with their paths; the root is first.
    #[must_use]
    pub fn directories(&self) -> Vec<(Path, u64)> {
        let mut all = vec![(vec![], 0)];
        for (path, _, name, id) in self.names() {
            if matches!(self.nodes[&id].kind, Kind::Directory(_)) {
                let mut path = path;
                path.push(name);
                all.push((path, id));
            }
        }
        all
    }
    /// Names of a file; of a directory as `stat` counts.
    #[must_use]
    pub fn links(&self, id: u64) -> u64 {
        let is_directory = |id: &u64| matches!(self.nodes[id].kind, Kind::Directory(_));
        if let Kind::Directory(entries) = &self.nodes[&id].kind {
            return 2 + entries.values().filter(|id| is_directory(id)).count() as u64;
        }
        let entries = self.nodes.values().filter_map(|node| match &node.kind {
            Kind::Directory(entries) => Some(entries.values()),
            _ => None,
        });
        entries.flatten().filter(|entry| **entry == id).count() as u64
    }
    pub(super) fn add(&mut self, directory: u64, name: &[u8], node: Node) -> u64 {
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, node);
        self.entries(directory).insert(name.to_vec(), id);
        id
    }
    pub(super) fn entries(&mut self, directory: u64) -> &mut BTreeMap<Vec<u8>, u64> {
        match &mut self.nodes.get_mut(&directory).unwrap().kind {
            Kind::Directory(entries) => entries,
            other => panic!("{other:?} is no directory"),
        }
    }
    pub(super) fn remove(&mut self, directory: u64, name: &[u8]) {
        let id = self.entries(directory).remove(name).unwrap();
        if matches!(self.nodes[&id].kind, Kind::Directory(_)) || self.links(id) == 0 {
            self.nodes.remove(&id);
        }
    }
    pub(super) fn bytes(&mut self, id: u64) -> &mut Vec<u8> {
        match &mut self.nodes.get_mut(&id).unwrap().kind {
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
        }
    }
}

impl Model {
    /// Whether a head is a clone of this snapshot.
    #[must_use]
    pub fn has_clones(&self, snapshot: u64) -> bool {
        self.heads
            .values()
            .any(|head| head.origin == Some(snapshot))
    }
    /// Whether datasets lie below this one.
    #[must_use]
    pub fn has_children(&self, name: &str) -> bool {
        let below = format!("{name}/");
        self.heads.keys().any(|other| other.starts_with(&below))
    }
    /// Dataset and position of a snapshot.
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
