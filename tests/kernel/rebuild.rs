//! Sequential resilvers that one implementation begins and the other one continues.

use crate::attach::lived;
use crate::{Rig, run_script};
use millpond_engine::{
    AttachKind, DraidShape, NewVdevOptions, Pool, PoolBuilder, RebuildLimits, ResilverKind,
    Scanner, ScrubRange, open_device,
};
use millpond_ondisk::RebuildPhase;
use millpond_tests::leaves;
use millpond_tests::oracle::kernel::{self, Release};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const MIB: u64 = 128;

fn attach(pool: &Pool, old: &Path, new: &Path, kind: AttachKind) {
    let device = open_device(new).unwrap();
    let (old, options) = (leaves::on(pool, old), NewVdevOptions::default());
    let how = ResilverKind::Sequential;
    let inner = pool.inner();
    let attached = inner.attach_leaf_as(how, old, &device, kind, options, &|_| false);
    attached.unwrap();
}

fn slices(pool: &Pool, count: usize) {
    let limits = RebuildLimits {
        bytes: 256 << 10,
        ..RebuildLimits::default()
    };
    for _ in 0..count {
        assert!(pool.inner().rebuild_slice(&limits).unwrap());
    }
    assert!(pool.inner().is_rebuilding());
    assert!(pool.inner().rebuilds()[0].1.last_offset > 0);
}

pub(crate) fn draid(name: &str, images: &[PathBuf]) -> PoolBuilder {
    let shape = DraidShape {
        parity: 1,
        data: 2,
        spares: 1,
    };
    PoolBuilder::new(name).draid(shape, images)
}

/// Which of the images holds most. What a new dRAID has lies in few groups, in which not all children have a column.
fn fullest(images: &[PathBuf], of: Range<usize>) -> usize {
    let blocks = |number: &usize| images[*number].metadata().unwrap().blocks();
    of.max_by_key(blocks).unwrap()
}

fn disk_name(number: usize) -> String {
    format!("vd{}", char::from(b'a' + number as u8))
}

fn to_and_fro(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(21, MIB);
    let images = rig.images.clone();
    let image = |number: usize| images[number].as_path();
    let mut lives = vec![];
    // A mirror gets a third side.
    let (pool, mut life) = lived(PoolBuilder::new("wider").mirror(&images[0..2]), "wider");
    attach(&pool, image(0), image(2), AttachKind::Mirror);
    slices(&pool, 2);
    life.steps(&pool, 20);
    pool.export().unwrap();
    lives.push(("wider", life));
    // A single disk is replaced.
    let (pool, mut life) = lived(PoolBuilder::new("begun").single(image(3)), "begun");
    attach(&pool, image(3), image(4), AttachKind::Replacement);
    slices(&pool, 2);
    life.steps(&pool, 20);
    pool.export().unwrap();
    lives.push(("begun", life));
    // The module begins.
    let (pool, life) = lived(PoolBuilder::new("theirs").single(image(5)), "theirs");
    pool.export().unwrap();
    lives.push(("theirs", life));
    // A child of a dRAID is replaced, alive, by a device and by the distributed spare.
    let (pool, mut life) = lived(draid("columns", &images[7..11]), "columns");
    attach(
        &pool,
        &images[fullest(&images, 7..11)],
        image(11),
        AttachKind::Replacement,
    );
    slices(&pool, 2);
    life.steps(&pool, 20);
    pool.export().unwrap();
    lives.push(("columns", life));
    let (pool, mut life) = lived(draid("standin", &images[12..16]), "standin");
    let leaf = leaves::on(&pool, &images[fullest(&images, 12..16)]);
    let spare = pool.inner().free_spare_at("draid1-0-0").unwrap().unwrap();
    let how = ResilverKind::Sequential;
    pool.inner().use_spare(how, leaf, spare, || None).unwrap();
    slices(&pool, 2);
    life.steps(&pool, 20);
    pool.export().unwrap();
    lives.push(("standin", life));
    let (pool, life) = lived(draid("theirs2", &images[16..20]), "theirs2");
    pool.export().unwrap();
    lives.push(("theirs2", life));
    let old = disk_name(fullest(&images, 16..20));
    for (name, _) in &lives {
        rig.judge(name);
    }
    let actions = [
        ["finish", "wider", "-", "-"],
        ["finish", "begun", "-", "-"],
        ["finish", "columns", "-", "-"],
        ["finish", "standin", "-", "-"],
        ["begin", "theirs", "vdf", "vdg"],
        ["replace", "theirs2", &old, "vdu"],
    ];
    run_script(release, &rig, "rebuild", None, actions.as_flattened());
    for (name, life) in &mut lives {
        life.compare(&rig.read(name), name);
        rig.judge(name);
        let pool = rig.open(name);
        if name.starts_with("theirs") {
            println!("    {:?}", pool.inner().rebuilds());
            assert!(pool.inner().is_rebuilding());
            life.steps(&pool, 20);
            while pool.inner().is_rebuilding() {
                let moved = pool.inner().rebuild_slice(&RebuildLimits::default());
                assert!(moved.unwrap());
            }
            assert!(pool.inner().take_scrub_due());
            assert!(!pool.inner().needs_resilver());
            pool.inner().finish_replacements().unwrap();
            let (_, state, _) = pool.inner().rebuilds()[0];
            assert_eq!((state.phase, state.errors), (RebuildPhase::Complete, 0));
            pool.inner().start_scrub(ScrubRange::All).unwrap();
            while Scanner::default().slice(pool.inner()).unwrap() {}
            let (scan, _) = pool.inner().scan().unwrap();
            assert_eq!((scan.processed_bytes, scan.errors), (0, 0));
        }
        life.steps(&pool, 20);
        pool.export().unwrap();
        life.compare(&rig.read(name), name);
        rig.judge(name);
    }
    let clean = ["clean", "theirs", "clean", "theirs2"];
    run_script(release, &rig, "attach", None, &clean);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn sequential_resilvers_are_continued_by_2_3_and_here() {
    to_and_fro(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn sequential_resilvers_are_continued_by_2_4_and_here() {
    to_and_fro(Release::V2_4);
}
