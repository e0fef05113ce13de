//! Whole pools on simulated disks.

use millpond_device::{Candidate, Device};
use millpond_engine::{
    Error, NewDevice, NewLayout, NewPool, NewTop, NewVdevOptions, NewVdevs, OpenOptions, Pool,
    PoolCandidate, PoolSetting, RootKey, SettingTime, SyncMode, View, WriteOptions,
};
use millpond_ondisk::{Dva, VDEV_DATA_START_BYTES};
use millpond_pool::import::{find_pools, scan_devices};
use millpond_sim::{SimDisk, World};
use millpond_vdev::AllocationClass::{self, Normal};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn name_of(disk: &SimDisk) -> String {
    format!("/sim/d{}.img", disk.number())
}

/// Options with which the caller writes the txgs, so that a seed always gives the same result.
pub fn by_caller() -> WriteOptions {
    WriteOptions {
        sync_mode: SyncMode::Caller,
        ..WriteOptions::default()
    }
}

/// Creates `tank` from these groups of new disks, each group with its layout.
pub fn create(world: &World, tops: &[(NewLayout, usize)], mib: u64) -> Pool {
    create_with(world, tops, mib, by_caller())
}

/// Like [`create`], with options.
pub fn create_with(
    world: &World,
    tops: &[(NewLayout, usize)],
    mib: u64,
    writing: WriteOptions,
) -> Pool {
    let tops: Vec<_> = tops
        .iter()
        .map(|(layout, count)| (Normal, *layout, *count))
        .collect();
    create_of(world, &tops, mib, writing)
}

/// Like [`create_with`], with a class for each group.
pub fn create_of(
    world: &World,
    tops: &[(AllocationClass, NewLayout, usize)],
    mib: u64,
    writing: WriteOptions,
) -> Pool {
    create_without(world, tops, mib, writing, None)
}

/// Creates `tank` as [`create`] does, with an encrypted root file system, from which all datasets inherit.
pub fn create_encrypted(
    world: &World,
    tops: &[(NewLayout, usize)],
    mib: u64,
    properties: &[(&str, &str)],
    key: RootKey,
) -> Pool {
    let tops: Vec<_> = tops
        .iter()
        .map(|(layout, count)| (Normal, *layout, *count))
        .collect();
    let mut new = new_pool(world, &tops, mib, by_caller());
    let properties = properties.iter();
    new.root_properties = properties
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Pool::create_with_key(&world.env(), &new, Some(key)).unwrap()
}

/// Like [`create_of`], with a root file system of this version.
pub fn create_of_version(
    world: &World,
    tops: &[(AllocationClass, NewLayout, usize)],
    mib: u64,
    version: u64,
) -> Pool {
    let mut new = new_pool(world, tops, mib, by_caller());
    new.root_properties = [("version".to_owned(), version.to_string())].into();
    Pool::create(&world.env(), &new).unwrap()
}

/// Like [`create`], of this version of pools.
pub fn create_old(world: &World, tops: &[(NewLayout, usize)], mib: u64, version: u64) -> Pool {
    let tops: Vec<_> = tops
        .iter()
        .map(|(layout, count)| (Normal, *layout, *count))
        .collect();
    let mut new = new_pool(world, &tops, mib, by_caller());
    let version = PoolSetting::parse("version", &version.to_string(), SettingTime::Creation);
    new.settings = vec![version.unwrap()];
    Pool::create(&world.env(), &new).unwrap()
}

/// Like [`create_of`], without a feature.
pub fn create_without(
    world: &World,
    tops: &[(AllocationClass, NewLayout, usize)],
    mib: u64,
    writing: WriteOptions,
    feature: Option<&'static str>,
) -> Pool {
    let mut new = new_pool(world, tops, mib, writing);
    new.settings = feature
        .map(PoolSetting::DisableFeature)
        .into_iter()
        .collect();
    Pool::create(&world.env(), &new).unwrap()
}

