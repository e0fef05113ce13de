//! Creates datasets: heads of new directories, clones, snapshots.
//!
//! Page `docs/format/dsl-dataset.md`, "How datasets change".

use crate::heads::features;
use crate::heads::space::{Use, signed};
use crate::mos::{contradiction, required};
use crate::tasks::context::SyncTaskContext;
use millpond_ondisk::dsl::keys;
use millpond_ondisk::{DslDatasetFlags, DslDatasetPhys, Guid, ObjectId, ObjectType, Txg};
use millpond_pool::{PoolError, ScanEvent};

/// The first txg of a new pool. Datasets created in it count as created before any block was born.
const FIRST_TXG: Txg = Txg(4);

impl SyncTaskContext<'_> {
    /// The creation txg of a dataset created now.
    pub(crate) fn creation_txg(&self) -> Txg {
        if self.txg() == FIRST_TXG {
            Txg(1)
        } else {
            self.txg()
        }
    }

    fn new_guid(&self) -> Guid {
        Guid(self.random().max(1))
    }
    /// A new 56-bit identifier that distinguishes mounted file systems.
    fn new_fsid(&self) -> Guid {
        Guid((self.random() >> 8).max(1))
    }

    /// Creates the head of a directory. With an origin it starts with the origin's blocks. Only the very
    /// first datasets have no origin; they start empty.
    pub(crate) fn create_head(
        &self,
        directory: ObjectId,
        origin: Option<ObjectId>,
        flags: DslDatasetFlags,
    ) -> Result<ObjectId, PoolError> {
        let mut phys = DslDatasetPhys {
            directory,
            creation_time: self.now_s(),
            creation_txg: self.creation_txg(),
            fsid_guid: self.new_fsid(),
            guid: self.new_guid(),
            flags: match self.version().has_exact_unique_bytes() {
                true => flags | DslDatasetFlags::UNIQUE_ACCURATE,
                false => flags,
            },
            ..DslDatasetPhys::default()
        };
        let id = self.allocate(
            ObjectType::DSL_DATASET,
            ObjectType::DSL_DATASET,
            phys.encode(),
        )?;
        phys.snapshot_names = Some(self.create_folded_zap(ObjectType::DSL_DATASET_SNAP_MAP)?);
        match origin {
            None => phys.deadlist = Some(self.create_deadlist()?),
            Some(origin) => self.descend_from(id, &mut phys, origin)?,
        }
        self.put_dataset(id, &phys)?;
        self.edit_directory(directory, |directory| {
            directory.head_dataset = Some(id);
            directory.origin = origin;
        })?;
        Ok(id)
    }

    fn descend_from(
        &self,
        id: ObjectId,
        phys: &mut DslDatasetPhys,
        origin: ObjectId,
    ) -> Result<(), PoolError> {
        let mut from = self.dataset(origin)?;
        phys.previous_snapshot = Some(origin);
        phys.previous_snapshot_txg = from.creation_txg;
        phys.referenced_bytes = from.referenced_bytes;
        phys.compressed_bytes = from.compressed_bytes;
        phys.uncompressed_bytes = from.uncompressed_bytes;
        phys.block_pointer = from.block_pointer;
        let inherited = DslDatasetFlags::INCONSISTENT | DslDatasetFlags::CASE_INSENSITIVE;
        phys.flags |= from.flags & inherited;
        self.copy_features(origin, id)?;

        let head = self.directory(from.directory)?.head_dataset;
        let head = self.dataset(required(head, "an origin without a head")?)?;
        let deadlist = required(head.deadlist, "a head without a deadlist")?;
        phys.deadlist =
            Some(self.clone_deadlist(deadlist, Some(origin), Some(from.creation_txg), &[])?);

        from.children_count = from.children_count.saturating_add(1);
        if !self.version().has_origin() {
            return self.put_dataset(origin, &from);
        }
        let clones = match from.next_clones {
            Some(clones) => clones,
            None => self.create_zap(ObjectType::NEXT_CLONES)?,
        };
        from.next_clones = Some(clones);
        self.put_dataset(origin, &from)?;
        self.set_insert(clones, id.0)?;
        self.add_clone(from.directory, id)
    }

    /// Records that a snapshot of a directory is the origin of a head elsewhere.
    /// Pools before version 26 do not.
    pub(crate) fn add_clone(&self, directory: ObjectId, head: ObjectId) -> Result<(), PoolError> {
        if !self.version().has_split_deadlists() {
            return Ok(());
        }
        let mut phys = self.directory(directory)?;
        let clones = match phys.clones {
            Some(clones) => clones,
            None => {
                let made = self.create_zap(ObjectType::DSL_CLONES)?;
                phys.clones = Some(made);
                self.put_directory(directory, &phys)?;
                made
            }
        };
        self.set_insert(clones, head.0)
    }

    pub(crate) fn remove_clone(
        &self,
        directory: ObjectId,
        head: ObjectId,
    ) -> Result<(), PoolError> {
        match self.directory(directory)?.clones {
            _ if !self.version().has_split_deadlists() => Ok(()),
            Some(clones) => self.set_remove(clones, head.0),
            None => Err(contradiction(
                "dataset directory",
                "it does not know its clones",
            )),
        }
    }

    /// Takes a snapshot of a head. All its changes of this txg must have been written.
    pub(crate) fn take_snapshot(&self, head: ObjectId, name: &str) -> Result<ObjectId, PoolError> {
        let mut live = self.dataset(head)?;
        let directory = live.directory;
        let deadlist = required(live.deadlist, "a head without a deadlist")?;
        self.count_up(directory, keys::SNAPSHOT_COUNT, 1)?;
        let frozen = DslDatasetPhys {
            directory,
            previous_snapshot: live.previous_snapshot,
            previous_snapshot_txg: live.previous_snapshot_txg,
            next_snapshot: Some(head),
            children_count: 1,
            creation_time: self.now_s(),
            creation_txg: self.creation_txg(),
            deadlist: Some(deadlist),
            referenced_bytes: live.referenced_bytes,
            compressed_bytes: live.compressed_bytes,
            uncompressed_bytes: live.uncompressed_bytes,
            fsid_guid: self.new_fsid(),
            guid: self.new_guid(),
            flags: live.flags,
            block_pointer: live.block_pointer,
            ..DslDatasetPhys::default()
        };
        let id = self.allocate(
            ObjectType::DSL_DATASET,
            ObjectType::DSL_DATASET,
            frozen.encode(),
        )?;
        self.copy_features(head, id)?;

        if let Some(previous) = live.previous_snapshot {
            let mut before = self.dataset(previous)?;
            if before.next_snapshot == Some(head) {
                before.next_snapshot = Some(id);
                self.put_dataset(previous, &before)?;
            } else if let Some(clones) = before.next_clones {
                self.set_replace(clones, head, id)?;
            }
        }
        let reserved = self.ref_reservation(directory)?;
        if reserved > 0 {
            // The blocks born since the previous snapshot now belong to the new snapshot, so the
            // refreservation is unused again.
            let bytes = signed(live.unique_bytes.min(reserved));
            self.charge(directory, &[(Use::RefReserved, bytes)], 0, 0)?;
        }
        // For a head without an origin this key is 0, the first key of all other deadlists.
        let mut more = vec![live.previous_snapshot_txg];
        more.extend(self.bookmark_keys_after(head, live.previous_snapshot_txg)?);
        let fresh = self.clone_deadlist(deadlist, live.previous_snapshot, None, &more)?;
        live.deadlist = Some(fresh);
        live.previous_snapshot = Some(id);
        live.previous_snapshot_txg = frozen.creation_txg;
        live.unique_bytes = 0;
        self.put_dataset(head, &live)?;

        self.move_remapped(head, id)?;
        let is_encrypted = self
            .extension(directory, keys::CRYPTO_KEY_OBJECT)?
            .is_some();
        if is_encrypted && self.is_enabled(features::BOOKMARK_V2) {
            self.zapify(id)?;
            self.update(id, keys::IVSET_GUID, self.random().max(1))?;
        }
        let names = required(live.snapshot_names, "a head without a table of snapshots")?;
        self.update(names, name, id.0)?;
        self.snapshots_changed(directory)?;
        let event = ScanEvent::SnapshotTaken { head, snapshot: id };
        self.ctx.scan_event(event)?;
        Ok(id)
    }

    /// Records when the set of a directory's snapshots last changed.
    pub(crate) fn snapshots_changed(&self, directory: ObjectId) -> Result<(), PoolError> {
        if !self.is_enabled(features::EXTENSIBLE_DATASET) {
            return Ok(());
        }
        let now = self.ctx.pool().env().clock.wall_ns();
        self.zapify(directory)?;
        let words = [now / 1_000_000_000, now % 1_000_000_000];
        self.update_words(directory, keys::SNAPSHOTS_CHANGED, &words)
    }
}
