//! File systems, volumes and snapshots.

use crate::{Error, FileSystem, Pool, Volume};
use millpond_engine::OwnerKind;

/// What a dataset is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DatasetKind {
    /// A file system.
    FileSystem,
    /// A volume.
    Volume,
    /// A snapshot of either.
    Snapshot,
}

/// A property as `zfs get -Hp` and `zpool get -Hp` print it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Property {
    /// The name.
    pub name: String,
    /// The value as text or digits; `-` if there is none.
    pub value: String,
    /// `local`, `default`, `inherited from …`, `received`, `-`.
    pub source: String,
}

impl Property {
    pub(crate) fn of(property: millpond_engine::LiteralProperty) -> Self {
        Self {
            name: property.name,
            value: property.value,
            source: property.source,
        }
    }
}

/// The value to set a property to: text such as `"zstd"`, or a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PropertyValue(millpond_engine::PropertyValue);

impl From<&str> for PropertyValue {
    fn from(text: &str) -> Self {
        Self(millpond_engine::PropertyValue::Text(text.to_owned()))
    }
}

impl From<String> for PropertyValue {
    fn from(text: String) -> Self {
        Self(millpond_engine::PropertyValue::Text(text))
    }
}

impl From<u64> for PropertyValue {
    fn from(number: u64) -> Self {
        Self(millpond_engine::PropertyValue::Number(number))
    }
}

pub(crate) type Properties = Vec<(String, millpond_engine::PropertyValue)>;

/// A file system, volume or snapshot in the pool's last committed state. Cheap to clone.
///
/// The state of a pool that is open for writing is kept for an hour at most, and for less while the pool is short of
/// space or hundreds of newer states are in use. Then reads of it may fail with [`crate::ErrorKind::Expired`], also those
/// of files and volumes of a snapshot: open it again.
#[derive(Debug, Clone)]
pub struct Dataset {
    pool: Pool,
    inner: millpond_engine::Dataset,
}

impl Dataset {
    pub(crate) fn new(pool: Pool, inner: millpond_engine::Dataset) -> Self {
        Self { pool, inner }
    }

    fn read<T>(
        &self,
        read: impl FnOnce(&millpond_engine::Dataset) -> Result<T, millpond_engine::Error>,
    ) -> Result<T, Error> {
        let found = read(&self.inner);
        // Also after success: properties that cannot be read are left out.
        let view = self.inner.pool().inner();
        view.check_not_expired()?;
        Ok(found?)
    }

    /// Its full name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// What it is.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Damaged`].
    pub fn kind(&self) -> Result<DatasetKind, Error> {
        Ok(match self.read(millpond_engine::Dataset::kind)? {
            millpond_engine::DatasetKind::Filesystem => DatasetKind::FileSystem,
            millpond_engine::DatasetKind::Volume => DatasetKind::Volume,
            _ => DatasetKind::Snapshot,
        })
    }

    /// Whether it is encrypted and its key is not loaded; see [`Pool::load_key`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Damaged`].
    pub fn is_locked(&self) -> Result<bool, Error> {
        self.read(millpond_engine::Dataset::is_locked)
    }

    /// Its snapshots, oldest first.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Damaged`].
    pub fn snapshots(&self) -> Result<Vec<Dataset>, Error> {
        let snapshots = self.read(millpond_engine::Dataset::snapshots)?.into_iter();
        Ok(snapshots
            .map(|inner| Self::new(self.pool.clone(), inner))
            .collect())
    }

    /// All its properties.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Damaged`].
    pub fn properties(&self) -> Result<Vec<Property>, Error> {
        let all = self.read(millpond_engine::Dataset::literal_properties)?;
        Ok(all.into_iter().map(Property::of).collect())
    }

    /// One property; `None` if it has none of this name.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Damaged`].
    pub fn property(&self, name: &str) -> Result<Option<Property>, Error> {
        let mut all = self.properties()?.into_iter();
        Ok(all.find(|property| property.name == name))
    }

    /// The bytes that each user uses, by uid.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Locked`], [`crate::ErrorKind::Damaged`].
    pub fn space_by_user(&self) -> Result<Vec<(u64, u64)>, Error> {
        let owners = self.read(|dataset| dataset.space_by_owner(OwnerKind::User))?;
        Ok(owners
            .into_iter()
            .map(|owner| (owner.id, owner.used_bytes))
            .collect())
    }

    /// Opens its files, as [`Pool::file_system`] does.
    ///
    /// # Errors
    /// As [`Pool::file_system`].
    pub fn file_system(&self) -> Result<FileSystem, Error> {
        self.pool.file_system(self.name())
    }

    /// Opens it as a volume, as [`Pool::volume`] does.
    ///
    /// # Errors
    /// As [`Pool::volume`].
    pub fn volume(&self) -> Result<Volume, Error> {
        self.pool.volume(self.name())
    }
}

/// A file system to be created; see [`Pool::create_file_system`].
#[derive(Debug, Clone)]
#[must_use = "nothing is created before `create`"]
pub struct NewFileSystem {
    pool: Pool,
    name: String,
    properties: Properties,
}

impl NewFileSystem {
    pub(crate) fn new(pool: &Pool, name: &str) -> Self {
        Self {
            pool: pool.clone(),
            name: name.to_owned(),
            properties: vec![],
        }
    }

    /// Sets a property.
    pub fn property(mut self, name: &str, value: impl Into<PropertyValue>) -> Self {
        self.properties.push((name.to_owned(), value.into().0));
        self
    }

    /// Creates it and opens it for writing. It is on stable storage when this returns.
    ///
    /// # Errors
    /// [`crate::ErrorKind::AlreadyExists`]; [`crate::ErrorKind::NotFound`] for the parent;
    /// [`crate::ErrorKind::InvalidInput`] for the name or a property.
    pub fn create(self) -> Result<FileSystem, Error> {
        let datasets = self.pool.writable()?.datasets();
        datasets.create_filesystem(&self.name, &self.properties)?;
        self.pool.file_system(&self.name)
    }
}

/// A volume to be created; see [`Pool::create_volume`].
#[derive(Debug, Clone)]
#[must_use = "nothing is created before `create`"]
pub struct NewVolume {
    pool: Pool,
    name: String,
    properties: Properties,
}

impl NewVolume {
    pub(crate) fn new(pool: &Pool, name: &str, size_bytes: u64) -> Self {
        Self {
            pool: pool.clone(),
            name: name.to_owned(),
            properties: vec![("volsize".to_owned(), PropertyValue::from(size_bytes).0)],
        }
    }

    /// Sets a property.
    pub fn property(mut self, name: &str, value: impl Into<PropertyValue>) -> Self {
        self.properties.push((name.to_owned(), value.into().0));
        self
    }

    /// Creates it and opens it for writing. It is on stable storage when this returns.
    ///
    /// # Errors
    /// As [`NewFileSystem::create`].
    pub fn create(self) -> Result<Volume, Error> {
        let datasets = self.pool.writable()?.datasets();
        datasets.create_volume(&self.name, &self.properties)?;
        self.pool.volume(&self.name)
    }
}

impl PropertyValue {
    pub(crate) fn into_inner(self) -> millpond_engine::PropertyValue {
        self.0
    }
}
