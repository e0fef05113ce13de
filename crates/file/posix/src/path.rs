//! Paths: from names to a file, and from a file back to its name.

use crate::error::PosixError;
use crate::file_system::FileSystem;
use crate::node::Node;
use crate::stat::FileKind;
use millpond_env::sync::Arc;
use millpond_ondisk::ObjectId;
use std::collections::VecDeque;

/// As many symbolic links as Linux follows in one path.
const LINKS_MAX: u32 = 40;
/// No real path is deeper; a longer chain of parents is a cycle.
const DEPTH_MAX: usize = 4096;

/// Whether a symbolic link at the end of a path is followed. Those on the way always are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symlinks {
    /// The link itself is wanted.
    Keep,
    /// What it leads to is wanted.
    Follow,
}

impl FileSystem {
    /// The file at a path below the root directory. Leading and doubled slashes mean nothing;
    /// absolute targets of links start at this file system's root.
    ///
    /// # Errors
    /// [`PosixError::NotFound`], [`PosixError::NotADirectory`], [`PosixError::TooManyLinks`], or if
    /// something on the way cannot be read.
    pub fn resolve(self: &Arc<Self>, path: &[u8], symlinks: Symlinks) -> Result<Node, PosixError> {
        let mut node = self.root()?;
        let mut rest: VecDeque<Vec<u8>> = components(path).collect();
        let mut links_left = LINKS_MAX;
        while let Some(name) = rest.pop_front() {
            if node.kind() != FileKind::Directory {
                return Err(PosixError::NotADirectory {
                    name: path.to_vec(),
                });
            }
            let child = node.child(&name).map_err(|error| match error {
                PosixError::NotFound { .. } => PosixError::NotFound {
                    name: path.to_vec(),
                },
                other => other,
            })?;
            let is_followed = !rest.is_empty() || symlinks == Symlinks::Follow;
            if child.kind() == FileKind::Symlink && is_followed {
                links_left = links_left
                    .checked_sub(1)
                    .ok_or_else(|| PosixError::TooManyLinks {
                        name: path.to_vec(),
                    })?;
                let target = child.link_target()?.unwrap_or_default();
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

    /// The path of a file below the root, found by way of parents: `a/b/c`. `None` where the chain
    /// does not lead to the root (a deleted file, one whose named link is gone).
    ///
    /// # Errors
    /// If something on the way cannot be read. Searches each directory on the way.
    pub fn path_of(self: &Arc<Self>, id: ObjectId) -> Result<Option<Vec<u8>>, PosixError> {
        let mut names: Vec<Vec<u8>> = vec![];
        let mut at = id;
        while at != self.root_id() {
            if names.len() > DEPTH_MAX {
                return Ok(None);
            }
            let node = self.node(at)?;
            let parent = node.parent_id()?;
            if parent == at {
                return Ok(None);
            }
            let parent = self.node(parent)?;
            if parent.kind() != FileKind::Directory {
                // The parent of a directory of extended attributes is the file that has them.
                names.push(b"<xattrdir>".to_vec());
                at = parent.id();
                continue;
            }
            let mut found = None;
            for entry in parent.entries()? {
                let entry = entry?;
                if entry.id == at {
                    found = Some(entry.name);
                    break;
                }
            }
            match found {
                Some(name) => names.push(name),
                // A directory of extended attributes of a directory is in no table.
                None if node.kind() == FileKind::Directory && node.is_xattr_directory()? => {
                    names.push(b"<xattrdir>".to_vec());
                }
                None => return Ok(None),
            }
            at = parent.id();
        }
        names.reverse();
        Ok(Some(names.join(&b'/')))
    }
}

fn components(path: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    path.split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
        .map(<[u8]>::to_vec)
}
