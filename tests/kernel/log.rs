//! The power fails after an fsync and before the next txg.
//!
//! The module replays our log with the same result as our replay.

use crate::rig::Rig;
use millpond_engine::{
    Allocate, Caller, DirEntryRef, FileFlags, NewLayout, NewMode, Pool, PoolBuilder, PropertyValue,
    RenameMode, SetAttributes, SetTime, SpecialFile, Timestamp, WriteAt, WriteOptions, XattrMode,
};
use millpond_tests::oracle::kernel::{self, Release};
use millpond_tests::workload::manifest;
use millpond_vdev::AllocationClass::{Log, Normal};
use std::collections::BTreeSet;

/// Does everything in a file system that log records can describe.
fn everything(pool: &Pool, name: &str) {
    let files = pool.file_system(name).unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let exactly = NewMode::exactly;
    let old = root.lookup(b"old").unwrap();
    files
        .write(&caller, &old, WriteAt::Offset(5000), &[1; 200_000])
        .unwrap();
    let set = SetAttributes {
        size_bytes: Some(150_000),
        ..SetAttributes::default()
    };
    files.set_attributes(&caller, &old, &set).unwrap();
    files
        .allocate(&old, Allocate::PunchHole, 40_000, 50_000)
        .unwrap();
    // Whole blocks, which are written outside the log: random data, one byte repeated, zeros. One is
    // overwritten before the fsync, one after it, one is truncated.
    let mut large: Vec<u8> = (0..8u32 << 17)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8)
        .collect();
    large[1 << 17..2 << 17].fill(7);
    large[2 << 17..3 << 17].fill(0);
    let (node, _) = files
        .create(&caller, &root, b"large", exactly(0o600), true)
        .unwrap();
    let write = |at: usize, bytes: &[u8]| {
        let at = WriteAt::Offset(at as u64);
        files.write(&caller, &node, at, bytes).unwrap();
    };
    write(0, &large);
    write(3 << 17, &large[77..77 + (1 << 17)]);
    write((4 << 17) + 99, b"inside a block");
    let set = SetAttributes {
        size_bytes: Some((7 << 17) + 1000),
        ..SetAttributes::default()
    };
    files.set_attributes(&caller, &node, &set).unwrap();
    files.fsync(&node).unwrap();
    write(5 << 17, &large[33..33 + (2 << 17)]);
    files.fsync(&node).unwrap();
    drop(node);
    let dir = files
        .make_directory(&caller, &root, b"dir", exactly(0o750))
        .unwrap();
    for number in 0..40usize {
        let file = format!("f{number}").into_bytes();
        let (node, _) = files
            .create(&caller, &dir, &file, exactly(0o640), true)
            .unwrap();
        let bytes: Vec<u8> = (0..number * 399).map(|at| (at * number) as u8).collect();
        files.write(&caller, &node, WriteAt::End, &bytes).unwrap();
        if number % 5 == 0 {
            files
                .set_xattr(&caller, &node, b"user.n", &[b'n'; 77], XattrMode::Set)
                .unwrap();
        }
        if number % 10 == 0 {
            files
                .set_xattr(&caller, &node, b"user.gone", b"x", XattrMode::Set)
                .unwrap();
            files.remove_xattr(&node, b"user.gone").unwrap();
        }
    }
    files.make_symlink(&caller, &dir, b"link", b"f1").unwrap();
    files
        .make_special(&caller, &dir, b"pipe", SpecialFile::Fifo, exactly(0o600))
        .unwrap();
    let device = SpecialFile::BlockDevice(8, 17);
    files
        .make_special(&caller, &dir, b"disk", device, exactly(0o600))
        .unwrap();
    let f2 = dir.lookup(b"f2").unwrap();
    files.link(&f2, &root, b"f2-too").unwrap();
    files.unlink(&dir, b"f3").unwrap();
    let empty = files
        .make_directory(&caller, &dir, b"empty", exactly(0o700))
        .unwrap();
    drop(empty);
    files.remove_directory(&dir, b"empty").unwrap();
    let at = |name: &'static [u8]| DirEntryRef {
        directory: &dir,
        name,
    };
    let to = |name: &'static [u8]| DirEntryRef {
        directory: &root,
        name,
    };
    files
        .rename(&caller, at(b"f4"), to(b"moved"), RenameMode::Replace)
        .unwrap();
    files
        .rename(&caller, at(b"f5"), at(b"f6"), RenameMode::Replace)
        .unwrap();
    files
        .rename(&caller, at(b"f7"), at(b"f8"), RenameMode::Exchange)
        .unwrap();
    files
        .rename(&caller, at(b"f9"), to(b"f9-moved"), RenameMode::Whiteout)
        .unwrap();
    let time = SetTime::To(Timestamp {
        seconds: 1_000_000_000,
        nanoseconds: 7,
    });
    let f10 = dir.lookup(b"f10").unwrap();
    let set = SetAttributes {
        permissions: Some(0o4711),
        uid: Some(1234),
        gid: Some(4321),
        mtime: Some(time),
        atime: Some(time),
        set_flags: FileFlags::NODUMP,
        ..SetAttributes::default()
    };
    files.set_attributes(&caller, &f10, &set).unwrap();
    files.commit_log().unwrap();
    // More records, so that the chain has several blocks. The last record is not synced.
    for number in 0..100usize {
        let file = format!("g{number}").into_bytes();
        let (node, _) = files
            .create(&caller, &dir, &file, exactly(0o600), true)
            .unwrap();
        files
            .write(
                &caller,
                &node,
                WriteAt::End,
                &vec![number as u8; number * 31],
            )
            .unwrap();
        files.fsync(&node).unwrap();
    }
}

