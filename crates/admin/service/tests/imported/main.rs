//! Pools of image files that are created, left as they are, and imported again.

mod cache_devices;
mod lost_devices;
mod lost_object_set;
mod programs;

use millpond_control::{
    ImportError, ImportRequest, NewDevices, NewPoolRequest, SearchPaths, TopRequest,
};
use millpond_engine::{
    AllocationClass, Caller, FeatureChoice, HistoryCommand, NewLayout, NewMode, Pool, WriteAt,
};
use millpond_env::{Env, Tunable};
use millpond_service::ImportedPools;
use std::path::PathBuf;

/// A folder of images.
struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    fn new(images: &[&str]) -> Self {
        let images: Vec<(&str, u64)> = images.iter().map(|name| (*name, 96)).collect();
        Self::sized(&images)
    }

    /// Images with their sizes in MiB.
    fn sized(images: &[(&str, u64)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, mib) in images {
            let file = std::fs::File::create(folder.path().join(name)).unwrap();
            file.set_len(mib << 20).unwrap();
        }
        Self { folder }
    }

    fn image(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn path(&self, name: &str) -> String {
        self.image(name).to_string_lossy().into_owned()
    }

    fn top(&self, class: AllocationClass, layout: NewLayout, images: &[&str]) -> TopRequest {
        TopRequest {
            class,
            layout,
            paths: images.iter().map(|name| self.path(name)).collect(),
        }
    }

    /// Creates the pool `tank`.
    fn create(&self, devices: NewDevices) -> ImportedPools {
        let pools = pools();
        let request = NewPoolRequest {
            name: "tank".into(),
            temporary_name: None,
            devices,
            features: FeatureChoice::Default,
            properties: vec![],
            root_properties: vec![],
            root_quotas: vec![],
            root_key: None,
            only_check: false,
        };
        pools.create(&request, &command()).unwrap();
        pools
    }

    /// Imports it, to be written.
    fn import(&self, without_logs: bool) -> Result<ImportedPools, ImportError> {
        let request = ImportRequest {
            pool: "tank".into(),
            search: SearchPaths {
                paths: vec![self.folder.path().to_string_lossy().into_owned()],
                cache_file: None,
            },
            force: true,
            without_logs,
            ..ImportRequest::default()
        };
        let pools = pools();
        let imported = pools.import(&request, Some(&command()))?;
        assert_eq!(imported.read_only_because, None);
        Ok(pools)
    }

    /// Moves an image to where no import looks.
    fn hide(&self, image: &str) {
        let hidden = self.image("hidden");
        std::fs::create_dir_all(&hidden).unwrap();
        std::fs::rename(self.image(image), hidden.join(image)).unwrap();
    }

    /// Moves it back.
    fn show(&self, image: &str) {
        std::fs::rename(self.image("hidden").join(image), self.image(image)).unwrap();
    }
}

fn of_tops(tops: Vec<TopRequest>) -> NewDevices {
    NewDevices {
        tops,
        ..NewDevices::default()
    }
}

fn command() -> HistoryCommand {
    HistoryCommand {
        command: "test".into(),
        user: 0,
    }
}

fn pools() -> ImportedPools {
    let env = Env::real();
    assert!(env.tunables.set(Tunable::AllowFreeze, 1));
    ImportedPools::new(&env, 0, None)
}

/// Writes a file and puts it on stable storage.
fn write(pool: &Pool, dataset: &str, name: &str) {
    let files = pool.file_system(dataset).unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o600);
    let created = files.create(&caller, &root, name.as_bytes(), mode, true);
    let node = created.unwrap().0;
    let content = name.as_bytes();
    files
        .write(&caller, &node, WriteAt::Offset(0), content)
        .unwrap();
    files.fsync(&node).unwrap();
}

/// Whether the file is there, with its content.
fn has(pool: &Pool, dataset: &str, name: &str) -> bool {
    let files = pool.file_system(dataset).unwrap();
    let Ok(node) = files.root().unwrap().lookup(name.as_bytes()) else {
        return false;
    };
    let mut content = vec![0; name.len()];
    node.read(0, &mut content).unwrap();
    content == name.as_bytes()
}
