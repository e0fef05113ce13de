//! Pools whose data vdevs were removed here: the kernel module accepts them and finishes what was begun, and we finish what
//! it began.

use crate::attach::lived;
use crate::{Rig, run_script};
use millpond_engine::{NewLayout::Single, Pool, PoolBuilder};
use millpond_ondisk::Guid;
use millpond_pool::CopyLimits;
use millpond_tests::oracle::kernel::{self, Release};
use millpond_tests::workload::Life;
use millpond_vdev::{AllocationClass::Normal, VdevType};
use std::path::PathBuf;

const MIB: u64 = 384;

/// A pool of three disks, or of two mirrors.
pub(crate) fn new(name: &str, images: &[PathBuf]) -> PoolBuilder {
    match images {
        [a, b, c, d] => PoolBuilder::new(name).mirror([a, b]).mirror([c, d]),
        images => images
            .iter()
            .fold(PoolBuilder::new(name), |builder, image| {
                builder.top(Normal, Single, [image])
            }),
    }
}

/// The first vdev that holds data.
fn first(pool: &Pool) -> Guid {
    let topology = pool.inner().store().topology();
    let mut tops = topology.tree.tops();
    let data = tops.find(|(_, node)| node.config.kind != VdevType::Indirect);
    data.unwrap().1.config.guid
}

/// Copies in small pieces, with work between them. Stops after `slices` of them.
fn copy(pool: &Pool, life: &mut Life, slices: usize) {
    let limits = CopyLimits {
        bytes: 256 << 10,
        slice_ns: u64::MAX,
    };
    for _ in 0..slices {
        if !pool.inner().is_removing() {
            return;
        }
        pool.inner().removal_slice(&limits).unwrap();
        life.steps(pool, 1);
    }
}

pub(crate) fn removed(pool: &Pool, life: &mut Life) {
    pool.inner().remove_data(first(pool)).unwrap();
    copy(pool, life, 100_000);
    assert!(!pool.inner().is_removing());
    life.steps(pool, 40);
}

fn to_and_fro(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(14, MIB);
    let images = &rig.images;
    let mut lives = vec![];

    // One removal after the other, so that a mapping leads to another.
    let (pool, mut life) = lived(new("gone", &images[0..3]), "gone");
    removed(&pool, &mut life);
    removed(&pool, &mut life);
    pool.export().unwrap();
    lives.push(("gone", life));

    let (pool, mut life) = lived(new("half", &images[3..7]), "half");
    pool.inner().remove_data(first(&pool)).unwrap();
    copy(&pool, &mut life, 4);
    assert!(pool.inner().is_removing());
    pool.export().unwrap();
    lives.push(("half", life));

    let (pool, life) = lived(new("begun", &images[7..11]), "begun");
    pool.export().unwrap();
    lives.push(("begun", life));

    let (pool, mut life) = lived(new("theirs", &images[11..14]), "theirs");
    removed(&pool, &mut life);
    pool.export().unwrap();
    lives.push(("theirs", life));

    for (name, _) in &lives {
        rig.judge(name);
    }
    let actions = [
        ["clean", "gone"],
        ["finish", "half"],
        ["begin", "begun"],
        ["remove", "theirs"],
    ];
    run_script(release, &rig, "remove", None, actions.as_flattened());

    for (name, life) in &mut lives {
        life.compare(&rig.read(name), name);
        rig.judge(name);
        let pool = rig.open(name);
        assert_eq!(pool.inner().is_removing(), *name == "begun", "{name}");
        copy(&pool, life, 100_000);
        life.steps(&pool, 60);
        pool.export().unwrap();
        life.compare(&rig.read(name), name);
        rig.judge(name);
    }
    let after = lives.iter().flat_map(|(name, _)| ["clean", *name]);
    let after: Vec<&str> = after.collect();
    run_script(release, &rig, "remove", None, &after);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn removed_vdevs_are_accepted_by_2_3() {
    to_and_fro(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn removed_vdevs_are_accepted_by_2_4() {
    to_and_fro(Release::V2_4);
}
