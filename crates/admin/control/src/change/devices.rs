//! Devices for new vdevs.

use millpond_pool::NewLayout;
use millpond_vdev::AllocationClass;

/// Facts about a path as a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeviceFacts {
    /// Whether it is an image file rather than a block device.
    pub is_file: bool,
    /// Its size in bytes.
    pub size_bytes: u64,
}

/// Why a path is not usable as a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DeviceProblem {
    /// The path does not exist.
    Missing,
    /// It is a directory, a socket or another unsuitable kind of file.
    WrongKind,
    /// It cannot be opened; the text gives the reason.
    Unusable(String),
}

/// How a device is used, according to its labels.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DeviceInUse {
    /// By a pool that is open, or that the next command would open.
    Active(String),
    /// By a pool that was not exported, and that the search did not find.
    PotentiallyActive(String),
    /// By an exported pool.
    Exported(String),
    /// As a hot spare of this pool; the name is empty if the pool was not found.
    Spare(String),
    /// As a cache device of this pool; the name is empty if the pool was not found.
    Cache(String),
}

/// A requested top-level vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TopRequest {
    /// Its allocation class.
    pub class: AllocationClass,
    /// The layout of its devices.
    pub layout: NewLayout,
    /// Paths of its devices.
    pub paths: Vec<String>,
}

/// Devices to add to a pool in one step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NewDevices {
    /// Top-level vdevs, in the order of their ids.
    pub tops: Vec<TopRequest>,
    /// Hot spares.
    pub spares: Vec<String>,
    /// Cache devices.
    pub caches: Vec<String>,
    /// log2 of the sector size, if specified.
    pub ashift: Option<u8>,
    /// Whether devices of pools that are not open may be reused.
    pub may_take_used: bool,
    /// Whether levels of redundancy may be mixed.
    pub may_mix_redundancy: bool,
    /// Whether sector sizes may be mixed.
    pub may_mix_sectors: bool,
    /// Whether hot spares of the pool itself may be used.
    pub may_take_own_spares: bool,
}

/// A device to attach beside a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NewSide {
    /// The guid of the leaf.
    pub old: u64,
    /// The path of the device.
    pub path: String,
    /// Whether it replaces the leaf.
    pub is_replacement: bool,
    /// Whether a device of a pool that is not open may be reused.
    pub may_take_used: bool,
    /// Whether it is resilvered sequentially, and checksums are verified afterwards.
    pub is_sequential: bool,
}

impl NewSide {
    /// Whether it is a distributed spare of a dRAID vdev, whose path is its name.
    #[must_use]
    pub fn is_distributed_spare(&self) -> bool {
        !self.path.starts_with('/')
    }

    /// The device as one that is added, for the checks of its present use. A distributed spare is no device.
    #[must_use]
    pub fn devices(&self) -> NewDevices {
        let paths = match self.is_distributed_spare() {
            true => vec![],
            false => vec![self.path.clone()],
        };
        NewDevices {
            tops: vec![TopRequest {
                class: AllocationClass::Normal,
                layout: NewLayout::Single,
                paths,
            }],
            may_take_used: self.may_take_used,
            may_mix_redundancy: true,
            may_mix_sectors: true,
            may_take_own_spares: self.is_replacement,
            ..NewDevices::default()
        }
    }
}

impl NewDevices {
    /// All paths: vdevs in order, then spares, then caches.
    pub fn paths(&self) -> impl Iterator<Item = &String> {
        let tops = self.tops.iter().flat_map(|top| &top.paths);
        tops.chain(&self.spares).chain(&self.caches)
    }
}
