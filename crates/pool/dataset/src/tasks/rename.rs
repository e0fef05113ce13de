//! Renames datasets and snapshots.

use crate::heads::space::{Use, signed};
use crate::mos::{contradiction, required};
use crate::tasks::checks::split_snapshot;
use crate::tasks::context::SyncTaskContext;
use crate::tasks::directories::{Head, Snapshot};
use crate::{Creator, DatasetError, DatasetName, NAME_BYTES_MAX, NameTail, Refusal};
use millpond_ondisk::ObjectId;
use millpond_ondisk::dsl::keys;
use millpond_pool::PoolError;

/// A validated rename of a head.
pub(crate) struct HeadRename {
    pub(crate) head: Head,
    old_parent: ObjectId,
    old_component: String,
    new_parent: ObjectId,
    new_component: String,
}

impl SyncTaskContext<'_> {
    pub(crate) fn check_rename_head(
        &self,
        from: &str,
        to: &str,
        user: Option<&Creator>,
    ) -> Result<HeadRename, DatasetError> {
        let refused = |why| Err(Refusal::error(to, why));
        let head = self.find_head(from)?;
        let Some(old_parent) = self.directory(head.directory)?.parent else {
            return Err(Refusal::error(from, Refusal::IsRoot));
        };
        let target = DatasetName::parse(to)?;
        if target.pool() != self.pool.name() {
            return refused(Refusal::OtherPool);
        }
        let (new_parent, new_component) = self.check_free_name(to)?;
        if self.is_within(new_parent, head.directory)? {
            return refused(Refusal::WithinItself);
        }
        let new_parent_phys = self.directory(new_parent)?;
        if let Some(dataset) = new_parent_phys.head_dataset {
            let above = Head {
                name: to.rsplit_once('/').map_or("", |(path, _)| path).to_owned(),
                directory: new_parent,
                dataset,
            };
            if self.kind_of(&above)? == millpond_ondisk::ObjectSetKind::Volume {
                return refused(Refusal::ParentIsVolume);
            }
        }
        // The names of descendants grow by the same length and depth.
        let depth_now = from.matches('/').count();
        let depth_then = to.matches('/').count();
        let nesting_max = self.nesting_max();
        for (name, directory) in self.directories_below(from, head.directory)? {
            let depth = name.matches('/').count() - depth_now + depth_then;
            // A name that is deeper, as it was made with another limit, may get shorter.
            if depth >= nesting_max && depth_then > depth_now {
                return refused(Refusal::TooDeep);
            }
            let mut longest = name.len() - from.len() + to.len();
            if let Some(dataset) = self.directory(directory)?.head_dataset {
                let entries = self.snapshot_entries(&self.dataset(dataset)?)?;
                let tail = entries.iter().map(|(name, _)| name.len() + 1).max();
                longest += tail.unwrap_or(0);
            }
            if longest > NAME_BYTES_MAX {
                return refused(Refusal::NameTooLong);
            }
        }
        if new_parent != old_parent {
            self.check_rename_key(from, head.directory, new_parent)?;
            let phys = self.directory(head.directory)?;
            let bytes = signed(phys.used_bytes.max(phys.reserved_bytes));
            self.check_transfer(old_parent, new_parent, bytes, to)?;
            self.check_moved_counts((to, user), head.directory, old_parent, new_parent)?;
        }
        let old_component = from.rsplit('/').next().unwrap_or(from).to_owned();
        Ok(HeadRename {
            head,
            old_parent,
            old_component,
            new_parent,
            new_component,
        })
    }

    fn check_moved_counts(
        &self,
        name: (&str, Option<&Creator>),
        directory: ObjectId,
        old_parent: ObjectId,
        new_parent: ObjectId,
    ) -> Result<(), DatasetError> {
        if self.is_within(old_parent, new_parent)? {
            return Ok(());
        }
        let unchanged = self.lineage(old_parent)?;
        for (counts, own) in [
            ((keys::FILESYSTEM_COUNT, "filesystem_limit"), 1),
            ((keys::SNAPSHOT_COUNT, "snapshot_limit"), 0),
        ] {
            let count = self.extension_number(directory, counts.0)?.unwrap_or(0) + own;
            self.check_moved_limits(name, (new_parent, &unchanged), counts, count)?;
        }
        Ok(())
    }

    pub(crate) fn rename_head(&self, plan: &HeadRename) -> Result<(), PoolError> {
        let directory = plan.head.directory;
        let table_of = |id| -> Result<ObjectId, PoolError> {
            let table = self.directory(id)?.child_directories;
            required(table, "a directory without a table")
        };
        let old_table = table_of(plan.old_parent)?;
        if !self.remove(old_table, &plan.old_component)? {
            return Err(contradiction("rename", "the old name is gone"));
        }
        if plan.new_parent != plan.old_parent {
            let mut phys = self.directory(directory)?;
            // Move the counts while they are still reachable from the old parents.
            for (key, own) in [(keys::FILESYSTEM_COUNT, 1), (keys::SNAPSHOT_COUNT, 0)] {
                let count = self.extension_number(directory, key)?;
                if let Some(count) = count {
                    let count = signed(count).saturating_add(own);
                    self.count_up(plan.old_parent, key, count.saturating_neg())?;
                    self.count_up(plan.new_parent, key, count)?;
                } else if own == 1 {
                    // This directory has no counts, so its ancestors' counts do not include it.
                    self.count_up(plan.old_parent, key, 0)?;
                }
            }
            let unused = signed(phys.reserved_bytes.saturating_sub(phys.used_bytes));
            let used = signed(phys.used_bytes);
            let (compressed, uncompressed) = (
                signed(phys.compressed_bytes),
                signed(phys.uncompressed_bytes),
            );
            let leave = [
                (Use::Children, used.saturating_neg()),
                (Use::ChildrenReserved, unused.saturating_neg()),
            ];
            self.charge(
                plan.old_parent,
                &leave,
                compressed.saturating_neg(),
                uncompressed.saturating_neg(),
            )?;
            let join = [(Use::Children, used), (Use::ChildrenReserved, unused)];
            self.charge(plan.new_parent, &join, compressed, uncompressed)?;
            phys.parent = Some(plan.new_parent);
            self.put_directory(directory, &phys)?;
        }
        self.update(table_of(plan.new_parent)?, &plan.new_component, directory.0)
    }

    /// Validates snapshots to rename. Snapshots in `names` after the first may be missing.
    pub(crate) fn check_rename_snapshots(
        &self,
        names: &[&str],
        to: &str,
    ) -> Result<Vec<(Snapshot, String)>, DatasetError> {
        let new = match to.strip_prefix('@') {
            Some(new) => new.to_owned(),
            None => {
                let (path, new) = split_snapshot(to)?;
                let first = names.first().copied().unwrap_or("");
                if split_snapshot(first)?.0 != path {
                    return Err(Refusal::error(to, Refusal::OtherDataset));
                }
                new.to_owned()
            }
        };
        let mut plan = vec![];
        for (at, name) in names.iter().enumerate() {
            let snapshot = match self.find_snapshot(name) {
                Err(DatasetError::NotFound { .. }) if at > 0 => continue,
                found => found?,
            };
            let target = format!("{}@{new}", snapshot.head.name);
            if target.contains(['%', '$']) {
                return Err(DatasetError::InvalidName {
                    name: target,
                    reason: "invalid character in name",
                });
            }
            if !matches!(DatasetName::parse(&target)?.tail, NameTail::Snapshot(_)) {
                return Err(Refusal::error(
                    &target,
                    Refusal::Invalid("not a snapshot's name"),
                ));
            }
            let head = self.dataset(snapshot.head.dataset)?;
            if self.snapshot_entry(&head, &new)?.is_some() {
                return Err(Refusal::error(&target, Refusal::Exists));
            }
            plan.push((snapshot, new.clone()));
        }
        Ok(plan)
    }

    pub(crate) fn rename_snapshot(&self, snapshot: &Snapshot, new: &str) -> Result<(), PoolError> {
        let head = self.dataset(snapshot.head.dataset)?;
        let names = required(head.snapshot_names, "a head without a table of snapshots")?;
        self.history(
            snapshot.dataset,
            &snapshot.full_name(),
            "rename",
            &format!("-> @{new}"),
        )?;
        self.remove(names, &snapshot.name)?;
        self.update(names, new, snapshot.dataset.0)?;
        self.snapshots_changed(snapshot.head.directory)
    }
}
