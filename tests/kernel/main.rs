//! Pools created or changed here, judged by OpenZFS's kernel module in a virtual machine.
//!
//! The module imports, scrubs, reads and changes them. We then continue with the result.
//!
//! Each test takes minutes, so only `make test-kernel` runs them. `MILLPOND_KERNEL_SEED` sets another first
//! seed.

mod activity;
mod attach;
mod cache;
mod chains;
mod checkpoint;
mod cloning;
mod condense;
mod damage;
mod dedup;
mod draid;
mod encryption;
mod expand;
mod grow;
mod log;
mod old_pools;
mod packages;
mod permissions;
mod rebuild;
mod receive;
#[path = "../writing/records.rs"]
mod records;
mod remove;
mod rewrite;
mod rich;
#[path = "../writing/rig.rs"]
mod rig;
mod scan;
mod send;
mod states;

use millpond_engine::{
    Caller, DatasetKind, DraidShape, FileSystem, NewLayout, NewMode, Node, Pool, PoolBuilder,
    PropertyValue, View, WriteAt,
};
use millpond_tests::images::workspace;
use millpond_tests::oracle::kernel::{self, Disks, Release, only_one_has, written};
use millpond_tests::workload::{Life, manifest, space_by_owner, space_list};
use millpond_vdev::AllocationClass::{Log, Normal, Special};
use rig::Rig;
use std::path::Path;
use std::sync::Arc;

fn seed() -> u64 {
    let value = std::env::var("MILLPOND_KERNEL_SEED").ok();
    value.and_then(|value| value.parse().ok()).unwrap_or(1)
}

/// A pool with files, snapshots and clones.
fn lived(builder: PoolBuilder, name: &str, shape: &str, steps: usize) -> (Pool, Life) {
    let pool = builder.create().unwrap();
    let mut life = Life::new(name, shape, seed());
    life.steps(&pool, steps);
    pool.sync().unwrap();
    (pool, life)
}

/// Runs a script of `tools/kernel` on the images of a rig, which keep what it writes. After a failure they are kept under
/// the script's name.
fn run_script(release: Release, rig: &Rig, name: &str, share: Option<&Path>, arguments: &[&str]) {
    let script = workspace().join("tools/kernel").join(name);
    let disks = Disks::Changed;
    let output = kernel::run(release, &rig.images, disks, share, &script, arguments);
    let output = output.unwrap();
    output.lines.iter().for_each(|line| println!("    {line}"));
    if output.status != Some(0) {
        rig.keep(name);
    }
    assert_eq!(output.status, Some(0), "{release:?}");
}

/// Whether the virtual machines are available; prints a message if not.
fn has_machines(what: &str) -> bool {
    for release in [Release::V2_3, Release::V2_4] {
        if let Some(why) = kernel::absent(release) {
            println!("{what}: not judged by {release:?}: {why}");
            return false;
        }
    }
    true
}

/// The module's `zfs list` in the form of [`space_list`].
fn their_space_list(share: &Path) -> Vec<String> {
    let mut lines = vec![];
    for line in written(share, "datasets.txt") {
        let mut parts: Vec<&str> = line.split('\t').collect();
        if parts[1] == "bookmark" {
            continue;
        }
        // The space available to all datasets changes with every txg.
        parts.remove(3);
        if parts[0] == "tank" {
            parts[2] = "*";
        }
        lines.push(parts.join("\t"));
    }
    lines
}

