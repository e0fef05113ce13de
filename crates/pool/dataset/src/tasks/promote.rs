//! Promotes clones: swaps the roles of a clone and its origin.
//!
//! Page `docs/format/dsl-dataset.md`, "How datasets change".

use crate::heads::space::{Use, signed};
use crate::mos::{MosView, contradiction, required};
use crate::tasks::context::SyncTaskContext;
use crate::tasks::directories::Head;
use crate::{Creator, DatasetError, Refusal};
use millpond_ondisk::dsl::keys;
use millpond_ondisk::{DslDatasetFlags, ObjectId, Txg};
use millpond_pool::SpaceChange;
use millpond_pool::{PoolError, ScanEvent};

const WHAT: &str = "promoting a clone";

/// A validated promotion; nothing has changed yet.
pub(crate) struct Promotion {
    clone: Head,
    origin: ObjectId,
    origin_head: ObjectId,
    origin_directory: ObjectId,
    /// Whether the clone becomes the encryption root in place of its origin.
    takes_root: bool,
    /// The origin and the older snapshots of its dataset, newest first, with names.
    shared: Vec<(String, ObjectId)>,
    /// The space that moves: used, compressed, uncompressed.
    moved: SpaceChange,
    /// The number of snapshots that move.
    counted: i64,
}

impl MosView<'_> {
    /// The datasets from `from` back to the one after `end`, newest first.
    pub(crate) fn chain(
        &self,
        from: ObjectId,
        end: Option<ObjectId>,
    ) -> Result<Vec<ObjectId>, PoolError> {
        let mut chain = vec![];
        let mut at = Some(from);
        let mut last = Txg(u64::MAX);
        while let Some(id) = at
            && at != end
        {
            let phys = self.dataset(id)?;
            chain.push(id);
            if phys.previous_snapshot.is_some() && phys.previous_snapshot_txg >= last {
                return Err(contradiction(WHAT, "snapshots do not become older"));
            }
            last = phys.previous_snapshot_txg;
            at = phys.previous_snapshot;
        }
        Ok(chain)
    }
}

