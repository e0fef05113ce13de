//! Pools that were made or changed here, judged by OpenZFS's kernel module in a virtual machine: it imports
//! them, scrubs them, reads everything, changes them, and we go on with what it left.
//!
//! Minutes each, so only `make test-kernel` runs them. `MILLPOND_KERNEL_SEED` starts elsewhere.

#[path = "../writing/rig.rs"]
mod rig;

use millpond::live::{Caller, NewLayout, NewMode, PoolPlan, WriteAt};
use millpond::{DatasetKind, Pool, PropertyValue};
use millpond_tests::oracle::kernel::{self, Release};
use millpond_tests::workload::{Life, manifest};
use millpond_vdev::AllocationClass::{Log, Normal, Special};
use rig::Rig;
use std::collections::BTreeSet;
use std::path::Path;

fn seed() -> u64 {
    let value = std::env::var("MILLPOND_KERNEL_SEED").ok();
    value.and_then(|value| value.parse().ok()).unwrap_or(1)
}

/// The module accepts the pool and reads what we read.
fn judged(rig: &Rig, release: Release, what: &str) {
    let share = tempfile::tempdir().unwrap();
    let verdict = kernel::judge(release, &rig.images, "tank", Some(share.path())).unwrap();
    if !verdict.is_clean() {
        rig.keep(&what.replace(' ', "-"));
    }
    verdict.require(&format!("{what}, {release:?}"));
    if !verdict.is_clean() {
        return;
    }
    let theirs = std::fs::read_to_string(share.path().join("manifest.txt")).unwrap();
    // Sockets' and devices' sizes are the kernel's own business, and so are times of `atime`, which are
    // not in the manifest.
    let theirs: BTreeSet<String> = theirs.lines().map(str::to_owned).collect();
    let ours: BTreeSet<String> = manifest(&rig.read("tank")).unwrap().into_iter().collect();
    let only_theirs: Vec<_> = theirs.difference(&ours).take(10).collect();
    let only_ours: Vec<_> = ours.difference(&theirs).take(10).collect();
    if !(only_ours.is_empty() && only_theirs.is_empty()) {
        rig.keep(&what.replace(' ', "-"));
    }
    assert!(
        only_ours.is_empty() && only_theirs.is_empty(),
        "{what}, {release:?}: the module reads {only_theirs:#?}, we read {only_ours:#?}"
    );
    assert!(theirs.len() > 3, "{what}: an empty manifest proves nothing");
}

fn file_systems(pool: &Pool) -> Vec<String> {
    let mut names = vec![];
    for dataset in pool.datasets() {
        let dataset = dataset.unwrap();
        if dataset.kind().unwrap() != DatasetKind::Volume {
            names.push(dataset.name().to_owned());
        }
    }
    names
}

/// We make and fill a pool, both modules judge it, one changes it, we go on, both judge again.
fn handed_to_and_fro(shape: &str, disks: usize, mib: u64, plan: impl Fn(&Rig) -> PoolPlan) {
    for release in [Release::V2_3, Release::V2_4] {
        if let Some(why) = kernel::absent(release) {
            println!("{shape}: not judged by {release:?}: {why}");
            return;
        }
    }
    let rig = Rig::new(disks, mib);
    let pool = plan(&rig).create().unwrap();
    let mut life = Life::new("tank", shape, seed());
    life.dataset_percent = 20;
    life.steps(&pool, 250);
    pool.export().unwrap();
    life.compare(&rig.read("tank"), shape);
    judged(&rig, Release::V2_3, shape);
    judged(&rig, Release::V2_4, shape);

    kernel::change(Release::V2_3, &rig.images, "tank")
        .unwrap()
        .require(&format!("{shape}: the module changes it"));
    let read = rig.read("tank");
    let names = file_systems(&read);
    drop(read);
    rig.judge("tank");
    let pool = rig.open("tank");
    for name in &names {
        let files = pool.file_system(name).unwrap();
        let (root, caller) = (files.root().unwrap(), Caller::root());
        let Ok(theirs) = files.lookup(&root, b"by-kernel") else {
            continue;
        };
        for number in 10..30 {
            let name = format!("f{number}").into_bytes();
            match number % 3 {
                0 => files.unlink(&theirs, &name).unwrap(),
                1 => {
                    let node = files.lookup(&theirs, &name).unwrap();
                    let at = WriteAt::Offset(number * 1000);
                    files.write(&caller, &node, at, &[7; 150_000]).unwrap();
                }
                _ => {
                    let name = format!("ours{number}").into_bytes();
                    let mode = NewMode::exactly(0o600);
                    let (node, _) = files.create(&caller, &theirs, &name, mode, true).unwrap();
                    let at = WriteAt::Offset(0);
                    files.write(&caller, &node, at, &[8; 50_000]).unwrap();
                }
            }
        }
    }
    pool.datasets()
        .destroy("tank/clone-by-kernel", Default::default())
        .ok();
    let of_root = ["tank@by-kernel"];
    let _ = pool
        .datasets()
        .destroy_snapshots(&of_root, Default::default());
    pool.export().unwrap();
    rig.judge("tank");
    judged(&rig, Release::V2_3, &format!("{shape} again"));
    judged(&rig, Release::V2_4, &format!("{shape} again"));
}

