//! Opens a pool with everything in it: datasets with their keys, file systems and volumes with their intent logs.
//!
//! [`Pool`] is open for change, [`View`] is one committed state. The crates below know nothing of each other's
//! neighbours; this one connects them. Programs that embed Millpond use the crate `millpond`.
#![forbid(unsafe_code)]

mod builder;
mod dataset;
mod diff;
mod error;
mod initializer;
mod past;
mod pool;
mod program;
mod properties;
mod receive;
mod replay;
mod search;
mod send;
mod served;
mod split;
mod tx_provider;
mod view;

pub use builder::{PoolBuilder, open_device};
pub use dataset::Dataset;
pub use error::Error;
pub use initializer::FileSystemInitializer;
pub use millpond_block::{
    BlockAddress, BlockCache, BlockError, LeafCondition, LeafReason, LeafState,
    Lookups as CacheLookups, RequestError, RequestErrorKind,
};
pub use millpond_dataset::properties::{DatasetKind, OwnerKind, OwnerSpace};
pub use millpond_dataset::{
    Bookmark, Creator, DatasetError, DatasetSpace, Datasets, DestroyOptions, HeadDataset, Hold,
    InUse as InUseSnapshot, KeyChange, KeyFormat, KeyRefusal, NAME_BYTES_MAX, NewDataset,
    PropertySource, PropertyValue, Refusal, RootKey, is_key_location,
};
pub use millpond_device::DeviceError;
pub use millpond_diff::{Change as FileChange, DiffError, Difference, Flow as DiffFlow};
pub use millpond_nvlist::NvList;
pub use millpond_object::{ObjectError, ObjectSetView, ObjectView, ReadableObject};
pub use millpond_ondisk::{BlockId, ObjectId, Txg, acl};
pub use millpond_pool::import::{Found, PoolCandidate, PoolState, Rewind, RewindError};
pub use millpond_pool::{
    ActivityAction, ActivityRefusal, AttachError, AttachKind, CreateError, DataEvent, DraidShape,
    FeatureChoice, FoundLogs, GrowError, Growth, HistoryCommand, LeafActivity, LeafError,
    LeafEvent, LeafEventKind, NewDevice, NewLayout, NewPool, NewTop, NewVdevError, NewVdevOptions,
    NewVdevs, NotedEvent, Offline, OpenError, OpenOptions, PoolError, PoolSetting, RebuildLimits,
    Replication, ReplicationMismatch, RequestDeadline, ResilverKind, ScanNote, ScanRefusal,
    ScrubRange, SettingError, SettingTime, SliceLimits, SplitError, SplitRefusal, SyncMode,
    TrimOptions, VdevSetting, WhyReadOnly, WriteOptions,
};
/// The newest version of file systems, and the only one that can be written.
pub use millpond_posix::VERSION as FILE_SYSTEM_VERSION;
pub use millpond_posix::vfs::{SnapshotChange, Vfs, ZfsCtlDir};
pub use millpond_posix::{
    Allocate, CHUNK_BYTES, Caller, DirEntryRef, DirectoryEntries, DirectoryEntry, Errno, Extent,
    FileError, FileFlags, FileKind, FileStatistics, FileSystem, NewMode, Node, QuotaMeasure,
    QuotaOwner, RenameMode, Seek, SetAttributes, SetTime, SpecialFile, Stat, Symlinks, Timestamp,
    TransactionError, WriteAt, XattrMode, is_safe_name,
};
pub use millpond_receive::{IncomingKind, ReceiveFailure, ReceiveProblem, ReceiveStep};
pub use millpond_scan::{Limits as ScanLimits, References, ScanError, Scanner, references};
pub use millpond_send::{ResumeFrom, SendError, SendFlags};
pub use millpond_vdev::{AllocationClass, VdevType};
pub use millpond_verify::LostMetadata;
pub use millpond_volume::{Volume, VolumeError, VolumeExtent};
pub use past::{PastState, Survey, past_states};
pub use pool::{Pool, SCAN_FOR_WRITING};
pub use program::{PROGRAM_INSTRUCTIONS, PROGRAM_MEMORY_BYTES, Program, ProgramError};
pub use properties::LiteralProperty;
pub use receive::{
    Naming, ReceiveOutcome, ReceiveRequest, ReceiveWatch, ReceivingUser, Unwatched, UserChange,
    UserRights, receive_nowhere,
};
pub use search::{Search, read_cache_file};
pub use send::{PackageOptions, SendPlan, SendRequest, SendStep};
pub use served::{AccessTimes, MountSettings, SnapshotControl};
pub use split::{HalfError, NewHalf};
pub use view::{DatasetIter, View, is_in_use};
