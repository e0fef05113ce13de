//! Errors of the engine as errors of requests.

use millpond_control::{ChangeError, DeviceProblem};
use millpond_engine::Error;

/// Converts an error of opening or changing a pool.
pub(crate) fn change_error(error: Error) -> ChangeError {
    match error {
        Error::NoSuchPool { .. } => ChangeError::NoSuchPool,
        Error::InUse { .. } => ChangeError::Busy,
        Error::ReadOnlyDevices { reason, .. } => ChangeError::ReadOnlyPool(reason),
        Error::Create { error, .. } => (*error).into(),
        Error::Device { path, error } => ChangeError::Device {
            path: path.to_string_lossy().into_owned(),
            problem: DeviceProblem::Unusable(error.to_string()),
        },
        Error::Setting(error) => ChangeError::Setting(error),
        Error::Dataset(error) => error.into(),
        Error::Pool(error) => error.into(),
        other => ChangeError::Failed(other.to_string()),
    }
}
