//! Scrubs and resilvers that one side begins and the other continues, what is repaired, and the logs of errors.

use crate::{Rig, run_script};
use millpond_device::{Device, FileDevice, OpenOptions};
use millpond_engine::{
    Caller, NewMode, Offline, Pool, PoolBuilder, PoolSetting, PropertyValue, ScanLimits, Scanner,
    ScrubRange, WriteAt,
};
use millpond_ondisk::{ScanFunction, ScanPhase, ScanPhys};
use millpond_sim::Seed;
use millpond_tests::oracle::kernel::{self, Release, written};
use millpond_tests::workload::Life;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MIB: u64 = 128;
/// Half of all pages, out of a million.
const HALF: u32 = 500_000;

/// Slices of this many blocks.
fn scanner(blocks: usize) -> Scanner {
    Scanner::new(ScanLimits {
        blocks,
        ..ScanLimits::default()
    })
}

fn state(pool: &Pool) -> ScanPhys {
    pool.inner().scan().unwrap().0
}

/// READ, WRITE and CKSUM of each leaf.
pub(crate) fn errors_of(pool: &Pool) -> Vec<[u64; 3]> {
    let topology = pool.inner().store().topology();
    let of = |(leaf, _): (_, _)| {
        let stats = topology.leaf_stats(leaf);
        [stats.read_errors, stats.write_errors, stats.checksum_errors]
    };
    topology.tree.leaves().map(of).collect()
}

/// Scans to the end.
pub(crate) fn finish(pool: &Pool, life: Option<&mut Life>) -> ScanPhys {
    let scanner = scanner(400);
    if let Some(life) = life {
        scanner.slice(pool.inner()).unwrap();
        life.steps(pool, 20);
    }
    while scanner.slice(pool.inner()).unwrap() {}
    let state = state(pool);
    assert_eq!(state.phase, ScanPhase::Finished);
    state
}

/// Overwrites random sectors behind the labels of an image, in this part of all pages. Returns how many.
pub(crate) fn rot(image: &Path, seed: u64, per_million: u32) -> usize {
    let mut seed = Seed::new(seed);
    let file = std::fs::File::options().read(true).write(true).open(image);
    let file = file.unwrap();
    let mut page = [0; 4096];
    let mut count = 0;
    for offset in ((4 << 20)..(MIB << 20) - (512 << 10)).step_by(page.len()) {
        file.read_exact_at(&mut page, offset).unwrap();
        if page.iter().any(|byte| *byte != 0) && seed.happens(per_million) {
            file.write_all_at(&seed.bytes(512), offset).unwrap();
            count += 1;
        }
    }
    count
}

fn lived(builder: PoolBuilder, name: &str) -> (Pool, Life) {
    crate::lived(builder, name, "scan", 250)
}

/// Begins a scrub of a damaged pool here, and makes a part of it.
fn begun(rig: &Rig, builder: PoolBuilder, name: &str, damaged: &Path) -> Life {
    let (pool, mut life) = lived(builder, name);
    pool.export().unwrap();
    assert!(rot(damaged, 1, HALF) > 100);
    let pool = rig.open(name);
    pool.inner().start_scrub(ScrubRange::All).unwrap();
    for _ in 0..3 {
        assert!(scanner(40).slice(pool.inner()).unwrap());
        life.steps(&pool, 5);
    }
    let state = state(&pool);
    assert!(
        state.phase == ScanPhase::Scanning && state.processed_bytes > 0,
        "{state:?}"
    );
    pool.export().unwrap();
    life
}

/// A device is away while the pool is written, comes back, and is resilvered.
fn resilvered(builder: PoolBuilder, name: &str, away: &Path) -> Life {
    let (pool, mut life) = lived(builder, name);
    let topology = pool.inner().store().topology();
    let guid = topology.tree.leaves().next().unwrap().1.config.guid;
    drop(topology);
    pool.inner().offline_leaf(guid, Offline::default()).unwrap();
    life.steps(&pool, 60);
    pool.sync().unwrap();
    let options = OpenOptions {
        write: true,
        ..OpenOptions::default()
    };
    let found: Arc<dyn Device> = Arc::new(FileDevice::open(away, options).unwrap());
    pool.inner().online_leaf(guid, Some(&found)).unwrap();
    assert!(pool.inner().start_resilver().unwrap());
    let state = finish(&pool, None);
    assert_eq!((state.function, state.errors), (ScanFunction::Resilver, 0));
    assert!(state.processed_bytes > 0);
    pool.export().unwrap();
    life
}

