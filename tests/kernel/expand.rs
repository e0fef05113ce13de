//! Pools whose RAID-Z was expanded here: the kernel module accepts them and finishes what was begun, and we finish what it
//! began.

use crate::attach::lived;
use crate::cloning::file;
use crate::{Rig, run_script};
use millpond_device::{Device, FileDevice, OpenOptions};
use millpond_engine::{NewDevice, NewVdevOptions, Pool, PoolBuilder};
use millpond_pool::CopyLimits;
use millpond_sim::noise;
use millpond_tests::oracle::kernel::{self, Release};
use millpond_tests::workload::Life;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MIB: u64 = 384;
const BALLAST_BYTES: usize = 48 << 20;

fn new(name: &str, parity: u8, images: &[PathBuf]) -> PoolBuilder {
    PoolBuilder::new(name).raidz(parity, images)
}

fn begin(pool: &Pool, image: &Path) {
    let topology = pool.inner().store().topology();
    let top = topology.tree.tops().next().unwrap().1.config.guid;
    drop(topology);
    let path = image.display().to_string();
    let writable = OpenOptions {
        write: true,
        ..OpenOptions::default()
    };
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(image, writable).unwrap());
    let device = NewDevice::file(&path, device);
    let options = NewVdevOptions {
        ashift: None,
        force: true,
    };
    (pool.inner().expand_raidz(top, &device, options, &|_| false)).unwrap();
}

/// Moves rows in small pieces, with work between them. Stops after `slices` of them.
fn move_rows(pool: &Pool, life: &mut Life, slices: usize) {
    let limits = CopyLimits {
        bytes: 512 << 10,
        slice_ns: u64::MAX,
    };
    for _ in 0..slices {
        if !pool.inner().is_expanding() {
            return;
        }
        pool.inner().expansion_slice(&limits).unwrap();
        life.steps(pool, 1);
    }
}

fn to_and_fro(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(15, MIB);
    let images = &rig.images;
    let mut lives = vec![];

    let (pool, mut life) = lived(new("wide", 1, &images[0..3]), "wide");
    begin(&pool, &images[3]);
    move_rows(&pool, &mut life, 100_000);
    life.steps(&pool, 40);
    pool.export().unwrap();
    lives.push(("wide", life));

    let (pool, mut life) = lived(new("half", 2, &images[4..8]), "half");
    begin(&pool, &images[8]);
    move_rows(&pool, &mut life, 4);
    assert!(pool.inner().is_expanding());
    pool.export().unwrap();
    lives.push(("half", life));

    // Not one row has moved.
    let (pool, life) = lived(new("started", 1, &images[9..11]), "started");
    begin(&pool, &images[11]);
    pool.export().unwrap();
    lives.push(("started", life));

    // The module moves everything before it can be stopped, if that is little.
    let pool = new("begun", 1, &images[12..14]).create().unwrap();
    let ballast = noise(9, BALLAST_BYTES);
    file(&pool.file_system("begun").unwrap(), "noise", &ballast);
    pool.export().unwrap();

    for (name, _) in &lives {
        rig.judge(name);
    }
    let actions = [
        ["clean", "wide"],
        ["finish", "half"],
        ["finish", "started"],
        ["begin", "begun"],
    ];
    run_script(release, &rig, "expand", None, actions.as_flattened());

    for (name, life) in &mut lives {
        life.compare(&rig.read(name), name);
        rig.judge(name);
        let pool = rig.open(name);
        assert!(!pool.inner().is_expanding(), "{name}");
        life.steps(&pool, 60);
        pool.export().unwrap();
        life.compare(&rig.read(name), name);
        rig.judge(name);
    }
    let pool = rig.open("begun");
    assert!(pool.inner().is_expanding());
    while pool.inner().is_expanding() {
        let limits = CopyLimits::default();
        assert!(pool.inner().expansion_slice(&limits).unwrap());
    }
    pool.export().unwrap();
    rig.judge("begun");
    let view = rig.read("begun");
    let files = view.root().unwrap().file_system().unwrap();
    let mut found = vec![0; BALLAST_BYTES];
    let node = files.root().unwrap().lookup(b"noise").unwrap();
    node.object().read(0, &mut found).unwrap();
    assert!(found == ballast);
    drop((node, files, view));
    let names = lives.iter().map(|(name, _)| *name).chain(["begun"]);
    let after: Vec<&str> = names.flat_map(|name| ["clean", name]).collect();
    run_script(release, &rig, "expand", None, &after);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn expanded_vdevs_are_accepted_by_2_3() {
    to_and_fro(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn expanded_vdevs_are_accepted_by_2_4() {
    to_and_fro(Release::V2_4);
}
