//! Tunables: settings of the process that OpenZFS has as module parameters, under the same names.
//!
//! They are read when they take effect, so a change takes effect at once. They are not stored.

use crate::sync::atomic::{AtomicU64, Ordering};

/// A setting of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Tunable {
    /// Whether scrubs, resilvers and error scrubs make no progress.
    ScanSuspendProgress,
    /// A resilver that has examined less of the pool, in percent, starts again for another leaf, which else is deferred.
    ResilverDeferPercent,
    /// What `zpool initialize` fills free space with: a 64-bit number, little-endian.
    InitializeValue,
    /// The smallest range that is trimmed, in bytes.
    TrimBytesMin,
    /// Whether a scrub starts when a sequential resilver is complete.
    RebuildScrubEnabled,
    /// How many txgs collect frees before `autotrim` discards them.
    TrimTxgBatch,
    /// Milliseconds between the heartbeats of each leaf of a pool with multihost on; at least 100.
    MultihostInterval,
    /// How many intervals an import watches a pool whose heartbeats do not say how long.
    MultihostImportIntervals,
    /// After how many intervals without a heartbeat a pool is suspended; 0 for never, 1 counts as 2.
    MultihostFailIntervals,
    /// The most entries of the newest list of a clone's livelist; then a new one is started.
    LivelistMaxEntries,
    /// A clone that shares no more than this percentage of its bytes with its origin has no livelist any more.
    LivelistMinPercentShared,
    /// Whether making, renaming and removing directories in `.zfs/snapshot` does so with snapshots.
    AdminSnapshot,
    /// Whether the removal of data vdevs makes no progress.
    RemovalSuspendProgress,
    /// How many txgs a dedup log collects entries before it is written to the table.
    DedupLogTxgMax,
    /// The most components of the names of new and renamed datasets.
    MaxDatasetNesting,
    /// Whether changes of encrypted datasets are received raw without comparing the guids of their sets of initialization vectors.
    DisableIvSetGuidCheck,
    /// The fewest metaslabs that a new vdev is divided into, if it is large enough.
    VdevMinMetaslabs,
    /// log2 of the sectors that new files of vdevs seem to have.
    FilePhysicalAshift,
    /// The largest ashift that a new vdev gets because of what its devices prefer.
    VdevMaxAutoAshift,
    /// Whether redacted volumes have devices.
    AllowRedactedDatasetMount,
    /// Whether volumes get no devices.
    VolumeInhibitDevices,
    /// What `volmode=default` means: 1 `full`, 2 `dev`, 3 `none`.
    VolumeMode,
    /// The most bytes that one round copies to cache devices.
    L2ArcWriteMax,
    /// As many more bytes until something was evicted from the cache.
    L2ArcWriteBoost,
    /// Which blocks that were used only once are not copied to cache devices: 0 none, 1 all, 2 those of data.
    L2ArcMfuOnly,
    /// Whether files without a name stay in the unlinked set instead of being freed.
    UnlinkSuspendProgress,
    /// The most instructions that a channel program can ask for.
    ProgramInstructionsMax,
    /// The most memory that a channel program can ask for, in bytes.
    ProgramMemoryMax,
    /// Whether freeing a destroyed dataset leaks what lies below metadata that cannot be read, instead of stopping there.
    FreeLeakOnEio,
    /// Whether mappings of removed vdevs are condensed.
    CondenseEnable,
    /// A mapping is condensed when so much of it, in percent, became obsolete since the last time.
    CondenseObsoletePercent,
    /// Smaller mappings are not condensed because of that, in bytes.
    CondenseMinMappingBytes,
    /// A mapping is condensed when the map of what is obsolete is longer than this, in bytes.
    CondenseMaxObsoleteBytes,
    /// Milliseconds between two entries of a new mapping.
    CondenseDelayMs,
    /// How many bytes each byte of a transaction counts as until it is written. A receive may exceed a refquota by as much.
    AsizeInflation,
    /// Whether pools may be frozen. OpenZFS allows it always.
    AllowFreeze,
}

struct Row {
    name: &'static str,
    default: u64,
    max: u64,
    help: &'static str,
}

