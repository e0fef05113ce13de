//! State that an object set shares with its objects: the object table, dirty lists and synced head.

use crate::object_ids::ObjectIdAllocator;
use crate::raw::{RawHead, RawSeals};
use crate::set_view::used_slots;
use crate::tree::Tree;
use crate::{Accounting, ObjectError};
use crate::{CachingCell, Object, WritePolicy, byteswap};
use millpond_block::{BlockStore, PointerValidity, WriteKey};
use millpond_crypt::DatasetKey;
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex, RwLock, RwLockReadGuard, Weak};
use millpond_ondisk::{
    BLOCK_BYTES_MAX, BlockId, BlockPointer, DNODE_SLOT_BYTES, Dnode, DnodeFlags, Endian, ObjectId,
    ObjectSetKind, ObjectType, Txg,
};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::time::Duration;

/// Dnodes in a block of the dnode array. No other block size is written.
pub(crate) const SLOTS_PER_BLOCK: u64 = 32;

pub(crate) struct Core {
    pub(crate) store: Arc<BlockStore>,
    pub(crate) dataset: u64,
    pub(crate) kind: ObjectSetKind,
    /// Set if the set is encrypted.
    pub(crate) key: Option<Arc<WriteKey>>,
    /// Set if the set is encrypted, and changed by a raw stream without its key.
    pub(crate) raw: Option<RawSeals>,
    pub(crate) policy: RwLock<WritePolicy, rank::Leaf>,
    /// That of the policy, for readers.
    pub(crate) caching: CachingCell,
    /// Innermost lock of the set: taken while an object's mutex is held, never the other way round.
    pub(crate) table: Mutex<Table, rank::ObjectTable>,
    pub(crate) numbers: Mutex<ObjectIdAllocator, rank::ObjectNumbers>,
    /// Held for writing during a sync. Readers take it only to find out whether a sync caused their error.
    pub(crate) gate: RwLock<(), rank::ObjectSetSync>,
}

/// The mutable state of a set.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) objects: HashMap<ObjectId, Weak<Object>>,
    /// Dead entries are removed when the table reaches this size.
    pub(crate) sweep_at: usize,
    /// Objects dirty in each txg, kept in memory until the txg is synced. Accounting objects are included
    /// under their 64-bit ids (see [`special_id`]).
    pub(crate) dirty: BTreeMap<Txg, BTreeMap<ObjectId, Arc<Object>>>,
    /// Objects created and not yet synced.
    pub(crate) born: BTreeMap<ObjectId, Txg>,
    /// Objects freed and not yet synced.
    pub(crate) dead: BTreeMap<ObjectId, Txg>,
    pub(crate) specials: [Option<Arc<Object>>; 3],
    /// As of the last sync.
    pub(crate) synced: SyncedHead,
    /// Changes of the head by txg.
    pub(crate) heads: BTreeMap<Txg, HeadChange>,
    /// Incremented by every sync. A caller that read the synced tree without the table lock compares it to
    /// see whether its result is still valid.
    pub(crate) generation: u64,
}

/// The object set block as of the last sync.
#[derive(Debug, Clone)]
pub(crate) struct SyncedHead {
    pub(crate) root: BlockPointer,
    pub(crate) meta: Arc<Dnode>,
    pub(crate) flags: u64,
    /// [`crate::ObjectSet::accounting_cursor`].
    pub(crate) accounting_cursor: Option<u64>,
    pub(crate) log_header: [u64; 24],
    pub(crate) portable_mac: [u8; 32],
    pub(crate) local_mac: [u8; 32],
    pub(crate) length: usize,
}

impl Default for SyncedHead {
    fn default() -> Self {
        Self {
            root: BlockPointer::default(),
            meta: Arc::new(blank_dnode(ObjectType::DNODE, 1, 3)),
            flags: 0,
            accounting_cursor: None,
            log_header: [0; 24],
            portable_mac: [0; 32],
            local_mac: [0; 32],
            length: 0,
        }
    }
}

