//! One open file of a file system that changes.

use super::file_system::LiveFileSystem;
use super::range_lock::RangeLocks;
use super::state::NodeState;
use crate::FileKind;
use millpond_env::sync::atomic::{AtomicBool, Ordering};
use millpond_env::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};
use millpond_object::LiveObject;
use millpond_ondisk::ObjectId;

/// A file of any kind, held open. Cheap to clone. A file whose last name is gone lives until the last
/// of its handles is dropped.
#[derive(Debug, Clone)]
pub struct LiveNode {
    pub(crate) inner: Arc<NodeInner>,
}

impl LiveNode {
    /// Its object number, which is its inode number.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.inner.id
    }
    /// What it is; that never changes.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.inner.kind
    }
    /// The txg it was made in. With the number it names the file for ever.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.inner.generation
    }
    /// Length in bytes; of a directory its entries and 2.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.inner.state().size
    }
    /// Whether its last name is gone.
    #[must_use]
    pub fn is_unlinked(&self) -> bool {
        self.inner.state().links == 0
    }
    /// Whether no change of it waits for its txg: the space it takes is known.
    pub(crate) fn is_settled(&self) -> bool {
        !self.inner.object.is_changing()
    }
}

impl std::ops::Deref for LiveNode {
    type Target = NodeInner;
    fn deref(&self) -> &NodeInner {
        &self.inner
    }
}

/// What all handles of one file share. See the table of locks in `ARCHITECTURE.md`.
pub struct NodeInner {
    pub(crate) id: ObjectId,
    pub(crate) kind: FileKind,
    pub(crate) generation: u64,
    pub(crate) object: Arc<LiveObject>,
    /// Held by whoever changes attributes or entries, from before its transaction begins until the
    /// change is made: so changes reach the object in the order of their groups.
    change: Mutex<()>,
    /// Held for moments.
    state: RwLock<NodeState>,
    /// Of a directory: shared while its table is read, exclusive while it is changed.
    pub(crate) entries: RwLock<()>,
    /// The same for extended attributes, in either of their places.
    pub(crate) xattrs: RwLock<()>,
    pub(crate) ranges: RangeLocks,
    /// Made without a name, so that it may still get one.
    is_linkable: AtomicBool,
    files: Weak<LiveFileSystem>,
}

impl std::fmt::Debug for NodeInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveNode")
            .field("id", &self.id)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl NodeInner {
    pub(crate) fn new(
        files: Weak<LiveFileSystem>,
        object: Arc<LiveObject>,
        kind: FileKind,
        state: NodeState,
    ) -> Self {
        Self {
            id: object.id(),
            kind,
            generation: state.generation,
            object,
            change: Mutex::new(()),
            state: RwLock::new(state),
            entries: RwLock::new(()),
            xattrs: RwLock::new(()),
            ranges: RangeLocks::default(),
            is_linkable: AtomicBool::new(false),
            files,
        }
    }

    pub(crate) fn state(&self) -> NodeState {
        *self.state.read()
    }
    /// Shows new attributes; the caller holds the node's change lock and has stored them.
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
        files.cache().forget(self.id);
        if self.state.get_mut().links == 0 {
            files.reaper().push(self.id);
        }
    }
}

/// The change locks of several nodes, taken in order of object number: everybody who needs more than
/// one takes them so. A node that is named twice is locked once.
pub(crate) fn lock_changes_of<'n>(nodes: &[&'n NodeInner]) -> Vec<MutexGuard<'n, ()>> {
    let mut nodes = nodes.to_vec();
    nodes.sort_unstable_by_key(|node| node.id);
    nodes.dedup_by_key(|node| node.id);
    nodes.into_iter().map(NodeInner::lock_changes).collect()
}
