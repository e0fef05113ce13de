//! Feature counts of a pool that is open for changes.
//!
//! [`FeatureCounts`] determines the consequences of a change: which dependencies to enable first, what
//! becomes active immediately, and what the labels must list. It returns them as [`FeatureEdit`]s, which
//! the caller stores.
//!
//! Page `docs/format/features.md`, "Writing".

use crate::Features;
use millpond_ondisk::{FEATURES, Feature, FeatureFlags, FeatureSupport, Txg};
use std::collections::BTreeSet;

/// The version of pools with feature flags.
pub const POOL_VERSION_FEATURES: u64 = 5000;

/// The feature that records when each feature was enabled.
const ENABLED_TXG: &str = "com.delphix:enabled_txg";

/// One table entry to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeatureEdit {
    /// `features_for_read`, or `features_for_write` if `is_for_write`: the feature's count.
    Count {
        /// Which of the two tables to change.
        is_for_write: bool,
        /// The feature.
        guid: String,
        /// Its count.
        count: u64,
    },
    /// `feature_descriptions`.
    Description {
        /// The feature.
        guid: String,
        /// Its description.
        text: String,
    },
    /// `feature_enabled_txg`.
    EnabledTxg {
        /// The feature.
        guid: String,
        /// The txg in which it was enabled.
        txg: Txg,
    },
}

/// Why a feature's count cannot be changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum FeatureError {
    /// The feature is unknown.
    #[error("feature '{0}' is not supported")]
    Unknown(String),
    /// The feature is known, but this software cannot write to a pool in which it is active.
    #[error("feature '{0}' is read only so far, so it stays disabled")]
    NotWritten(String),
    /// The feature must be enabled first.
    #[error("feature '{0}' is not enabled")]
    Disabled(String),
    /// The feature's count would become negative.
    #[error("feature '{0}' is not in use")]
    NotActive(String),
}

/// The consequences of a change of counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeatureChange {
    /// The entries to store, in this order.
    pub edits: Vec<FeatureEdit>,
    /// Whether the list of features in labels and configuration changes.
    pub changes_labels: bool,
}

/// Which features a new pool gets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum FeatureChoice {
    /// All features that OpenZFS 2.3 enables and this software can write.
    #[default]
    Default,
    /// Only the features named explicitly (`zpool create -d`).
    OnlyNamed,
    /// The default features that are also in this list of names (property `compatibility`).
    Compatible(Vec<String>),
}

/// Whether a new pool enables a feature by default: OpenZFS 2.3 enables it, and this software can write to
/// a pool in which it is active.
#[must_use]
pub fn is_enabled_by_default(feature: &Feature) -> bool {
    /// Features new in 2.4, which 2.3 does not support.
    const NEWER: [&str; 3] = [
        "dynamic_gang_header",
        "block_cloning_endian",
        "physical_rewrite",
    ];
    feature.support == FeatureSupport::Writes && !NEWER.contains(&feature.name())
}

/// The names of the features of a new pool, ordered by feature number and including dependencies.
///
/// `named` adds (true) or removes (false) features, as `feature@NAME` does.
///
/// # Errors
/// [`FeatureError::Unknown`], or [`FeatureError::NotWritten`] for a feature to be enabled.
pub fn features_of_new_pool(
    choice: &FeatureChoice,
    named: &[(String, bool)],
) -> Result<Vec<&'static Feature>, FeatureError> {
    let mut wanted: BTreeSet<&'static str> = BTreeSet::new();
    for feature in FEATURES {
        let is_wanted = match choice {
            FeatureChoice::Default => is_enabled_by_default(feature),
            FeatureChoice::OnlyNamed => false,
            FeatureChoice::Compatible(names) => {
                feature.support == FeatureSupport::Writes
                    && names.iter().any(|name| name == feature.name())
            }
        };
        if is_wanted {
            wanted.insert(feature.name());
        }
    }
    for (name, is_on) in named {
        let feature = Feature::by_name(name).ok_or_else(|| FeatureError::Unknown(name.clone()))?;
        if *is_on {
            demand_written(feature)?;
            wanted.insert(feature.name());
        } else {
            wanted.remove(feature.name());
        }
    }
    // Add the dependencies of wanted features until an iteration adds none.
    loop {
        let missing: Vec<&'static str> = FEATURES
            .iter()
            .filter(|feature| wanted.contains(feature.name()))
            .flat_map(|feature| feature.dependencies.iter().copied())
            .filter(|name| !wanted.contains(name))
            .collect();
        if missing.is_empty() {
            break;
        }
        wanted.extend(missing);
    }
    Ok(FEATURES
        .iter()
        .filter(|feature| wanted.contains(feature.name()))
        .collect())
}