/// Changes of the object set block in one txg.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HeadChange {
    pub(crate) flags: Option<u64>,
    pub(crate) accounting_cursor: Option<u64>,
    pub(crate) log_header: Option<[u64; 24]>,
    /// The array of dnodes that a raw stream says.
    pub(crate) raw: Option<RawHead>,
}

/// A dnode without blocks or bonus.
pub(crate) fn blank_dnode(object_type: ObjectType, sectors: u16, pointers: usize) -> Dnode {
    Dnode {
        object_type,
        indirect_block_shift: 17,
        levels: 1,
        bonus_type: ObjectType::NONE,
        checksum: 0,
        compression: 0,
        flags: DnodeFlags::empty(),
        data_block_sectors: sectors,
        extra_slots: 0,
        block_id_max: BlockId(0),
        used: 0,
        block_pointers: vec![BlockPointer::default(); pointers],
        bonus: Vec::new(),
        bonus_tail: vec![],
        spill: None,
        endian: Endian::Little,
    }
}

/// The id under which an accounting object is dirty and named in errors.
pub(crate) fn special_id(which: usize) -> ObjectId {
    ObjectId(u64::MAX - which as u64)
}

pub(crate) fn special_index(which: Accounting) -> usize {
    match which {
        Accounting::User => 0,
        Accounting::Group => 1,
        Accounting::Project => 2,
    }
}

impl Core {
    pub(crate) fn read_key(&self) -> Option<&Arc<DatasetKey>> {
        self.key.as_ref().map(|key| key.key())
    }

    pub(crate) fn tree<'a>(&'a self, object: ObjectId, dnode: &'a Dnode) -> Tree<'a> {
        Tree {
            store: &self.store,
            key: self.read_key(),
            dataset: self.dataset,
            object,
            dnode,
            caching: self.caching.get(),
            is_sequential: false,
            validity: PointerValidity::Current,
        }
    }

    pub(crate) fn refuse(&self, object: ObjectId, reason: &'static str) -> ObjectError {
        ObjectError::Refused {
            dataset: self.dataset,
            object,
            reason,
        }
    }

    pub(crate) fn missing(&self, object: ObjectId) -> ObjectError {
        ObjectError::NotFound {
            dataset: self.dataset,
            object,
        }
    }

    /// Converts a block size to sectors, if an object of this set may have that size.
    pub(crate) fn block_sectors(&self, id: ObjectId, bytes: u32) -> Result<u16, ObjectError> {
        let policy = self.policy.read();
        let most = if policy.may_have_large_blocks && !policy.is_mos {
            BLOCK_BYTES_MAX
        } else {
            128 << 10
        };
        drop(policy);
        let most = match &self.key {
            Some(key) => most.min(key.key().suite().block_bytes_max().into()),
            None => most,
        };
        if bytes == 0 || !bytes.is_multiple_of(512) || u64::from(bytes) > most {
            return Err(self.refuse(id, "blocks cannot have this size"));
        }
        u16::try_from(bytes / 512).map_err(|_| self.refuse(id, "blocks cannot have this size"))
    }

    pub(crate) fn note_dirty(&self, txg: Txg, object: Arc<Object>) {
        let mut table = self.table.lock();
        let dirty = table.dirty.entry(txg).or_default();
        dirty.insert(object.id(), object);
    }

    /// Removes the object from the dirty lists of all txgs after `txg`. The caller holds a reference to the
    /// object, so nothing is dropped here.
    pub(crate) fn forget_newer(&self, txg: Txg, id: ObjectId) {
        let mut table = self.table.lock();
        let newer = table
            .dirty
            .range_mut((Bound::Excluded(txg), Bound::Unbounded));
        for (_, dirty) in newer {
            dirty.remove(&id);
        }
    }

