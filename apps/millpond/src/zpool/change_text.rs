//! The error texts of failed pool changes.

use super::replication_text;
use crate::session::Failure;
use millpond_control::{ChangeError, DeviceInUse, DeviceProblem, NewerDevices};
use millpond_control::{FeatureError, FeatureFileError, FeatureFileProblem};
use millpond_engine::SettingError;

/// The kind of change, for the few texts that depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// A pool is created.
    Create,
    /// Devices are added.
    Add,
    /// Any other change.
    Other,
}

/// The complete message for a refused change. `action` has the form `cannot create 'tank'`.
pub fn message(verb: Verb, action: &str, error: &ChangeError) -> String {
    without_action(error).unwrap_or_else(|| format!("{action}: {}", reason(verb, error)))
}

/// The messages that do not begin with the action.
fn without_action(error: &ChangeError) -> Option<String> {
    Some(match error {
        ChangeError::InUse {
            devices,
            can_be_forced,
        } => {
            let head = if *can_be_forced {
                OVERRIDABLE
            } else {
                "invalid vdev specification\nthe following errors must be manually repaired:"
            };
            let lines = devices.iter().map(|(path, by)| in_use(path, by));
            joined(head, lines)
        }
        ChangeError::NoData => {
            let line = "at least one general top-level vdev must be specified".to_owned();
            joined(OVERRIDABLE, [line])
        }
        // OpenZFS reports only the first mismatch.
        ChangeError::Replication(all) => {
            joined(OVERRIDABLE, all.first().map(replication_text::words))
        }
        ChangeError::Compatibility(files) => format!("Error: {}", feature_files(files)),
        ChangeError::Mounted { mountpoint, why } => crate::zfs::not_unmounted(mountpoint, why),
        ChangeError::NotBuilt(what) => format!("millpond: {what} is not implemented yet"),
        _ => return None,
    })
}

/// What is wrong with the files of `compatibility`.
fn feature_files(files: &[FeatureFileError]) -> String {
    let unknown = files.iter().map(|file| match &file.problem {
        FeatureFileProblem::UnknownFeature { feature } => Some(feature.as_str()),
        _ => None,
    });
    if let Some(unknown) = unknown.collect::<Option<Vec<_>>>() {
        let words = "invalid feature name(s) in local compatibility files";
        return format!("{words}: {} ", unknown.join(" "));
    }
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    let head = format!("could not read/parse feature file(s): {} ", names.join(","));
    joined(&head, files.iter().map(ToString::to_string))
}

/// The same message as a command's failure.
pub fn failure(verb: Verb, action: &str, error: &ChangeError) -> Failure {
    Failure::Refused(message(verb, action, error))
}

const NOT_OF_THIS_POOL: &str = "operation not supported on this type of pool";
/// The end of the reason against a property value that needs another version or a feature.
const NEEDS_UPGRADE_END: &str = "must be upgraded to set this property or value";

const OVERRIDABLE: &str = "invalid vdev specification\nuse '-f' to override the following errors:";

fn joined(head: &str, lines: impl IntoIterator<Item = String>) -> String {
    let mut text = head.to_owned();
    for line in lines {
        text.push('\n');
        text.push_str(&line);
    }
    text
}

fn in_use(path: &str, by: &DeviceInUse) -> String {
    match by {
        DeviceInUse::Active(pool) => format!("{path} is part of active pool '{pool}'"),
        DeviceInUse::PotentiallyActive(pool) => {
            format!("{path} is part of potentially active pool '{pool}'")
        }
        DeviceInUse::Exported(pool) => format!("{path} is part of exported pool '{pool}'"),
        DeviceInUse::Spare(pool) => format!("{path} is reserved as a hot spare for pool {pool}"),
        DeviceInUse::Cache(pool) => format!("{path} is part of unknown pool '{pool}'"),
    }
}

/// The reason, for dataset commands.
pub fn pool_reason(error: &ChangeError) -> String {
    reason(Verb::Other, error)
}

