//! Self-healing reads of a pool that is open for changes.

use crate::rig::Rig;
use millpond_engine::{Caller, NewMode, PoolBuilder, WriteAt};
use millpond_sim::noise;
use std::os::unix::fs::FileExt;

#[test]
fn reading_a_writable_mirror_repairs_corrupt_blocks() {
    let rig = Rig::new(2, 128);
    let pool = PoolBuilder::new("tank")
        .mirror(&rig.images)
        .create()
        .unwrap();
    let files = pool.file_system("tank").unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    for number in 0..20 {
        let name = format!("f{number}");
        let made = files.create(
            &caller,
            &root,
            name.as_bytes(),
            NewMode::exactly(0o600),
            true,
        );
        let (node, _) = made.unwrap();
        let content = noise(number, 300_000);
        let written = files.write(&caller, &node, WriteAt::Offset(0), &content);
        written.unwrap();
    }
    drop((root, files));
    pool.export().unwrap();

    // Corrupts the first mebibytes of the space of one side, whether its blocks hold data or metadata.
    let rotten = std::fs::OpenOptions::new().write(true).open(&rig.images[0]);
    rotten
        .unwrap()
        .write_all_at(&vec![0x5a; 16 << 20], 5 << 20)
        .unwrap();

    let (errors, repaired) = read_all(&rig);
    assert!(
        errors > 10,
        "{errors}: the side that has rotted was hardly asked"
    );
    assert!(repaired > 1 << 20, "{repaired} bytes repaired");
    // A block that is read from this side again is now correct. Reads go to the less busy side, so some blocks come from this
    // one only the second or third time. Without repairs each time would have as many errors.
    let mut times = (0..4).map(|_| read_all(&rig).0);
    let is_over = |again: u64| again <= errors / 5;
    assert!(
        times.any(is_over),
        "more than a fifth of {errors} errors each time"
    );
}

/// Opens the pool for changes, compares every file and exports the pool.
///
/// Returns the number of checksum errors of the first leaf, and of repairs.
fn read_all(rig: &Rig) -> (u64, u64) {
    let pool = rig.open("tank");
    let topology = pool.inner().store().topology();
    let files = pool.file_system("tank").unwrap();
    let root = files.root().unwrap();
    for number in 0..20 {
        let name = format!("f{number}");
        let node = root.lookup(name.as_bytes()).unwrap();
        let mut found = vec![0; 300_000];
        assert_eq!(node.read(0, &mut found).unwrap(), found.len());
        assert!(found == noise(number, 300_000), "{name}");
    }
    drop((root, files));
    let stats = topology.leaf_stats(millpond_vdev::LeafId(0));
    pool.export().unwrap();
    (stats.checksum_errors, stats.repaired_bytes)
}
