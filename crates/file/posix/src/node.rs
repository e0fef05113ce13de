//! One file of any type.

use crate::error::FileError;
use crate::file_system::FileSystem;
use crate::name_index::NameIndex;
use crate::open_node::OpenNode;
use crate::settings::SnapshotDirectory;
use crate::stat::{FileKind, ObjectFacts, Stat};
use crate::state::NodeState;
use crate::transaction_source::TransactionError;
use millpond_env::sync::{Arc, OnceLock, RwLockReadGuard};
use millpond_object::{ObjectView, ReadableObject};
use millpond_ondisk::{DecodeError, ObjectId};
use millpond_sa::{Ace, Attributes, FileFlags};
use std::borrow::Cow;

/// An open file, directory, link or device node. Cheap to clone.
///
/// In a committed file system its attributes are those of when it was opened. In a file system open for change,
/// all handles of a file share its current state, and a file whose last name is removed lives until its last
/// handle is dropped.
#[derive(Debug, Clone)]
pub struct Node {
    body: Body,
    files: Arc<FileSystem>,
}

#[derive(Debug, Clone)]
enum Body {
    Committed(Arc<CommittedNode>),
    Open(OpenNode),
}

/// A file of a committed state. Reading it takes no lock.
#[derive(Debug)]
struct CommittedNode {
    object: ReadableObject,
    attributes: Attributes,
    /// What `stat` shows, decoded when it is first asked for.
    shown: OnceLock<NodeState>,
    kind: FileKind,
    size_bytes: u64,
    generation: u64,
}

impl CommittedNode {
    fn shown(&self) -> Result<&NodeState, FileError> {
        if let Some(state) = self.shown.get() {
            return Ok(state);
        }
        let state = NodeState::read_shown(&self.attributes)?;
        Ok(self.shown.get_or_init(|| state))
    }
}

impl Node {
    pub(crate) fn committed(
        files: Arc<FileSystem>,
        object: ObjectView,
        attributes: Attributes,
    ) -> Result<Self, FileError> {
        let invalid = |reason| {
            let error = DecodeError::new("file attributes", reason, 0);
            files.undecodable(object.id(), error)
        };
        let generation = attributes.generation()?;
        if generation == 0 {
            return Err(invalid("generation 0"));
        }
        let kind = FileKind::from_mode(attributes.mode()?)
            .ok_or_else(|| invalid("mode is of no kind of file"))?;
        let node = CommittedNode {
            size_bytes: attributes.size()?,
            object: ReadableObject::Committed(object),
            attributes,
            shown: OnceLock::new(),
            kind,
            generation,
        };
        Ok(Self {
            body: Body::Committed(Arc::new(node)),
            files,
        })
    }
    pub(crate) fn open(files: Arc<FileSystem>, node: OpenNode) -> Self {
        Self {
            body: Body::Open(node),
            files,
        }
    }

