//! A file that is open for change: the state that all its handles share.

use crate::FileKind;
use crate::FileSystem;
use crate::name_index::NameIndex;
use crate::range_lock::RangeLocks;
use crate::state::NodeState;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, Ordering};
use millpond_env::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, Weak};
use millpond_object::{Object, ReadableObject};
use millpond_ondisk::ObjectId;
use millpond_sa::FileFlags;

/// A handle of an open file of any type. Cheap to clone.
///
/// A file whose last name is removed lives until its last handle is dropped.
#[derive(Debug, Clone)]
pub(crate) struct OpenNode {
    pub(crate) inner: Arc<NodeInner>,
}

impl OpenNode {
    /// The object id, which is also the inode number.
    pub(crate) fn id(&self) -> ObjectId {
        self.inner.id
    }
    /// The file type. It never changes.
    pub(crate) fn kind(&self) -> FileKind {
        self.inner.kind
    }
    /// The txg in which the file was created. Together with the object id it identifies the file forever.
    pub(crate) fn generation(&self) -> u64 {
        self.inner.generation
    }
    /// The length in bytes; for a directory, the number of entries plus 2.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.inner.state().size
    }
    /// Whether its last name is removed.
    pub(crate) fn is_unlinked(&self) -> bool {
        self.inner.state().links == 0
    }
    /// Whether no change of the file waits for its txg, so its space usage is known.
    pub(crate) fn is_settled(&self) -> bool {
        !self.inner.object.is_changing()
    }
}

impl std::ops::Deref for OpenNode {
    type Target = NodeInner;
    fn deref(&self) -> &NodeInner {
        &self.inner
    }
}

/// The state that all handles of one file share. Locks: `docs/internals/locks.md`.
pub(crate) struct NodeInner {
    pub(crate) id: ObjectId,
    pub(crate) kind: FileKind,
    pub(crate) generation: u64,
    pub(crate) object: Arc<Object>,
    pub(crate) content: ReadableObject,
    /// Held while attributes or entries change, from before the transaction begins until the change is made.
    /// Changes thus reach the object in txg order.
    change: Mutex<(), rank::FileChanges>,
    /// Held only briefly.
    state: RwLock<NodeState, rank::Leaf>,
    /// For a directory: held shared while its table is read, exclusively while it changes.
    pub(crate) entries: RwLock<NameIndex, rank::FileEntries>,
    /// The same for extended attributes, wherever they are stored.
    pub(crate) xattrs: RwLock<(), rank::FileXattrs>,
    pub(crate) ranges: RangeLocks,
    /// Whether the file was created without a name and may still get one.
    is_linkable: AtomicBool,
    files: Weak<FileSystem>,
}

impl std::fmt::Debug for NodeInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeInner")
            .field("id", &self.id)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl NodeInner {
    pub(crate) fn new(
        files: Weak<FileSystem>,
        object: Arc<Object>,
        kind: FileKind,
        state: NodeState,
    ) -> Self {
        Self {
            id: object.id(),
            kind,
            generation: state.generation,
            content: ReadableObject::Open(Arc::clone(&object)),
            object,
            change: Mutex::new(()),
            // Hidden directories of extended attributes change without their nodes.
            entries: RwLock::new(match state.flags.contains(FileFlags::XATTR) {
                true => NameIndex::off(),
                false => NameIndex::default(),
            }),
            state: RwLock::new(state),
            xattrs: RwLock::new(()),
            ranges: RangeLocks::default(),
            is_linkable: AtomicBool::new(false),
            files,
        }
    }

    pub(crate) fn state(&self) -> NodeState {
        *self.state.read()
    }
    /// The attributes without a copy. The caller takes no lock while it has them.
    pub(crate) fn read_state(&self) -> RwLockReadGuard<'_, NodeState> {
        self.state.read()
    }
    /// Makes new attributes visible. The caller holds the node's change lock and has stored them.
    pub(crate) fn show(&self, state: NodeState) {
        *self.state.write() = state;
    }
    pub(crate) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }
    pub(crate) fn is_linkable(&self) -> bool {
        self.is_linkable.load(Ordering::Acquire)
    }
    pub(crate) fn set_linkable(&self, is_linkable: bool) {
        self.is_linkable.store(is_linkable, Ordering::Release);
    }
    pub(crate) fn lock_changes(&self) -> MutexGuard<'_, ()> {
        self.change.lock()
    }
    pub(crate) fn try_lock_changes(&self) -> Option<MutexGuard<'_, ()>> {
        self.change.try_lock()
    }
}

impl Drop for NodeInner {
    fn drop(&mut self) {
        let Some(files) = self.files.upgrade() else {
            return;
        };
        let Ok(writing) = files.writing() else { return };
        writing.cache().forget(self.id);
        if self.state.get_mut().links == 0 {
            writing.unlinked().push(self.id);
        }
    }
}

/// Locks several nodes for changes.
///
/// The locks are taken in order of object id, as every operation with more than one node must do. A node that
/// occurs twice is locked once.
pub(crate) fn lock_changes_of<'n>(nodes: &[&'n NodeInner]) -> Vec<MutexGuard<'n, ()>> {
    let mut nodes = nodes.to_vec();
    nodes.sort_unstable_by_key(|node| node.id);
    nodes.dedup_by_key(|node| node.id);
    nodes.into_iter().map(NodeInner::lock_changes).collect()
}
