//! Builder for new pools, from device paths.

use super::pool::Pool;
use crate::Error;
use millpond_dataset::RootKey;
use millpond_device::{DeviceError, FileDevice, OpenOptions};
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_pool::{
    DraidShape, FeatureChoice, NewDevice, NewLayout, NewPool, NewTop, NewVdevOptions, NewVdevs,
    PoolSetting, SettingTime, WriteOptions,
};
use millpond_vdev::AllocationClass;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The configuration of a new pool. Paths are existing devices or image files. Their content is lost; a
/// device that another pool may be using is refused unless [`PoolBuilder::force`] is set.
#[derive(Debug, Clone)]
pub struct PoolBuilder {
    name: String,
    tops: Vec<(AllocationClass, NewLayout, Vec<PathBuf>)>,
    spares: Vec<PathBuf>,
    caches: Vec<PathBuf>,
    ashift: Option<u8>,
    force: bool,
    features: FeatureChoice,
    properties: Vec<(String, String)>,
    root_properties: BTreeMap<String, String>,
    writing: WriteOptions,
    env: Env2,
    cache_bytes: Option<u64>,
    has_plain_paths: bool,
    root_key: Option<RootKey>,
}

/// [`Env`] with an implementation of `Debug`.
#[derive(Clone)]
struct Env2(Env);

impl std::fmt::Debug for Env2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Env")
    }
}

impl PoolBuilder {
    /// A plan for a pool with this name, without devices.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            tops: vec![],
            spares: vec![],
            caches: vec![],
            ashift: None,
            force: false,
            features: FeatureChoice::default(),
            properties: vec![],
            root_properties: BTreeMap::new(),
            writing: WriteOptions::default(),
            env: Env2(Env::real()),
            cache_bytes: None,
            has_plain_paths: false,
            root_key: None,
        }
    }
    /// Adds a single device.
    #[must_use]
    pub fn single(self, path: impl AsRef<Path>) -> Self {
        self.top(AllocationClass::Normal, NewLayout::Single, [path])
    }
    /// Adds a mirror.
    #[must_use]
    pub fn mirror(self, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Self {
        self.top(AllocationClass::Normal, NewLayout::Mirror, paths)
    }
    /// Adds a RAID-Z vdev with parity 1 to 3.
    #[must_use]
    pub fn raidz(self, parity: u8, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Self {
        self.top(AllocationClass::Normal, NewLayout::Raidz(parity), paths)
    }
    /// Adds a dRAID vdev.
    #[must_use]
    pub fn draid(
        self,
        shape: DraidShape,
        paths: impl IntoIterator<Item = impl AsRef<Path>>,
    ) -> Self {
        self.top(AllocationClass::Normal, NewLayout::Draid(shape), paths)
    }
    /// Adds a top-level vdev.
    #[must_use]
    pub fn top(
        mut self,
        class: AllocationClass,
        layout: NewLayout,
        paths: impl IntoIterator<Item = impl AsRef<Path>>,
    ) -> Self {
        let paths = paths.into_iter().map(|path| path.as_ref().to_owned());
        self.tops.push((class, layout, paths.collect()));
        self
    }
    /// Adds a hot spare.
    #[must_use]
    pub fn spare(mut self, path: impl AsRef<Path>) -> Self {
        self.spares.push(path.as_ref().to_owned());
        self
    }
    /// Adds a cache device.
    #[must_use]
    pub fn cache(mut self, path: impl AsRef<Path>) -> Self {
        self.caches.push(path.as_ref().to_owned());
        self
    }
    /// Sets log2 of the smallest write, 9 to 16. The default depends on the devices' sector sizes.
    #[must_use]
    pub fn ashift(mut self, ashift: u8) -> Self {
        self.ashift = Some(ashift);
        self
    }
    /// Allows devices of pools that are not open in this process, and layouts of mixed redundancy.
    #[must_use]
    pub fn force(mut self) -> Self {
        self.force = true;
        self
    }
    /// Selects the features to enable.
    #[must_use]
    pub fn features(mut self, choice: FeatureChoice) -> Self {
        self.features = choice;
        self
    }
    /// Sets a property of the pool, as in `zpool create -o`.
    #[must_use]
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push((name.to_owned(), value.to_owned()));
        self
    }
    /// Sets a property of its root file system, as in `zpool create -O`. Numbers are in bytes, without unit
    /// letters.
    #[must_use]
    pub fn root_property(mut self, name: &str, value: &str) -> Self {
        self.root_properties
            .insert(name.to_owned(), value.to_owned());
        self
    }
    /// Sets the key of its root file system, which needs the properties `encryption` and `keyformat`, too.
    #[must_use]
    pub fn root_key(mut self, key: RootKey) -> Self {
        self.root_key = Some(key);
        self
    }
    /// Sets the host identification, the sync mode and the limits of dirty data.
    #[must_use]
    pub fn writing(mut self, writing: WriteOptions) -> Self {
        self.writing = writing;
        self
    }
    /// Sets the clock and the source of randomness. With deterministic ones and [`super::SyncMode::Caller`], the
    /// same calls write the same bytes.
    #[must_use]
    pub fn env(mut self, env: Env) -> Self {
        self.env = Env2(env);
        self
    }
    /// Writes the device paths `/device-0`, `/device-1` and so on to the labels, instead of the actual paths.
    /// Pools created alike at different paths are then identical. To open such a pool, the caller must search
    /// at the actual paths.
    #[must_use]
    pub fn plain_paths(mut self) -> Self {
        self.has_plain_paths = true;
        self
    }
    /// Gives the pool a block cache of its own, of this size in bytes. Otherwise all pools of the process share
    /// one.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = Some(bytes);
        self
    }

    /// Creates the pool. It is on stable storage when this returns.
    ///
    /// # Errors
    /// [`Error::Device`] for a path that cannot be opened; [`Error::Setting`]; [`Error::Create`].
    pub fn create(self) -> Result<Pool, Error> {
        let mut vdevs = NewVdevs::default();
        for (class, layout, paths) in &self.tops {
            vdevs.tops.push(NewTop {
                layout: *layout,
                class: *class,
                devices: open_all(paths)?,
            });
        }
        vdevs.spares = open_all(&self.spares)?;
        vdevs.caches = open_all(&self.caches)?;
        if self.has_plain_paths {
            let tops = vdevs.tops.iter_mut().flat_map(|top| &mut top.devices);
            let others = vdevs.spares.iter_mut().chain(&mut vdevs.caches);
            for (number, device) in tops.chain(others).enumerate() {
                device.path = format!("/device-{number}");
            }
        }
        let mut settings = vec![];
        for (name, value) in &self.properties {
            settings.push(PoolSetting::parse(name, value, SettingTime::Creation)?);
        }
        let system = self.writing.system.clone();
        let new = NewPool {
            name: self.name,
            vdevs,
            vdev_options: NewVdevOptions {
                ashift: self.ashift,
                force: self.force,
            },
            features: self.features,
            settings,
            root_properties: self.root_properties,
            writing: self.writing,
            system: system.unwrap_or_else(|| "millpond".to_owned()),
            cache_bytes: self.cache_bytes,
        };
        Pool::create_with_key(&self.env.0, &new, self.root_key)
    }
}

