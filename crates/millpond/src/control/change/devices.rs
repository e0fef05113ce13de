//! Devices for new vdevs.

use crate::live::NewLayout;
use millpond_vdev::AllocationClass;

/// What a path is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeviceFacts {
    /// Whether it is an image file rather than a block device.
    pub is_file: bool,
    /// Its size in bytes.
    pub size_bytes: u64,
}

/// Why a path is no device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DeviceProblem {
    /// There is nothing of this name.
    Missing,
    /// It is a folder, a socket, …
    WrongKind,
    /// It cannot be opened; the text says why.
    Unusable(String),
}

/// Who uses a device, by its labels.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DeviceInUse {
    /// A pool that is open, or would be for the next command.
    Active(String),
    /// A pool that was neither exported nor found.
    PotentiallyActive(String),
    /// An exported pool.
    Exported(String),
    /// Hot spare of a pool; an empty name if that pool was not found.
    Spare(String),
    /// Cache device of a pool; an empty name if that pool was not found.
    Cache(String),
}

/// A top-level vdev asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TopRequest {
    /// What it is reserved for.
    pub class: AllocationClass,
    /// How its devices stand together.
    pub layout: NewLayout,
    /// Paths.
    pub paths: Vec<String>,
}

/// Everything that is to be added to a pool at once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NewDevices {
    /// Top-level vdevs, in the order in which they are numbered.
    pub tops: Vec<TopRequest>,
    /// Hot spares.
    pub spares: Vec<String>,
    /// Cache devices.
    pub caches: Vec<String>,
    /// log2 of the sector, where it was stated.
    pub ashift: Option<u8>,
    /// Devices of pools that are not open may be taken.
    pub may_take_used: bool,
    /// Redundancy may be mixed.
    pub may_mix_redundancy: bool,
    /// Sector sizes may be mixed.
    pub may_mix_sectors: bool,
}

impl NewDevices {
    /// Every path, in the order of the vdevs, then spares and caches.
    pub fn paths(&self) -> impl Iterator<Item = &String> {
        let tops = self.tops.iter().flat_map(|top| &top.paths);
        tops.chain(&self.spares).chain(&self.caches)
    }
}
