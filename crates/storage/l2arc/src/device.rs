//! A cache device: opening, and reads of buffers.

use crate::counters::{CacheDeviceStats, Counters};
use crate::feed::Hand;
use crate::index::{BlockKey, Index};
use millpond_device::Device;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex};
use millpond_ondisk::l2arc::CacheLayout;
use millpond_ondisk::{Ashift, Guid};

/// After this many errors a device is no longer used.
const ERRORS_MAX: u64 = 8;

/// Which device of which pool it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheDeviceId {
    /// The pool.
    pub pool_guid: Guid,
    /// The device.
    pub vdev_guid: Guid,
    /// log2 of its unit of allocation, 9 to 16.
    pub ashift: Ashift,
}

/// The device cannot be a cache device: it is too small, or its ashift is impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnusableDevice;

impl std::fmt::Display for UnusableDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the device is too small for a cache device, or its ashift is not 9 to 16")
    }
}
impl std::error::Error for UnusableDevice {}

/// A cache device that is in use.
///
/// Locks: the hand is held while a batch is written and while the index is rebuilt. The index is held for a few
/// instructions; a reader takes no other lock.
#[derive(Debug)]
pub struct CacheDevice {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) id: CacheDeviceId,
    pub(crate) layout: CacheLayout,
    pub(crate) is_writable: bool,
    pub(crate) hand: Mutex<Hand, rank::CacheDeviceHand>,
    pub(crate) index: Mutex<Index, rank::Leaf>,
    pub(crate) counters: Counters,
    /// The most bytes that the index may take in memory.
    pub(crate) index_bytes_max: AtomicU64,
    /// Copies from the hand, for statistics.
    pub(crate) used_bytes: AtomicU64,
    pub(crate) log_blocks: AtomicU64,
    errors: AtomicU64,
    is_stopped: AtomicBool,
}

impl CacheDevice {
    /// A cache device whose content is not known yet: [`CacheDevice::rebuild`] comes next. Reads and writes
    /// nothing. `is_writable` is false in a pool that is open for reading only.
    ///
    /// # Errors
    /// [`UnusableDevice`].
    pub fn new(
        device: Arc<dyn Device>,
        id: CacheDeviceId,
        is_writable: bool,
    ) -> Result<Self, UnusableDevice> {
        let layout = CacheLayout::new(device.size_bytes(), id.ashift).ok_or(UnusableDevice)?;
        Ok(Self {
            device,
            id,
            layout,
            is_writable,
            hand: Mutex::new(Hand::new(&layout)),
            index: Mutex::new(Index::new(layout)),
            counters: Counters::default(),
            index_bytes_max: AtomicU64::new(u64::MAX),
            used_bytes: AtomicU64::new(0),
            log_blocks: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
        })
    }

    /// Which device it is.
    #[must_use]
    pub fn id(&self) -> CacheDeviceId {
        self.id
    }

    /// Limits the memory of the index, in bytes. At the limit the oldest buffers stay, and no new ones are
    /// written.
    pub fn set_index_bytes_max(&self, bytes: u64) {
        self.index_bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// Whether it has a copy of a block. Not counted.
    #[must_use]
    pub fn contains(&self, key: &BlockKey) -> bool {
        self.index.lock().get(key).is_some()
    }

    /// Forgets the copy of a block whose bytes in the pool were changed.
    pub fn forget(&self, key: &BlockKey) {
        self.index.lock().remove(key);
    }

    /// Reads the copy of a block of `stored_bytes`, if there is one for which `is_right` holds. Every error is
    /// counted, and none is returned: the caller reads the pool instead.
    ///
    /// Allocates `stored_bytes`, rounded up to the unit of the device.
    #[must_use]
    pub fn read(
        &self,
        key: &BlockKey,
        stored_bytes: u64,
        is_right: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Option<Vec<u8>> {
        if !self.is_usable() {
            return None;
        }
        let place = self.index.lock().get(key);
        let Some(place) = place.filter(|place| place.properties.stored_bytes == stored_bytes)
        else {
            self.counters.misses.add(1);
            return None;
        };
        let aligned_bytes = self.layout.aligned(stored_bytes);
        let length = usize::try_from(aligned_bytes).ok()?;
        self.counters.reads.add(1);
        let mut bytes = match self.device.read_vec(place.offset_bytes, length) {
            Ok(bytes) => bytes,
            Err(_) => {
                self.counters.read_errors.add(1);
                self.index.lock().remove(key);
                self.note_error();
                return None;
            }
        };
        self.counters.read_bytes.add(aligned_bytes);
        bytes.truncate(usize::try_from(stored_bytes).ok()?);
        if is_right(&bytes) {
            self.counters.hits.add(1);
            return Some(bytes);
        }
        // The hand may have come to it meanwhile; then the device is not to blame.
        let mut index = self.index.lock();
        if index.get(key) == Some(place) {
            index.remove(key);
            drop(index);
            self.counters.checksum_errors.add(1);
        } else {
            drop(index);
            self.counters.misses.add(1);
        }
        None
    }

    /// Whether the device is in use. After a few errors it is not.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        !self.is_stopped.load(Ordering::Acquire)
    }

    /// Stops using the device: a rebuild or a batch ends with the request that is under way.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
    }

    pub(crate) fn note_error(&self) {
        if self.errors.fetch_add(1, Ordering::Relaxed) + 1 >= ERRORS_MAX {
            self.stop();
            self.index.lock().clear();
        }
    }

    /// Statistics.
    #[must_use]
    pub fn stats(&self) -> CacheDeviceStats {
        let index = self.index.lock();
        let (buffers, stored_bytes) = (index.len(), index.stored_bytes());
        let (index_bytes, by_kind) = (index.memory_bytes(), index.bytes_by_kind());
        drop(index);
        CacheDeviceStats {
            area_bytes: self.layout.area_bytes(),
            used_bytes: self.used_bytes.load(Ordering::Relaxed),
            buffers,
            stored_bytes,
            by_kind,
            index_bytes,
            log_blocks: self.log_blocks.load(Ordering::Relaxed),
            is_usable: self.is_usable(),
            ..self.counters.stats()
        }
    }
}
