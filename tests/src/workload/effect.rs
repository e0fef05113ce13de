//! The effects of operations on a dataset's content.
//!
//! They are divided into the pieces that an intent log keeps or loses.

use super::model::{Content, Node, Tree};
use std::sync::Arc;

/// A change of one dataset's content that corresponds to one intent log record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// A new file with a name.
    Made {
        /// The directory that gets the name.
        directory: u64,
        /// The name.
        name: Vec<u8>,
        /// The new file's number.
        id: u64,
        /// Its kind and attributes.
        node: Arc<Node>,
    },
    /// A further name for a file.
    Linked {
        /// The directory that gets the name.
        directory: u64,
        /// The name.
        name: Vec<u8>,
        /// The file.
        id: u64,
    },
    /// The removal of a name, and of the file if it was the last name.
    Removed {
        /// The directory that loses the name.
        directory: u64,
        /// The name.
        name: Vec<u8>,
    },
    /// A rename, which replaces an existing file.
    Moved {
        /// Directory and name before.
        from: (u64, Vec<u8>),
        /// Directory and name after.
        to: (u64, Vec<u8>),
        /// The file.
        id: u64,
    },
    /// A write to a file. The file grows if the write ends beyond its end.
    Bytes {
        /// The file.
        id: u64,
        /// The offset of the write.
        at: usize,
        /// The bytes.
        bytes: Arc<Vec<u8>>,
    },
    /// A change of a file's length.
    Length {
        /// The file.
        id: u64,
        /// The new length in bytes.
        length: usize,
    },
    /// A hole inside a file.
    Hole {
        /// The file.
        id: u64,
        /// Its offset.
        at: usize,
        /// Its length.
        length: usize,
    },
    /// A change of a file's owner and permissions.
    Owner {
        /// The file.
        id: u64,
        /// Permissions.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
    },
    /// A change of a file's extended attribute.
    Xattr {
        /// The file.
        id: u64,
        /// Its name.
        name: Vec<u8>,
        /// `None` removes it.
        value: Option<Vec<u8>>,
    },
    /// A write to a volume.
    VolumeBytes {
        /// The offset of the write.
        at: usize,
        /// The bytes.
        bytes: Arc<Vec<u8>>,
    },
    /// Zeros written to a volume.
    VolumeZeros {
        /// Their offset.
        at: usize,
        /// Their number in bytes.
        length: usize,
    },
    /// A change of a volume's size.
    ///
    /// No log record describes it, so a commit of later changes waits for its txg.
    VolumeSize(usize),
}

impl Effect {
    /// The only file that the effect concerns; its record waits until that file is committed.
    ///
    /// For volumes this is always 1. `None` for effects in the common order.
    #[must_use]
    pub fn object(&self) -> Option<u64> {
        match self {
            Self::Bytes { id, .. }
            | Self::Length { id, .. }
            | Self::Hole { id, .. }
            | Self::Owner { id, .. }
            | Self::Xattr { id, .. } => Some(*id),
            Self::VolumeBytes { .. } | Self::VolumeZeros { .. } => Some(1),
            _ => None,
        }
    }

    /// Applies the effect. Effects on removed files do nothing.
    ///
    /// # Panics
    /// If the effect belongs to another kind of dataset.
    pub fn apply(&self, content: &mut Content) {
        match content {
            Content::Files(tree) => self.apply_to(Arc::make_mut(tree)),
            Content::Volume(bytes) => self.apply_to_volume(Arc::make_mut(bytes)),
        }
    }

