//! Layer `storage`: cache devices, the second level of the adaptive replacement cache (L2ARC).
//!
//! A [`CacheDevice`] holds copies of blocks as they are stored in the pool, in the order in which they were
//! written: a *hand* rotates over the device, and what lies ahead of it is forgotten. An index in memory finds
//! the copies. Log blocks on the device describe them, so that the index can be rebuilt when the pool is opened.
//!
//! Nothing on a cache device is trusted. The caller verifies each copy with the pointer of the block that it
//! reads, and reads the pool instead when there is any trouble. Stale entries are harmless for the same reason.
//! After a few errors a device is no longer used.
//!
//! This crate starts no thread and has no notion of pools or of what blocks mean.
//!
//! Page: `docs/format/l2arc.md`.
#![forbid(unsafe_code)]

mod counters;
mod device;
mod feed;
mod index;
mod rebuild;
#[cfg(test)]
mod tests;

pub use counters::CacheDeviceStats;
pub use device::{CacheDevice, CacheDeviceId, UnusableDevice};
pub use index::BlockKey;

use millpond_env::sync::Arc;
use millpond_ondisk::l2arc::EntryProperties;

/// A block to be copied to a cache device.
#[derive(Debug, Clone)]
pub struct Buffer {
    /// Which block it is.
    pub key: BlockKey,
    /// What the entry says of it.
    pub properties: EntryProperties,
    /// The bytes as they are stored in the pool: `properties.stored_bytes`.
    pub bytes: Arc<Vec<u8>>,
}
