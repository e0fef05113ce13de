//! Pools of old versions, made and changed here, that the module imports, scrubs, reads and changes.

use crate::rig::Rig;
use crate::{change_theirs, file_systems, judged, seed};
use millpond_check::{CheckOptions, check_pool};
use millpond_engine::PoolBuilder;
use millpond_ondisk::PoolVersion;
use millpond_tests::oracle::kernel::{self, Release, only_one_has, written};
use millpond_tests::raised;
use millpond_tests::workload::{Life, manifest};

/// OpenZFS 2.3 has a pool of this version between our changes, and after it was raised.
fn handed(version: u64, disks: usize, plan: impl Fn(&Rig) -> PoolBuilder) {
    let what = format!("version {version}");
    if let Some(why) = kernel::absent(Release::V2_3) {
        println!("{what}: not judged: {why}");
        return;
    }
    let rig = Rig::new(disks, 512);
    let pool = plan(&rig).property("version", &version.to_string());
    let pool = pool.create().unwrap();
    let mut life = Life::new("tank", &what, seed());
    life.pool_version = PoolVersion(version);
    life.makes_old_file_systems = true;
    life.dataset_percent = 30;
    life.steps(&pool, 200);
    pool.export().unwrap();
    whole(&rig, version, &what);
    judged(&rig, Release::V2_3, &what, Some("one"));
    whole(&rig, version, &format!("{what}, changed by the module"));

    let names = file_systems(&rig.read("tank"));
    let pool = rig.open("tank");
    change_theirs(&pool, &names, "one");
    life.dataset_percent = 0;
    life.steps(&pool, 60);
    let datasets = pool.datasets();
    datasets.snapshot(&["tank@ours"], &[]).unwrap();
    datasets
        .clone_snapshot("tank@ours", "tank/ours", &[])
        .unwrap();
    datasets.rollback("tank@ours").unwrap();
    pool.export().unwrap();
    whole(&rig, version, &format!("{what}, changed again"));
    judged(&rig, Release::V2_3, &format!("{what} again"), None);

    let pool = rig.open("tank");
    raised::raise(&pool, PoolVersion::FEATURES).unwrap();
    life.steps(&pool, 60);
    pool.export().unwrap();
    let what = format!("{what}, raised");
    whole(&rig, 5000, &what);
    read_by_module(&rig, &what);
}

/// The module imports, scrubs and reads the pool. Objects are not counted by owner before each file system is mounted, so
/// only what is in the files is compared.
fn read_by_module(rig: &Rig, what: &str) {
    println!("  {what}: 2.3 has it");
    let share = tempfile::tempdir().unwrap();
    let ours = manifest(&rig.read("tank")).unwrap();
    let verdict = kernel::judge(Release::V2_3, &rig.images, "tank", Some(share.path()));
    verdict.unwrap().require(what);
    let count = ours.len();
    let differing = only_one_has(ours, written(share.path(), "manifest.txt"));
    println!(
        "    files: {count} lines compared, {} differ",
        differing.len()
    );
    assert!(
        differing.is_empty(),
        "{what}:\n  {}",
        differing.join("\n  ")
    );
}

fn whole(rig: &Rig, version: u64, what: &str) {
    rig.judge("tank");
    let read = rig.read("tank");
    assert_eq!(read.inner().version(), version, "{what}");
    let report = check_pool(read.inner(), &CheckOptions::default()).unwrap();
    assert!(report.findings.is_empty(), "{what}: {:#?}", report.findings);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn old_pools_of_version_1_round_trip_through_openzfs() {
    handed(1, 3, |rig| PoolBuilder::new("tank").raidz(1, &rig.images));
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn old_pools_of_version_15_round_trip_through_openzfs() {
    handed(15, 2, |rig| PoolBuilder::new("tank").mirror(&rig.images));
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn old_pools_of_version_28_round_trip_through_openzfs() {
    handed(28, 1, |rig| rig.stripe("tank"));
}
