//! Complete imports from devices in memory, with labels that the tests write.

mod disks;
mod leaves;
mod older_tops;

use super::*;
use disks::{Disk, POOL, label, leaf, list, member, mirror, over, uberblock, with};
use millpond_checksum::seal_label;
use millpond_device::{Candidate, Device};
use millpond_env::sync::Arc;
use millpond_nvlist::NvList;
use millpond_ondisk::{
    Ashift, Guid, LABEL_CONFIG_BYTES, LABEL_CONFIG_OFFSET_BYTES, Txg, Uberblock, UberblockRing,
    unsealed_label_region,
};
use millpond_vdev::{CHILDREN_MAX, VdevConfigError, VdevType};
use proptest::prelude::*;

fn the_pool(candidates: Vec<Candidate>) -> PoolCandidate {
    let mut pools = find_pools(&scan_devices(candidates), 7);
    assert_eq!(pools.len(), 1);
    pools.remove(0)
}

/// The states of all vdevs of a pool with all members present.
fn states(top: &NvList, members: &[u64]) -> Vec<(VdevState, VdevAux)> {
    let disks = members
        .iter()
        .map(|guid| member(*guid, top).named(&format!("/dev/d{guid}")));
    let pool = the_pool(disks.collect());
    pool.assembly
        .unwrap()
        .nodes
        .iter()
        .map(|node| (node.state, node.aux))
        .collect()
}

const FINE: (VdevState, VdevAux) = (VdevState::Healthy, VdevAux::None);
const REDUCED: (VdevState, VdevAux) = (VdevState::Degraded, VdevAux::None);
const GONE: (VdevState, VdevAux) = (VdevState::CannotOpen, VdevAux::OpenFailed);
const TOO_FEW: (VdevState, VdevAux) = (VdevState::CannotOpen, VdevAux::NoReplicas);

#[test]
fn a_healthy_pool_has_no_conditions() {
    let pool = the_pool(vec![
        member(11, &mirror()).named("/dev/d11"),
        member(12, &mirror()).named("/dev/d12"),
    ]);
    assert_eq!(
        (pool.name.as_str(), pool.guid, pool.state),
        ("tank", Guid(POOL), PoolState::Active)
    );
    assert_eq!(pool.conditions, []);
    assert!(!pool.needs_force());
    let assembly = pool.assembly.as_ref().unwrap();
    assert!(
        assembly
            .leaves
            .iter()
            .all(|leaf| leaf.device.is_some() && !leaf.is_moved() && leaf.stale_since.is_none())
    );
    assert_eq!(assembly.guid_sum(), 100 + 10 + 11 + 12);
    assert_eq!(pool.uberblocks.len(), 2);
    assert_eq!(pool.newest().unwrap().places.len(), 8);
}

#[test]
fn a_label_newer_than_every_uberblock_is_passed_over() {
    // Power was lost between the even labels and the uberblock.
    let new = with(label(11, &leaf(11), 11), "name", "new");
    let half = || member(11, &leaf(11)).config(&[0, 2], &new);
    assert_eq!(the_pool(vec![half().named("a")]).name, "tank");
    // Or between the uberblock and the odd labels.
    let done = half().uberblocks(&[3], &[11]);
    assert_eq!(the_pool(vec![done.named("a")]).name, "new");
}

#[test]
fn a_rewound_pool_keeps_devices_with_newer_labels() {
    let pool = the_pool(vec![member(11, &leaf(11)).named("a")]);
    let assembly = pool
        .assemble(&pool.config, Trust::Trusted { txg: Txg(9) })
        .unwrap();
    assert_eq!(assembly.state(), VdevState::Healthy);
    assert!(assembly.leaves[0].device.is_some());
}

#[test]
fn one_uberblock_in_one_label_of_one_device_is_enough() {
    let bare = |guid| Disk::new().config(&[1], &label(guid, &mirror(), 10));
    let pool = the_pool(vec![
        bare(11).named("a"),
        bare(12).uberblocks(&[2], &[10]).named("b"),
    ]);
    assert_eq!(
        pool.newest().unwrap().places,
        [UberblockPlace {
            leaf: Guid(12),
            label: 2,
            slot: 10
        }]
    );
    assert_eq!(pool.assembly.unwrap().state(), VdevState::Healthy);
}

