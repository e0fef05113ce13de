//! Checks labels, uberblocks and configurations of pools created by OpenZFS.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod images;
mod opening;
mod oracle;
mod writing;

use images::{Case, SparseImage, cases};
use millpond_device::Candidate;
use millpond_ondisk::{
    LABEL_CONFIG_BYTES, LABEL_CONFIG_OFFSET_BYTES, LeafLayout, Txg, UBERBLOCK_RING_BYTES,
    UBERBLOCK_RING_OFFSET_BYTES, Uberblock, UberblockRing,
};
use millpond_pool::import::{
    Assembly, Found, ImportCondition, LabelFault, PoolCandidate, PoolState, Rewind, ScanOptions,
    Trust, VdevState, find_pools, read_boot_environment, scan, scan_devices,
};
use millpond_vdev::{Reflow, VdevTree};
use std::sync::LazyLock;

/// The cases, unpacked once for all tests.
static CASES: LazyLock<Vec<Unpacked>> =
    LazyLock::new(|| cases().into_iter().map(Unpacked::new).collect());

struct Unpacked {
    case: Case,
    candidates: Vec<Candidate>,
    found: Found,
}

impl Unpacked {
    fn new(case: Case) -> Self {
        let candidates = case.candidates();
        let found = scan_devices(candidates.clone());
        Self {
            case,
            candidates,
            found,
        }
    }
    fn name(&self) -> &str {
        &self.case.name
    }
    fn pool(&self) -> PoolCandidate {
        let mut pools = find_pools(&self.found, 0);
        assert_eq!(pools.len(), 1, "{}", self.name());
        pools.remove(0)
    }
    /// The pool without some of its images.
    fn pool_without(&self, absent: &[&str]) -> Option<PoolCandidate> {
        let is_there = |candidate: &&Candidate| {
            let path = candidate.path.to_str().unwrap();
            !absent
                .iter()
                .any(|name| name.split('.').next() == Some(path))
        };
        let found = scan_devices(self.candidates.iter().filter(is_there).cloned().collect());
        find_pools(&found, 0).into_iter().next()
    }
    /// Whether the pool lost power, so that its labels show it in use.
    fn is_unexported(&self) -> bool {
        let crashed = [
            "async-destroy",
            "corrupt-uberblock",
            "livelist",
            "log-spacemap",
            "unlinked",
            "zil",
            "zil-slog",
        ];
        crashed.contains(&self.name())
    }
}

fn tree_of(assembly: &Assembly) -> VdevTree {
    VdevTree::new(assembly.root.clone(), Reflow::default()).unwrap()
}

#[test]
fn every_image_has_four_verified_labels() {
    for unpacked in CASES.iter() {
        for leaf in unpacked.found.leaves() {
            let verified: Vec<bool> = leaf
                .labels
                .iter()
                .map(|label| label.as_ref().is_ok_and(|label| label.is_verified))
                .collect();
            let expected = match unpacked.name() {
                "corrupt-labels" => [false, false, false, true],
                _ => [true; 4],
            };
            assert_eq!(verified, expected, "{} {}", unpacked.name(), leaf.path());
            assert!(
                read_boot_environment(leaf.device().as_ref()).is_some(),
                "{}",
                unpacked.name()
            );
        }
        for (path, faults) in &unpacked.found.unlabelled {
            // A vdev removal has relabelled these devices as belonging to no pool.
            assert_eq!(unpacked.name(), "removed", "{}", path.display());
            assert!(
                faults
                    .iter()
                    .all(|fault| matches!(fault, LabelFault::NeverUsed { .. }))
            );
        }
    }
}

