//! Checks the reference counts of features.

use super::Findings;
use super::block_features::BlockFeatures;
use super::dsl::Dsl;
use super::finding::{Finding, FindingKind};
use millpond_env::sync::Arc;
use millpond_ondisk::dsl::keys;
use millpond_ondisk::pool_directory::{key, vdev_key};
use millpond_ondisk::{IndirectMappingPhys, ObjectId, RebuildPhase};
use millpond_pool::PoolView;
use millpond_vdev::{VdevKind, VdevNode};
use millpond_zap::Zap;
use std::collections::BTreeMap;

/// Counts from other parts of the check.
pub(super) struct Counted<'a> {
    pub(super) empty_references: u64,
    pub(super) deleted_livelists: u64,
    pub(super) clone_tables: u64,
    pub(super) dedup_tables: u64,
    /// By dataset.
    pub(super) features: &'a [BlockFeatures],
}

/// Counts from the pass over the MOS.
#[derive(Debug, Default)]
pub(super) struct InMos {
    pub(super) histograms: u64,
    pub(super) extensible: u64,
    /// Names of features in the tables of datasets, with their counts.
    pub(super) in_datasets: BTreeMap<String, u64>,
}

/// Counts what heads have: bookmarks and livelists.
fn count_heads(pool: &Arc<PoolView>, dsl: &Dsl, expected: &mut BTreeMap<&str, u64>) {
    for feature in [
        "com.delphix:bookmarks",
        "com.delphix:bookmark_written",
        "com.delphix:redaction_bookmarks",
        "com.delphix:redaction_list_spill",
        "com.delphix:livelist",
    ] {
        expected.insert(feature, 0);
    }
    let mut add = |feature, count| *expected.entry(feature).or_default() += count;
    for node in dsl.datasets.iter().filter(|node| node.next.is_none()) {
        let has_bookmarks = matches!(node.dataset.extension(keys::BOOKMARKS), Ok(Some(_)));
        add("com.delphix:bookmarks", u64::from(has_bookmarks));
        for mark in node.dataset.bookmarks().unwrap_or_default() {
            let flags = mark.phys.to_words().get(4).copied().unwrap_or(0);
            add("com.delphix:bookmark_written", flags & 1);
            let Some(list) = mark.phys.redaction_list else {
                continue;
            };
            let list = pool.mos().object(list);
            let is_spilled = list.is_ok_and(|list| list.dnode().spill.is_some());
            add("com.delphix:redaction_bookmarks", 1);
            add("com.delphix:redaction_list_spill", u64::from(is_spilled));
        }
        let directory = &dsl.directories[node.directory].directory;
        let has_livelist = matches!(directory.extension(keys::LIVELIST), Ok(Some(_)));
        add("com.delphix:livelist", u64::from(has_livelist));
    }
}

/// How many structures keep what is obsolete in the mappings of removed vdevs.
fn obsolete_counts(pool: &Arc<PoolView>, dsl: &Dsl) -> u64 {
    let topology = pool.store().topology();
    let of_vdev = |node: &VdevNode| {
        let zap = node.config.zap_top.and_then(ObjectId::some);
        let zap = zap.and_then(|zap| Zap::open(pool.mos().object(zap).ok()?).ok());
        let has = |name: &str| {
            let found = zap.as_ref().map(|zap| zap.lookup(name.as_bytes()));
            u64::from(matches!(found, Some(Ok(Some(_)))))
        };
        let counts = node.config.indirect_mapping.and_then(|mapping| {
            let object = pool.mos().object(mapping).ok()?;
            let bonus = object.bonus().ok()?;
            let header = IndirectMappingPhys::decode(bonus, object.dnode().endian);
            header.ok()?.counts.flatten()
        });
        has(vdev_key::OBSOLETE_SPACE_MAP)
            + has(vdev_key::OBSOLETE_COUNTS_ARE_PRECISE)
            + u64::from(counts.is_some())
    };
    let of_vdevs: u64 = topology.tree.tops().map(|(_, node)| of_vdev(node)).sum();
    let remapped = dsl
        .datasets
        .iter()
        .filter(|node| matches!(node.dataset.extension(keys::REMAP_DEADLIST), Ok(Some(_))));
    let has_list = pool.find_directory_object(key::OBSOLETE_BPOBJ);
    let is_condensing = matches!(pool.condensing(), Ok(Some(_)));
    of_vdevs
        + remapped.count() as u64
        + u64::from(matches!(has_list, Ok(Some(_))))
        + if is_condensing { 2 } else { 0 }
}

