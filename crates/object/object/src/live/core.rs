//! State that an object set shares with its objects: the object table, dirty lists and synced head.

use super::object_ids::ObjectIdAllocator;
use super::{LiveObject, WritePolicy, byteswap};
use crate::set::used_slots;
use crate::tree::Tree;
use crate::{Accounting, ObjectError};
use millpond_block::BlockStore;
use millpond_env::sync::{Arc, Mutex, RwLock, RwLockReadGuard, Weak};
use millpond_ondisk::{
    BLOCK_BYTES_MAX, BlockId, BlockPointer, DNODE_SLOT_BYTES, Dnode, DnodeFlags, Endian, ObjectId,
    ObjectSetKind, ObjectType, Txg,
};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::time::Duration;

/// Dnodes in a block of the dnode array. No other block size is written.
pub(super) const SLOTS_PER_BLOCK: u64 = 32;

pub(super) struct Core {
    pub(super) store: Arc<BlockStore>,
    pub(super) dataset: u64,
    pub(super) kind: ObjectSetKind,
    pub(super) policy: RwLock<WritePolicy>,
    /// Innermost lock of the set: taken while an object's mutex is held, never the other way round.
    pub(super) table: Mutex<Table>,
    pub(super) numbers: Mutex<ObjectIdAllocator>,
    /// Held for writing during a sync. Readers take it only to find out whether a sync caused their error.
    pub(super) gate: RwLock<()>,
}

/// The mutable state of a set.
#[derive(Default)]
pub(super) struct Table {
    pub(super) objects: HashMap<ObjectId, Weak<LiveObject>>,
    /// Dead entries are removed when the table reaches this size.
    pub(super) sweep_at: usize,
    /// Objects dirty in each txg, kept in memory until the txg is synced. Accounting objects are included
    /// under their 64-bit ids (see [`special_id`]).
    pub(super) dirty: BTreeMap<Txg, BTreeMap<ObjectId, Arc<LiveObject>>>,
    /// Objects created and not yet synced.
    pub(super) born: BTreeMap<ObjectId, Txg>,
    /// Objects freed and not yet synced.
    pub(super) dead: BTreeMap<ObjectId, Txg>,
    pub(super) specials: [Option<Arc<LiveObject>>; 3],
    /// As of the last sync.
    pub(super) synced: SyncedHead,
    /// Changes of the head by txg.
    pub(super) heads: BTreeMap<Txg, HeadChange>,
    /// Incremented by every sync. A caller that read the synced tree without the table lock compares it to
    /// see whether its result is still valid.
    pub(super) generation: u64,
}

/// The object set block as of the last sync.
#[derive(Debug, Clone)]
pub(super) struct SyncedHead {
    pub(super) root: BlockPointer,
    pub(super) meta: Arc<Dnode>,
    pub(super) flags: u64,
    /// [`super::LiveObjectSet::accounting_cursor`].
    pub(super) accounting_cursor: Option<u64>,
    pub(super) log_header: [u64; 24],
    pub(super) portable_mac: [u8; 32],
    pub(super) local_mac: [u8; 32],
    pub(super) length: usize,
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
pub(super) struct HeadChange {
    pub(super) flags: Option<u64>,
    pub(super) accounting_cursor: Option<u64>,
    pub(super) log_header: Option<[u64; 24]>,
}

/// A dnode without blocks or bonus.
pub(super) fn blank_dnode(object_type: ObjectType, sectors: u16, pointers: usize) -> Dnode {
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
        spill: None,
        endian: Endian::Little,
    }
}

/// The id under which an accounting object is dirty and named in errors.
pub(super) fn special_id(which: usize) -> ObjectId {
    ObjectId(u64::MAX - which as u64)
}

pub(super) fn special_index(which: Accounting) -> usize {
    match which {
        Accounting::User => 0,
        Accounting::Group => 1,
        Accounting::Project => 2,
    }
}

impl Core {
    pub(super) fn tree<'a>(&'a self, object: ObjectId, dnode: &'a Dnode) -> Tree<'a> {
        Tree {
            store: &self.store,
            key: None,
            dataset: self.dataset,
            object,
            dnode,
        }
    }

    pub(super) fn refuse(&self, object: ObjectId, reason: &'static str) -> ObjectError {
        ObjectError::Refused {
            dataset: self.dataset,
            object,
            reason,
        }
    }

