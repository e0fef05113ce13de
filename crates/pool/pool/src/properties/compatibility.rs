//! The feature sets that the property `compatibility` can name.
//!
//! Systems with OpenZFS keep these sets as files. This module provides the same sets where the files are
//! absent.

use super::set::{PoolSetting, SettingError};

/// A feature set: the base set it extends and the features it adds.
struct Set {
    name: &'static str,
    base: Option<&'static str>,
    added: &'static [&'static str],
}

const fn set(
    name: &'static str,
    base: Option<&'static str>,
    added: &'static [&'static str],
) -> Set {
    Set { name, base, added }
}

#[rustfmt::skip]
const SETS: [Set; 20] = [
    set("zol-0.6.1", None, &["async_destroy", "empty_bpobj", "lz4_compress"]),
    set("zol-0.6.4", Some("zol-0.6.1"), &["bookmarks", "embedded_data", "enabled_txg", "extensible_dataset", "hole_birth", "spacemap_histogram"]),
    set("compat-2018", Some("zol-0.6.4"), &["filesystem_limits", "large_blocks"]),
    set("freenas-9.10.2", Some("compat-2018"), &["multi_vdev_crash_dump"]),
    set("compat-2019", Some("freenas-9.10.2"), &["sha512", "skein"]),
    set("openzfsonosx-1.7.0", Some("compat-2019"), &["edonr"]),
    set("freebsd-11.2", Some("compat-2019"), &["device_removal", "obsolete_counts", "zpool_checkpoint"]),
    set("zol-0.7", Some("openzfsonosx-1.7.0"), &["large_dnode", "userobj_accounting"]),
    set("compat-2021", Some("freebsd-11.2"), &["spacemap_v2"]),
    set("openzfsonosx-1.8.1", Some("compat-2021"), &["edonr"]),
    set("zol-0.8", Some("openzfsonosx-1.8.1"), &["allocation_classes", "bookmark_v2", "encryption", "large_dnode", "project_quota", "resilver_defer", "userobj_accounting"]),
    set("openzfs-2.0-freebsd", Some("compat-2021"), &["allocation_classes", "bookmark_v2", "bookmark_written", "device_rebuild", "encryption", "large_dnode", "livelist", "log_spacemap", "project_quota", "redacted_datasets", "redaction_bookmarks", "resilver_defer", "userobj_accounting", "zstd_compress"]),
    set("openzfs-2.0-linux", Some("openzfs-2.0-freebsd"), &["edonr"]),
    set("openzfs-2.1-freebsd", Some("openzfs-2.0-freebsd"), &["draid"]),
    set("openzfs-2.1-linux", Some("openzfs-2.0-linux"), &["draid"]),
    set("openzfs-2.2", Some("openzfs-2.1-linux"), &["blake3", "block_cloning", "head_errlog", "vdev_zaps_v2", "zilsaxattr"]),
    set("openzfs-2.3", Some("openzfs-2.2"), &["fast_dedup", "large_microzap", "longname", "raidz_expansion", "redaction_list_spill"]),
    set("openzfs-2.4", Some("openzfs-2.3"), &["block_cloning_endian", "dynamic_gang_header", "physical_rewrite"]),
    set("grub2-2.06", Some("zol-0.6.1"), &["allocation_classes", "block_cloning", "device_rebuild", "embedded_data", "enabled_txg", "hole_birth", "log_spacemap", "resilver_defer", "spacemap_histogram", "spacemap_v2", "zpool_checkpoint"]),
    set("grub2-2.12", Some("grub2-2.06"), &["bookmarks", "extensible_dataset", "filesystem_limits", "large_blocks", "livelist", "project_quota", "userobj_accounting", "zilsaxattr"]),
];