#[test]
fn a_torn_or_misplaced_uberblock_is_ignored() {
    let disk = member(11, &leaf(11));
    let ring = UberblockRing::new(Ashift(12));
    let mut slot = uberblock(99).encode_slot(ring).unwrap();
    let at = Disk::offset(0) + ring.slot_offset_bytes(3).unwrap();
    seal_label(&mut slot, at).unwrap();
    // The right slot in the wrong label, and a truncated slot in the right label.
    disk.0
        .write(Disk::offset(1) + ring.slot_offset_bytes(3).unwrap(), &slot)
        .unwrap();
    disk.0.write(at, &slot[..512]).unwrap();
    assert_eq!(
        the_pool(vec![disk.named("a")])
            .newest()
            .unwrap()
            .uberblock
            .txg,
        Txg(10)
    );
}

#[test]
fn without_uberblocks_a_pool_is_shown_but_cannot_be_imported() {
    let disk = Disk::new().config(&[0], &label(11, &leaf(11), 10));
    let pool = the_pool(vec![disk.named("/dev/d11")]);
    assert_eq!(pool.conditions, [ImportCondition::NoUberblock]);
    assert_eq!(
        pool.uberblock_choices(Rewind::Extreme),
        Err(RewindError::NoUberblock)
    );
}

#[test]
fn states_rise_from_leaves_to_the_pool() {
    assert_eq!(states(&mirror(), &[11, 12]), [FINE; 4]);
    assert_eq!(states(&mirror(), &[12]), [REDUCED, REDUCED, GONE, FINE]);
    let raidz = with(
        over("raidz", 10, vec![leaf(11), leaf(12), leaf(13)]),
        "nparity",
        1u64,
    );
    assert_eq!(
        states(&raidz, &[11, 13]),
        [REDUCED, REDUCED, FINE, GONE, FINE]
    );
    assert_eq!(states(&raidz, &[13]), [TOO_FEW, TOO_FEW, GONE, GONE, FINE]);
}

#[test]
fn administrative_states_persist_and_counted_faults_do_not() {
    let set = |key: &'static str, aux: Option<&'static str>| {
        let mut child = with(leaf(11), key, 1u64);
        if let Some(aux) = aux {
            child.insert("aux_state", aux);
        }
        let nodes = states(&over("mirror", 10, vec![child, leaf(12)]), &[11, 12]);
        (nodes[0], nodes[2])
    };
    assert_eq!(
        set("offline", None),
        (REDUCED, (VdevState::Offline, VdevAux::None))
    );
    assert_eq!(
        set("removed", None),
        (REDUCED, (VdevState::Removed, VdevAux::None))
    );
    assert_eq!(
        set("faulted", Some("external")),
        (REDUCED, (VdevState::Faulted, VdevAux::External))
    );
    assert_eq!(set("faulted", Some("err_exceeded")), (FINE, FINE));
    assert_eq!(
        set("degraded", Some("err_exceeded")),
        (REDUCED, (VdevState::Degraded, VdevAux::ErrorsExceeded))
    );
    let all_off = over(
        "mirror",
        10,
        vec![
            with(leaf(11), "offline", 1u64),
            with(leaf(12), "offline", 1u64),
        ],
    );
    assert_eq!(
        states(&all_off, &[11, 12])[1],
        (VdevState::Offline, VdevAux::ChildrenOffline)
    );
}

#[test]
fn an_offline_leaf_has_no_device_though_it_was_found() {
    let top = over(
        "mirror",
        10,
        vec![with(leaf(11), "offline", 1u64), leaf(12)],
    );
    let pool = the_pool(vec![
        member(11, &top).named("x"),
        member(12, &top).named("y"),
    ]);
    let assembly = pool.assembly.unwrap();
    assert!(assembly.leaves[0].device.is_none());
    assert_eq!(assembly.leaves[0].found_as.as_deref(), Some("x"));
    assert!(assembly.leaves[1].device.is_some());
}

#[test]
fn holes_and_missing_vdevs_keep_their_ids() {
    let top = with(leaf(11), "id", 2u64);
    let config = with(
        with(label(11, &top, 10), "vdev_children", 4u64),
        "hole_array",
        vec![1u64],
    );
    let disk = Disk::new().config(&[0], &config).uberblocks(&[0], &[10]);
    let pool = the_pool(vec![disk.named("/dev/d11")]);
    let assembly = pool.assembly.as_ref().unwrap();
    let kinds: Vec<VdevType> = assembly.root.children.iter().map(|top| top.kind).collect();
    assert_eq!(
        kinds,
        [
            VdevType::Missing,
            VdevType::Hole,
            VdevType::Disk,
            VdevType::Missing
        ]
    );
    assert_eq!(
        pool.conditions,
        [
            ImportCondition::UnknownTop { id: 0 },
            ImportCondition::UnknownTop { id: 3 }
        ]
    );
    assert_eq!(assembly.state(), VdevState::Healthy);
    let trusted = pool
        .assemble(&pool.config, Trust::Trusted { txg: Txg(10) })
        .unwrap();
    assert_eq!(trusted.state(), VdevState::CannotOpen);
}