/// Checks that this software can write to a pool that uses the feature.
///
/// # Errors
/// [`FeatureError::NotWritten`] if it cannot.
pub fn demand_written(feature: &Feature) -> Result<(), FeatureError> {
    match feature.support {
        FeatureSupport::Writes => Ok(()),
        FeatureSupport::Reads | FeatureSupport::Refuses => {
            Err(FeatureError::NotWritten(feature.name().to_owned()))
        }
    }
}

/// The feature counts of one pool as they change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeatureCounts {
    features: Features,
}

impl FeatureCounts {
    /// Starts from the loaded counts, or from empty ones for a new pool.
    #[must_use]
    pub fn new(features: Features) -> Self {
        Self { features }
    }
    /// The current counts.
    #[must_use]
    pub fn features(&self) -> &Features {
        &self.features
    }
    /// Whether a feature is enabled, active or not.
    #[must_use]
    pub fn is_enabled(&self, guid: &str) -> bool {
        self.features.count(guid).is_some()
    }

    /// Enables a feature after its dependencies. A feature that is already enabled stays unchanged.
    ///
    /// # Errors
    /// [`FeatureError::Unknown`] for a dependency that does not exist.
    pub fn enable(&mut self, feature: &Feature, txg: Txg) -> Result<FeatureChange, FeatureError> {
        let mut change = FeatureChange::default();
        let before = self.label_features();
        self.enable_with_needs(feature, txg, &mut change, 0)?;
        change.changes_labels = before != self.label_features();
        Ok(change)
    }

    /// Recursion depth is bounded by the number of features.
    fn enable_with_needs(
        &mut self,
        feature: &Feature,
        txg: Txg,
        change: &mut FeatureChange,
        depth: usize,
    ) -> Result<(), FeatureError> {
        if self.is_enabled(feature.guid) || depth > FEATURES.len() {
            return Ok(());
        }
        for name in feature.dependencies {
            let needed =
                Feature::by_name(name).ok_or_else(|| FeatureError::Unknown((*name).to_owned()))?;
            self.enable_with_needs(needed, txg, change, depth + 1)?;
        }
        change.edits.push(FeatureEdit::Description {
            guid: feature.guid.to_owned(),
            text: feature.description.to_owned(),
        });
        self.features
            .set_description(feature.guid, feature.description);
        let count = u64::from(feature.flags.contains(FeatureFlags::ACTIVATE_ON_ENABLE));
        self.set(
            feature.guid,
            feature.is_read_only_compatible(),
            count,
            change,
        );
        if self.is_enabled(ENABLED_TXG) {
            let recorded = self.features.count(ENABLED_TXG).unwrap_or(0);
            self.set(ENABLED_TXG, true, recorded.saturating_add(1), change);
            self.features.set_enabled_txg(feature.guid, txg);
            change.edits.push(FeatureEdit::EnabledTxg {
                guid: feature.guid.to_owned(),
                txg,
            });
        }
        Ok(())
    }

    /// Increments a feature's reference count.
    ///
    /// # Errors
    /// [`FeatureError::Disabled`].
    pub fn increment(&mut self, guid: &str) -> Result<FeatureChange, FeatureError> {
        self.add(guid, 1)
    }
    /// Decrements a feature's reference count.
    ///
    /// # Errors
    /// [`FeatureError::Disabled`], [`FeatureError::NotActive`].
    pub fn decrement(&mut self, guid: &str) -> Result<FeatureChange, FeatureError> {
        self.add(guid, -1)
    }

