//! Feature flags: the on-disk features that a pool requires of its software.
//!
//! Page `docs/format/features.md`.

mod table;

pub use table::FEATURES;

bitflags::bitflags! {
    /// Properties of a feature. Page `docs/format/features.md`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct FeatureFlags: u8 {
        /// Counted in `features_for_write`: software without support may still read the pool.
        const READ_ONLY_COMPATIBLE = 0x01;
        /// Datasets that use the feature have its GUID as a key.
        const PER_DATASET = 0x02;
        /// While active, its GUID is also in the labels: the MOS cannot be read without the feature.
        const REQUIRED_FOR_MOS = 0x04;
        /// Becomes active (count 1) as soon as it is enabled.
        const ACTIVATE_ON_ENABLE = 0x08;
        /// Not enabled by `zpool upgrade`.
        const NO_UPGRADE = 0x10;
    }
}

/// How Millpond treats a pool in which a feature is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FeatureSupport {
    /// Refuses to import the pool.
    Refuses,
    /// Supports reading. Opens the pool for writing only while the feature is not in use.
    Reads,
    /// Supports reading and writing.
    Writes,
}

/// A feature that a pool can have enabled. Page `docs/format/features.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// The GUID under which its count is stored, such as `org.illumos:lz4_compress`.
    pub guid: &'static str,
    /// The text in `feature_descriptions`; empty if unknown.
    pub description: &'static str,
    /// See [`FeatureFlags`].
    pub flags: FeatureFlags,
    /// Names (not GUIDs) of the features that must be enabled first.
    pub dependencies: &'static [&'static str],
    /// How Millpond supports it.
    pub support: FeatureSupport,
}

impl Feature {
    /// The feature of this GUID; `None` if unknown.
    #[must_use]
    pub fn by_guid(guid: &str) -> Option<&'static Feature> {
        FEATURES.iter().find(|feature| feature.guid == guid)
    }
    /// The feature of this name, as in the pool property `feature@NAME`.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Feature> {
        FEATURES.iter().find(|feature| feature.name() == name)
    }
    /// The name: the part of the GUID after the colon.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.guid
            .split_once(':')
            .map_or(self.guid, |(_, name)| name)
    }
    /// Whether software without support may still read a pool in which the feature is active.
    #[must_use]
    pub fn is_read_only_compatible(&self) -> bool {
        self.flags.contains(FeatureFlags::READ_ONLY_COMPATIBLE)
    }
}

/// The state of a feature in a pool, from its entry in the feature lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FeatureState {
    /// No entry.
    Disabled,
    /// An entry with count 0.
    Enabled,
    /// An entry with this count, above 0.
    Active(u64),
}

impl FeatureState {
    /// The state for the count of an entry; `None` for no entry.
    #[must_use]
    pub fn from_count(count: Option<u64>) -> Self {
        match count {
            None => Self::Disabled,
            Some(0) => Self::Enabled,
            Some(count) => Self::Active(count),
        }
    }
    /// The name in the output of `zpool get`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Enabled => "enabled",
            Self::Active(_) => "active",
        }
    }
}

/// Whether a feature with this GUID and count in `features_for_read` prevents Millpond from reading the pool.
///
/// A count of 0 never does.
#[must_use]
pub fn hinders_reading(guid: &str, count: u64) -> bool {
    count > 0
        && Feature::by_guid(guid).is_none_or(|feature| feature.support == FeatureSupport::Refuses)
}

