//! Sequential resilvers that one implementation begins and the other one continues.

use crate::attach::lived;
use crate::{Rig, run_script};
use millpond_engine::{
    AttachKind, NewVdevOptions, Pool, PoolBuilder, RebuildLimits, ResilverKind, Scanner,
    ScrubRange, open_device,
};
use millpond_ondisk::RebuildPhase;
use millpond_tests::leaves;
use millpond_tests::oracle::kernel::{self, Release};
use std::path::Path;

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

fn to_and_fro(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(7, MIB);
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
    for (name, _) in &lives {
        rig.judge(name);
    }
    let actions = [
        ["finish", "wider", "-", "-"],
        ["finish", "begun", "-", "-"],
        ["begin", "theirs", "vdf", "vdg"],
    ];
    run_script(release, &rig, "rebuild", None, actions.as_flattened());
    for (name, life) in &mut lives {
        life.compare(&rig.read(name), name);
        rig.judge(name);
        let pool = rig.open(name);
        if *name == "theirs" {
            println!("    {:?}", pool.inner().rebuilds());
            assert!(pool.inner().is_rebuilding());
            life.steps(&pool, 20);
            while pool.inner().is_rebuilding() {
                let moved = pool.inner().rebuild_slice(&RebuildLimits::default());
                assert!(moved.unwrap());
            }
            assert!(pool.inner().take_scrub_due());
            assert!(!pool.inner().needs_resilver());
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
    run_script(release, &rig, "attach", None, &["clean", "theirs"]);
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