impl SyncTaskContext<'_> {
    /// Promotes a clone that passed [`SyncTaskContext::check_promote`], and notes it.
    pub(crate) fn apply_promotion(&self, name: &str, plan: &Promotion) -> Result<(), PoolError> {
        self.promote(plan)?;
        let head = self.find_directory(name)?;
        let head = head.map_or(Ok(None), |id| self.directory(id).map(|d| d.head_dataset))?;
        let head = head.ok_or_else(|| contradiction("promotion", "the clone is gone"))?;
        self.history(head, name, "promote", " ")?;
        self.datasets.refresh(self, self.root_directory()?)
    }

    pub(crate) fn check_promote(
        &self,
        name: &str,
        creator: Option<&Creator>,
    ) -> Result<Promotion, DatasetError> {
        let refused = |why| Refusal::error(name, why);
        let clone = self.find_head(name)?;
        let phys = self.dataset(clone.dataset)?;
        if phys.flags.contains(DslDatasetFlags::NO_PROMOTE) {
            return Err(refused(Refusal::NotPermitted));
        }
        let empty = self.empty_origin()?;
        let origin = self.directory(clone.directory)?.origin;
        let Some(origin) = origin.filter(|origin| Some(*origin) != empty) else {
            return Err(refused(Refusal::NotAClone));
        };
        let origin_phys = self.dataset(origin)?;
        let origin_directory = origin_phys.directory;
        let above = self.directory(origin_directory)?;
        let origin_head = required(above.head_dataset, "an origin without a head")?;
        let old_origin = above.origin;

        let head = self.dataset(origin_head)?;
        let names = self.snapshot_entries(&head)?;
        let mut shared = vec![];
        let mut moved = SpaceChange::default();
        let mut counted = 0;
        for id in self.chain(origin, old_origin)? {
            let entry = names.iter().find(|(_, named)| *named == id);
            let (snapshot, _) =
                entry.ok_or_else(|| contradiction(WHAT, "a snapshot without a name"))?;
            if self.snapshot_entry(&phys, snapshot)?.is_some() {
                return Err(refused(Refusal::SnapshotExists(snapshot.clone())));
            }
            let shared_phys = self.dataset(id)?;
            if shared_phys.previous_snapshot.is_some() {
                let deadlist = required(shared_phys.deadlist, "no deadlist")?;
                moved += self.deadlist_space(deadlist)?;
            }
            counted += 1;
            shared.push((snapshot.clone(), id));
        }
        moved += referenced(&origin_phys);
        if let Some(old_origin) = old_origin {
            moved -= referenced(&self.dataset(old_origin)?);
        }
        for (bookmark, mark) in self.bookmarks(origin_head)? {
            if mark.creation_txg <= origin_phys.creation_txg
                && self.bookmark(clone.dataset, &bookmark)?.is_some()
            {
                return Err(refused(Refusal::BookmarkExists(bookmark)));
            }
        }
        let takes_root = self.check_promote_key(name, clone.directory, origin_directory)?;
        self.check_transfer(origin_directory, clone.directory, moved.used, name)?;
        let unchanged = self.lineage(origin_directory)?;
        let counts = (keys::SNAPSHOT_COUNT, "snapshot_limit");
        let more = u64::try_from(counted).unwrap_or(0);
        self.check_moved_limits((name, creator), (clone.directory, &unchanged), counts, more)?;
        Ok(Promotion {
            clone,
            origin,
            origin_head,
            origin_directory,
            takes_root,
            shared,
            moved,
            counted,
        })
    }

    pub(crate) fn promote(&self, plan: &Promotion) -> Result<(), PoolError> {
        let (clone, clone_directory) = (plan.clone.dataset, plan.clone.directory);
        let (origin, origin_directory) = (plan.origin, plan.origin_directory);
        if plan.takes_root {
            self.promote_key(clone_directory, origin_directory)?;
        }
        let oldest = self.oldest_after(clone, origin)?;
        let origin_phys = self.dataset(origin)?;
        let old_origin = self.directory(origin_directory)?.origin;
        let old_origin_txg = match old_origin {
            Some(old) => self.dataset(old)?.creation_txg,
            None => Txg(0),
        };

        // The origin continues in the clone's chain; the dataset that followed it becomes a clone.
        let old_next = required(origin_phys.next_snapshot, "an origin without a successor")?;
        self.edit_dataset(origin, |phys| phys.next_snapshot = Some(oldest))?;
        if self.version().has_origin() {
            let clones = required(origin_phys.next_clones, "an origin without clones")?;
            self.set_replace(clones, oldest, old_next)?;
        }
        self.edit_directory(clone_directory, |phys| phys.origin = old_origin)?;
        self.edit_directory(origin_directory, |phys| phys.origin = Some(origin))?;
        self.remove_clone(origin_directory, clone)?;
        if let Some(old_origin) = old_origin {
            let above = self.dataset(old_origin)?.directory;
            self.remove_clone(above, plan.origin_head)?;
            self.add_clone(above, clone)?;
        }
        self.add_clone(clone_directory, plan.origin_head)?;
        self.move_bookmarks(plan)?;
        self.move_snapshots(plan)?;
        self.recount_bookmarks_at(clone, origin)?;

        let unique = {
            let deadlist = self.dataset(oldest)?.deadlist;
            let deadlist = required(deadlist, "a dataset without a deadlist")?;
            self.dead_space_between(deadlist, origin_phys.previous_snapshot_txg, None)?
        };
        self.edit_dataset(origin, |phys| {
            phys.unique_bytes = unique.used.try_into().unwrap_or(0);
        })?;

        self.move_space(plan, old_origin, old_origin_txg)?;
        for directory in [clone_directory, origin_directory] {
            self.drop_livelist(directory)?;
        }
        self.snapshots_changed(clone_directory)?;
        self.snapshots_changed(origin_directory)
    }

    fn move_bookmarks(&self, plan: &Promotion) -> Result<(), PoolError> {
        let limit = self.dataset(plan.origin)?.creation_txg;
        for (name, mark) in self.bookmarks(plan.origin_head)? {
            if mark.creation_txg <= limit {
                self.take_bookmark(plan.origin_head, &name)?;
                self.add_bookmark(plan.clone.dataset, &name, &mark)?;
            }
        }
        Ok(())
    }

    fn move_snapshots(&self, plan: &Promotion) -> Result<(), PoolError> {
        let from = self.dataset(plan.origin_head)?.snapshot_names;
        let from = required(from, "a head without a table of snapshots")?;
        let to = self.dataset(plan.clone.dataset)?.snapshot_names;
        let to = required(to, "a head without a table of snapshots")?;
        for (name, id) in &plan.shared {
            self.remove(from, name)?;
            self.update(to, name, id.0)?;
            self.edit_dataset(*id, |phys| phys.directory = plan.clone.directory)?;
            // Heads of other clones of this snapshot are now clones of the promoted directory's snapshot.
            let Some(clones) = self.dataset(*id)?.next_clones else {
                continue;
            };
            for member in self.set_members(clones)? {
                let below = self.dataset(member)?.directory;
                let head = self.directory(below)?.head_dataset;
                let head = required(head, "a clone without a head")?;
                if head != plan.origin_head && below != plan.clone.directory {
                    self.remove_clone(plan.origin_directory, head)?;
                    self.add_clone(plan.clone.directory, head)?;
                }
            }
        }
        self.count_up(plan.origin_directory, keys::SNAPSHOT_COUNT, -plan.counted)?;
        self.count_up(plan.clone.directory, keys::SNAPSHOT_COUNT, plan.counted)
    }

    fn move_space(
        &self,
        plan: &Promotion,
        old_origin: Option<ObjectId>,
        old_origin_txg: Txg,
    ) -> Result<(), PoolError> {
        let held = |chain: Vec<ObjectId>, after: Txg| -> Result<i64, PoolError> {
            let mut sum = 0i64;
            for id in chain {
                let deadlist = self.dataset(id)?.deadlist;
                let deadlist = required(deadlist, "a dataset without a deadlist")?;
                let space = self.dead_space_between(deadlist, after, None)?;
                sum = sum.saturating_add(space.used);
            }
            Ok(sum)
        };
        // The clone's chain now includes the shared snapshots back to the old origin.
        let of_clone = held(self.chain(plan.clone.dataset, old_origin)?, old_origin_txg)?;
        let origin_txg = self.dataset(plan.origin)?.creation_txg;
        let of_other = held(self.chain(plan.origin_head, Some(plan.origin))?, origin_txg)?;
        let snapshots = |directory| -> Result<i64, PoolError> {
            Ok(signed(
                self.directory(directory)?.used_breakdown.snapshots_bytes,
            ))
        };
        let c = of_clone.saturating_sub(snapshots(plan.clone.directory)?);
        let o = of_other.saturating_sub(snapshots(plan.origin_directory)?);
        let moved = plan.moved;
        self.charge(
            plan.clone.directory,
            &[
                (Use::Snapshots, c),
                (Use::Head, moved.used.saturating_sub(c)),
            ],
            moved.compressed,
            moved.uncompressed,
        )?;
        self.charge(
            plan.origin_directory,
            &[
                (Use::Snapshots, o),
                (Use::Head, moved.used.saturating_add(o).saturating_neg()),
            ],
            moved.compressed.saturating_neg(),
            moved.uncompressed.saturating_neg(),
        )
    }

    /// Swaps the contents of a clone and the head of its parent directory. Both have the same previous
    /// snapshot.
    pub(crate) fn swap_with_clone(&self, clone: ObjectId, head: ObjectId) -> Result<(), PoolError> {
        let mut one = self.dataset(clone)?;
        let mut other = self.dataset(head)?;
        // Without `$ORIGIN`, a full stream may have been received beside a head without snapshots.
        let origin = one.previous_snapshot;
        if other.previous_snapshot != origin {
            return Err(contradiction(
                WHAT,
                "clone and head have different snapshots before them",
            ));
        }
        self.swap_features(clone, head)?;
        self.swap_remapped(clone, head)?;
        let deadlist_of = |id| required(id, "a dataset without a deadlist");
        let (clone_dead, head_dead) = (deadlist_of(one.deadlist)?, deadlist_of(other.deadlist)?);
        if let Some(origin) = origin {
            let begin = self.dataset(origin)?.previous_snapshot_txg;
            let unique = self.dead_space_between(clone_dead, begin, None)?;
            self.edit_dataset(origin, |phys| {
                phys.unique_bytes = unique.used.try_into().unwrap_or(0);
            })?;
        }

        let d = referenced(&one) + self.deadlist_space(clone_dead)?
            - referenced(&other)
            - self.deadlist_space(head_dead)?;
        let above = self.directory(other.directory)?;
        let above_origin_txg = match above.origin {
            Some(id) => self.dataset(id)?.creation_txg,
            None => Txg(0),
        };
        let held = self.dead_space_between(clone_dead, above_origin_txg, None)?
            - self.dead_space_between(head_dead, above_origin_txg, None)?;
        self.charge_space(other.directory, Use::Head, d)?;
        self.charge_space(one.directory, Use::Head, -d)?;
        let moves = [
            (Use::Head, held.used.saturating_neg()),
            (Use::Snapshots, held.used),
        ];
        self.charge(other.directory, &moves, 0, 0)?;
        let reserved = self.ref_reservation(other.directory)?;
        let change = signed(reserved.min(other.unique_bytes))
            .saturating_sub(signed(reserved.min(one.unique_bytes)));
        self.charge(other.directory, &[(Use::RefReserved, change)], 0, 0)?;

        std::mem::swap(&mut one.block_pointer, &mut other.block_pointer);
        std::mem::swap(&mut one.referenced_bytes, &mut other.referenced_bytes);
        std::mem::swap(&mut one.compressed_bytes, &mut other.compressed_bytes);
        std::mem::swap(&mut one.uncompressed_bytes, &mut other.uncompressed_bytes);
        std::mem::swap(&mut one.unique_bytes, &mut other.unique_bytes);
        std::mem::swap(&mut one.deadlist, &mut other.deadlist);
        self.put_dataset(clone, &one)?;
        self.put_dataset(head, &other)?;
        let event = ScanEvent::Swapped {
            one: clone,
            other: head,
        };
        self.ctx.scan_event(event)?;
        if let Some(origin) = origin {
            self.recount_bookmarks_at(head, origin)?;
        }
        for directory in [one.directory, other.directory] {
            self.drop_livelist(directory)?;
        }
        Ok(())
    }
}

fn referenced(phys: &millpond_ondisk::DslDatasetPhys) -> SpaceChange {
    crate::tasks::deadlist::stored(
        phys.referenced_bytes,
        phys.compressed_bytes,
        phys.uncompressed_bytes,
    )
}
