//! Pools of image files that are imported after devices were lost.

use millpond_control::{
    Changed, ImportError, ImportRequest, NewDevices, NewPoolRequest, PoolChange, SearchPaths,
    TopRequest,
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
        let folder = tempfile::tempdir().unwrap();
        for name in images {
            let file = std::fs::File::create(folder.path().join(name)).unwrap();
            file.set_len(96 << 20).unwrap();
        }
        Self { folder }
    }

    fn image(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn top(&self, class: AllocationClass, layout: NewLayout, images: &[&str]) -> TopRequest {
        let path = |name: &&str| self.image(name).to_string_lossy().into_owned();
        TopRequest {
            class,
            layout,
            paths: images.iter().map(path).collect(),
        }
    }

    /// Creates the pool `tank`.
    fn create(&self, tops: Vec<TopRequest>) -> ImportedPools {
        let pools = pools();
        let request = NewPoolRequest {
            name: "tank".into(),
            temporary_name: None,
            devices: NewDevices {
                tops,
                ..NewDevices::default()
            },
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

    fn import(&self, without_logs: bool) -> Result<ImportedPools, ImportError> {
        let folder = self.folder.path().to_string_lossy().into_owned();
        let request = ImportRequest {
            pool: "tank".into(),
            search: SearchPaths {
                paths: vec![folder],
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
fn write(pool: &Pool, name: &str) {
    let files = pool.file_system("tank").unwrap();
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
fn has(pool: &Pool, name: &str) -> bool {
    let files = pool.file_system("tank").unwrap();
    let Ok(node) = files.root().unwrap().lookup(name.as_bytes()) else {
        return false;
    };
    let mut content = vec![0; name.len()];
    node.read(0, &mut content).unwrap();
    content == name.as_bytes()
}

/// A pool as after a crash: `synced` is in the tree, `logged` and `logged again` only in the log. If the log device is new, the
/// log's next block is still on the mirror when `logged` is written.
fn crashed(is_log_new: bool) -> Stage {
    let stage = Stage::new(&["a", "b", "log"]);
    let log = stage.top(AllocationClass::Log, NewLayout::Single, &["log"]);
    let mut tops = vec![stage.top(AllocationClass::Normal, NewLayout::Mirror, &["a", "b"])];
    if !is_log_new {
        tops.push(log.clone());
    }
    let pools = stage.create(tops);
    let pool = pools.writable("tank").unwrap();
    write(&pool, "synced");
    if is_log_new {
        let devices = NewDevices {
            tops: vec![log],
            ..NewDevices::default()
        };
        let add = PoolChange::Add(devices);
        pools.apply("tank", &add, &mut Changed::default()).unwrap();
    }
    pool.inner().freeze().unwrap();
    write(&pool, "logged");
    write(&pool, "logged again");
    drop(pool);
    pools.leave("tank", false, None).unwrap();
    stage
}

/// The files of the pool that are whole.
fn found(pools: &ImportedPools) -> Vec<&'static str> {
    let pool = pools.writable("tank").unwrap();
    let names = ["synced", "logged", "logged again", "later"];
    names.into_iter().filter(|name| has(&pool, name)).collect()
}

#[test]
fn a_lost_log_device_with_records_is_given_up() {
    let stage = crashed(false);
    stage.hide("log");
    let refused = stage.import(false).err();
    assert!(
        matches!(&refused, Some(ImportError::MissingLogs(logs)) if logs.len() == 1),
        "{refused:?}"
    );
    let pools = stage.import(true).unwrap();
    assert_eq!(found(&pools), ["synced"]);
    write(&pools.writable("tank").unwrap(), "later");
    pools.leave("tank", false, None).unwrap();
    let pools = stage.import(true).unwrap();
    assert_eq!(found(&pools), ["synced", "later"]);
}

#[test]
fn what_is_not_on_a_lost_log_device_is_replayed() {
    let stage = crashed(true);
    stage.hide("log");
    let pools = stage.import(true).unwrap();
    assert_eq!(found(&pools), ["synced", "logged"]);
    write(&pools.writable("tank").unwrap(), "later");
    pools.leave("tank", false, None).unwrap();
    let pools = stage.import(true).unwrap();
    assert_eq!(found(&pools), ["synced", "logged", "later"]);
}

#[test]
fn a_log_that_is_there_is_replayed_although_logs_may_be_missing() {
    let stage = crashed(false);
    let pools = stage.import(true).unwrap();
    assert_eq!(found(&pools), ["synced", "logged", "logged again"]);
}

#[test]
fn a_missing_data_device_is_no_missing_log() {
    let stage = Stage::new(&["a", "b", "log"]);
    let pools = stage.create(vec![
        stage.top(AllocationClass::Normal, NewLayout::Single, &["a"]),
        stage.top(AllocationClass::Normal, NewLayout::Single, &["b"]),
        stage.top(AllocationClass::Log, NewLayout::Single, &["log"]),
    ]);
    write(&pools.writable("tank").unwrap(), "synced");
    pools.leave("tank", false, None).unwrap();
    drop(pools);
    stage.hide("b");
    let bytes = || ["a", "log"].map(|name| std::fs::read(stage.image(name)).unwrap());
    let before = bytes();
    for without_logs in [false, true] {
        let refused = stage.import(without_logs).err();
        assert!(
            matches!(refused, Some(ImportError::MissingDevices)),
            "{refused:?}"
        );
    }
    assert!(bytes() == before, "nothing was written");
}