/// The module accepts the pool, and its reads and space counts match ours.
///
/// With `change` it also changes the pool, and our reads match its reads afterwards.
fn judged(rig: &Rig, release: Release, what: &str, change: Option<&str>) {
    println!("  {what}: {release:?} has it");
    let share = tempfile::tempdir().unwrap();
    let before = rig.read("tank");
    let (ours, owners, sums) = (
        manifest(&before).unwrap(),
        space_by_owner(&before).unwrap(),
        space_list(&before).unwrap(),
    );
    drop(before);
    let verdict = match change {
        None => kernel::judge(release, &rig.images, "tank", Some(share.path())),
        Some(tag) => kernel::judge_and_change(release, &rig.images, "tank", share.path(), tag),
    }
    .unwrap();
    let mut differences = vec![];
    if verdict.is_clean() {
        let count = ours.len();
        assert!(count > 70, "{what}: {count} lines prove little");
        for (name, ours, theirs) in [
            ("files", ours, written(share.path(), "manifest.txt")),
            ("owners", owners, written(share.path(), "space.txt")),
            ("totals", sums, their_space_list(share.path())),
        ] {
            let (count, found) = (ours.len(), only_one_has(ours, theirs));
            println!("    {name}: {count} lines compared, {} differ", found.len());
            differences.extend(found);
        }
        if change.is_some() {
            let ours = manifest(&rig.read("tank")).unwrap();
            let (count, theirs) = (ours.len(), written(share.path(), "changed.txt"));
            let found = only_one_has(ours, theirs);
            println!(
                "    changed: {count} lines compared, {} differ",
                found.len()
            );
            differences.extend(found);
        }
    }
    if !verdict.is_clean() || !differences.is_empty() {
        rig.keep(&what.replace(' ', "-"));
    }
    verdict.require(&format!("{what}, {release:?}"));
    let shown = differences.join("\n  ");
    assert!(differences.is_empty(), "{what}, {release:?}:\n  {shown}");
}

fn file_systems(pool: &View) -> Vec<String> {
    let mut names = vec![];
    for dataset in pool.datasets() {
        let dataset = dataset.unwrap();
        if dataset.kind().unwrap() != DatasetKind::Volume {
            names.push(dataset.name().to_owned());
        }
    }
    names
}

/// Continues with the pool that the module left.
///
/// Changes the module's files in every file system, the simulated run and everything below `rich`; then
/// takes snapshots, creates clones, promotes and rolls back.
fn gone_on(rig: &Rig, life: &mut Life, tag: &str, round: u64) {
    let names = file_systems(&rig.read("tank"));
    let pool = rig.open("tank");
    change_theirs(&pool, &names, tag);
    life.dataset_percent = 0;
    life.steps(&pool, 80);
    rich::change_all(&pool, round);
    let datasets = pool.datasets();
    // The rollback undoes all later changes there.
    let snapshot = format!("tank/rich/copies@ours-{tag}");
    datasets.snapshot(&[&snapshot], &[]).unwrap();
    let files = pool.file_system("tank/rich/copies").unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o600);
    files.create(&caller, &root, b"undone", mode, true).unwrap();
    drop((root, files));
    datasets.rollback(&snapshot).unwrap();
    let clone = format!("tank/rich/clone-{tag}");
    datasets.clone_snapshot(&snapshot, &clone, &[]).unwrap();
    datasets.promote(&clone).unwrap();
    let renamed = format!("tank/rich/promoted-{tag}");
    datasets.rename(&clone, &renamed).unwrap();
    pool.export().unwrap();
}

