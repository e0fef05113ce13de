//! A pool of buffers that evicted blocks leave for the next reads, and for blocks that are encrypted.
//!
//! Each cached read needs a buffer, and the block evicted for it frees one. Returning that memory to the
//! operating system and getting it back costs a page fault and a clearing of each page: for a 128 KiB
//! record more than reading and verifying it. So the pool keeps some buffers.

use crate::block_cache::Cached;
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use std::collections::HashMap;

/// Smaller buffers are left to the program's allocator, which reuses them anyway.
const ROOM_BYTES_MIN: usize = 16 << 10;

/// A buffer for the content of a block.
#[derive(Debug, Default)]
pub struct PooledBuf {
    pub(crate) memory: Vec<u8>,
    /// Whether the buffer held content before, so that its pages are mapped. Reading directly into unmapped
    /// pages is slower than a copy, so reads into fresh memory go through memory that is in use.
    pub(crate) is_used: bool,
}

/// Free buffers by size, at most `bytes_max` bytes in all.
pub(crate) struct BufferPool {
    bytes_max: usize,
    kept: Mutex<Kept, rank::Leaf>,
}

#[derive(Default)]
struct Kept {
    buffers: HashMap<usize, Vec<Vec<u8>>>,
    bytes: usize,
}

impl BufferPool {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            kept: Mutex::default(),
        }
    }

    /// An empty buffer of this capacity, if the pool has one.
    pub(crate) fn take(&self, length_bytes: usize) -> Option<Vec<u8>> {
        if length_bytes < ROOM_BYTES_MIN {
            return None;
        }
        self.kept.lock().take(length_bytes)
    }

    /// An empty buffer of this capacity, from the pool or newly allocated.
    pub(crate) fn buffer(&self, length_bytes: usize) -> PooledBuf {
        match self.take(length_bytes) {
            Some(memory) => PooledBuf {
                memory,
                is_used: true,
            },
            None => PooledBuf {
                memory: Vec::with_capacity(length_bytes),
                is_used: false,
            },
        }
    }

    /// A copy of these bytes, in a buffer from the pool or a new one.
    pub(crate) fn copy(&self, bytes: &[u8]) -> Vec<u8> {
        let mut copy = self.buffer(bytes.len()).memory;
        copy.extend_from_slice(bytes);
        copy
    }

    /// Keeps a buffer whose size is a power of two, as records have, if the limit allows it. Drops buffers
    /// of other sizes to stay below the limit.
    pub(crate) fn give(&self, mut buffer: Vec<u8>) {
        let size = buffer.capacity();
        if size < ROOM_BYTES_MIN || size > self.bytes_max || !size.is_power_of_two() {
            return;
        }
        buffer.clear();
        let mut kept = self.kept.lock();
        while kept.bytes.saturating_add(size) > self.bytes_max {
            let other = kept.buffers.keys().find(|other| **other != size).copied();
            let Some(other) = other else { return };
            drop(kept.take(other));
        }
        kept.bytes += size;
        kept.buffers.entry(size).or_default().push(buffer);
    }

    /// Gives all memory back.
    pub(crate) fn clear(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        drop(kept);
    }

    /// Keeps the buffers of evicted blocks that have no other reference.
    pub(crate) fn recycle(&self, blocks: impl IntoIterator<Item = Cached>) {
        for cached in blocks {
            let bytes = match cached {
                Cached::Content(block) => Arc::into_inner(block).map(|block| block.bytes),
                Cached::Stored(bytes) => Some(bytes),
            };
            if let Some(bytes) = bytes.and_then(Arc::into_inner) {
                self.give(bytes);
            }
        }
    }
}

impl Kept {
    fn take(&mut self, size: usize) -> Option<Vec<u8>> {
        let same = self.buffers.get_mut(&size)?;
        let buffer = same.pop();
        if same.is_empty() {
            self.buffers.remove(&size);
        }
        let buffer = buffer?;
        self.bytes = self.bytes.saturating_sub(size);
        Some(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Block;
    use millpond_ondisk::Endian;

    fn block(bytes: Arc<Vec<u8>>) -> Cached {
        Cached::Content(Arc::new(Block {
            bytes,
            endian: Endian::Little,
            has_ciphertext: false,
        }))
    }

    #[test]
    fn a_taken_buffer_is_empty_and_reuses_the_last_memory() {
        let buffers = BufferPool::new(1 << 20);
        let bytes = vec![7; 1 << 17];
        let at = bytes.as_ptr();
        buffers.recycle([block(Arc::new(bytes))]);
        let buffer = buffers.take(1 << 17).unwrap();
        assert!(buffer.is_empty() && buffer.capacity() == 1 << 17);
        assert_eq!(buffer.as_ptr(), at);
        assert_eq!(buffers.take(1 << 17), None, "there was one");
        let fresh = buffers.buffer(1 << 17);
        assert_eq!((fresh.memory.capacity(), fresh.is_used), (1 << 17, false));
        assert_eq!(buffers.kept.lock().bytes, 0);
    }

    #[test]
    fn a_copy_takes_a_buffer_of_the_pool() {
        let buffers = BufferPool::new(1 << 20);
        let bytes = vec![7; 1 << 17];
        let at = bytes.as_ptr();
        buffers.recycle([block(Arc::new(bytes))]);
        let of = vec![8; 1 << 17];
        let copy = buffers.copy(&of);
        assert_eq!((copy.as_ptr(), &copy), (at, &of));
        assert_eq!(buffers.copy(&of), of, "the pool is empty");
    }

    #[test]
    fn a_block_that_is_still_shared_is_not_recycled() {
        let buffers = BufferPool::new(1 << 20);
        let bytes = Arc::new(vec![7; 1 << 17]);
        buffers.recycle([block(Arc::clone(&bytes))]);
        let shared = block(Arc::new(vec![8; 1 << 17]));
        buffers.recycle([shared.clone()]);
        assert_eq!(buffers.kept.lock().bytes, 0);
        assert_eq!(bytes[0], 7);
        buffers.recycle([shared, Cached::Stored(Arc::new(vec![9; 1 << 15]))]);
        assert_eq!(buffers.kept.lock().bytes, (1 << 17) + (1 << 15));
    }

    #[test]
    fn the_buffer_pool_keeps_at_most_its_limit() {
        let buffers = BufferPool::new(100 << 10);
        for _ in 0..10 {
            for kib in [32, 4, 33, 128] {
                buffers.give(vec![0; kib << 10]);
            }
        }
        assert_eq!(buffers.kept.lock().bytes, 96 << 10);
        assert!((0..3).all(|_| buffers.take(32 << 10).is_some()));
        assert_eq!(buffers.take(32 << 10), None);
        assert_eq!(buffers.kept.lock().bytes, 0);
    }

    #[test]
    fn buffers_of_unused_sizes_are_dropped_first() {
        let buffers = BufferPool::new(128 << 10);
        (0..8).for_each(|_| buffers.give(vec![0; 16 << 10]));
        (0..2).for_each(|_| buffers.give(vec![0; 64 << 10]));
        assert!((0..2).all(|_| buffers.take(64 << 10).is_some()));
        assert_eq!(buffers.take(16 << 10), None);
        assert_eq!(buffers.kept.lock().bytes, 0);
    }
}