pub(super) fn judge(
    pool: &Arc<PoolView>,
    dsl: &Dsl,
    counted: &Counted<'_>,
    in_mos: &InMos,
    findings: &Findings<'_>,
) {
    let features = pool.features();
    if pool.version() < 5000 {
        return;
    }
    let tell = |detail: String| {
        Finding::new(FindingKind::FeatureCount, detail).into(findings);
    };
    let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
    let has = |key: &str| u64::from(pool.find_directory_object(key).ok().flatten().is_some());
    expected.insert("com.delphix:async_destroy", has(key::BPTREE));
    expected.insert("com.delphix:empty_bpobj", counted.empty_references);
    expected.insert("com.delphix:spacemap_histogram", in_mos.histograms);
    expected.insert("com.delphix:extensible_dataset", in_mos.extensible);
    expected.insert("com.fudosecurity:block_cloning", counted.clone_tables);
    expected.insert("com.klarasystems:fast_dedup", counted.dedup_tables);
    let topology = pool.store().topology();
    let tops = || topology.tree.tops().map(|(_, node)| node);
    let mapped = tops().filter(|node| node.config.indirect_mapping.is_some());
    expected.insert("com.delphix:device_removal", mapped.count() as u64);
    expected.insert("com.delphix:obsolete_counts", obsolete_counts(pool, dsl));
    let draid = tops().filter(|node| matches!(node.kind, VdevKind::Draid(_)));
    expected.insert("org.openzfs:draid", draid.count() as u64);
    let rebuilds = pool.rebuilds().into_iter();
    let active = rebuilds.filter(|(_, rebuild)| rebuild.phase == RebuildPhase::Active);
    expected.insert("org.openzfs:device_rebuild", active.count() as u64);
    count_heads(pool, dsl, &mut expected);
    *expected.entry("com.delphix:livelist").or_default() += counted.deleted_livelists;
    let enabled = features
        .known()
        .filter(|(feature, _)| features.enabled_txg(feature.guid).is_some())
        .count() as u64;
    if features.unknown().is_empty() {
        expected.insert("com.delphix:enabled_txg", enabled);
    }
    for (feature, _) in features.known() {
        let is_per_dataset = feature
            .flags
            .contains(millpond_ondisk::FeatureFlags::PER_DATASET);
        if is_per_dataset {
            let count = in_mos.in_datasets.get(feature.guid).copied().unwrap_or(0);
            expected.insert(feature.guid, count);
        }
    }
    if !dsl.is_partial {
        for (guid, expected) in expected {
            let Some(stored) = features.count(guid) else {
                if expected > 0 {
                    tell(format!("{guid}: not enabled, and {expected} things use it"));
                }
                continue;
            };
            if stored != expected {
                tell(format!("{guid}: {stored} stored, {expected} counted"));
            }
        }
    }
    for (node, used) in dsl.datasets.iter().zip(counted.features) {
        for (feature, guid) in BlockFeatures::NAMED {
            if used.contains(feature) && !matches!(node.dataset.extension(guid), Ok(Some(_))) {
                let detail = format!("its blocks use {guid}, which it does not name");
                let finding = Finding::new(FindingKind::FeatureMissing, detail);
                findings.add(finding.of(&node.name));
            }
        }
    }
}