const ROWS: [Row; Tunable::ALL.len()] = [
    Row {
        name: "zfs_scan_suspend_progress",
        default: 0,
        max: 1,
        help: "1: scrubs and resilvers, sequential ones too, make no progress",
    },
    Row {
        name: "zfs_resilver_defer_percent",
        default: 10,
        max: 100,
        help: "a resilver that has examined less, in percent, starts again when another device needs one",
    },
    Row {
        name: "zfs_initialize_value",
        default: 0xdead_beef_dead_beee,
        max: u64::MAX,
        help: "what 'zpool initialize' fills free space with",
    },
    Row {
        name: "zfs_trim_extent_bytes_min",
        default: 32 << 10,
        max: 1 << 40,
        help: "smaller free ranges are not trimmed",
    },
    Row {
        name: "zfs_rebuild_scrub_enabled",
        default: 1,
        max: 1,
        help: "1: a scrub starts when a sequential resilver is complete",
    },
    Row {
        name: "zfs_trim_txg_batch",
        default: 32,
        max: 1 << 20,
        help: "how many transaction groups collect frees for autotrim",
    },
    Row {
        name: "zfs_multihost_interval",
        default: 1000,
        max: 0xff_ffff,
        help: "milliseconds between the heartbeats of each device of a pool with multihost on; at least 100",
    },
    Row {
        name: "zfs_multihost_import_intervals",
        default: 20,
        max: 0xffff,
        help: "how many intervals an import watches a pool that may be in use elsewhere",
    },
    Row {
        name: "zfs_multihost_fail_intervals",
        default: 10,
        max: 0xffff,
        help: "a pool with multihost on is suspended after so many intervals without a heartbeat; 0: never",
    },
    Row {
        name: "zfs_livelist_max_entries",
        default: 500_000,
        max: 500_000,
        help: "block pointers in one part of a clone's livelist",
    },
    Row {
        name: "zfs_livelist_min_percent_shared",
        default: 75,
        max: 100,
        help: "a clone that shares no more, in percent, with its origin loses its livelist",
    },
    Row {
        name: "zfs_admin_snapshot",
        default: 0,
        max: 1,
        help: "1: mkdir, mv and rmdir in .zfs/snapshot create, rename and destroy snapshots",
    },
    Row {
        name: "zfs_removal_suspend_progress",
        default: 0,
        max: 1,
        help: "1: removals of data devices make no progress",
    },
    Row {
        name: "zfs_dedup_log_txg_max",
        default: 8,
        max: 1 << 20,
        help: "how many transaction groups a dedup log collects entries before they go to the table",
    },
    Row {
        name: "zfs_max_dataset_nesting",
        default: 50,
        max: 127,
        help: "the most components of the name of a new or renamed dataset",
    },
    Row {
        name: "zfs_disable_ivset_guid_check",
        default: 0,
        max: 1,
        help: "1: raw changes of encrypted datasets are received although IV set guids are missing or differ (errata 4)",
    },
    Row {
        name: "zfs_vdev_min_ms_count",
        default: 16,
        max: 1 << 17,
        help: "the fewest metaslabs of a new device that is large enough",
    },
    Row {
        name: "vdev_file_physical_ashift",
        default: 9,
        max: 16,
        help: "log2 of the sectors that files seem to have when they become devices",
    },
    Row {
        name: "zfs_vdev_max_auto_ashift",
        default: 14,
        max: 16,
        help: "the largest ashift that a device gets because it prefers that",
    },
    Row {
        name: "zfs_allow_redacted_dataset_mount",
        default: 0,
        max: 1,
        help: "1: redacted volumes have devices; what was left out of them reads as zeros",
    },
    Row {
        name: "zvol_inhibit_dev",
        default: 0,
        max: 1,
        help: "1: volumes get no devices any more",
    },
    Row {
        name: "zvol_volmode",
        default: 1,
        max: 3,
        help: "what volmode=default means: 1 full, 2 dev, 3 none",
    },
    Row {
        name: "l2arc_write_max",
        default: 32 << 20,
        max: 1 << 40,
        help: "the most bytes that are copied to cache devices at once",
    },
    Row {
        name: "l2arc_write_boost",
        default: 32 << 20,
        max: 1 << 40,
        help: "as many more until something was evicted from the cache",
    },
    Row {
        name: "l2arc_mfuonly",
        default: 0,
        max: 2,
        help: "blocks that were used once are not copied to cache devices: 1 all, 2 those of data",
    },
    Row {
        name: "zfs_unlink_suspend_progress",
        default: 0,
        max: 1,
        help: "1: the space of deleted files is not freed until the tunable is 0 again and the file system is mounted anew",
    },
    Row {
        name: "zfs_lua_max_instrlimit",
        default: 100_000_000,
        max: 100_000_000_000,
        help: "the most instructions that a channel program can ask for",
    },
    Row {
        name: "zfs_lua_max_memlimit",
        default: 100 << 20,
        max: 1 << 30,
        help: "the most bytes of memory that a channel program can ask for",
    },
    Row {
        name: "zfs_free_leak_on_eio",
        default: 0,
        max: 1,
        help: "1: freeing a destroyed dataset gives up the space below metadata that cannot be read, and frees the rest",
    },
    Row {
        name: "zfs_condense_indirect_vdevs_enable",
        default: 1,
        max: 1,
        help: "0: the mappings of removed devices keep what nothing refers to any more",
    },
    Row {
        name: "zfs_condense_indirect_obsolete_pct",
        default: 25,
        max: 100,
        help: "a mapping of a removed device is condensed when so much of it, in percent, became obsolete",
    },
    Row {
        name: "zfs_condense_min_mapping_bytes",
        default: 128 << 10,
        max: 1 << 40,
        help: "smaller mappings of removed devices are not condensed because of the percentage",
    },
    Row {
        name: "zfs_condense_max_obsolete_bytes",
        default: 1 << 30,
        max: 1 << 40,
        help: "a mapping of a removed device is condensed when the map of what is obsolete is longer",
    },
    Row {
        name: "zfs_condense_indirect_commit_entry_delay_ms",
        default: 0,
        max: 3_600_000,
        help: "milliseconds between two entries when a mapping is condensed; for tests",
    },
    Row {
        name: "spa_asize_inflation",
        default: 24,
        max: 1 << 20,
        help: "the multiple of 64 MiB by which a receive may exceed a refquota",
    },
    Row {
        name: "millpond_allow_freeze",
        default: 0,
        max: 1,
        help: "1: 'zpool freeze' may stop a pool from being written, which loses changes; for tests",
    },
];