/// The reason that follows the action in an error message.
pub fn reason(verb: Verb, error: &ChangeError) -> String {
    match error {
        ChangeError::NoSuchPool => "no such pool".into(),
        ChangeError::Busy => "pool is busy".into(),
        ChangeError::PoolExists => "pool already exists".into(),
        ChangeError::PoolName(reason) => reason.clone(),
        ChangeError::InUseElsewhere { hostname } => format!(
            "pool was last used by another system{}",
            hostname
                .as_ref()
                .map_or_else(String::new, |name| format!(" ({name})"))
        ),
        ChangeError::ReadOnlyPool(None) => "pool is read-only".into(),
        ChangeError::ReadOnlyPool(Some(why)) => format!("pool is read-only: {why}"),
        ChangeError::Device { path, problem } => match problem {
            DeviceProblem::Missing => format!("{path}: no such device"),
            DeviceProblem::WrongKind => format!("{path}: must be a block device or regular file"),
            DeviceProblem::Unusable(why) => format!("{path}: {why}"),
        },
        ChangeError::TooSmall if verb == Verb::Create => {
            "one or more devices is less than the minimum size (64M)".into()
        }
        ChangeError::TooSmall => "device is less than the minimum size (64M)".into(),
        ChangeError::Twice if verb == Verb::Create => {
            "one or more vdevs refer to the same device, or one of\n\
             the devices is part of an active md or lvm device"
                .into()
        }
        ChangeError::Twice => "one or more vdevs refer to the same device".into(),
        ChangeError::SectorSizes => {
            "adding devices with different physical sector sizes is not allowed".into()
        }
        ChangeError::NeedsVersion(NewerDevices::Parity) if verb == Verb::Create => {
            "invalid argument for this pool operation".into()
        }
        ChangeError::NeedsVersion(_) if verb == Verb::Create => NOT_OF_THIS_POOL.into(),
        ChangeError::NeedsVersion(what) => what.to_string(),
        ChangeError::Property { reason, .. }
            if verb == Verb::Create && reason.ends_with(NEEDS_UPGRADE_END) =>
        {
            NOT_OF_THIS_POOL.into()
        }
        ChangeError::Setting(error) => setting(error),
        ChangeError::NoSuchDataset(_) => "no such pool or dataset".into(),
        ChangeError::DatasetName { reason, .. } | ChangeError::Failed(reason) => reason.clone(),
        ChangeError::Property { property, reason } => crate::zfs::property_words(property, reason),
        ChangeError::Refused { why, .. } => why.to_string(),
        ChangeError::NoLabel => "no label".into(),
        ChangeError::NoReplicas => "no valid replicas".into(),
        ChangeError::NoSuchDevice => "no such device in pool".into(),
        ChangeError::Suspended(_) => "pool I/O is currently suspended".into(),
        ChangeError::Denied => "permission denied".into(),
        ChangeError::Compatibility(files) => feature_files(files),
        _ => without_action(error).unwrap_or_else(|| "the change was refused".into()),
    }
}

fn setting(error: &SettingError) -> String {
    match error {
        SettingError::OnlyAtCreation("readonly") => {
            "property 'readonly' can only be set at import time".into()
        }
        SettingError::Feature(FeatureError::Unknown(name)) => {
            format!("feature '{name}' unsupported by kernel")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_features_of_a_file_are_named_as_openzfs_does() {
        let of = |name: &str, problem| FeatureFileError {
            name: name.into(),
            problem,
        };
        let feature = "bogus_feature".to_owned();
        let unknown = of("bad", FeatureFileProblem::UnknownFeature { feature });
        let shown = |files| message(Verb::Create, "x", &ChangeError::Compatibility(files));
        assert_eq!(
            shown(vec![unknown.clone()]),
            "Error: invalid feature name(s) in local compatibility files: bogus_feature "
        );
        let cut = of("nonl", FeatureFileProblem::NoNewline);
        assert_eq!(
            shown(vec![unknown, cut]),
            "Error: could not read/parse feature file(s): bad,nonl \n\
             bad: there is no feature 'bogus_feature'\n\
             nonl: the file does not end with a newline"
        );
    }
}
