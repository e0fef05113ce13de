//! File content: growing blocks, holes, very many blocks.

use super::{MODE, errno, plain, root};
use crate::support::Rig;
use millpond_env::mark;
use millpond_posix::{
    Allocate, CHUNK_BYTES, Errno, Extent, NewFileSystem, Seek, SetAttributes, Settings, Symlinks,
    WriteAt,
};
use std::sync::atomic::Ordering;

#[test]
fn block_sizes_grow_as_in_openzfs() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    let write = |at, length: usize| {
        files
            .write(&root(), &file, WriteAt::Offset(at), &vec![7; length])
            .unwrap();
        file.stat().unwrap().block_bytes
    };
    assert_eq!(write(0, 1), 512);
    assert_eq!(write(1, 699), 1024);
    assert_eq!(write(700, 99_300), 100_352);
    assert_eq!(write(100_000, 31_073), 131_072);
    rig.sync();
    let node = rig.committed().resolve(b"f", Symlinks::Keep).unwrap();
    let mut content = vec![0; 140_000];
    assert_eq!(node.read(0, &mut content).unwrap(), 131_073);
    assert!(content[..131_073].iter().all(|byte| *byte == 7));
    assert_eq!(node.object().committed().unwrap().block_id_max().0, 1);
    let longer = SetAttributes {
        size_bytes: Some(700),
        ..SetAttributes::default()
    };
    files.set_attributes(&root(), &file, &longer).unwrap();
    assert_eq!(file.stat().unwrap().block_bytes, 131_072);
    rig.sync();
    rig.check_space();
}

/// A program that is told that its write failed may write the bytes again, behind those that it has written.
#[test]
fn a_write_that_fails_for_lack_of_space_leaves_the_file_as_it_was() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    let (other, _) = files.create(&root(), &top, b"g", MODE, true).unwrap();
    let write = |at, length: u64| {
        let bytes = vec![7; length as usize];
        files.write(&root(), &file, at, &bytes)
    };
    let size = CHUNK_BYTES - 4096;
    write(WriteAt::Offset(0), size).unwrap();
    // Enough for the bytes up to the multiple of CHUNK_BYTES, not for those after it.
    let available = &rig.port.available_bytes;
    let before = available.swap(600 << 10, Ordering::Relaxed);
    assert_eq!(errno(write(WriteAt::End, 1 << 20)), Errno::ENOSPC);
    assert_eq!(file.size_bytes(), size);
    assert_eq!(errno(write(WriteAt::Offset(size), 1 << 20)), Errno::ENOSPC);
    assert_eq!(file.size_bytes(), size);
    let copied = files.copy_range(&root(), (&file, 0), (&other, size), 1 << 20);
    assert_eq!(errno(copied), Errno::ENOSPC);
    assert_eq!(other.size_bytes(), 0);
    available.store(before, Ordering::Relaxed);
    assert_eq!(write(WriteAt::End, 1 << 20).unwrap(), size);
    assert_eq!(file.size_bytes(), size + (1 << 20));
    rig.sync();
    rig.check_space();
}

#[test]
fn a_copy_that_fails_for_lack_of_space_writes_nothing_that_it_does_not_count() {
    let settings = Settings {
        record_bytes: 16 << 20,
        ..Settings::default()
    };
    let (rig, files) = Rig::new(&NewFileSystem::default(), settings);
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    let (other, _) = files.create(&root(), &top, b"g", MODE, true).unwrap();
    let bytes = vec![7; 8 << 20];
    files
        .write(&root(), &file, WriteAt::Offset(0), &bytes)
        .unwrap();
    let available = &rig.port.available_bytes;
    // Enough for a few bytes, not for CHUNK_BYTES.
    let before = available.swap(50 << 20, Ordering::Relaxed);
    let to = (&other, CHUNK_BYTES - 4096);
    let copied = files.copy_range(&root(), (&file, 0), to, 8 << 20);
    assert_eq!(errno(copied), Errno::ENOSPC);
    assert_eq!(other.size_bytes(), 0);
    available.store(before, Ordering::Relaxed);
    let copied = files.copy_range(&root(), (&file, 0), to, 8 << 20);
    assert_eq!(copied.unwrap(), 8 << 20);
    rig.sync();
    rig.check_space();
}

