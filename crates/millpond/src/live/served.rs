//! File systems as front ends take them: with their snapshots below `.zfs/snapshot`.

use super::LivePool;
use super::pool::is_writable;
use crate::{Dataset, Error};
use millpond_env::sync::Arc;
use millpond_ondisk::ObjectId;
use millpond_posix::FileSystem;
use millpond_posix::live::{BackgroundDrain, BeginError, FileError};
use millpond_posix::vfs::{SnapshotEntry, SnapshotPort, StoredFiles, Vfs, WithSnapshots};

/// Finds the snapshots of a dataset in what its pool has committed. Snapshots are there only once they are
/// committed, and their blocks stay as long as they do.
struct Snapshots {
    pool: LivePool,
    head: ObjectId,
}

/// Why files that were asked for through a pool cannot be had.
fn told(error: Error) -> FileError {
    match error {
        Error::File(error) => error.into(),
        Error::Change(error) => error,
        // An error of input and output, with the whole story.
        error => FileError::Begin(BeginError::Suspended {
            reason: error.to_string(),
        }),
    }
}

impl Snapshots {
    fn entries(&self) -> Result<(Dataset, Vec<(String, ObjectId)>), Error> {
        let head = self.pool.committed()?.dataset_by_id(self.head)?;
        let mut entries = head.inner().snapshot_entries()?;
        // Temporary ones are nobody's business.
        entries.retain(|(name, _)| !name.starts_with('%'));
        Ok((head, entries))
    }
}

impl SnapshotPort for Snapshots {
    fn snapshots(&self) -> Result<Vec<SnapshotEntry>, FileError> {
        let (_, entries) = self.entries().map_err(told)?;
        let entries = entries.into_iter().map(|(name, id)| SnapshotEntry {
            name: name.into_bytes(),
            id: id.0,
        });
        Ok(entries.collect())
    }
    fn find(&self, name: &[u8]) -> Result<Option<SnapshotEntry>, FileError> {
        let all = self.snapshots()?;
        Ok(all.into_iter().find(|snapshot| snapshot.name == name))
    }
    fn open(&self, snapshot: &SnapshotEntry) -> Result<Arc<FileSystem>, FileError> {
        let open = || -> Result<Option<Arc<FileSystem>>, Error> {
            let (head, entries) = self.entries()?;
            let Some((name, id)) = entries.into_iter().find(|(_, id)| id.0 == snapshot.id) else {
                return Ok(None);
            };
            let opened = head.inner().open_snapshot(&name, id)?;
            let files = Dataset::new(head.pool().clone(), opened).file_system()?;
            Ok(Some(files))
        };
        open().map_err(told)?.ok_or(FileError::NotFound)
    }
}

/// What the properties of a file system say about mounting it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountSettings {
    /// `readonly`.
    pub read_only: bool,
    /// `exec`.
    pub exec: bool,
    /// `setuid`.
    pub suid: bool,
    /// `devices`.
    pub devices: bool,
    /// `atime`.
    pub atime: bool,
    /// `overlay`.
    pub overlay: bool,
}

impl LivePool {
    /// What the properties of a file system say about mounting it.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn mount_settings(&self, name: &str) -> Result<MountSettings, Error> {
        let settings = self.datasets().open_head(name)?.settings();
        let is_on = |name: &str| settings.is_on(name);
        Ok(MountSettings {
            read_only: is_on("readonly"),
            exec: is_on("exec"),
            suid: is_on("setuid"),
            devices: is_on("devices"),
            atime: is_on("atime"),
            overlay: is_on("overlay"),
        })
    }

    /// Opens a live file system for a front end, such as a mount. It keeps the pool open. What the last use
    /// left unlinked, and large files that are removed, are freed in the background.
    ///
    /// # Errors
    /// As [`LivePool::file_system`].
    pub fn served(&self, name: &str) -> Result<Arc<WithSnapshots>, Error> {
        let (files, _) = self.open_files(name)?;
        let drain = match is_writable(&files) {
            true => Some(BackgroundDrain::start(&files)?),
            false => None,
        };
        let head = self.datasets().open_head(name)?.id();
        let pool = self.clone();
        let port = Box::new(Snapshots { pool, head });
        Ok(Arc::new(WithSnapshots::new(files, port, drain)))
    }
}

impl Dataset {
    /// Its files for a front end that only reads.
    ///
    /// # Errors
    /// As [`Dataset::file_system`].
    pub fn served(&self) -> Result<Arc<dyn Vfs>, Error> {
        Ok(Arc::new(StoredFiles::new(self.file_system()?, 0)))
    }
}
