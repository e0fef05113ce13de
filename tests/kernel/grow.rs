//! Pools that grew or were split here: the kernel module accepts them, and grows what we left.

use crate::{Rig, run_script};
use millpond_engine::{Growth, NewHalf, NewLayout, Pool, PoolBuilder, WriteOptions};
use millpond_tests::leaves;
use millpond_tests::oracle::kernel::{self, Release};
use millpond_tests::workload::Life;
use millpond_vdev::AllocationClass::Log;
use std::path::PathBuf;

const MIB: u64 = 128;

fn enlarge(images: &[PathBuf]) {
    for image in images {
        let file = std::fs::OpenOptions::new().write(true).open(image);
        file.unwrap().set_len((2 * MIB) << 20).unwrap();
    }
}

fn lived(builder: PoolBuilder, name: &str) -> (Pool, Life) {
    crate::lived(builder, name, "grow", 150)
}

fn split(pool: &Pool, name: &str, sides: &[&PathBuf]) {
    let half = NewHalf {
        name,
        sides: sides.iter().map(|image| leaves::on(pool, image)).collect(),
        settings: &[],
        writing: WriteOptions::default(),
    };
    pool.split(&half).unwrap();
}

fn to_and_fro(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(13, MIB);
    let images = rig.images.clone();
    let mut lives = vec![];

    // A mirror and a RAID-Z that grew here.
    for (name, builder, range) in [
        ("wide", PoolBuilder::new("wide").mirror(&images[0..2]), 0..2),
        (
            "long",
            PoolBuilder::new("long").raidz(1, &images[2..5]),
            2..5,
        ),
    ] {
        let (pool, mut life) = lived(builder, name);
        let of = images[range].to_vec();
        enlarge(&of);
        let grown = pool
            .inner()
            .grow_vdevs(Some(leaves::on(&pool, &of[0])), Growth::Ordered);
        assert!(grown.unwrap() > 0);
        life.steps(&pool, 30);
        pool.export().unwrap();
        lives.push((name, life));
    }

    // A RAID-Z that the module is to grow.
    let builder = PoolBuilder::new("could").raidz(1, &images[5..8]);
    let (pool, life) = lived(builder, "could");
    pool.export().unwrap();
    lives.push(("could", life));

    // Two mirrors with a log device, split.
    let builder = PoolBuilder::new("old")
        .mirror(&images[8..10])
        .mirror(&images[10..12])
        .top(Log, NewLayout::Single, [&images[12]]);
    let (pool, mut life) = lived(builder, "old");
    split(&pool, "half", &[&images[9], &images[10]]);
    life.steps(&pool, 30);
    pool.export().unwrap();
    lives.push(("old", life));

    for (name, _) in &lives {
        rig.judge(name);
    }
    rig.judge("half");
    // Without labels at the new end, so our checker would complain.
    enlarge(&images[5..8]);
    let actions = [
        ["clean", "wide"],
        ["clean", "long"],
        ["expand", "could"],
        ["clean", "old"],
        ["clean", "half"],
    ];
    run_script(release, &rig, "grow", None, actions.as_flattened());

    for (name, life) in &mut lives {
        life.compare(&rig.read(name), name);
        rig.judge(name);
        // The pool that the module left can be changed here again.
        let pool = rig.open(name);
        life.steps(&pool, 20);
        pool.export().unwrap();
        life.compare(&rig.read(name), name);
        rig.judge(name);
    }
    rig.judge("half");
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn larger_and_split_pools_are_accepted_by_2_3() {
    to_and_fro(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn larger_and_split_pools_are_accepted_by_2_4() {
    to_and_fro(Release::V2_4);
}
