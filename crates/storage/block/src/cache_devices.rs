//! The cache devices of a pool: copies of blocks that the cache is about to evict (L2ARC).
//!
//! A block that is not cached is looked for on the cache devices before the pool is read. A copy counts only if
//! it has the checksum of the pointer; otherwise the pool is read as if there were no cache device. Errors of
//! cache devices are counted and never returned.
//!
//! [`BlockStore::feed_cache_devices`] makes one round: it copies candidates of the cache to one device. The caller
//! decides when, in which thread.

mod timed;

use crate::block_cache::{CacheKey, Cached};
use crate::{BlockAddress, BlockStore};
use millpond_cache::{Candidate, Class};
use millpond_device::Device;
use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use millpond_env::sync::{Arc, Mutex, RwLock};
use millpond_l2arc::{
    BlockKey, Buffer, CacheDevice, CacheDeviceId, CacheDeviceStats, UnusableDevice,
};
use millpond_ondisk::l2arc::EntryProperties;
use millpond_ondisk::{BlockPointer, ChecksumKind, CompressionKind, Guid, Txg};
use timed::TimedDevice;

/// The most entries of each list of the cache that one round looks at.
const ENTRIES_MAX: usize = 8192;

/// How much is copied to cache devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedLimits {
    /// The most bytes of one round (`l2arc_write_max`).
    pub write_bytes_max: u64,
    /// As much more until something was evicted from the cache (`l2arc_write_boost`).
    pub write_bytes_boost: u64,
    /// Which blocks that were used only once are left out (`l2arc_mfuonly`).
    pub left_out: UsedOnce,
}

/// Blocks that were used only once, of which cache devices get no copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UsedOnce {
    /// None: all are copied.
    #[default]
    None,
    /// Data and metadata.
    All,
    /// Data.
    Data,
}

impl UsedOnce {
    /// From the number of the tunable.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        match number {
            0 => Self::None,
            1 => Self::All,
            _ => Self::Data,
        }
    }

    fn has(self, properties: &EntryProperties) -> bool {
        let is_meant = match self {
            Self::None => false,
            Self::All => true,
            Self::Data => !properties.is_metadata,
        };
        is_meant && !properties.is_frequent
    }
}

impl Default for FeedLimits {
    /// 32 MiB each, as OpenZFS has it.
    fn default() -> Self {
        Self {
            write_bytes_max: 32 << 20,
            write_bytes_boost: 32 << 20,
            left_out: UsedOnce::None,
        }
    }
}

/// What a round of feeding did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fed {
    /// Bytes written, without headers and log blocks.
    pub bytes: u64,
    /// Whether it wrote more than half of what it may: the next round should come soon.
    pub is_busy: bool,
}

/// The cache devices of a store and its views.
#[derive(Default)]
pub(crate) struct CacheDevices {
    list: RwLock<Arc<Vec<Arc<CacheDevice>>>, rank::Leaf>,
    is_any: AtomicBool,
    /// The device of the next round.
    next: AtomicUsize,
    /// What the cache looked like when a round found nothing to do.
    idle: Mutex<Option<[u64; 4]>, rank::Leaf>,
}

impl CacheDevices {
    fn all(&self) -> Arc<Vec<Arc<CacheDevice>>> {
        Arc::clone(&self.list.read())
    }
    fn change(&self, change: impl FnOnce(&mut Vec<Arc<CacheDevice>>)) {
        let mut list = self.list.write();
        let mut devices = list.to_vec();
        change(&mut devices);
        self.is_any.store(!devices.is_empty(), Ordering::Release);
        let old = std::mem::replace(&mut *list, Arc::new(devices));
        drop(list);
        // Outside of the lock: dropping a device waits for its threads.
        drop(old);
        *self.idle.lock() = None;
    }
}

