//! What can go wrong with a change.

use super::super::keep::MountProblem;
use super::{DeviceInUse, DeviceProblem};
use crate::Error;
use crate::live::SettingError;
use millpond_block::LeafRefusal;
use millpond_dataset::{DatasetError, Refusal};
use millpond_pool::PoolError;
use millpond_pool::live::{CreateError, LeafError, NewVdevError, ReplicationMismatch};

/// Why a change was not made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ChangeError {
    /// No pool has this name.
    NoSuchPool,
    /// Somebody else has its devices open.
    Busy,
    /// A pool of this name is there.
    PoolExists,
    /// No pool can have this name; why not.
    PoolName(String),
    /// Another system had the pool last and did not export it.
    HeldElsewhere {
        /// The name of that system, if known.
        hostname: Option<String>,
    },
    /// Something in the pool cannot be kept right when it is written; the text names it.
    ReadOnlyPool(String),
    /// A device cannot be used.
    Device {
        /// Which.
        path: String,
        /// Why.
        problem: DeviceProblem,
    },
    /// Devices are in use, or may be.
    InUse {
        /// Each with who uses it, in the order given.
        devices: Vec<(String, DeviceInUse)>,
        /// Whether force would help.
        can_be_forced: bool,
    },
    /// No vdev for ordinary data.
    NoData,
    /// Redundancy is mixed, or devices of one vdev are of different kinds or sizes.
    Replication(Vec<ReplicationMismatch>),
    /// A device is below 64 MiB.
    TooSmall,
    /// One device is named twice.
    Twice,
    /// Sectors of different sizes.
    SectorSizes,
    /// Without the device data of its vdev would have no replica.
    NoReplicas,
    /// The pool has no such device.
    NoSuchDevice,
    /// A device has no label.
    NoLabel,
    /// Property `compatibility` names a list that cannot be read.
    Compatibility(String),
    /// A property of a pool cannot have this value.
    Setting(SettingError),
    /// No dataset has this name.
    NoSuchDataset(String),
    /// The name breaks the rules for names.
    DatasetName {
        /// The name.
        name: String,
        /// Which rule.
        reason: String,
    },
    /// A property of a dataset cannot be given this value.
    Property {
        /// The property.
        property: String,
        /// Why, in the words users know.
        reason: String,
    },
    /// What was asked for is not done to a dataset.
    Refused {
        /// The dataset.
        name: String,
        /// Why.
        why: Refusal,
    },
    /// A file system in the way is mounted and in use.
    Mounted {
        /// Where.
        mountpoint: String,
        /// Why it cannot be unmounted.
        why: MountProblem,
    },
    /// Whoever gave the command may only look.
    Denied,
    /// The pool is suspended, for this reason: nothing can be written.
    Suspended(String),
    /// Not possible yet.
    NotBuilt(String),
    /// Anything else, with its text.
    Failed(String),
}

/// A list of changes that was not made to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ChangeFailure {
    /// How many were made.
    pub done: usize,
    /// Why the next one was not.
    pub error: ChangeError,
}

impl ChangeError {
    /// The same error without texts that only the program itself has, so that it can travel.
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

impl From<Error> for ChangeError {
    fn from(error: Error) -> Self {
        match error {
            Error::NoSuchPool { .. } => Self::NoSuchPool,
            Error::Create { error, .. } => (*error).into(),
            Error::Device { path, error } => Self::Device {
                path: path.to_string_lossy().into_owned(),
                problem: DeviceProblem::Unusable(error.to_string()),
            },
            Error::Setting(error) => Self::Setting(error),
            Error::Dataset(error) => error.into(),
            Error::Pool(error) => error.into(),
            other => Self::Failed(other.to_string()),
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
            CreateError::Feature(error) => Self::Setting(error.into()),
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

impl From<crate::live::SettingError> for ChangeError {
    fn from(error: crate::live::SettingError) -> Self {
        Self::Setting(error)
    }
}
