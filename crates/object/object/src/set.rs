//! Object sets open for change.

use crate::core::{
    Core, HeadChange, SLOTS_PER_BLOCK, SyncedHead, Table, blank_dnode, special_id, special_index,
};
use crate::new_object::{NewObject, NewObjectSet};
use crate::object_ids::{ObjectIdAllocator, Search};
use crate::raw::{RawSeals, protected_policy};
use crate::set_view::used_slots;
use crate::tree::Tree;
use crate::{Accounting, ObjectError, ObjectSetView};
use crate::{AccountingChange, BlockSink, CachingCell, Object, WritePolicy, byteswap};
use millpond_block::{BlockStore, WriteKey};
use millpond_env::sync::{Arc, Mutex, RwLock};
use millpond_ondisk::{
    BlockPointer, ChecksumKind, DNODE_SLOT_BYTES, Dnode, ObjectId, ObjectSetKind, ObjectType,
    PoolVersion, Txg,
};
use millpond_txg::Transaction;
use std::collections::BTreeSet;

/// What was written that requires an active feature of the pool or the dataset.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FeatureUse {
    /// A block above 128 KiB.
    pub large_blocks: bool,
    /// A dnode of more than one slot.
    pub large_dnodes: bool,
    /// A block compressed with zstd.
    pub zstd: bool,
    /// A block that was written again and keeps its logical birth.
    pub kept_births: bool,
    /// Checksum functions of newly written blocks.
    pub checksums: BTreeSet<ChecksumKind>,
}

/// The result of a sync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncedSet {
    /// The object set's new pointer, or the old one if nothing was dirty.
    pub root: BlockPointer,
    /// Changes of the owners' entries. The caller applies them to the accounting objects and syncs again.
    pub accounting: Vec<AccountingChange>,
    /// Project accounting restarts: the caller empties its object before it applies the changes.
    pub restarts_projects: bool,
    /// What was written that requires a feature.
    pub seen: FeatureUse,
}

/// An object set open for change: its newest state, and its dirty data in each txg.
///
/// Shared by all threads. Keep it as long as its objects: dropping it loses unsynced changes.
///
/// Lock order: the sync lock (`gate`), then object ids, then an object's mutex, then the table. Only the sync
/// lock is held across I/O.
pub struct ObjectSet {
    pub(crate) core: Arc<Core>,
}

impl std::fmt::Debug for ObjectSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectSet")
            .field("dataset", &self.core.dataset)
            .finish_non_exhaustive()
    }
}

impl Drop for ObjectSet {
    /// Breaks the reference cycle: objects hold the shared core, and its table holds the dirty objects.
    fn drop(&mut self) {
        let table = std::mem::take(&mut *self.core.table.lock());
        drop(table);
    }
}

impl ObjectSet {
    fn new(
        store: Arc<BlockStore>,
        dataset: u64,
        kind: ObjectSetKind,
        policy: WritePolicy,
        (key, raw): (Option<Arc<WriteKey>>, Option<RawSeals>),
        (table, block_id_max): (Table, Option<u64>),
    ) -> Arc<Self> {
        let policy = protected_policy(policy, key.is_some(), raw.is_some());
        Arc::new(Self {
            core: Arc::new(Core {
                store,
                dataset,
                kind,
                key,
                raw,
                caching: CachingCell::new(policy.caching),
                policy: RwLock::new(policy),
                table: Mutex::new(table),
                numbers: Mutex::new(ObjectIdAllocator::new(block_id_max)),
                gate: RwLock::new(()),
            }),
        })
    }

    /// Opens the object set at `root` for change. `dataset` is its object id in the MOS (0 for the MOS
    /// itself).
    ///
    /// # Errors
    /// If the block cannot be read or is not an object set, if blocks of dnodes are not 16 KiB, or if the
    /// dataset is encrypted and `key` is missing.
    pub fn open(
        store: Arc<BlockStore>,
        dataset: u64,
        root: BlockPointer,
        policy: WritePolicy,
        key: Option<Arc<WriteKey>>,
    ) -> Result<Arc<Self>, ObjectError> {
        Self::open_with(store, dataset, root, policy, (key, None))
    }

