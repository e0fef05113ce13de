//! Streams that are sent here: the kernel module receives them, and has the same content.

use crate::attach::lived;
use crate::{Rig, run_script};
use millpond_engine::{PoolBuilder, SendFlags, SendRequest};
use millpond_tests::oracle::kernel::{self, Release};
use millpond_tests::workload::{content_differences, in_order};
use std::fmt::Write as _;
use std::fs::File;
use std::io::BufWriter;

const FROM: &str = "sent";
const TO: &str = "got";

/// Options, in turn for each stream.
const FLAGS: [SendFlags; 3] = [
    SendFlags {
        large_blocks: true,
        embedded: false,
        compressed: false,
        raw: false,
    },
    SendFlags {
        large_blocks: true,
        embedded: true,
        compressed: true,
        raw: false,
    },
    SendFlags {
        large_blocks: true,
        embedded: true,
        compressed: false,
        raw: false,
    },
];

/// The name of a dataset below the pool that receives it. After a promotion a parent may be a clone of its child, so all
/// are side by side there.
fn flat(name: &str) -> String {
    name.replace('/', "-")
}

fn received(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(2, 512);
    let images = rig.images.clone();
    let (pool, mut life) = lived(PoolBuilder::new(FROM).single(&images[0]), FROM);
    // Every dataset has a snapshot, and some several.
    for round in 0..3 {
        let heads: Vec<String> = life.model.heads.keys().cloned().collect();
        for head in heads {
            life.snapshot(&pool, &head).unwrap();
        }
        if round < 2 {
            life.steps(&pool, 30);
        }
    }
    pool.sync().unwrap();
    let share = tempfile::tempdir().unwrap();
    let mut list = String::new();
    let all = in_order(&life);
    for (number, sent) in all.iter().enumerate() {
        let flags = FLAGS[number % FLAGS.len()];
        let request = SendRequest {
            name: sent.name.clone(),
            from: sent.from.clone(),
            has_between: false,
            flags,
            ..SendRequest::default()
        };
        let file = format!("{number}.zsend");
        let output = BufWriter::new(File::create(share.path().join(&file)).unwrap());
        pool.send(&request, output).unwrap();
        writeln!(list, "{file}\t{}", flat(&sent.name)).unwrap();
    }
    println!("    {} streams", all.len());
    std::fs::write(share.path().join("streams.txt"), list).unwrap();
    pool.export().unwrap();
    run_script(release, &rig, "receive", Some(share.path()), &[TO, "vdb"]);

    let view = rig.read(TO);
    for (head, state) in &life.model.heads {
        for snapshot in &state.snapshots {
            let name = format!("{TO}/{}@{}", flat(head), snapshot.name);
            let differences = content_differences(&view, &name, &snapshot.content);
            assert!(differences.is_empty(), "{}", differences.join("\n"));
        }
    }
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn streams_are_received_by_2_3() {
    received(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn streams_are_received_by_2_4() {
    received(Release::V2_4);
}
