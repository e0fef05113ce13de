//! Pools created by this project, judged by OpenZFS.
//!
//! `zdb` judges them, and with `MILLPOND_KERNEL=1` the kernel module does too.
//!
//! Clock and random numbers are fixed and the caller writes the txgs. The images are therefore the same in
//! every run, and earlier results of `zdb` remain valid.
#![allow(clippy::unwrap_used)]

use millpond_dataset::{DatasetInitializer, Datasets, NewContents};
use millpond_device::{Device, FileDevice, OpenOptions};
use millpond_env::sync::{Arc, Mutex};
use millpond_env::{Clock, Entropy, Env};
use millpond_object::ObjectSet;
use millpond_pool::{
    FeatureChoice, HistoryCommand, NewDevice, NewLayout, NewPool, NewTop, NewVdevOptions, NewVdevs,
    Pool, PoolSetting, SettingTime, SyncMode, WriteOptions,
};
use millpond_posix::{NewFileSystem, create_file_system};
use millpond_tests::oracle::{kernel, zdb};
use millpond_txg::Transaction;
use millpond_vdev::AllocationClass;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Creates the first objects of file systems.
struct Files;

impl DatasetInitializer for Files {
    fn create(
        &self,
        set: &Arc<ObjectSet>,
        tx: &Transaction,
        new: &NewContents,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let NewContents::FileSystem(new) = new else {
            return Err("volumes are not made here".into());
        };
        let shape = NewFileSystem {
            has_projects: new.has_projects,
            default_quotas: new.default_quotas,
            ..NewFileSystem::default()
        };
        Ok(create_file_system(set, tx, &fixed_env(2), &shape)?)
    }
}

struct SeededRng(Mutex<u64>);

impl Entropy for SeededRng {
    fn fill(&self, bytes: &mut [u8]) {
        let mut state = self.0.lock();
        for byte in bytes {
            *state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = (*state >> 56) as u8;
        }
    }
}

struct Noon;

impl Clock for Noon {
    fn wall_ns(&self) -> u64 {
        1_790_000_000_000_000_000
    }
    fn monotonic_ns(&self) -> u64 {
        1_000_000_000
    }
}

fn fixed_env(seed: u64) -> Env {
    Env {
        clock: Arc::new(Noon),
        entropy: Arc::new(SeededRng(Mutex::new(seed))),
    }
}

/// Images in a directory. With `MILLPOND_KEEP` they stay there for inspection.
struct Images {
    folder: PathBuf,
    _temporary: Option<tempfile::TempDir>,
    count: usize,
    /// Whether the labels describe them as disks, so that they can be attached to a machine as disks.
    are_disks: bool,
}

impl Images {
    fn new(case: &str) -> Self {
        match std::env::var_os("MILLPOND_KEEP") {
            Some(kept) => {
                let folder = Path::new(&kept).join(case);
                let _ = std::fs::remove_dir_all(&folder);
                std::fs::create_dir_all(&folder).unwrap();
                Self {
                    folder,
                    _temporary: None,
                    count: 0,
                    are_disks: true,
                }
            }
            None => {
                let temporary = tempfile::tempdir().unwrap();
                Self {
                    folder: temporary.path().to_owned(),
                    _temporary: Some(temporary),
                    count: 0,
                    are_disks: true,
                }
            }
        }
    }
    fn make(&mut self, count: usize, mib: u64) -> Vec<NewDevice> {
        (0..count)
            .map(|_| {
                let name = format!("d{}", self.count);
                let path = self.folder.join(&name);
                self.count += 1;
                let file = std::fs::File::create(&path).unwrap();
                file.set_len(mib << 20).unwrap();
                let options = OpenOptions {
                    write: true,
                    ..OpenOptions::default()
                };
                let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, options).unwrap());
                NewDevice {
                    is_block_device: self.are_disks,
                    ..NewDevice::file(&format!("/images/{name}"), device)
                }
            })
            .collect()
    }
    fn judge(&self, pool: &str) {
        zdb::judge(&self.folder, pool)
            .unwrap()
            .require(&self.folder.display().to_string());
        if std::env::var_os("MILLPOND_KERNEL").is_some() && self.are_disks {
            let mut images: Vec<PathBuf> = std::fs::read_dir(&self.folder)
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .collect();
            images.sort();
            kernel::judge(kernel::Release::V2_3, &images, pool, None)
                .unwrap()
                .require(&format!("{} in the kernel", self.folder.display()));
        }
    }
}

fn top(layout: NewLayout, devices: Vec<NewDevice>) -> NewTop {
    NewTop {
        layout,
        class: AllocationClass::Normal,
        devices,
    }
}

