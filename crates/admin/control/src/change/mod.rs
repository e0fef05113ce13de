//! Changes of pools and datasets, as plain data.
//!
//! They refer to datasets and devices by name. Values are raw: bytes, stored text, names of indexed values.
//! Errors are values too; the program that prints them chooses the wording. Page `docs/cli.md`.

mod dataset;
mod devices;
mod error;
mod feature_file;

pub use dataset::{DatasetChange, OwnerQuota, Values};
pub use devices::{DeviceFacts, DeviceInUse, DeviceProblem, NewDevices, NewSide, TopRequest};
pub use error::{ChangeError, ChangeFailure};
pub use feature_file::{FeatureFileError, FeatureFileProblem};

use crate::{MountProblem, Secret};
use millpond_pool::FeatureChoice;

/// A request to create a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NewPoolRequest {
    /// Its name.
    pub name: String,
    /// The name to use until export instead of `name`.
    pub temporary_name: Option<String>,
    /// Its devices.
    pub devices: NewDevices,
    /// Which features to enable.
    pub features: FeatureChoice,
    /// Its properties as given, including `feature@NAME`.
    pub properties: Vec<(String, String)>,
    /// Properties of its root file system: stored text, names of indexed values, or decimal numbers.
    pub root_properties: Vec<(String, String)>,
    /// Quotas of owners in its root file system.
    pub root_quotas: Vec<OwnerQuota>,
    /// The user's key, if the root file system is to be encrypted.
    pub root_key: Option<Secret>,
    /// Whether to only check that the pool could be created.
    pub only_check: bool,
}

/// A change of a pool or of something in it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PoolChange {
    /// Adds top-level vdevs, hot spares and cache devices.
    Add(NewDevices),
    /// Destroys the pool by marking its labels.
    Destroy,
    /// Exports the pool by marking its labels.
    Export,
    /// Sets a property of the pool.
    Set {
        /// Its name.
        name: String,
        /// The value as given. For `bootfs`, a dataset's name, or empty to clear it.
        value: String,
    },
    /// Sets a property of a vdev.
    SetVdev {
        /// The vdev's guid; for the root, the pool's guid.
        guid: u64,
        /// The property's name.
        name: String,
        /// The value as given.
        value: String,
    },
    /// Enables all features, or those in a list.
    Upgrade {
        /// The version to raise it to, if it is lower. Features are enabled from 5000 on.
        version: u64,
        /// Names of the features that may be enabled; `None` for all.
        compatible: Option<Vec<String>>,
    },
    /// Changes the pool's guid.
    Reguid {
        /// The new guid; random if `None`.
        guid: Option<u64>,
    },
    /// Syncs a txg without other changes.
    Sync {
        /// Whether labels and an uberblock are written even if nothing has changed.
        forced: bool,
    },
    /// Leaves a cache file of the pool's own as it is when the pool is exported.
    KeepCacheFile,
    /// Commits no further txg, until the pool is imported again. For tests of intent logs.
    Freeze,
    /// Removes the oldest entries with one reference from the dedup tables.
    PruneDedup(PruneAmount),
    /// Reads the dedup tables into the cache.
    PrefetchDedup,
    /// Clears the error counts of devices, brings faulted and degraded devices back into use, and resumes a
    /// suspended pool.
    Clear {
        /// The guids of the leaves concerned; `None` for all.
        leaves: Option<Vec<u64>>,
    },
    /// Takes a device offline.
    Offline {
        /// The guid of its leaf.
        leaf: u64,
        /// Whether to fault it. Only [`PoolChange::Clear`] reverses this.
        is_fault: bool,
        /// Whether this lasts only until the pool is opened again.
        is_temporary: bool,
    },
    /// Brings devices online again: those that were taken offline, and lost ones that are available again.
    Online {
        /// The guids of the leaves.
        leaves: Vec<u64>,
        /// Whether their vdevs take the space of devices that have grown. Otherwise they do so only with
        /// `autoexpand=on`.
        expand: bool,
    },
    /// Looks at all devices again: takes back those that are there again, and takes out of use those whose paths are
    /// gone. Vdevs take the space of devices that have grown if `autoexpand` is on.
    Reopen {
        /// Whether a running scrub gives way to the resilver of what came back. Otherwise that waits for its end.
        resilver_now: bool,
    },
    /// Attaches a device beside a leaf: as another side of a mirror, or as its replacement.
    Attach(NewSide),
    /// Takes a device out of a mirror, or ends a replacement.
    Detach {
        /// The guid of its leaf.
        leaf: u64,
    },
    /// Makes an exported pool of one side of each mirror.
    Split(NewHalf),
    /// Removes a hot spare or cache device.
    RemoveAuxiliary {
        /// Its guid.
        guid: u64,
    },
    /// Removes a log vdev.
    RemoveLog {
        /// Its guid.
        guid: u64,
    },
    /// Begins to remove a data vdev. In a pool that is opened for one command it is removed when this returns.
    RemoveData {
        /// Its guid.
        guid: u64,
    },
    /// Cancels the removal of a data vdev.
    CancelRemoval,
    /// Changes nothing: the memory for the mapping of a data vdev that would be removed, in
    /// [`Changed::mapping_bytes`].
    EstimateRemoval {
        /// Its guid.
        guid: u64,
    },
    /// Takes a checkpoint.
    TakeCheckpoint,
    /// Begins to discard the checkpoint.
    DiscardCheckpoint,
    /// Discards the checkpoint to the end, in a pool that is opened for one command. An imported pool does that by
    /// itself.
    FinishDiscard,
    /// Starts, pauses or cancels a scrub.
    Scrub(ScrubAction),
    /// Starts a resilver, from the beginning if one runs.
    Resilver,
    /// Scrubs and resilvers to the end, in a pool that is opened for one command. An imported pool does that by
    /// itself.
    FinishScan,
    /// Changes an activity on devices. Those whose state does not change are notes of the reply.
    LeafActivity {
        /// The guids of their leaves.
        leaves: Vec<u64>,
        /// Which one.
        activity: LeafActivity,
        /// What to do.
        action: ActivityAction,
    },
    /// Continues an activity to the end, in a pool that is opened for one command. An imported pool does that by itself.
    FinishLeafActivity(LeafActivity),
    /// If the pool is suspended, discards the changes it could not write, so that it can be exported.
    /// Otherwise no effect.
    Abandon,
    /// Changes a dataset.
    Dataset(DatasetChange),
}

