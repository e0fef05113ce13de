//! Selects the one condition of a pool to report: the first that applies, in a fixed order.

use super::health::{SuspendReason, VdevAux, VdevState};
use super::pool::{FeatureState, MultihostState, PoolInfo, RequestedFeatures};
use super::scan::{ProgressState, ScanFunction};
use super::vdev::{VdevInfo, VdevKind};
use millpond_ondisk::PoolVersion;

/// A condition of a pool to report. `Nr` means that redundancy does not cover it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[allow(missing_docs)] // the names describe the conditions
pub enum Condition {
    Resilvering,
    Rebuilding,
    RebuildScrub,
    HostidActive,
    HostidRequired,
    HostidMismatch,
    VersionNewer,
    UnsupportedFeatureRead,
    UnsupportedFeatureWrite,
    BadGuidSum,
    IoFailureMultihost,
    IoFailureContinue,
    IoFailureWait,
    BadLog,
    FaultedDeviceNr,
    MissingDeviceNr,
    CorruptLabelNr,
    CorruptPool,
    CorruptData,
    FaultedDevice,
    MissingDevice,
    CorruptLabel,
    FailingDevice,
    OutdatedDevice,
    OfflineDevice,
    RemovedDevice,
    DivergedDevice,
    DeletedImage,
    NonNativeAshift,
    Errata(u64),
    VersionOlder,
    CompatibilityError,
    FeaturesDisabled,
    IncompatibleFeature,
}

impl Condition {
    /// The last part of the message's identifier, `ZFS-8000-XX`, if it has one.
    pub fn id(self) -> Option<&'static str> {
        Some(match self {
            Condition::HostidActive | Condition::HostidRequired | Condition::HostidMismatch => "EY",
            Condition::VersionNewer => "A5",
            Condition::BadGuidSum => "6X",
            Condition::IoFailureMultihost => "MM",
            Condition::IoFailureContinue => "JQ",
            Condition::IoFailureWait => "HC",
            Condition::BadLog => "K4",
            Condition::MissingDeviceNr => "3C",
            Condition::CorruptLabelNr => "5E",
            Condition::CorruptPool => "72",
            Condition::CorruptData => "8A",
            Condition::MissingDevice => "2Q",
            Condition::CorruptLabel => "4J",
            Condition::FailingDevice => "9P",
            Condition::Errata(_) => "ER",
            _ => return None,
        })
    }

    /// Whether `zpool status -x` counts a pool with this condition as healthy.
    pub fn is_healthy_for_summary(self) -> bool {
        matches!(
            self,
            Condition::VersionOlder
                | Condition::FeaturesDisabled
                | Condition::CompatibilityError
                | Condition::IncompatibleFeature
        )
    }
}

/// The purpose for which the condition is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The status of an open pool.
    Status {
        /// Do not report sectors larger than the pool's (`ZPOOL_STATUS_NON_NATIVE_ASHIFT_IGNORE`).
        ignore_ashift: bool,
    },
    /// The status of an importable pool. Error counts are not meaningful yet.
    Import {
        /// As in `Status`.
        ignore_ashift: bool,
    },
}

/// The condition to report, if any.
pub fn condition(pool: &PoolInfo, purpose: Purpose) -> Option<Condition> {
    let is_import = matches!(purpose, Purpose::Import { .. });
    scanning(pool)
        .or_else(|| foreign_or_unreadable(pool))
        .or_else(|| suspended_or_broken(pool))
        .or_else(|| (!is_import && pool.error_count > 0).then_some(Condition::CorruptData))
        .or_else(|| replicated_devices(pool, is_import))
        .or_else(|| sectors(pool, purpose))
        .or_else(|| pool.errata.filter(|n| *n > 0).map(Condition::Errata))
        .or_else(|| versions(pool, is_import))
}

fn scanning(pool: &PoolInfo) -> Option<Condition> {
    if let Some(scan) = &pool.scan
        && scan.function == ScanFunction::Resilver
        && scan.state == ProgressState::Active
    {
        return Some(Condition::Resilvering);
    }
    if pool
        .rebuilds
        .iter()
        .any(|r| r.state == ProgressState::Active)
    {
        return Some(Condition::Rebuilding);
    }
    let scrub_end_s = pool
        .scan
        .filter(|s| s.function == ScanFunction::Scrub && s.state == ProgressState::Finished)
        .map_or(0, |s| s.end_s);
    let is_scrubbed = |end_s: u64| end_s <= scrub_end_s;
    pool.rebuilds
        .iter()
        .any(|r| r.state == ProgressState::Finished && !is_scrubbed(r.end_s))
        .then_some(Condition::RebuildScrub)
}

fn foreign_or_unreadable(pool: &PoolInfo) -> Option<Condition> {
    let root = &pool.root;
    let is_unopened = root.state == VdevState::CannotOpen;
    if is_unopened && root.aux == VdevAux::Active {
        return Some(match pool.multihost {
            Some(MultihostState::Active) => Condition::HostidActive,
            Some(MultihostState::NoHostid) => Condition::HostidRequired,
            _ => Condition::HostidMismatch,
        });
    }
    if pool.config_hostid != 0 && pool.config_hostid != pool.system_hostid && pool.is_state_active {
        return Some(Condition::HostidMismatch);
    }
    if !is_unopened {
        return None;
    }
    match root.aux {
        VdevAux::VersionNewer => Some(Condition::VersionNewer),
        VdevAux::UnsupportedFeature => {
            let mut active = pool.unsupported.iter().filter(|f| f.is_active);
            Some(if active.all(|f| f.is_needed_for_write_only) {
                Condition::UnsupportedFeatureWrite
            } else {
                Condition::UnsupportedFeatureRead
            })
        }
        VdevAux::BadGuidSum => Some(Condition::BadGuidSum),
        _ => None,
    }
}