    /// Changes a feature's reference count.
    ///
    /// # Errors
    /// [`FeatureError::Disabled`], [`FeatureError::NotActive`] if it would become negative.
    pub fn add(&mut self, guid: &str, change: i64) -> Result<FeatureChange, FeatureError> {
        let count = self
            .features
            .count(guid)
            .ok_or_else(|| FeatureError::Disabled(guid.to_owned()))?;
        let next = count.checked_add_signed(change);
        let next = next.ok_or_else(|| FeatureError::NotActive(guid.to_owned()))?;
        let before = self.label_features();
        let mut change = FeatureChange::default();
        let is_for_write = self.features.is_for_write(guid);
        self.set(guid, is_for_write, next, &mut change);
        change.changes_labels = before != self.label_features();
        Ok(change)
    }

    fn set(&mut self, guid: &str, is_for_write: bool, count: u64, change: &mut FeatureChange) {
        self.features.set_count(guid, is_for_write, count);
        change.edits.push(FeatureEdit::Count {
            is_for_write,
            guid: guid.to_owned(),
            count,
        });
    }

    /// The features that labels and configuration list in `features_for_read`: active features required to
    /// read the MOS, ordered by feature number.
    #[must_use]
    pub fn label_features(&self) -> Vec<String> {
        FEATURES
            .iter()
            .filter(|feature| feature.flags.contains(FeatureFlags::REQUIRED_FOR_MOS))
            .filter(|feature| self.features.is_active(feature.guid))
            .map(|feature| feature.guid.to_owned())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_pool() -> FeatureCounts {
        let mut counts = FeatureCounts::default();
        for feature in features_of_new_pool(&FeatureChoice::Default, &[]).unwrap() {
            counts.enable(feature, Txg(4)).unwrap();
        }
        counts
    }

    #[test]
    fn a_new_pool_enables_only_writable_features() {
        let names: Vec<&str> = features_of_new_pool(&FeatureChoice::Default, &[])
            .unwrap()
            .iter()
            .map(|feature| feature.name())
            .collect();
        assert_eq!(
            names,
            [
                "async_destroy",
                "empty_bpobj",
                "lz4_compress",
                "multi_vdev_crash_dump",
                "spacemap_histogram",
                "enabled_txg",
                "hole_birth",
                "extensible_dataset",
                "embedded_data",
                "bookmarks",
                "filesystem_limits",
                "large_blocks",
                "large_dnode",
                "sha512",
                "skein",
                "edonr",
                "userobj_accounting",
                "encryption",
                "project_quota",
                "device_removal",
                "obsolete_counts",
                "zpool_checkpoint",
                "spacemap_v2",
                "allocation_classes",
                "resilver_defer",
                "bookmark_v2",
                "redaction_bookmarks",
                "redacted_datasets",
                "bookmark_written",
                "log_spacemap",
                "livelist",
                "device_rebuild",
                "zstd_compress",
                "draid",
                "zilsaxattr",
                "head_errlog",
                "blake3",
                "block_cloning",
                "vdev_zaps_v2",
                "redaction_list_spill",
                "raidz_expansion",
                "fast_dedup",
                "longname",
                "large_microzap"
            ]
        );
    }

    #[test]
    fn counts_after_creation_are_as_software_of_2_3_leaves_them() {
        let counts = new_pool();
        let count = |name: &str| {
            let guid = Feature::by_name(name).unwrap().guid;
            counts.features().count(guid)
        };
        for name in [
            "lz4_compress",
            "embedded_data",
            "hole_birth",
            "head_errlog",
            "spacemap_v2",
        ] {
            assert_eq!(count(name), Some(1), "{name}");
        }
        for name in [
            "extensible_dataset",
            "project_quota",
            "vdev_zaps_v2",
            "log_spacemap",
        ] {
            assert_eq!(count(name), Some(0), "{name}");
        }
        // All features from `enabled_txg` on, including itself, are recorded: 44 less the 5 before it.
        assert_eq!(count("enabled_txg"), Some(39));
        let txg = |name: &str| {
            let guid = Feature::by_name(name).unwrap().guid;
            counts.features().enabled_txg(guid)
        };
        assert_eq!(txg("enabled_txg"), Some(Txg(4)));
        assert_eq!(txg("hole_birth"), Some(Txg(4)));
        assert_eq!(txg("lz4_compress"), None);
        assert_eq!(
            counts.label_features(),
            ["com.delphix:hole_birth", "com.delphix:embedded_data"]
        );
    }

    #[test]
    fn enabling_a_feature_enables_its_dependencies_once() {
        let mut counts = FeatureCounts::default();
        let feature = Feature::by_name("large_microzap").unwrap();
        let change = counts.enable(feature, Txg(9)).unwrap();
        let enabled: Vec<&str> = change
            .edits
            .iter()
            .filter_map(|edit| match edit {
                FeatureEdit::Count { guid, .. } => Some(guid.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(
            enabled,
            [
                "com.delphix:extensible_dataset",
                "org.open-zfs:large_blocks",
                "com.klarasystems:large_microzap"
            ]
        );
        assert_eq!(
            counts.enable(feature, Txg(10)).unwrap(),
            FeatureChange::default()
        );
    }

    #[test]
    fn counts_never_fall_below_zero_and_disabled_features_have_none() {
        let mut counts = new_pool();
        let large = "org.open-zfs:large_blocks";
        assert_eq!(
            counts.decrement(large),
            Err(FeatureError::NotActive(large.into()))
        );
        counts.increment(large).unwrap();
        counts.increment(large).unwrap();
        counts.decrement(large).unwrap();
        assert_eq!(counts.features().count(large), Some(1));
        assert_eq!(
            counts.increment("com.seagate:draid_failure_domains"),
            Err(FeatureError::Disabled(
                "com.seagate:draid_failure_domains".into()
            ))
        );
    }

    #[test]
    fn a_feature_needed_by_the_mos_changes_the_labels() {
        let mut counts = new_pool();
        let zaps = "com.klarasystems:vdev_zaps_v2";
        assert!(counts.increment(zaps).unwrap().changes_labels);
        assert!(!counts.increment(zaps).unwrap().changes_labels);
        assert!(
            !counts
                .increment("org.open-zfs:large_blocks")
                .unwrap()
                .changes_labels
        );
    }

    #[test]
    fn named_features_are_enabled_and_disabled() {
        let names = |choice, named: &[(&str, bool)]| {
            let named: Vec<_> = named.iter().map(|(n, on)| ((*n).to_owned(), *on)).collect();
            features_of_new_pool(&choice, &named)
                .map(|all| all.iter().map(|f| f.name()).collect::<Vec<_>>())
        };
        assert_eq!(
            names(FeatureChoice::OnlyNamed, &[("bookmark_v2", true)]).unwrap(),
            ["extensible_dataset", "bookmarks", "bookmark_v2"]
        );
        assert!(
            !names(FeatureChoice::Default, &[("longname", false)])
                .unwrap()
                .contains(&"longname")
        );
        assert!(
            names(FeatureChoice::Default, &[("dynamic_gang_header", true)])
                .unwrap()
                .contains(&"dynamic_gang_header")
        );
        assert_eq!(
            names(FeatureChoice::Default, &[("draid_failure_domains", true)]),
            Err(FeatureError::NotWritten("draid_failure_domains".into()))
        );
        assert_eq!(
            names(FeatureChoice::Default, &[("warp", true)]),
            Err(FeatureError::Unknown("warp".into()))
        );
        let grub = crate::properties::compatibility::known_set("grub2-2.06").unwrap();
        let grub = grub.into_iter().map(str::to_owned).collect();
        let compatible = names(FeatureChoice::Compatible(grub), &[]).unwrap();
        assert!(compatible.contains(&"log_spacemap") && compatible.contains(&"block_cloning"));
        assert!(!compatible.contains(&"large_blocks"));
    }
}