#[test]
fn labels_and_uberblocks_encode_back_to_their_own_bytes() {
    let (mut labels, mut slots) = (0, 0);
    for unpacked in CASES.iter() {
        for leaf in unpacked.found.leaves() {
            let layout = LeafLayout::new(leaf.device().size_bytes()).unwrap();
            for (label, offset) in leaf.labels.iter().zip(layout.label_offsets_bytes()) {
                let Ok(label) = label else { continue };
                let mut region = vec![0; LABEL_CONFIG_BYTES];
                leaf.device()
                    .read(offset + LABEL_CONFIG_OFFSET_BYTES, &mut region)
                    .unwrap();
                let packed = label.config.encode_xdr().unwrap();
                assert_eq!(packed, region[..packed.len()], "{}", unpacked.name());
                let mut ring = vec![0; UBERBLOCK_RING_BYTES];
                leaf.device()
                    .read(offset + UBERBLOCK_RING_OFFSET_BYTES, &mut ring)
                    .unwrap();
                // Every slot size finds whole uberblocks at multiples of 1 KiB.
                for (_, slot) in UberblockRing::all()[0].slots(&ring) {
                    if let Ok(uberblock) = Uberblock::decode(slot) {
                        assert_eq!(uberblock.encode(), slot[..216], "{}", unpacked.name());
                        slots += 1;
                    }
                }
                labels += 1;
            }
        }
    }
    println!("{labels} labels, {slots} uberblocks");
    assert!(CASES.is_empty() || (labels > 0 && slots > 0));
}

#[test]
fn labels_read_as_the_reference_dumper_prints_them() {
    let mut compared = 0;
    for unpacked in CASES.iter() {
        let Some(text) = unpacked.case.text("zdb.txt") else {
            continue;
        };
        // The dump was taken while the pool was open. Skip the keys that an export changes.
        let is_altered = |line: &&str| {
            let key = line.trim_start().split(':').next().unwrap_or("");
            ["state", "txg", "labels =", "DTL"]
                .iter()
                .any(|altered| key.starts_with(altered))
        };
        let theirs: Vec<&str> = text
            .lines()
            .skip(3)
            .take_while(|line| line.starts_with("    ") && !line.contains("labels ="))
            .filter(|line| !is_altered(line))
            .map(|line| &line[4..])
            .collect();
        let Some(leaf) = unpacked
            .found
            .leaves()
            .iter()
            .find(|leaf| leaf.candidate.path.to_str() == Some("d0"))
        else {
            continue;
        };
        let ours = leaf.best.config.to_string();
        let ours: Vec<&str> = ours.lines().filter(|line| !is_altered(line)).collect();
        assert_eq!(ours, theirs, "{}", unpacked.name());
        compared += 1;
    }
    println!("{compared} labels compared with their dumps");
}

#[test]
fn each_case_is_one_pool_with_the_recorded_name_and_guid() {
    for unpacked in CASES.iter() {
        let pool = unpacked.pool();
        assert_eq!(pool.name, unpacked.case.pool());
        assert_eq!(pool.guid.to_string(), unpacked.case.property("guid"));
        let is_exported = pool.state == PoolState::Exported;
        assert_eq!(
            is_exported,
            !unpacked.is_unexported(),
            "{}",
            unpacked.name()
        );
        assert_eq!(
            pool.needs_force(),
            unpacked.is_unexported(),
            "{}",
            unpacked.name()
        );
        assert!(
            find_pools(&unpacked.found, pool.hostid)
                .iter()
                .all(|pool| !pool.needs_force())
        );
        let expected = if unpacked.name() == "legacy-v28" {
            28
        } else {
            5000
        };
        assert_eq!(pool.version, expected, "{}", unpacked.name());
        assert!(
            !pool.conditions.iter().any(ImportCondition::is_fatal),
            "{:?}",
            pool.conditions
        );
    }
}