fn some(rig: &Rig, range: std::ops::Range<usize>) -> Vec<&Path> {
    rig.images[range]
        .iter()
        .map(|path| path.as_path())
        .collect()
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn a_pool_of_one_disk_goes_to_and_fro() {
    handed_to_and_fro("single", 1, 512, |rig| rig.stripe("tank"));
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn a_mirror_with_small_sectors_goes_to_and_fro() {
    handed_to_and_fro("mirror9", 2, 512, |rig| {
        PoolPlan::new("tank").mirror(&rig.images).ashift(9)
    });
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn a_raidz2_goes_to_and_fro() {
    handed_to_and_fro("raidz2", 5, 256, |rig| {
        PoolPlan::new("tank").raidz(2, &rig.images)
    });
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn a_pool_of_large_sectors_and_large_records_goes_to_and_fro() {
    handed_to_and_fro("ashift14", 1, 1024, |rig| {
        rig.stripe("tank")
            .ashift(14)
            .root_property("recordsize", "1M")
            .root_property("compression", "zstd")
    });
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn a_pool_of_all_classes_goes_to_and_fro() {
    handed_to_and_fro("classes", 6, 256, |rig| {
        PoolPlan::new("tank")
            .top(Normal, NewLayout::Mirror, some(rig, 0..2))
            .top(Special, NewLayout::Mirror, some(rig, 2..4))
            .top(Log, NewLayout::Single, some(rig, 4..5))
            .cache(&rig.images[5])
            .root_property("special_small_blocks", "16K")
    });
}

/// Every way of storing blocks, with large records and long lists of attributes.
#[test]
#[ignore = "minutes; make test-kernel"]
fn every_compression_and_checksum_is_read_by_the_module() {
    let rig = Rig::new(1, 512);
    let pool = rig.stripe("tank").create().unwrap();
    let words = |name: &str, value: &str| (name.to_owned(), PropertyValue::Text(value.to_owned()));
    for (number, (compression, checksum)) in [
        ("off", "off"),
        ("on", "on"),
        ("lz4", "fletcher2"),
        ("lzjb", "fletcher4"),
        ("zle", "sha256"),
        ("gzip-1", "sha512"),
        ("gzip-9", "skein"),
        ("zstd", "edonr"),
        ("zstd-19", "blake3"),
        ("zstd-fast", "sha256"),
        ("zstd-fast-1000", "sha512"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("tank/of{number}");
        let properties = [
            words("compression", compression),
            words("checksum", checksum),
            (
                "recordsize".to_owned(),
                PropertyValue::Number(1 << (9 + number)),
            ),
            words("copies", ["1", "2", "3"][number % 3]),
            words("dnodesize", ["legacy", "auto", "2k"][number % 3]),
            words("xattr", ["sa", "on"][number % 2]),
            words("acltype", ["posix", "off"][number % 2]),
        ];
        pool.datasets()
            .create_filesystem(&name, &properties)
            .unwrap();
        let files = pool.file_system(&name).unwrap();
        let (root, caller) = (files.root().unwrap(), Caller::root());
        for (index, length) in [0usize, 1, 100, 511, 4096, 100_000, 1_500_000]
            .into_iter()
            .enumerate()
        {
            let bytes: Vec<u8> = (0..length)
                .map(|at| ((at / 7) as u8) ^ ((at >> 10) as u8))
                .collect();
            let file = format!("file{index}").into_bytes();
            let mode = NewMode::exactly(0o644);
            let (node, _) = files.create(&caller, &root, &file, mode, true).unwrap();
            files
                .write(&caller, &node, WriteAt::Offset(0), &bytes)
                .unwrap();
            for count in 0..index {
                let attribute = format!("user.a{count}").into_bytes();
                let value = vec![b'v'; count * 700];
                let set = millpond::live::XattrMode::Set;
                files
                    .set_xattr(&caller, &node, &attribute, &value, set)
                    .unwrap();
            }
        }
    }
    pool.export().unwrap();
    rig.judge("tank");
    judged(&rig, Release::V2_3, "compressions");
    judged(&rig, Release::V2_4, "compressions");
}