fn suspended_or_broken(pool: &PoolInfo) -> Option<Condition> {
    match pool.suspended {
        Some(SuspendReason::Multihost) => return Some(Condition::IoFailureMultihost),
        Some(SuspendReason::IoContinue) => return Some(Condition::IoFailureContinue),
        Some(SuspendReason::IoWait) => return Some(Condition::IoFailureWait),
        None => {}
    }
    if pool.root.state != VdevState::CannotOpen {
        return None;
    }
    if pool.root.aux == VdevAux::BadLog {
        return Some(Condition::BadLog);
    }
    if any_leaf(pool, is_faulted) {
        return Some(Condition::FaultedDeviceNr);
    }
    if any_leaf(pool, is_missing) {
        return Some(Condition::MissingDeviceNr);
    }
    if any_leaf(pool, is_mislabelled) {
        return Some(Condition::CorruptLabelNr);
    }
    (pool.root.aux == VdevAux::CorruptData).then_some(Condition::CorruptPool)
}

fn replicated_devices(pool: &PoolInfo, is_import: bool) -> Option<Condition> {
    let tests: [(LeafTest, Condition); 9] = [
        (|v| v.is_deleted, Condition::DeletedImage),
        (is_faulted, Condition::FaultedDevice),
        (is_missing, Condition::MissingDevice),
        (|v| v.aux == VdevAux::Diverged, Condition::DivergedDevice),
        (is_mislabelled, Condition::CorruptLabel),
        (is_failing, Condition::FailingDevice),
        (is_outdated, Condition::OutdatedDevice),
        (|v| v.state == VdevState::Offline, Condition::OfflineDevice),
        (|v| v.state == VdevState::Removed, Condition::RemovedDevice),
    ];
    tests
        .into_iter()
        .filter(|(_, c)| !(is_import && *c == Condition::FailingDevice))
        .find(|(test, _)| any_leaf(pool, *test))
        .map(|(_, condition)| condition)
}

fn sectors(pool: &PoolInfo, purpose: Purpose) -> Option<Condition> {
    let (Purpose::Status { ignore_ashift } | Purpose::Import { ignore_ashift }) = purpose;
    let is_coarse =
        |v: &VdevInfo| v.configured_ashift != 0 && v.configured_ashift < v.physical_ashift;
    (!ignore_ashift && any_leaf(pool, is_coarse)).then_some(Condition::NonNativeAshift)
}

fn versions(pool: &PoolInfo, is_import: bool) -> Option<Condition> {
    if !PoolVersion(pool.version).has_features() {
        let is_wanted = pool.requested == RequestedFeatures::Legacy;
        return (!is_wanted).then_some(Condition::VersionOlder);
    }
    let is_requested = |name: &str| match &pool.requested {
        RequestedFeatures::All => true,
        RequestedFeatures::Listed(names) => names.iter().any(|n| n == name),
        // Before the import the files do not count, as with OpenZFS.
        RequestedFeatures::Unreadable => is_import,
        RequestedFeatures::Legacy => false,
    };
    if pool.requested == RequestedFeatures::Unreadable && !is_import {
        return Some(Condition::CompatibilityError);
    }
    pool.features.iter().find_map(|feature| {
        match (
            is_requested(&feature.name),
            feature.state != FeatureState::Disabled,
        ) {
            // Do not report a feature that `zpool upgrade` would not enable.
            (true, false) if !feature.is_left_alone => Some(Condition::FeaturesDisabled),
            (false, true) => Some(Condition::IncompatibleFeature),
            _ => None,
        }
    })
}

/// Whether any leaf passes `test`. Cache devices are included; spares and the children of replacing vdevs are
/// not.
fn any_leaf(pool: &PoolInfo, test: impl Fn(&VdevInfo) -> bool) -> bool {
    let mut stack: Vec<&VdevInfo> = pool.caches.iter().chain([&pool.root]).collect();
    while let Some(vdev) = stack.pop() {
        match vdev.kind {
            VdevKind::Replacing => {}
            // If the tree could not be read, the root has no children. It is not a leaf.
            VdevKind::Root => stack.extend(&vdev.children),
            _ if !vdev.children.is_empty() => stack.extend(&vdev.children),
            VdevKind::Hole | VdevKind::Indirect => {}
            _ if test(vdev) => return true,
            _ => {}
        }
    }
    false
}

type LeafTest = fn(&VdevInfo) -> bool;

fn is_faulted(vdev: &VdevInfo) -> bool {
    vdev.state == VdevState::Faulted
}

fn is_missing(vdev: &VdevInfo) -> bool {
    vdev.state == VdevState::CannotOpen && vdev.aux == VdevAux::OpenFailed
}

fn is_mislabelled(vdev: &VdevInfo) -> bool {
    vdev.state == VdevState::CannotOpen && vdev.aux != VdevAux::OpenFailed
}

/// A leaf that is in use, but missed txgs.
fn is_outdated(vdev: &VdevInfo) -> bool {
    vdev.state == VdevState::Healthy && vdev.aux == VdevAux::None && vdev.missed_txgs > 0
}

fn is_failing(vdev: &VdevInfo) -> bool {
    vdev.state == VdevState::Degraded
        || vdev
            .read_errors
            .max(vdev.write_errors)
            .max(vdev.checksum_errors)
            > 0
}