impl Tunable {
    /// All of them.
    pub const ALL: [Self; 36] = [
        Self::ScanSuspendProgress,
        Self::ResilverDeferPercent,
        Self::InitializeValue,
        Self::TrimBytesMin,
        Self::RebuildScrubEnabled,
        Self::TrimTxgBatch,
        Self::MultihostInterval,
        Self::MultihostImportIntervals,
        Self::MultihostFailIntervals,
        Self::LivelistMaxEntries,
        Self::LivelistMinPercentShared,
        Self::AdminSnapshot,
        Self::RemovalSuspendProgress,
        Self::DedupLogTxgMax,
        Self::MaxDatasetNesting,
        Self::DisableIvSetGuidCheck,
        Self::VdevMinMetaslabs,
        Self::FilePhysicalAshift,
        Self::VdevMaxAutoAshift,
        Self::AllowRedactedDatasetMount,
        Self::VolumeInhibitDevices,
        Self::VolumeMode,
        Self::L2ArcWriteMax,
        Self::L2ArcWriteBoost,
        Self::L2ArcMfuOnly,
        Self::UnlinkSuspendProgress,
        Self::ProgramInstructionsMax,
        Self::ProgramMemoryMax,
        Self::FreeLeakOnEio,
        Self::CondenseEnable,
        Self::CondenseObsoletePercent,
        Self::CondenseMinMappingBytes,
        Self::CondenseMaxObsoleteBytes,
        Self::CondenseDelayMs,
        Self::AsizeInflation,
        Self::AllowFreeze,
    ];

    /// The one with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|tunable| tunable.name() == name)
    }

    fn row(self) -> &'static Row {
        // There is a row for each.
        ROWS.get(self as usize).unwrap_or(&ROWS[0])
    }

    /// The name of the module parameter.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The value at the start.
    #[must_use]
    pub fn default_value(self) -> u64 {
        self.row().default
    }

    /// The largest value.
    #[must_use]
    pub fn max(self) -> u64 {
        self.row().max
    }

    /// What it does, in one line.
    #[must_use]
    pub fn help(self) -> &'static str {
        self.row().help
    }
}

/// The values of all tunables of a process, or of a simulated world.
#[derive(Debug)]
pub struct Tunables {
    values: [AtomicU64; Tunable::ALL.len()],
}

impl Default for Tunables {
    fn default() -> Self {
        Self {
            values: Tunable::ALL.map(|tunable| AtomicU64::new(tunable.default_value())),
        }
    }
}

impl Tunables {
    /// The value now.
    #[must_use]
    pub fn get(&self, tunable: Tunable) -> u64 {
        let value = self.values.get(tunable as usize);
        value.map_or(0, |value| value.load(Ordering::Relaxed))
    }

    /// Whether a tunable that is 0 or 1 is 1.
    #[must_use]
    pub fn is_on(&self, tunable: Tunable) -> bool {
        self.get(tunable) != 0
    }

    /// Changes a value. Returns false, and changes nothing, if it is too large.
    pub fn set(&self, tunable: Tunable, value: u64) -> bool {
        let is_valid = value <= tunable.max();
        if let Some(place) = self.values.get(tunable as usize).filter(|_| is_valid) {
            place.store(value, Ordering::Relaxed);
        }
        is_valid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tunable_is_found_by_its_name_and_keeps_to_its_limit() {
        let tunables = Tunables::default();
        for (index, tunable) in Tunable::ALL.into_iter().enumerate() {
            assert_eq!(tunable as usize, index);
            assert_eq!(Tunable::named(tunable.name()), Some(tunable));
            assert_eq!(tunables.get(tunable), tunable.default_value());
            assert!(tunables.set(tunable, tunable.max()));
            if let Some(more) = tunable.max().checked_add(1) {
                assert!(!tunables.set(tunable, more));
            }
            assert_eq!(tunables.get(tunable), tunable.max());
        }
        assert_eq!(Tunable::named("zfs_no_such_thing"), None);
    }
}
