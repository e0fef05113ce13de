//! The error texts of failed dataset changes.

use crate::session::Failure;
use millpond_control::{ChangeError, ChangeFailure};

/// The text of an invalid property, with its name where OpenZFS prints it.
pub fn property_words(property: &str, reason: &str) -> String {
    const OF_THE_NAME: [&str; 6] = ["must ", "does ", "is ", "cannot ", "has ", "specified "];
    match reason {
        "invalid property" => format!("invalid property '{property}'"),
        "property name is too long" => format!("property name '{property}' is too long"),
        reason if reason.starts_with("must be zero") => {
            format!("invalid '{property}' property: {reason}")
        }
        reason if OF_THE_NAME.iter().any(|word| reason.starts_with(word)) => {
            format!("'{property}' {reason}")
        }
        reason => reason.to_owned(),
    }
}

/// The reason that follows the action in an error message.
pub fn reason(error: &ChangeError) -> String {
    match error {
        ChangeError::NoSuchPool | ChangeError::NoSuchDataset(_) => "dataset does not exist".into(),
        ChangeError::InUseElsewhere { .. } | ChangeError::ReadOnlyPool(_) => {
            crate::zpool::reason(error)
        }
        ChangeError::DatasetName { reason, .. } | ChangeError::Failed(reason) => reason.clone(),
        ChangeError::Property { property, reason } => property_words(property, reason),
        ChangeError::Refused { why, .. } => why.to_string(),
        ChangeError::Mounted { mountpoint, why } => super::not_unmounted(mountpoint, why),
        ChangeError::NotBuilt(what) => format!("{what} is not implemented yet"),
        other => crate::zpool::reason(other),
    }
}

/// The failure `action: reason`, status 1.
pub fn failure(action: &str, failure: &ChangeFailure) -> Failure {
    if let ChangeError::Mounted { mountpoint, why } = &failure.error {
        return Failure::Refused(super::not_unmounted(mountpoint, why));
    }
    Failure::Refused(format!("{action}: {}", reason(&failure.error)))
}
