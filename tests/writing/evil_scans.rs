//! Scrubs on hardware that damages data: memory, controllers, disks that lie.

use crate::scan::{finish, is_sound, leaf, lived, missed, rot, scrub};
use crate::sim;
use millpond_engine::{NewDevice, NewLayout::Mirror, NewLayout::Raidz, Pool};
use millpond_env::mark;
use millpond_pool::{AttachKind, NewVdevOptions, ScrubRange};
use millpond_sim::{Fault, FaultPlan, PowerCut, Scope, Seed, World};
use millpond_vdev::LeafId;

/// Flips a bit in some of what disks return. The disks themselves hold what was written.
fn flipping(seed: u64, per_million: u32) -> FaultPlan {
    FaultPlan::new(Seed::new(seed)).with(Scope::Reads, Fault::Corrupt, per_million)
}

fn repaired_bytes(pool: &Pool, leaf: u32) -> u64 {
    let topology = pool.inner().store().topology();
    topology.leaf_stats(LeafId(leaf)).repaired_bytes
}

#[test]
fn memory_that_flips_during_a_scrub_makes_it_overwrite_nothing_good() {
    let _mark = mark::expect("read-was-wrong-not-the-disk");
    for (shape, layout) in [
        ("mirror", (Mirror, 2)),
        ("mirror of three", (Mirror, 3)),
        ("raidz1", (Raidz(1), 4)),
        ("raidz2", (Raidz(2), 5)),
    ] {
        let world = World::without_journal(51);
        let (pool, life) = lived(&world, shape, &[layout], 120);
        for disk in world.disks() {
            // So few that a second look is hardly ever wrong too: where it is, a whole block is written again.
            disk.set_faults(Some(flipping(disk.number() as u64, 40_000)));
        }
        let before: u64 = (0..layout.1 as u32)
            .map(|leaf| repaired_bytes(&pool, leaf))
            .sum();
        pool.inner().start_scrub(ScrubRange::All).unwrap();
        finish(&pool);
        let written: u64 = (0..layout.1 as u32)
            .map(|leaf| repaired_bytes(&pool, leaf))
            .sum();
        let mut flips = 0;
        for disk in world.disks() {
            disk.set_faults(None);
            flips += disk.broken_promises();
        }
        assert!(flips > 20, "{shape}: {flips}");
        // Only where the second look went wrong too; a block has dozens of sectors.
        let sectors = (written - before) >> 9;
        assert!(
            sectors < flips,
            "{shape}: {sectors} sectors written, {flips} reads flipped"
        );
        let again = scrub(&pool);
        assert_eq!(again.errors, 0, "{shape}");
        pool.export().unwrap();
        is_sound(&world, &life, shape);
    }
}

/// Replaces a leaf by a new disk and resilvers that.
fn replace(world: &World, pool: &Pool, number: usize) {
    let disk = world.disk(128 << 20, 512);
    let path = format!("/sim/{}", disk.number());
    let device = NewDevice::file(&path, disk as _);
    let (kind, options) = (AttachKind::Replacement, NewVdevOptions::default());
    let old = leaf(pool, number);
    (pool.inner())
        .attach_leaf(old, &device, kind, options, &|_| false)
        .unwrap();
    while pool.inner().needs_resilver() {
        pool.inner().start_resilver().unwrap();
        finish(pool);
    }
    pool.inner().finish_replacements().unwrap();
}

#[test]
fn a_controller_that_damages_one_side_is_named_and_repaired_by_a_replacement() {
    for (shape, layout, bad) in [
        ("mirror", (Mirror, 2usize), 1),
        ("raidz1", (Raidz(1), 4), 2),
        ("raidz2", (Raidz(2), 5), 0),
    ] {
        let world = World::without_journal(52);
        let (pool, mut life) = lived(&world, shape, &[layout], 60);
        let disk = world.disks()[bad].clone();
        let plan = FaultPlan::new(Seed::new(7)).with(Scope::Writes, Fault::Corrupt, 1_000_000);
        disk.set_faults(Some(plan.with(Scope::Reads, Fault::Corrupt, 1_000_000)));
        life.steps(&pool, 40);
        pool.sync().unwrap();
        let state = scrub(&pool);
        assert_eq!(state.errors, 0, "{shape}: nothing is lost");
        let topology = pool.inner().store().topology();
        for (number, _) in topology.tree.leaves() {
            let errors = topology.leaf_stats(number).checksum_errors;
            assert_eq!(errors > 0, number.0 as usize == bad, "{shape}: {number:?}");
        }
        replace(&world, &pool, bad);
        let again = scrub(&pool);
        assert_eq!((again.processed_bytes, again.errors), (0, 0), "{shape}");
        pool.export().unwrap();
        disk.set_faults(None);
        disk.set_absent(true);
        is_sound(&world, &life, shape);
    }
}

#[test]
fn what_a_disk_lost_that_lies_about_flushes_is_repaired() {
    for (shape, layout, bad) in [
        ("mirror", (Mirror, 2usize), 1),
        ("raidz1", (Raidz(1), 4), 2),
    ] {
        let world = World::new(53);
        let (pool, mut life) = lived(&world, shape, &[layout], 40);
        let plan = FaultPlan::new(Seed::new(9)).with(Scope::Flushes, Fault::Lose, 1_000_000);
        world.disks()[bad].set_faults(Some(plan));
        life.steps(&pool, 40);
        pool.sync().unwrap();
        // The power fails: the others have all that was flushed, this one has lost what it likes.
        let world = world.reborn(world.recorded(), &PowerCut::NothingUnflushed);
        drop(pool);
        let pool = sim::open(&world).unwrap();
        life.compare(&pool.committed().unwrap(), shape);
        let state = scrub(&pool);
        assert_eq!(state.errors, 0, "{shape}");
        assert_eq!(missed(&pool, bad), 0, "{shape}");
        let again = scrub(&pool);
        assert_eq!((again.processed_bytes, again.errors), (0, 0), "{shape}");
        let others = (0..layout.1 as u32).filter(|leaf| *leaf as usize != bad);
        assert!(
            others
                .into_iter()
                .all(|leaf| repaired_bytes(&pool, leaf) == 0)
        );
        pool.export().unwrap();
        is_sound(&world, &life, shape);
    }
}

#[test]
fn repairs_that_did_not_become_durable_are_made_again() {
    for (shape, layout) in [("mirror", (Mirror, 2usize)), ("raidz1", (Raidz(1), 4))] {
        let world = World::new(54);
        let (pool, life) = lived(&world, shape, &[layout], 60);
        rot(&world, 1, 5, 500_000);
        // Its flushes fail, and what was not flushed is lost, though the system still shows it.
        let plan = FaultPlan::new(Seed::new(9)).with(Scope::Flushes, Fault::Fail, 1_000_000);
        world.disks()[1].set_faults(Some(plan));
        let state = scrub(&pool);
        assert!(state.processed_bytes > 0 && state.errors > 0, "{shape}");
        world.disks()[1].set_faults(None);
        assert!(missed(&pool, 1) > 0, "{shape}");
        assert!(pool.inner().start_resilver().unwrap());
        finish(&pool);
        assert_eq!(missed(&pool, 1), 0, "{shape}");
        let world = world.reborn(world.recorded(), &PowerCut::NothingUnflushed);
        drop(pool);
        is_sound(&world, &life, shape);
    }
}
