//! Unmounts file systems on request.

use super::Mounts;
use crate::words::of_note;
use millpond_control::{MountInfo, MountProblem, Note};
use millpond_service::ImportedPools;

impl Mounts {
    /// Unmounts a file system and all below it.
    ///
    /// # Errors
    /// [`MountProblem`] with the mount point, or with the dataset if that is not mounted.
    pub fn unmount(
        &self,
        pools: &ImportedPools,
        dataset: &str,
        force: bool,
    ) -> Result<(), (String, MountProblem)> {
        let of = |problem| (dataset.to_owned(), problem);
        let own = self.read(pools, dataset, 0).map_err(of)?;
        let settings = own
            .first()
            .ok_or_else(|| of(MountProblem::NotAFileSystem))?;
        if !self.is_mounted(dataset) {
            return Err(of(match settings.mountpoint.as_str() {
                "legacy" => MountProblem::Legacy,
                _ => MountProblem::NotMounted,
            }));
        }
        if force {
            self.write_back(Some(dataset));
        }
        let mut removed = vec![];
        let done = self.take_away(dataset, force, &mut removed);
        if done.is_err() {
            let _changing = self.changing.lock();
            for note in self.mount_removed(pools, &removed) {
                tracing::warn!("after a refused unmount: {}", of_note(&note));
            }
        }
        done
    }

    /// Unmounts everything. Returns those that failed.
    pub fn unmount_all(&self, force: bool) -> Vec<Note> {
        if force {
            self.write_back(None);
        }
        let mut notes = vec![];
        for mount in self.list().into_iter().rev() {
            let MountInfo { dataset, .. } = &mount;
            if !self.is_mounted(dataset) {
                continue;
            }
            if let Err((mountpoint, why)) = self.take_away(dataset, force, &mut vec![]) {
                notes.push(Note::StillMounted {
                    dataset: dataset.clone(),
                    mountpoint,
                    why,
                });
            }
        }
        notes
    }
}
