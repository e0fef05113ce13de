//! Pools whose mappings of removed vdevs were condensed here: the kernel module accepts them and finishes what was begun, and we
//! finish what it began.

use crate::attach::lived;
use crate::remove::{new, removed};
use crate::{Rig, run_script};
use millpond_engine::Pool;
use millpond_env::Tunable;
use millpond_tests::oracle::kernel::{self, Release};
use millpond_tests::workload::Life;

const MIB: u64 = 384;

/// Condenses a mapping, with work in between, at most `slices` of it. Returns how many there were.
fn condense(pool: &Pool, life: &mut Life, slices: u32) -> u32 {
    let tunables = &pool.inner().env().tunables;
    let delay_ms = u64::from(slices < u32::MAX);
    for (tunable, value) in [
        (Tunable::CondenseMinMappingBytes, 0),
        (Tunable::CondenseObsoletePercent, 1),
        // One entry at once.
        (Tunable::CondenseDelayMs, delay_ms),
    ] {
        assert!(tunables.set(tunable, value));
    }
    let mut done = 0;
    while done < slices {
        let was_condensing = pool.inner().is_condensing();
        if pool.inner().condense_slice().unwrap() {
            done += 1;
            life.steps(pool, 1);
        }
        if was_condensing && !pool.inner().is_condensing() {
            break;
        }
    }
    done
}

fn to_and_fro(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(10, MIB);
    let images = &rig.images;
    let mut lives = vec![];
    for (name, images, slices) in [
        ("done", &images[0..3], Some(u32::MAX)),
        ("half", &images[3..7], Some(4)),
        ("begun", &images[7..10], None),
    ] {
        let (pool, mut life) = lived(new(name, images), name);
        removed(&pool, &mut life);
        // Much of what was there is gone now.
        life.steps(&pool, 200);
        pool.sync().unwrap();
        if let Some(slices) = slices {
            println!("{name}: {} slices", condense(&pool, &mut life, slices));
        }
        assert_eq!(pool.inner().is_condensing(), name == "half", "{name}");
        pool.export().unwrap();
        rig.judge(name);
        lives.push((name, life));
    }
    let actions = [["clean", "done"], ["clean", "half"], ["begin", "begun"]];
    run_script(release, &rig, "condense", None, actions.as_flattened());
    for (name, life) in &mut lives {
        life.compare(&rig.read(name), name);
        rig.judge(name);
        let pool = rig.open(name);
        assert_eq!(pool.inner().is_condensing(), *name == "begun", "{name}");
        println!("{name}: {} slices", condense(&pool, life, u32::MAX));
        assert!(!pool.inner().is_condensing(), "{name}");
        life.steps(&pool, 60);
        pool.export().unwrap();
        life.compare(&rig.read(name), name);
        rig.judge(name);
    }
    let after = lives.iter().flat_map(|(name, _)| ["clean", *name]);
    let after: Vec<&str> = after.collect();
    run_script(release, &rig, "condense", None, &after);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn condensed_mappings_are_accepted_by_2_3() {
    to_and_fro(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn condensed_mappings_are_accepted_by_2_4() {
    to_and_fro(Release::V2_4);
}
