//! Intent logs that wait for the keys of their datasets outlive everything that goes wrong before they are replayed.

use crate::cloning::{bytes_of, judged, judged_by_zdb, make, node};
use crate::encryption::{KEY, prose, root, unlock};
use crate::sim;
use millpond_engine::{
    NewLayout::{Mirror, Single},
    Pool, PropertyValue,
};
use millpond_sim::{Fault, FaultPlan, PowerCut, Scope, Seed, World};

const FILES: &str = "tank/e";
const VOLUME: &str = "tank/e/v";

/// A world whose power was cut after a file and the bytes of a volume were written to the logs, with the key unknown.
fn cut() -> World {
    let world = World::new(780);
    let pool = sim::create(&world, &[(Single, 1)], 128);
    root(&world, &pool, FILES, "aes-256-gcm", &[]);
    (pool.datasets())
        .create_volume(
            VOLUME,
            &[("volsize".into(), PropertyValue::Number(1 << 20))],
        )
        .unwrap();
    let files = pool.file_system(FILES).unwrap();
    let volume = pool.volume(VOLUME).unwrap();
    // The first of each begins a log, which waits for a txg. Only the second is in the log alone.
    for seed in 0..2 {
        let file = make(&files, &format!("synced{seed}"), &prose(seed, 5000));
        files.fsync(&file).unwrap();
        volume.write(seed * 8192, &prose(seed, 5000)).unwrap();
        volume.flush().unwrap();
    }
    world.reborn(world.recorded(), &PowerCut::NothingUnflushed)
}

fn has_everything(pool: &Pool) {
    let files = pool.file_system(FILES).unwrap();
    let volume = pool.volume(VOLUME).unwrap();
    for seed in 0..2 {
        assert!(bytes_of(&node(&files, &format!("synced{seed}"))) == prose(seed, 5000));
        let mut bytes = vec![0; 5000];
        volume.read(seed * 8192, &mut bytes).unwrap();
        assert!(bytes == prose(seed, 5000));
    }
}

/// The logs are open for writing when the mount fails, and would end with the pool or with the key.
#[test]
fn a_waiting_log_outlives_a_mount_that_fails() {
    let world = cut();
    for is_unloaded in [false, true] {
        let world = world.reborn(world.recorded(), &PowerCut::NothingUnflushed);
        let pool = sim::open(&world).unwrap();
        unlock(&pool, FILES, KEY);
        for _ in 0..3 {
            pool.sync().unwrap();
        }
        // What is left to read is what the mount itself reads.
        for name in [FILES, VOLUME] {
            let head = pool.datasets().open_head(name).unwrap().id();
            assert!(pool.datasets().has_waiting_log(head), "{name}");
        }
        let disk = &world.disks()[0];
        disk.set_faults(Some(FaultPlan::failing(Scope::Reads)));
        assert!(pool.file_system(FILES).is_err());
        assert!(pool.volume(VOLUME).is_err());
        disk.set_faults(None);
        if is_unloaded {
            assert!(pool.datasets().unload_key(FILES).unwrap());
        }
        pool.export().unwrap();
        judged(&world);
        judged_by_zdb(&world, "a log that waits again");
        let pool = sim::open(&world).unwrap();
        unlock(&pool, FILES, KEY);
        has_everything(&pool);
        pool.export().unwrap();
        judged(&world);
        judged_by_zdb(&world, "a replayed log");
    }
}

/// A side of a mirror loses the write of the log block. Later it is the only side.
#[test]
fn a_claimed_log_is_on_all_sides_of_a_mirror() {
    let world = World::new(781);
    let pool = sim::create(&world, &[(Mirror, 2)], 128);
    root(&world, &pool, FILES, "aes-256-gcm", &[]);
    let files = pool.file_system(FILES).unwrap();
    for seed in 0..2 {
        if seed == 1 {
            let lose = FaultPlan::new(Seed::new(1)).with(Scope::Writes, Fault::Lose, 1_000_000);
            world.disks()[1].set_faults(Some(lose));
        }
        let file = make(&files, &format!("synced{seed}"), &prose(seed, 5000));
        files.fsync(&file).unwrap();
    }
    let world = world.reborn(world.recorded(), &PowerCut::NothingUnflushed);
    // The log is claimed, and waits for the key.
    let pool = sim::open(&world).unwrap();
    let topology = pool.inner().store().topology();
    for (leaf, _) in topology.tree.leaves() {
        let stats = topology.leaf_stats(leaf);
        assert_eq!(stats.checksum_errors, 0, "{leaf:?} is blamed");
    }
    drop(topology);
    pool.export().unwrap();
    world.disks()[0].set_absent(true);
    let pool = sim::open(&world).unwrap();
    unlock(&pool, FILES, KEY);
    let files = pool.file_system(FILES).unwrap();
    for seed in 0..2 {
        assert!(bytes_of(&node(&files, &format!("synced{seed}"))) == prose(seed, 5000));
    }
    pool.export().unwrap();
    judged(&world);
}