    fn apply_to_volume(&self, volume: &mut Vec<u8>) {
        match self {
            Self::VolumeBytes { at, bytes } => {
                volume[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            Self::VolumeZeros { at, length } => volume[*at..at + length].fill(0),
            Self::VolumeSize(size) => volume.resize(*size, 0),
            other => panic!("{other:?} is nothing of a volume"),
        }
    }

    pub(super) fn apply_to(&self, tree: &mut Tree) {
        if self
            .object()
            .is_some_and(|id| !tree.nodes.contains_key(&id))
        {
            return;
        }
        match self {
            Self::Made {
                directory,
                name,
                id,
                node,
            } => {
                tree.next = tree.next.max(id + 1);
                tree.nodes.insert(*id, Arc::clone(node));
                tree.entries(*directory).insert(name.clone(), *id);
            }
            Self::Linked {
                directory,
                name,
                id,
            } => {
                tree.entries(*directory).insert(name.clone(), *id);
            }
            Self::Removed { directory, name } => tree.remove(*directory, name),
            Self::Moved { from, to, id } => {
                tree.entries(from.0).remove(&from.1);
                if tree.entries(to.0).contains_key(&to.1) {
                    tree.remove(to.0, &to.1);
                }
                tree.entries(to.0).insert(to.1.clone(), *id);
            }
            Self::Bytes { id, at, bytes } => {
                let end = at + bytes.len();
                let content = tree.bytes(*id);
                content.resize(content.len().max(end), 0);
                content[*at..end].copy_from_slice(bytes);
            }
            Self::Length { id, length } => tree.bytes(*id).resize(*length, 0),
            Self::Hole { id, at, length } => tree.bytes(*id)[*at..at + length].fill(0),
            Self::Owner { id, mode, uid, gid } => {
                let node = tree.node(*id);
                (node.mode, node.uid, node.gid) = (*mode, *uid, *gid);
            }
            Self::Xattr { id, name, value } => {
                let xattrs = &mut tree.node(*id).xattrs;
                match value {
                    Some(value) => xattrs.insert(name.clone(), value.clone()),
                    None => xattrs.remove(name),
                };
            }
            other => panic!("{other:?} is nothing of a file system"),
        }
    }

    /// Returns the same write limited to its first `length` bytes.
    ///
    /// `None` for other effects, which cannot be divided.
    #[must_use]
    pub fn first_bytes(&self, length: usize) -> Option<Self> {
        let first = |bytes: &Arc<Vec<u8>>| Some(Arc::new(bytes.get(..length)?.to_vec()));
        match self {
            Self::Bytes { id, at, bytes } => Some(Self::Bytes {
                id: *id,
                at: *at,
                bytes: first(bytes)?,
            }),
            Self::VolumeBytes { at, bytes } => Some(Self::VolumeBytes {
                at: *at,
                bytes: first(bytes)?,
            }),
            _ => None,
        }
    }

    /// The bytes of a write.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes { bytes, .. } | Self::VolumeBytes { bytes, .. } => Some(bytes),
            _ => None,
        }
    }
    /// The offset and length of a write.
    #[must_use]
    pub fn range(&self) -> Option<(usize, usize)> {
        match self {
            Self::Bytes { at, bytes, .. } | Self::VolumeBytes { at, bytes } => {
                Some((*at, bytes.len()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Kind;
    use super::*;

    fn file() -> Arc<Node> {
        Arc::new(Node::new(Kind::File(Arc::default()), 0o644))
    }

    #[test]
    fn effects_on_a_removed_file_do_nothing() {
        let mut tree = Tree::default();
        let name = b"a".to_vec();
        let made = Effect::Made {
            directory: 0,
            name: name.clone(),
            id: 7,
            node: file(),
        };
        made.apply_to(&mut tree);
        let bytes = Effect::Bytes {
            id: 7,
            at: 2,
            bytes: Arc::new(vec![1]),
        };
        bytes.apply_to(&mut tree);
        assert_eq!(*tree.bytes(7), [0, 0, 1]);
        Effect::Removed { directory: 0, name }.apply_to(&mut tree);
        bytes.apply_to(&mut tree);
        assert!(!tree.nodes.contains_key(&7));
        assert_eq!(tree.next, 8);
    }

    #[test]
    fn a_rename_onto_a_name_unlinks_its_file() {
        let mut tree = Tree::default();
        for (name, id) in [(b"a", 1), (b"b", 2)] {
            Effect::Made {
                directory: 0,
                name: name.to_vec(),
                id,
                node: file(),
            }
            .apply_to(&mut tree);
        }
        Effect::Moved {
            from: (0, b"a".to_vec()),
            to: (0, b"b".to_vec()),
            id: 1,
        }
        .apply_to(&mut tree);
        assert_eq!(tree.entries(0).get(&b"b"[..]), Some(&1));
        assert_eq!(tree.nodes.len(), 2);
    }
}
