//! Pools with fragmented free space: large blocks become gang blocks, which all readers can read.

use crate::full::{create, fill, is_no_space};
use crate::rig::Rig;
use millpond_engine::{Caller, PoolBuilder, WriteAt};
use millpond_env::mark;
use millpond_sim::noise;

/// Fills a pool with small files, keeps one of `every`, and writes large files into the holes.
fn fill_the_holes(rig: &Rig, plan: PoolBuilder, every: u64) {
    let _mark = mark::expect("gang-block");
    let small = 5_000;
    let large = 300_000;
    let pool = plan.create().unwrap();
    let files = pool.file_system("tank").unwrap();
    let root = files.root().unwrap();
    // Half of such a small pool stays free regardless of the writes: the second half is filled once the
    // first has holes.
    let mut counts = vec![];
    for prefix in ["first", "second", "third"] {
        let (count, refusal) = fill(&files, prefix, small);
        assert!(is_no_space(&refusal), "{refusal:?}");
        for number in (0..count).filter(|number| number % every != 0) {
            let name = format!("{prefix}{number}");
            files.unlink(&root, name.as_bytes()).unwrap();
        }
        files.reap().unwrap();
        // Freed space is available two txgs later.
        for _ in 0..4 {
            pool.sync().unwrap();
        }
        counts.push((prefix, count));
    }
    let mut written = 0u64;
    let refusal = loop {
        let node = match create(&files, &format!("large{written}")) {
            Ok(node) => node,
            Err(error) => break error,
        };
        let content = noise(written + 1_000_000, large);
        match files.write(&Caller::root(), &node, WriteAt::Offset(0), &content) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(is_no_space(&refusal), "{refusal:?}");
    assert!(written > 10, "{written}");
    drop((root, files));
    pool.export().unwrap();
    rig.keep("gangs");
    rig.judge("tank");

    let pool = rig.open("tank");
    let files = pool.file_system("tank").unwrap();
    let root = files.root().unwrap();
    let is_there = |name: String, content: Vec<u8>| {
        let node = root.lookup(name.as_bytes()).unwrap();
        let mut found = vec![0; content.len()];
        assert_eq!(node.read(0, &mut found).unwrap(), content.len(), "{name}");
        assert!(found == content, "{name}");
    };
    for number in 0..written {
        is_there(format!("large{number}"), noise(number + 1_000_000, large));
    }
    for (prefix, count) in counts {
        for number in (0..count).step_by(every as usize) {
            is_there(format!("{prefix}{number}"), noise(number, small));
        }
    }
    // Gang members and headers are freed with their blocks.
    for number in 0..written {
        let name = format!("large{number}");
        files.unlink(&root, name.as_bytes()).unwrap();
    }
    files.reap().unwrap();
    drop((root, files));
    pool.export().unwrap();
    rig.judge("tank");
}

#[test]
fn large_blocks_fill_the_holes_of_one_disk_in_pieces() {
    let rig = Rig::new(1, 80);
    fill_the_holes(&rig, rig.stripe("tank"), 20);
}

#[test]
fn large_blocks_fill_the_holes_of_a_raidz_in_pieces() {
    let rig = Rig::new(3, 64);
    let plan = PoolBuilder::new("tank").raidz(1, &rig.images).ashift(12);
    fill_the_holes(&rig, plan, 8);
}
