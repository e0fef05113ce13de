//! A hundred increments that the kernel module sends are received here. A hundred more go back.

use crate::receive::{FROM, TO, receive_all};
use crate::{Rig, run_script};
use millpond_engine::{
    Allocate, Caller, DirEntryRef, FileError, FileSystem, NewMode, Node, PoolBuilder,
    PropertyValue, RenameMode, SendFlags, SendRequest, SetAttributes, WriteAt, XattrMode,
};
use millpond_sim::Seed;
use millpond_tests::oracle::kernel::{self, Release};
use std::fmt::Write as _;
use std::fs::File;
use std::io::BufWriter;

const COUNT: usize = 100;
/// Changes between two snapshots.
const STEPS: usize = 8;
const FILES: u64 = 40;
const RECORDS: [u64; 5] = [4 << 10, 16 << 10, 128 << 10, 512 << 10, 1 << 20];

fn name(seed: &mut Seed) -> Vec<u8> {
    format!("f{}", seed.below(FILES)).into_bytes()
}

fn found_or_new(files: &FileSystem, root: &Node, name: &[u8]) -> Result<Node, FileError> {
    match root.lookup(name) {
        Err(FileError::NotFound) => {}
        found => return found,
    }
    let mode = NewMode::exactly(0o640);
    let (node, _) = files.create(&Caller::root(), root, name, mode, true)?;
    Ok(node)
}

/// One random change.
fn step(files: &FileSystem, root: &Node, seed: &mut Seed) -> Result<(), FileError> {
    let caller = Caller::root();
    let (file, other) = (name(seed), name(seed));
    let offset = seed.below(300_000);
    match seed.below(8) {
        0 | 1 => {
            let node = found_or_new(files, root, &file)?;
            let length = seed.below(200_000) as usize + 1;
            files.write(&caller, &node, WriteAt::Offset(offset), &seed.bytes(length))?;
        }
        2 => files.unlink(root, &file)?,
        3 => {
            let entry = |name| DirEntryRef {
                directory: root,
                name,
            };
            files.rename(&caller, entry(&file), entry(&other), RenameMode::Replace)?;
        }
        4 => {
            let shorter = SetAttributes {
                size_bytes: Some(offset),
                ..SetAttributes::default()
            };
            files.set_attributes(&caller, &root.lookup(&file)?, &shorter)?;
        }
        5 => {
            let node = root.lookup(&file)?;
            let attribute = format!("user.k{}", seed.below(3));
            let length = seed.below(4000) as usize;
            let value = seed.bytes(length);
            files.set_xattr(&caller, &node, attribute.as_bytes(), &value, XattrMode::Set)?;
        }
        6 => {
            let node = root.lookup(&file)?;
            files.allocate(&node, Allocate::PunchHole, offset, seed.below(100_000) + 1)?;
        }
        _ => {
            let from = root.lookup(&file)?;
            let to = found_or_new(files, root, &other)?;
            files.copy_range(&caller, (&from, 0), (&to, 0), 1 << 20)?;
        }
    }
    Ok(())
}

fn exchanged(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(2, 512);
    let share = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        run_script(release, &rig, "streams", Some(share.path()), arguments);
    };
    run(&["chain", FROM, "vda", &COUNT.to_string()]);
    let builder = PoolBuilder::new(TO).single(&rig.images[1]);
    let pool = builder.create().unwrap();
    assert_eq!(receive_all(&pool, share.path()), COUNT);
    let dataset = format!("{TO}/plain");
    let mut seed = Seed::new(crate::seed());
    let (mut list, mut from) = (String::new(), COUNT.to_string());
    let mut changes = 0;
    for number in 1..=COUNT {
        if number % 9 == 0 {
            let record = *seed.choose(&RECORDS).unwrap();
            let record = ("recordsize".to_owned(), PropertyValue::Number(record));
            (pool.datasets().set_properties(&dataset, &[record])).unwrap();
        }
        let files = pool.file_system(&dataset).unwrap();
        let root = files.root().unwrap();
        for _ in 0..STEPS {
            match step(&files, &root, &mut seed) {
                Ok(()) => changes += 1,
                Err(FileError::NotFound | FileError::Invalid { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        drop((root, files));
        // The judge continues from the last one.
        let to = match number == COUNT {
            true => "back".to_owned(),
            false => format!("back{number}"),
        };
        let snapshot = format!("{dataset}@{to}");
        pool.datasets().snapshot(&[&snapshot], &[]).unwrap();
        let request = SendRequest {
            name: snapshot,
            from: Some(format!("{dataset}@{from}")),
            flags: SendFlags {
                large_blocks: true,
                embedded: number % 2 == 0,
                compressed: number % 3 == 0,
                raw: false,
            },
            ..SendRequest::default()
        };
        let file = format!("back-{number}");
        let output = BufWriter::new(File::create(share.path().join(&file)).unwrap());
        pool.send(&request, output).unwrap();
        writeln!(list, "{file}\tplain@{to}").unwrap();
        from = to;
    }
    println!("    {changes} changes");
    assert!(changes > COUNT * STEPS / 2);
    std::fs::write(share.path().join("back.txt"), list).unwrap();
    pool.export().unwrap();
    rig.judge(TO);
    run(&["judge", FROM, TO]);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn a_hundred_increments_go_to_2_3_and_come_back() {
    exchanged(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn a_hundred_increments_go_to_2_4_and_come_back() {
    exchanged(Release::V2_4);
}
