//! Datasets, their properties and streams.

use super::*;
use millpond_posix::{Caller, NewMode, WriteAt};

/// Adds a file without a mount, as long as there is room. Returns whether there was.
fn fill(stage: &Stage, name: &str, file: &str, length: usize) -> bool {
    let pool = name.split('/').next().unwrap();
    let pool = stage.served.daemon.pools().writable(pool).unwrap();
    let files = pool.file_system(name).unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o600);
    let Ok((node, _)) = files.create(&caller, &root, file.as_bytes(), mode, true) else {
        return false;
    };
    let piece = 128 << 10;
    let bytes = millpond_sim::noise(length as u64, piece);
    let mut at = (0..length as u64).step_by(piece);
    at.all(|at| {
        let written = files.write(&caller, &node, WriteAt::Offset(at), &bytes);
        written.is_ok()
    })
}

#[test]
fn a_full_pool_takes_no_snapshots() {
    let stage = Stage::new(&["a"], 128);
    stage.quietly("zpool create -m none tank @a");
    stage.quietly("zfs create -o quota=1M tank/small");
    assert!(!fill(&stage, "tank/small", "f", 4 << 20));
    stage.quietly("zpool sync");
    // What is at its quota only takes them.
    let none = (String::new(), 0);
    assert_eq!(plain(&stage, "zfs snapshot tank/small@full"), none);
    let mut count = 0;
    while fill(&stage, "tank", &format!("f{count}"), 8 << 20) {
        count += 1;
    }
    stage.quietly("zpool sync");
    assert_eq!(stage.done("zfs list -Hp -o avail tank"), "0\n");
    let words = "cannot create snapshots : out of space\n".to_owned();
    assert_eq!(plain(&stage, "zfs snapshot tank@full"), (words, 1));
    stage.refused(
        "zfs create tank/full",
        "cannot create 'tank/full': out of space",
    );
    assert_eq!(
        stage.done("zfs list -H -o name -t snapshot"),
        "tank/small@full\n"
    );
}
