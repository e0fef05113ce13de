//! Object sets: finds objects by id and lists them.

use crate::claims::Claims;
use crate::tree::Tree;
use crate::{Caching, CachingCell, ObjectError, ObjectView};
use millpond_block::{Block, BlockAddress, BlockStore, PointerValidity};
use millpond_crypt::DatasetKey;
use millpond_env::sync::Arc;
use millpond_ondisk::{
    BlockId, BlockPointer, DNODE_SLOT_BYTES, DecodeError, Dnode, Level, ObjectId, ObjectSetKind,
    ObjectSetPhys, ObjectType,
};

/// Selects an accounting object of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accounting {
    /// Space and objects by user.
    User,
    /// Space and objects by group.
    Group,
    /// Space and objects by project.
    Project,
}

/// The objects of one dataset, of one snapshot, or of the pool itself.
pub struct ObjectSetView {
    store: Arc<BlockStore>,
    dataset: u64,
    root: BlockPointer,
    phys: ObjectSetPhys,
    meta_dnode: Arc<Dnode>,
    key: Option<Arc<DatasetKey>>,
    caching: Arc<CachingCell>,
}

impl std::fmt::Debug for ObjectSetView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectSetView")
            .field("dataset", &self.dataset)
            .finish_non_exhaustive()
    }
}

impl ObjectSetView {
    /// Opens the object set at `root`.
    ///
    /// `dataset` is its object id in the MOS (0 for the MOS itself) and appears in errors. Without `key` the
    /// contents of an encrypted set are locked, but its objects can be listed.
    ///
    /// # Errors
    /// If the block cannot be read or is not an object set.
    pub fn open(
        store: Arc<BlockStore>,
        dataset: u64,
        root: BlockPointer,
        key: Option<Arc<DatasetKey>>,
    ) -> Result<Arc<Self>, ObjectError> {
        Self::open_with(store, dataset, root, key, Arc::default())
    }

    /// Opens the object set as [`ObjectSetView::open`] does; `caching` says which of its blocks the cache
    /// keeps and which are prefetched. Its changes reach the open set.
    ///
    /// # Errors
    /// As [`ObjectSetView::open`].
    pub fn open_with(
        store: Arc<BlockStore>,
        dataset: u64,
        root: BlockPointer,
        key: Option<Arc<DatasetKey>>,
        caching: Arc<CachingCell>,
    ) -> Result<Arc<Self>, ObjectError> {
        let invalid = |reason| ObjectError::Invalid {
            dataset,
            object: ObjectId(0),
            error: DecodeError::new("object set", reason, 0),
        };
        if root.is_hole() {
            return Err(invalid("its pointer is a hole"));
        }
        if root.object_type() != ObjectType::OBJECT_SET || root.level().0 != 0 {
            return Err(invalid("its pointer is not one to an object set"));
        }
        let retention = caching.get().retention(true);
        let address = BlockAddress::object_set(dataset);
        let block = store.read_with(&root, address, key.as_ref(), retention)?;
        let phys = ObjectSetPhys::decode(&block.bytes, block.endian).map_err(|error| {
            ObjectError::Invalid {
                dataset,
                object: ObjectId(0),
                error,
            }
        })?;
        let meta_dnode = Arc::new(phys.meta_dnode.clone());
        if meta_dnode.data_block_bytes() % DNODE_SLOT_BYTES as u64 != 0 {
            return Err(invalid("dnode blocks are not a whole number of slots"));
        }
        Ok(Arc::new(Self {
            store,
            dataset,
            root,
            phys,
            meta_dnode,
            key,
            caching,
        }))
    }

