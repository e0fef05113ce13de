//! Mounts whose files are replaced while programs use them: by a rollback, or by a stream.

use super::{Entry, Mountable, Mounts, SuspendedFiles};
use millpond_control::{MountInfo, MountProblem, Note};
use millpond_env::sync::Arc;
use millpond_service::ImportedPools;
use std::path::Path;

/// A suspended mount.
pub(super) struct SuspendedMount {
    info: MountInfo,
    files: Box<dyn SuspendedFiles>,
}

impl Entry {
    /// What is mounted, and how.
    pub(super) fn mountable<'a>(
        &'a self,
        mounts: &'a Mounts,
        pool: &'a millpond_service::ImportedPool,
    ) -> Mountable<'a> {
        let settings = &self.settings;
        Mountable {
            pool,
            dataset: &self.info.dataset,
            mountpoint: Path::new(&settings.mountpoint),
            root: None,
            read_only: settings.read_only || pool.live().is_none(),
            exec: settings.exec,
            suid: settings.suid,
            devices: settings.devices,
            access_times: settings.access_times,
            overlay: true,
            snapshots: &mounts.snapshots,
        }
    }
}

impl Mounts {
    /// Closes the files of a dataset that is mounted. Programs that use them wait. `None` if it is not mounted.
    pub(super) fn suspend(
        &self,
        dataset: &str,
    ) -> Result<Option<SuspendedMount>, (String, MountProblem)> {
        let _changing = self.changing.lock();
        self.drop_dead(dataset);
        let found = {
            let table = self.table.lock();
            let mut own = table.iter().filter(|entry| entry.info.dataset == dataset);
            own.next()
                .map(|entry| (entry.info.clone(), Arc::clone(&entry.handle)))
        };
        let Some((info, handle)) = found else {
            return Ok(None);
        };
        match handle.suspend() {
            Ok(Some(files)) => Ok(Some(SuspendedMount { info, files })),
            Ok(None) => {
                drop(handle);
                self.drop_dead(dataset);
                Ok(None)
            }
            Err(problem) => Err((info.mountpoint, problem)),
        }
    }

    /// Closes the files of mounts of a dataset that another program has unmounted, or whose directory is gone.
    fn drop_dead(&self, dataset: &str) {
        let dead: Vec<Entry> = {
            let mut table = self.table.lock();
            let is_dead =
                |entry: &mut Entry| entry.info.dataset == dataset && !entry.handle.is_alive();
            table.extract_if(.., is_dead).collect()
        };
        // This may take a while.
        drop(dead);
    }

    /// Lets programs continue with the files that the dataset has now: others than before with `is_replaced`. Without any, it
    /// is unmounted.
    pub(super) fn resume(
        &self,
        pools: &ImportedPools,
        suspended: SuspendedMount,
        is_replaced: bool,
    ) -> Option<Note> {
        let SuspendedMount { info, files } = suspended;
        let _changing = self.changing.lock();
        let pool = info.dataset.split('/').next().unwrap_or(&info.dataset);
        let pool = pools.get(pool);
        let found = {
            let table = self.table.lock();
            let mut own = table.iter().filter(|entry| entry.info == info);
            own.next().cloned()
        };
        // It may have been unmounted meanwhile.
        let entry = found?;
        let resumed = match &pool {
            Some(pool) => files.resume(&entry.mountable(self, pool), is_replaced),
            None => Err(MountProblem::NoSuchDataset),
        };
        let why = resumed.err()?;
        let _ = entry.handle.unmount(true);
        self.table.lock().retain(|entry| entry.info != info);
        (self.note)(&self.record());
        Some(Note::NotMounted {
            dataset: info.dataset,
            mountpoint: info.mountpoint,
            why,
        })
    }
}
