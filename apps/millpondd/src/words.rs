//! Failures of the daemon's own work in words, for log lines.

use millpond_control::{ChangeError, DeviceProblem, Failure, ImportError, Note};

/// Why a change was not made.
pub(crate) fn of_change(error: &ChangeError) -> String {
    match error {
        ChangeError::NoSuchPool => "no such pool".to_owned(),
        ChangeError::PoolExists => "a pool of this name exists".to_owned(),
        ChangeError::Busy => "the pool is in use by another process".to_owned(),
        ChangeError::ReadOnlyPool(None) => "the pool is read-only".to_owned(),
        ChangeError::ReadOnlyPool(Some(why)) => format!("the pool is read-only: {why}"),
        ChangeError::Device { path, problem } => match problem {
            DeviceProblem::Missing => format!("{path}: no such device"),
            DeviceProblem::WrongKind => format!("{path}: neither a block device nor a file"),
            DeviceProblem::Unusable(why) => format!("{path}: {why}"),
        },
        ChangeError::NoSuchDataset(name) => format!("{name}: dataset does not exist"),
        ChangeError::DatasetName { name, reason } => format!("{name}: {reason}"),
        ChangeError::Property { property, reason } => format!("{property}: {reason}"),
        ChangeError::Refused { name, why } => format!("{name}: {why}"),
        ChangeError::Mounted { mountpoint, why } => format!("{mountpoint}: {why}"),
        ChangeError::Suspended(why) => format!("the pool is suspended: {why}"),
        ChangeError::Denied => "permission denied".to_owned(),
        ChangeError::PoolName(text) | ChangeError::NotBuilt(text) | ChangeError::Failed(text) => {
            text.clone()
        }
        _ => "the change was refused".to_owned(),
    }
}

/// Why a pool was not imported.
pub(crate) fn of_import(error: &ImportError) -> String {
    match error {
        ImportError::NoSuchPool => "its devices were not found".to_owned(),
        ImportError::Ambiguous => "several pools have this name".to_owned(),
        ImportError::NameTaken => "a pool of this name is imported".to_owned(),
        ImportError::InUseElsewhere {
            hostname, hostid, ..
        } => format!(
            "it was last used by {} (hostid {hostid:x}) and not exported",
            hostname.as_deref().unwrap_or("another system")
        ),
        ImportError::ImportedElsewhere { hostid, hostname } => format!(
            "it is in use on {} (hostid {hostid:x})",
            hostname.as_deref().unwrap_or("another system")
        ),
        ImportError::NeedsHostid => "it has multihost=on, and this system has no hostid".to_owned(),
        ImportError::Features(features) => {
            let names: Vec<&str> = features.iter().map(|(name, _)| name.as_str()).collect();
            format!("features are not supported: {}", names.join(", "))
        }
        ImportError::Version => "its version is not supported".to_owned(),
        ImportError::MissingLogs(paths) => format!("log devices are missing: {}", paths.join(", ")),
        ImportError::MissingDevices => "devices are missing".to_owned(),
        ImportError::DamagedLabels => "the checksums of its labels are wrong".to_owned(),
        ImportError::BadName { name, why } => format!("'{name}' is not a valid name: {why}"),
        ImportError::Busy(text)
        | ImportError::CacheFile(text)
        | ImportError::Copies(text)
        | ImportError::OlderVdevs(text)
        | ImportError::Unreadable(text) => text.clone(),
        ImportError::Change(error) => of_change(error),
        ImportError::Denied => "permission denied".to_owned(),
        _ => "it cannot be imported".to_owned(),
    }
}

/// What was not done beside a change.
pub(crate) fn of_note(note: &Note) -> String {
    match note {
        Note::NoActivity { leaf, why } => format!("device {leaf}: {why}"),
        Note::NotMounted {
            dataset,
            mountpoint,
            why,
        } => format!("{dataset} is not mounted at {mountpoint}: {why}"),
        Note::StillMounted {
            dataset,
            mountpoint,
            why,
        } => format!("{dataset} is still mounted at {mountpoint}: {why}"),
        Note::CacheFile { path, why } => format!("cache file {path} was not written: {why}"),
    }
}

/// Why a request of the daemon itself failed.
pub(crate) fn of_failure(failure: &Failure) -> String {
    match failure {
        Failure::Change(error) => of_change(error),
        Failure::ChangeFailure(failure) => of_change(&failure.error),
        Failure::Import(error) => of_import(error),
        Failure::Mount(why) => why.to_string(),
        Failure::Control(why) => why.to_string(),
        Failure::Call(text) => text.clone(),
        _ => "the request was refused".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_control::MountProblem;

    #[test]
    fn log_lines_have_words_and_no_names_of_types() {
        let why = MountProblem::Busy;
        let mounted = ChangeError::Mounted {
            mountpoint: "/t".into(),
            why,
        };
        assert_eq!(of_change(&mounted), "/t: pool or dataset is busy");
        let device = ChangeError::Device {
            path: "/dev/x".into(),
            problem: DeviceProblem::Missing,
        };
        let import = ImportError::Change(device);
        assert_eq!(of_import(&import), "/dev/x: no such device");
        let other = ImportError::InUseElsewhere {
            hostname: Some("box".into()),
            hostid: 0xab,
            time_s: 1,
        };
        let words = "it was last used by box (hostid ab) and not exported";
        assert_eq!(of_failure(&Failure::Import(other)), words);
    }
}
