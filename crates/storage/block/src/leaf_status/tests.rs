use super::*;
use millpond_device::{Device, MemoryDevice};
use millpond_env::sync::Arc;
use millpond_ondisk::Guid;
use millpond_vdev::{IndirectTables, LeafTable, Reflow, VdevConfig, VdevTree, VdevType};

const FAULT: LeafReason = LeafReason::IoFailures;

/// One top-level vdev of `kind`, with one leaf for each entry of `missed`, which holds the txgs it missed.
fn topology(kind: VdevType, parity: u64, missed: &[&[(u64, u64)]]) -> Topology {
    let leaves = (0u64..).zip(missed).map(|(at, _)| VdevConfig {
        id: Some(at),
        path: Some(format!("disk{at}")),
        ..VdevConfig::new(VdevType::File, Guid(100 + at))
    });
    let mut top = VdevConfig {
        children: leaves.collect(),
        nparity: (kind == VdevType::Raidz).then_some(parity),
        ..VdevConfig::new(kind, Guid(10))
    };
    (top.id, top.ashift) = (Some(0), 9);
    (top.asize_bytes, top.metaslab_shift) = (8 << 20, 20);
    let root = VdevConfig::root(Guid(1), vec![top]);
    let tree = VdevTree::new(root, Reflow::default()).unwrap();
    let mut health = LeafTable::all_good(tree.leaf_count());
    for (leaf, missed) in (0u32..).map(LeafId).zip(missed) {
        let missed = missed.iter().map(|(from, to)| *from..*to);
        health.entry(leaf).unwrap().missed = missed.collect();
    }
    let device = || Arc::new(MemoryDevice::new(vec![0; 1 << 20])) as Arc<dyn Device>;
    let devices = missed.iter().map(|_| Some(device())).collect();
    Topology::new(tree, devices, health, IndirectTables::default())
}

#[test]
fn every_condition_survives_being_packed() {
    let states = [
        LeafState::Online,
        LeafState::Degraded,
        LeafState::Faulted,
        LeafState::Offline,
        LeafState::Removed,
        LeafState::Unavailable,
    ];
    let reasons = [
        LeafReason::None,
        LeafReason::OpenFailed,
        LeafReason::ErrorsExceeded,
        LeafReason::IoFailures,
        LeafReason::Hung,
        LeafReason::External,
    ];
    for state in states {
        for reason in reasons {
            for is_temporary in [false, true] {
                let condition = LeafCondition {
                    state,
                    reason,
                    is_temporary,
                };
                assert_eq!(LeafCondition::unpack(condition.pack()), condition);
            }
        }
    }
}

#[test]
fn the_last_whole_side_of_a_mirror_is_degraded_and_not_faulted() {
    let mirror = topology(VdevType::Mirror, 0, &[&[], &[]]);
    assert!(mirror.fault_leaf(LeafId(0), FAULT));
    assert_eq!(mirror.condition(LeafId(0)).state, LeafState::Faulted);
    assert!(!mirror.fault_leaf(LeafId(1), FAULT));
    let condition = mirror.condition(LeafId(1));
    assert_eq!(condition, LeafCondition::new(LeafState::Degraded, FAULT));
    // A second fault keeps the first reason.
    assert!(mirror.fault_leaf(LeafId(0), LeafReason::Hung));
    assert_eq!(mirror.condition(LeafId(0)).reason, FAULT);
    let offline = LeafCondition::new(LeafState::Offline, LeafReason::None);
    let refused = mirror.change_condition(LeafId(1), offline);
    assert_eq!(refused, Err(LeafRefusal::Required));
    assert!(!mirror.fault_leaf(LeafId(2), FAULT), "no such leaf");
}

#[test]
fn a_leaf_that_others_depend_on_is_required() {
    let mirror = topology(VdevType::Mirror, 0, &[&[], &[(7, 9)]]);
    assert!(mirror.is_required(LeafId(0)), "txg 7 is nowhere else");
    assert!(!mirror.is_required(LeafId(1)));
    let apart = topology(VdevType::Mirror, 0, &[&[(4, 5)], &[(7, 9)]]);
    assert!(apart.is_required(LeafId(0)) && apart.is_required(LeafId(1)));
    let triple = topology(VdevType::Mirror, 0, &[&[], &[(7, 9)], &[(9, 12)]]);
    assert!(
        !triple.is_required(LeafId(0)),
        "what one missed the other has"
    );
    let triple = topology(VdevType::Mirror, 0, &[&[], &[(7, 10)], &[(9, 12)]]);
    assert!(triple.is_required(LeafId(0)), "both missed txg 9");
}

#[test]
fn raidz_can_do_without_as_many_leaves_as_it_has_parity() {
    let raidz = topology(VdevType::Raidz, 2, &[&[], &[], &[], &[(5, 6)], &[]]);
    assert!(!raidz.is_required(LeafId(0)));
    assert!(raidz.fault_leaf(LeafId(0), FAULT));
    assert!(raidz.is_required(LeafId(1)), "txg 5 would lack three");
    assert!(!raidz.is_required(LeafId(3)));
    assert!(raidz.fault_leaf(LeafId(3), FAULT));
    assert!(!raidz.fault_leaf(LeafId(4), FAULT));
    let single = topology(VdevType::Mirror, 0, &[&[]]);
    assert!(single.is_required(LeafId(0)));
}

#[test]
fn a_stale_topology_takes_no_leaf_out_of_use() {
    let mirror = topology(VdevType::Mirror, 0, &[&[], &[]]);
    assert!(!mirror.is_required(LeafId(0)));
    mirror.counters[1].note_missed(Txg(8));
    assert!(mirror.is_required(LeafId(0)));
    assert!(!mirror.is_required(LeafId(1)));

    let triple = topology(VdevType::Mirror, 0, &[&[], &[(7, 9)], &[]]);
    triple.counters[1].note_missed(Txg(20));
    assert!(!triple.is_required(LeafId(0)), "the third leaf has it");
    triple.counters[2].note_missed(Txg(20));
    assert!(triple.is_required(LeafId(0)), "both missed txg 20");
    assert!(!triple.fault_leaf(LeafId(0), FAULT));
    let condition = triple.condition(LeafId(0));
    assert_eq!(condition, LeafCondition::new(LeafState::Degraded, FAULT));
    // A topology that knows of all missed txgs decides by them.
    let known = topology(VdevType::Mirror, 0, &[&[], &[(7, 9)], &[(20, 21)]]);
    known.counters[1].note_missed(Txg(8));
    known.counters[2].note_missed(Txg(20));
    assert!(!known.is_required(LeafId(0)));
}

#[test]
fn a_state_change_is_reported_once() {
    let mirror = topology(VdevType::Mirror, 0, &[&[], &[]]);
    assert!(!mirror.monitor.take_news());
    let copy = mirror.clone();
    assert!(mirror.fault_leaf(LeafId(0), FAULT));
    assert!(!copy.status(LeafId(0)).unwrap().is_usable(), "shared");
    assert!(copy.monitor.take_news());
    assert!(mirror.fault_leaf(LeafId(0), FAULT));
    assert!(!copy.monitor.take_news());
    mirror.monitor.end();
    assert!(!copy.monitor.wait(Duration::from_secs(600)));
}