#[rustfmt::skip]
const OTHER_NAMES: [(&str, &[&str]); 13] = [
    ("compat-2018", &["2018", "zol-0.6.5"]),
    ("compat-2019", &["2019", "compat-2020", "2020", "freebsd-11.0", "freebsd-11.1", "freenas-11.0", "freenas-11.1"]),
    ("freebsd-11.2", &["freenas-11.2"]),
    ("zol-0.7", &["ubuntu-18.04"]),
    ("compat-2021", &["2021", "freebsd-11.3", "freebsd-11.4", "freebsd-12.0", "freebsd-12.1", "freebsd-12.2", "freebsd-12.3", "freebsd-12.4", "freenas-11.3"]),
    ("zol-0.8", &["ubuntu-20.04", "openzfsonosx-1.9.3", "openzfsonosx-1.9.4"]),
    ("openzfs-2.0-freebsd", &["truenas-12.0"]),
    ("openzfs-2.1-freebsd", &["freebsd-13.0", "freebsd-13.1", "freebsd-13.2"]),
    ("openzfs-2.1-linux", &["ubuntu-22.04"]),
    ("openzfs-2.2", &["openzfs-2.2-linux", "openzfs-2.2-freebsd"]),
    ("openzfs-2.3", &["openzfs-2.3-linux", "openzfs-2.3-freebsd"]),
    ("openzfs-2.4", &["openzfs-2.4-linux", "openzfs-2.4-freebsd"]),
    ("grub2-2.12", &["grub2"]),
];

/// The short names of the features in a set; `None` for an unknown set.
#[must_use]
pub fn known_set(name: &str) -> Option<Vec<&'static str>> {
    let alias = OTHER_NAMES
        .iter()
        .find(|(_, others)| others.contains(&name));
    let mut at = Some(alias.map_or(name, |(name, _)| name));
    let mut features = vec![];
    while let Some(name) = at {
        let set = SETS.iter().find(|set| set.name == name)?;
        features.extend_from_slice(set.added);
        at = set.base;
    }
    features.sort_unstable();
    Some(features)
}

/// The most bytes of the names together: they stand in the labels.
pub const NAMES_BYTES_MAX: usize = 4095;

/// Checks a value of the property.
pub(super) fn parse(value: &str) -> Result<PoolSetting, SettingError> {
    if value.len() > NAMES_BYTES_MAX {
        return Err(SettingError::TooLong("compatibility".to_owned()));
    }
    if value.contains('\0') {
        return Err(SettingError::HasNul("compatibility"));
    }
    Ok(PoolSetting::Compatibility(value.to_owned()))
}

/// The features listed in the text of a compatibility file.
///
/// Blanks and commas separate the names; `#` starts a comment.
#[must_use]
pub fn listed(text: &str) -> Vec<String> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    let words = lines.flat_map(|line| line.split([' ', '\t', ',']));
    let mut features: Vec<String> = words
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect();
    features.sort_unstable();
    features.dedup();
    features
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_ondisk::Feature;

    #[test]
    fn every_set_names_features_that_exist_each_once() {
        for set in &SETS {
            let features = known_set(set.name).unwrap();
            let mut once = features.clone();
            once.dedup();
            assert_eq!(once, features, "{}", set.name);
            for feature in features {
                assert!(Feature::by_name(feature).is_some(), "{feature}");
            }
        }
        assert_eq!(known_set("openzfs-2.3").unwrap().len(), 44);
        assert_eq!(known_set("grub2"), known_set("grub2-2.12"));
        assert_eq!(known_set("no-such-set"), None);
    }

    #[test]
    fn the_names_are_limited_and_have_no_nul() {
        let most = "x".repeat(NAMES_BYTES_MAX);
        assert_eq!(parse(&most), Ok(PoolSetting::Compatibility(most.clone())));
        let long = SettingError::TooLong("compatibility".into());
        assert_eq!(parse(&format!("{most}x")), Err(long));
        let nul = SettingError::HasNul("compatibility");
        assert_eq!(parse("openzfs-2.3\0"), Err(nul));
    }

    #[test]
    fn a_file_may_have_comments_blanks_and_commas() {
        let text = "# sets\nlz4_compress, embedded_data\n\thole_birth # last\n";
        assert_eq!(
            listed(text),
            ["embedded_data", "hole_birth", "lz4_compress"]
        );
    }
}