/// A pool to split from another one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NewHalf {
    /// Its name.
    pub name: String,
    /// The guids of the leaves that become its vdevs, one of each mirror.
    pub sides: Vec<u64>,
    /// Its properties, apart from those of the other pool: name and value.
    pub properties: Vec<(String, String)>,
}

/// What is done with all free space of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum LeafActivity {
    /// A pattern is written to it.
    Initialize,
    /// It is discarded.
    Trim,
}

/// What to do about an activity on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ActivityAction {
    /// Start it, or resume a suspended one.
    Start {
        /// Of a trim: the most bytes in a second, 0 for no limit.
        rate_bytes: u64,
        /// Of a trim: whether the device erases all copies.
        is_secure: bool,
    },
    /// Suspend it. Its progress is stored.
    Suspend,
    /// Cancel it.
    Cancel,
    /// Forget that it was done.
    Reset,
}

/// What to do about a scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ScrubAction {
    /// Start one, or resume a paused one.
    Start {
        /// Whether to read only blocks born after the last finished scrub.
        since_last: bool,
    },
    /// Start one of the blocks with known errors, or resume a paused one.
    StartErrors,
    /// Pause it. Its progress is stored.
    Pause,
    /// Cancel it.
    Cancel,
}

/// How many entries are removed from dedup tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PruneAmount {
    /// All that are older than this many days.
    Days(u64),
    /// The oldest of those with one reference: this share in per cent.
    Percent(u8),
}

impl NewPoolRequest {
    /// The event of `zpool events` that follows, without `sysevent.fs.zfs.`.
    pub const EVENT: &str = "pool_create";
}

impl PoolChange {
    /// Whether the pool is not imported any more afterwards.
    #[must_use]
    pub fn leaves(&self) -> bool {
        matches!(self, Self::Destroy | Self::Export)
    }

    /// The event of `zpool events` that follows, without `sysevent.fs.zfs.`. Changes of datasets and properties
    /// are events through the pool's history.
    #[must_use]
    pub fn event(&self) -> Option<&'static str> {
        match self {
            Self::Add(_) => Some("vdev_add"),
            Self::Destroy => Some("pool_destroy"),
            Self::Export => Some("pool_export"),
            Self::Reguid { .. } => Some("pool_reguid"),
            Self::Clear { .. } => Some("vdev_clear"),
            Self::Online { .. } => Some("vdev_online"),
            Self::Attach(_) => Some("vdev_attach"),
            Self::Detach { .. } => Some("vdev_remove"),
            Self::RemoveAuxiliary { .. } => Some("vdev_remove_aux"),
            Self::RemoveLog { .. } | Self::RemoveData { .. } => Some("vdev_remove_dev"),
            _ => None,
        }
    }
}

/// The result of successful changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Changed {
    /// Features that [`PoolChange::Upgrade`] enabled.
    pub enabled_features: Vec<String>,
    /// The memory for the mapping of the vdev of [`PoolChange::EstimateRemoval`], in bytes.
    pub mapping_bytes: u64,
    /// Follow-up steps that did not succeed.
    pub notes: Vec<Note>,
}

/// A follow-up step of a change that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Note {
    /// An activity on a device did not change.
    NoActivity {
        /// The guid of its leaf.
        leaf: u64,
        /// Why.
        why: String,
    },
    /// A file system was not mounted, although it should be.
    NotMounted {
        /// Its name.
        dataset: String,
        /// Its mount point.
        mountpoint: String,
        /// Why.
        why: MountProblem,
    },
    /// A mount could not be removed.
    StillMounted {
        /// Its name.
        dataset: String,
        /// Its mount point.
        mountpoint: String,
        /// Why.
        why: MountProblem,
    },
    /// A cache file was not written, so that it does not list the pools as they are now.
    CacheFile {
        /// Its path.
        path: String,
        /// Why.
        why: String,
    },
}