fn new_pool(
    world: &World,
    tops: &[(AllocationClass, NewLayout, usize)],
    mib: u64,
    writing: WriteOptions,
) -> NewPool {
    let tops = tops
        .iter()
        .map(|(class, layout, count)| NewTop {
            layout: *layout,
            class: *class,
            devices: (0..*count)
                .map(|_| {
                    let disk = world.disk(mib << 20, 512);
                    NewDevice::file(&name_of(&disk), disk)
                })
                .collect(),
        })
        .collect();
    NewPool {
        vdev_options: NewVdevOptions {
            ashift: Some(9),
            force: true,
        },
        writing,
        system: "sim".into(),
        cache_bytes: Some(16 << 20),
        ..NewPool::new("tank", NewVdevs::of(tops))
    }
}

/// The world's disks, as a search finds them.
pub fn candidates(world: &World) -> Vec<Candidate> {
    world
        .disks()
        .iter()
        .map(|disk| Candidate {
            path: PathBuf::from(name_of(disk)),
            aliases: vec![],
            partition: None,
            device: Arc::clone(disk) as Arc<dyn Device>,
            is_live: false,
        })
        .collect()
}

/// Finds the pool on the world's disks.
pub fn candidate(world: &World) -> PoolCandidate {
    let mut pools = find_pools(&scan_devices(candidates(world)), 0);
    assert_eq!(pools.len(), 1, "pools found");
    pools.remove(0)
}

/// Opens the world's pool for changes.
pub fn open(world: &World) -> Result<Pool, Error> {
    open_candidate(world, &candidate(world))
}

/// Opens a found pool for changes.
pub fn open_candidate(world: &World, candidate: &PoolCandidate) -> Result<Pool, Error> {
    let options = OpenOptions::default();
    Pool::open_candidate(&world.env(), candidate, &options, &by_caller())
}

/// Opens the world's pool for reading.
pub fn read(world: &World) -> Result<View, Error> {
    let options = OpenOptions {
        cache_bytes: Some(16 << 20),
        ..OpenOptions::default()
    };
    View::open_candidate(&candidate(world), &options)
}

/// Overwrites what is stored at these addresses on all disks. Each top-level vdev must be a disk or a mirror, and
/// the pool must be closed.
pub fn lose(world: &World, addresses: &[Dva]) {
    for disk in world.disks() {
        for dva in addresses {
            let zeros = vec![0; dva.asize_bytes as usize];
            disk.write(VDEV_DATA_START_BYTES + dva.offset_bytes, &zeros)
                .unwrap();
        }
    }
}

/// Verifies every block of the pool.
pub fn verify(pool: &View) -> Result<(), String> {
    let problems = std::sync::Mutex::new(vec![]);
    let note = |problem: &millpond_verify::Problem| {
        problems.lock().unwrap().push(format!("{problem:?}"));
    };
    let report = pool.verify(&millpond_verify::Progress::default(), &note);
    let report = report.map_err(|error| error.to_string())?;
    if report.is_clean() {
        return Ok(());
    }
    Err(format!(
        "{:#?}\n{report:#?}",
        problems.lock().unwrap().iter().take(5).collect::<Vec<_>>()
    ))
}

/// Verifies every block of the pool after a power cut, which may have torn a label.
pub fn verify_blocks(pool: &View) -> Result<(), String> {
    let report = pool.verify(&millpond_verify::Progress::default(), &|_| {});
    let report = report.map_err(|error| error.to_string())?;
    let mut leaves = report.leaves.values();
    match report.lost == 0
        && report.repairable == 0
        && leaves.all(|leaf| leaf.wrong == 0 && leaf.faults == 0)
    {
        true => Ok(()),
        false => Err(format!("{report:#?}")),
    }
}

/// Writes the disks to image files.
pub fn to_files(world: &World, folder: &Path) {
    for disk in world.disks() {
        let path = folder.join(format!("d{}.img", disk.number()));
        let mut file = std::fs::File::create(path).unwrap();
        file.set_len(disk.size_bytes()).unwrap();
        for (offset, page) in disk.content().pages() {
            file.seek(SeekFrom::Start(offset)).unwrap();
            file.write_all(page).unwrap();
        }
    }
}
