//! Pools whose devices were attached, replaced and detached here: the kernel module accepts them and finishes what was
//! begun.

use crate::{Rig, run_script};
use millpond_engine::{
    AttachKind, NewLayout, NewVdevOptions, Offline, Pool, PoolBuilder, ScanLimits, Scanner,
    open_device,
};
use millpond_ondisk::Guid;
use millpond_tests::leaves;
use millpond_tests::oracle::kernel::{self, Release};
use millpond_tests::workload::Life;
use millpond_vdev::AllocationClass::{Log, Special};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MIB: u64 = 128;

pub(crate) fn slices(pool: &Pool, count: usize, blocks: usize) {
    let scanner = Scanner::new(ScanLimits {
        blocks,
        ..ScanLimits::default()
    });
    for _ in 0..count {
        if !scanner.slice(pool.inner()).unwrap() {
            break;
        }
    }
}

pub(crate) fn attach(pool: &Pool, old: &Path, new: &Path, kind: AttachKind) {
    let device = open_device(new).unwrap();
    let (old, options) = (leaves::on(pool, old), NewVdevOptions::default());
    let attached = pool
        .inner()
        .attach_leaf(old, &device, kind, options, &|_| false);
    attached.unwrap();
}

pub(crate) fn lived(builder: PoolBuilder, name: &str) -> (Pool, Life) {
    crate::lived(builder, name, "attach", 200)
}

pub(crate) fn finish(pool: &Pool) {
    slices(pool, 10_000, 1000);
    assert!(!pool.inner().needs_resilver());
    pool.inner().finish_replacements().unwrap();
}

pub(crate) fn fail(pool: &Pool, device: &Path) {
    let how = Offline {
        is_fault: true,
        is_temporary: false,
    };
    let leaf = leaves::on(pool, device);
    pool.inner().offline_leaf(leaf, how).unwrap();
}

/// The vdevs of these kinds in the pool's stored tree.
fn has_kind(rig: &Rig, name: &str, kind: &str) -> bool {
    let view = rig.read(name);
    let nodes = view.inner().store().topology();
    nodes
        .tree
        .nodes()
        .iter()
        .any(|node| node.config.kind.name() == kind)
}

/// A log vdev between two others was removed, and another one at the end.
fn without_logs(images: &[PathBuf]) -> (Pool, Life) {
    let builder = PoolBuilder::new("holed")
        .single(&images[0])
        .top(Log, NewLayout::Single, [&images[1]])
        .top(Special, NewLayout::Single, [&images[2]])
        .top(Log, NewLayout::Single, [&images[3]]);
    let (pool, mut life) = lived(builder, "holed");
    for log in [&images[1], &images[3]] {
        let leaf = leaves::on(&pool, log);
        pool.inner().remove_log(leaf).unwrap();
        life.steps(&pool, 20);
    }
    (pool, life)
}

fn to_and_fro(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(18, MIB);
    let images = rig.images.clone();
    let image = |number: usize| images[number].as_path();
    let mut lives = vec![];

    // A single disk became a mirror, and another single disk.
    let (pool, mut life) = lived(PoolBuilder::new("moved").single(image(0)), "moved");
    attach(&pool, image(0), image(1), AttachKind::Mirror);
    life.steps(&pool, 20);
    finish(&pool);
    pool.inner()
        .detach_leaf(leaves::on(&pool, image(0)))
        .unwrap();
    life.steps(&pool, 20);
    pool.export().unwrap();
    lives.push(("moved", life));

    // A column of RAID-Z was replaced, and a second one is being replaced.
    let builder = PoolBuilder::new("begun").raidz(1, &images[2..5]);
    let (pool, mut life) = lived(builder, "begun");
    attach(&pool, image(2), image(5), AttachKind::Replacement);
    finish(&pool);
    attach(&pool, image(3), image(6), AttachKind::Replacement);
    slices(&pool, 2, 60);
    life.steps(&pool, 20);
    pool.export().unwrap();
    lives.push(("begun", life));

    // A mirror gets a third side.
    let (pool, mut life) = lived(PoolBuilder::new("wider").mirror(&images[7..9]), "wider");
    attach(&pool, image(7), image(9), AttachKind::Mirror);
    slices(&pool, 1, 60);
    life.steps(&pool, 20);
    pool.export().unwrap();
    lives.push(("wider", life));

    // A spare stands in for a faulted device.
    let builder = PoolBuilder::new("helped")
        .raidz(1, &images[10..13])
        .spare(image(13));
    let (pool, mut life) = lived(builder, "helped");
    fail(&pool, image(11));
    let spare = Guid(
        pool.committed().unwrap().inner().spares()[0]
            .u64("guid")
            .unwrap(),
    );
    let device = open_device(image(13)).unwrap().device;
    pool.inner().offer_spare(spare, Arc::clone(&device));
    assert_eq!(pool.inner().step_in_spares(0).unwrap(), 1);
    life.steps(&pool, 20);
    finish(&pool);
    pool.export().unwrap();
    drop(device);
    lives.push(("helped", life));

    let (pool, life) = without_logs(&images[14..18]);
    pool.export().unwrap();
    lives.push(("holed", life));

    for (name, _) in &lives {
        rig.judge(name);
    }
    let actions = [
        ["clean", "moved"],
        ["finish", "begun"],
        ["finish", "wider"],
        ["spare", "helped"],
        ["clean", "holed"],
    ];
    run_script(release, &rig, "attach", None, actions.as_flattened());

    assert!(!has_kind(&rig, "begun", "replacing"));
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
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn changed_devices_are_accepted_by_2_3() {
    to_and_fro(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn changed_devices_are_accepted_by_2_4() {
    to_and_fro(Release::V2_4);
}
