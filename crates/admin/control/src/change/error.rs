//! Errors of changes.

use super::{DeviceInUse, DeviceProblem, FeatureFileError};
use crate::MountProblem;
use millpond_block::LeafRefusal;
use millpond_dataset::{DatasetError, Refusal};
use millpond_pool::PoolError;
use millpond_pool::SettingError;
use millpond_pool::{
    AttachError, AttachRefusal, DetachRefusal, GrowError, RemoveError, SplitError,
};
use millpond_pool::{CreateError, LeafError, NewVdevError, NewerDevices, ReplicationMismatch};

/// Why a change failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ChangeError {
    /// No pool has this name.
    NoSuchPool,
    /// Another process has its devices open.
    Busy,
    /// A pool of this name already exists.
    PoolExists,
    /// The name is not valid for a pool; the text gives the reason.
    PoolName(String),
    /// Another system used the pool last and did not export it.
    #[cfg_attr(feature = "serde", serde(rename = "HeldElsewhere"))]
    InUseElsewhere {
        /// The name of that system, if known.
        hostname: Option<String>,
    },
    /// The pool can only be read: it was imported so, or it contains something that this program cannot update, which the
    /// text names.
    ReadOnlyPool(Option<String>),
    /// The pool's version is too low for devices of this kind.
    NeedsVersion(NewerDevices),
    /// A device cannot be used.
    Device {
        /// Its path.
        path: String,
        /// Why.
        problem: DeviceProblem,
    },
    /// Devices are in use, or may be.
    InUse {
        /// The devices with their uses, in the order given.
        devices: Vec<(String, DeviceInUse)>,
        /// Whether `force` would override this.
        can_be_forced: bool,
    },
    /// There is no vdev of the normal class.
    NoData,
    /// Levels of redundancy are mixed, or devices of one vdev differ in kind or size.
    Replication(Vec<ReplicationMismatch>),
    /// A device is smaller than 64 MiB.
    TooSmall,
    /// A device is listed twice.
    Twice,
    /// Sector sizes differ.
    SectorSizes,
    /// Without the device, data of its vdev would have no replica.
    NoReplicas,
    /// The pool has no such device.
    NoSuchDevice,
    /// A device has no label.
    NoLabel,
    /// Property `compatibility` refers to lists that cannot be used.
    Compatibility(Vec<FeatureFileError>),
    /// A property of a pool cannot have this value.
    Setting(SettingError),
    /// No dataset has this name.
    NoSuchDataset(String),
    /// The name is not valid.
    DatasetName {
        /// The name.
        name: String,
        /// The rule that it breaks.
        reason: String,
    },
    /// A property of a dataset cannot be given this value.
    Property {
        /// The property.
        property: String,
        /// Why, in terms of the command line.
        reason: String,
    },
    /// The dataset does not allow the change.
    Refused {
        /// The dataset.
        name: String,
        /// Why.
        why: Refusal,
    },
    /// A file system that must be unmounted is in use.
    Mounted {
        /// Its mount point.
        mountpoint: String,
        /// Why it cannot be unmounted.
        why: MountProblem,
    },
    /// The caller has no permission to change anything.
    Denied,
    /// The pool is suspended, so nothing can be written. The text gives the reason.
    Suspended(String),
    /// Not implemented.
    NotBuilt(String),
    /// Anything else, with its text.
    Failed(String),
}

/// A sequence of changes that stopped at an error.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ChangeFailure {
    /// Count of changes made.
    pub done: usize,
    /// Why the next one failed.
    pub error: ChangeError,
}

impl ChangeError {
    /// The same error without texts that exist only in this process, so that it can be serialized.
    #[must_use]
    pub fn portable(self) -> Self {
        match self {
            Self::Refused {
                why: Refusal::Invalid(text),
                ..
            } => Self::Failed(text.to_owned()),
            Self::Refused {
                why: why @ Refusal::Unsupported(_),
                ..
            } => Self::Failed(why.to_string()),
            other => other,
        }
    }
}

impl From<CreateError> for ChangeError {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Name { reason, .. } => Self::PoolName(reason.to_owned()),
            CreateError::Vdevs(NewVdevError::TooSmall { .. }) => Self::TooSmall,
            CreateError::Vdevs(NewVdevError::Twice { .. }) => Self::Twice,
            CreateError::Vdevs(NewVdevError::NoData) => Self::NoData,
            CreateError::Vdevs(NewVdevError::Replication(all)) => Self::Replication(all),
            CreateError::Vdevs(NewVdevError::NeedsVersion(what)) => Self::NeedsVersion(what),
            CreateError::Feature(error) => Self::Setting(error.into()),
            CreateError::Pool(error @ PoolError::RootProperty { .. }) => error.into(),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<DatasetError> for ChangeError {
    fn from(error: DatasetError) -> Self {
        match error {
            DatasetError::NotFound { name } => Self::NoSuchDataset(name),
            DatasetError::InvalidName { name, reason } => Self::DatasetName {
                name,
                reason: reason.to_owned(),
            },
            DatasetError::Refused { name, why } => Self::Refused { name, why },
            DatasetError::InvalidProperty {
                property, reason, ..
            } => Self::Property { property, reason },
            DatasetError::Pool(error) => error.into(),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<PoolError> for ChangeError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Suspended { reason } => Self::Suspended(reason),
            PoolError::RootProperty { property, reason } => Self::Property { property, reason },
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<LeafError> for ChangeError {
    fn from(error: LeafError) -> Self {
        match error {
            LeafError::Refused(LeafRefusal::Required) => Self::NoReplicas,
            LeafError::Refused(LeafRefusal::NoSuchLeaf) => Self::NoSuchDevice,
            LeafError::Refused(error @ LeafRefusal::Unanswered) => Self::Failed(error.to_string()),
            LeafError::Pool(error) => error.into(),
        }
    }
}

impl From<AttachError> for ChangeError {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::Attach(AttachRefusal::NoSuchLeaf)
            | AttachError::Detach(DetachRefusal::NoSuchLeaf) => Self::NoSuchDevice,
            AttachError::Detach(DetachRefusal::Required) => Self::NoReplicas,
            AttachError::Device(NewVdevError::TooSmall { .. }) => {
                Self::Failed(AttachRefusal::TooSmall.to_string())
            }
            AttachError::Create(error) => error.into(),
            AttachError::Pool(error) => error.into(),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<GrowError> for ChangeError {
    fn from(error: GrowError) -> Self {
        match error {
            GrowError::NoSuchLeaf => Self::NoSuchDevice,
            GrowError::Pool(error) => error.into(),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<SplitError> for ChangeError {
    fn from(error: SplitError) -> Self {
        match error {
            SplitError::Detach(error) => error.into(),
            SplitError::Pool(error) => error.into(),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<RemoveError> for ChangeError {
    fn from(error: RemoveError) -> Self {
        match error {
            RemoveError::NoSuchDevice => Self::NoSuchDevice,
            RemoveError::Pool(error) => error.into(),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<SettingError> for ChangeError {
    fn from(error: SettingError) -> Self {
        Self::Setting(error)
    }
}
