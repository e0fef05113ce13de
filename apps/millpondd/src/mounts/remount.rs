//! Changes the options of mounts: in place where possible, otherwise by mounting again.

use super::settings::Settings;
use super::{Mounted, Mounts, RemovedMount, is_of, is_within};
use millpond_control::{DatasetQuery, MountInfo, MountProblem, Note};
use millpond_engine::Pool;
use millpond_env::sync::Arc;
use millpond_service::ImportedPools;

/// Whether the mount options include `remount`.
pub(super) fn is_remount(options: &[String]) -> bool {
    let mut words = options.iter().flat_map(|words| words.split(','));
    words.any(|word| word == "remount")
}

impl Mounts {
    /// Gives a mounted file system other options. The caller holds `changing`.
    pub(super) fn remount(
        &self,
        pools: &ImportedPools,
        settings: &Settings,
        options: &[String],
    ) -> Result<(), MountProblem> {
        let dataset = settings.dataset.as_str();
        if self.is_at(dataset, &settings.mountpoint)
            && self.change_in_place(pools, settings, options)?
        {
            return Ok(());
        }
        let removed = self.take_for_remount(pools, dataset)?;
        let mounted = self.mount_as(pools, settings, options);
        let others = removed.into_iter().filter(|one| one.dataset != dataset);
        // Errors are ignored: such a file system stays unmounted, and `zfs mount -a` shows the reason.
        let _ = self.mount_removed(pools, &others.collect::<Vec<_>>());
        mounted
    }

    fn is_at(&self, dataset: &str, mountpoint: &str) -> bool {
        let table = self.table.lock();
        let mut own = table.iter().filter(|entry| entry.info.dataset == dataset);
        own.any(|entry| entry.info.mountpoint == mountpoint)
    }

    /// Changes the options of a mount while it is in use. Returns false if that is not possible here.
    fn change_in_place(
        &self,
        pools: &ImportedPools,
        settings: &Settings,
        options: &[String],
    ) -> Result<bool, MountProblem> {
        let found = {
            let table = self.table.lock();
            let mut own = table
                .iter()
                .filter(|entry| entry.info.dataset == settings.dataset);
            own.next().cloned()
        };
        let mut changed = found.ok_or(MountProblem::NotMounted)?;
        let pool = settings.dataset.split('/').next().unwrap_or_default();
        let pool = pools.get(pool).ok_or(MountProblem::NoSuchDataset)?;
        changed.settings = settings.clone();
        changed.options = options.to_vec();
        let what = changed.mountable(self, &pool);
        if !changed.handle.change_options(&what)? {
            return Ok(false);
        }
        let mut table = self.table.lock();
        let mut all = table.iter_mut();
        if let Some(entry) = all.find(|entry| Arc::ptr_eq(&entry.handle, &changed.handle)) {
            *entry = changed;
        }
        Ok(true)
    }

    /// The mount point that the request for a mount gave.
    pub(super) fn given_place(&self, dataset: &str) -> Option<String> {
        let table = self.table.lock();
        let mut own = table.iter().filter(|entry| entry.info.dataset == dataset);
        own.find_map(|entry| entry.at.clone())
    }

    /// The mount options that the request for a mount gave.
    fn given_options(&self, dataset: &str) -> Vec<String> {
        let table = self.table.lock();
        let mut own = table.iter().filter(|entry| entry.info.dataset == dataset);
        own.next()
            .map_or_else(Vec::new, |entry| entry.options.clone())
    }

    /// Unmounts a file system and all mounts inside it. If one of them is in use, all are restored.
    fn take_for_remount(
        &self,
        pools: &ImportedPools,
        dataset: &str,
    ) -> Result<Vec<RemovedMount>, MountProblem> {
        let at = {
            let table = self.table.lock();
            let mut all = table.iter();
            all.find(|entry| entry.info.dataset == dataset)
                .map(|entry| entry.info.mountpoint.clone())
        };
        let at = at.ok_or(MountProblem::NotMounted)?;
        let mut removed = vec![];
        let lies_there = |info: &MountInfo| is_within(&info.mountpoint, &at);
        match self.remove_these(&lies_there, false, &mut removed) {
            Ok(()) => Ok(removed),
            Err((_, problem)) => {
                let _ = self.mount_removed(pools, &removed);
                Err(problem)
            }
        }
    }

    /// Gives the mounts of snapshots the names that these have now.
    pub(super) fn follow_snapshots(&self, live: &Pool, pool: &str) {
        let _changing = self.changing.lock();
        let used: Vec<_> = {
            let table = self.table.lock();
            let own = table
                .iter()
                .filter(|entry| is_of(&entry.info.dataset, pool));
            own.filter_map(|entry| {
                Some((
                    entry.info.dataset.clone(),
                    Arc::clone(entry.in_use.as_ref()?),
                ))
            })
            .collect()
        };
        for (name, in_use) in used {
            match live.name_of_snapshot(&in_use) {
                Ok(now) if now != name => self.call_otherwise(&name, &now, false),
                Ok(_) => {}
                Err(error) => tracing::warn!(snapshot = name, "its name cannot be read: {error}"),
            }
        }
    }

    /// Makes the kernel ask again for the attributes of the root directories of a file system and those below it.
    pub(super) fn invalidate_roots(&self, root: &str) {
        for handle in self.handles_within(root) {
            handle.invalidate_root();
        }
    }

    /// Makes the kernel ask again for the attributes of files in a pool whose space usage has become known.
    pub(super) fn invalidate_usage(&self, pool: &str) {
        for handle in self.handles_within(pool) {
            handle.invalidate_usage();
        }
    }

    fn handles_within(&self, root: &str) -> Vec<Arc<dyn Mounted>> {
        let table = self.table.lock();
        let within = table
            .iter()
            .filter(|entry| is_within(&entry.info.dataset, root));
        within.map(|entry| Arc::clone(&entry.handle)).collect()
    }

    /// Gives the mounts of all file systems whose properties now ask for it other options. Returns those that failed because
    /// they are in use.
    pub(super) fn remount_changed(&self, pools: &ImportedPools, root: &str) -> Vec<Note> {
        let _changing = self.changing.lock();
        let Ok(all) = self.read(pools, root, DatasetQuery::WHOLE_TREE) else {
            return vec![];
        };
        let mut notes = vec![];
        for one in all {
            let changed = {
                let table = self.table.lock();
                let mut own = table.iter();
                own.find(|entry| entry.info.dataset == one.dataset)
                    .and_then(|entry| {
                        let mut now = one.clone();
                        now.override_with(&entry.options);
                        let is_same = now.flags() == entry.settings.flags();
                        (!is_same).then(|| (now, entry.info.clone()))
                    })
            };
            let Some((now, info)) = changed else { continue };
            let options = self.given_options(&one.dataset);
            let done = match self.change_in_place(pools, &now, &options) {
                Ok(false) => self.take_for_remount(pools, &one.dataset).map(|removed| {
                    notes.extend(self.mount_removed(pools, &removed));
                }),
                done => done.map(drop),
            };
            // A change to read-only is also effective without a remount, because the file system itself
            // refuses writes.
            let is_looser = !now.read_only;
            if let (Err(why), true) = (done, is_looser) {
                notes.push(Note::NotMounted {
                    dataset: info.dataset,
                    mountpoint: info.mountpoint,
                    why,
                });
            }
        }
        notes
    }
}
