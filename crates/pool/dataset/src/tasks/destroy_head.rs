//! Destroys file systems and volumes. Their unshared blocks are queued for freeing.
//!
//! Page `docs/format/dsl-dataset.md`, "How datasets change"; `docs/format/bpobj.md`.

use crate::heads::features;
use crate::heads::space::{Use, signed};
use crate::mos::{During, contradiction, required};
use crate::tasks::context::SyncTaskContext;
use millpond_object::NewObject;
use millpond_ondisk::dsl::keys;
use millpond_ondisk::{
    BlockBookmark, BpTreeEntry, BpTreePhys, DslDatasetFlags, DslDatasetPhys, Endian, ObjectId,
    ObjectType,
};
use millpond_pool::SpaceChange;
use millpond_pool::{PoolError, ScanEvent};

/// Entries of the object directory.
pub(crate) const TREE_QUEUE: &str = "bptree_obj";
pub(crate) const DELETED_LIVELISTS: &str = "com.delphix:deleted_clones";
const QUEUE_BLOCK_BYTES: u32 = 128 << 10;
const WHAT: &str = "destroying a dataset";

impl SyncTaskContext<'_> {
    /// Destroys a head and its directory. The head must have no snapshots and the directory no children.
    pub(crate) fn destroy_head(&self, id: ObjectId, name: &str) -> Result<(), PoolError> {
        let directory = self.dataset(id)?.directory;
        self.set_ref_reservation_charge(directory, 0)?;
        let phys = self.dataset(id)?;
        self.ctx.scan_event(ScanEvent::HeadDestroyed { id })?;
        self.drop_features(id)?;
        let origin = self.directory(directory)?.origin;
        if let Some(origin) = phys.previous_snapshot {
            self.leave_origin(id, origin)?;
        }
        let deadlist = required(phys.deadlist, "a head without a deadlist")?;
        self.free_deadlist(deadlist)?;
        self.free_remapped(id)?;
        self.queue_blocks(&phys)?;
        if let Some(origin) = origin {
            let above = self.dataset(origin)?.directory;
            self.remove_clone(above, id)?;
        }
        self.free_bookmarks(id)?;
        self.forget_boot_dataset(id)?;
        self.forget_errors(id)?;
        self.free_if_any(phys.snapshot_names)?;
        self.free_zapified(id)?;
        self.edit_directory(directory, |directory| directory.head_dataset = None)?;
        self.release_key(directory)?;
        let component = name.rsplit('/').next().unwrap_or(name);
        self.destroy_directory(directory, component)?;
        if let Some(origin) = origin {
            self.destroy_if_deferred(origin)?;
        }
        Ok(())
    }

    /// Removes a head without snapshots from its origin. Such a head is the oldest dataset of its chain.
    fn leave_origin(&self, head: ObjectId, origin: ObjectId) -> Result<(), PoolError> {
        let mut from = self.dataset(origin)?;
        if let Some(clones) = from.next_clones
            && from.next_snapshot != Some(head)
        {
            self.set_remove(clones, head.0)?;
        }
        from.children_count = from
            .children_count
            .checked_sub(1)
            .ok_or_else(|| contradiction(WHAT, "an origin without children"))?;
        self.put_dataset(origin, &from)
    }

    /// Queues a head's unshared blocks for freeing in the background.
    fn queue_blocks(&self, phys: &DslDatasetPhys) -> Result<(), PoolError> {
        let directory = phys.directory;
        let directory_phys = self.directory(directory)?;
        let space = crate::tasks::deadlist::stored(
            directory_phys.used_bytes,
            directory_phys.compressed_bytes,
            directory_phys.uncompressed_bytes,
        );
        if let Some(livelist) = self.livelist_of(directory)? {
            let set = match self.ctx.directory_object(DELETED_LIVELISTS)? {
                Some(set) => set,
                None => {
                    let made = self.create_zap(ObjectType::METADATA_ZAP)?;
                    self.ctx.set_directory_number(DELETED_LIVELISTS, made.0)?;
                    made
                }
            };
            self.set_insert(set, livelist.0)?;
            self.remove(directory, keys::LIVELIST)?;
            // A livelist does not contain embedded blocks, although the clone is charged for their logical
            // bytes. Charging those to `$FREE` would leave them there permanently.
            let listed = self.deadlist_space(livelist)?;
            if listed.used != space.used || listed.compressed != space.compressed {
                return Err(contradiction(
                    WHAT,
                    "the livelist is not what the clone holds",
                ));
            }
            self.charge_space(directory, Use::Head, -space)?;
            let free = self.special_directory(keys::FREE_DIRECTORY)?;
            return self.charge_space(free, Use::Head, listed);
        } else if phys.block_pointer.is_hole() {
            return Ok(());
        } else if self.is_enabled(features::ASYNC_DESTROY) {
            self.queue_tree(phys, space)?;
        } else {
            let freed = self.free_tree_now(&phys.block_pointer, phys.previous_snapshot_txg)?;
            // Older software counted the other two sizes in other ways.
            if freed.used != space.used {
                return Err(contradiction(
                    WHAT,
                    "its counters are not those of its blocks",
                ));
            }
            return self.charge_space(directory, Use::Head, -space);
        }
        self.move_to_free(directory, space)
    }

    /// Moves the space charged to a directory for its head to `$FREE`.
    fn move_to_free(&self, directory: ObjectId, space: SpaceChange) -> Result<(), PoolError> {
        self.charge_space(directory, Use::Head, -space)?;
        let free = self.special_directory(keys::FREE_DIRECTORY)?;
        self.charge_space(free, Use::Head, space)
    }

    fn queue_tree(&self, phys: &DslDatasetPhys, space: SpaceChange) -> Result<(), PoolError> {
        let queue = match self.ctx.directory_object(TREE_QUEUE)? {
            Some(queue) => queue,
            None => {
                let new = NewObject::new(ObjectType::METADATA_U64)
                    .with_block_bytes(QUEUE_BLOCK_BYTES)
                    .with_bonus(ObjectType::METADATA_U64, BpTreePhys::default().encode());
                let made = self.ctx.mos().allocate(self.ctx.tx(), new).during(WHAT)?;
                self.ctx.set_directory_number(TREE_QUEUE, made.id().0)?;
                self.ctx.feature_increment(features::ASYNC_DESTROY)?;
                made.id()
            }
        };
        let mut header = self.tree_queue(queue)?;
        let entry = BpTreeEntry {
            pointer: phys.block_pointer,
            birth: phys.previous_snapshot_txg,
            resume: BlockBookmark::default(),
        };
        let at = header
            .end
            .saturating_mul(millpond_ondisk::BP_TREE_ENTRY_BYTES as u64);
        let object = self.object(queue, WHAT)?;
        object
            .write(self.ctx.tx(), at, &entry.encode())
            .during(WHAT)?;
        header.end = header.end.saturating_add(1);
        self.put_tree_queue(queue, header, space)
    }

    pub(crate) fn tree_queue(&self, queue: ObjectId) -> Result<BpTreePhys, PoolError> {
        let bonus = self.bonus(queue, ObjectType::METADATA_U64, WHAT)?;
        BpTreePhys::decode(&bonus, Endian::Little).during(WHAT)
    }

    /// Stores the queue's header with changed totals.
    pub(crate) fn put_tree_queue(
        &self,
        queue: ObjectId,
        mut header: BpTreePhys,
        change: SpaceChange,
    ) -> Result<(), PoolError> {
        use crate::heads::space::changed;
        let below = "the queue's sums below 0";
        header.bytes = changed(header.bytes, change.used, below).during(WHAT)?;
        header.compressed_bytes =
            changed(header.compressed_bytes, change.compressed, below).during(WHAT)?;
        header.uncompressed_bytes =
            changed(header.uncompressed_bytes, change.uncompressed, below).during(WHAT)?;
        self.put_bonus(queue, header.encode(), WHAT)
    }

    /// Removes the logged errors of a head.
    fn forget_errors(&self, head: ObjectId) -> Result<(), PoolError> {
        for key in ["errlog_last", "errlog_scrub"] {
            if let Some(log) = self.ctx.directory_object(key)? {
                let name = millpond_ondisk::dsl::hex_key(head.0);
                let is_by_head = self.feature_count(features::HEAD_ERRLOG) > 0;
                if is_by_head && let Some(errors) = self.lookup(log, &name)? {
                    self.free_object(ObjectId(errors))?;
                    self.remove(log, &name)?;
                }
            }
        }
        Ok(())
    }

    /// Whether a snapshot can be destroyed now: it has no holds and no clones.
    pub(crate) fn is_free_to_go(&self, snapshot: &DslDatasetPhys) -> Result<bool, PoolError> {
        Ok(snapshot.children_count <= 1 && self.hold_count(snapshot)? == 0)
    }

    pub(crate) fn defer_destroy(&self, snapshot: ObjectId) -> Result<(), PoolError> {
        self.edit_dataset(snapshot, |phys| {
            phys.flags |= DslDatasetFlags::DEFER_DESTROY
        })
    }

    /// Changes the charge for a directory's unused refreservation, as if the refreservation were `new`
    /// bytes.
    pub(crate) fn set_ref_reservation_charge(
        &self,
        directory: ObjectId,
        new: u64,
    ) -> Result<(), PoolError> {
        let old = self.ref_reservation(directory)?;
        let head = self.directory(directory)?.head_dataset;
        let unique = self.dataset(required(head, "no head")?)?.unique_bytes;
        let unused = |reserved: u64| signed(reserved.saturating_sub(unique));
        let change = unused(new).saturating_sub(unused(old));
        self.charge(directory, &[(Use::RefReserved, change)], 0, 0)
    }
}
