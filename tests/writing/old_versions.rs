//! File systems of versions 1 to 4, made and changed here.
//!
//! Random work on pools with file systems of all versions, power cuts, replays of their logs, and `zdb`.

use crate::{crash, log, sim};
use millpond_engine::{AllocationClass, NewLayout::Mirror, NewLayout::Single};
use millpond_sim::World;
use millpond_tests::oracle::zdb;
use millpond_tests::workload::Life;

const VERSIONS: [u64; 4] = [1, 2, 3, 4];

fn judge(world: &World, what: &str) {
    let folder = tempfile::tempdir().unwrap();
    sim::to_files(world, folder.path());
    zdb::judge(folder.path(), "tank").unwrap().require(what);
}

#[test]
fn random_work_on_file_systems_of_all_versions_is_as_in_memory() {
    for seed in crash::seeds() {
        let world = World::new(seed + 40);
        let version = VERSIONS[seed as usize % 4];
        let tops = [(AllocationClass::Normal, Mirror, 2)];
        let mut pool = sim::create_of_version(&world, &tops, 512, version);
        let mut life = Life::new("tank", "old versions", seed + 40);
        life.makes_old_file_systems = true;
        life.dataset_percent = 20;
        for round in 0..6 {
            life.steps(&pool, 60);
            pool.export().unwrap();
            let read = sim::read(&world).unwrap();
            let what = format!("version {version}, seed {seed}, round {round}");
            life.compare(&read, &what);
            sim::verify(&read).unwrap_or_else(|error| panic!("{what}: {error}"));
            drop(read);
            judge(&world, &what);
            pool = sim::open(&world).unwrap();
        }
    }
}

#[test]
fn power_cuts_keep_synced_work_in_old_versions() {
    let makes_old = |life: &mut Life| {
        life.makes_old_file_systems = true;
        life.dataset_percent = 25;
    };
    for seed in crash::seeds() {
        crash::cut_life("crash old", &[(Single, 1)], seed + 7, 12, makes_old);
    }
}

#[test]
fn fsynced_data_survives_a_crash_in_every_version() {
    let one = [(AllocationClass::Normal, Single, 1)];
    for seed in crash::seeds() {
        for version in VERSIONS {
            log::cut_version(&one, version, seed + version, 120, 3);
        }
    }
}