    pub(super) fn missing(&self, object: ObjectId) -> ObjectError {
        ObjectError::NotFound {
            dataset: self.dataset,
            object,
        }
    }

    /// Converts a block size to sectors, if an object of this set may have that size.
    pub(super) fn block_sectors(&self, id: ObjectId, bytes: u32) -> Result<u16, ObjectError> {
        let policy = self.policy.read();
        let most = if policy.may_have_large_blocks && !policy.is_mos {
            BLOCK_BYTES_MAX
        } else {
            128 << 10
        };
        drop(policy);
        if bytes == 0 || !bytes.is_multiple_of(512) || u64::from(bytes) > most {
            return Err(self.refuse(id, "blocks cannot have this size"));
        }
        u16::try_from(bytes / 512).map_err(|_| self.refuse(id, "blocks cannot have this size"))
    }

    pub(super) fn note_dirty(&self, txg: Txg, object: Arc<LiveObject>) {
        let mut table = self.table.lock();
        let dirty = table.dirty.entry(txg).or_default();
        dirty.insert(object.id(), object);
    }

    /// Removes the object from the dirty lists of all txgs after `txg`. The caller holds a reference to the
    /// object, so nothing is dropped here.
    pub(super) fn forget_newer(&self, txg: Txg, id: ObjectId) {
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
    pub(super) fn read_dnode(
        &self,
        meta: &Dnode,
        id: ObjectId,
    ) -> Result<Option<Dnode>, ObjectError> {
        let block_id = id.0 / SLOTS_PER_BLOCK;
        if id.0 == 0 || block_id > meta.block_id_max.0 {
            return Ok(None);
        }
        let block = self.tree(ObjectId(0), meta).read_block(block_id)?;
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
        byteswap::adopt(&mut dnode).map_err(|reason| self.refuse(id, reason))?;
        Ok(Some(dnode))
    }

    /// Runs a query such as [`Core::read_dnode`] on the meta-dnode of the last sync, and repeats it if a sync
    /// came between. Returns the answer with its generation.
    pub(super) fn ask_synced<T>(
        &self,
        ask: impl Fn(&Dnode) -> Result<T, ObjectError>,
    ) -> Result<(T, u64), ObjectError> {
        loop {
            let (meta, generation) = self.synced_meta();
            match ask(&meta) {
                Ok(answer) => return Ok((answer, generation)),
                Err(error) => {
                    let _no_sync = self.wait_for_sync();
                    if self.synced_meta().1 == generation {
                        return ask(&meta)
                            .map(|answer| (answer, generation))
                            .map_err(|_| error);
                    }
                }
            }
        }
    }

    /// Waits for a running sync to end, since it may have overwritten blocks of an earlier pass of its txg.
    /// The wait is bounded, because the sync itself may be waiting for this reader.
    pub(super) fn wait_for_sync(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.gate.try_read_for(Duration::from_secs(10))
    }

    fn synced_meta(&self) -> (Arc<Dnode>, u64) {
        let table = self.table.lock();
        (Arc::clone(&table.synced.meta), table.generation)
    }
}

impl Table {
    pub(super) fn get(&self, id: ObjectId) -> Option<Arc<LiveObject>> {
        self.objects.get(&id)?.upgrade()
    }

    pub(super) fn insert(&mut self, object: &Arc<LiveObject>) {
        self.objects.insert(object.id(), Arc::downgrade(object));
        if self.objects.len() >= self.sweep_at.max(1024) {
            self.objects.retain(|_, object| object.strong_count() > 0);
            self.sweep_at = self.objects.len() * 2;
        }
    }

    pub(super) fn remove(&mut self, id: ObjectId) {
        self.objects.remove(&id);
    }

    /// The newest flags of the object set block.
    pub(super) fn newest_flags(&self) -> u64 {
        let newest = self.heads.values().rev().find_map(|change| change.flags);
        newest.unwrap_or(self.synced.flags)
    }
    pub(super) fn newest_log_header(&self) -> [u64; 24] {
        let mut changes = self.heads.values().rev();
        let newest = changes.find_map(|change| change.log_header);
        newest.unwrap_or(self.synced.log_header)
    }
}
