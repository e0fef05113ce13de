//! Object sets that change.

use super::{AccountingChange, BlockSink, LiveObject, WritePolicy};
use crate::{Accounting, ObjectError, ObjectSet};
use millpond_block::BlockStore;
use millpond_env::sync::{Arc, Mutex, RwLock};
use millpond_ondisk::{BlockPointer, ChecksumKind, ObjectId, ObjectSetKind, ObjectType, Txg};
use millpond_txg::Transaction;
use std::collections::BTreeSet;

/// What a new object is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewObject {
    /// Its type.
    pub object_type: ObjectType,
    /// Size of a data block in bytes: a multiple of 512 up to 16 MiB.
    pub block_bytes: u32,
    /// log2 of the size of an indirect block, 12 to 17.
    pub indirect_shift: u8,
    /// What its bonus is.
    pub bonus_type: ObjectType,
    /// The bonus bytes; their number decides how many block pointers the dnode has.
    pub bonus: Vec<u8>,
    /// Slots of 512 bytes for the dnode, 1 to 32.
    pub slots: u8,
    /// The dnode's own compression function, 0 to inherit.
    pub compression: u8,
}

impl NewObject {
    /// An object with blocks of 512 bytes, no bonus, one slot.
    #[must_use]
    pub fn new(object_type: ObjectType) -> Self {
        Self {
            object_type,
            block_bytes: 512,
            indirect_shift: 17,
            bonus_type: ObjectType::NONE,
            bonus: Vec::new(),
            slots: 1,
            compression: 0,
        }
    }
    /// The same with blocks of so many bytes.
    #[must_use]
    pub fn with_block_bytes(mut self, bytes: u32) -> Self {
        self.block_bytes = bytes;
        self
    }
    /// The same with a bonus.
    #[must_use]
    pub fn with_bonus(mut self, bonus_type: ObjectType, bonus: Vec<u8>) -> Self {
        (self.bonus_type, self.bonus) = (bonus_type, bonus);
        self
    }
    /// The same with a dnode of so many slots.
    #[must_use]
    pub fn with_slots(mut self, slots: u8) -> Self {
        self.slots = slots;
        self
    }
}

/// The choices of a new object set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewObjectSet {
    /// log2 of the size of the dnode array's indirect blocks.
    pub indirect_shift: u8,
    /// Flags of the object set block: which accounting is complete from the start.
    pub flags: u64,
}

impl Default for NewObjectSet {
    fn default() -> Self {
        Self {
            indirect_shift: 17,
            flags: 0,
        }
    }
}

/// What was born that the pool or the dataset must have a feature active for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FeatureUse {
    /// A block above 128 KiB.
    pub large_blocks: bool,
    /// A dnode of more than one slot.
    pub large_dnodes: bool,
    /// A block compressed with zstd.
    pub zstd: bool,
    /// Checksum functions of blocks that were born.
    pub checksums: BTreeSet<ChecksumKind>,
}

/// What a sync did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncedSet {
    /// The object set's new pointer; the old one if nothing was dirty.
    pub root: BlockPointer,
    /// What owners' entries change by; the caller applies it to the accounting objects and syncs again.
    pub accounting: Vec<AccountingChange>,
    /// What needs a feature.
    pub seen: FeatureUse,
}

/// What objects share with their set.
pub(super) struct Core {
    store: Arc<BlockStore>,
    dataset: u64,
    policy: RwLock<WritePolicy>,
    root: Mutex<BlockPointer>,
    kind: ObjectSetKind,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("dataset", &self.dataset)
            .finish_non_exhaustive()
    }
}

impl Core {
    pub(super) fn dataset(&self) -> u64 {
        self.dataset
    }
    pub(super) fn refuse(&self, object: ObjectId, reason: &'static str) -> ObjectError {
        ObjectError::Refused {
            dataset: self.dataset,
            object,
            reason,
        }
    }
}

/// An object set open for change: what programs see now, and what is dirty in each txg.
/// Shared by all threads.
#[derive(Debug)]
pub struct LiveObjectSet {
    core: Arc<Core>,
}

