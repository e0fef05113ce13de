//! A dataset together with the key that its pool has loaded for it.

use crate::{Error, View};
use millpond_dataset::properties::DatasetKind;
use millpond_dataset::{Bookmark, Hold};
use millpond_env::sync::Arc;
use millpond_object::ObjectSetView;
use millpond_ondisk::DslDatasetFlags;
use millpond_posix::FileSystem;
use millpond_volume::Volume;

/// A file system, volume or snapshot. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Dataset {
    pool: View,
    inner: millpond_dataset::Dataset,
}

impl Dataset {
    pub(crate) fn new(pool: View, inner: millpond_dataset::Dataset) -> Self {
        Self { pool, inner }
    }
    /// The dataset without its files: statistics, properties, deadlists.
    #[must_use]
    pub fn inner(&self) -> &millpond_dataset::Dataset {
        &self.inner
    }
    /// The pool that it belongs to.
    #[must_use]
    pub fn pool(&self) -> &View {
        &self.pool
    }
    /// Its full name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }
    /// Whether it is a file system, volume or snapshot.
    ///
    /// # Errors
    /// If its object set cannot be read.
    pub fn kind(&self) -> Result<DatasetKind, Error> {
        Ok(self.inner.kind()?)
    }
    /// Whether it is a snapshot that is destroyed with the last of its holds and clones.
    #[must_use]
    pub fn is_marked_for_destruction(&self) -> bool {
        let flags = self.inner().phys().flags;
        flags.contains(DslDatasetFlags::DEFER_DESTROY)
    }
    /// The snapshot that it is a clone of.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn origin(&self) -> Result<Option<Self>, Error> {
        let origin = self.inner().origin()?;
        Ok(origin.map(|origin| Self::new(self.pool().clone(), origin)))
    }
    /// Whether it contains files rather than the blocks of a volume. Also true for snapshots of file systems.
    ///
    /// # Errors
    /// If its object set cannot be read.
    pub fn has_files(&self) -> Result<bool, Error> {
        let kind = self.inner.content_kind()?;
        Ok(kind == millpond_ondisk::ObjectSetKind::FileSystem)
    }
    /// Whether it is encrypted and its key is not loaded.
    ///
    /// # Errors
    /// If its directory cannot be read.
    pub fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.inner.is_encrypted()? && self.pool.key_of(self.inner.directory())?.is_none())
    }
    /// Its snapshots, oldest first.
    ///
    /// # Errors
    /// If one of them cannot be read.
    pub fn snapshots(&self) -> Result<Vec<Dataset>, Error> {
        let snapshots = self.inner.snapshots()?.into_iter();
        Ok(snapshots
            .map(|inner| Self::new(self.pool.clone(), inner))
            .collect())
    }
    /// Its bookmarks in byte order of their names.
    ///
    /// # Errors
    /// If their table cannot be read.
    pub fn bookmarks(&self) -> Result<Vec<Bookmark>, Error> {
        Ok(self.inner.bookmarks()?)
    }
    /// The holds on a snapshot.
    ///
    /// # Errors
    /// If their table cannot be read.
    pub fn holds(&self) -> Result<Vec<Hold>, Error> {
        Ok(self.inner.holds()?)
    }
    /// Its object set, decrypted if its key is loaded.
    ///
    /// # Errors
    /// If its object set cannot be read or fails authentication.
    pub fn object_set(&self) -> Result<Arc<ObjectSetView>, Error> {
        let key = self.pool.key_of(self.inner.directory())?;
        Ok(self.inner.object_set(key)?)
    }
    /// Its file system.
    ///
    /// # Errors
    /// If it is a volume, is locked, or its master node cannot be read.
    pub fn file_system(&self) -> Result<Arc<FileSystem>, Error> {
        Ok(FileSystem::open(self.object_set()?)?)
    }
    /// Its volume, if it is a volume or a snapshot of one.
    ///
    /// # Errors
    /// If it contains files, is locked, or its size cannot be read.
    pub fn volume(&self) -> Result<Volume, Error> {
        Ok(Volume::open(self.name(), &self.object_set()?)?)
    }
}