const FILE_BYTES: usize = 300_000;

fn content(number: u64) -> Vec<u8> {
    Seed::new(1000 + number).bytes(FILE_BYTES)
}

fn write(pool: &Pool, dataset: &str, number: u64) {
    let files = pool.file_system(dataset).unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let name = format!("file{number}").into_bytes();
    let mode = NewMode::exactly(0o644);
    let (node, _) = files.create(&caller, &root, &name, mode, true).unwrap();
    let at = WriteAt::Offset(0);
    files.write(&caller, &node, at, &content(number)).unwrap();
}

/// Damages a block in the middle of each of these files.
fn lose(image: &Path, numbers: &[u64]) {
    let bytes = std::fs::read(image).unwrap();
    let file = std::fs::File::options().write(true).open(image).unwrap();
    for number in numbers {
        let content = content(*number);
        let sector = &content[131_072..131_072 + 512];
        let places: Vec<usize> = (0..bytes.len())
            .step_by(512)
            .filter(|at| &bytes[*at..*at + 512] == sector)
            .collect();
        assert_eq!(places.len(), 1, "file{number}");
        file.write_all_at(&[0x5a; 512], places[0] as u64).unwrap();
    }
}

/// A pool on one device without compression, some files of which are lost: in a head, in a head and its snapshot,
/// in a snapshot only, in snapshots of which one has a clone, and in a clone only.
fn lost(builder: PoolBuilder, name: &str, image: &Path) {
    let builder = builder.single(image);
    let builder = builder.root_property("compression", "off");
    let pool = builder.create().unwrap();
    let datasets = pool.datasets();
    let head = format!("{name}/a");
    datasets.create_filesystem(&head, &[]).unwrap();
    for number in 0..4 {
        write(&pool, &head, number);
    }
    // The module does not look for a block in a snapshot of the txg in which it was born.
    pool.sync().unwrap();
    datasets.snapshot(&[&format!("{head}@one")], &[]).unwrap();
    let unlink = |number: u64| {
        let files = pool.file_system(&head).unwrap();
        let name = format!("file{number}").into_bytes();
        files.unlink(&files.root().unwrap(), &name).unwrap();
    };
    unlink(1);
    write(&pool, &head, 4);
    pool.sync().unwrap();
    datasets.snapshot(&[&format!("{head}@two")], &[]).unwrap();
    write(&pool, &head, 5);
    let clone = format!("{name}/clone");
    let origin = format!("{head}@two");
    datasets.clone_snapshot(&origin, &clone, &[]).unwrap();
    write(&pool, &clone, 6);
    unlink(4);
    pool.export().unwrap();
    lose(image, &[1, 2, 4, 5, 6]);
}

/// The names of damaged files, in order, without repetitions.
pub(crate) fn names(rig: &Rig, pool: &str) -> Vec<String> {
    let view = rig.read(pool);
    let mut names = millpond_service::damaged_files(&view);
    names.sort();
    names.dedup();
    names
}

/// Writes a file of 40,000 blocks, so that the module's scrub takes more than a txg.
fn many_blocks(pool: &Pool, name: &str) {
    let small = [("recordsize".to_owned(), PropertyValue::Number(512))];
    let dataset = format!("{name}/many");
    pool.datasets().create_filesystem(&dataset, &small).unwrap();
    let files = pool.file_system(&dataset).unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o644);
    let (node, _) = files.create(&caller, &root, b"many", mode, true).unwrap();
    let content = Seed::new(5).bytes(40_000 * 512);
    let at = WriteAt::Offset(0);
    files.write(&caller, &node, at, &content).unwrap();
}

fn scrub_lost(rig: &Rig, name: &str) -> ScanPhys {
    let pool = rig.open(name);
    pool.inner().start_scrub(ScrubRange::All).unwrap();
    let state = finish(&pool, None);
    assert!(state.errors >= 5, "{state:?}");
    pool.export().unwrap();
    state
}

fn run(release: Release, rig: &Rig, share: &Path, arguments: &[&str]) {
    run_script(release, rig, "scan", Some(share), arguments);
}

/// The errors are those that the module lists, and stay the same after its scrub and after ours.
fn same_errors(rig: &Rig, share: &Path, pool: &str, known: &[String]) {
    for when in ["before", "after", "again"] {
        let theirs = written(share, &format!("{pool}.{when}"));
        assert_eq!(theirs, known, "{pool}, {when}");
    }
    assert_eq!(names(rig, pool), known, "{pool}, after the module");
    scrub_lost(rig, pool);
    assert_eq!(names(rig, pool), known, "{pool}, after the module and us");
}