#[test]
fn numbers_in_labels_cannot_make_a_giant_tree() {
    for (key, value) in [("vdev_children", u64::MAX), ("vdev_children", 1 << 40)] {
        let config = with(label(11, &leaf(11), 10), key, value);
        let pool = the_pool(vec![Disk::new().config(&[0], &config).named("a")]);
        assert_eq!(pool.assembly.unwrap().root.children.len(), CHILDREN_MAX);
    }
    let far = with(leaf(11), "id", u64::MAX);
    let mut config = label(11, &far, 10);
    config.remove("vdev_children");
    let pool = the_pool(vec![Disk::new().config(&[0], &config).named("a")]);
    assert_eq!(pool.assembly.unwrap().root.children.len(), CHILDREN_MAX);
}

#[test]
fn a_tree_that_makes_no_sense_is_a_condition_and_no_panic() {
    let odd = with(leaf(11), "type", "floppy");
    let pool = the_pool(vec![member(11, &odd).named("a")]);
    let error = ConfigError::Vdev(VdevConfigError::UnknownType("floppy".to_owned()));
    assert_eq!(pool.conditions, [ImportCondition::CorruptConfig { error }]);
    assert!(pool.conditions[0].is_fatal());
}

#[test]
fn foreign_hosts_versions_and_features_are_reported() {
    let candidate = |change: &dyn Fn(&mut NvList)| {
        let mut config = label(11, &leaf(11), 10);
        change(&mut config);
        the_pool(vec![
            Disk::new()
                .config(&[0], &config)
                .uberblocks(&[0], &[10])
                .named("/dev/d11"),
        ])
    };
    let mismatch = |hostid| ImportCondition::HostidMismatch {
        hostid,
        hostname: Some("here".to_owned()),
        last_access_s: Some(10),
    };
    let foreign = candidate(&|config| config.insert("hostid", 8u64));
    assert_eq!(foreign.conditions, [mismatch(8)]);
    assert!(foreign.needs_force());
    assert_eq!(
        candidate(&|config| assert!(config.remove("hostid"))).conditions,
        [mismatch(0)]
    );
    let exported = candidate(&|config| {
        config.insert("hostid", 8u64);
        config.insert("state", 1u64);
    });
    assert_eq!(
        (exported.state, exported.conditions),
        (PoolState::Exported, vec![])
    );
    assert_eq!(
        candidate(&|config| config.insert("state", 2u64)).state,
        PoolState::Destroyed
    );
    let mut features = NvList::new();
    features.insert_flag("org.example:new");
    features.insert_flag("org.openzfs:draid");
    let featured = candidate(&|config| config.insert("features_for_read", features.clone()));
    let unknown = ImportCondition::UnsupportedReadFeatures {
        features: vec!["org.example:new".to_owned()],
    };
    assert_eq!(featured.conditions, [unknown]);
    let unlisted = candidate(&|config| assert!(config.remove("features_for_read")));
    assert_eq!(unlisted.conditions, [ImportCondition::NoFeatureList]);
    let errata = candidate(&|config| config.insert("errata", 4u64));
    assert_eq!(errata.conditions, [ImportCondition::Errata { number: 4 }]);
}

#[test]
fn pools_of_one_name_are_two_pools() {
    let other = with(label(11, &leaf(11), 10), "pool_guid", 200u64);
    let found = scan_devices(vec![
        member(11, &leaf(11)).named("a"),
        Disk::new().config(&[0], &other).named("b"),
    ]);
    let pools = find_pools(&found, 7);
    assert_eq!(
        pools
            .iter()
            .map(|pool| (pool.guid.0, pool.name.as_str()))
            .collect::<Vec<_>>(),
        [(POOL, "tank"), (200, "tank")]
    );
    // Each has its own device, though the leaves share a guid.
    for (pool, device) in pools.iter().zip(["a", "b"]) {
        assert_eq!(
            pool.assembly.as_ref().unwrap().leaves[0]
                .found_as
                .as_deref(),
            Some(device)
        );
    }
}

#[test]
fn spares_and_caches_are_no_pools_and_serve_any() {
    let spare = list([
        ("version", 5000u64.into()),
        ("state", 3u64.into()),
        ("guid", 31u64.into()),
    ]);
    let found = scan_devices(vec![Disk::new().config(&[0, 3], &spare).named("s")]);
    assert!(find_pools(&found, 7).is_empty());
    assert!(found.leaf(Guid(POOL), Guid(31)).is_some());
    assert_eq!(found.leaves()[0].label_count(), 2);
}