/// Changes the files that the module made, and destroys some of its snapshots.
fn change_theirs(pool: &Pool, names: &[String], tag: &str) {
    for (index, name) in names.iter().enumerate() {
        let files = pool.file_system(name).unwrap();
        let (root, caller) = (files.root().unwrap(), Caller::root());
        let folder = format!("by-kernel-{tag}").into_bytes();
        // In clones too, as of the snapshot; not in datasets that belong to the simulated run.
        let Ok(theirs) = root.lookup(&folder) else {
            continue;
        };
        for number in 10..30 {
            let name = format!("f{number}").into_bytes();
            match number % 3 {
                0 => files.unlink(&theirs, &name).unwrap(),
                1 => {
                    let node = theirs.lookup(&name).unwrap();
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
        let snapshot = format!("{name}@by-kernel-{tag}");
        // Some snapshots are destroyed (if they exist), others stay.
        if index % 2 == 1 && name != "tank" {
            let all = [snapshot.as_str()];
            let _ = pool.datasets().destroy_snapshots(&all, Default::default());
        }
    }
}

/// Destroys what the modules and [`gone_on`] created.
///
/// Only the datasets of the simulated run remain.
fn cleaned(rig: &Rig, life: &Life, shape: &str) {
    let names = file_systems(&rig.read("tank"));
    let pool = rig.open("tank");
    for name in names.iter().filter(|name| !name.contains("clone-by")) {
        if name.starts_with("tank/rich") {
            continue;
        }
        let files = pool.file_system(name).unwrap();
        let root = files.root().unwrap();
        for listed in root.list(0, usize::MAX).unwrap() {
            if listed.entry.name.starts_with(b"by-kernel") {
                emptied(&files, &root, &listed.entry.name);
            }
        }
        files.reap().unwrap();
    }
    let engine = pool.datasets();
    let of = |pool: &millpond_engine::Pool| {
        let committed = pool.committed().unwrap();
        let mut all = vec![];
        for dataset in committed.datasets() {
            let dataset = dataset.unwrap();
            let snapshots = dataset.snapshots().unwrap();
            all.extend(snapshots.iter().map(|one| one.name().to_owned()));
            all.push(dataset.name().to_owned());
        }
        all
    };
    // Clones depend on snapshots, and those on clones, so this repeats until nothing more can be destroyed.
    loop {
        let extra: Vec<String> = of(&pool)
            .into_iter()
            .filter(|name| name.starts_with("tank/rich") || name.contains("by-kernel"))
            .collect();
        let mut gone = 0;
        for name in extra.iter().rev() {
            gone += usize::from(match name.contains('@') {
                true => engine
                    .destroy_snapshots(&[name], Default::default())
                    .is_ok(),
                false => engine.destroy(name, Default::default()).is_ok(),
            });
        }
        if gone == 0 {
            assert!(extra.is_empty(), "{shape}: cannot be destroyed: {extra:?}");
            break;
        }
    }
    pool.export().unwrap();
    rig.judge("tank");
    life.compare(&rig.read("tank"), shape);
}

fn emptied(files: &Arc<FileSystem>, at: &Node, name: &[u8]) {
    let node = at.lookup(name).unwrap();
    for listed in node.list(0, usize::MAX).unwrap() {
        let name = listed.entry.name;
        if name == b"." || name == b".." {
            continue;
        }
        match node.lookup(&name).unwrap().kind() {
            millpond_engine::FileKind::Directory => emptied(files, &node, &name),
            _ => files.unlink(&node, &name).unwrap(),
        }
    }
    drop(node);
    files.remove_directory(at, name).unwrap();
}

/// Hands a pool back and forth between us and both releases of OpenZFS.
///
/// We create and fill the pool. One release judges and changes it, and we continue. The other release does
/// the same, and we continue. The first judges again (with `MILLPOND_WRITING_ALL` the other as well). Our
/// own content must be unchanged.
fn handed_to_and_fro(
    shape: &str,
    first: Release,
    disks: usize,
    mib: u64,
    plan: impl Fn(&Rig) -> PoolBuilder,
) {
    handed_with(shape, first, disks, mib, plan, |_| {});
}

/// Like [`handed_to_and_fro`], with work that `prepare` changes.
fn handed_with(
    shape: &str,
    first: Release,
    disks: usize,
    mib: u64,
    plan: impl Fn(&Rig) -> PoolBuilder,
    prepare: impl Fn(&mut Life),
) {
    if !has_machines(shape) {
        return;
    }
    let second = match first {
        Release::V2_3 => Release::V2_4,
        Release::V2_4 => Release::V2_3,
    };
    let rig = Rig::new(disks, mib);
    let pool = plan(&rig).create().unwrap();
    let mut life = Life::new("tank", shape, seed());
    prepare(&mut life);
    life.steps(&pool, 130);
    rich::fill(&pool);
    pool.export().unwrap();
    rig.judge("tank");
    judged(&rig, first, shape, Some("one"));
    rig.judge("tank");
    gone_on(&rig, &mut life, "one", 2);
    rig.judge("tank");
    judged(&rig, second, &format!("{shape} again"), Some("two"));
    rig.judge("tank");
    gone_on(&rig, &mut life, "two", 3);
    rig.judge("tank");
    judged(&rig, first, &format!("{shape} a third time"), None);
    if std::env::var_os("MILLPOND_WRITING_ALL").is_some() {
        judged(&rig, second, &format!("{shape} at last"), None);
    }
    cleaned(&rig, &life, shape);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn a_pool_of_one_disk_round_trips_through_openzfs() {
    handed_to_and_fro("single", Release::V2_3, 1, 512, |rig| rig.stripe("tank"));
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn file_systems_of_old_versions_round_trip_through_openzfs() {
    let makes_old = |life: &mut Life| {
        life.makes_old_file_systems = true;
        life.dataset_percent = 25;
    };
    let plan = |rig: &Rig| rig.stripe("tank").root_property("version", "2");
    handed_with("old", Release::V2_3, 1, 512, plan, makes_old);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn a_mirror_with_small_sectors_round_trips_through_openzfs() {
    handed_to_and_fro("mirror9", Release::V2_4, 2, 512, |rig| {
        PoolBuilder::new("tank").mirror(&rig.images).ashift(9)
    });
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn a_stripe_of_three_round_trips_through_openzfs() {
    handed_to_and_fro("stripe3", Release::V2_3, 3, 512, |rig| {
        rig.stripe("tank").ashift(12)
    });
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn a_raidz1_with_small_sectors_round_trips_through_openzfs() {
    handed_to_and_fro("raidz1", Release::V2_4, 3, 512, |rig| {
        PoolBuilder::new("tank").raidz(1, &rig.images).ashift(9)
    });
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn a_raidz3_round_trips_through_openzfs() {
    handed_to_and_fro("raidz3", Release::V2_3, 6, 512, |rig| {
        PoolBuilder::new("tank").raidz(3, &rig.images)
    });
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn a_raidz2_round_trips_through_openzfs() {
    handed_to_and_fro("raidz2", Release::V2_4, 5, 512, |rig| {
        PoolBuilder::new("tank").raidz(2, &rig.images)
    });
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn a_draid1_round_trips_through_openzfs() {
    handed_to_and_fro("draid1", Release::V2_3, 7, 512, |rig| {
        let shape = DraidShape {
            parity: 1,
            data: 3,
            spares: 1,
        };
        PoolBuilder::new("tank").draid(shape, &rig.images)
    });
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn a_draid2_with_small_sectors_round_trips_through_openzfs() {
    handed_to_and_fro("draid2", Release::V2_4, 8, 512, |rig| {
        let shape = DraidShape {
            parity: 2,
            data: 4,
            spares: 1,
        };
        PoolBuilder::new("tank").draid(shape, &rig.images).ashift(9)
    });
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn large_sectors_and_records_round_trip_through_openzfs() {
    handed_to_and_fro("ashift14", Release::V2_3, 1, 3072, |rig| {
        rig.stripe("tank")
            .ashift(14)
            .root_property("recordsize", "1048576")
            .root_property("compression", "zstd")
    });
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn a_pool_of_all_classes_round_trips_through_openzfs() {
    handed_to_and_fro("classes", Release::V2_4, 6, 768, |rig| {
        PoolBuilder::new("tank")
            .top(Normal, NewLayout::Mirror, rig.some(0..2))
            .top(Special, NewLayout::Mirror, rig.some(2..4))
            .top(Log, NewLayout::Single, rig.some(4..5))
            .cache(&rig.images[5])
            .root_property("special_small_blocks", "16384")
    });
}

/// Most blocks are gang blocks, those of the MOS among them.
#[test]
#[ignore = "minutes; make test-kernel"]
fn a_pool_of_gang_blocks_is_read_by_the_module() {
    if !has_machines("gangs") {
        return;
    }
    let rig = Rig::new(2, 768);
    let plan = PoolBuilder::new("tank").mirror(&rig.images).ashift(9);
    let pool = plan.create().unwrap();
    pool.inner().allocator().force_gangs(2048);
    let mut life = Life::new("tank", "gangs", seed());
    life.steps(&pool, 130);
    rich::fill(&pool);
    pool.export().unwrap();
    rig.judge("tank");
    judged(&rig, Release::V2_3, "gangs", None);
    judged(&rig, Release::V2_4, "gangs", None);
}

/// Every compression and checksum, with large records and long attribute lists.
#[test]
#[ignore = "minutes; make test-kernel"]
fn every_compression_and_checksum_is_read_by_the_module() {
    if !has_machines("compressions") {
        return;
    }
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
                let set = millpond_engine::XattrMode::Set;
                files
                    .set_xattr(&caller, &node, &attribute, &value, set)
                    .unwrap();
            }
        }
    }
    pool.export().unwrap();
    rig.judge("tank");
    judged(&rig, Release::V2_3, "compressions", None);
    judged(&rig, Release::V2_4, "compressions", None);
}
