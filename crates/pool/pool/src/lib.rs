//! Layer `pool`: finds, assembles and opens pools, and holds the state that belongs to a whole pool.
//!
//! [`import`] finds labels on devices. [`PoolView::open`] leads from the labels to the meta object set, and
//! from there to the pool's features, configuration, history, error log and statistics. A [`PoolView`] is one
//! committed state and never changes.
//!
//! A [`Pool`] is open for changes. Pool-wide data (the MOS, free space, configuration, features, labels)
//! changes only while a txg is written, by the thread that holds a [`SyncContext`]. This crate does not know
//! datasets or files; the datasets above are written through a [`DatasetPort`].
//!
//! Pages: `docs/format/import.md`, `docs/format/pool-config.md`, `docs/format/features.md`,
//! `docs/format/label.md`, `docs/format/commit-order.md`, `docs/format/bpobj.md`.
#![forbid(unsafe_code)]

mod bpobj;
mod checkpoint;
mod clones;
mod config;
mod create;
mod dedup;
mod error;
mod error_log;
mod expansion;
mod failure;
mod features;
mod freeze;
mod history;
pub mod import;
mod import_notes;
mod labels;
mod logs;
mod multihost;
mod object_directory;
mod open;
mod open_for_writing;
mod packed;
mod pins;
mod pool;
mod port;
pub mod properties;
mod raise;
mod removal;
mod scan;
mod space;
mod sync;
#[cfg(test)]
mod tests;
mod threads;
mod usage;
mod vdevs;
mod view;
mod writability;

pub use bpobj::{
    BpObject, Drain, acquire_shared_empty, is_shared_empty, new_empty_list, release_shared_empty,
    shared_empty,
};
pub use checkpoint::CheckpointRefusal;
pub use clones::BLOCK_CLONING;
pub use config::{PoolConfig, auxiliary_label_list};
pub use create::{CreateError, FIRST_TXG, NewPool, POOL_NAME_BYTES_MAX, check_pool_name};
pub use dedup::{PruneBy, PrunedEntries};
pub use error::PoolError;
pub use error_log::LoggedError;
pub use failure::{FailMode, Suspension, SuspensionCause};
pub use features::counts::{
    FeatureChange, FeatureChoice, FeatureCounts, FeatureEdit, FeatureError, POOL_VERSION_FEATURES,
    demand_written, features_of_new_pool, is_enabled_by_default,
};
pub use features::{Features, UnsupportedFeature};
pub use history::History;
pub use history::append::{HistoryCommand, HistoryEvent, NotedEvent, Opening, pool_event_text};
pub use import_notes::{ImportNote, ImportNotes};
pub use labels::{
    Cleared, Commit, CommitError, CommitReport, LabelError, LabelHalf, LeafWrite, RoundReport,
    WriteOrder, all_tops, clear_labels, commit, flush, next_uberblock, write_auxiliary_labels,
    write_initial_labels, write_labels, write_uberblock,
};
pub use logs::{FoundBlock, FoundBlockKind, FoundLog, FoundLogs};
pub use millpond_block::RequestDeadline;
pub use multihost::WatchedPool;
pub use open::{OpenError, OpenOptions, copies_text};
pub use open_for_writing::WriteOptions;
pub use packed::{PACKED_LIST_BYTES_MAX, read_packed_list};
pub use pool::{Pool, SyncMode};
pub use port::DatasetPort;
pub use properties::set::{PoolSetting, SettingError, SettingTime};
pub use properties::set_vdev::VdevSetting;
pub use scan::{
    ErrorSlice, ErrorSliceOutcome, NEXT_DATASET, ScanEvent, ScanLosses, ScanNote, ScanPass,
    ScanQueue, ScanRefusal, ScanSlice, ScrubRange, SliceOutcome,
};
pub use space::{
    CloneTotals, DEDUP_BUCKETS, DedupBucket, DedupTotals, PoolSpace, PoolSpaceMaps, VdevSpace,
};
pub use sync::context::{SpaceChange, SyncContext};
pub use vdevs::CopyLimits;
pub use vdevs::activity::{
    ActivityAction, ActivityRefusal, LeafActivity, SliceLimits, TrimOptions,
};
pub use vdevs::add::BesideRemoved;
pub use vdevs::attach::{AttachError, ResilverKind};
pub use vdevs::cache_devices::CacheDeviceError;
pub use vdevs::grow::{GrowError, Growth};
pub use vdevs::leaf_monitor::{DataEvent, LeafEvent, LeafEventKind};
pub use vdevs::leaves::{LeafError, Offline};
pub use vdevs::new_vdev::{
    BuiltVdevs, DeviceUse, DraidShape, NewDevice, NewLayout, NewTop, NewVdevError, NewVdevOptions,
    NewVdevs, build_vdevs, find_use, random_u64,
};
pub use vdevs::of_versions::NewerDevices;
pub use vdevs::rearrange::{AttachKind, AttachRefusal, DetachRefusal, SplitRefusal};
pub use vdevs::rebuild::{RebuildLimits, RebuildPass};
pub use vdevs::remove::RemoveError;
pub use vdevs::replication::{Replication, ReplicationMismatch, check_replication};
pub use vdevs::spares::is_labelled_as;
pub use vdevs::split::{SplitError, SplitHalf, SplitSide};
pub use view::PoolView;
pub use writability::{ReadOnlyReason, WhyReadOnly, WritabilityError, check_writable};
