//! Applies the effects of dataset changes to mounts: unmounts before a change, and mounts again after it.

use super::former::FormerMountPoint;
use super::settings::Settings;
use super::suspended::SuspendedMount;
use super::{Mounts, RemovedMount, is_of, is_within};
use millpond_control::{
    ChangeError, Changed, DatasetChange, MountInfo, MountProblem, Note, PoolChange, Value,
};
use millpond_env::sync::MutexGuard;
use millpond_service::{ImportedPools, Step};
use std::collections::BTreeSet;
use std::time::Duration;

/// The value of `canmount=noauto`.
const NOAUTO: u64 = 2;

/// Applies the effects of one command's changes to mounts.
pub struct Follow<'a> {
    mounts: &'a Mounts,
    pools: &'a ImportedPools,
    pool: &'a str,
    /// Whether the caller may mount and unmount: users other than the superuser may not.
    may_mount: bool,
    /// Mounts that were removed for the current change.
    taken: Vec<RemovedMount>,
    /// The mount points of file systems that are not mounted and are to be destroyed.
    unmounted: Vec<FormerMountPoint>,
    /// The mount that a rollback gives other files.
    suspended: Option<SuspendedMount>,
    /// How long it may wait for another change of mounts; `None` for as long as that takes.
    wait_max: Option<Duration>,
}

