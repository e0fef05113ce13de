//! Progress and cancellation of a traversal.

use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Progress of a running traversal. Other threads may read it, and cancel the traversal, at any time.
#[derive(Debug, Default)]
pub struct Progress {
    blocks: AtomicU64,
    allocated_bytes: AtomicU64,
    read_bytes: AtomicU64,
    objects: AtomicU64,
    is_cancelled: AtomicBool,
}

impl Progress {
    /// Counts a visited block. A [`Traversal`](crate::Traversal) that reports to this progress does it itself.
    pub fn add_block(&self, allocated_bytes: u64) {
        self.blocks.fetch_add(1, Ordering::Relaxed);
        self.allocated_bytes
            .fetch_add(allocated_bytes, Ordering::Relaxed);
    }
    /// Counts bytes that were read from devices.
    pub fn add_read(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
    /// Counts a visited object.
    pub fn add_object(&self) {
        self.objects.fetch_add(1, Ordering::Relaxed);
    }
    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Stops the traversal before the next block.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }
    /// Blocks visited so far.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }
    /// Allocated bytes of these blocks, including parity.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes.load(Ordering::Relaxed)
    }
    /// Bytes read from devices so far. Only `verify` counts them.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }
    /// Objects visited so far. Only `check` counts them.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.objects.load(Ordering::Relaxed)
    }
    /// The share done of a pool or dataset that uses `used_bytes`, from 0 to 1.
    #[must_use]
    pub fn fraction(&self, used_bytes: u64) -> f64 {
        if used_bytes == 0 {
            return 1.0;
        }
        (self.allocated_bytes() as f64 / used_bytes as f64).min(1.0)
    }
}
