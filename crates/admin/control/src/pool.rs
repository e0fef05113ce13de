//! Open and importable pools.

use super::health::SuspendReason;
use super::scan::{CheckpointInfo, ExpansionInfo, RebuildInfo, RemovalInfo, ScanInfo};
use super::value::Property;
use super::vdev::VdevInfo;
use super::waits::EngineInfo;

/// The state of a feature in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum FeatureState {
    /// Must not be used.
    Disabled,
    /// May be used.
    Enabled,
    /// In use on disk.
    Active,
}

impl FeatureState {
    /// The value that `feature@NAME` shows.
    pub fn word(self) -> &'static str {
        match self {
            FeatureState::Disabled => "disabled",
            FeatureState::Enabled => "enabled",
            FeatureState::Active => "active",
        }
    }
}

/// A feature that this program supports.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FeatureInfo {
    /// Its short name, `lz4_compress`.
    pub name: String,
    /// Its state in the pool.
    pub state: FeatureState,
    /// Whether `zpool upgrade` skips it, because Millpond could not write a pool that uses it.
    pub is_left_alone: bool,
}

/// A feature that the pool has and this program does not support.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UnsupportedFeature {
    /// Its full name, `org.example:thing`.
    pub guid: String,
    /// Its description, as stored in the pool.
    pub description: Option<String>,
    /// Whether it is active.
    pub is_active: bool,
    /// Whether it is required only for writing, so that the pool can still be read.
    pub is_needed_for_write_only: bool,
}

/// The features that property `compatibility` requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RequestedFeatures {
    /// `off`: all features.
    #[default]
    All,
    /// `legacy`: no features.
    Legacy,
    /// The features that all listed files have in common.
    Listed(Vec<String>),
    /// The files cannot be read or parsed.
    Unreadable,
}

/// A file with unrecoverable damage.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DataError {
    /// The name to display: `/tank/file`, `tank/fs@s:/file`, `tank/fs:<0x1>`, `<metadata>:<0x3d>`.
    pub name: String,
    /// The dataset, if it has a path: the name is that of the dataset, a colon and the path, unless the dataset is mounted.
    pub dataset: Option<String>,
}

/// One row of the deduplication histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[allow(missing_docs)] // number of blocks, and their logical, physical and allocated bytes
pub struct DedupBucket {
    /// log2 of the smallest reference count in the row.
    pub refcount_log2: u8,
    pub blocks: u64,
    pub logical_bytes: u64,
    pub physical_bytes: u64,
    pub allocated_bytes: u64,
    pub referenced_blocks: u64,
    pub referenced_logical_bytes: u64,
    pub referenced_physical_bytes: u64,
    pub referenced_allocated_bytes: u64,
}

/// Statistics of the deduplication tables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DedupStats {
    /// Entries in all tables.
    pub entries: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Bytes of the tables when all of them are in memory.
    pub core_bytes: u64,
    /// Bytes of them that are in memory now.
    #[cfg_attr(feature = "serde", serde(default))]
    pub cached_bytes: u64,
    /// Rows in ascending order of reference count.
    pub buckets: Vec<DedupBucket>,
}

/// An earlier state to which a damaged pool could be rewound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RewindPoint {
    /// Seconds since 1970 of that state.
    pub time_s: u64,
    /// Seconds of changes that would be lost, if known.
    pub lost_s: Option<u64>,
    /// Data errors that would remain.
    pub data_errors: u64,
}

/// Destroyed datasets whose space cannot be freed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StuckFreeing {
    /// How many they are.
    pub datasets: u64,
    /// What cannot be read, and why.
    pub reason: String,
}