impl LiveObjectSet {
    fn not_ready<T>(&self) -> Result<T, ObjectError> {
        Err(self.core.refuse(ObjectId(0), "not built yet"))
    }
    /// Opens the object set behind `root` for change. `dataset` is its object number in the MOS (0 for
    /// the MOS itself).
    ///
    /// # Errors
    /// If the block cannot be read or is not an object set.
    pub fn open(
        store: Arc<BlockStore>,
        dataset: u64,
        root: BlockPointer,
        policy: WritePolicy,
    ) -> Result<Arc<Self>, ObjectError> {
        let read_only = ObjectSet::open(Arc::clone(&store), dataset, root, None)?;
        Ok(Arc::new(Self {
            core: Arc::new(Core {
                store,
                dataset,
                policy: RwLock::new(policy),
                root: Mutex::new(root),
                kind: read_only.kind(),
            }),
        }))
    }
    /// A new, empty object set, dirty in the transaction's txg.
    #[must_use]
    pub fn create(
        store: Arc<BlockStore>,
        dataset: u64,
        kind: ObjectSetKind,
        shape: NewObjectSet,
        policy: WritePolicy,
        tx: &Transaction,
    ) -> Arc<Self> {
        let _ = (shape, tx);
        Arc::new(Self {
            core: Arc::new(Core {
                store,
                dataset,
                policy: RwLock::new(policy),
                root: Mutex::new(BlockPointer::default()),
                kind,
            }),
        })
    }
    /// The dataset's object number in the MOS; 0 is the MOS itself.
    #[must_use]
    pub fn dataset(&self) -> u64 {
        self.core.dataset
    }
    /// What the set holds.
    #[must_use]
    pub fn kind(&self) -> ObjectSetKind {
        self.core.kind
    }
    /// Where its blocks are read from.
    #[must_use]
    pub fn store(&self) -> &Arc<BlockStore> {
        &self.core.store
    }
    /// How new blocks are stored.
    #[must_use]
    pub fn policy(&self) -> WritePolicy {
        self.core.policy.read().clone()
    }
    /// Changes how blocks are stored from the next sync on.
    pub fn set_policy(&self, policy: WritePolicy) {
        *self.core.policy.write() = policy;
    }
    /// The object with this number. All callers get the same one.
    ///
    /// # Errors
    /// [`ObjectError::NotFound`] if there is none (also if it was freed and that is not synced yet);
    /// if its dnode cannot be read.
    pub fn object(self: &Arc<Self>, id: ObjectId) -> Result<Arc<LiveObject>, ObjectError> {
        let _ = id;
        self.not_ready()
    }
    /// Makes an object with a free number.
    ///
    /// # Errors
    /// If a block of dnodes cannot be read, or `new` cannot be ([`ObjectError::Refused`]).
    pub fn allocate(
        self: &Arc<Self>,
        tx: &Transaction,
        new: NewObject,
    ) -> Result<Arc<LiveObject>, ObjectError> {
        let _ = (tx, new);
        self.not_ready()
    }
    /// Makes an object with this number.
    ///
    /// # Errors
    /// [`ObjectError::Refused`] if the number is taken, or was freed in a txg not yet synced; otherwise
    /// as [`LiveObjectSet::allocate`].
    pub fn allocate_at(
        self: &Arc<Self>,
        tx: &Transaction,
        id: ObjectId,
        new: NewObject,
    ) -> Result<Arc<LiveObject>, ObjectError> {
        let _ = (tx, id, new);
        self.not_ready()
    }
    /// Frees an object of any size: its blocks die when the txg is synced.
    ///
    /// # Errors
    /// [`ObjectError::NotFound`] if there is none; if its dnode cannot be read.
    pub fn free(self: &Arc<Self>, tx: &Transaction, id: ObjectId) -> Result<(), ObjectError> {
        let _ = (tx, id);
        self.not_ready()
    }
    /// The next number above `after` that is an object, unsynced changes included.
    ///
    /// # Errors
    /// If a block of dnodes cannot be read.
    pub fn next_object(self: &Arc<Self>, after: ObjectId) -> Result<Option<ObjectId>, ObjectError> {
        let _ = after;
        self.not_ready()
    }
    /// An accounting object; made when the set has none.
    ///
    /// # Errors
    /// None yet; for symmetry with other objects.
    pub fn special(
        self: &Arc<Self>,
        which: Accounting,
        tx: &Transaction,
    ) -> Result<Arc<LiveObject>, ObjectError> {
        let _ = (which, tx);
        self.not_ready()
    }
    /// An accounting object, or `None` where the set has none.
    #[must_use]
    pub fn special_if_any(self: &Arc<Self>, which: Accounting) -> Option<Arc<LiveObject>> {
        let _ = which;
        None
    }
    /// Flags of the object set block: 1 user accounting complete, 2 object accounting, 4 projects.
    #[must_use]
    pub fn flags(&self) -> u64 {
        0
    }
    /// Changes the flags.
    pub fn set_flags(&self, tx: &Transaction, flags: u64) {
        let _ = (tx, flags);
    }
    /// The intent log header's words.
    #[must_use]
    pub fn log_header(&self) -> [u64; 24] {
        [0; 24]
    }
    /// Changes the intent log header.
    pub fn set_log_header(&self, tx: &Transaction, header: [u64; 24]) {
        let _ = (tx, header);
    }
    /// Whether something of this txg is to be written.
    #[must_use]
    pub fn is_dirty(&self, txg: Txg) -> bool {
        let _ = txg;
        false
    }
    /// Writes everything dirty in `txg`, all of whose transactions must have ended. May be called again in
    /// the same txg, with a higher `pass`, for what became dirty since. If nothing is dirty, nothing is
    /// written.
    ///
    /// # Errors
    /// If a block could not be read or written: the txg must not commit. What became of `txg`'s blocks is
    /// then undefined; the set can be read on, but not synced again.
    pub fn sync(
        self: &Arc<Self>,
        txg: Txg,
        pass: u32,
        sink: &dyn BlockSink,
    ) -> Result<SyncedSet, ObjectError> {
        let _ = (txg, pass, sink);
        self.not_ready()
    }
    /// The object set's pointer as of the last sync; zeros before the first one of a new set.
    #[must_use]
    pub fn root(&self) -> BlockPointer {
        *self.core.root.lock()
    }
    /// A read-only view of the last synced state.
    ///
    /// # Errors
    /// If its block cannot be read.
    pub fn committed(&self) -> Result<Arc<ObjectSet>, ObjectError> {
        ObjectSet::open(
            Arc::clone(&self.core.store),
            self.core.dataset,
            self.root(),
            None,
        )
    }
}