    /// The dataset's object id in the MOS; 0 is the MOS itself.
    #[must_use]
    pub fn dataset(&self) -> u64 {
        self.dataset
    }
    /// What kind of object set this is.
    #[must_use]
    pub fn kind(&self) -> ObjectSetKind {
        self.phys.kind
    }
    /// The decoded object set block.
    #[must_use]
    pub fn phys(&self) -> &ObjectSetPhys {
        &self.phys
    }
    /// The pointer that the set was opened from.
    #[must_use]
    pub fn root(&self) -> &BlockPointer {
        &self.root
    }
    /// The block store that its blocks are read from.
    #[must_use]
    pub fn store(&self) -> &Arc<BlockStore> {
        &self.store
    }
    /// The encryption key that the set was opened with.
    #[must_use]
    pub fn key(&self) -> Option<&Arc<DatasetKey>> {
        self.key.as_ref()
    }
    /// Which of its blocks the cache keeps, and which are prefetched.
    #[must_use]
    pub fn caching(&self) -> Caching {
        self.caching.get()
    }
    /// The number of objects, according to the root pointer's fill count.
    #[must_use]
    pub fn object_count(&self) -> u64 {
        self.root.fill()
    }

    /// The dnode array as an object (id 0).
    #[must_use]
    pub fn meta_object(self: &Arc<Self>) -> ObjectView {
        ObjectView::new(
            Arc::clone(self),
            ObjectId(0),
            Arc::clone(&self.meta_dnode),
            false,
        )
    }

    /// Returns an accounting object, or `None` if the set has none.
    #[must_use]
    pub fn accounting(self: &Arc<Self>, which: Accounting) -> Option<ObjectView> {
        let (id, dnode) = match which {
            Accounting::User => (ObjectId::USER_USED, &self.phys.user_used),
            Accounting::Group => (ObjectId::GROUP_USED, &self.phys.group_used),
            Accounting::Project => (ObjectId::PROJECT_USED, &self.phys.project_used),
        };
        let dnode = Arc::new(dnode.clone()?);
        Some(ObjectView::new(Arc::clone(self), id, dnode, false))
    }

