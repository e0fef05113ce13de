//! Serves files that cannot change: snapshots, and pools opened read-only.

use super::{Body, InodeNumber, Vfs, VfsEntry, VfsNode, VfsPlace};
use crate::{CacheHint, Case, FileKind, FileSystem, Node, Stat};
use crate::{FileError, FileSystemStat, LONG_NAME_BYTES_MAX, Seek};
use millpond_env::sync::Arc;

/// The cookie after `.`.
const BEHIND_SELF: u64 = 1;
/// The cookie after `..`. The cookies of entries are larger.
const BEHIND_PARENT: u64 = 2;
/// The unit of the block counts of `statfs`, in bytes.
const UNIT_BYTES: u64 = 128 << 10;

/// Implements [`Vfs`] for a [`FileSystem`].
#[derive(Debug, Clone)]
pub struct ReadOnlyVfs {
    files: Arc<FileSystem>,
    tag: u16,
}

impl ReadOnlyVfs {
    /// Serves `files`. `tag` is in the upper bits of all inode numbers.
    #[must_use]
    pub fn new(files: Arc<FileSystem>, tag: u16) -> Self {
        Self { files, tag }
    }

    fn wrap(&self, node: Node) -> Result<VfsNode, FileError> {
        Ok(VfsNode {
            number: InodeNumber::new(self.tag, node.id()),
            generation: node.stat()?.generation,
            kind: node.kind(),
            body: Body::Stored(Arc::new(node)),
        })
    }
}

impl VfsNode {
    fn stored(&self) -> Result<&Arc<Node>, FileError> {
        match &self.body {
            Body::Stored(node) => Ok(node),
            _ => Err(FileError::Stale),
        }
    }
}

fn only_regular(node: &Node) -> Result<&Node, FileError> {
    match node.kind() {
        FileKind::Regular => Ok(node),
        FileKind::Directory => Err(FileError::IsADirectory),
        _ => Err(FileError::Invalid {
            reason: "not an ordinary file",
        }),
    }
}

impl Vfs for ReadOnlyVfs {
    fn root(&self) -> Result<VfsNode, FileError> {
        self.wrap(self.files.root()?)
    }
    fn node(&self, number: InodeNumber, generation: u64) -> Result<VfsNode, FileError> {
        if number.tag() != self.tag {
            return Err(FileError::Stale);
        }
        let node = self.files.node(number.object())?;
        // Hidden objects of extended attributes are never nodes.
        if node.is_xattr_directory()? {
            return Err(FileError::Stale);
        }
        let node = self.wrap(node)?;
        if generation != 0 && node.generation != generation {
            return Err(FileError::Stale);
        }
        Ok(node)
    }
    fn lookup(&self, at: VfsPlace<'_>) -> Result<VfsNode, FileError> {
        if at.name.len() > LONG_NAME_BYTES_MAX {
            return Err(FileError::NameTooLong);
        }
        self.wrap(at.directory.stored()?.child(at.name)?)
    }
    fn stat(&self, node: &VfsNode) -> Result<Stat, FileError> {
        node.stored()?.stat()
    }
    fn link_target(&self, node: &VfsNode) -> Result<Vec<u8>, FileError> {
        let target = node.stored()?.link_target()?;
        target.ok_or(FileError::Invalid {
            reason: "not a symbolic link",
        })
    }
    fn list(&self, node: &VfsNode, cookie: u64, count: usize) -> Result<Vec<VfsEntry>, FileError> {
        let directory = node.stored()?;
        if directory.kind() != FileKind::Directory {
            return Err(FileError::NotADirectory);
        }
        let mut listed = vec![];
        let mut at = cookie;
        let named = |name: &[u8], number, cookie| VfsEntry {
            name: name.to_vec(),
            number,
            kind: Some(FileKind::Directory),
            cookie,
        };
        if at == 0 && listed.len() < count {
            listed.push(named(b".", node.number, BEHIND_SELF));
            at = BEHIND_SELF;
        }
        if at == BEHIND_SELF && listed.len() < count {
            let parent = InodeNumber::new(self.tag, directory.parent_id()?);
            listed.push(named(b"..", parent, BEHIND_PARENT));
            at = BEHIND_PARENT;
        }
        if listed.len() == count {
            return Ok(listed);
        }
        let from = if at <= BEHIND_PARENT { 0 } else { at };
        let mut entries = directory.entries_from(from)?;
        while listed.len() < count {
            let Some(entry) = entries.next() else { break };
            let entry = entry?;
            listed.push(VfsEntry {
                number: InodeNumber::new(self.tag, entry.id),
                name: entry.name,
                kind: entry.kind,
                cookie: entries.cookie(),
            });
        }
        Ok(listed)
    }
    fn read_with_hint(
        &self,
        node: &VfsNode,
        offset: u64,
        buffer: &mut [u8],
        hint: CacheHint,
    ) -> Result<usize, FileError> {
        let node = only_regular(node.stored()?)?;
        node.read_with_hint(offset, buffer, hint)
    }
    fn seek(&self, node: &VfsNode, what: Seek, offset: u64) -> Result<u64, FileError> {
        let node = only_regular(node.stored()?)?;
        if offset >= node.size_bytes() {
            return Err(FileError::NoData);
        }
        let extent = node.next_extent(offset)?;
        match (what, extent) {
            (Seek::Data, Some(extent)) => Ok(extent.offset_bytes),
            (Seek::Data, None) => Err(FileError::NoData),
            (Seek::Hole, Some(extent)) if extent.offset_bytes <= offset => {
                Ok(extent.offset_bytes.saturating_add(extent.length_bytes))
            }
            (Seek::Hole, _) => Ok(offset),
        }
    }
    fn xattr_names(&self, node: &VfsNode) -> Result<Vec<Vec<u8>>, FileError> {
        node.stored()?.xattr_names()
    }
    fn xattr(&self, node: &VfsNode, name: &[u8]) -> Result<Vec<u8>, FileError> {
        node.stored()?.xattr(name)?.ok_or(FileError::NoAttribute)
    }
    fn stat_file_system(&self, _node: &VfsNode) -> Result<FileSystemStat, FileError> {
        let objects = self.files.object_set().object_count();
        Ok(FileSystemStat {
            block_bytes: UNIT_BYTES,
            blocks: 0,
            blocks_free: 0,
            files: objects,
            files_free: 0,
            name_bytes_max: 255,
        })
    }
    fn has_posix_acls(&self) -> bool {
        true
    }
    fn has_exact_names(&self) -> bool {
        self.files.case() == Case::Sensitive && self.files.normalisation() == 0
    }
}
