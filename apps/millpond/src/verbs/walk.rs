//! Walks a tree in order, for `find` and `tree`.

use super::ls::joined;
use super::pools::FileTarget;
use millpond_engine::{DirectoryEntry, FileKind, Node, ObjectId};
use std::collections::HashSet;

/// One file of the walk. A directory comes before its entries.
#[derive(Debug)]
pub struct Step {
    /// Its path, which starts with the word given on the command line.
    pub path: Vec<u8>,
    /// Its name; empty for the starting point.
    pub name: Vec<u8>,
    /// Number of levels below the starting point.
    pub depth: u32,
    /// Whether it is the last entry of its directory.
    pub is_last: bool,
    /// The file, or why it cannot be read.
    pub node: Result<Node, String>,
    /// Its object number.
    pub id: ObjectId,
}

/// A depth-first walk.
///
/// It holds the names of one directory per level, and the object id of every directory seen (about 16 bytes
/// each). A directory that appears twice is an error instead of a loop.
#[derive(Debug)]
pub struct Walk<'a> {
    target: &'a FileTarget,
    depth_max: u32,
    /// Whether names that begin with a dot are left out.
    pub is_hidden_skipped: bool,
    seen: HashSet<ObjectId>,
    stack: Vec<Step>,
    /// Directories that could not be read completely.
    pub problems: Vec<(Vec<u8>, String)>,
}

impl<'a> Walk<'a> {
    /// Starts at a file and descends at most `depth_max` levels.
    pub fn new(target: &'a FileTarget, word: &[u8], depth_max: u32) -> Self {
        let step = Step {
            path: word.to_vec(),
            name: vec![],
            depth: 0,
            is_last: true,
            id: target.node.id(),
            node: Ok(target.node.clone()),
        };
        Self {
            target,
            depth_max,
            is_hidden_skipped: false,
            seen: HashSet::new(),
            stack: vec![step],
            problems: vec![],
        }
    }

    /// Pushes the entries of a directory in front of the remaining walk, in byte order of their names.
    fn descend(&mut self, path: &[u8], depth: u32, node: &Node) {
        if !self.seen.insert(node.id()) {
            let reason = "the directory has a second name".to_owned();
            return self.problems.push((path.to_vec(), reason));
        }
        let entries = match node.entries() {
            Ok(entries) => entries,
            Err(error) => return self.problems.push((path.to_vec(), error.to_string())),
        };
        let mut found: Vec<DirectoryEntry> = vec![];
        for entry in entries {
            match entry {
                Ok(entry) if self.is_hidden_skipped && entry.name.starts_with(b".") => {}
                Ok(entry) => found.push(entry),
                Err(error) => self.problems.push((path.to_vec(), error.to_string())),
            }
        }
        found.sort_unstable_by(|one, other| other.name.cmp(&one.name));
        for (index, entry) in found.into_iter().enumerate() {
            self.stack.push(Step {
                path: joined(path, &entry.name),
                name: entry.name,
                depth: depth + 1,
                is_last: index == 0,
                // Opened when the walk reaches it.
                node: Err(String::new()),
                id: entry.id,
            });
        }
    }
}

impl Iterator for Walk<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let mut step = self.stack.pop()?;
        if step.depth > 0 {
            let node = self.target.files.node(step.id);
            step.node = node.map_err(|error| error.to_string());
        }
        if let Ok(node) = &step.node
            && node.kind() == FileKind::Directory
            && step.depth < self.depth_max
        {
            let node = node.clone();
            self.descend(&step.path, step.depth, &node);
        }
        Some(step)
    }
}

/// The first path of a walk. A dataset without a path stands for its root.
pub fn beginning(word: &[u8]) -> Vec<u8> {
    let mut path = word.to_vec();
    if !word.windows(2).any(|pair| pair == b":/") {
        if path.last() != Some(&b':') {
            path.push(b':');
        }
        path.push(b'/');
    }
    path
}
