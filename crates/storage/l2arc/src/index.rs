//! Where buffers are on a cache device.

use foldhash::quality::RandomState;
use hashbrown::HashMap;
use millpond_ondisk::Txg;
use millpond_ondisk::l2arc::EntryProperties;
use std::collections::BTreeMap;

/// What an entry of the index takes in memory, in both maps and with their free slots, in bytes.
const ENTRY_BYTES: u64 = 144;

/// Identifies a block on cache devices: as in the cache, but without the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockKey {
    /// The first address of the block, as in its pointer.
    pub dva_words: [u64; 2],
    /// Its physical birth.
    pub birth: Txg,
}

/// Where a buffer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BufferLocation {
    /// Byte offset on the device.
    pub(crate) offset_bytes: u64,
    pub(crate) properties: EntryProperties,
}

/// The buffers of a device, by block and by offset.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// The hasher has a random seed, so that keys on a forged device do not collide.
    by_key: HashMap<BlockKey, BufferLocation, RandomState>,
    by_offset: BTreeMap<u64, BlockKey>,
    stored_bytes: u64,
}

impl Index {
    pub(crate) fn get(&self, key: &BlockKey) -> Option<BufferLocation> {
        self.by_key.get(key).copied()
    }
    pub(crate) fn len(&self) -> u64 {
        self.by_offset.len() as u64
    }
    /// Bytes of the blocks as stored.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }
    /// Bytes that the index takes in memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.len().saturating_mul(ENTRY_BYTES)
    }
    /// How many more buffers it may have if it may take this many bytes in memory.
    pub(crate) fn room_within(&self, bytes_max: u64) -> usize {
        let free_bytes = bytes_max.saturating_sub(self.memory_bytes());
        usize::try_from(free_bytes / ENTRY_BYTES).unwrap_or(usize::MAX)
    }

    /// Adds a buffer, in place of what there was for this block or at this offset.
    pub(crate) fn insert(&mut self, key: BlockKey, place: BufferLocation) {
        self.remove(&key);
        if let Some(other) = self.by_offset.insert(place.offset_bytes, key) {
            self.by_key.remove(&other).inspect(|other| {
                self.stored_bytes -= other.properties.stored_bytes;
            });
        }
        self.stored_bytes += place.properties.stored_bytes;
        self.by_key.insert(key, place);
    }

    /// Adds an older buffer, unless there is a newer one for this block or at this offset. Returns whether it
    /// did.
    pub(crate) fn insert_older(&mut self, key: BlockKey, place: BufferLocation) -> bool {
        let is_known =
            self.by_key.contains_key(&key) || self.by_offset.contains_key(&place.offset_bytes);
        if !is_known {
            self.insert(key, place);
        }
        !is_known
    }

    pub(crate) fn remove(&mut self, key: &BlockKey) -> Option<BufferLocation> {
        let place = self.by_key.remove(key)?;
        self.by_offset.remove(&place.offset_bytes);
        self.stored_bytes -= place.properties.stored_bytes;
        Some(place)
    }

    /// Forgets the buffers that begin in a range of the device. Returns their number.
    pub(crate) fn evict(&mut self, range: std::ops::Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let keys: Vec<BlockKey> = self.by_offset.range(range).map(|(_, key)| *key).collect();
        for key in &keys {
            self.remove(key);
        }
        keys.len() as u64
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
