//! What can go wrong with a change.

use super::{DeviceInUse, DeviceProblem};
use crate::live::SettingError;
use millpond_dataset::Refusal;
use millpond_pool::live::ReplicationMismatch;

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