    pub(crate) fn open_with(
        store: Arc<BlockStore>,
        dataset: u64,
        root: BlockPointer,
        policy: WritePolicy,
        (key, raw): (Option<Arc<WriteKey>>, Option<RawSeals>),
    ) -> Result<Arc<Self>, ObjectError> {
        let refuse = |reason| ObjectError::Refused {
            dataset,
            object: ObjectId(0),
            reason,
        };
        // Its blocks would be written unencrypted.
        if root.has_crypt_bit() != (key.is_some() || raw.is_some()) {
            return Err(refuse(match key {
                None if raw.is_none() => "its key is not loaded",
                _ => "it is not encrypted, though its dataset is",
            }));
        }
        let caching = Arc::new(CachingCell::new(policy.caching));
        let own = key.as_ref().map(|key| Arc::clone(key.key()));
        let read_only = ObjectSetView::open_with(Arc::clone(&store), dataset, root, own, caching)?;
        let phys = read_only.phys();
        let native = |dnode: &Dnode| {
            let mut dnode = dnode.clone();
            byteswap::adopt(&mut dnode).map_err(refuse)?;
            Ok::<_, ObjectError>(dnode)
        };
        let meta = native(&phys.meta_dnode)?;
        if meta.data_block_bytes() != SLOTS_PER_BLOCK * DNODE_SLOT_BYTES as u64 {
            return Err(refuse("blocks of dnodes have not 16 KiB"));
        }
        let block_id_max = meta.block_id_max.0;
        let synced = SyncedHead {
            root,
            meta: Arc::new(meta),
            flags: phys.flags,
            accounting_cursor: None,
            log_header: phys.intent_log_header,
            portable_mac: phys.portable_mac,
            local_mac: phys.local_mac,
            length: usize::try_from(root.lsize_bytes()).unwrap_or(4096),
        };
        let table = Table {
            synced,
            ..Table::default()
        };
        let kind = read_only.kind();
        let table = (table, Some(block_id_max));
        let set = Self::new(store, dataset, kind, policy, (key, raw), table);
        let specials = [&phys.user_used, &phys.group_used, &phys.project_used];
        for (which, dnode) in specials.into_iter().enumerate() {
            if let Some(dnode) = dnode {
                let core = Arc::clone(&set.core);
                let object = Object::new(core, special_id(which), native(dnode)?, true);
                set.core.table.lock().specials[which] = Some(object);
            }
        }
        Ok(set)
    }

    /// Creates an empty object set that is dirty in the transaction's txg.
    #[must_use]
    pub fn create(
        store: Arc<BlockStore>,
        dataset: u64,
        kind: ObjectSetKind,
        shape: NewObjectSet,
        policy: WritePolicy,
        tx: &Transaction,
    ) -> Arc<Self> {
        let mut meta = blank_dnode(ObjectType::DNODE, 32, 3);
        meta.indirect_block_shift = shape.indirect_shift.clamp(12, 17);
        if kind != ObjectSetKind::Meta {
            // Enough levels for every possible object id, so that the array never adds one.
            while (meta.addressable_blocks()).is_some_and(|blocks| blocks < 1 << (48 - 5)) {
                meta.levels += 1;
            }
        }
        let mut last = None;
        if let Some(raw) = &shape.raw {
            raw.array.apply(&mut meta);
            last = Some(raw.array.last_block);
        }
        let has_accounting = PoolVersion(policy.pool_version).has_user_accounting();
        let length = if has_accounting { 4096 } else { 1024 };
        let mut table = Table {
            synced: SyncedHead {
                meta: Arc::new(meta),
                length,
                ..SyncedHead::default()
            },
            ..Table::default()
        };
        table.heads.insert(
            tx.txg(),
            HeadChange {
                flags: Some(shape.flags),
                raw: shape.raw,
                ..HeadChange::default()
            },
        );
        let raw = shape.raw.map(|_| RawSeals::default());
        Self::new(
            store,
            dataset,
            kind,
            policy,
            (shape.key, raw),
            (table, last),
        )
    }

    /// The dataset's object id in the MOS; 0 is the MOS itself.
    #[must_use]
    pub fn dataset(&self) -> u64 {
        self.core.dataset
    }
    /// The key with which its blocks are encrypted; `None` outside encrypted datasets.
    #[must_use]
    pub fn write_key(&self) -> Option<&Arc<WriteKey>> {
        self.core.key.as_ref()
    }
    /// What kind of object set this is.
    #[must_use]
    pub fn kind(&self) -> ObjectSetKind {
        self.core.kind
    }
    /// The block store that its blocks are read from.
    #[must_use]
    pub fn store(&self) -> &Arc<BlockStore> {
        &self.core.store
    }
    /// The policy for storing new blocks.
    #[must_use]
    pub fn policy(&self) -> WritePolicy {
        self.core.policy.read().clone()
    }
    /// Changes the policy, from the next sync on. What it says about caching holds for reads at once.
    pub fn set_policy(&self, policy: WritePolicy) {
        self.core.caching.set(policy.caching);
        let (has_key, is_raw) = (self.core.key.is_some(), self.core.raw.is_some());
        *self.core.policy.write() = protected_policy(policy, has_key, is_raw);
    }

