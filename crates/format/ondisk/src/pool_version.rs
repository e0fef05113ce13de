//! The versions of a pool, and what each of them brings.

/// A pool's version: 1 to 28, or 5000 for a pool with feature flags.
///
/// Page `docs/format/pool-versions.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolVersion(pub u64);

impl PoolVersion {
    /// The version of pools with feature flags.
    pub const FEATURES: Self = Self(5000);
    /// The last version before feature flags.
    pub const LAST_NUMBERED: Self = Self(28);

    /// Whether pools of this version exist.
    #[must_use]
    pub fn is_known(self) -> bool {
        (1..=Self::LAST_NUMBERED.0).contains(&self.0) || self == Self::FEATURES
    }
    /// Metadata has several copies.
    #[must_use]
    pub fn has_copies(self) -> bool {
        self.0 >= 2
    }
    /// Hot spares.
    #[must_use]
    pub fn has_spares(self) -> bool {
        self.0 >= 3
    }
    /// RAID-Z with two parities.
    #[must_use]
    pub fn has_raidz2(self) -> bool {
        self.0 >= 3
    }
    /// Lists of block pointers keep their physical and logical sums, and dnodes count bytes.
    #[must_use]
    pub fn has_sizes_in_lists(self) -> bool {
        self.0 >= 3
    }
    /// Space of RAID-Z vdevs is accounted for without its parity.
    #[must_use]
    pub fn has_deflation(self) -> bool {
        self.0 >= 3
    }
    /// Compression gzip.
    #[must_use]
    pub fn has_gzip(self) -> bool {
        self.0 >= 5
    }
    /// The pool property `bootfs`.
    #[must_use]
    pub fn has_boot_dataset(self) -> bool {
        self.0 >= 6
    }
    /// Log devices.
    #[must_use]
    pub fn has_log_devices(self) -> bool {
        self.0 >= 7
    }
    /// Delegated permissions.
    #[must_use]
    pub fn has_delegation(self) -> bool {
        self.0 >= 8
    }
    /// `refquota` and `refreservation`, and heads whose unique bytes are exact.
    #[must_use]
    pub fn has_exact_unique_bytes(self) -> bool {
        self.0 >= 9
    }
    /// Cache devices.
    #[must_use]
    pub fn has_cache_devices(self) -> bool {
        self.0 >= 10
    }
    /// `$ORIGIN`, from which all datasets descend, and the tables of clones of snapshots.
    #[must_use]
    pub fn has_origin(self) -> bool {
        self.0 >= 11
    }
    /// Properties of snapshots.
    #[must_use]
    pub fn has_snapshot_properties(self) -> bool {
        self.0 >= 12
    }
    /// Directories keep what their space is used for.
    #[must_use]
    pub fn has_used_breakdown(self) -> bool {
        self.0 >= 13
    }
    /// The value `passthrough-x` of the property `aclinherit`.
    #[must_use]
    pub fn has_passthrough_x(self) -> bool {
        self.0 >= 14
    }
    /// Space is accounted for by user and group.
    #[must_use]
    pub fn has_user_accounting(self) -> bool {
        self.0 >= 15
    }
    /// RAID-Z with three parities.
    #[must_use]
    pub fn has_raidz3(self) -> bool {
        self.0 >= 17
    }
    /// Holds on snapshots, and snapshots destroyed later.
    #[must_use]
    pub fn has_holds(self) -> bool {
        self.0 >= 18
    }
    /// Log devices can be removed, which leaves holes.
    #[must_use]
    pub fn has_holes(self) -> bool {
        self.0 >= 19
    }
    /// Compression zle.
    #[must_use]
    pub fn has_zle(self) -> bool {
        self.0 >= 20
    }
    /// Deduplication.
    #[must_use]
    pub fn has_dedup(self) -> bool {
        self.0 >= 21
    }
    /// Received properties are kept beside local ones.
    #[must_use]
    pub fn has_received_properties(self) -> bool {
        self.0 >= 22
    }
    /// System attributes: file systems of version 5.
    #[must_use]
    pub fn has_system_attributes(self) -> bool {
        self.0 >= 24
    }
    /// `$FREE`, deadlists split by txg, lists below lists, and the tables of clones of directories.
    #[must_use]
    pub fn has_split_deadlists(self) -> bool {
        self.0 >= 26
    }
    /// A snapshot may contain the header of an intent log in use.
    #[must_use]
    pub fn has_logs_in_snapshots(self) -> bool {
        self.0 >= 27
    }
    /// Several disks of a vdev can be replaced at the same time.
    #[must_use]
    pub fn has_nested_replacing(self) -> bool {
        self.0 >= 28
    }
    /// Feature flags.
    #[must_use]
    pub fn has_features(self) -> bool {
        self >= Self::FEATURES
    }

    /// The newest version of file systems in such a pool.
    #[must_use]
    pub fn file_system_version_max(self) -> u64 {
        match self.0 {
            ..9 => 2,
            9..15 => 3,
            15..24 => 4,
            _ => 5,
        }
    }

    /// The oldest pool that can have file systems of a version.
    #[must_use]
    pub fn for_file_systems(version: u64) -> Self {
        Self(match version {
            ..3 => 1,
            3 => 9,
            4 => 15,
            _ => 24,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbered_versions_and_5000_exist() {
        let known = (0..6000).filter(|version| PoolVersion(*version).is_known());
        assert_eq!(
            known.collect::<Vec<_>>(),
            (1..=28).chain([5000]).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_pool_has_the_file_systems_that_need_it() {
        for version in 1..=5 {
            let least = PoolVersion::for_file_systems(version);
            assert!(least.file_system_version_max() >= version);
            let before = PoolVersion(least.0 - 1);
            assert!(before.0 == 0 || before.file_system_version_max() < version);
        }
    }
}
