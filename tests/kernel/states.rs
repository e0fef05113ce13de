//! A device taken offline here is offline for the kernel module, which resilvers it, and vice versa.

use crate::{Rig, run_script};
use millpond_block::LeafState;
use millpond_device::{Device, FileDevice, OpenOptions};
use millpond_engine::{Offline, PoolBuilder};
use millpond_pool::import::VdevState;
use millpond_tests::oracle::kernel::{self, Release};
use millpond_tests::workload::Life;
use std::sync::Arc;

fn goes_to_and_fro(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(2, 512);
    let pool = PoolBuilder::new("tank")
        .mirror(&rig.images)
        .create()
        .unwrap();
    let mut life = Life::new("tank", "states", 1);
    life.steps(&pool, 40);
    pool.sync().unwrap();
    let topology = pool.inner().store().topology();
    let guid = topology.tree.leaves().next().unwrap().1.config.guid;
    pool.inner().offline_leaf(guid, Offline::default()).unwrap();
    life.steps(&pool, 40);
    drop(topology);
    pool.export().unwrap();

    run_script(release, &rig, "states", None, &["tank"]);

    // The first device is complete again, and the second is offline.
    let read = rig.read("tank");
    life.compare(&read, "resilvered by the module");
    let assembly = read.inner().assembly();
    let states: Vec<VdevState> = (assembly.leaves.iter())
        .map(|leaf| assembly.nodes[leaf.node].state)
        .collect();
    assert_eq!(states, [VdevState::Healthy, VdevState::Offline]);
    drop(read);
    let pool = rig.open("tank");
    let topology = pool.inner().store().topology();
    let (number, node) = topology.tree.leaves().nth(1).unwrap();
    assert_eq!(topology.condition(number).state, LeafState::Offline);
    let guid = node.config.guid;
    let options = OpenOptions {
        write: true,
        ..OpenOptions::default()
    };
    let found = FileDevice::open(&rig.images[1], options).unwrap();
    let found: Arc<dyn Device> = Arc::new(found);
    let now = pool.inner().online_leaf(guid, Some(&found)).unwrap();
    assert_eq!(now.state, LeafState::Online);
    let read = pool.committed().unwrap();
    let assembly = read.inner().assembly();
    let node = assembly.nodes[assembly.leaves[1].node];
    assert_eq!(node.state, VdevState::Degraded);
    assert!(node.missed_txgs > 0);
    drop((read, topology));
    pool.export().unwrap();
    rig.judge("tank");
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn offline_is_understood_by_2_3_and_by_us() {
    goes_to_and_fro(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn offline_is_understood_by_2_4_and_by_us() {
    goes_to_and_fro(Release::V2_4);
}