    /// Returns the object with this id. All callers get the same instance.
    ///
    /// # Errors
    /// [`ObjectError::NotFound`] if there is none, or if it was freed and that is not synced yet. Otherwise
    /// if its dnode cannot be read.
    pub fn object(self: &Arc<Self>, id: ObjectId) -> Result<Arc<Object>, ObjectError> {
        let core = &self.core;
        loop {
            {
                let table = core.table.lock();
                if table.dead.contains_key(&id) {
                    return Err(core.missing(id));
                }
                if let Some(object) = table.get(id) {
                    return Ok(object);
                }
            }
            let (dnode, generation) = core.ask_synced(|tree| core.read_dnode(tree, id))?;
            let mut table = core.table.lock();
            // Another thread may meanwhile have opened the object, or have created or changed and synced it.
            let is_current = table.generation == generation && !table.dead.contains_key(&id);
            if !is_current || table.get(id).is_some() {
                continue;
            }
            let dnode = dnode.ok_or_else(|| core.missing(id))?;
            let object = Object::new(Arc::clone(core), id, dnode, true);
            table.insert(&object);
            return Ok(object);
        }
    }

    /// Creates an object with a free id.
    ///
    /// # Errors
    /// If a block of dnodes cannot be read, or if `new` is not valid ([`ObjectError::Refused`]).
    pub fn allocate(
        self: &Arc<Self>,
        tx: &Transaction,
        new: NewObject,
    ) -> Result<Arc<Object>, ObjectError> {
        let dnode = self.new_dnode(&new)?;
        let slots = new.slots;
        let id = self.number(|numbers, last| numbers.search(tx.txg(), slots, last))?;
        let id = id.ok_or_else(|| self.core.refuse(ObjectId(0), "no object number is left"))?;
        Ok(self.add(tx, id, dnode))
    }

    /// Creates an object with this id.
    ///
    /// # Errors
    /// [`ObjectError::Refused`] if the id is in use, or was freed in a txg that is not synced yet. Otherwise
    /// as [`ObjectSet::allocate`].
    pub fn allocate_at(
        self: &Arc<Self>,
        tx: &Transaction,
        id: ObjectId,
        new: NewObject,
    ) -> Result<Arc<Object>, ObjectError> {
        let dnode = self.new_dnode(&new)?;
        let slots = new.slots;
        let taken = self.number(|numbers, last| numbers.take(tx.txg(), id, slots, last))?;
        let id = taken.ok_or_else(|| self.core.refuse(id, "its number is not free"))?;
        Ok(self.add(tx, id, dnode))
    }

    /// Repeats the search until it has a result, reading in between the blocks of dnodes that it needs.
    pub(crate) fn number(
        &self,
        mut search: impl FnMut(&mut ObjectIdAllocator, u64) -> Search,
    ) -> Result<Option<ObjectId>, ObjectError> {
        let core = &self.core;
        loop {
            let block = {
                let mut numbers = core.numbers.lock();
                let last = core.table.lock().synced.meta.block_id_max.0;
                match search(&mut numbers, last) {
                    Search::Found(id) => return Ok(Some(id)),
                    Search::Exhausted => return Ok(None),
                    Search::MustLearn(block) => block,
                }
            };
            let (used, generation) = core.ask_synced(|tree| Self::used_slots(tree, block))?;
            let mut numbers = core.numbers.lock();
            if core.table.lock().generation == generation {
                numbers.learn(block, used);
            }
        }
    }

