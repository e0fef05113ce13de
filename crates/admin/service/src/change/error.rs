//! Errors of the engine as errors of requests.

use millpond_control::{ChangeError, DeviceProblem};
use millpond_device::DeviceError;
use millpond_engine::Error;

/// Converts an error of opening or changing a pool.
pub(crate) fn change_error(error: Error) -> ChangeError {
    match error {
        Error::NoSuchPool { .. } => ChangeError::NoSuchPool,
        Error::InUse { .. } => ChangeError::Busy,
        Error::ReadOnlyDevices { reason, .. } => ChangeError::ReadOnlyPool(Some(reason)),
        Error::Create { error, .. } => (*error).into(),
        Error::Device { path, error } => ChangeError::Device {
            path: path.to_string_lossy().into_owned(),
            problem: device_problem(error),
        },
        Error::Setting(error) => ChangeError::Setting(error),
        Error::Dataset(error) => error.into(),
        Error::Pool(error) => error.into(),
        other => ChangeError::Failed(other.to_string()),
    }
}

/// Why a device cannot be used, without its path: messages name that themselves.
pub(crate) fn device_problem(error: DeviceError) -> DeviceProblem {
    match error {
        DeviceError::Open { message, .. } => DeviceProblem::Unusable(message),
        DeviceError::WrongKind { .. } => DeviceProblem::WrongKind,
        DeviceError::InUse { process, .. } => DeviceProblem::Unusable(match process {
            Some(process) => format!("it is in use by process {process}"),
            None => "it is in use".into(),
        }),
        other => DeviceProblem::Unusable(other.to_string()),
    }
}
