//! Which device is a leaf of a pool, and whether it is up to date.

use super::disks::{Disk, POOL, label, leaf, member, mirror, with};
use super::{states, the_pool};
use crate::import::*;
use millpond_ondisk::{Guid, Txg};
use std::path::PathBuf;

#[test]
fn a_returned_leaf_is_recognised_by_its_older_label() {
    let old = Disk::new()
        .config(&[0, 1, 2, 3], &label(11, &mirror(), 5))
        .uberblocks(&[0], &[5]);
    let pool = the_pool(vec![
        old.named("/dev/d11"),
        member(12, &mirror()).named("/dev/d12"),
    ]);
    assert_eq!(
        pool.conditions,
        [ImportCondition::StaleDevice {
            guid: Guid(11),
            since: Txg(6)
        }]
    );
    assert_eq!(pool.config_txg, Txg(10));
}

#[test]
fn a_leaf_with_older_content_is_recognised_by_its_uberblocks() {
    let side = |guid, txgs: &[u64]| {
        Disk::new()
            .config(&[0, 1, 2, 3], &label(guid, &mirror(), 5))
            .uberblocks(&[0, 1, 2, 3], txgs)
    };
    let stale = |txgs: &[u64]| {
        let disks = vec![
            side(11, txgs).named("/dev/d11"),
            side(12, &[7, 8, 9]).named("/dev/d12"),
        ];
        let leaves = the_pool(disks).assembly.unwrap().leaves;
        assert_eq!(leaves[1].stale_since, None);
        leaves[0].stale_since
    };
    assert_eq!(stale(&[6, 7]), Some(Txg(8)));
    // The power may fail while the last one is written.
    assert_eq!(stale(&[7, 8]), None);
    // Without any nothing is known.
    assert_eq!(stale(&[]), None);
}

/// A copy of a device in use: the labels at its end were copied later than those at its begin.
#[test]
fn a_copy_that_was_made_meanwhile_is_as_old_as_its_oldest_ring() {
    let side = |guid| Disk::new().config(&[0, 1, 2, 3], &label(guid, &mirror(), 5));
    let behind = |first: &[u64], last: &[u64]| {
        let copy = side(11).uberblocks(&[0, 1], first);
        let disks = vec![
            copy.uberblocks(&[2, 3], last).named("/dev/d11"),
            side(12)
                .uberblocks(&[0, 1, 2, 3], &[6, 7, 8, 9])
                .named("/dev/d12"),
        ];
        let leaves = the_pool(disks).assembly.unwrap().leaves;
        (leaves[0].stale_since, leaves[0].behind)
    };
    let (since, both) = (Some(Txg(7)), Some((Txg(6), Txg(9))));
    assert_eq!(behind(&[6], &[6, 7, 8, 9]), (since, both));
    assert_eq!(behind(&[6, 7, 8, 9], &[6]), (since, both));
    // The power may fail while the last one is written. A label may have been lost.
    assert_eq!(behind(&[7, 8], &[7, 8, 9]), (None, None));
    assert_eq!(behind(&[8, 9], &[]), (None, None));
}

#[test]
fn a_renamed_device_is_found_and_its_path_updated() {
    let pool = the_pool(vec![member(11, &leaf(11)).named("/images/copy")]);
    let assembly = pool.assembly.unwrap();
    assert!(assembly.leaves[0].is_moved());
    assert_eq!(
        assembly.root.children[0].path.as_deref(),
        Some("/images/copy")
    );
    assert_eq!(assembly.leaves[0].config_path.as_deref(), Some("/dev/d11"));
    // If the device has several names, the name in the label is kept.
    let mut candidate = member(11, &leaf(11)).named("/dev/disk/by-id/x");
    candidate.aliases.push(PathBuf::from("/dev/d11"));
    assert!(!the_pool(vec![candidate]).assembly.unwrap().leaves[0].is_moved());
}

#[test]
fn of_two_devices_with_one_label_the_better_is_used() {
    let worse = Disk::new().config(&[0, 1], &label(11, &leaf(11), 10));
    let pool = the_pool(vec![
        worse.named("/worse"),
        member(11, &leaf(11)).named("/better"),
    ]);
    assert_eq!(
        pool.conditions,
        [ImportCondition::DuplicateDevice {
            guid: Guid(11),
            rivals: vec![]
        }]
    );
    assert_eq!(
        pool.assembly.unwrap().leaves[0].found_as.as_deref(),
        Some("/better")
    );
}