#[test]
fn a_cached_configuration_finds_its_devices() {
    let disks = || {
        vec![
            member(11, &mirror()).named("/dev/d11"),
            member(12, &mirror()).named("/dev/d12"),
        ]
    };
    let config = the_pool(disks()).config;
    let mut file = NvList::new();
    file.insert("tank", config.clone());
    let cached = cached_pools(&file.encode_native().unwrap()).unwrap();
    let pool = pool_from_config(&cached[0].1, &scan_devices(disks()), 7).unwrap();
    assert_eq!((pool.conditions.len(), pool.uberblocks.len()), (0, 2));
    let alone = pool_from_config(&config, &Found::default(), 7).unwrap();
    assert_eq!(alone.assembly.unwrap().state(), VdevState::CannotOpen);
    assert!(pool_from_config(&NvList::new(), &Found::default(), 7).is_err());
}

#[test]
fn the_tree_comes_from_labels_and_not_from_the_cache_file() {
    let grown = with(
        over("raidz", 10, vec![leaf(11), leaf(12), leaf(13)]),
        "nparity",
        1u64,
    );
    let before = with(over("raidz", 10, vec![leaf(11), leaf(12)]), "nparity", 1u64);
    let trees = [
        // The last side of a mirror has its guid.
        (mirror(), leaf(10), vec![10]),
        (leaf(11), mirror(), vec![11, 12]),
        (before, grown, vec![11, 12, 13]),
    ];
    for (before, now, guids) in trees {
        let mut cached = the_pool(vec![member(11, &leaf(11)).named("/dev/d11")]).config;
        let root = cached.list("vdev_tree").unwrap().clone();
        cached.insert("vdev_tree", with(root, "children", vec![before]));
        let disk = |guid: &u64| member(*guid, &now).named(&format!("/dev/d{guid}"));
        let found = scan_devices(guids.iter().map(disk).collect());
        let pool = pool_from_config(&cached, &found, 7).unwrap();
        assert_eq!(pool.conditions, []);
        assert_eq!(pool.known_hostid, Some(7));
        let leaves = pool.assembly.unwrap().leaves;
        let used = leaves.iter().filter(|leaf| leaf.device.is_some());
        assert_eq!(used.map(|leaf| leaf.guid.0).collect::<Vec<_>>(), guids);
    }
}

/// The side of a mirror that was offline does not make the pool without the other one.
#[test]
fn labels_older_than_the_cache_file_do_not_tell_the_tree() {
    let disk = || member(12, &mirror()).named("/dev/d12");
    let mut cached = the_pool(vec![disk()]).config;
    let sides = vec![leaf(11), with(leaf(12), "offline", 1u64)];
    let root = cached.list("vdev_tree").unwrap().clone();
    let root = with(root, "children", vec![over("mirror", 10, sides)]);
    cached.insert("vdev_tree", root);
    for (txg, state) in [(10u64, VdevState::Degraded), (11, VdevState::CannotOpen)] {
        cached.insert("txg", txg);
        let pool = pool_from_config(&cached, &scan_devices(vec![disk()]), 7).unwrap();
        assert_eq!(pool.config_txg, Txg(10));
        assert_eq!(pool.assembly.unwrap().state(), state);
    }
}

