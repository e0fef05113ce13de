//! Disks that fail, vanish, return and corrupt data, below whole pools.

use crate::sim;
use millpond_device::Device;
use millpond_engine::{NewLayout, NewLayout::Mirror, NewLayout::Raidz, NewLayout::Single};
use millpond_sim::{Fault, FaultPlan, Scope, Seed, World};
use millpond_tests::oracle::zdb;
use millpond_tests::workload::Life;

const LABELS_BYTES: u64 = 4 << 20;

fn lived(world: &World, shape: &str, tops: &[(NewLayout, usize)]) -> (millpond_engine::Pool, Life) {
    let pool = sim::create(world, tops, 128);
    let mut life = Life::new("tank", shape, 5);
    life.file_bytes_max = 100_000;
    life.steps(&pool, 40);
    pool.sync().unwrap();
    (pool, life)
}

fn judged(world: &World, what: &str) {
    let folder = tempfile::tempdir().unwrap();
    sim::to_files(world, folder.path());
    zdb::judge(folder.path(), "tank").unwrap().require(what);
}

/// Some writes of one disk fail. No data is lost, even if this disk is absent afterwards.
fn a_disk_that_fails_some_writes(shape: &str, tops: &[(NewLayout, usize)]) {
    let world = World::without_journal(3);
    let (pool, mut life) = lived(&world, shape, tops);
    let bad = &world.disks()[1];
    bad.set_faults(Some(
        FaultPlan::new(Seed::new(9))
            .with(Scope::Writes, Fault::Fail, 200_000)
            .sparing(LABELS_BYTES),
    ));
    life.steps(&pool, 40);
    pool.sync().unwrap();
    assert!(bad.broken_promises() > 0, "{shape}: nothing went wrong");
    bad.set_faults(None);
    life.compare(&pool.committed().unwrap(), shape);
    pool.export().unwrap();
    life.compare(&sim::read(&world).unwrap(), shape);
    bad.set_absent(true);
    life.compare(
        &sim::read(&world).unwrap(),
        &format!("{shape} without the disk"),
    );
}

#[test]
fn a_side_of_a_mirror_may_fail_some_writes() {
    a_disk_that_fails_some_writes("mirror that fails", &[(Mirror, 2)]);
}

#[test]
fn a_disk_of_a_raidz_may_fail_some_writes() {
    a_disk_that_fails_some_writes("raidz that fails", &[(Raidz(1), 3)]);
}

#[test]
fn a_disk_of_a_raidz2_may_fail_some_writes() {
    a_disk_that_fails_some_writes("raidz2 that fails", &[(Raidz(2), 4)]);
}

/// A disk vanishes during work and returns; then another one is lost for good.
///
/// The first disk lacks the data written during its absence, and the pool must know this.
fn a_disk_that_vanishes(shape: &str, tops: &[(NewLayout, usize)]) {
    let world = World::without_journal(4);
    let (pool, mut life) = lived(&world, shape, tops);
    let away = world.disks()[0].clone();
    away.set_absent(true);
    life.steps(&pool, 40);
    pool.sync().unwrap();
    life.compare(&pool.committed().unwrap(), shape);
    away.set_absent(false);
    life.steps(&pool, 20);
    pool.sync().unwrap();
    life.compare(&pool.committed().unwrap(), &format!("{shape}, back"));
    pool.export().unwrap();
    life.compare(&sim::read(&world).unwrap(), &format!("{shape}, reopened"));
    let pool = sim::open(&world).unwrap();
    life.steps(&pool, 20);
    pool.export().unwrap();
    life.compare(&sim::read(&world).unwrap(), &format!("{shape}, gone on"));
    // The disk never received the data written during its absence. Without it everything must still be
    // readable.
    away.set_absent(true);
    life.compare(&sim::read(&world).unwrap(), &format!("{shape}, without it"));
}

#[test]
fn a_side_of_a_mirror_may_vanish_and_return() {
    a_disk_that_vanishes("mirror vanished", &[(Mirror, 2)]);
}

#[test]
fn a_disk_of_a_raidz_may_vanish_and_return() {
    a_disk_that_vanishes("raidz vanished", &[(Raidz(1), 3)]);
}

#[test]
fn a_pool_may_be_opened_and_changed_without_a_disk() {
    for (shape, tops) in [
        ("mirror degraded", (Mirror, 2)),
        ("raidz degraded", (Raidz(1), 3)),
    ] {
        let world = World::without_journal(6);
        let (pool, mut life) = lived(&world, shape, &[tops]);
        pool.export().unwrap();
        let away = world.disks()[0].clone();
        away.set_absent(true);
        let pool = sim::open(&world).unwrap();
        life.steps(&pool, 40);
        pool.export().unwrap();
        life.compare(&sim::read(&world).unwrap(), shape);
        away.set_absent(false);
        life.compare(
            &sim::read(&world).unwrap(),
            &format!("{shape}, with the old disk"),
        );
        let pool = sim::open(&world).unwrap();
        life.compare(
            &pool.committed().unwrap(),
            &format!("{shape}, with the old disk"),
        );
        life.steps(&pool, 20);
        pool.export().unwrap();
        life.compare(&sim::read(&world).unwrap(), &format!("{shape}, gone on"));
    }
}

/// One disk is silently corrupted: all reads are served from the others.
#[test]
fn silent_rot_on_one_disk_changes_nothing() {
    for (shape, tops) in [
        ("mirror rotten", (Mirror, 2)),
        ("raidz rotten", (Raidz(1), 3)),
    ] {
        let world = World::without_journal(8);
        let (pool, mut life) = lived(&world, shape, &[tops]);
        let rotten = &world.disks()[1];
        let mut at = LABELS_BYTES + 100;
        while at < rotten.size_bytes() - LABELS_BYTES {
            rotten.rot(at, &[0x5a; 700]);
            at += 5000;
        }
        life.compare(&pool.committed().unwrap(), shape);
        life.steps(&pool, 40);
        pool.export().unwrap();
        life.compare(&sim::read(&world).unwrap(), shape);
        let pool = sim::open(&world).unwrap();
        life.steps(&pool, 20);
        pool.export().unwrap();
        life.compare(&sim::read(&world).unwrap(), shape);
    }
}

/// Without redundancy, a failed write suspends the pool, and promised data is kept.
#[test]
fn without_redundancy_a_fault_stops_and_keeps_fsynced_data() {
    let world = World::without_journal(7);
    let (pool, mut life) = lived(&world, "single that fails", &[(Single, 1)]);
    let promised = life.clone();
    let disk = world.disks()[0].clone();
    disk.set_faults(Some(FaultPlan::failing(Scope::Writes)));
    life.dataset_percent = 0;
    let mut outcome = Ok(());
    for _ in 0..20 {
        outcome = outcome.and_then(|()| life.step(&pool));
    }
    let outcome = outcome.and_then(|()| pool.sync());
    assert!(outcome.is_err(), "acknowledged what no disk took");
    assert!(pool.export().is_err(), "exported what no disk took");
    disk.set_faults(None);
    let read = sim::read(&world).unwrap();
    promised.compare(&read, "after the disk came back");
    sim::verify(&read).unwrap();
    let pool = sim::open(&world).unwrap();
    let mut life = promised;
    life.steps(&pool, 20);
    pool.export().unwrap();
    life.compare(&sim::read(&world).unwrap(), "gone on");
    judged(&world, "gone on after a failed write");
}