/// Whether a feature with this GUID and count in either list prevents Millpond from writing to the pool.
#[must_use]
pub fn hinders_writing(guid: &str, count: u64) -> bool {
    count > 0
        && Feature::by_guid(guid).is_none_or(|feature| feature.support != FeatureSupport::Writes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn guids_and_names_are_unique_and_dependencies_exist() {
        let guids: HashSet<_> = FEATURES.iter().map(|feature| feature.guid).collect();
        let names: HashSet<_> = FEATURES.iter().map(Feature::name).collect();
        assert_eq!((guids.len(), names.len()), (48, 48));
        for feature in FEATURES {
            assert!(feature.guid.contains(':'));
            for dependency in feature.dependencies {
                assert!(Feature::by_name(dependency).is_some(), "{dependency}");
            }
        }
    }

    #[test]
    fn the_order_is_that_of_feature_numbers() {
        let names: Vec<_> = FEATURES.iter().map(Feature::name).collect();
        assert_eq!(names[0], "async_destroy");
        assert_eq!(names[43], "large_microzap");
        assert_eq!(
            names[44..47],
            [
                "dynamic_gang_header",
                "block_cloning_endian",
                "physical_rewrite"
            ]
        );
    }

    #[test]
    fn the_features_needed_to_read_the_mos_are_marked_and_in_order() {
        let hole_birth = Feature::by_name("hole_birth").unwrap();
        assert!(
            hole_birth
                .flags
                .contains(FeatureFlags::REQUIRED_FOR_MOS | FeatureFlags::ACTIVATE_ON_ENABLE)
        );
        assert!(!hole_birth.is_read_only_compatible());
        let async_destroy = Feature::by_name("async_destroy").unwrap();
        assert!(async_destroy.is_read_only_compatible());
        assert_eq!(hole_birth.dependencies, ["enabled_txg"]);
        let required: Vec<_> = FEATURES
            .iter()
            .filter(|feature| feature.flags.contains(FeatureFlags::REQUIRED_FOR_MOS))
            .map(Feature::name)
            .collect();
        assert_eq!(
            required,
            [
                "hole_birth",
                "embedded_data",
                "device_removal",
                "draid",
                "vdev_zaps_v2",
                "raidz_expansion",
                "dynamic_gang_header",
                "draid_failure_domains"
            ]
        );
    }

    #[test]
    fn only_active_unsupported_features_prevent_reading() {
        assert!(!hinders_reading("org.illumos:lz4_compress", 1));
        assert!(!hinders_reading("com.example:strange", 0));
        assert!(hinders_reading("com.example:strange", 1));
        assert!(hinders_reading("com.seagate:draid_failure_domains", 1));
        assert!(hinders_writing("com.example:strange", 1));
        assert!(hinders_writing("com.seagate:draid_failure_domains", 1));
        assert!(!hinders_writing("org.openzfs:draid", 1));
        assert!(!hinders_writing("com.datto:encryption", 1));
        assert!(!hinders_writing("org.illumos:lz4_compress", 1));
        assert!(!hinders_writing("com.example:strange", 0));
    }

    #[test]
    fn a_feature_is_active_if_its_count_is_not_zero() {
        assert_eq!(FeatureState::from_count(None).name(), "disabled");
        assert_eq!(FeatureState::from_count(Some(0)).name(), "enabled");
        assert_eq!(FeatureState::from_count(Some(3)), FeatureState::Active(3));
    }

    #[test]
    fn the_page_has_the_same_table() {
        let page = include_str!("../../../../../docs/format/features.md");
        let rows: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("| `") && line.contains(':'))
            .collect();
        let expected: Vec<String> = FEATURES
            .iter()
            .map(|feature| {
                let letters: String = [
                    (FeatureFlags::READ_ONLY_COMPATIBLE, 'R'),
                    (FeatureFlags::PER_DATASET, 'D'),
                    (FeatureFlags::REQUIRED_FOR_MOS, 'M'),
                    (FeatureFlags::ACTIVATE_ON_ENABLE, 'A'),
                    (FeatureFlags::NO_UPGRADE, 'N'),
                ]
                .into_iter()
                .filter(|(flag, _)| feature.flags.contains(*flag))
                .map(|(_, letter)| letter)
                .collect();
                let support = match feature.support {
                    FeatureSupport::Refuses => "refuses",
                    FeatureSupport::Reads => "reads",
                    FeatureSupport::Writes => "writes",
                };
                format!(
                    "| `{}` | {letters} | {} | {support} |",
                    feature.guid,
                    feature.dependencies.join(", ")
                )
            })
            .collect();
        assert_eq!(rows, expected);
    }
}
