//! Streams that the kernel module sends are received here, and the module finds the same files. Then it goes the other way.

use crate::{Rig, run_script};
use millpond_engine::{
    Caller, NewMode, Pool, PoolBuilder, ReceiveRequest, SendFlags, SendRequest, SetAttributes,
    Unwatched, WriteAt,
};
use millpond_sim::noise;
use millpond_tests::oracle::kernel::{self, Release};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;

pub(crate) const FROM: &str = "modsrc";
pub(crate) const TO: &str = "modgot";

/// Receives the streams of a list. The name of each is that of the dataset here. Returns how many they were.
pub(crate) fn receive_all(pool: &Pool, share: &Path) -> usize {
    let list = std::fs::read_to_string(share.join("streams.txt")).unwrap();
    let mut count = 0;
    for line in list.lines() {
        let (file, snapshot) = line.split_once('\t').unwrap();
        let dataset = snapshot.split('@').next().unwrap();
        let request = ReceiveRequest {
            name: format!("{TO}/{dataset}"),
            ..ReceiveRequest::default()
        };
        let input = BufReader::new(File::open(share.join(file)).unwrap());
        let outcome = pool.receive(&request, input, &mut Unwatched);
        assert_eq!(outcome.failure, None, "{file}");
        count += 1;
    }
    println!("    {count} streams");
    count
}

/// Changes what was received.
fn change(pool: &Pool, name: &str) {
    let files = pool.file_system(name).unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    for number in 0..30 {
        let mode = NewMode::exactly(0o640);
        let file = format!("ours{number}");
        let (node, _) = (files.create(&caller, &root, file.as_bytes(), mode, true)).unwrap();
        let bytes = noise(number, 1000 + 9000 * number as usize);
        (files.write(&caller, &node, WriteAt::Offset(0), &bytes)).unwrap();
    }
    let node = root.lookup(b"n12").unwrap();
    (files.write(&caller, &node, WriteAt::Offset(200_000), &noise(99, 50_000))).unwrap();
    let shorter = SetAttributes {
        size_bytes: Some(70_000),
        ..SetAttributes::default()
    };
    let node = root.lookup(b"n10").unwrap();
    files.set_attributes(&caller, &node, &shorter).unwrap();
    files.unlink(&root, b"n9").unwrap();
    drop((node, root, files));
    pool.datasets()
        .snapshot(&[&format!("{name}@back")], &[])
        .unwrap();
}

fn exchanged(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(2, 512);
    let share = tempfile::tempdir().unwrap();
    run_script(
        release,
        &rig,
        "streams",
        Some(share.path()),
        &["make", FROM, "vda"],
    );
    let pool = PoolBuilder::new(TO)
        .single(&rig.images[1])
        .create()
        .unwrap();
    assert_eq!(receive_all(&pool, share.path()), 9);
    let mut back = String::new();
    for (dataset, flags) in [
        ("plain", SendFlags::default()),
        (
            "large",
            SendFlags {
                large_blocks: true,
                embedded: true,
                compressed: true,
                raw: false,
            },
        ),
        ("small", SendFlags::default()),
    ] {
        let name = format!("{TO}/{dataset}");
        change(&pool, &name);
        let request = SendRequest {
            name: format!("{name}@back"),
            from: Some(format!("{name}@three")),
            flags,
            ..SendRequest::default()
        };
        let file = format!("back-{dataset}");
        let output = BufWriter::new(File::create(share.path().join(&file)).unwrap());
        pool.send(&request, output).unwrap();
        writeln!(back, "{file}\t{dataset}@back").unwrap();
    }
    std::fs::write(share.path().join("back.txt"), back).unwrap();
    pool.export().unwrap();
    rig.judge(TO);
    run_script(
        release,
        &rig,
        "streams",
        Some(share.path()),
        &["judge", FROM, TO],
    );
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn streams_of_2_3_are_received() {
    exchanged(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn streams_of_2_4_are_received() {
    exchanged(Release::V2_4);
}
