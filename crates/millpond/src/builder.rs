//! How to create a pool.

use crate::open::writing;
use crate::{Error, Pool};
use millpond_engine::{AllocationClass, NewLayout};
use std::path::Path;

/// What a vdev is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VdevClass {
    /// Everything that no other vdev is for.
    Normal,
    /// Intent log blocks.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Dedup tables.
    Dedup,
}

/// The configuration of a new pool. Paths are existing devices or image files, whose content is lost.
///
/// Each call of [`PoolBuilder::single`], [`PoolBuilder::mirror`] or [`PoolBuilder::raidz`] adds a vdev. The
/// pool stripes its data over all of them, so it survives only what each of them survives.
#[derive(Debug, Clone)]
pub struct PoolBuilder {
    inner: millpond_engine::PoolBuilder,
    class: AllocationClass,
}

impl PoolBuilder {
    /// A pool with this name, without devices.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let inner = millpond_engine::PoolBuilder::new(name).writing(writing());
        Self {
            inner,
            class: AllocationClass::Normal,
        }
    }

    fn with(
        self,
        change: impl FnOnce(millpond_engine::PoolBuilder) -> millpond_engine::PoolBuilder,
    ) -> Self {
        Self {
            inner: change(self.inner),
            ..self
        }
    }

    /// Says what the vdevs that are added from now on are for; at first [`VdevClass::Normal`].
    #[must_use]
    pub fn class(mut self, class: VdevClass) -> Self {
        self.class = match class {
            VdevClass::Normal => AllocationClass::Normal,
            VdevClass::Log => AllocationClass::Log,
            VdevClass::Special => AllocationClass::Special,
            VdevClass::Dedup => AllocationClass::Dedup,
        };
        self
    }

    /// Adds a single device.
    #[must_use]
    pub fn single(self, path: impl AsRef<Path>) -> Self {
        let class = self.class;
        self.with(|inner| inner.top(class, NewLayout::Single, [path]))
    }

    /// Adds a mirror.
    #[must_use]
    pub fn mirror(self, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Self {
        let class = self.class;
        self.with(|inner| inner.top(class, NewLayout::Mirror, paths))
    }

    /// Adds a RAID-Z vdev with parity 1 to 3.
    #[must_use]
    pub fn raidz(self, parity: u8, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Self {
        let class = self.class;
        self.with(|inner| inner.top(class, NewLayout::Raidz(parity), paths))
    }

    /// Adds a hot spare.
    #[must_use]
    pub fn spare(self, path: impl AsRef<Path>) -> Self {
        self.with(|inner| inner.spare(path))
    }

    /// Sets a property of the pool, as `zpool create -o`.
    #[must_use]
    pub fn property(self, name: &str, value: &str) -> Self {
        self.with(|inner| inner.property(name, value))
    }

    /// Sets a property of its root file system, as `zpool create -O`. Numbers are in bytes, without unit
    /// letters.
    #[must_use]
    pub fn root_property(self, name: &str, value: &str) -> Self {
        self.with(|inner| inner.root_property(name, value))
    }

    /// Sets log2 of the smallest write, 9 to 16. The default depends on the devices' sector sizes.
    #[must_use]
    pub fn ashift(self, ashift: u8) -> Self {
        self.with(|inner| inner.ashift(ashift))
    }

    /// Allows devices that another pool may be using, and vdevs of different redundancy.
    #[must_use]
    pub fn force(self) -> Self {
        self.with(millpond_engine::PoolBuilder::force)
    }

    /// Creates the pool and opens it for writing. It is on stable storage when this returns.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Device`] for a path that cannot be opened; [`crate::ErrorKind::Busy`] for a device in
    /// use; [`crate::ErrorKind::InvalidInput`].
    /// Nothing is written before the first label.
    pub fn create(self) -> Result<Pool, Error> {
        Ok(Pool::of_open(self.inner.create()?))
    }
}