impl BlockStore {
    /// Uses a device as cache device, in place of one with the same guid. Nothing is read or written before the
    /// first round of [`BlockStore::feed_cache_devices`], which reads what the device has. A device that is not
    /// `is_writable` is read only.
    ///
    /// # Errors
    /// [`UnusableDevice`].
    pub fn add_cache_device(
        &self,
        device: Arc<dyn Device>,
        id: CacheDeviceId,
        is_writable: bool,
    ) -> Result<(), UnusableDevice> {
        let topology = self.topology();
        let device = TimedDevice::new(device, topology.clock.clone(), topology.deadline);
        let device = Arc::new(CacheDevice::new(Arc::new(device), id, is_writable)?);
        self.remove_cache_device(id.vdev_guid);
        self.cache.add_cache_device(&device);
        self.cache_devices.change(|devices| devices.push(device));
        Ok(())
    }

    /// Stops using a cache device. Returns whether it was in use. A request that is under way may still end.
    pub fn remove_cache_device(&self, vdev_guid: Guid) -> bool {
        let is_it = |device: &Arc<CacheDevice>| device.id().vdev_guid == vdev_guid;
        let removed = self
            .cache_devices
            .all()
            .iter()
            .find(|device| is_it(device))
            .cloned();
        if let Some(removed) = &removed {
            removed.stop();
            self.cache.remove_cache_device(removed);
            self.cache_devices
                .change(|devices| devices.retain(|device| !is_it(device)));
        }
        removed.is_some()
    }

    /// Stops using all cache devices.
    pub fn remove_cache_devices(&self) {
        for device in self.cache_devices.all().iter() {
            self.remove_cache_device(device.id().vdev_guid);
        }
    }

    /// Statistics of each cache device, by guid.
    #[must_use]
    pub fn cache_device_stats(&self) -> Vec<(Guid, CacheDeviceStats)> {
        let devices = self.cache_devices.all();
        let stats = devices
            .iter()
            .map(|device| (device.id().vdev_guid, device.stats()));
        stats.collect()
    }

    /// One round: looks what new devices have, and copies candidates of the cache to one device. Rounds should be
    /// a second apart, or a fifth of it while they are busy. Two rounds at once are useless, but harmless.
    ///
    /// Memory: the index of all devices takes at most a third of the cache's limit, beside the cache; and
    /// 16 MiB while writing.
    pub fn feed_cache_devices(&self, limits: &FeedLimits) -> Fed {
        let devices = self.cache_devices.all();
        if devices.is_empty() {
            return Fed::default();
        }
        rank::check_io();
        let index_bytes_max = self.cache.limit_bytes() / 3 / devices.len() as u64;
        for device in devices.iter() {
            device.set_index_bytes_max(index_bytes_max);
            device.rebuild();
        }
        let stats = self.cache.statistics();
        let look = [
            stats.evicted,
            stats.entries,
            stats.weight_bytes,
            stats.demand.misses,
        ];
        if *self.cache_devices.idle.lock() == Some(look) {
            return Fed::default();
        }
        let turn = self.cache_devices.next.fetch_add(1, Ordering::Relaxed);
        let usable: Vec<_> = devices.iter().filter(|device| device.is_usable()).collect();
        let Some(device) = turn.checked_rem(usable.len()).and_then(|at| usable.get(at)) else {
            return Fed::default();
        };
        let boost = match stats.evicted {
            0 => limits.write_bytes_boost,
            _ => 0,
        };
        let bytes_max = (limits.write_bytes_max.saturating_add(boost)).min(device.feed_bytes_max());
        let buffers = self.buffers_to_feed(&devices, bytes_max, limits.left_out);
        let bytes = device.feed(&buffers);
        if buffers.is_empty() {
            *self.cache_devices.idle.lock() = Some(look);
        }
        Fed {
            bytes,
            is_busy: bytes > bytes_max / 2,
        }
    }

    /// Candidates of this store that no device has, at most `bytes_max` bytes.
    fn buffers_to_feed(
        &self,
        devices: &[Arc<CacheDevice>],
        bytes_max: u64,
        left_out: UsedOnce,
    ) -> Vec<Buffer> {
        let is_own = |key: &CacheKey| key.is_of_store(self.number());
        let candidates = self.cache.entries.candidates(ENTRIES_MAX, is_own);
        let mut bytes_left = bytes_max;
        let mut buffers = vec![];
        for candidate in candidates {
            let Some(buffer) = buffer_of(&candidate) else {
                continue;
            };
            if left_out.has(&buffer.properties)
                || devices.iter().any(|device| device.contains(&buffer.key))
            {
                continue;
            }
            let Some(left) = bytes_left.checked_sub(buffer.bytes.len() as u64) else {
                break;
            };
            bytes_left = left;
            buffers.push(buffer);
        }
        buffers
    }

