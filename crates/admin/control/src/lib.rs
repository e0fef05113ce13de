//! Requests about pools and their replies, as plain data.
//!
//! [`Control`] has the requests that only read, [`Change`] those that change pools, and [`Service`] those for a
//! process that keeps pools open. `millpond-service` answers them in this process; a daemon at the other end of
//! a socket can too. Replies are raw values: bytes, seconds, hundredths, stored numbers. Units, dates and wording
//! are up to the program that prints them. Page `docs/cli.md`.
//!
//! Nothing in this crate does I/O or depends on how the replies are found.
#![forbid(unsafe_code)]

mod change;
mod condition;
mod dataset;
mod error;
mod health;
mod history;
mod pool;
mod scan;
mod service;
mod value;
mod vdev;
mod waits;

pub use change::{
    Change, ChangeError, ChangeFailure, Changed, DatasetChange, DeviceFacts, DeviceInUse,
    DeviceProblem, NewDevices, NewPoolRequest, Note, PoolChange, TopRequest, Values,
};
pub use condition::{Condition, Purpose, condition};
pub use dataset::{DatasetInfo, DatasetQuery, Wanted};
pub use error::ControlError;
pub use health::{SuspendReason, VdevAux, VdevState};
pub use history::{HistoryEvent, HistoryRecord, HistoryValue};
pub use millpond_dataset::properties::{OwnerKind, OwnerSpace};
pub use pool::{
    DataError, DedupBucket, DedupStats, FeatureInfo, FeatureState, ImportablePool, LastHost,
    MultihostState, PoolInfo, RequestedFeatures, RewindPoint, UnsupportedFeature,
};
pub use scan::{
    CheckpointInfo, ErrorScrubInfo, ExpansionInfo, ProgressState, RebuildInfo, RemovalInfo,
    ScanFunction, ScanInfo,
};
pub use service::{
    Event, EventValue, ImportError, ImportRequest, Imported, KeyProblem, MountInfo, MountProblem,
    MountRequest, RewindRequest, SearchPaths, Service,
};
pub use value::{Property, Source, Value};
pub use vdev::{ActivityState, IoCounters, SpareUse, VdevActivity, VdevClass, VdevInfo, VdevKind};
pub use waits::{CLASSES, EngineInfo, IoWaits, Latencies, READ, WRITE, bucket_end_ns};

/// Requests that only read.
///
/// Each call sees one committed state of a pool; two calls may see different states. No call changes anything
/// on a device.
pub trait Control {
    /// Names of the pools that are open, in byte order.
    fn pools(&self) -> Result<Vec<String>, ControlError>;

    /// Everything about a pool except its datasets.
    ///
    /// Errors: [`ControlError::NoSuchPool`].
    fn pool(&self, name: &str) -> Result<PoolInfo, ControlError>;

    /// The properties of one vdev (`zpool get all POOL VDEV`), user properties last. Properties that the vdev
    /// does not have are omitted.
    ///
    /// Errors: [`ControlError::NoSuchPool`], [`ControlError::NoSuchVdev`].
    fn vdev_properties(&self, pool: &str, vdev_guid: u64) -> Result<Vec<Property>, ControlError>;

    /// Calls `each` with every dataset that the query selects, one at a time and in no guaranteed order. Thus
    /// ten thousand snapshots need not be in memory at once. Stops at the first error from `each` and returns
    /// it.
    ///
    /// Errors: [`ControlError::NoSuchDataset`] if the query's root does not exist.
    fn datasets(
        &self,
        query: &DatasetQuery,
        each: &mut dyn FnMut(DatasetInfo) -> Result<(), ControlError>,
    ) -> Result<(), ControlError>;

    /// Calls `each` with every record of the pool's history, oldest first.
    ///
    /// Errors: [`ControlError::NoSuchPool`], and errors from `each`.
    fn history(
        &self,
        pool: &str,
        each: &mut dyn FnMut(HistoryRecord) -> Result<(), ControlError>,
    ) -> Result<(), ControlError>;

    /// The holds on a snapshot, by tag. Each has the time of its creation in seconds since 1970.
    ///
    /// Errors: [`ControlError::NoSuchPool`], [`ControlError::NoSuchDataset`].
    fn holds(&self, snapshot: &str) -> Result<Vec<(String, u64)>, ControlError> {
        let _ = snapshot;
        Err(ControlError::Unavailable)
    }

    /// Usage and quotas of users, groups or projects in a file system, by id.
    ///
    /// Errors: [`ControlError::NoSuchPool`], [`ControlError::NoSuchDataset`].
    fn space_by_owner(
        &self,
        dataset: &str,
        owners: OwnerKind,
    ) -> Result<Vec<OwnerSpace>, ControlError> {
        let _ = (dataset, owners);
        Err(ControlError::Unavailable)
    }

    /// Pools found on devices that are not open, in the order of discovery.
    fn importable(&self) -> Result<Vec<ImportablePool>, ControlError>;
}