/// A pool without its datasets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PoolInfo {
    /// Its name.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// The txg of its configuration.
    pub config_txg: u64,
    /// Its version; 5000 once it has feature flags.
    pub version: u64,
    /// Whether the pool could be loaded.
    pub is_loaded: bool,
    /// Why I/O is suspended, if it is.
    pub suspended: Option<SuspendReason>,
    /// Whether the configuration says that the pool is in use (neither exported nor destroyed).
    pub is_state_active: bool,
    /// The hostid in the configuration; 0 for none.
    pub config_hostid: u64,
    /// The hostid of this system; 0 for none.
    pub system_hostid: u64,
    /// Use of the pool by another system, as far as multihost detects it.
    pub multihost: Option<MultihostState>,
    /// The erratum recorded in the configuration.
    pub errata: Option<u64>,
    /// The comment.
    pub comment: Option<String>,
    /// Native and user properties, with values as in the table of pool properties. Features are in
    /// `features`.
    pub properties: Vec<Property>,
    /// All supported features, in the order of the table of features. Empty below version 5000.
    pub features: Vec<FeatureInfo>,
    /// Features that are not supported.
    pub unsupported: Vec<UnsupportedFeature>,
    /// The features that `compatibility` requests.
    pub requested: RequestedFeatures,
    /// The vdev tree: normal, log, special and dedup vdevs by class.
    pub root: VdevInfo,
    /// Second-level caches.
    pub caches: Vec<VdevInfo>,
    /// Hot spares.
    pub spares: Vec<VdevInfo>,
    /// The last or running scan.
    pub scan: Option<ScanInfo>,
    /// The last or running rebuild of each top-level vdev that had one.
    pub rebuilds: Vec<RebuildInfo>,
    /// The last or running removal.
    pub removal: Option<RemovalInfo>,
    /// The checkpoint, if there is one.
    pub checkpoint: Option<CheckpointInfo>,
    /// Destroyed datasets whose space cannot be freed.
    pub stuck_freeing: Option<StuckFreeing>,
    /// The last or running RAID-Z expansion.
    pub expansion: Option<ExpansionInfo>,
    /// The count of known data errors.
    pub error_count: u64,
    /// The known data errors.
    pub errors: Vec<DataError>,
    /// Deduplication tables, if they have entries.
    pub dedup: Option<DedupStats>,
    /// The state to which a damaged pool could be rewound.
    pub rewind: Option<RewindPoint>,
    /// Seconds since 1970 at which the pool was opened and its counters started; 0 if it was opened just now.
    #[cfg_attr(feature = "serde", serde(rename = "held_since_s"))]
    pub imported_since_s: u64,
    /// Activity of its engine, if it is open for writing and stays open.
    pub engine: Option<EngineInfo>,
}

impl PoolInfo {
    /// The property with this full name, if the pool has it. Features are not included.
    pub fn property(&self, name: &str) -> Option<&Property> {
        self.properties
            .iter()
            .find(|property| property.name == name)
    }

    /// The name of the pool's health state.
    pub fn health(&self) -> &'static str {
        if !self.is_loaded {
            return "FAULTED";
        }
        match self.suspended {
            Some(_) => "SUSPENDED",
            None => self.root.state.word(self.root.aux),
        }
    }
}

/// What multihost detected on the devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum MultihostState {
    /// Another system is writing to the pool.
    Active,
    /// This system has no hostid.
    NoHostid,
    /// Another reason.
    Other,
}

/// The system that used a pool last.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LastHost {
    /// Its host name.
    pub name: String,
    /// Its host id.
    pub hostid: u64,
    /// Seconds since 1970 of its last txg.
    pub time_s: u64,
}

/// A pool found on devices that is not open.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ImportablePool {
    /// The content of its labels. Of spares, only the names are known.
    pub info: PoolInfo,
    /// Whether it was destroyed.
    pub is_destroyed: bool,
    /// Whether it was exported.
    pub is_exported: bool,
    /// The system that used it last.
    pub last_host: Option<LastHost>,
    /// Why it can only be imported read-only, if devices have the same label and different contents.
    pub copies: Option<String>,
    /// Why it can only be imported read-only or with force, if vdevs are older than the pool.
    pub older: Option<String>,
}