    /// Reads an object's dnode as of the last sync, in native byte order. Returns `None` if the id is free or
    /// out of range.
    pub(crate) fn read_dnode(
        &self,
        tree: &Tree<'_>,
        id: ObjectId,
    ) -> Result<Option<Dnode>, ObjectError> {
        let block_id = id.0 / SLOTS_PER_BLOCK;
        if id.0 == 0 || block_id > tree.dnode.block_id_max.0 {
            return Ok(None);
        }
        let block = tree.read_block(block_id)?;
        let wanted = (id.0 % SLOTS_PER_BLOCK) as usize;
        if used_slots(&block).find(|slot| *slot >= wanted) != Some(wanted) {
            return Ok(None);
        }
        let bytes = block.bytes.get(wanted * DNODE_SLOT_BYTES..).unwrap_or(&[]);
        let invalid = |error| ObjectError::Invalid {
            dataset: self.dataset,
            object: id,
            error,
        };
        let Some(mut dnode) = Dnode::decode(bytes, block.endian).map_err(invalid)? else {
            return Ok(None);
        };
        if self.raw.is_some() {
            dnode.keep_bonus_tail(bytes);
        }
        byteswap::adopt(&mut dnode).map_err(|reason| self.refuse(id, reason))?;
        Ok(Some(dnode))
    }

    /// Runs a query such as [`Core::read_dnode`] on the dnode array of the last sync, and repeats it if a sync
    /// came between. Returns the answer with its generation.
    pub(crate) fn ask_synced<T>(
        &self,
        ask: impl Fn(&Tree<'_>) -> Result<T, ObjectError>,
    ) -> Result<(T, u64), ObjectError> {
        loop {
            let (meta, generation) = self.synced_meta();
            let tree = self.tree(ObjectId(0), &meta);
            let is_newest = || self.synced_meta().1 == generation;
            let maybe_outdated = PointerValidity::MaybeOutdated(&is_newest);
            match ask(&tree.with_validity(maybe_outdated)) {
                Ok(answer) => return Ok((answer, generation)),
                Err(error) => {
                    let no_sync = self.wait_for_sync();
                    if is_newest() {
                        let validity = match no_sync {
                            Some(_) => PointerValidity::Current,
                            None => maybe_outdated,
                        };
                        return ask(&tree.with_validity(validity))
                            .map(|answer| (answer, generation))
                            .map_err(|_| error);
                    }
                }
            }
        }
    }

    /// Waits for a running sync to end, since it may have overwritten blocks of an earlier pass of its txg.
    /// The wait is bounded, because the sync itself may be waiting for this reader.
    pub(crate) fn wait_for_sync(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.gate.try_read_for(Duration::from_secs(10))
    }

    fn synced_meta(&self) -> (Arc<Dnode>, u64) {
        let table = self.table.lock();
        (Arc::clone(&table.synced.meta), table.generation)
    }
}

impl Table {
    pub(crate) fn get(&self, id: ObjectId) -> Option<Arc<Object>> {
        self.objects.get(&id)?.upgrade()
    }

    pub(crate) fn insert(&mut self, object: &Arc<Object>) {
        self.objects.insert(object.id(), Arc::downgrade(object));
        if self.objects.len() >= self.sweep_at.max(1024) {
            self.objects.retain(|_, object| object.strong_count() > 0);
            self.sweep_at = self.objects.len() * 2;
        }
    }

    pub(crate) fn remove(&mut self, id: ObjectId) {
        self.objects.remove(&id);
    }

    /// The newest flags of the object set block.
    pub(crate) fn newest_flags(&self) -> u64 {
        let newest = self.heads.values().rev().find_map(|change| change.flags);
        newest.unwrap_or(self.synced.flags)
    }
    pub(crate) fn newest_log_header(&self) -> [u64; 24] {
        let mut changes = self.heads.values().rev();
        let newest = changes.find_map(|change| change.log_header);
        newest.unwrap_or(self.synced.log_header)
    }
}