#[test]
fn a_copy_from_before_does_not_take_the_place_of_the_device() {
    let disk = |labels: &[usize], txg| {
        Disk::new()
            .config(labels, &label(11, &leaf(11), 5))
            .uberblocks(&[0], &[txg])
    };
    let pool = the_pool(vec![
        disk(&[0, 1, 2, 3], 7).named("/copy"),
        disk(&[0, 1, 2], 9).named("/device"),
    ]);
    assert_eq!(
        pool.assembly.unwrap().leaves[0].found_as.as_deref(),
        Some("/device")
    );
}

#[test]
fn a_wiped_device_has_a_bad_label_at_its_own_path_only() {
    for (wiped_at, aux) in [
        ("/dev/d12", VdevAux::BadLabel),
        ("/dev/x", VdevAux::OpenFailed),
    ] {
        let pool = the_pool(vec![
            member(11, &mirror()).named("/dev/d11"),
            Disk::new().named(wiped_at),
        ]);
        let nodes = pool.assembly.unwrap().nodes;
        assert_eq!((nodes[3].state, nodes[3].aux), (VdevState::CannotOpen, aux));
    }
}

#[test]
fn after_a_detach_the_last_child_is_found_by_its_new_guid() {
    // The label still has leaf 11 below mirror 10; the pool has a single device 10.
    let pool = the_pool(vec![member(11, &mirror()).named("/dev/d11")]);
    let mut config = pool.config.clone();
    let root = with(
        config.list("vdev_tree").unwrap().clone(),
        "children",
        vec![leaf(10)],
    );
    config.insert("vdev_tree", root);
    let assembly = pool
        .assemble(&config, Trust::Trusted { txg: Txg(10) })
        .unwrap();
    assert_eq!(assembly.state(), VdevState::Healthy);
    assert_eq!(assembly.leaves[0].found_as.as_deref(), Some("/dev/d11"));
}

#[test]
fn a_leaf_split_off_is_reported() {
    let own = with(leaf(21), "orig_guid", 12u64);
    let gone = with(
        with(label(21, &own, 10), "pool_guid", 200u64),
        "split_guid",
        POOL,
    );
    let split = Disk::new().config(&[0], &gone);
    let found = scan_devices(vec![member(11, &mirror()).named("a"), split.named("b")]);
    let pools = find_pools(&found, 7);
    assert_eq!(pools.len(), 2);
    let nodes = &pools[0].assembly.as_ref().unwrap().nodes;
    assert_eq!(
        (nodes[3].state, nodes[3].aux),
        (VdevState::CannotOpen, VdevAux::SplitPool)
    );
}

#[test]
fn devices_too_small_or_with_too_large_sectors_do_not_serve() {
    let big = with(with(leaf(11), "asize", 1u64 << 40), "metaslab_shift", 30u64);
    assert_eq!(
        states(&big, &[11])[1],
        (VdevState::CannotOpen, VdevAux::BadLabel)
    );
    let top = with(leaf(11), "ashift", 9u64);
    let disk = member(11, &top);
    let coarse = Disk(disk.0.with_sector_bytes(4096));
    let pool = the_pool(vec![coarse.named("a")]);
    let nodes = pool.assembly.unwrap().nodes;
    assert_eq!(
        (nodes[1].state, nodes[1].aux),
        (VdevState::CannotOpen, VdevAux::BadAshift)
    );
}

/// The last side of a mirror gets the guid of the mirror. Labels 0 and 2 say so before the uberblock does.
#[test]
fn a_side_is_found_whose_mirror_was_about_to_go() {
    let alone = leaf(10);
    for (newest, is_side) in [(10, true), (11, false)] {
        let side = Disk::new()
            .config(&[0, 2], &label(10, &alone, 11))
            .config(&[1, 3], &label(12, &mirror(), 10))
            .uberblocks(&[0, 1, 2, 3], &[9, newest]);
        let pool = the_pool(vec![side.named("/dev/d12")]);
        let assembly = pool.assembly.as_ref().unwrap();
        assert!(assembly.state().is_usable(), "{newest}: {assembly:?}");
        let found: Vec<_> = assembly
            .leaves
            .iter()
            .filter(|leaf| leaf.device.is_some())
            .collect();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].guid == Guid(12), is_side, "{newest}");
    }
}
