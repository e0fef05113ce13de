//! Pools created by this project, judged by OpenZFS.
//!
//! `zdb` judges them, and with `MILLPOND_KERNEL=1` the kernel module does too.
//!
//! Clock and random numbers are fixed and the caller writes the txgs. The images are therefore the same in
//! every run, and earlier results of `zdb` remain valid.
#![allow(clippy::unwrap_used)]

use millpond_dataset::Datasets;
use millpond_device::{Device, FileDevice, OpenOptions};
use millpond_engine::FileSystemInitializer;
use millpond_env::sync::Arc;
use millpond_pool::{
    DraidShape, FeatureChoice, HistoryCommand, NewDevice, NewLayout, NewPool, NewTop,
    NewVdevOptions, NewVdevs, Pool, PoolSetting, SettingTime, SyncMode, WriteOptions,
};
use millpond_sim::World;
use millpond_tests::oracle::{kernel, zdb};
use millpond_vdev::AllocationClass;
use std::path::{Path, PathBuf};

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
        let (folder, temporary) = match std::env::var_os("MILLPOND_KEEP") {
            Some(kept) => {
                let folder = Path::new(&kept).join(case);
                let _ = std::fs::remove_dir_all(&folder);
                std::fs::create_dir_all(&folder).unwrap();
                (folder, None)
            }
            None => {
                let temporary = tempfile::tempdir().unwrap();
                (temporary.path().to_owned(), Some(temporary))
            }
        };
        Self {
            folder,
            _temporary: temporary,
            count: 0,
            are_disks: true,
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

fn new_pool(name: &str, vdevs: NewVdevs, ashift: &str) -> NewPool {
    NewPool {
        settings: vec![PoolSetting::parse("ashift", ashift, SettingTime::Creation).unwrap()],
        writing: WriteOptions {
            hostid: 0x0100_504d,
            hostname: Some("here".into()),
            sync_mode: SyncMode::Caller,
            ..WriteOptions::default()
        },
        system: "here 6.1 #1 SMP x86_64".into(),
        cache_bytes: Some(32 << 20),
        ..NewPool::new(name, vdevs)
    }
}

fn create(new: &NewPool) -> Arc<Pool> {
    let env = World::without_journal(1).env();
    let datasets = Datasets::new(FileSystemInitializer::of(&env, &new.writing));
    Pool::create(&env, new, &|_| false, datasets).unwrap()
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
        NewVdevs::of(vec![NewTop::normal(NewLayout::Single, images.make(1, 64))])
    });
    made_and_judged("nine", "9", |images| {
        images.are_disks = false;
        NewVdevs::of(vec![NewTop::normal(NewLayout::Single, images.make(1, 64))])
    });
}

#[test]
fn a_new_mirror_is_without_fault() {
    made_and_judged("two", "12", |images| {
        NewVdevs::of(vec![NewTop::normal(NewLayout::Mirror, images.make(2, 64))])
    });
}

#[test]
fn a_new_raidz_is_without_fault() {
    made_and_judged("z1", "12", |images| {
        NewVdevs::of(vec![NewTop::normal(
            NewLayout::Raidz(1),
            images.make(3, 64),
        )])
    });
    made_and_judged("z2", "9", |images| {
        NewVdevs::of(vec![NewTop::normal(
            NewLayout::Raidz(2),
            images.make(5, 64),
        )])
    });
}

#[test]
fn a_new_draid_is_without_fault() {
    let draid = |parity, data, spares| {
        NewLayout::Draid(DraidShape {
            parity,
            data,
            spares,
        })
    };
    made_and_judged("d1", "12", |images| {
        NewVdevs::of(vec![NewTop::normal(draid(1, 2, 0), images.make(3, 128))])
    });
    made_and_judged("d2", "9", |images| NewVdevs {
        spares: images.make(1, 128),
        ..NewVdevs::of(vec![
            NewTop::normal(draid(2, 3, 1), images.make(7, 128)),
            NewTop::normal(draid(2, 4, 2), images.make(9, 128)),
        ])
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
                NewTop::normal(NewLayout::Mirror, images.make(2, 64)),
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
    let vdevs = NewVdevs::of(vec![NewTop::normal(NewLayout::Single, images.make(1, 64))]);
    let mut new = new_pool("plain", vdevs, "12");
    new.features = FeatureChoice::OnlyNamed;
    create(&new).export().unwrap();
    images.judge("plain");
}

#[test]
fn a_pool_that_grew_is_without_fault() {
    let mut images = Images::new("grown");
    let vdevs = NewVdevs::of(vec![NewTop::normal(NewLayout::Single, images.make(1, 64))]);
    let live = create(&new_pool("grown", vdevs, "12"));
    let more = NewVdevs::of(vec![NewTop::normal(NewLayout::Single, images.make(1, 80))]);
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
