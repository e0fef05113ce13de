//! Requests about pools and their replies, as plain data.
//!
//! [`Request`] has all requests, [`Service`] answers them. `millpond-service` does so in this process; a daemon at
//! the other end of a socket can too. Replies are raw values: bytes, seconds, hundredths, stored numbers. Units,
//! dates and wording are up to the program that prints them. Page `docs/cli.md`.
//!
//! Nothing in this crate does I/O or depends on how the replies are found.
#![forbid(unsafe_code)]

mod about;
mod arc;
mod change;
mod change_progress;
mod condition;
mod dataset;
mod diff;
mod error;
mod event;
mod failure;
mod health;
mod history;
mod import;
mod import_progress;
mod mount;
mod permission;
mod pool;
mod program;
pub mod properties;
mod receive;
mod request;
mod scan;
mod secret;
mod send;
mod tunable;
mod value;
mod vdev;
mod waits;

pub use about::About;
pub use arc::{ArcInfo, ArcLookups, ArcMemory};
pub use change::{
    ActivityAction, ChangeError, ChangeFailure, Changed, DatasetChange, DeviceFacts, DeviceInUse,
    DeviceProblem, FeatureFileError, FeatureFileProblem, LeafActivity, NewDevices, NewHalf,
    NewPoolRequest, NewSide, Note, OwnerQuota, PoolChange, PruneAmount, ScrubAction, TopRequest,
    Values,
};
pub use change_progress::ChangeProgress;
pub use condition::{Condition, Purpose, condition};
pub use dataset::{DatasetInfo, DatasetQuery, Wanted};
pub use diff::{DiffQuery, PathChange, PathDifference, escape_path, unescape_path};
pub use error::ControlError;
pub use event::{Event, EventValue};
pub use failure::{Failure, UnmountFailure};
pub use health::{SuspendReason, VdevAux, VdevState};
pub use history::{HistoryEvent, HistoryRecord, HistoryValue};
pub use import::{ImportError, ImportRequest, Imported, RewindRequest, SearchPaths};
pub use import_progress::ImportProgress;
pub use millpond_dataset::properties::{OwnerKind, OwnerSpace, ResumeToken};
pub use millpond_dataset::{
    PERMISSIONS, PermissionGrant, PermissionSubject, is_permission, is_permission_set,
    lost_root_text,
};
pub use millpond_ondisk::dsl::{PermissionHolder, PermissionReach};
pub use millpond_ondisk::{FEATURES, Feature, FeatureFlags, PoolVersion};
pub use millpond_pool::NewerDevices;
pub use millpond_pool::{CheckpointRefusal, FeatureError, check_pool_name};
pub use mount::{KeyProblem, MountInfo, MountProblem, MountRequest};
pub use permission::DatasetPermissions;
pub use pool::{
    DataError, DedupBucket, DedupStats, FeatureInfo, FeatureState, ImportablePool, LastHost,
    MultihostState, PoolInfo, RequestedFeatures, RewindPoint, StuckFreeing, UnsupportedFeature,
};
pub use program::{ProgramProblem, ProgramRequest, ProgramValue};
pub use receive::{
    IncomingKind, ReceiveFailure, ReceiveNaming, ReceiveProblem, ReceiveStep, ReceiveStream,
    Received,
};
pub use request::{Item, Reply, Request, Rights, Service};
pub use scan::{
    CheckpointInfo, ErrorScrubInfo, ExpansionInfo, ProgressState, RebuildInfo, RemovalInfo,
    ScanFunction, ScanInfo,
};
pub use secret::{KEY_BYTES_MAX, Secret};
pub use send::{SendPackage, SendPlan, SendProblem, SendStep, SendStream};
pub use tunable::TunableInfo;
pub use value::{Property, Source, Value};
pub use vdev::{ActivityState, IoCounters, SpareUse, VdevActivity, VdevClass, VdevInfo, VdevKind};
pub use waits::{CLASSES, EngineInfo, IoWaits, Latencies, READ, WRITE, bucket_end_ns};
