//! Destroys snapshots. The neighbouring snapshots take over the blocks shared with them.
//!
//! Page `docs/format/dsl-dataset.md`, "How datasets change".

use crate::heads::space::{Use, changed, signed};
use crate::mos::{During, MosView, contradiction, required};
use crate::tasks::context::SyncTaskContext;
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::dsl::keys;
use millpond_ondisk::{DslDatasetFlags, DslDatasetPhys, ObjectId, Txg};
use millpond_pool::{PoolError, ScanEvent};

const WHAT: &str = "destroying a snapshot";

impl MosView<'_> {
    /// The number of holds on a snapshot.
    pub(crate) fn hold_count(&self, snapshot: &DslDatasetPhys) -> Result<u64, PoolError> {
        snapshot
            .user_references
            .map_or(Ok(0), |table| self.entry_count(table))
    }

    /// The oldest dataset of the chain that ends in `head` and continues `origin`.
    pub(crate) fn oldest_after(
        &self,
        head: ObjectId,
        origin: ObjectId,
    ) -> Result<ObjectId, PoolError> {
        let mut at = head;
        let mut before_txg = Txg(u64::MAX);
        loop {
            let phys = self.dataset(at)?;
            match phys.previous_snapshot {
                Some(previous) if previous == origin => return Ok(at),
                // Each snapshot in a chain must be older than the next one; otherwise the chain is a cycle.
                Some(previous) if phys.previous_snapshot_txg < before_txg => {
                    before_txg = phys.previous_snapshot_txg;
                    at = previous;
                }
                _ => {
                    return Err(contradiction(
                        WHAT,
                        "a dataset does not descend from its origin",
                    ));
                }
            }
        }
    }
}

