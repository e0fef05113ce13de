//! A pool to be made, from paths.

use super::pool::LivePool;
use crate::Error;
use millpond_device::{DeviceError, FileDevice, OpenOptions, QueuedDevice};
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_pool::live::{
    FeatureChoice, NewDevice, NewLayout, NewPool, NewTop, NewVdevOptions, NewVdevs, PoolSetting,
    SettingTime, WriteOptions,
};
use millpond_vdev::AllocationClass;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a pool is to be. Paths are devices or image files that exist; what they hold is lost, unless
/// another pool may be using it ([`PoolPlan::force`]).
#[derive(Debug, Clone)]
pub struct PoolPlan {
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
    cache_bytes: u64,
    has_plain_paths: bool,
}

/// [`Env`] with a name for debugging.
#[derive(Clone)]
struct Env2(Env);

impl std::fmt::Debug for Env2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Env")
    }
}

impl PoolPlan {
    /// A pool of this name, without devices yet.
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
            cache_bytes: 256 << 20,
            has_plain_paths: false,
        }
    }
    /// One device more, by itself.
    #[must_use]
    pub fn single(self, path: impl AsRef<Path>) -> Self {
        self.top(AllocationClass::Normal, NewLayout::Single, [path])
    }
    /// A mirror more.
    #[must_use]
    pub fn mirror(self, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Self {
        self.top(AllocationClass::Normal, NewLayout::Mirror, paths)
    }
    /// A RAID-Z more, of parity 1 to 3.
    #[must_use]
    pub fn raidz(self, parity: u8, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Self {
        self.top(AllocationClass::Normal, NewLayout::Raidz(parity), paths)
    }
    /// Any top-level vdev more.
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
    /// A hot spare more.
    #[must_use]
    pub fn spare(mut self, path: impl AsRef<Path>) -> Self {
        self.spares.push(path.as_ref().to_owned());
        self
    }
    /// A cache device more.
    #[must_use]
    pub fn cache(mut self, path: impl AsRef<Path>) -> Self {
        self.caches.push(path.as_ref().to_owned());
        self
    }
    /// log2 of the smallest write, 9 to 16; chosen by the devices' sectors otherwise.
    #[must_use]
    pub fn ashift(mut self, ashift: u8) -> Self {
        self.ashift = Some(ashift);
        self
    }
    /// Takes devices of pools that are not open here, and layouts of mixed redundancy.
    #[must_use]
    pub fn force(mut self) -> Self {
        self.force = true;
        self
    }
    /// Which features it gets.
    #[must_use]
    pub fn features(mut self, choice: FeatureChoice) -> Self {
        self.features = choice;
        self
    }
    /// A property of the pool, as `zpool create -o` takes it.
    #[must_use]
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push((name.to_owned(), value.to_owned()));
        self
    }
    /// A property of its root file system, as `zpool create -O` takes it, but with numbers in full: bytes,
    /// without the letter of a unit.
    #[must_use]
    pub fn root_property(mut self, name: &str, value: &str) -> Self {
        self.root_properties
            .insert(name.to_owned(), value.to_owned());
        self
    }
    /// Who the host is, who writes txgs, how much may be dirty.
    #[must_use]
    pub fn writing(mut self, writing: WriteOptions) -> Self {
        self.writing = writing;
        self
    }
    /// Another clock and randomness. With a fixed one and [`super::Drive::Caller`] the same calls make
    /// the same bytes.
    #[must_use]
    pub fn env(mut self, env: Env) -> Self {
        self.env = Env2(env);
        self
    }
    /// Labels name the devices `/device-0`, `/device-1` and so on instead of telling where they are
    /// now: so pools that are made alike in different places are alike. Whoever opens the pool looks
    /// for its devices where they are told to.
    #[must_use]
    pub fn plain_paths(mut self) -> Self {
        self.has_plain_paths = true;
        self
    }
    /// Memory for cached blocks, in bytes.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Makes the pool. When this returns it is on stable storage.
    ///
    /// # Errors
    /// [`Error::Device`] for a path that cannot be opened; [`Error::Setting`]; [`Error::Create`].
    pub fn create(self) -> Result<LivePool, Error> {
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
        LivePool::create(&self.env.0, &new)
    }
}

fn open_all(paths: &[PathBuf]) -> Result<Vec<NewDevice>, Error> {
    paths.iter().map(|path| open_device(path)).collect()
}

/// Opens a device or image file for a new vdev.
pub(crate) fn open_device(path: &Path) -> Result<NewDevice, Error> {
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
    let queued = QueuedDevice::new(Arc::new(device));
    // Labels name absolute paths; links stay links, they are what a person will look for.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut new = NewDevice::file(&absolute.to_string_lossy(), Arc::new(queued));
    new.is_block_device = is_block_device;
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_leaves_the_devices_as_they_were() {
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
            ("dedup", "on"),
        ] {
            std::fs::write(&image, &before).unwrap();
            let plan = PoolPlan::new("tank").single(&image).force();
            let outcome = plan.root_property(name, value).create();
            assert!(outcome.is_err(), "{name}={value} is taken");
            let after = std::fs::read(&image).unwrap();
            assert!(after == before, "{name}={value} was written");
        }
        let plan = PoolPlan::new("tank").single(&image).force();
        let plan = plan.root_property("reservation", "16777216");
        plan.create().unwrap().export().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