/// The effect of a change on mounts.
enum Effect<'c> {
    Nothing,
    /// The dataset and all below it must be unmounted.
    InTheWay(&'c str),
    /// These datasets must be unmounted, all or none.
    AllInTheWay(&'c [String]),
    /// The dataset and all below it must be unmounted, and are mounted again under the new name.
    Renamed(&'c str, &'c str),
    /// Mounts of the dataset and of all below it stay, under the new name. With the flag, a snapshot is renamed in all
    /// descendants too.
    Called(&'c str, &'c str, bool),
    /// The files of the dataset are replaced. Programs that use them wait.
    Replaced(&'c str),
    /// Snapshots may come to belong to another dataset. Those that are mounted by themselves are unmounted, and mounted
    /// again if they still have their name.
    SnapshotsMove,
    /// The dataset and all below it must be unmounted. Afterwards they are mounted again if their properties
    /// still ask for it, together with all datasets that inherit the mount point.
    Moved(&'c str),
    /// The new dataset may be mounted.
    New(&'c str),
    /// Changes a property by which the kernel checks access, negotiated at mount time. Of the dataset and
    /// those below it, all that take the property from there are mounted again; otherwise the change is
    /// refused. With the new value, if known.
    Judged(&'c str, &'c str, Option<&'c Value>),
    /// Open file systems of the dataset and of all below it must reload their properties. If the flag is set,
    /// those with different mount options are mounted again.
    Settings(&'c str, bool),
}

fn effect<'c>(change: &'c PoolChange, pool: &'c str) -> Effect<'c> {
    let moves = |property: &str| matches!(property, "mountpoint" | "canmount");
    // It is neither mounted nor unmounted by itself any more, so it stays as it is.
    let is_noauto = |(name, value): &(String, Value)| {
        name == "canmount" && (value.text() == Some("noauto") || value.number() == Some(NOAUTO))
    };
    let is_flag = |property: &str| matches!(property, "readonly" | "exec" | "setuid" | "devices");
    let is_judged = |property: &str| property == "acltype";
    match change {
        PoolChange::Destroy | PoolChange::Export => Effect::InTheWay(pool),
        PoolChange::Dataset(change) => match change {
            DatasetChange::CreateFileSystem { name, mount, .. }
            | DatasetChange::Clone { name, mount, .. }
                if *mount =>
            {
                Effect::New(name)
            }
            DatasetChange::Destroy { name } if !name.contains('#') => Effect::InTheWay(name),
            DatasetChange::DestroyInOrder { names, .. }
            | DatasetChange::DestroySnapshots { names, .. } => Effect::AllInTheWay(names),
            DatasetChange::Rename {
                from,
                to,
                recursively,
                mount,
            } => match *mount && !from.contains('@') {
                true => Effect::Renamed(from, to),
                false => Effect::Called(from, to, *recursively),
            },
            DatasetChange::Promote { .. } => Effect::SnapshotsMove,
            DatasetChange::Rollback { snapshot } => {
                Effect::Replaced(snapshot.split('@').next().unwrap_or(snapshot))
            }
            DatasetChange::Set {
                name,
                properties,
                mount,
            } => match *mount
                && properties
                    .iter()
                    .any(|one| moves(&one.0) && !is_noauto(one))
            {
                true => Effect::Moved(name),
                false => {
                    let mut judged = properties.iter().filter(|(name, _)| is_judged(name));
                    if let Some((property, value)) = judged.next_back() {
                        return Effect::Judged(name, property, Some(value));
                    }
                    let any = properties.iter().any(|(name, _)| is_flag(name));
                    Effect::Settings(name, any)
                }
            },
            DatasetChange::Inherit { name, property, .. } => match moves(property) {
                true => Effect::Moved(name),
                false if is_judged(property) => Effect::Judged(name, property, None),
                false => Effect::Settings(name, is_flag(property)),
            },
            _ => Effect::Nothing,
        },
        _ => Effect::Nothing,
    }
}

impl<'a> Follow<'a> {
    /// For the changes of one pool. Without `may_mount`, only what is mounted already is mounted again in its place, and
    /// what would have to be unmounted for good is refused.
    pub fn new(
        mounts: &'a Mounts,
        pools: &'a ImportedPools,
        pool: &'a str,
        may_mount: bool,
    ) -> Self {
        Self {
            mounts,
            pools,
            pool,
            may_mount,
            taken: vec![],
            unmounted: vec![],
            suspended: None,
            wait_max: None,
        }
    }

    /// For a change that a program asks for in a mounted file system: while it waits, the kernel keeps others from looking
    /// up names in the same directory. One of them may be mounting something there.
    #[must_use]
    pub fn with_limit(mut self, wait_max: Option<Duration>) -> Self {
        self.wait_max = wait_max;
        self
    }

    /// Keeps other changes of mounts away. `None` if that took too long.
    fn alone(&self) -> Option<MutexGuard<'a, ()>> {
        let mounts: &'a Mounts = self.mounts;
        match self.wait_max {
            Some(limit) => mounts.changing.try_lock_for(limit),
            None => Some(mounts.changing.lock()),
        }
    }

    /// Suspends what a rollback replaces, before the changes that precede it destroy newer snapshots and clones.
    ///
    /// # Errors
    /// [`ChangeError::Mounted`] if requests of programs do not end.
    pub fn prepare(&mut self, changes: &[PoolChange]) -> Result<(), ChangeError> {
        match changes.last().map(|last| effect(last, self.pool)) {
            Some(Effect::Replaced(dataset)) => self.suspend(dataset),
            _ => Ok(()),
        }
    }

    fn suspend(&mut self, dataset: &str) -> Result<(), ChangeError> {
        if self.suspended.is_none() {
            let suspended = self.mounts.suspend(dataset);
            self.suspended =
                suspended.map_err(|(mountpoint, why)| ChangeError::Mounted { mountpoint, why })?;
        }
        Ok(())
    }

    /// Lets programs continue that waited for a rollback which was not made.
    pub fn finish(&mut self) {
        // The change has already failed with an error, so this one is ignored.
        let _ = self.resume(false);
    }

    fn resume(&mut self, is_replaced: bool) -> Option<Note> {
        let suspended = self.suspended.take()?;
        self.mounts.resume(self.pools, suspended, is_replaced)
    }

    /// Refuses a change that unmounts something for good, or at another place.
    fn check_unmount(&self, effect: &Effect<'_>) -> Result<(), ChangeError> {
        let is_meant = |dataset: &str| match effect {
            Effect::InTheWay(root) | Effect::Renamed(root, _) | Effect::Moved(root) => {
                is_of(dataset, root)
            }
            Effect::AllInTheWay(names) => names.iter().any(|name| name == dataset),
            Effect::SnapshotsMove => self.is_own_snapshot(dataset),
            _ => false,
        };
        let mut mounted = self.mounts.list().into_iter();
        match mounted.find(|info| !self.may_mount && is_meant(&info.dataset)) {
            Some(info) => Err(ChangeError::Mounted {
                mountpoint: info.mountpoint,
                why: MountProblem::Denied,
            }),
            None => Ok(()),
        }
    }

    /// Whether it is a snapshot of the pool.
    fn is_own_snapshot(&self, dataset: &str) -> bool {
        dataset.contains('@') && is_of(dataset, self.pool)
    }

    /// The note about a new file system that only the superuser may mount.
    fn not_mounted(&self, name: &str) -> Vec<Note> {
        let all = self.mounts.read(self.pools, name, 0).unwrap_or_default();
        let would_be = all.into_iter().filter(Settings::is_automatic);
        would_be
            .map(|one| Note::NotMounted {
                dataset: one.dataset,
                mountpoint: one.mountpoint,
                why: MountProblem::Denied,
            })
            .collect()
    }

    /// Applies the effects of a step of a change.
    ///
    /// # Errors
    /// [`ChangeError::Mounted`] if a file system that must be unmounted is in use. All mounts are then
    /// restored.
    pub fn step(&mut self, step: Step<'_>, changed: &mut Changed) -> Result<(), ChangeError> {
        match step {
            Step::Before(change) => self.before(change),
            Step::Failed(_) => {
                let _ = self.reopen_leaf();
                self.finish();
                Ok(())
            }
            Step::After(change) => {
                self.after(change, changed);
                Ok(())
            }
        }
    }

    /// Unmounts what is in the way of a change.
    fn before(&mut self, change: &PoolChange) -> Result<(), ChangeError> {
        self.taken.clear();
        let effect = effect(change, self.pool);
        self.check_unmount(&effect)?;
        self.unmounted = match &effect {
            Effect::InTheWay(name) => self.mounts.unmounted_mount_points(self.pools, [*name]),
            Effect::AllInTheWay(names) => {
                let names = names.iter().map(String::as_str);
                self.mounts.unmounted_mount_points(self.pools, names)
            }
            _ => vec![],
        };
        let mut taken = vec![];
        let done = match effect {
            Effect::InTheWay(root) | Effect::Renamed(root, _) | Effect::Moved(root) => {
                self.mounts.take_away(root, false, &mut taken)
            }
            Effect::Replaced(dataset) => return self.suspend(dataset),
            Effect::Judged(root, property, value) => {
                self.mounts
                    .take_inheriting(self.pools, (root, property, value), &mut taken)
            }
            Effect::SnapshotsMove => {
                let is_meant = |info: &MountInfo| self.is_own_snapshot(&info.dataset);
                let _changing = self.mounts.changing.lock();
                (self.mounts).remove_these(&is_meant, false, &mut taken)
            }
            Effect::AllInTheWay(names) => {
                let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
                let is_meant = |info: &MountInfo| names.contains(info.dataset.as_str());
                let _changing = self.alone().ok_or(ChangeError::Busy)?;
                self.mounts.remove_these(&is_meant, false, &mut taken)
            }
            _ => return Ok(()),
        };
        self.taken = taken;
        done.map_err(|(mountpoint, why)| {
            // The change has already failed with an error, so this one is ignored.
            let _ = self.reopen_leaf();
            ChangeError::Mounted { mountpoint, why }
        })
    }

    /// Mounts again after a change, and removes the directories of mount points that are gone.
    fn after(&mut self, change: &PoolChange, changed: &mut Changed) {
        if matches!(change, PoolChange::Sync { .. }) {
            self.mounts.invalidate_usage(self.pool);
        }
        let effect = effect(change, self.pool);
        if let Effect::Renamed(from, to) = effect {
            for one in &mut self.taken {
                if let Some(rest) = one.dataset.strip_prefix(from) {
                    one.dataset = format!("{to}{rest}");
                }
            }
        }
        let removed = self.taken.iter().filter_map(FormerMountPoint::of_removed);
        let former: Vec<FormerMountPoint> = self.unmounted.drain(..).chain(removed).collect();
        let notes = match effect {
            Effect::Nothing | Effect::InTheWay(_) | Effect::AllInTheWay(_) => vec![],
            Effect::Renamed(..) => self.reopen_leaf(),
            Effect::Called(from, to, recursively) => {
                // The name has changed, so the table follows it in any case.
                let _changing = self.alone();
                self.mounts.call_otherwise(from, to, recursively);
                vec![]
            }
            Effect::Replaced(_) => self.resume(true).into_iter().collect(),
            Effect::SnapshotsMove => self.reopen_leaf(),
            Effect::Judged(root, ..) => {
                self.refresh(root);
                let mut notes = self.reopen_leaf();
                // The same request may also have changed other properties.
                notes.extend(self.mounts.remount_changed(self.pools, root));
                notes
            }
            Effect::Moved(_) if !self.may_mount => vec![],
            Effect::Moved(root) => {
                let taken = std::mem::take(&mut self.taken);
                let taken: BTreeSet<String> = taken.into_iter().map(|one| one.dataset).collect();
                let wanted = |one: &Settings| {
                    // A mount point from above came through the changed dataset.
                    let from = one.mountpoint_from.as_str();
                    taken.contains(&one.dataset)
                        || one.dataset == root
                        || from == root
                        || !is_within(from, root)
                };
                self.mounts
                    .mount_all(self.pools, root, &[], &wanted, &|_, _| ())
            }
            Effect::New(name) if !self.may_mount => self.not_mounted(name),
            Effect::New(name) => {
                self.mounts
                    .mount_all(self.pools, name, &[], &|_| true, &|_, _| ())
            }
            Effect::Settings(root, may_differ) => {
                self.refresh(root);
                self.mounts.invalidate_roots(root);
                match may_differ {
                    true => self.mounts.remount_changed(self.pools, root),
                    false => vec![],
                }
            }
        };
        changed.notes.extend(notes);
        if !former.is_empty()
            && let Some(_changing) = self.alone()
        {
            let is_exported = *change == PoolChange::Export;
            self.mounts.remove_left(self.pools, &former, is_exported);
        }
    }

    /// Follows a channel program: what it changed is known only afterwards. It can rename or move snapshots, and change
    /// properties, but destroys nothing that is mounted.
    pub fn follow_program(&self) {
        let live = self
            .pools
            .get(self.pool)
            .and_then(|pool| pool.live().cloned());
        let Some(live) = live else { return };
        self.mounts.follow_snapshots(&live, self.pool);
        self.refresh(self.pool);
        self.mounts.invalidate_roots(self.pool);
        for note in self.mounts.remount_changed(self.pools, self.pool) {
            let words = crate::words::of_note(&note);
            tracing::warn!(pool = self.pool, "after a channel program: {words}");
        }
    }

    /// Mounts the removed file systems that still exist again. Returns those that failed.
    fn reopen_leaf(&mut self) -> Vec<Note> {
        let taken = std::mem::take(&mut self.taken);
        match self.alone() {
            Some(_changing) => self.mounts.mount_removed(self.pools, &taken),
            None => vec![],
        }
    }

    fn refresh(&self, root: &str) {
        let Some(live) = self
            .pools
            .get(self.pool)
            .and_then(|pool| pool.live().cloned())
        else {
            return;
        };
        for mount in self.mounts.list() {
            if is_of(&mount.dataset, root) {
                // Opening a file system that is already open reloads its properties.
                let _ = live.file_system(&mount.dataset);
            }
        }
    }
}