impl SyncTaskContext<'_> {
    /// Destroys a snapshot that has no holds and no clones.
    pub(crate) fn destroy_snapshot(&self, id: ObjectId, name: &str) -> Result<(), PoolError> {
        // Readers of its files must see this before its blocks can be used again.
        let Txg(now) = self.ctx.txg();
        (self.datasets.last_destroyed).fetch_max(now, Ordering::AcqRel);
        let gone = self.dataset(id)?;
        let directory = gone.directory;
        let next_id = required(gone.next_snapshot, "not a snapshot")?;
        let deadlist = required(gone.deadlist, "a snapshot without a deadlist")?;
        let next_deadlist = self.dataset(next_id)?.deadlist;
        let next_deadlist = required(next_deadlist, "a dataset without a deadlist")?;
        let next_is_head = !self.dataset(next_id)?.is_snapshot();
        let origin_txg = gone.previous_snapshot_txg;

        let key_stays = self.bookmarks_lose_snapshot(&gone, next_deadlist)?;
        self.drop_features(id)?;
        self.unlink_from_previous(id, &gone, next_id, next_deadlist)?;
        let mut next = self.dataset(next_id)?;
        next.previous_snapshot = gone.previous_snapshot;
        next.previous_snapshot_txg = gone.previous_snapshot_txg;
        self.put_dataset(next_id, &next)?;

        // Free the blocks that only this snapshot references. The rest of its deadlist moves to its
        // successor.
        if self.is_old_deadlist(next_deadlist)? {
            self.settle_old_deadlists(&gone, next_id)?;
        } else {
            self.settle_deadlists(directory, (deadlist, next_deadlist), origin_txg)?;
        }

        if next_is_head {
            self.recount_head_unique(next_id)?;
        } else {
            let after = required(next.next_snapshot, "a snapshot without a successor")?;
            let after = self.dataset(after)?.deadlist;
            let after = required(after, "a dataset without a deadlist")?;
            let shared = self.dead_space_between(after, origin_txg, Some(gone.creation_txg))?;
            let mut next = self.dataset(next_id)?;
            next.unique_bytes =
                changed(next.unique_bytes, shared.used, "unique bytes").during(WHAT)?;
            self.put_dataset(next_id, &next)?;
        }
        if !key_stays {
            self.remove_key_of_clones(directory, gone.creation_txg)?;
            if !next_is_head {
                let head = self.directory(directory)?.head_dataset;
                let head = self.dataset(required(head, "a snapshot without a head")?)?;
                let deadlist = required(head.deadlist, "a head without a deadlist")?;
                self.remove_deadlist_key(deadlist, gone.creation_txg)?;
            }
        }
        self.unname_snapshot(directory, name)?;
        self.forget_boot_dataset(id)?;
        self.settle_remapped(id, next_id, origin_txg)?;
        let event = ScanEvent::SnapshotDestroyed { id, next: next_id };
        self.ctx.scan_event(event)?;
        for table in [gone.next_clones, gone.properties, gone.user_references] {
            self.free_if_any(table)?;
        }
        self.free_zapified(id)
    }

    /// Queues the blocks for freeing that only a snapshot has, and moves the rest of its deadlist to that of
    /// the next dataset.
    fn settle_deadlists(
        &self,
        directory: ObjectId,
        (deadlist, next_deadlist): (ObjectId, ObjectId),
        origin_txg: Txg,
    ) -> Result<(), PoolError> {
        let free_list = self.ctx.directory_object(FREE_LIST)?.ok_or_else(|| {
            contradiction("object directory", "no list of what waits to be freed")
        })?;
        let freed = self.move_dead_from(next_deadlist, origin_txg, free_list)?;
        self.charge_space(directory, Use::Snapshots, -freed)?;
        let free = self.special_directory(keys::FREE_DIRECTORY)?;
        self.charge_space(free, Use::Head, freed)?;
        self.merge_deadlist(next_deadlist, deadlist)
    }

    /// Makes the next dataset the successor of the previous snapshot, and recomputes the latter's unique
    /// bytes.
    fn unlink_from_previous(
        &self,
        id: ObjectId,
        gone: &DslDatasetPhys,
        next: ObjectId,
        next_deadlist: ObjectId,
    ) -> Result<(), PoolError> {
        let Some(previous) = gone.previous_snapshot else {
            return Ok(());
        };
        let mut before = self.dataset(previous)?;
        if before.next_snapshot == Some(id) {
            before.next_snapshot = Some(next);
            let shared = self.dead_space_between(
                next_deadlist,
                before.previous_snapshot_txg,
                Some(gone.previous_snapshot_txg),
            )?;
            before.unique_bytes =
                changed(before.unique_bytes, shared.used, "unique bytes").during(WHAT)?;
            self.put_dataset(previous, &before)
        } else if !self.version().has_origin() {
            Ok(())
        } else if let Some(clones) = before.next_clones {
            self.set_replace(clones, id, next)
        } else {
            Err(contradiction(WHAT, "the snapshot before does not know it"))
        }
    }

    /// Recomputes a head's unique bytes: what it references minus what it shares with the previous
    /// snapshot. An increase reduces the unused part of its refreservation.
    pub(crate) fn recount_head_unique(&self, head: ObjectId) -> Result<(), PoolError> {
        let mut phys = self.dataset(head)?;
        let deadlist = required(phys.deadlist, "a head without a deadlist")?;
        let before = match phys.previous_snapshot {
            Some(previous) => signed(self.dataset(previous)?.referenced_bytes),
            None => 0,
        };
        let shared = before.saturating_sub(self.deadlist_space(deadlist)?.used);
        let old = phys.unique_bytes;
        if self.version().has_exact_unique_bytes() {
            phys.flags |= DslDatasetFlags::UNIQUE_ACCURATE;
        }
        phys.unique_bytes = changed(
            phys.referenced_bytes,
            shared.saturating_neg(),
            "a head's unique bytes below 0",
        )
        .during(WHAT)?;
        let new = phys.unique_bytes;
        self.put_dataset(head, &phys)?;
        let reserved = self.ref_reservation(phys.directory)?;
        let unused = |unique: u64| signed(reserved.saturating_sub(unique));
        let change = unused(new).saturating_sub(unused(old));
        self.charge(phys.directory, &[(Use::RefReserved, change)], 0, 0)
    }

    /// Removes a key from the deadlists of the heads of all clones below a directory that descend from
    /// snapshots younger than `key`.
    pub(crate) fn remove_key_of_clones(
        &self,
        directory: ObjectId,
        key: Txg,
    ) -> Result<(), PoolError> {
        let mut open = vec![directory];
        let mut seen = std::collections::BTreeSet::new();
        while let Some(at) = open.pop() {
            if !seen.insert(at) {
                return Err(contradiction(WHAT, "clones descend from themselves"));
            }
            let Some(clones) = self.directory(at)?.clones else {
                continue;
            };
            for clone in self.set_members(clones)? {
                let head = self.dataset(clone)?;
                let below = self.directory(head.directory)?;
                let origin = required(below.origin, "a clone without an origin")?;
                if self.dataset(origin)?.creation_txg <= key {
                    continue;
                }
                if let Some(deadlist) = head.deadlist
                    && !self.is_old_deadlist(deadlist)?
                {
                    self.remove_deadlist_key(deadlist, key)?;
                }
                open.push(head.directory);
            }
        }
        Ok(())
    }

    /// Removes a snapshot's name from its head's table.
    fn unname_snapshot(&self, directory: ObjectId, name: &str) -> Result<(), PoolError> {
        let head = self.directory(directory)?.head_dataset;
        let head = self.dataset(required(head, "a snapshot without a head")?)?;
        let names = required(head.snapshot_names, "a head without a table of snapshots")?;
        if !self.remove(names, name)? {
            return Err(contradiction(WHAT, "its head does not name it"));
        }
        self.count_up(directory, keys::SNAPSHOT_COUNT, -1)?;
        self.snapshots_changed(directory)
    }

    /// Clears the pool property `bootfs` if it names this dataset.
    pub(crate) fn forget_boot_dataset(&self, id: ObjectId) -> Result<(), PoolError> {
        if let Some(properties) = self.ctx.directory_object("pool_props")?
            && self.lookup(properties, "bootfs")? == Some(id.0)
        {
            self.remove(properties, "bootfs")?;
        }
        Ok(())
    }

    /// Destroys a snapshot marked for deferred destruction, once its last hold and clone are gone. While a later txg
    /// clones blocks of it, it stays.
    pub(crate) fn destroy_if_deferred(&self, snapshot: ObjectId) -> Result<(), PoolError> {
        let phys = self.dataset(snapshot)?;
        if phys.flags.contains(DslDatasetFlags::DEFER_DESTROY)
            && phys.children_count <= 1
            && self.hold_count(&phys)? == 0
            && self.datasets.lending.close(snapshot, self.txg())
        {
            let full = self.dataset_name(snapshot)?;
            self.history(snapshot, &full, "destroy", " ")?;
            let name = full.split_once('@').map_or("", |(_, name)| name);
            self.destroy_snapshot(snapshot, name)?;
        }
        Ok(())
    }
}

/// The entry of the object directory that names the list of blocks waiting to be freed.
pub(crate) const FREE_LIST: &str = "free_bpobj";
