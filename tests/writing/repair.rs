//! What reading a pool that is open for changes does about damage.

use crate::rig::Rig;
use millpond::Symlinks;
use millpond::live::{Caller, NewMode, PoolPlan, WriteAt};
use std::os::unix::fs::FileExt;

fn content(number: u64) -> Vec<u8> {
    let mut state = number + 1;
    (0..300_000)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as u8
        })
        .collect()
}

#[test]
fn reading_a_mirror_that_is_open_for_changes_puts_rotten_blocks_right() {
    let rig = Rig::new(2, 128);
    let pool = PoolPlan::new("tank").mirror(&rig.images).create().unwrap();
    let files = pool.file_system("tank").unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    for number in 0..20 {
        let name = format!("f{number}");
        let made = files.create(&caller, &root, name.as_bytes(), NewMode::exactly(0o600), true);
        let (node, _) = made.unwrap();
        let content = content(number);
        let written = files.write(&caller, &node, WriteAt::Offset(0), &content);
        written.unwrap();
    }
    drop((root, files));
    pool.export().unwrap();

    // Rot in the first mebibytes of the space of one side, wherever its blocks are files' data or
    // metadata.
    let rotten = std::fs::OpenOptions::new().write(true).open(&rig.images[0]);
    rotten
        .unwrap()
        .write_all_at(&vec![0x5a; 16 << 20], 5 << 20)
        .unwrap();

    let pool = rig.open("tank");
    let devices = pool.engine().store().topology().devices.clone();
    for device in devices.into_iter().flatten() {
        assert!(format!("{device:?}").contains("Queued"), "{device:?}");
    }
    let files = pool.file_system("tank").unwrap();
    let root = files.root().unwrap();
    for round in 0..2 {
        for number in 0..20 {
            let node = files.lookup(&root, format!("f{number}").as_bytes()).unwrap();
            let mut found = vec![0; 300_000];
            assert_eq!(files.read(&node, 0, &mut found).unwrap(), found.len());
            assert!(found == content(number), "f{number} in round {round}");
        }
    }
    let topology = pool.engine().store().topology();
    let repaired = topology.figures(millpond_vdev::LeafId(0)).repaired_bytes;
    assert!(repaired > 0, "nothing was repaired");
    drop((root, files));
    pool.export().unwrap();
    // The files' blocks are right on the side that had rotted: it serves them alone.
    let away = rig.folder().with_extension("away");
    std::fs::rename(&rig.images[1], &away).unwrap();
    let read = rig.read("tank");
    let files = read.dataset("tank").unwrap().file_system().unwrap();
    let mut repaired = 0;
    for number in 0..20 {
        let name = format!("f{number}");
        let node = files.resolve(name.as_bytes(), Symlinks::Follow).unwrap();
        let mut found = vec![0; 300_000];
        node.read(0, &mut found).unwrap();
        repaired += usize::from(found == content(number));
    }
    assert_eq!(repaired, 20);
    std::fs::rename(&away, &rig.images[1]).unwrap();
}