/// Keeps files, owners, modes, links, sizes, content and creation times.
///
/// All other times are those of the replay; the module does not even set the access time in an attribute
/// record. Sector counts differ too: the replay compresses data again, and the output of the module's lz4
/// differs from ours.
fn without_times(lines: impl Iterator<Item = String>) -> BTreeSet<String> {
    lines
        .map(|line| {
            let mut parts: Vec<String> = line.split('\t').map(str::to_owned).collect();
            if let Some(stat) = parts.get_mut(1) {
                let words: Vec<&str> = stat.split(' ').collect();
                if let [fixed @ .., _sectors, _mtime, _ctime, _atime, made, device] = &words[..] {
                    *stat = format!("{} {made} {device}", fixed.join(" "));
                }
            }
            parts.join("\t")
        })
        .collect()
}

pub(crate) fn copy_of(rig: &Rig) -> Rig {
    let copy = Rig::new(rig.images.len(), 1);
    for (from, to) in rig.images.iter().zip(&copy.images) {
        millpond_tests::images::copy_sparse(from, to).unwrap();
    }
    copy
}

fn replayed_by_both(has_log_device: bool, release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    // Large enough that no space estimate waits for a txg.
    let rig = Rig::new(2, 768);
    let mut writing = WriteOptions::default();
    // No automatic txg, so that everything is only in the log.
    writing.limits.period = std::time::Duration::from_secs(3600);
    let class = if has_log_device { Log } else { Normal };
    let plan = PoolBuilder::new("tank")
        .single(&rig.images[0])
        .top(class, NewLayout::Single, [&rig.images[1]])
        .root_property("xattr", "sa")
        .writing(writing);
    let pool = plan.create().unwrap();
    pool.datasets()
        .create_filesystem("tank/files", &[])
        .unwrap();
    let size = [
        ("volsize".to_owned(), PropertyValue::Number(16 << 20)),
        ("volblocksize".to_owned(), PropertyValue::Number(64 << 10)),
    ];
    pool.datasets().create_volume("tank/disk", &size).unwrap();
    let volume = pool.volume("tank/disk").unwrap();
    volume.write(0, &[3; 300_000]).unwrap();
    for name in ["tank", "tank/files"] {
        let files = pool.file_system(name).unwrap();
        let root = files.root().unwrap();
        let (old, _) = files
            .create(
                &Caller::root(),
                &root,
                b"old",
                NewMode::exactly(0o644),
                true,
            )
            .unwrap();
        files
            .write(&Caller::root(), &old, WriteAt::End, &[9; 300_000])
            .unwrap();
        // The first commit creates the chain.
        files.fsync(&old).unwrap();
    }
    volume.write(0, &[2; 10_000]).unwrap();
    volume.commit_log().unwrap();
    pool.sync().unwrap();
    let synced = pool.inner().uberblock().txg;
    everything(&pool, "tank");
    everything(&pool, "tank/files");
    volume.write(100_000, &[4; 100_000]).unwrap();
    volume.discard(256 << 10, 128 << 10).unwrap();
    let noise: Vec<u8> = (0..1u32 << 20)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    volume.write(1 << 20, &noise).unwrap();
    volume.commit_log().unwrap();
    assert_eq!(
        pool.inner().uberblock().txg,
        synced,
        "nothing but logs was written"
    );
    drop(volume);
    drop(pool);
    rig.judge("tank");

    let ours = copy_of(&rig);
    ours.open("tank").export().unwrap();
    ours.judge("tank");
    let expected = without_times(manifest(&ours.read("tank")).unwrap().into_iter());
    assert!(expected.len() > 250, "{}", expected.len());

    let share = tempfile::tempdir().unwrap();
    let verdict = kernel::judge(release, &rig.images, "tank", Some(share.path())).unwrap();
    if !verdict.is_clean() {
        rig.keep("log");
    }
    verdict.require(&format!("a log of ours, {release:?}"));
    let theirs = std::fs::read_to_string(share.path().join("manifest.txt")).unwrap();
    let theirs = without_times(theirs.lines().map(str::to_owned));
    let only_theirs: Vec<_> = theirs.difference(&expected).take(10).collect();
    let only_ours: Vec<_> = expected.difference(&theirs).take(10).collect();
    if !(only_ours.is_empty() && only_theirs.is_empty()) {
        rig.keep("log");
    }
    assert!(
        only_ours.is_empty() && only_theirs.is_empty(),
        "{release:?}: the module makes {only_theirs:#?}, we make {only_ours:#?} of the log"
    );
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn the_module_replays_a_log_of_ours() {
    replayed_by_both(false, Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn the_module_replays_a_log_of_ours_on_a_log_device() {
    replayed_by_both(true, Release::V2_3);
    replayed_by_both(true, Release::V2_4);
}
