//! Statistics of a cache device.

use crate::index::BytesByKind;
use millpond_env::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counts since the device was opened.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        /// Statistics of a cache device, since it was opened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct CacheDeviceStats {
            $($(#[doc = $doc])* pub $name: u64,)*
            /// Bytes of the area for buffers and log blocks.
            pub area_bytes: u64,
            /// Bytes of it that are in use.
            pub used_bytes: u64,
            /// Buffers that can be found.
            pub buffers: u64,
            /// Bytes of their blocks as stored.
            pub stored_bytes: u64,
            /// Bytes of the area that the buffers take, by kind.
            pub by_kind: BytesByKind,
            /// Bytes that the index takes in memory.
            pub index_bytes: u64,
            /// Log blocks on the device.
            pub log_blocks: u64,
            /// Whether the device is in use: it is not after a few errors.
            pub is_usable: bool,
        }

        impl Counters {
            pub(crate) fn stats(&self) -> CacheDeviceStats {
                CacheDeviceStats {
                    $($name: self.$name.get(),)*
                    ..CacheDeviceStats::default()
                }
            }
        }

        impl CacheDeviceStats {
            /// The counts without what the device holds, for the time after it is gone.
            #[must_use]
            pub fn counts(&self) -> Self {
                Self {
                    $($name: self.$name,)*
                    ..Self::default()
                }
            }

            /// Adds those of another device. The sum is usable if one of them is.
            pub fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
                self.area_bytes = self.area_bytes.saturating_add(other.area_bytes);
                self.used_bytes = self.used_bytes.saturating_add(other.used_bytes);
                self.buffers = self.buffers.saturating_add(other.buffers);
                self.stored_bytes = self.stored_bytes.saturating_add(other.stored_bytes);
                self.by_kind.add(&other.by_kind);
                self.index_bytes = self.index_bytes.saturating_add(other.index_bytes);
                self.log_blocks = self.log_blocks.saturating_add(other.log_blocks);
                self.is_usable |= other.is_usable;
            }
        }
    };
}

counters! {
    /// Reads that returned the block.
    hits,
    /// Look-ups that found nothing.
    misses,
    /// Reads of buffers whose bytes were wrong.
    checksum_errors,
    /// Reads that failed.
    read_errors,
    /// Writes and flushes that failed.
    write_errors,
    /// Reads of buffers.
    reads,
    /// Bytes read.
    read_bytes,
    /// Writes.
    writes,
    /// Bytes written.
    write_bytes,
    /// Rounds that wrote something.
    feeds,
    /// Buffers forgotten because the hand came to them.
    evicted,
    /// Log blocks written.
    log_writes,
    /// Whether the index was rebuilt from the log blocks of the device: 1 or 0.
    rebuilds,
    /// Why there was no rebuild: the header was not acceptable.
    rebuild_header_errors,
    /// Log blocks that could not be read.
    rebuild_read_errors,
    /// Log blocks whose bytes were wrong.
    rebuild_checksum_errors,
    /// Rebuilds that ended early because the index was full.
    rebuild_full,
    /// Buffers that the rebuild found.
    rebuilt_buffers,
    /// Bytes of their blocks as stored.
    rebuilt_bytes,
    /// Log blocks that the rebuild read.
    rebuilt_log_blocks,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
