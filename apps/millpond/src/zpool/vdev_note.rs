//! The notes that follow a vdev's counters.

use super::status::Args;
use crate::text::date;
use jiff::tz::TimeZone;
use millpond_control::{
    ActivityState, PoolInfo, ProgressState, ScanFunction, SpareUse, VdevActivity, VdevAux,
    VdevInfo, VdevState,
};

/// The notes of `zpool status`, each after two blanks.
pub fn live(vdev: &VdevInfo, pool: &PoolInfo, ask: &Args, zone: &TimeZone) -> String {
    let mut notes: Vec<String> = Vec::new();
    let is_leaf = vdev.children.is_empty() && vdev.kind.is_leaf();
    if vdev.is_absent
        && let Some(path) = &vdev.path
    {
        notes.push(format!("was {path}"));
    } else if let Some(text) = in_use(vdev).or_else(|| because(vdev)) {
        notes.push(text);
    } else if is_leaf
        && vdev.configured_ashift != 0
        && vdev.configured_ashift < vdev.physical_ashift
    {
        let size = |shift: u64| {
            1u64.checked_shl(u32::try_from(shift).unwrap_or(64))
                .unwrap_or(0)
        };
        notes.push(format!(
            "block size: {}B configured, {}B native",
            size(vdev.configured_ashift),
            size(vdev.physical_ashift)
        ));
    }
    if vdev.is_deleted {
        notes.push("its file was deleted".into());
    }
    if vdev.is_removing {
        notes.push("(removing)".into());
    } else if vdev.is_non_allocating {
        notes.push("(non-allocating)".into());
    }
    if vdev.missed_txgs > 0 && vdev.state == VdevState::Healthy {
        let s = if vdev.missed_txgs == 1 { "" } else { "s" };
        notes.push(format!(
            "misses {} txg{s}, not read there",
            vdev.missed_txgs
        ));
    }
    if is_leaf {
        notes.extend(scanning(vdev, pool));
        notes.extend(activity(
            &vdev.initialize,
            ask.has_initialize,
            false,
            INITIALIZE,
            zone,
        ));
        let is_unsupported = vdev.is_trim_unsupported;
        notes.extend(activity(
            &vdev.trim,
            ask.has_trim,
            is_unsupported,
            TRIM,
            zone,
        ));
    }
    notes.into_iter().map(|note| format!("  {note}")).collect()
}

/// The note of `zpool import`, without blanks, for a vdev with a problem.
pub fn import(vdev: &VdevInfo) -> Option<&'static str> {
    Some(match vdev.aux {
        VdevAux::None => return None,
        VdevAux::OpenFailed => "cannot open",
        VdevAux::BadGuidSum => "missing device",
        VdevAux::NoReplicas => "insufficient replicas",
        VdevAux::VersionNewer => "newer version",
        VdevAux::UnsupportedFeature => "unsupported feature(s)",
        VdevAux::ErrorsExceeded => "too many errors",
        VdevAux::Active => "currently in use",
        VdevAux::ChildrenOffline => "all children offline",
        VdevAux::BadLabel => "invalid label",
        VdevAux::Diverged => DIVERGED,
        _ => "corrupted data",
    })
}

/// The note for a device with changes that this pool does not contain.
const DIVERGED: &str = "has changes of its own, not in this pool";

fn in_use(vdev: &VdevInfo) -> Option<String> {
    match vdev.spare_use.as_ref()? {
        SpareUse::Available => None,
        SpareUse::InThisPool => Some("currently in use".into()),
        SpareUse::InOtherPool(Some(pool)) => Some(format!("in use by pool '{pool}'")),
        SpareUse::InOtherPool(None) => Some("currently in use".into()),
    }
}

fn because(vdev: &VdevInfo) -> Option<String> {
    let text = match vdev.aux {
        VdevAux::None => return None,
        VdevAux::OpenFailed => "cannot open",
        VdevAux::BadGuidSum => "missing device",
        VdevAux::NoReplicas => "insufficient replicas",
        VdevAux::VersionNewer => "newer version",
        VdevAux::UnsupportedFeature => "unsupported feature(s)",
        VdevAux::AshiftTooBig => "unsupported minimum blocksize",
        VdevAux::Active | VdevAux::Spared => "currently in use",
        VdevAux::ErrorsExceeded => {
            let errors = vdev
                .read_errors
                .max(vdev.write_errors)
                .max(vdev.checksum_errors);
            let is_slow = vdev.children.is_empty() && errors == 0 && vdev.slow_ios > 0;
            if is_slow {
                "too many slow I/Os"
            } else {
                "too many errors"
            }
        }
        VdevAux::IoFailure => "experienced I/O failures",
        VdevAux::BadLog => "bad intent log",
        VdevAux::External | VdevAux::ExternalPersistent => "external device fault",
        VdevAux::SplitPool => "split into new pool",
        VdevAux::ChildrenOffline => "all children offline",
        VdevAux::BadLabel => "invalid label",
        VdevAux::Diverged => DIVERGED,
        _ => "corrupted data",
    };
    Some(text.into())
}

fn scanning(vdev: &VdevInfo, pool: &PoolInfo) -> Option<String> {
    if vdev.is_resilver_deferred {
        return Some("(awaiting resilver)".into());
    }
    let scan = pool.scan.filter(|scan| scan.state == ProgressState::Active);
    if vdev.state == VdevState::Healthy
        && vdev.scan_processed_bytes > 0
        && let Some(scan) = scan
    {
        let is_resilver = scan.function == ScanFunction::Resilver;
        return Some(
            if is_resilver {
                "(resilvering)"
            } else {
                "(repairing)"
            }
            .into(),
        );
    }
    let is_rebuilding = pool
        .rebuilds
        .iter()
        .any(|r| r.state == ProgressState::Active);
    let is_written = vdev.state == VdevState::Healthy && vdev.rebuild_processed_bytes > 0;
    (is_rebuilding && is_written).then(|| "(resilvering)".into())
}

/// The texts for one kind of activity.
struct Words {
    running: &'static str,
    done: &'static str,
    never: &'static str,
}

const INITIALIZE: Words = Words {
    running: "initializing",
    done: "initialized",
    never: "uninitialized",
};
const TRIM: Words = Words {
    running: "trimming",
    done: "trimmed",
    never: "untrimmed",
};

fn activity(
    activity: &VdevActivity,
    is_wanted: bool,
    is_unsupported: bool,
    words: Words,
    zone: &TimeZone,
) -> Option<String> {
    if !is_wanted {
        let is_active = activity.state == ActivityState::Active;
        return is_active.then(|| format!("({})", words.running));
    }
    let verb = match activity.state {
        ActivityState::Active => "started at",
        ActivityState::Suspended => "suspended, started at",
        ActivityState::Complete => "completed at",
        ActivityState::None | ActivityState::Canceled => {
            return Some(if is_unsupported {
                "(trim unsupported)".into()
            } else {
                format!("({})", words.never)
            });
        }
    };
    let percent = activity.done_bytes as f64 * 100.0 / activity.total_bytes.max(1) as f64;
    Some(format!(
        "({:.0}% {}, {verb} {})",
        percent.floor().min(100.0),
        words.done,
        date::ctime(activity.action_time_s, zone)
    ))
}
