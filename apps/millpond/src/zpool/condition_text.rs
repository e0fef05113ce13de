//! The sentences about pool conditions.
//!
//! A line break marks the end of a terminal line. The caller starts continuation lines with a TAB.

use crate::text::date;
use jiff::tz::TimeZone;
use millpond_control::{Condition, PoolInfo, UnsupportedFeature};

/// The sentences of `zpool status`: the problem, and the remedy.
pub fn live(condition: Condition, pool: &PoolInfo, zone: &TimeZone) -> (String, String) {
    match condition {
        Condition::CorruptLabelNr => {
            let status = "One or more devices could not be used because the label is missing \nor invalid.  There are insufficient replicas for the pool to continue\nfunctioning.";
            (status.into(), recovery(pool, "clear -F", zone))
        }
        Condition::CorruptPool | Condition::BadGuidSum => {
            let status = "The pool metadata is corrupted and the pool cannot be opened.";
            (status.into(), recovery(pool, "clear -F", zone))
        }
        Condition::UnsupportedFeatureRead => {
            let status = "The pool cannot be accessed on this system because it uses the\nfollowing feature(s) not supported on this system:\n";
            let action = "Access the pool from a system that supports the required feature(s),\nor restore the pool from backup.";
            (format!("{status}{}", features(pool)), action.into())
        }
        Condition::UnsupportedFeatureWrite => {
            let action = "The pool cannot be accessed in read-write mode. Import the pool with\n\"-o readonly=on\", access the pool from a system that supports the\nrequired feature(s), or restore the pool from backup.";
            (format!("{READ_ONLY_MODE}{}", features(pool)), action.into())
        }
        Condition::Errata(number) => errata(number),
        condition => {
            let (status, action) = fixed(condition);
            (status.into(), action.into())
        }
    }
}

