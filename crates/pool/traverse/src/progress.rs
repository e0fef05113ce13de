//! Progress and cancellation of a traversal.

use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Progress of a running traversal. Other threads may read it, and cancel the traversal, at any time.
#[derive(Debug, Default)]
pub struct Progress {
    blocks: AtomicU64,
    allocated_bytes: AtomicU64,
    is_cancelled: AtomicBool,
}

impl Progress {
    pub(crate) fn add(&self, allocated_bytes: u64) {
        self.blocks.fetch_add(1, Ordering::Relaxed);
        self.allocated_bytes
            .fetch_add(allocated_bytes, Ordering::Relaxed);
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
    /// The share done of a pool or dataset that uses `used_bytes`, from 0 to 1.
    #[must_use]
    pub fn fraction(&self, used_bytes: u64) -> f64 {
        if used_bytes == 0 {
            return 1.0;
        }
        (self.allocated_bytes() as f64 / used_bytes as f64).min(1.0)
    }
}
