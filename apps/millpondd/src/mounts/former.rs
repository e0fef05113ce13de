//! Removes the directories of former mount points, after file systems were destroyed or moved.

use super::settings::Settings;
use super::{Mounts, RemovedMount};
use millpond_service::ImportedPools;
use std::path::PathBuf;

/// The former mount point of a file system.
pub(super) struct FormerMountPoint {
    /// The file system, under the name that it has after the change.
    dataset: String,
    /// The mount point that its properties had.
    mountpoint: String,
    /// The directory, with links resolved.
    path: PathBuf,
    /// Whether the mount point came from the dataset above, or was the default.
    is_from_above: bool,
}

impl FormerMountPoint {
    /// That of a mount that was removed. `None` if a request had placed it.
    pub(super) fn of_removed(removed: &RemovedMount) -> Option<Self> {
        removed.at.is_none().then(|| Self {
            dataset: removed.dataset.clone(),
            mountpoint: removed.mountpoint.clone(),
            path: removed.place.clone(),
            is_from_above: removed.is_from_above,
        })
    }

    /// That of a file system that is not mounted. The directory counts only if it is known that it was created here.
    fn of_unmounted(settings: &Settings) -> Self {
        Self {
            dataset: settings.dataset.clone(),
            mountpoint: settings.mountpoint.clone(),
            path: PathBuf::from(&settings.mountpoint),
            is_from_above: false,
        }
    }
}

impl Mounts {
    /// The mount points of those of these file systems that are not mounted.
    pub(super) fn unmounted_mount_points<'n>(
        &self,
        pools: &ImportedPools,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Vec<FormerMountPoint> {
        if self.made.lock().is_empty() {
            return vec![];
        }
        let is_head = |name: &&str| name.contains('/') && !name.contains(['@', '#']);
        let names = names.into_iter().filter(is_head);
        let unmounted = names.filter(|name| !self.is_mounted(name));
        unmounted
            .flat_map(|name| self.read(pools, name, 0).unwrap_or_default())
            .map(|settings| FormerMountPoint::of_unmounted(&settings))
            .collect()
    }

    /// Removes directories that are no mount points any more, if they are empty: those of inherited mount points, as OpenZFS
    /// does, and unless the pool is only exported, those that were created here. The caller holds `changing`.
    pub(super) fn remove_left(
        &self,
        pools: &ImportedPools,
        former: &[FormerMountPoint],
        is_exported: bool,
    ) {
        for one in former {
            let is_made = !is_exported && self.made.lock().contains(&one.path);
            let is_mounted = |path: &PathBuf| {
                let table = self.table.lock();
                table.iter().any(|entry| entry.place == *path)
            };
            if !(is_made || one.is_from_above) || is_mounted(&one.path) {
                continue;
            }
            // One that is only not mounted keeps its directory.
            let now = self.read(pools, &one.dataset, 0).unwrap_or_default();
            if now.iter().any(|now| now.mountpoint == one.mountpoint) {
                continue;
            }
            self.made.lock().remove(&one.path);
            self.mounter.remove(&one.path);
        }
    }
}