    /// Returns a mask of the slots of a block of dnodes that are in use on disk.
    fn used_slots(tree: &Tree<'_>, block: u64) -> Result<u32, ObjectError> {
        if block > tree.dnode.block_id_max.0 {
            return Ok(0);
        }
        let (pointer, _) = tree.descend(0, block)?;
        if pointer.is_hole() {
            return Ok(0);
        }
        if pointer.fill() >= SLOTS_PER_BLOCK {
            return Ok(u32::MAX);
        }
        let content = tree.read_block(block)?;
        let mut used = 0u32;
        for slot in used_slots(&content) {
            let bytes = content.bytes.get(slot * DNODE_SLOT_BYTES..).unwrap_or(&[]);
            for slot in slot..slot + Dnode::slot_count(bytes) {
                used |= 1u32.checked_shl(slot as u32).unwrap_or(0);
            }
        }
        Ok(used)
    }

    fn new_dnode(&self, new: &NewObject) -> Result<Dnode, ObjectError> {
        let refuse = |reason| Err(self.core.refuse(ObjectId(0), reason));
        if new.object_type == ObjectType::NONE
            || !new.object_type.is_valid()
            || !new.bonus_type.is_valid()
        {
            return refuse("no such object type");
        }
        if !(12..=17).contains(&new.indirect_shift) {
            return refuse("indirect blocks have 4 to 128 KiB");
        }
        let may_be_large = {
            let policy = self.core.policy.read();
            policy.may_have_large_dnodes && !policy.is_mos
        };
        if !(1..=32).contains(&new.slots) || (new.slots > 1 && !may_be_large) {
            return refuse("a dnode has 1 to 32 slots, and only 1 without large_dnode");
        }
        let sectors = self.core.block_sectors(ObjectId(0), new.block_bytes)?;
        let Some(pointers) = new.pointer_count() else {
            return refuse("bonus does not fit");
        };
        let mut dnode = blank_dnode(new.object_type, sectors, pointers);
        dnode.indirect_block_shift = new.indirect_shift;
        (dnode.checksum, dnode.compression) = (new.checksum, new.compression);
        dnode.extra_slots = new.slots - 1;
        (dnode.bonus_type, dnode.bonus) = (new.bonus_type, new.bonus.clone());
        Ok(dnode)
    }

    pub(crate) fn add(&self, tx: &Transaction, id: ObjectId, mut dnode: Dnode) -> Arc<Object> {
        // Only the slot keeps the bonus, because very many new objects may be in memory at once.
        let bonus = std::mem::take(&mut dnode.bonus);
        let object = Object::new(Arc::clone(&self.core), id, dnode, false);
        object.begin(tx, bonus);
        let mut table = self.core.table.lock();
        table.insert(&object);
        table.born.insert(id, tx.txg());
        drop(table);
        object
    }

    /// Frees an object of any size. Its blocks are freed when the txg is synced.
    ///
    /// # Errors
    /// [`ObjectError::NotFound`] if there is none; if its dnode cannot be read.
    pub fn free(self: &Arc<Self>, tx: &Transaction, id: ObjectId) -> Result<(), ObjectError> {
        let object = self.object(id)?;
        object.free(tx)?;
        self.core.table.lock().dead.insert(id, tx.txg());
        Ok(())
    }

    /// Returns the next object id above `after`, unsynced changes included.
    ///
    /// # Errors
    /// If a block of dnodes cannot be read.
    pub fn next_object(self: &Arc<Self>, after: ObjectId) -> Result<Option<ObjectId>, ObjectError> {
        let core = &self.core;
        let mut from = after.0.saturating_add(1);
        loop {
            let (on_disk, generation) = core.ask_synced(|tree| Self::next_synced(tree, from))?;
            let table = core.table.lock();
            if table.generation != generation {
                continue;
            }
            let mut born = table.born.range(ObjectId(from)..).map(|(id, _)| id.0);
            let born = born.find(|id| !table.dead.contains_key(&ObjectId(*id)));
            let next = on_disk.into_iter().chain(born).min();
            match next {
                Some(id) if table.dead.contains_key(&ObjectId(id)) => from = id.saturating_add(1),
                _ => return Ok(next.map(ObjectId)),
            }
        }
    }

    fn next_synced(tree: &Tree<'_>, from: u64) -> Result<Option<u64>, ObjectError> {
        let mut from = from;
        loop {
            let Some(block) = tree.next(from / SLOTS_PER_BLOCK, false)? else {
                return Ok(None);
            };
            let first = block * SLOTS_PER_BLOCK;
            let content = tree.read_block(block)?;
            let numbers = used_slots(&content).map(|slot| first + slot as u64);
            if let Some(id) = numbers.into_iter().find(|id| *id >= from && *id != 0) {
                return Ok(Some(id));
            }
            from = first.saturating_add(SLOTS_PER_BLOCK);
        }
    }

