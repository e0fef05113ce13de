//! Layer `storage`: reads and writes blocks.
//!
//! A [`BlockStore`] turns block pointers into bytes whose checksum was verified in memory. It picks a copy,
//! asks the vdev tree which leaves to read, verifies, reassembles gang blocks, decrypts, authenticates and
//! decompresses. It counts every wrong copy against the device that returned it, and keeps what it read in
//! a bounded cache. It handles pointers and devices; it has no notion of objects.
//!
//! Pages: `docs/format/block-pointer.md`, `docs/format/gang-header.md`.
#![forbid(unsafe_code)]

mod address;
mod audit;
mod block_cache;
mod buffer_pool;
mod cache_devices;
mod copies;
mod copy;
mod copy_locks;
mod damage;
mod error;
mod evacuate;
mod expiry;
mod gang;
mod gang_headers;
mod io_stats;
mod io_watch;
mod leaf_counters;
mod leaf_device;

mod leaf_queue;
mod leaf_requests;
mod leaf_status;
mod log;
mod many;
mod prefetch;
mod progress;
mod reflow;
mod replace;
mod request_errors;
mod requests;
mod retry;
mod store;
mod topology;
mod unflushed;
mod write;
mod write_lease;

pub use address::BlockAddress;
pub use audit::{BlockAudit, Healed};
pub use block_cache::{BlockCache, SpareMemory};
pub use buffer_pool::PooledBuf;
pub use cache_devices::{Fed, FeedLimits, UsedOnce};
pub use copy::{Copied, CopyPass};
pub use damage::{DamagedBlock, PointerValidity};
pub use error::{BlockError, CopyFailure};
pub use evacuate::SideContents;
pub use expiry::ViewExpiry;
pub use io_stats::{IoClass, IoClock, IoStats, SIZE_BUCKETS, TimeStats, WAIT_BUCKETS};
pub use leaf_counters::{LeafCounters, LeafStats};
pub use leaf_status::{LeafCondition, LeafMonitor, LeafReason, LeafRefusal, LeafState, LeafStatus};
pub use log::LogBlock;
pub use millpond_cache::{CacheStatistics, Lookups, Retention};
pub use millpond_l2arc::{CacheDeviceId, CacheDeviceStats, UnusableDevice};
pub use prefetch::PrefetchStats;
pub use reflow::ReflowPass;
pub use replace::Replaced;
pub use request_errors::{RequestError, RequestErrorKind};
pub use requests::{NoAnswer, RequestDeadline, unhurried};
pub use retry::{RetryPolicy, RetryingThread};
pub use store::BlockStore;
pub use topology::Topology;
pub use write::{
    Allocate, BlockWrite, Dedup, EncodedContent, FlushError, FoundBlock, LogWrite, Missed, NoSpace,
    Seal, SharedBlocks, SpaceRequest, WantedBlock, WriteBackErrors, WriteKey, WrittenBlock,
    WrittenForm,
};
pub use write_lease::WriteLease;

use millpond_env::sync::Arc;
use millpond_ondisk::Endian;

/// A block's content: verified, decrypted and decompressed, in its writer's byte order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The logical bytes (`lsize` of the pointer), shared with their writer.
    pub bytes: Arc<Vec<u8>>,
    /// The byte order of integers in `bytes`.
    pub endian: Endian,
    /// Set for dnode blocks of a locked dataset: the bonus areas are still encrypted, the rest is plain.
    pub has_ciphertext: bool,
}
