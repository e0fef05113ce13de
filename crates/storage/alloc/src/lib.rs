//! Layer `storage`: the free space of top-level vdevs.
//!
//! This crate handles ranges of space and changes to them, not their storage. Space maps lie in objects of
//! the pool itself, so the layer that knows objects implements [`SpaceMapStore`] and passes it in. This
//! crate does no device I/O. The reading side is geometry, replay, and the space values that
//! `zpool list` and `zfs list` print. The writing side is [`PoolAllocator`], which writes through [`SpaceMapWriter`].
//!
//! ```
//! use millpond_alloc::RangeSet;
//! let mut free = RangeSet::from_range(0..1 << 20);
//! free.remove(4096..8192).unwrap();
//! assert_eq!(free.bytes(), (1 << 20) - 4096);
//! assert!(free.remove(0..8192).is_err());
//! ```
//!
//! Pages: `docs/format/space-map.md`, `docs/format/log-space-map.md`, `docs/format/space-accounting.md`;
//! the allocator's policy: `docs/allocator.md`.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

mod allocator;
mod error;
mod fragmentation;
mod geometry;
mod range_set;
mod replay;
mod store;
mod usage;

pub use allocator::{
    AllocRequest, BlockSizes, HeldSpace, Hold, HoldLimits, LogPolicy, MapName, MapShape, NoSpace,
    OpenedLog, OpenedMetaslab, OpenedVdev, Placement, PoolAllocator, SpaceMapForms, SpaceMapWriter,
    UsedSpace, VdevSpace,
};
pub use error::{AllocError, StoreError};
pub use fragmentation::{
    MetaslabFragmentation, metaslab_fragmentation, pool_fragmentation, vdev_fragmentation,
};
pub use geometry::{
    AllocationClass, Metaslab, MetaslabId, VdevGeometry, embedded_log_metaslab,
    metaslab_shift_for_new_vdev,
};
pub use range_set::{RangeConflict, RangeSet};
pub use replay::{MetaslabSpace, UnflushedChanges, UnflushedLogs, load_metaslab};
pub use store::{LogRecord, SpaceMapStore, SpaceRecord, decode_log_records, decode_records};
pub use usage::{
    ClassUsage, DirectoryLimits, HeadLimits, PoolLimit, PoolUsage, SlopShare, VdevUsage,
    available_in_directory, available_in_head, deflate_ratio, deflated_bytes,
    deflated_pointer_bytes, slop_bytes,
};