fn open_all(paths: &[PathBuf]) -> Result<Vec<NewDevice>, Error> {
    paths.iter().map(|path| open_device(path)).collect()
}

/// Opens a device or image file for a new vdev.
pub fn open_device(path: &Path) -> Result<NewDevice, Error> {
    let fail = |error: DeviceError| Error::Device {
        path: path.to_owned(),
        error,
    };
    let options = OpenOptions {
        write: true,
        refuse_if_live: true,
    };
    let device = FileDevice::open(path, options).map_err(fail)?;
    let is_block_device = device.is_block_device();
    // Labels contain absolute paths. Symbolic links are kept, because administrators look for those names.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut new = NewDevice::file(&absolute.to_string_lossy(), Arc::new(device));
    new.is_block_device = is_block_device;
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_creation_leaves_the_devices_unchanged() {
        let folder = std::env::temp_dir().join(format!("millpond-plan-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let image = folder.join("disk.img");
        let before = vec![0xa5; 64 << 20];
        for (name, value) in [
            ("encryption", "on"),
            ("reservation", "1099511627776"),
            ("refreservation", "67108864"),
            ("recordsize", "3000"),
            ("nonsense", "1"),
            ("utf8only", "perhaps"),
            ("dedup", "edonr"),
        ] {
            std::fs::write(&image, &before).unwrap();
            let plan = PoolBuilder::new("tank").single(&image).force();
            let outcome = plan.root_property(name, value).create();
            assert!(outcome.is_err(), "{name}={value} is taken");
            let after = std::fs::read(&image).unwrap();
            assert!(after == before, "{name}={value} was written");
        }
        let plan = PoolBuilder::new("tank").single(&image).force();
        let plan = plan.root_property("reservation", "16777216");
        plan.create().unwrap().export().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
