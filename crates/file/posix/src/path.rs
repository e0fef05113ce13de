//! Resolves a path to a file, and finds the path of a file.

use crate::error::FileError;
use crate::file_system::FileSystem;
use crate::node::Node;
use crate::path_finder::PathFinder;
use crate::stat::FileKind;
use millpond_ondisk::ObjectId;
use std::collections::VecDeque;

/// The most symbolic links that are followed in one path. Linux has the same limit.
const LINKS_MAX: u32 = 40;

/// Whether a symbolic link at the end of a path is followed. Links inside the path always are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symlinks {
    /// Return the link itself.
    Keep,
    /// Return the link's target.
    Follow,
}

impl FileSystem {
    /// Resolves a path below the root directory.
    ///
    /// Leading and repeated slashes are ignored. Absolute link targets start at the root of this file system.
    ///
    /// # Errors
    /// [`FileError::Path`] around [`FileError::NotFound`], [`FileError::NotADirectory`],
    /// [`FileError::SymlinkLoop`] or [`FileError::NameTooLong`]; or if a directory or link of the path cannot be read.
    pub fn resolve(&self, path: &[u8], symlinks: Symlinks) -> Result<Node, FileError> {
        self.follow(path, symlinks).map_err(|error| match error {
            FileError::NotFound
            | FileError::NotADirectory
            | FileError::SymlinkLoop
            | FileError::NameTooLong => FileError::Path {
                path: path.to_vec(),
                error: Box::new(error),
            },
            other => other,
        })
    }

    fn follow(&self, path: &[u8], symlinks: Symlinks) -> Result<Node, FileError> {
        let mut node = self.root()?;
        let mut rest: VecDeque<Vec<u8>> = components(path).collect();
        let mut links_left = LINKS_MAX;
        while let Some(name) = rest.pop_front() {
            let child = node.lookup(&name)?;
            let is_followed = !rest.is_empty() || symlinks == Symlinks::Follow;
            if child.kind() == FileKind::Symlink && is_followed {
                links_left = links_left.checked_sub(1).ok_or(FileError::SymlinkLoop)?;
                let target = child.link_target()?;
                let target = target.ok_or_else(|| FileError::invalid("not a symbolic link"))?;
                if target.first() == Some(&b'/') {
                    node = self.root()?;
                }
                for name in components(&target).collect::<Vec<_>>().into_iter().rev() {
                    rest.push_front(name);
                }
                continue;
            }
            node = child;
        }
        Ok(node)
    }

    /// The path of a file below the root, found through its parents: `a/b/c`.
    ///
    /// Returns `None` if the chain of parents does not lead to the root (a deleted file, or one whose
    /// recorded link is gone). Each directory on the way is searched.
    ///
    /// # Errors
    /// If a directory on the way cannot be read.
    pub fn path_of(&self, id: ObjectId) -> Result<Option<Vec<u8>>, FileError> {
        let mut paths = PathFinder::new(self.shared()?).paths(&[id])?;
        Ok(paths.pop().flatten())
    }
}

fn components(path: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    path.split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
        .map(<[u8]>::to_vec)
}