fn to_and_fro(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(12, MIB);
    let images: Vec<PathBuf> = rig.images.clone();
    let mirror = |name: &str, from: usize| PoolBuilder::new(name).mirror(&images[from..from + 2]);
    let our_mirror = begun(&rig, mirror("ourmirror", 0), "ourmirror", &images[1]);
    let raidz = PoolBuilder::new("ourraidz").raidz(1, &images[2..5]);
    let our_raidz = begun(&rig, raidz, "ourraidz", &images[3]);
    let (pool, mut their_mirror) = lived(mirror("theirs", 5), "theirs");
    many_blocks(&pool, "theirs");
    pool.export().unwrap();
    assert!(rot(&images[6], 2, HALF) > 100);
    let away = resilvered(mirror("away", 7), "away", &images[7]);
    lost(PoolBuilder::new("ourlog"), "ourlog", &images[9]);
    scrub_lost(&rig, "ourlog");
    let ours = names(&rig, "ourlog");
    let old = PoolBuilder::new("oldlog").property("feature@head_errlog", "disabled");
    lost(old, "oldlog", &images[10]);
    scrub_lost(&rig, "oldlog");
    let old = names(&rig, "oldlog");
    lost(PoolBuilder::new("theirlog"), "theirlog", &images[11]);

    let share = tempfile::tempdir().unwrap();
    let actions = [
        ["finish", "ourmirror"],
        ["finish", "ourraidz"],
        ["begin", "theirs"],
        ["clean", "away"],
        ["errors", "ourlog"],
        ["errors", "oldlog"],
        ["errors", "theirlog"],
    ];
    run(release, &rig, share.path(), actions.as_flattened());
    our_mirror.compare(&rig.read("ourmirror"), "a mirror scrubbed by both");
    our_raidz.compare(&rig.read("ourraidz"), "a RAID-Z scrubbed by both");
    away.compare(&rig.read("away"), "a mirror resilvered here");
    same_errors(&rig, share.path(), "ourlog", &ours);
    same_errors(&rig, share.path(), "oldlog", &old);
    assert!(written(share.path(), "theirlog.before").is_empty());
    let theirs = written(share.path(), "theirlog.after");
    assert_eq!(names(&rig, "theirlog"), theirs);

    let pool = rig.open("theirs");
    let before = state(&pool);
    println!("    the module's scrub: {before:?}");
    assert!(before.is_paused() && before.examined_bytes > 0);
    assert!(pool.inner().begin_slice().is_none());
    pool.inner().start_scrub(ScrubRange::All).unwrap();
    let after = finish(&pool, Some(&mut their_mirror));
    assert_eq!((after.errors, after.start_time), (0, before.start_time));
    assert!(after.processed_bytes > before.processed_bytes);
    pool.export().unwrap();
    rig.judge("theirs");
    // A log in the older form that we converted, and an error scrub that we paused.
    let pool = rig.open("oldlog");
    let enable = PoolSetting::EnableFeature("head_errlog");
    pool.inner().set_property(&enable).unwrap();
    pool.export().unwrap();
    let pool = rig.open("ourlog");
    pool.inner().start_error_scrub().unwrap();
    pool.inner().pause_scrub().unwrap();
    pool.export().unwrap();
    let old = names(&rig, "oldlog");
    assert!(old.len() > 5, "{old:?}");
    let actions = [
        ["cleared", "theirs"],
        ["errors", "oldlog"],
        ["resume", "ourlog"],
    ];
    run(release, &rig, share.path(), actions.as_flattened());
    same_errors(&rig, share.path(), "oldlog", &old);
    assert_eq!(written(share.path(), "ourlog.resumed"), ours);
    assert_eq!(names(&rig, "ourlog"), ours);
    let pool = rig.open("theirs");
    pool.datasets()
        .destroy("theirs/many", Default::default())
        .unwrap();
    pool.export().unwrap();
    their_mirror.compare(&rig.read("theirs"), "a mirror scrubbed by both");
    for name in ["ourmirror", "ourraidz", "theirs", "away"] {
        rig.judge(name);
    }
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn scans_go_to_2_3_and_come_back() {
    to_and_fro(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn scans_go_to_2_4_and_come_back() {
    to_and_fro(Release::V2_4);
}
