//! Conditions that prevent an import or that the user should know before it.
//!
//! Page `docs/format/import.md`, "Conditions".

use crate::import::assemble::Assembly;
use crate::import::health::{VdevAux, VdevState};
use millpond_ondisk::{Guid, Txg};

/// The features in a label's `features_for_read` that this software supports: those required to read the
/// pool's own objects.
pub const READ_FEATURES: [&str; 7] = [
    "com.delphix:hole_birth",
    "com.delphix:embedded_data",
    "com.delphix:device_removal",
    "org.openzfs:draid",
    "com.klarasystems:vdev_zaps_v2",
    "org.openzfs:raidz_expansion",
    "com.klarasystems:dynamic_gang_header",
];

/// A condition of an importable pool, as far as labels and uberblocks show it.
///
/// Conditions that only the pool's own objects show (features required for writing, log records) are
/// detected later.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImportCondition {
    /// The pool is neither exported nor destroyed, and another system (or one without a host id) used it
    /// last. Importing it needs force.
    HostidMismatch {
        /// The host id in the configuration, 0 if it has none.
        hostid: u64,
        /// The name of that system.
        hostname: Option<String>,
        /// Time of the last sync in seconds since 1970, if there is an uberblock.
        last_access_s: Option<u64>,
    },
    /// The pool has a version that this software does not support.
    VersionNewer {
        /// The version.
        version: u64,
    },
    /// The pool uses unsupported features that are required to read its own objects.
    UnsupportedReadFeatures {
        /// Their names.
        features: Vec<String>,
    },
    /// The pool has version 5000 but lacks the list of features required to read it.
    NoFeatureList,
    /// No device has a valid uberblock.
    NoUberblock,
    /// The configuration is malformed.
    CorruptConfig {
        /// The reason.
        error: crate::import::ConfigError,
    },
    /// No label describes this top-level vdev: it was removed, or its devices are missing.
    UnknownTop {
        /// Its index.
        id: usize,
    },
    /// A top-level log vdev is unusable.
    MissingLog {
        /// Its guid.
        guid: Guid,
    },
    /// A device is faulted, missing, mislabelled, offline, removed or degraded.
    Device {
        /// Its guid.
        guid: Guid,
        /// The path in the configuration.
        path: Option<String>,
        /// Its state.
        state: VdevState,
        /// The reason.
        aux: VdevAux,
        /// Whether redundancy covers the failure.
        is_covered: bool,
    },
    /// A device was absent when its siblings were last written.
    StaleDevice {
        /// Its guid.
        guid: Guid,
        /// The first txg that it may lack.
        since: Txg,
    },
    /// Several devices carry the label of this leaf; one was chosen.
    DuplicateDevice {
        /// Its guid.
        guid: Guid,
        /// If their contents differ, and nothing tells which one belongs to the pool: the paths of these devices. Such a pool
        /// is not opened for writing.
        rivals: Vec<String>,
    },
    /// Another program has a device open for writing, so its content may change during reading.
    DeviceInUse {
        /// Its guid.
        guid: Guid,
    },
    /// A known defect of the pool.
    Errata {
        /// Its number.
        number: u64,
    },
    /// The pool has a version older than feature flags.
    VersionOlder {
        /// The version.
        version: u64,
    },
}

impl ImportCondition {
    /// Whether the import fails regardless of its options.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::VersionNewer { .. }
            | Self::UnsupportedReadFeatures { .. }
            | Self::NoFeatureList
            | Self::NoUberblock
            | Self::CorruptConfig { .. } => true,
            Self::Device {
                state, is_covered, ..
            } => !state.is_usable() && !is_covered,
            _ => false,
        }
    }
}

/// Conditions of the devices, most severe first.
pub(crate) fn device_conditions(assembly: &Assembly) -> Vec<ImportCondition> {
    let is_covered = assembly.state().is_usable();
    let mut conditions: Vec<ImportCondition> = assembly
        .unusable_logs()
        .into_iter()
        .map(|guid| ImportCondition::MissingLog { guid })
        .collect();
    let mut devices = Vec::new();
    for leaf in &assembly.leaves {
        if let Some(node) = assembly.nodes.get(leaf.node)
            && node.state != VdevState::Healthy
        {
            devices.push(ImportCondition::Device {
                guid: leaf.guid,
                path: leaf.config_path.clone(),
                state: node.state,
                aux: node.aux,
                is_covered,
            });
        }
    }
    devices.sort_by_key(|condition| match condition {
        ImportCondition::Device { state, aux, .. } => severity(*state, *aux),
        _ => u8::MAX,
    });
    conditions.extend(devices);
    let stale = assembly.leaves.iter().filter_map(|leaf| {
        let (guid, since) = (leaf.guid, leaf.stale_since?);
        Some(ImportCondition::StaleDevice { guid, since })
    });
    conditions.extend(stale);
    conditions
}

/// The order in which device conditions are reported.
fn severity(state: VdevState, aux: VdevAux) -> u8 {
    match (state, aux) {
        (VdevState::Faulted, _) => 0,
        (VdevState::CannotOpen, VdevAux::OpenFailed) => 1,
        (VdevState::CannotOpen, _) => 2,
        (VdevState::Degraded, _) => 3,
        (VdevState::Offline, _) => 4,
        _ => 5,
    }
}