fn new_pool(name: &str, vdevs: NewVdevs, ashift: &str) -> NewPool {
    NewPool {
        name: name.into(),
        vdevs,
        vdev_options: NewVdevOptions::default(),
        features: FeatureChoice::Default,
        settings: vec![PoolSetting::parse("ashift", ashift, SettingTime::Creation).unwrap()],
        root_properties: BTreeMap::new(),
        writing: WriteOptions {
            hostid: 0x0100_504d,
            hostname: Some("here".into()),
            sync_mode: SyncMode::Caller,
            ..WriteOptions::default()
        },
        system: "here 6.1 #1 SMP x86_64".into(),
        cache_bytes: Some(32 << 20),
    }
}

fn create(new: &NewPool) -> Arc<Pool> {
    Pool::create(
        &fixed_env(1),
        new,
        &|_| false,
        Datasets::new(Arc::new(Files)),
    )
    .unwrap()
}

fn of(tops: Vec<NewTop>) -> NewVdevs {
    NewVdevs {
        tops,
        ..NewVdevs::default()
    }
}

/// Creates a pool of these vdevs and judges it exported; one case also not exported.
fn made_and_judged(case: &str, ashift: &str, vdevs: impl Fn(&mut Images) -> NewVdevs) {
    let ways: &[bool] = if case == "one" {
        &[false, true]
    } else {
        &[true]
    };
    for is_exported in ways.iter().copied() {
        let mut images = Images::new(&format!("{case}-{is_exported}"));
        let vdevs = vdevs(&mut images);
        let live = create(&new_pool(case, vdevs, ashift));
        live.record_command(&HistoryCommand {
            command: format!("zpool create {case}"),
            user: 0,
        })
        .unwrap();
        if is_exported {
            live.export().unwrap();
        }
        drop(live);
        images.judge(case);
    }
}

#[test]
fn a_new_pool_of_one_device_is_without_fault() {
    made_and_judged("one", "12", |images| {
        of(vec![top(NewLayout::Single, images.make(1, 64))])
    });
    made_and_judged("nine", "9", |images| {
        images.are_disks = false;
        of(vec![top(NewLayout::Single, images.make(1, 64))])
    });
}

#[test]
fn a_new_mirror_is_without_fault() {
    made_and_judged("two", "12", |images| {
        of(vec![top(NewLayout::Mirror, images.make(2, 64))])
    });
}

#[test]
fn a_new_raidz_is_without_fault() {
    made_and_judged("z1", "12", |images| {
        of(vec![top(NewLayout::Raidz(1), images.make(3, 64))])
    });
    made_and_judged("z2", "9", |images| {
        of(vec![top(NewLayout::Raidz(2), images.make(5, 64))])
    });
}

#[test]
fn a_new_pool_of_all_classes_is_without_fault() {
    made_and_judged("classes", "12", |images| {
        let class = |layout, class, devices| NewTop {
            layout,
            class,
            devices,
        };
        NewVdevs {
            tops: vec![
                top(NewLayout::Mirror, images.make(2, 64)),
                class(
                    NewLayout::Mirror,
                    AllocationClass::Special,
                    images.make(2, 64),
                ),
                class(
                    NewLayout::Mirror,
                    AllocationClass::Dedup,
                    images.make(2, 64),
                ),
                class(NewLayout::Single, AllocationClass::Log, images.make(1, 64)),
            ],
            spares: images.make(1, 64),
            caches: images.make(1, 64),
        }
    });
}

#[test]
fn a_new_pool_without_features_is_without_fault() {
    let mut images = Images::new("plain");
    let vdevs = of(vec![top(NewLayout::Single, images.make(1, 64))]);
    let mut new = new_pool("plain", vdevs, "12");
    new.features = FeatureChoice::OnlyNamed;
    create(&new).export().unwrap();
    images.judge("plain");
}

#[test]
fn a_pool_that_grew_is_without_fault() {
    let mut images = Images::new("grown");
    let vdevs = of(vec![top(NewLayout::Single, images.make(1, 64))]);
    let live = create(&new_pool("grown", vdevs, "12"));
    let more = of(vec![top(NewLayout::Single, images.make(1, 80))]);
    live.add_vdevs(&more, NewVdevOptions::default(), &|_| false)
        .unwrap();
    for number in 0..5 {
        let note = PoolSetting::parse("com.example:n", &number.to_string(), SettingTime::Later);
        live.set_property(&note.unwrap()).unwrap();
    }
    live.reguid(None).unwrap();
    live.export().unwrap();
    images.judge("grown");
}