#[test]
fn punched_holes_are_found() {
    let settings = Settings {
        record_bytes: 4096,
        ..Settings::default()
    };
    let (rig, files) = Rig::new(&NewFileSystem::default(), settings);
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    files
        .write(&root(), &file, WriteAt::Offset(0), &vec![5; 40_960])
        .unwrap();
    files
        .allocate(&file, Allocate::PunchHole, 6000, 10_000)
        .unwrap();
    for _ in 0..2 {
        assert_eq!(file.seek(Seek::Hole, 0).unwrap(), 8192);
        assert_eq!(file.seek(Seek::Data, 8192).unwrap(), 12_288);
        assert_eq!(file.seek(Seek::Hole, 12_288).unwrap(), 40_960);
        assert_eq!(errno(file.seek(Seek::Data, 40_960)), Errno::ENXIO);
        rig.sync();
    }
    let zero = Allocate::ZeroRange { keeps_size: false };
    files.allocate(&file, zero, 40_000, 10_000).unwrap();
    assert_eq!(file.size_bytes(), 50_000);
    let reserve = Allocate::Reserve { keeps_size: true };
    files.allocate(&file, reserve, 0, 1 << 20).unwrap();
    rig.port.available_bytes.store(1 << 19, Ordering::Relaxed);
    assert_eq!(
        errno(files.allocate(&file, reserve, 0, 1 << 20)),
        Errno::ENOSPC
    );
    rig.port.available_bytes.store(1 << 40, Ordering::Relaxed);
    rig.sync();
    let node = rig.committed().resolve(b"f", Symlinks::Keep).unwrap();
    let mut content = vec![1; 50_000];
    assert_eq!(node.read(0, &mut content).unwrap(), 50_000);
    for (at, byte) in content.iter().enumerate() {
        let is_zero = (6000..16_000).contains(&at) || at >= 40_000;
        assert_eq!(*byte, if is_zero { 0 } else { 5 }, "byte {at}");
    }
    let (copy, _) = files.create(&root(), &top, b"copy", MODE, true).unwrap();
    let copied = files
        .copy_range(&root(), (&file, 5000), (&copy, 10), 1 << 20)
        .unwrap();
    assert_eq!(copied, 45_000);
    let mut copied = vec![1; 45_010];
    assert_eq!(copy.read(0, &mut copied).unwrap(), 45_010);
    assert_eq!(copied[10..], content[5000..]);
    // Nothing can be shared here, so the copy ends with the piece that reaches the limit.
    let (large, _) = files.create(&root(), &top, b"large", MODE, true).unwrap();
    let bytes = vec![7; 3 << 20];
    let at = WriteAt::Offset(0);
    files.write(&root(), &large, at, &bytes).unwrap();
    let part = files.copy_range_within(&root(), (&large, 0), (&copy, 0), 3 << 20, 1);
    assert!((1..3 << 20).contains(&part.unwrap()));
    rig.sync();
    rig.check_space();
}

#[test]
fn a_search_for_data_waits_for_writers() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    let write = |at, length| {
        let bytes = vec![1; length];
        files.write(&root(), &file, WriteAt::Offset(at), &bytes)
    };
    write(0, 100).unwrap();
    let extents = rig.search_during(
        || assert_eq!(write(100, 200_000).unwrap(), 100),
        || file.extents().collect::<Result<Vec<_>, _>>().unwrap(),
    );
    let whole = Extent {
        offset_bytes: 0,
        length_bytes: 200_100,
    };
    assert_eq!(extents, [whole]);
}

#[test]
fn a_range_is_copied_from_the_same_file_of_a_snapshot() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    let old: Vec<u8> = (0..100).collect();
    files.write(&root(), &file, WriteAt::End, &old).unwrap();
    rig.sync();
    let saved = rig.committed().resolve(b"f", Symlinks::Keep).unwrap();
    files
        .write(&root(), &file, WriteAt::Offset(0), &[0; 100])
        .unwrap();
    let copied = files.copy_range(&root(), (&saved, 0), (&file, 0), 100);
    assert_eq!(copied.unwrap(), 100);
    let mut content = vec![0; 100];
    file.read(0, &mut content).unwrap();
    assert_eq!(content, old);
    let within = files.copy_range(&root(), (&file, 0), (&file, 10), 100);
    assert_eq!(errno(within), Errno::EINVAL);
    let into = files.copy_range(&root(), (&file, 0), (&saved, 0), 100);
    assert_eq!(errno(into), Errno::EROFS);
}

#[test]
fn freeing_a_large_file_takes_several_txgs() {
    let _mark = mark::expect("tree-grows-a-level");
    let settings = Settings {
        record_bytes: 512,
        ..Settings::default()
    };
    let (rig, files) = Rig::new(&NewFileSystem::default(), settings);
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    // 80000 blocks, and a few at large offsets.
    files
        .write(&root(), &file, WriteAt::Offset(0), &vec![1; 40_960_000])
        .unwrap();
    for distance in 31..38 {
        files
            .write(&root(), &file, WriteAt::Offset(1 << distance), b"far")
            .unwrap();
    }
    rig.sync();
    let begun = rig.port.begun.load(Ordering::Relaxed);
    let cut = SetAttributes {
        size_bytes: Some(1000),
        ..SetAttributes::default()
    };
    files.set_attributes(&root(), &file, &cut).unwrap();
    assert!(rig.port.begun.load(Ordering::Relaxed) >= begun + 3);
    rig.sync();
    rig.check_space();
    assert!(rig.sink.living().len() < 100);
    let mut content = [0; 2000];
    assert_eq!(file.read(0, &mut content).unwrap(), 1000);
    assert!(content[..1000].iter().all(|byte| *byte == 1));

    files
        .write(&root(), &file, WriteAt::Offset(0), &vec![1; 40_960_000])
        .unwrap();
    rig.sync();
    drop(file);
    let begun = rig.port.begun.load(Ordering::Relaxed);
    files.unlink(&top, b"f").unwrap();
    assert!(rig.port.begun.load(Ordering::Relaxed) >= begun + 4);
    rig.sync();
    assert_eq!(rig.committed().unlinked().unwrap(), []);
    rig.check_space();
    assert!(rig.sink.living().len() < 100);
}
