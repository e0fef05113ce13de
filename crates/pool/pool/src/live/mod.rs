//! The write side of a pool: creates it, opens it for writing, and writes its txgs.
//!
//! [`LivePool`] is a pool open for changes. Pool-wide data (the MOS, free space, configuration, features,
//! labels) changes only while a txg is written, by the thread that holds a [`SyncContext`]. The datasets
//! above are written through a [`DatasetPort`].
//!
//! Pages `docs/format/label.md`, `docs/format/pool-config.md`, `docs/format/features.md`,
//! `docs/format/commit-order.md`, `docs/format/bpobj.md`.

mod add;
mod bpobj;
mod config;
mod context;
mod create;
mod dtl;
mod failure;
mod features;
mod history;
mod labels;
mod leaf_monitor;
mod leaves;
mod logs;
mod new_vdev;
mod open;
mod pool;
mod port;
mod properties;
mod reopen;
mod replication;
mod scan;
mod sink;
mod space;
mod sync;
mod tables;
mod tasks;
#[cfg(test)]
mod tests;
mod topology;
mod vdev_properties;
mod writability;

pub use bpobj::{BpObject, Drain, is_shared_empty, new_empty_list, release_shared_empty};
pub use config::{PoolConfig, auxiliary_label_list};
pub use context::{SpaceChange, SyncContext};
pub use create::{CreateError, FIRST_TXG, NewPool, POOL_NAME_BYTES_MAX, check_pool_name};
pub use failure::{FailMode, Suspension};
pub use features::{
    FeatureChange, FeatureChoice, FeatureCounts, FeatureEdit, FeatureError, POOL_VERSION_FEATURES,
    demand_written, features_of_new_pool, is_enabled_by_default,
};
pub use history::{HistoryCommand, HistoryEvent, NotedEvent, Opening, pool_event_text};
pub use labels::{
    Cleared, Commit, CommitError, CommitReport, LabelError, LabelHalf, LeafWrite, RoundReport,
    WriteOrder, all_tops, clear_labels, commit, flush, next_uberblock, write_auxiliary_labels,
    write_initial_labels, write_labels, write_uberblock,
};
pub use leaf_monitor::{LeafEvent, LeafEventKind};
pub use leaves::{LeafError, Offline};
pub use logs::{FoundBlock, FoundLog, FoundLogs};
pub use millpond_block::RequestDeadline;
pub use new_vdev::{
    BuiltVdevs, DeviceUse, NewDevice, NewLayout, NewTop, NewVdevError, NewVdevOptions, NewVdevs,
    build_vdevs, find_use, random_u64,
};
pub use open::WriteOptions;
pub use pool::{LivePool, SyncMode};
pub use port::DatasetPort;
pub use properties::{PoolSetting, SettingError, SettingTime};
pub use replication::{Replication, ReplicationMismatch, check_replication};
pub use vdev_properties::VdevSetting;
pub use writability::{ReadOnlyReason, WhyReadOnly, WritabilityError, check_writable};