#[test]
fn labels_tell_who_used_a_pool_last_and_not_the_cache_file() {
    let disk = |changes: &[(&'static str, u64)]| {
        let label = label(11, &leaf(11), 10);
        let label = changes
            .iter()
            .fold(label, |label, (key, value)| with(label, key, *value));
        let disk = Disk::new().config(&[0, 1, 2, 3], &label);
        disk.uberblocks(&[0, 1, 2, 3], &[9, 10]).named("/dev/d11")
    };
    let cached = the_pool(vec![disk(&[])]).config;
    let pool = |changes| pool_from_config(&cached, &scan_devices(vec![disk(changes)]), 7).unwrap();
    let same = pool(&[]);
    assert_eq!(
        (same.state, same.hostid, same.needs_force()),
        (PoolState::Active, 7, false)
    );
    let taken = pool(&[("hostid", 8)]);
    assert_eq!(
        (taken.state, taken.hostid, taken.known_hostid),
        (PoolState::Active, 8, Some(7))
    );
    assert!(taken.needs_force());
    let settings = ActivitySettings::new(7);
    let uberblock = Uberblock {
        mmp_magic: Uberblock::MMP_MAGIC,
        mmp_delay_ns: 5,
        ..uberblock(10)
    };
    let check =
        |pool: &PoolCandidate| activity_check(&uberblock, pool.state, pool.hostid, settings);
    assert_eq!(check(&same), ActivityCheck::NotNeeded);
    assert!(matches!(check(&taken), ActivityCheck::Watch { .. }));
    assert_eq!(pool(&[("state", 1)]).state, PoolState::Exported);
    assert_eq!(pool(&[("state", 2)]).state, PoolState::Destroyed);
}

#[test]
fn members_outside_the_search_are_found_by_their_paths() {
    let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = |guid: u64| match guid {
        11 => inside.path().join("11"),
        _ => outside.path().join(guid.to_string()),
    };
    let leaves = [11u64, 12, 13].map(|guid| with(leaf(guid), "path", path(guid).to_str().unwrap()));
    let top = over("mirror", 10, leaves.to_vec());
    // The path of leaf 13 holds another leaf.
    for (guid, at) in [(11, 11), (12, 12), (14, 13)] {
        std::fs::write(path(at), member(guid, &top).0.to_vec()).unwrap();
    }
    let search = [inside.path().to_owned()];
    let found = scan(&search, ScanOptions::default());
    assert_eq!(
        found
            .leaves()
            .iter()
            .map(FoundLeaf::guid)
            .collect::<Vec<_>>(),
        [Guid(11), Guid(12)]
    );
    let near = ScanOptions {
        follow_label_paths: false,
        ..ScanOptions::default()
    };
    assert_eq!(scan(&search, near).leaves().len(), 1);
}

#[test]
fn a_concurrent_writer_is_noticed_by_a_second_read() {
    let disk = Arc::new(member(11, &leaf(11)).0);
    let candidate = Candidate {
        device: Arc::clone(&disk) as Arc<dyn Device>,
        ..Disk::new().named("a")
    };
    let pool = the_pool(vec![candidate]);
    let before = pool.newest().unwrap().uberblock.rank();
    assert_eq!(pool.reread_rank(), Some(before));
    let ring = UberblockRing::new(Ashift(12));
    let at = ring.slot_offset_bytes(11).unwrap();
    let mut slot = uberblock(11).encode_slot(ring).unwrap();
    seal_label(&mut slot, at).unwrap();
    disk.write(at, &slot).unwrap();
    assert!(pool.reread_rank() > Some(before));
}

/// Imports devices with arbitrary bytes `configs` as label configurations.
fn import_all(configs: &[Vec<u8>]) {
    let disks = configs.iter().map(|config| {
        let disk = Disk::new().uberblocks(&[1], &[10]);
        let at = Disk::offset(1) + LABEL_CONFIG_OFFSET_BYTES;
        let mut region = unsealed_label_region(config, LABEL_CONFIG_BYTES).unwrap();
        seal_label(&mut region, at).unwrap();
        disk.0.write(at, &region).unwrap();
        disk.named("/dev/d11")
    });
    let found = scan_devices(disks.collect());
    for pool in find_pools(&found, 7) {
        let _ = (
            pool.uberblock_choices(Rewind::Extreme),
            pool.needs_force(),
            pool.reread_rank(),
        );
        let _ = pool.activity_check(ActivitySettings::new(7));
        if let Ok(assembly) = pool.assemble(&pool.config, Trust::Trusted { txg: Txg(10) }) {
            let _ = millpond_vdev::VdevTree::new(assembly.root, millpond_vdev::Reflow::default());
        }
        let _ = pool_from_config(&pool.config, &found, 7);
    }
}

proptest! {
    // Each case maps and clears devices of 64 MiB.
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn damaged_labels_import_or_fail_without_panic(
        hits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        values in proptest::collection::vec((any::<prop::sample::Index>(), prop_oneof![any::<u64>(), 0u64..5, Just(u64::MAX)]), 0..3),
    ) {
        let raidz = with(over("raidz", 10, vec![leaf(11), leaf(12), leaf(13)]), "nparity", 1u64);
        let mut bytes = label(11, &raidz, 10).encode_xdr().unwrap();
        for (index, byte) in hits {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        // Modified integers in otherwise intact labels.
        let numbers: Vec<usize> = (0..bytes.len() - 16).step_by(4).filter(|at| bytes[*at..at + 8] == [0, 0, 0, 8, 0, 0, 0, 1]).collect();
        for (index, value) in values {
            if !numbers.is_empty() {
                let at = numbers[index.index(numbers.len())] + 8;
                bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
            }
        }
        let good = label(12, &raidz, 10).encode_xdr().unwrap();
        import_all(&[bytes, good]);
    }
}
