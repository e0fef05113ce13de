//! Pools, open and found.

use super::health::SuspendReason;
use super::scan::{CheckpointInfo, ExpansionInfo, RebuildInfo, RemovalInfo, ScanInfo};
use super::value::Property;
use super::vdev::VdevInfo;
use super::waits::EngineInfo;

/// Whether a pool uses a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum FeatureState {
    /// Not to be used.
    Disabled,
    /// May be used.
    Enabled,
    /// In use on disk.
    Active,
}

impl FeatureState {
    /// The word that `feature@NAME` shows.
    pub fn word(self) -> &'static str {
        match self {
            FeatureState::Disabled => "disabled",
            FeatureState::Enabled => "enabled",
            FeatureState::Active => "active",
        }
    }
}

/// A feature that this program knows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FeatureInfo {
    /// Its short name, `lz4_compress`.
    pub name: String,
    /// How the pool uses it.
    pub state: FeatureState,
    /// Whether `zpool upgrade` leaves it alone: a pool that used it could not be written here.
    pub is_left_alone: bool,
}

/// A feature that the pool has and this program does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UnsupportedFeature {
    /// Its full name, `org.example:thing`.
    pub guid: String,
    /// What the pool says about it.
    pub description: Option<String>,
    /// Whether it is in use.
    pub is_active: bool,
    /// Whether it forbids only writing.
    pub is_needed_for_write_only: bool,
}

/// The features that property `compatibility` asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RequestedFeatures {
    /// `off`: all there are.
    #[default]
    All,
    /// `legacy`: none.
    Legacy,
    /// Those that its files have in common.
    Listed(Vec<String>),
    /// Its files cannot be read or understood.
    Unreadable,
}

/// A file that is damaged beyond repair.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DataError {
    /// As it is to be shown: `/tank/file`, `tank/fs@s:/file`, `tank/fs:<0x1>`, `<metadata>:<0x3d>`.
    pub name: String,
}

/// One row of the deduplication histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[allow(missing_docs)] // number of blocks, and their logical, physical and allocated bytes
pub struct DedupBucket {
    /// log2 of the least reference count in the row.
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

/// The deduplication tables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DedupStats {
    /// Entries in all tables.
    pub entries: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Bytes in memory.
    pub core_bytes: u64,
    /// Rows, least reference count first.
    pub buckets: Vec<DedupBucket>,
}

/// An earlier state that a broken pool could be taken back to.
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

/// A pool: everything but its datasets.
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
    /// Whether it could be loaded.
    pub is_loaded: bool,
    /// Whether and why I/O is suspended.
    pub suspended: Option<SuspendReason>,
    /// Whether the configuration says that the pool is in use (neither exported nor destroyed).
    pub is_state_active: bool,
    /// The hostid in the configuration; 0 for none.
    pub config_hostid: u64,
    /// The hostid of this system; 0 for none.
    pub system_hostid: u64,
    /// Who uses the pool on another system, as far as multihost tells.
    pub multihost: Option<MultihostState>,
    /// The erratum that the configuration names.
    pub errata: Option<u64>,
    /// The comment.
    pub comment: Option<String>,
    /// Native and user properties, with values as the table of pool properties says. Features
    /// are below.
    pub properties: Vec<Property>,
    /// Every feature known, in the order of the table of features; empty below version 5000.
    pub features: Vec<FeatureInfo>,
    /// Features not known.
    pub unsupported: Vec<UnsupportedFeature>,
    /// What `compatibility` asks for.
    pub requested: RequestedFeatures,
    /// The tree: normal, log, special and dedup vdevs by class.
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
    /// The last or running widening.
    pub expansion: Option<ExpansionInfo>,
    /// How many data errors are known.
    pub error_count: u64,
    /// Which they are.
    pub errors: Vec<DataError>,
    /// Deduplication tables, if there are any entries.
    pub dedup: Option<DedupStats>,
    /// How far back a broken pool could be taken.
    pub rewind: Option<RewindPoint>,
    /// Seconds since 1970 since when it is open, and its counters count; 0 for one opened just now.
    pub held_since_s: u64,
    /// What its engine is at, if it is open for changes and stays open.
    pub engine: Option<EngineInfo>,
}

impl PoolInfo {
    /// The property of that full name, if the pool has it. Features are not properties here.
    pub fn property(&self, name: &str) -> Option<&Property> {
        self.properties
            .iter()
            .find(|property| property.name == name)
    }

    /// The word for the pool's health.
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

/// What multihost found on the devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum MultihostState {
    /// Another system is writing.
    Active,
    /// This system has no hostid.
    NoHostid,
    /// Some other reason.
    Other,
}

/// The system that had a pool last.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LastHost {
    /// Its name.
    pub name: String,
    /// Its hostid.
    pub hostid: u64,
    /// Seconds since 1970 of its last txg.
    pub time_s: u64,
}

/// A pool found on devices, not open.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ImportablePool {
    /// What its labels say. Spares have only names.
    pub info: PoolInfo,
    /// Whether it was destroyed.
    pub is_destroyed: bool,
    /// Whether it was exported.
    pub is_exported: bool,
    /// Who had it last.
    pub last_host: Option<LastHost>,
}
