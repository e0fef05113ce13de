//! What is traversed: object sets and their objects.

use crate::Visitor;
use millpond_crypt::DatasetKey;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, Dnode, ObjectId, Txg};

/// An object set to traverse.
#[derive(Debug, Clone)]
pub struct Tree<T> {
    /// The object id of its dataset in the MOS, for addresses; 0 for the MOS.
    pub dataset: u64,
    /// The pointer to the object set.
    pub root: BlockPointer,
    /// An older state of it. Positions with the same pointer in both states are skipped with everything below
    /// them; other pointers of the older state are visited too, as [`Side::Old`](crate::Side::Old).
    pub previous: Option<BlockPointer>,
    /// Blocks born up to this txg are skipped with everything below them.
    pub born_after: Option<Txg>,
    /// Blocks that were written after this txg (their physical birth) are not visited. Older blocks below them are, and
    /// clones of older blocks.
    pub born_max: Option<Txg>,
    /// The key of an encrypted dataset; without it, the set is traversed raw.
    pub key: Option<Arc<DatasetKey>>,
    /// Whether to visit the blocks of the intent log. Only heads have one.
    pub has_log: bool,
    /// What the visitor knows about it.
    pub context: T,
}

impl<T> Tree<T> {
    /// An object set of which all blocks are visited.
    pub fn new(dataset: u64, root: BlockPointer, context: T) -> Self {
        Self {
            dataset,
            root,
            previous: None,
            born_after: None,
            born_max: None,
            key: None,
            has_log: false,
            context,
        }
    }
}

/// An object whose blocks are visited.
///
/// Object 0 has the dnodes as its blocks; the block of the object set itself belongs to an object 0 without a
/// dnode.
pub struct Object<V: Visitor + ?Sized> {
    /// The object set.
    pub tree: Arc<Tree<V::Tree>>,
    /// Its id.
    pub id: ObjectId,
    /// Its dnode in the older state.
    pub old: Option<Arc<Dnode>>,
    /// Its dnode.
    pub new: Option<Arc<Dnode>>,
    /// What the visitor counts for it.
    pub state: V::Object,
}

impl<V: Visitor + ?Sized> Object<V> {
    /// Its dnode, or that of the older state if it does not exist any more.
    #[must_use]
    pub fn dnode(&self) -> Option<&Arc<Dnode>> {
        self.new.as_ref().or(self.old.as_ref())
    }
    /// Whether its data blocks are blocks of dnodes.
    #[must_use]
    pub fn holds_dnodes(&self) -> bool {
        self.id == ObjectId(0)
    }
    /// The binary logarithm of the count of pointers in an indirect block.
    #[must_use]
    pub fn pointers_shift(&self) -> u32 {
        self.dnode().map_or(0, |dnode| dnode.pointers_shift())
    }
}
