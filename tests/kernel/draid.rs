//! dRAID pools whose distributed spares are in use, and whose children are replaced: the kernel module accepts what was
//! done here, and what it does is accepted here.

use crate::attach::{attach, fail, finish, lived, slices};
use crate::{Rig, run_script};
use millpond_engine::{AttachKind, DraidShape, Pool, PoolBuilder, ResilverKind, open_device};
use millpond_tests::leaves;
use millpond_tests::oracle::kernel::{self, Release};
use millpond_tests::workload::Life;
use std::path::{Path, PathBuf};

const MIB: u64 = 128;
const SPARE: &str = "draid1-0-0";

fn created(name: &str, images: &[PathBuf]) -> (Pool, Life) {
    let shape = DraidShape {
        parity: 1,
        data: 2,
        spares: 1,
    };
    lived(PoolBuilder::new(name).draid(shape, images), name)
}

/// The distributed spare takes the place of a child, and is complete.
fn use_spare(pool: &Pool, child: &Path) {
    let spare = pool.inner().free_spare_at(SPARE).unwrap().unwrap();
    let leaf = leaves::on(pool, child);
    let used = (pool.inner()).use_spare(ResilverKind::Healing, leaf, spare, || None);
    used.unwrap();
    finish(pool);
}

fn to_and_fro(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(21, MIB);
    let images = rig.images.clone();
    let mut lives = vec![];
    // The spare stands in for a faulted child.
    let (pool, mut life) = created("helped", &images[0..5]);
    fail(&pool, &images[1]);
    use_spare(&pool, &images[1]);
    life.steps(&pool, 20);
    pool.export().unwrap();
    lives.push(("helped", life));
    // The child was detached, and its spare stays.
    let (pool, mut life) = created("stays", &images[5..10]);
    use_spare(&pool, &images[7]);
    let child = leaves::on(&pool, &images[7]);
    pool.inner().detach_leaf(child).unwrap();
    life.steps(&pool, 20);
    pool.export().unwrap();
    lives.push(("stays", life));
    // A child is being replaced by a device.
    let (pool, mut life) = created("begun", &images[10..15]);
    attach(&pool, &images[12], &images[15], AttachKind::Replacement);
    slices(&pool, 2, 60);
    life.steps(&pool, 20);
    pool.export().unwrap();
    lives.push(("begun", life));
    // The module puts the spare into use.
    let (pool, life) = created("theirs", &images[16..21]);
    pool.export().unwrap();
    lives.push(("theirs", life));

    for (name, _) in &lives {
        rig.judge(name);
    }
    let actions = [
        ["spare", "helped"],
        ["clean", "stays"],
        ["finish", "begun"],
        ["use", "theirs"],
    ];
    run_script(release, &rig, "attach", None, actions.as_flattened());
    for (name, life) in &mut lives {
        life.compare(&rig.read(name), name);
        rig.judge(name);
        let pool = rig.open(name);
        life.steps(&pool, 20);
        let faulted = match *name {
            "helped" => Some(&images[1]),
            "theirs" => Some(&images[16]),
            _ => None,
        };
        if let Some(child) = faulted {
            assert_eq!(pool.inner().free_spare_at(SPARE).unwrap(), None, "{name}");
            // The spare goes when its child works again.
            let device = open_device(child).unwrap().device;
            let online = (pool.inner()).online_leaf(leaves::on(&pool, child), Some(&device));
            online.unwrap();
            pool.inner().clear_leaves(None);
            pool.sync().unwrap();
            pool.inner().start_resilver().unwrap();
            finish(&pool);
            let free = pool.inner().free_spare_at(SPARE).unwrap();
            assert!(free.is_some(), "{name}");
        }
        pool.export().unwrap();
        life.compare(&rig.read(name), name);
        rig.judge(name);
    }
    let actions = ["helped", "stays", "begun", "theirs"].map(|name| ["clean", name]);
    run_script(release, &rig, "attach", None, actions.as_flattened());
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn distributed_spares_are_accepted_by_2_3() {
    to_and_fro(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn distributed_spares_are_accepted_by_2_4() {
    to_and_fro(Release::V2_4);
}