#[test]
fn the_tree_from_the_labels_has_the_recorded_health() {
    for unpacked in CASES.iter() {
        let pool = unpacked.pool();
        let assembly = pool.assembly.as_ref().unwrap();
        let tree = tree_of(assembly);
        assert_eq!(
            tree.leaf_count(),
            assembly.leaves.len(),
            "{}",
            unpacked.name()
        );
        for ((_, node), leaf) in tree.leaves().zip(&assembly.leaves) {
            assert_eq!(node.config.guid, leaf.guid);
        }
        for (node, health) in tree.nodes().iter().zip(&assembly.nodes) {
            assert_eq!(
                (node.config.guid, node.config.kind),
                (health.guid, health.kind)
            );
        }
        let expected = match unpacked.case.property("health") {
            "ONLINE" => VdevState::Healthy,
            "DEGRADED" => VdevState::Degraded,
            other => panic!("{}: {other}", unpacked.name()),
        };
        assert_eq!(assembly.state(), expected, "{}", unpacked.name());
        // Removed vdevs have no labels, so only the pool itself stores their guids.
        let is_whole = !pool
            .conditions
            .iter()
            .any(|condition| matches!(condition, ImportCondition::UnknownTop { .. }));
        let newest = pool.newest().unwrap().uberblock;
        assert_eq!(
            is_whole,
            newest.guid_sum == assembly.guid_sum(),
            "{}",
            unpacked.name()
        );
        assert_eq!(is_whole, unpacked.name() != "removed");
    }
}

#[test]
fn leaves_are_found_by_guid_under_any_path() {
    for unpacked in CASES.iter() {
        let pool = unpacked.pool();
        for leaf in &pool.assembly.as_ref().unwrap().leaves {
            let Some(found_as) = &leaf.found_as else {
                continue;
            };
            let images = unpacked.case.images();
            let image = images
                .iter()
                .find(|(file, _)| file.split('.').next() == Some(found_as))
                .unwrap();
            let config_path = leaf.config_path.as_deref().unwrap();
            if unpacked.name() != "gptdisk" {
                assert_eq!(config_path, image.1, "{}", unpacked.name());
            }
            assert!(leaf.is_moved());
        }
    }
}

#[test]
fn permitted_absences_import_and_one_more_does_not() {
    let mut sets = 0;
    for unpacked in CASES.iter() {
        for absent in unpacked.case.may_be_absent() {
            let absent: Vec<&str> = absent.iter().map(String::as_str).collect();
            let pool = unpacked.pool_without(&absent).unwrap();
            let assembly = pool.assembly.as_ref().unwrap();
            assert!(
                assembly.state().is_usable(),
                "{} without {absent:?}",
                unpacked.name()
            );
            let whole = unpacked.pool();
            assert_eq!(
                pool.newest().unwrap().uberblock,
                whole.newest().unwrap().uberblock
            );
            assert_eq!(
                pool.config,
                whole.config,
                "{} without {absent:?}",
                unpacked.name()
            );
            sets += 1;
        }
    }
    for (case, absent) in [
        ("raidz1-3", &["d0", "d1"][..]),
        ("raidz2-5", &["d0", "d1", "d4"]),
        ("raidz3-7", &["d0", "d1", "d2", "d3"]),
        ("corrupt-raidz2", &["d0", "d1", "d2"]),
        ("draid1", &["d0", "d1"]),
        ("spare-used", &["d0", "d2"]),
    ] {
        if let Some(unpacked) = CASES.iter().find(|unpacked| unpacked.name() == case) {
            let pool = unpacked.pool_without(absent).unwrap();
            assert_eq!(
                pool.assembly.as_ref().unwrap().state(),
                VdevState::CannotOpen,
                "{case}"
            );
            assert!(pool.conditions.iter().any(ImportCondition::is_fatal));
        }
    }
    println!("{sets} sets of absent members");
}

#[test]
fn a_lost_top_level_vdev_is_unknown_until_the_mos_is_read() {
    for (case, absent) in [("stripe3", &["d1"][..]), ("classes", &["d4"])] {
        let Some(unpacked) = CASES.iter().find(|unpacked| unpacked.name() == case) else {
            continue;
        };
        let whole = unpacked.pool();
        let pool = unpacked.pool_without(absent).unwrap();
        let gaps =
            |condition: &&ImportCondition| matches!(condition, ImportCondition::UnknownTop { .. });
        assert_eq!(pool.conditions.iter().filter(gaps).count(), 1);
        // The complete configuration stands in for the one stored in the pool.
        let txg = pool.newest().unwrap().uberblock.txg;
        let assembly = pool
            .assemble(&whole.config, Trust::Trusted { txg })
            .unwrap();
        assert_eq!(assembly.state(), VdevState::CannotOpen, "{case}");
    }
}