    /// The file system of the file.
    #[must_use]
    pub fn file_system(&self) -> &Arc<FileSystem> {
        &self.files
    }
    /// The file's object, for access below the file layer.
    #[must_use]
    pub fn object(&self) -> &ReadableObject {
        match &self.body {
            Body::Committed(node) => &node.object,
            Body::Open(node) => &node.content,
        }
    }
    /// The object id, which is also the inode number.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.object().id()
    }
    /// The file type. It never changes.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        match &self.body {
            Body::Committed(node) => node.kind,
            Body::Open(node) => node.kind(),
        }
    }
    /// The txg in which the file was created. Together with the object id it identifies the file forever.
    #[must_use]
    pub fn generation(&self) -> u64 {
        match &self.body {
            Body::Committed(node) => node.generation,
            Body::Open(node) => node.generation(),
        }
    }
    /// The length in bytes; for a directory, the number of entries plus 2.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        match &self.body {
            Body::Committed(node) => node.size_bytes,
            Body::Open(node) => node.size_bytes(),
        }
    }
    /// The size of its data blocks in bytes. It grows with a file of a single block.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        match self.object() {
            ReadableObject::Committed(object) => object.block_bytes(),
            ReadableObject::Open(object) => object.block_bytes(),
        }
    }
    /// Whether its last name is removed, so that it lives only as long as it is in use.
    #[must_use]
    pub fn is_unlinked(&self) -> bool {
        self.open_node().is_some_and(OpenNode::is_unlinked)
    }
    /// Whether no change of the file waits for its txg, so its space usage is known.
    pub(crate) fn is_settled(&self) -> bool {
        self.open_node().is_none_or(OpenNode::is_settled)
    }

    pub(crate) fn open_node(&self) -> Option<&OpenNode> {
        match &self.body {
            Body::Committed(_) => None,
            Body::Open(node) => Some(node),
        }
    }
    /// The state that writing calls use.
    ///
    /// # Errors
    /// [`TransactionError::ReadOnly`] for a file of a committed state.
    pub(crate) fn for_change(&self) -> Result<&OpenNode, FileError> {
        let node = self.open_node();
        node.ok_or_else(|| TransactionError::ReadOnly.into())
    }
    /// Keeps a directory's entries from changing while they are read.
    pub(crate) fn lock_entries(&self) -> Option<RwLockReadGuard<'_, NameIndex>> {
        self.open_node().map(|node| node.entries.read())
    }
    /// Keeps the extended attributes from changing while they are read.
    pub(crate) fn lock_xattrs(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.open_node().map(|node| node.xattrs.read())
    }
    /// The stored attributes as of now.
    pub(crate) fn attributes(&self) -> Result<Cow<'_, Attributes>, FileError> {
        match &self.body {
            Body::Committed(node) => Ok(Cow::Borrowed(&node.attributes)),
            Body::Open(node) => self.files.attributes(&node.content).map(Cow::Owned),
        }
    }
    /// Everything that `stat` shows. Space usage is as of the last synced txg.
    ///
    /// # Errors
    /// If an attribute that every file has is missing or damaged.
    pub fn stat(&self) -> Result<Stat, FileError> {
        let mut stat = match &self.body {
            Body::Committed(node) => {
                Stat::new(&ObjectFacts::of(&node.object), node.kind, node.shown()?)
            }
            Body::Open(node) => {
                // The object's lock comes before that of the attributes.
                let object = ObjectFacts::of(&node.content);
                Stat::new(&object, node.kind, &node.read_state())
            }
        };
        let is_root = stat.id == self.files.root_id();
        if is_root && self.files.settings().snapshot_directory == SnapshotDirectory::Visible {
            stat.links += 1;
        }
        Ok(stat)
    }
    /// The directory that holds the file, or once did.
    ///
    /// For a file with several links, it is the directory of one of them, and that link may be gone.
    ///
    /// # Errors
    /// If the attribute is missing or damaged.
    pub fn parent_id(&self) -> Result<ObjectId, FileError> {
        match &self.body {
            Body::Committed(node) => Ok(node.attributes.parent()?),
            Body::Open(node) => Ok(node.state().parent),
        }
    }
    /// Whether this is the hidden directory of another file's extended attributes, or a file in one.
    ///
    /// # Errors
    /// If the flags cannot be read.
    pub fn is_xattr_directory(&self) -> Result<bool, FileError> {
        let flags = match &self.body {
            Body::Committed(node) => node.attributes.flags()?,
            Body::Open(node) => node.state().flags,
        };
        Ok(flags.contains(FileFlags::XATTR))
    }
    /// The target of a symbolic link, at most 64 KiB; `None` for other files.
    ///
    /// # Errors
    /// If the target cannot be read.
    pub fn link_target(&self) -> Result<Option<Vec<u8>>, FileError> {
        let attributes = self.attributes()?;
        Ok(attributes.symlink_target()?.map(Cow::into_owned))
    }
    /// The file's NFSv4 ACL. Every file has one; usually it is equivalent to the mode.
    ///
    /// # Errors
    /// If it cannot be read or decoded.
    pub fn nfs4_acl(&self) -> Result<Option<Vec<Ace>>, FileError> {
        Ok(self.attributes()?.acl()?)
    }
}