/// The sentences about a condition that are the same for all pools.
fn fixed(condition: Condition) -> (&'static str, &'static str) {
    match condition {
        Condition::MissingDevice => (
            "One or more devices could not be opened.  Sufficient replicas exist for\nthe pool to continue functioning in a degraded state.",
            ATTACH_MISSING,
        ),
        Condition::MissingDeviceNr => (
            "One or more devices could not be opened.  There are insufficient\nreplicas for the pool to continue functioning.",
            ATTACH_MISSING,
        ),
        Condition::CorruptLabel => (
            "One or more devices could not be used because the label is missing or\ninvalid.  Sufficient replicas exist for the pool to continue\nfunctioning in a degraded state.",
            "Replace the device using 'zpool replace'.",
        ),
        Condition::FailingDevice => (
            "One or more devices has experienced an unrecoverable error.  An\nattempt was made to correct the error.  Applications are unaffected.",
            "Determine if the device needs to be replaced, and clear the errors\nusing 'zpool clear' or replace the device with 'zpool replace'.",
        ),
        Condition::OutdatedDevice => (
            "One or more devices missed writes while they were not in use.  The missed\ndata is read from the other devices; the pool has less redundancy than it\nshould have.",
            "Do not remove the other devices before a resilver has completed. 'zpool status'\nshows whether one is under way; 'zpool resilver' starts one.",
        ),
        Condition::OfflineDevice => (
            "One or more devices has been taken offline by the administrator.\nSufficient replicas exist for the pool to continue functioning in a\ndegraded state.",
            "Online the device using 'zpool online' or replace the device with\n'zpool replace'.",
        ),
        Condition::RemovedDevice => (
            "One or more devices has been removed by the administrator.\nSufficient replicas exist for the pool to continue functioning in a\ndegraded state.",
            "Online the device using zpool online' or replace the device with\n'zpool replace'.",
        ),
        Condition::Resilvering | Condition::Rebuilding => (
            "One or more devices is currently being resilvered.  The pool will\ncontinue to function, possibly in a degraded state.",
            "Wait for the resilver to complete.",
        ),
        Condition::RebuildScrub => (
            "One or more devices have been sequentially resilvered, scrubbing\nthe pool is recommended.",
            "Use 'zpool scrub' to verify all data checksums.",
        ),
        Condition::CorruptData => (
            "One or more devices has experienced an error resulting in data\ncorruption.  Applications may be affected.",
            "Restore the file in question if possible.  Otherwise restore the\nentire pool from backup.",
        ),
        Condition::VersionOlder => (
            "The pool is formatted using a legacy on-disk format.  The pool can\nstill be used, but some features are unavailable.",
            "Upgrade the pool using 'zpool upgrade'.  Once this is done, the\npool will no longer be accessible on software that does not support\nfeature flags.",
        ),
        Condition::VersionNewer => (
            "The pool has been upgraded to a newer, incompatible on-disk version.\nThe pool cannot be accessed on this system.",
            "Access the pool from a system running more recent software, or\nrestore the pool from backup.",
        ),
        Condition::FeaturesDisabled => (
            "Some supported and requested features are not enabled on the pool.\nThe pool can still be used, but some features are unavailable.",
            "Enable all features using 'zpool upgrade'. Once this is done,\nthe pool may no longer be accessible by software that does not support\nthe features. See zpool-features(7) for details.",
        ),
        Condition::CompatibilityError => (
            "This pool has a compatibility list specified, but it could not be\nread/parsed at this time. The pool can still be used, but this\nshould be investigated.",
            "Check the value of the 'compatibility' property against the\nappropriate file in /etc/zfs/compatibility.d or /usr/share/zfs/compatibility.d.",
        ),
        Condition::IncompatibleFeature => (
            "One or more features are enabled on the pool despite not being\nrequested by the 'compatibility' property.",
            "Consider setting 'compatibility' to an appropriate value, or\nadding needed features to the relevant file in\n/etc/zfs/compatibility.d or /usr/share/zfs/compatibility.d.",
        ),
        Condition::DeletedImage => (
            "One or more image files of the pool were deleted. Their contents are lost when\nthe pool is closed.",
            "Before the pool is exported or the daemon stops, copy its files to another pool,\nor stop all writes and copy the image from /proc/PID/fd of millpondd.",
        ),
        Condition::FaultedDevice => (
            "One or more devices are faulted in response to persistent errors.\nSufficient replicas exist for the pool to continue functioning in a\ndegraded state.",
            "Replace the faulted device, or use 'zpool clear' to mark the device\nrepaired.",
        ),
        Condition::FaultedDeviceNr => (
            "One or more devices are faulted in response to persistent errors.  There are insufficient replicas for the pool to\ncontinue functioning.",
            "Destroy and re-create the pool from a backup source.  Manually marking the device\nrepaired using 'zpool clear' may allow some data to be recovered.",
        ),
        Condition::IoFailureMultihost => (
            "The pool is suspended because multihost writes failed or were delayed;\nanother system could import the pool undetected.",
            "Make sure the pool's devices are connected, then reboot your system and\nimport the pool or run 'zpool clear' to resume the pool.",
        ),
        Condition::IoFailureWait | Condition::IoFailureContinue => (
            "One or more devices are faulted in response to IO failures.",
            "Make sure the affected devices are connected, then run 'zpool clear'.",
        ),
        Condition::BadLog => (
            "An intent log record could not be read.\nWaiting for administrator intervention to fix the faulted pool.",
            "Either restore the affected device(s) and run 'zpool online',\nor ignore the intent log records by running 'zpool clear'.",
        ),
        Condition::NonNativeAshift => (
            NON_NATIVE,
            "Replace affected devices with devices that support the\nconfigured block size, or migrate data to a properly configured\npool.",
        ),
        Condition::HostidMismatch | Condition::HostidActive | Condition::HostidRequired => (
            "Mismatch between pool hostid and system hostid on imported pool.\nThis pool was previously imported into a system with a different hostid,\nand then was verbatim imported into this system.",
            "Export this pool on all systems on which it is imported.\nThen import it to correct the mismatch.",
        ),
        Condition::DivergedDevice => (
            "One or more devices were written without the others and have changes that are\nnot in this pool. These devices are not used.",
            "To read those changes, import the device without the others. To discard them\nand return the device to the pool, use 'zpool online'.",
        ),
        // They depend on the pool.
        Condition::CorruptLabelNr
        | Condition::CorruptPool
        | Condition::BadGuidSum
        | Condition::UnsupportedFeatureRead
        | Condition::UnsupportedFeatureWrite
        | Condition::Errata(_) => ("", ""),
    }
}

fn errata(number: u64) -> (String, String) {
    let more = match number {
        3 => {
            "\nExisting encrypted datasets contain an on-disk incompatibility\n which needs to be corrected."
        }
        4 => {
            "\nExisting encrypted snapshots and bookmarks contain an on-disk\nincompatibility. This may cause on-disk corruption if they are used\nwith 'zfs recv'."
        }
        _ => "",
    };
    let action = match number {
        1 => "To correct the issue run 'zpool scrub'.",
        3 => {
            "To correct the issue backup existing encrypted datasets to new\nencrypted datasets and destroy the old ones. 'zfs mount -o ro' can\nbe used to temporarily mount existing encrypted datasets readonly."
        }
        4 => {
            "To correct theissue, enable the bookmark_v2 feature. No additional\naction is needed if there are no encrypted snapshots or bookmarks.\nIf preservingthe encrypted snapshots and bookmarks is required, use\na non-raw send to backup and restore them. Alternately, they may be\nremoved to resolve the incompatibility."
        }
        _ => "",
    };
    (format!("Errata #{number} detected.{more}"), action.into())
}