#[test]
fn a_pool_with_a_lost_log_device_is_usable() {
    for (case, absent) in [("zil-slog", "d1"), ("classes", "d5")] {
        let Some(unpacked) = CASES.iter().find(|unpacked| unpacked.name() == case) else {
            continue;
        };
        let whole = unpacked.pool();
        let pool = unpacked.pool_without(&[absent]).unwrap();
        let txg = pool.newest().unwrap().uberblock.txg;
        let assembly = pool
            .assemble(&whole.config, Trust::Trusted { txg })
            .unwrap();
        assert_eq!(assembly.state(), VdevState::Degraded, "{case}");
        assert_eq!(assembly.unusable_logs().len(), 1, "{case}");
    }
}

#[test]
fn a_damaged_newest_uberblock_is_skipped() {
    let Some(unpacked) = CASES
        .iter()
        .find(|unpacked| unpacked.name() == "corrupt-uberblock")
    else {
        return;
    };
    let pool = unpacked.pool();
    let chosen = pool.newest().unwrap().uberblock;
    let device = unpacked.found.leaves()[0].device();
    let mut ring = vec![0; UBERBLOCK_RING_BYTES];
    device.read(UBERBLOCK_RING_OFFSET_BYTES, &mut ring).unwrap();
    let ashift = tree_of(pool.assembly.as_ref().unwrap()).nodes()[1].ashift;
    let newest = UberblockRing::new(ashift)
        .slots(&ring)
        .filter_map(|(_, slot)| Uberblock::decode(slot).ok())
        .map(|u| u.txg)
        .max();
    println!("newest slot {newest:?}, chosen {}", chosen.txg);
    assert!(newest > Some(chosen.txg));
    assert_eq!(pool.newest().unwrap().places.len(), 4);
}

#[test]
fn older_states_are_offered_newest_first() {
    for unpacked in CASES.iter() {
        let pool = unpacked.pool();
        let txgs = |rewind| -> Vec<Txg> {
            let choices = pool.uberblock_choices(rewind).unwrap();
            choices.iter().map(|found| found.uberblock.txg).collect()
        };
        let newest = pool.newest().unwrap().uberblock.txg;
        assert_eq!(txgs(Rewind::Never), [newest]);
        let all = txgs(Rewind::Extreme);
        assert!(
            all.is_sorted_by(|newer, older| newer > older),
            "{} {all:?}",
            unpacked.name()
        );
        assert_eq!(txgs(Rewind::ToTxg(newest)), all);
        assert!(txgs(Rewind::Recent).iter().all(|txg| txg.0 + 2 >= newest.0));
        assert_eq!(
            pool.reread_rank(),
            Some(pool.newest().unwrap().uberblock.rank())
        );
    }
}

#[test]
fn a_pool_inside_a_partition_of_an_image_is_found() {
    let Some(unpacked) = CASES.iter().find(|unpacked| unpacked.name() == "gptdisk") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    SparseImage::unpack(&unpacked.case.folder.join("d0.img.zst")).save(&path);
    let found = scan(&[folder.path().to_owned()], ScanOptions::default());
    assert_eq!(found.leaves().len(), 1);
    assert_eq!(found.leaves()[0].path(), format!("{}#1", path.display()));
    let pools = find_pools(&found, 0);
    assert_eq!((pools.len(), pools[0].name.as_str()), (1, "pgpt"));
    let without = ScanOptions {
        partitions: false,
        ..ScanOptions::default()
    };
    assert!(
        scan(&[folder.path().to_owned()], without)
            .leaves()
            .is_empty()
    );
}
