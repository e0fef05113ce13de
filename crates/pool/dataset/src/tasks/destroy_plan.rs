//! Checks a list of datasets before the first of them is destroyed, so that none is if one cannot be.

use crate::datasets::Datasets;
use crate::tasks::api::CHANGED_HEADS_MAX;
use crate::tasks::context::SyncTaskContext;
use crate::tasks::directories::Head;
use crate::{DatasetError, Refusal};
use millpond_ondisk::{ObjectId, dsl::keys::RECEIVE_DATASET};
use std::collections::{BTreeMap, BTreeSet};

/// What is gone when the next dataset of a list is destroyed.
#[derive(Default)]
struct Gone {
    directories: BTreeSet<ObjectId>,
    snapshots: BTreeSet<ObjectId>,
    /// How many clones of a snapshot are gone.
    clones: BTreeMap<ObjectId, u64>,
}

impl Datasets {
    /// Destroys file systems, volumes and snapshots in the order of `names`. Dependents must come first: descendants,
    /// snapshots, and clones of those. With `before_rollback`, it must also be possible to roll back to this snapshot
    /// afterwards.
    ///
    /// All are checked before the first of them is destroyed. Up to 512 go in one txg.
    ///
    /// # Errors
    /// As for a single one, for the first that is refused; then none is destroyed. If there are more than 512 and one of them
    /// comes into use meanwhile, those of earlier txgs are.
    pub fn destroy_in_order(
        &self,
        names: &[&str],
        before_rollback: Option<&str>,
    ) -> Result<(), DatasetError> {
        let (mut now, mut later) = names.split_at(names.len().min(CHANGED_HEADS_MAX));
        let mut is_checked = false;
        let destroying = self.destroying.begin(names.len());
        loop {
            // Both steps are one: heads are not opened in between. `Ok` for a refusal, so that the txg does not fail.
            let refused = self.task(
                |_| Ok(()),
                |s, ()| {
                    if !is_checked
                        && let Err(refusal) = s.check_destroy_order(names, before_rollback)
                    {
                        return Ok(Some(refusal));
                    }
                    for name in now {
                        match s.prepare_destroy(name) {
                            Ok(prepared) => s.destroy_prepared(prepared)?,
                            // It was marked for destruction, and went with its last clone.
                            Err(DatasetError::NotFound { .. }) if name.contains('@') => {}
                            Err(refusal) => return Ok(Some(refusal)),
                        }
                        destroying.one();
                    }
                    Ok(None)
                },
            )?;
            if let Some(refusal) = refused {
                return Err(refusal);
            }
            if later.is_empty() {
                return Ok(());
            }
            is_checked = true;
            (now, later) = later.split_at(later.len().min(CHANGED_HEADS_MAX));
        }
    }
}

impl SyncTaskContext<'_> {
    /// Checks that datasets can be destroyed in this order, and that their pool can then be rolled back to a snapshot. Keeps
    /// the snapshots from being used until the txg is committed, unless one of the datasets is refused.
    ///
    /// The caller keeps heads from being opened.
    pub(crate) fn check_destroy_order(
        &self,
        names: &[&str],
        before_rollback: Option<&str>,
    ) -> Result<(), DatasetError> {
        let mut gone = Gone::default();
        let checked = (names.iter())
            .try_for_each(|name| self.check_next(name, &mut gone))
            .and_then(|()| match before_rollback {
                Some(snapshot) => self.check_later_rollback(snapshot, &gone),
                None => Ok(()),
            });
        if checked.is_err() {
            for snapshot in &gone.snapshots {
                self.datasets.lending.reopen(*snapshot);
            }
        }
        checked
    }

    fn check_next(&self, name: &str, gone: &mut Gone) -> Result<(), DatasetError> {
        if name.contains('@') {
            return self.check_next_snapshot(name, gone);
        }
        let head = self.find_head(name)?;
        let hidden = self.half_received_below(&head)?;
        self.check_next_head(&head, gone)?;
        if let Some(hidden) = hidden {
            self.check_next_head(&hidden, gone)?;
        }
        Ok(())
    }

    fn check_next_snapshot(&self, name: &str, gone: &mut Gone) -> Result<(), DatasetError> {
        let refused = |why| Err(Refusal::error(name, why));
        let snapshot = self.find_snapshot(name)?;
        let phys = self.dataset(snapshot.dataset)?;
        let clones_gone = gone.clones.get(&snapshot.dataset).copied().unwrap_or(0);
        if phys.children_count.saturating_sub(clones_gone) > 1 {
            return refused(Refusal::HasClones);
        }
        if self.hold_count(&phys)? > 0 {
            return refused(Refusal::IsHeld);
        }
        if !self.datasets.lending.close(snapshot.dataset, self.txg()) {
            return refused(Refusal::Busy);
        }
        gone.snapshots.insert(snapshot.dataset);
        Ok(())
    }

    fn check_next_head(&self, head: &Head, gone: &mut Gone) -> Result<(), DatasetError> {
        let refused = |why| Err(Refusal::error(&head.name, why));
        let directory = self.directory(head.directory)?;
        if directory.parent.is_none() {
            return refused(Refusal::IsRoot);
        }
        let children = self.children(head.directory)?;
        let stays = |(name, id): &(String, ObjectId)| {
            name != RECEIVE_DATASET && !gone.directories.contains(id)
        };
        if children.iter().any(stays) {
            return refused(Refusal::HasChildren);
        }
        let phys = self.dataset(head.dataset)?;
        let snapshots = self.snapshot_entries(&phys)?;
        if (snapshots.iter()).any(|(_, id)| !gone.snapshots.contains(id)) {
            return refused(Refusal::HasSnapshots);
        }
        self.check_root_unused(head, &gone.directories)?;
        self.check_freed_at_once(head, &phys)?;
        if !self.datasets.is_closable(head.dataset, self.txg()) {
            return refused(Refusal::Busy);
        }
        gone.directories.insert(head.directory);
        if let Some(origin) = directory.origin {
            let count = gone.clones.entry(origin).or_default();
            *count = count.saturating_add(1);
        }
        Ok(())
    }

    /// Checks a rollback that follows when what is newer than the snapshot is gone.
    fn check_later_rollback(&self, name: &str, gone: &Gone) -> Result<(), DatasetError> {
        let target = self.find_snapshot(name)?;
        let head = self.dataset(target.head.dataset)?;
        for (_, snapshot) in self.snapshot_entries(&head)? {
            let is_newer =
                self.dataset(snapshot)?.creation_txg > self.dataset(target.dataset)?.creation_txg;
            if is_newer && !gone.snapshots.contains(&snapshot) {
                return Err(Refusal::error(name, Refusal::NotTheLatest));
            }
        }
        self.check_room_for_rollback(&target)?;
        self.check_closable(name, target.head.dataset)
    }
}
