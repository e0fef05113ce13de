//! Compares the write side with pools written by OpenZFS: rebuilt configurations must equal those in the
//! labels, and pools that must not be written to must be refused with the right reason.

use crate::CASES;
use millpond_env::Env;
use millpond_pool::{
    FeatureCounts, PoolConfig, ReadOnlyReason, WritabilityError, auxiliary_label_list,
    check_writable,
};
use millpond_pool::{OpenOptions, PoolView};
use millpond_vdev::VdevConfig;
use std::collections::BTreeMap;
use std::sync::Arc;

fn open(unpacked: &crate::Unpacked) -> Arc<PoolView> {
    PoolView::open(&Env::real(), &unpacked.pool(), &OpenOptions::default())
        .unwrap_or_else(|error| panic!("{}: {error}", unpacked.name()))
}

#[test]
fn a_configuration_made_anew_is_the_one_that_was_read() {
    let mut count = 0;
    for unpacked in CASES.iter() {
        let pool = open(unpacked);
        let config = PoolConfig::from_nvlist(pool.config()).unwrap();
        assert_eq!(&config.pool_list(), pool.config(), "{}", unpacked.name());
        assert_eq!(
            config.guid_sum(),
            pool.uberblock().guid_sum,
            "{}",
            unpacked.name()
        );
        for list in pool.spares().iter().chain(pool.caches()) {
            let vdev = VdevConfig::from_nvlist(list).unwrap();
            assert_eq!(&vdev.to_auxiliary_nvlist(), list, "{}", unpacked.name());
        }
        count += 1;
    }
    println!("{count} configurations");
}

#[test]
fn labels_follow_from_the_pools_configuration() {
    let (mut equal, mut spares) = (0, 0);
    for unpacked in CASES.iter() {
        let pool = open(unpacked);
        let config = PoolConfig::from_nvlist(pool.config()).unwrap();
        for leaf in unpacked.found.leaves() {
            for label in leaf.labels.iter().filter_map(|label| label.as_ref().ok()) {
                if !label.state.has_pool() {
                    let listed = pool.spares().iter().chain(pool.caches());
                    let vdev = listed
                        .map(|list| VdevConfig::from_nvlist(list).unwrap())
                        .find(|vdev| vdev.guid == label.guid);
                    let Some(vdev) = vdev else {
                        panic!("{}: a spare that is not listed", unpacked.name())
                    };
                    assert_eq!(
                        auxiliary_label_list(&vdev, label.state, pool.version()),
                        *label.config
                    );
                    spares += 1;
                    continue;
                }
                // Labels of an older txg describe an older tree.
                if label.txg != config.txg {
                    continue;
                }
                let made = config.label_list(label.guid).unwrap();
                assert_eq!(made, *label.config, "{} {}", unpacked.name(), leaf.path());
                equal += 1;
            }
        }
    }
    println!("{equal} labels of members and {spares} of spares and cache devices");
    assert!(CASES.is_empty() || equal > 50);
}

#[test]
fn the_features_that_labels_list_follow_from_the_counts() {
    for unpacked in CASES.iter() {
        let pool = open(unpacked);
        let config = PoolConfig::from_nvlist(pool.config()).unwrap();
        let counts = FeatureCounts::new(pool.features().clone());
        let mut listed = config.features_for_read.unwrap_or_default();
        let mut made = counts.label_features();
        listed.sort();
        made.sort();
        assert_eq!(made, listed, "{}", unpacked.name());
    }
}

fn word(reason: &ReadOnlyReason) -> String {
    match reason {
        ReadOnlyReason::Feature(feature) => feature.guid.clone(),
        other => other.to_string(),
    }
}

#[test]
fn every_golden_pool_may_be_written() {
    let mut differences = BTreeMap::new();
    let mut writable = Vec::new();
    for unpacked in CASES.iter() {
        let mut reasons = match check_writable(&open(unpacked)) {
            Ok(()) => Vec::new(),
            Err(WritabilityError::ReadOnly(why)) => why.reasons.iter().map(word).collect(),
            Err(error) => panic!("{}: {error}", unpacked.name()),
        };
        reasons.dedup();
        if reasons.is_empty() {
            writable.push(unpacked.name().to_owned());
        }
        // Cases zil and zil-slog have intent logs to replay, which only the dataset layer reports.
        if !reasons.is_empty() {
            differences.insert(unpacked.name().to_owned(), reasons);
        }
    }
    println!("writable: {}", writable.join(", "));
    assert_eq!(differences, BTreeMap::new());
    if CASES.is_empty() {
        return;
    }
    for case in [
        "single",
        "mirror2",
        "mirror3",
        "stripe3",
        "raidz1-3",
        "raidz2-5",
        "raidz3-7",
        "ashift9",
        "ashift13",
        "compress",
        "checksum",
        "recordsize",
        "embedded",
        "gang-raidz",
        "zpl",
        "names",
        "quotas",
        "snapshots",
        "zvols",
        "livelist",
        "compat-2.1",
        "compat-grub",
        "compat-legacy",
        "log-spacemap",
        "async-destroy",
        "unlinked",
        "removed",
        "v24-default",
        "v24-rewrite",
        "v24-gang",
        "v24-special",
    ] {
        let is_there = CASES.iter().any(|unpacked| unpacked.name() == case);
        assert!(
            !is_there || writable.iter().any(|name| name == case),
            "{case}"
        );
    }
}