/// The problem of a pool in `zpool import`.
pub fn import_status(condition: Condition, pool: &PoolInfo) -> String {
    let text = match condition {
        Condition::MissingDevice | Condition::MissingDeviceNr | Condition::BadGuidSum => {
            "One or more devices are missing from the system."
        }
        Condition::CorruptLabel | Condition::CorruptLabelNr => {
            "One or more devices contains corrupted data."
        }
        Condition::CorruptData => "The pool data is corrupted.",
        Condition::OutdatedDevice => {
            "One or more devices missed writes while they were out of use."
        }
        Condition::OfflineDevice => "One or more devices are offlined.",
        Condition::DivergedDevice => {
            "One or more devices were written without the others and have changes of their own."
        }
        Condition::CorruptPool => "The pool metadata is corrupted.",
        Condition::VersionOlder => "The pool is formatted using a legacy on-disk version.",
        Condition::VersionNewer => "The pool is formatted using an incompatible version.",
        Condition::FeaturesDisabled => {
            "Some supported features are not enabled on the pool.\n(Note that they may be intentionally disabled if the\n'compatibility' property is set.)"
        }
        Condition::CompatibilityError => {
            "Error reading or parsing the file(s) indicated by the 'compatibility'\nproperty."
        }
        Condition::IncompatibleFeature => {
            "One or more features are enabled on the pool despite not being\nrequested by the 'compatibility' property."
        }
        Condition::UnsupportedFeatureRead => {
            let text = "The pool uses the following feature(s) not supported on this system:\n";
            return format!("{text}{}", features(pool));
        }
        Condition::UnsupportedFeatureWrite => {
            return format!("{READ_ONLY_MODE}{}", features(pool));
        }
        Condition::HostidActive => "The pool is currently imported by another system.",
        Condition::HostidRequired => {
            "The pool has the multihost property on.  It cannot\nbe safely imported when the system hostid is not set."
        }
        Condition::HostidMismatch => "The pool was last accessed by another system.",
        Condition::FaultedDevice | Condition::FaultedDeviceNr => "One or more devices are faulted.",
        Condition::BadLog => "An intent log record cannot be read.",
        Condition::Resilvering | Condition::Rebuilding | Condition::RebuildScrub => {
            "One or more devices were being resilvered."
        }
        Condition::Errata(number) => return format!("Errata #{number} detected."),
        Condition::NonNativeAshift => NON_NATIVE,
        Condition::RemovedDevice
        | Condition::DeletedImage
        | Condition::FailingDevice
        | Condition::IoFailureMultihost
        | Condition::IoFailureContinue
        | Condition::IoFailureWait => return String::new(),
    };
    text.into()
}

/// How to recover a pool that is damaged or cannot be opened.
pub fn recovery(pool: &PoolInfo, verb: &str, zone: &TimeZone) -> String {
    let Some(point) = pool.rewind else {
        return "Destroy and re-create the pool from\na backup source.".into();
    };
    let mut text = format!(
        "Recovery is possible, but will result in some data loss.\nReturning the pool to its state as of {}\nshould correct the problem.  ",
        date::ctime(point.time_s, zone)
    );
    let lost = match point.lost_s.unwrap_or(0) {
        0 => None,
        seconds if seconds > 120 => Some(format!("{} minutes", seconds.div_ceil(60))),
        seconds => Some(format!("{seconds} seconds")),
    };
    if let Some(lost) = lost {
        text += &format!("Approximately {lost} of data\nmust be discarded, irreversibly.  ");
    }
    text += match point.data_errors {
        0 => "",
        1 => "After rewind, at least\none persistent user-data error will remain.  ",
        _ => "After rewind, several\npersistent user-data errors will remain.  ",
    };
    let name = &pool.name;
    text += &format!(
        "Recovery can be attempted\nby executing 'zpool {verb} {name}'.  A scrub of the pool\nis strongly recommended after recovery."
    );
    text
}

/// One line for each unsupported feature.
fn features(pool: &PoolInfo) -> String {
    let line = |feature: &UnsupportedFeature| match &feature.description {
        Some(description) => format!("{} ({description})", feature.guid),
        None => feature.guid.clone(),
    };
    let lines: Vec<String> = pool
        .unsupported
        .iter()
        .filter(|f| f.is_active)
        .map(line)
        .collect();
    lines.join("\n")
}

const ATTACH_MISSING: &str = "Attach the missing device and online it using 'zpool online'.";
const NON_NATIVE: &str = "One or more devices are configured to use a non-native block size.\nExpect reduced performance.";
const READ_ONLY_MODE: &str = "The pool can only be accessed in read-only mode on this system. It\ncannot be accessed in read-write mode because it uses the following\nfeature(s) not supported on this system:\n";