    /// The tree of the dnode array.
    pub(crate) fn dnode_tree(&self) -> Tree<'_> {
        Tree {
            store: &self.store,
            key: self.key.as_ref(),
            dataset: self.dataset,
            object: ObjectId(0),
            dnode: &self.meta_dnode,
            caching: self.caching(),
            is_sequential: false,
            validity: PointerValidity::Current,
        }
    }

    pub(crate) fn slots_per_block(&self) -> u64 {
        self.meta_dnode.data_block_bytes() / DNODE_SLOT_BYTES as u64
    }

    /// Opens the object with this id.
    ///
    /// # Errors
    /// [`ObjectError::NotFound`] for a free slot, for a slot inside a larger dnode and for ids that were
    /// never used. Otherwise if the dnode cannot be read or is not valid.
    pub fn object(self: &Arc<Self>, id: ObjectId) -> Result<ObjectView, ObjectError> {
        let missing = ObjectError::NotFound {
            dataset: self.dataset,
            object: id,
        };
        let per_block = self.slots_per_block();
        let block_id = id.0 / per_block;
        if id.0 == 0 || block_id > self.meta_dnode.block_id_max.0 {
            return Err(missing);
        }
        let block = self.meta_object().read_block(BlockId(block_id))?;
        let wanted = (id.0 % per_block) as usize;
        // Slots inside a large dnode can hold any bytes. Only a walk from the first slot of the block shows
        // whether a dnode begins at this one.
        for slot in used_slots(&block) {
            if slot == wanted {
                return self.decode(&block, slot, id);
            }
            if slot > wanted {
                break;
            }
        }
        Err(missing)
    }

    fn decode(
        self: &Arc<Self>,
        block: &Block,
        slot: usize,
        id: ObjectId,
    ) -> Result<ObjectView, ObjectError> {
        let bytes = block.bytes.get(slot * DNODE_SLOT_BYTES..).unwrap_or(&[]);
        let dnode = Dnode::decode(bytes, block.endian)
            .map_err(|error| ObjectError::Invalid {
                dataset: self.dataset,
                object: id,
                error,
            })?
            .ok_or(ObjectError::NotFound {
                dataset: self.dataset,
                object: id,
            })?;
        let is_locked = block.has_ciphertext && dnode.bonus_type.is_encrypted();
        Ok(ObjectView::new(
            Arc::clone(self),
            id,
            Arc::new(dnode),
            is_locked,
        ))
    }

    /// Returns the first object whose id is above `after`, or `None` at the end. An object with an invalid
    /// dnode is returned as an error that names it; the caller may continue after it.
    ///
    /// # Errors
    /// If a block of dnodes cannot be read, or a dnode is not valid.
    pub fn next_object(
        self: &Arc<Self>,
        after: ObjectId,
    ) -> Result<Option<ObjectView>, ObjectError> {
        let per_block = self.slots_per_block();
        let meta = self.meta_object();
        let mut from = after.0.saturating_add(1);
        loop {
            let Some(block_id) = meta.next_data_block(BlockId(from / per_block))? else {
                return Ok(None);
            };
            let first = block_id.0 * per_block;
            let block = meta.read_block(block_id)?;
            for slot in used_slots(&block) {
                let id = first + slot as u64;
                if id >= from && id != 0 {
                    return self.decode(&block, slot, ObjectId(id)).map(Some);
                }
            }
            from = first + per_block;
        }
    }

    fn charge(
        self: &Arc<Self>,
        claims: &mut Claims,
        id: ObjectId,
        block: BlockId,
    ) -> Result<(), ObjectError> {
        let pointer = self.meta_object().pointer(Level(0), block)?;
        claims
            .charge(&pointer)
            .map_err(|reason| ObjectError::Invalid {
                dataset: self.dataset,
                object: id,
                error: DecodeError::new("array of dnodes", reason, 0),
            })
    }

    /// Iterates over all objects in order of their ids.
    ///
    /// After an error the iteration continues with the next block of dnodes, so that one bad block does not
    /// hide the rest. It ends with an error if the same block appears twice in a row, or if the blocks of
    /// dnodes exceed the capacity of the pool's devices: a few indirect blocks could claim 2^60 objects.
    pub fn objects(
        self: &Arc<Self>,
    ) -> impl Iterator<Item = Result<ObjectView, ObjectError>> + use<> {
        let set = Arc::clone(self);
        let mut after = Some(ObjectId(0));
        let mut claims = Claims::new(set.store());
        let mut last_block = None;
        std::iter::from_fn(move || {
            let at = after?;
            match set.next_object(at) {
                Ok(Some(object)) => {
                    after = Some(object.id());
                    let block = object.id().0 / set.slots_per_block();
                    if last_block.replace(block) != Some(block)
                        && let Err(error) = set.charge(&mut claims, object.id(), BlockId(block))
                    {
                        after = None;
                        return Some(Err(error));
                    }
                    Some(Ok(object))
                }
                Ok(None) => {
                    after = None;
                    None
                }
                Err(error) => {
                    let next = match &error {
                        ObjectError::Invalid { object, .. } if object.0 > at.0 => object.0,
                        ObjectError::Block(block) if block.address().level.0 == 0 => {
                            (block.address().block.0.saturating_add(1))
                                .saturating_mul(set.slots_per_block())
                                .saturating_sub(1)
                        }
                        // An indirect block of the dnode array is unreadable: skip everything below it.
                        ObjectError::Block(block) => {
                            let address = block.address();
                            let shift = set.meta_dnode.pointers_shift()
                                * u32::from(address.level.0).min(12);
                            (address.block.0.saturating_add(1))
                                .checked_shl(shift)
                                .unwrap_or(u64::MAX)
                                .saturating_mul(set.slots_per_block())
                                .saturating_sub(1)
                        }
                        _ => u64::MAX,
                    };
                    let may_go_on = claims.charge_bytes(DNODE_SLOT_BYTES as u64).is_ok();
                    let is_further = next > at.0 && next < u64::MAX - 64;
                    after = (is_further && may_go_on).then_some(ObjectId(next));
                    Some(Err(error))
                }
            }
        })
    }
}

/// Iterates over the slots of a block of dnodes at which a used dnode begins.
pub(crate) fn used_slots(block: &Block) -> impl Iterator<Item = usize> + '_ {
    let count = block.bytes.len() / DNODE_SLOT_BYTES;
    let mut next = 0;
    std::iter::from_fn(move || {
        while next < count {
            let slot = next;
            let bytes = &block.bytes[slot * DNODE_SLOT_BYTES..];
            next += Dnode::slot_count(bytes);
            if bytes[0] != 0 {
                return Some(slot);
            }
        }
        None
    })
}