    /// Returns an accounting object. If the set has none, creates it as a ZAP of one 512-byte block.
    ///
    /// # Errors
    /// None at present.
    pub fn special(
        self: &Arc<Self>,
        which: Accounting,
        tx: &Transaction,
    ) -> Result<Arc<Object>, ObjectError> {
        let index = special_index(which);
        let core = &self.core;
        let object = {
            let mut table = core.table.lock();
            if let Some(object) = &table.specials[index] {
                return Ok(Arc::clone(object));
            }
            let dnode = blank_dnode(ObjectType::USER_GROUP_USED, 1, 3);
            let object = Object::new(Arc::clone(core), special_id(index), dnode, false);
            table.specials[index] = Some(Arc::clone(&object));
            object
        };
        object.touch(tx);
        Ok(object)
    }
    /// Returns an accounting object, or `None` if the set has none.
    #[must_use]
    pub fn special_if_any(self: &Arc<Self>, which: Accounting) -> Option<Arc<Object>> {
        self.core.table.lock().specials[special_index(which)].clone()
    }

    /// Flags of the object set block: 1 means that user accounting is complete, 2 object accounting, 4
    /// project accounting.
    #[must_use]
    pub fn flags(&self) -> u64 {
        self.core.table.lock().newest_flags()
    }
    /// Changes the flags of the object set block.
    pub fn set_flags(&self, tx: &Transaction, flags: u64) {
        let mut table = self.core.table.lock();
        table.heads.entry(tx.txg()).or_default().flags = Some(flags);
    }
    /// How far accounting has been completed since the set was opened: all objects with smaller ids were
    /// touched. `None` if completion has not begun.
    #[must_use]
    pub fn accounting_cursor(&self) -> Option<u64> {
        let table = self.core.table.lock();
        let mut changes = table.heads.values().rev();
        let newest = changes.find_map(|change| change.accounting_cursor);
        newest.or(table.synced.accounting_cursor)
    }
    /// Records that every object with a smaller id was touched in the txg of `tx` or before. The first call
    /// after opening the set restarts project accounting, unless it is complete.
    pub fn set_accounting_cursor(&self, tx: &Transaction, cursor: u64) {
        let mut table = self.core.table.lock();
        table.heads.entry(tx.txg()).or_default().accounting_cursor = Some(cursor);
    }
    /// The intent log header's words.
    #[must_use]
    pub fn log_header(&self) -> [u64; 24] {
        self.core.table.lock().newest_log_header()
    }
    /// Changes the intent log header.
    pub fn set_log_header(&self, tx: &Transaction, header: [u64; 24]) {
        let mut table = self.core.table.lock();
        table.heads.entry(tx.txg()).or_default().log_header = Some(header);
    }

    /// Whether there is anything to write in this txg.
    #[must_use]
    pub fn is_dirty(&self, txg: Txg) -> bool {
        let table = self.core.table.lock();
        let has_objects = table.dirty.get(&txg).is_some_and(|dirty| !dirty.is_empty());
        has_objects || table.heads.contains_key(&txg)
    }

    /// Writes everything that is dirty in `txg`.
    ///
    /// All transactions of `txg` must have ended, and all older txgs must be synced. The caller may call this
    /// again for the same txg, with a higher `pass`, to write what became dirty since. If nothing is dirty,
    /// nothing is written.
    ///
    /// # Errors
    /// If a block could not be read or written. The txg must then not commit. The state of its blocks is
    /// undefined; the set can still be read, but not synced again.
    pub fn sync(
        self: &Arc<Self>,
        txg: Txg,
        pass: u32,
        sink: &dyn BlockSink,
    ) -> Result<SyncedSet, ObjectError> {
        crate::sync::sync(&self.core, txg, pass, sink)
    }

    /// The object set's pointer as of the last sync; zeros before a new set's first sync.
    #[must_use]
    pub fn root(&self) -> BlockPointer {
        self.core.table.lock().synced.root
    }
    /// A read-only view of the last synced state.
    ///
    /// # Errors
    /// If its block cannot be read.
    pub fn committed(&self) -> Result<Arc<ObjectSetView>, ObjectError> {
        let store = Arc::clone(&self.core.store);
        let caching = Arc::new(CachingCell::new(self.core.caching.get()));
        let key = self.core.read_key().cloned();
        ObjectSetView::open_with(store, self.core.dataset, self.root(), key, caching)
    }
}