    /// Forgets a block that nothing references any more, or whose bytes were changed in place, in the cache and on cache
    /// devices.
    pub fn forget(&self, pointer: &BlockPointer) {
        if pointer.is_hole() || pointer.is_embedded() {
            return;
        }
        let key = self.cache_key(pointer, None);
        let cached = (self.cache.entries).take_each(&key, |other| other.is_same_block(&key));
        self.cache.buffers.recycle(cached);
        if self.cache_devices.is_any.load(Ordering::Acquire) {
            let key = block_key_of(pointer);
            self.cache_devices
                .all()
                .iter()
                .for_each(|device| device.forget(&key));
        }
    }

    /// Whether a cache device seems to have a block. Not counted.
    pub(crate) fn is_on_cache_device(&self, pointer: &BlockPointer) -> bool {
        self.cache_devices.is_any.load(Ordering::Acquire)
            && (self.cache_devices.all().iter())
                .any(|device| device.contains(&block_key_of(pointer)))
    }

    /// The stored bytes of a block from a cache device, with the checksum of the pointer. `None` if there are
    /// none, for whatever reason.
    pub(crate) fn read_cache_device(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
    ) -> Option<Vec<u8>> {
        if !self.cache_devices.is_any.load(Ordering::Acquire)
            || !is_verifiable(pointer)
            // The pool is read until it has a good copy again: the block counts as damaged until then.
            || self.is_damaged(&address)
        {
            return None;
        }
        let checksummer = self.checksummer();
        let mut is_right = |bytes: &[u8]| checksummer.verify(pointer, bytes).is_ok();
        let key = block_key_of(pointer);
        let devices = self.cache_devices.all();
        let device = (devices.iter().find(|device| device.contains(&key)))
            // Some device counts the miss.
            .or_else(|| devices.first())?;
        let bytes = device.read(&key, pointer.psize_bytes(), &mut is_right)?;
        mark::hit("read-from-cache-device");
        Some(bytes)
    }
}

/// Whether wrong bytes of a block would be noticed by its checksum.
fn is_verifiable(pointer: &BlockPointer) -> bool {
    match pointer.checksum_kind() {
        None | Some(ChecksumKind::Off | ChecksumKind::Inherit | ChecksumKind::On) => false,
        Some(kind) => !kind.is_embedded(),
    }
}

fn block_key_of(pointer: &BlockPointer) -> BlockKey {
    BlockKey {
        dva_words: [pointer.words[0], pointer.words[1]],
        birth: pointer.physical_birth(),
    }
}

/// What is copied to a cache device: the bytes that the block has in the pool. `None` if the cache does not have
/// them, or nothing could verify them later.
fn buffer_of(candidate: &Candidate<CacheKey, Cached>) -> Option<Buffer> {
    let (dva_words, properties, birth) = candidate.key.block();
    let mut pointer = BlockPointer::default();
    (pointer.words[0], pointer.words[1], pointer.words[6]) =
        (dva_words[0], dva_words[1], properties);
    let is_plain = pointer.compression() == Some(CompressionKind::Off) && !pointer.has_crypt_bit();
    let bytes = match &candidate.value {
        Cached::Stored(bytes) => Arc::clone(bytes),
        Cached::Content(block) if is_plain => Arc::clone(&block.bytes),
        Cached::Content(_) => return None,
    };
    let is_sound = bytes.len() as u64 == pointer.psize_bytes() && is_verifiable(&pointer);
    is_sound.then_some(Buffer {
        key: BlockKey {
            dva_words,
            birth: Txg(birth),
        },
        properties: EntryProperties {
            logical_bytes: pointer.lsize_bytes(),
            stored_bytes: pointer.psize_bytes(),
            compression: (properties >> 32 & 0x7f) as u8,
            is_prefetched: false,
            is_metadata: candidate.class == Class::Metadata,
            is_protected: pointer.has_crypt_bit(),
            is_frequent: candidate.is_frequent,
        },
        bytes,
    })
}
