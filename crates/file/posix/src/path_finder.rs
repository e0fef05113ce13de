//! Finds the paths of many files.

use crate::error::FileError;
use crate::file_system::FileSystem;
use crate::stat::FileKind;
use millpond_env::sync::Arc;
use millpond_object::ObjectError;
use millpond_ondisk::ObjectId;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The maximum depth of a path. A longer chain of parents is treated as a cycle.
const DEPTH_MAX: usize = 4096;
/// The most directories that are kept from one call to the next.
const DIRECTORIES_MAX: usize = 65_536;
/// The name of the hidden directory that has a file's extended attributes.
const XATTR_DIRECTORY: &[u8] = b"<xattrdir>";

/// One step towards the root.
#[derive(Debug, Clone)]
struct Link {
    parent: ObjectId,
    name: Vec<u8>,
}

/// Finds the paths of files through their parents.
///
/// A file has no record of its name, so a directory must be searched for it. Files that are looked up together
/// share these searches: each directory is read once, whatever the number of files in it.
#[derive(Debug)]
pub struct PathFinder {
    files: Arc<FileSystem>,
    /// What is known; `None` for what has no name.
    links: HashMap<ObjectId, Option<Link>>,
}

impl PathFinder {
    /// Nothing is read yet.
    #[must_use]
    pub fn new(files: Arc<FileSystem>) -> Self {
        Self {
            files,
            links: HashMap::new(),
        }
    }

    /// The paths of these files below the root, in their order: `a/b/c`, and the empty path for the root.
    ///
    /// A path is `None` if the chain of parents does not lead to the root (a deleted file, or one whose recorded
    /// link is gone). A file's extended attributes are in `file/<xattrdir>`.
    ///
    /// # Errors
    /// If a file, or a directory on the way, cannot be read.
    pub fn paths(&mut self, ids: &[ObjectId]) -> Result<Vec<Option<Vec<u8>>>, FileError> {
        let mut wanted: Vec<ObjectId> = ids.to_vec();
        for _ in 0..=DEPTH_MAX {
            let links = &self.links;
            wanted.retain(|id| *id != self.files.root_id() && !links.contains_key(id));
            if wanted.is_empty() {
                break;
            }
            wanted = self.find_parents(&wanted)?;
        }
        let paths = ids.iter().map(|id| self.path(*id)).collect();
        let parents: HashSet<ObjectId> = self.links.values().flatten().map(|l| l.parent).collect();
        self.links.retain(|id, _| parents.contains(id));
        if self.links.len() > DIRECTORIES_MAX {
            self.links.clear();
        }
        Ok(paths)
    }

    /// The path of a file whose links are known.
    fn path(&self, id: ObjectId) -> Option<Vec<u8>> {
        let mut names: Vec<&[u8]> = vec![];
        let mut at = id;
        while at != self.files.root_id() {
            let link = self.links.get(&at)?.as_ref()?;
            if names.len() > DEPTH_MAX {
                return None;
            }
            names.push(&link.name);
            at = link.parent;
        }
        names.reverse();
        Some(names.join(&b'/'))
    }

    /// Finds the links of these files. Returns their parents, each once.
    fn find_parents(&mut self, ids: &[ObjectId]) -> Result<Vec<ObjectId>, FileError> {
        self.files.prefetch_files(ids.iter().copied());
        let mut by_parent: BTreeMap<ObjectId, HashSet<ObjectId>> = BTreeMap::new();
        for id in ids {
            self.links.insert(*id, None);
            let parent = self.files.node(*id)?.parent_id()?;
            if parent != *id {
                by_parent.entry(parent).or_default().insert(*id);
            }
        }
        let mut parents = vec![];
        for (parent, children) in by_parent {
            self.find_in(parent, &children)?;
            // What has none of them need not be a directory, or exist.
            let is_found = |id| self.links.get(id).is_some_and(Option::is_some);
            if children.iter().any(is_found) {
                parents.push(parent);
            }
        }
        Ok(parents)
    }

    /// Finds the names of some files in their directory.
    fn find_in(&mut self, parent: ObjectId, children: &HashSet<ObjectId>) -> Result<(), FileError> {
        let directory = match self.files.node(parent) {
            Ok(directory) => directory,
            // The directory of a link that is gone may be gone too.
            Err(error) if is_missing(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut left = children.clone();
        if directory.kind() == FileKind::Directory {
            for entry in directory.entries()? {
                let entry = entry?;
                if left.remove(&entry.id) {
                    self.link(entry.id, parent, entry.name);
                }
                if left.is_empty() {
                    return Ok(());
                }
            }
        }
        for id in left {
            // The parent of a hidden directory is the file that it belongs to.
            let node = self.files.node(id)?;
            if node.kind() == FileKind::Directory && node.is_xattr_directory()? {
                self.link(id, parent, XATTR_DIRECTORY.to_vec());
            }
        }
        Ok(())
    }

    fn link(&mut self, id: ObjectId, parent: ObjectId, name: Vec<u8>) {
        self.links.insert(id, Some(Link { parent, name }));
    }
}

/// Whether there is no such file.
fn is_missing(error: &FileError) -> bool {
    matches!(
        error,
        FileError::Stale | FileError::Object(ObjectError::NotFound { .. })
    )
}
