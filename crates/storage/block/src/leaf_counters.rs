//! What is counted and known of one leaf while its pool is open.

use crate::io_stats::{IoStats, LeafIoStats};
use crate::leaf_queue::LeafQueue;
use crate::leaf_requests::LeafRequests;
use crate::leaf_status::{LeafMonitor, LeafStatus};
use crate::request_errors::{RequestError, RequestErrorKind, RequestErrors};
use crate::unflushed::UnflushedWrites;
use millpond_device::DeviceError;
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_ondisk::Txg;

/// Statistics of a leaf since the pool was opened, counted as in `zpool status`.
#[derive(Debug, Default)]
pub struct LeafCounters {
    read_errors: AtomicU64,
    checksum_errors: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    write_errors: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    repaired_bytes: AtomicU64,
    flushes: AtomicU64,
    trims: AtomicU64,
    trim_bytes: AtomicU64,
    trim_errors: AtomicU64,
    waits: LeafIoStats,
    unflushed: UnflushedWrites,
    status: LeafStatus,
    monitor: Arc<LeafMonitor>,
    /// One more than the newest txg that the leaf missed since the pool was opened; 0 if it missed none.
    missed_until: AtomicU64,
    requests: LeafRequests,
    queue: LeafQueue,
    device_bytes: AtomicU64,
    errors: RequestErrors,
    /// Whether the leaf is in no topology any more.
    has_left: AtomicBool,
}

/// A copy of a leaf's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeafStats {
    /// Reads that failed.
    pub read_errors: u64,
    /// Reads that returned wrong bytes.
    pub checksum_errors: u64,
    /// Reads issued.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
    /// Writes issued; adjacent ones that were joined count once.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// The part of `write_bytes` that repaired wrong bytes.
    pub repaired_bytes: u64,
    /// Flushes issued.
    pub flushes: u64,
    /// Discards issued.
    pub trims: u64,
    /// Bytes discarded.
    pub trim_bytes: u64,
    /// Discards that failed. They are no errors of the leaf: its free space stays as it is.
    pub trim_errors: u64,
}

impl LeafCounters {
    /// Counters at zero, whose errors are reported to `monitor`.
    #[must_use]
    pub fn new(monitor: &Arc<LeafMonitor>) -> Self {
        Self {
            monitor: Arc::clone(monitor),
            queue: LeafQueue::new(&monitor.lease),
            ..Self::default()
        }
    }

    /// Whether the leaf is in use.
    #[must_use]
    pub fn status(&self) -> &LeafStatus {
        &self.status
    }

    /// Notes whether the leaf has left the pool. A reader with an older topology repairs nothing on it then: the device may
    /// belong to another pool by now.
    pub(crate) fn set_left(&self, has_left: bool) {
        self.has_left.store(has_left, Ordering::SeqCst);
    }

    /// Asks right before a repair whether the pool may still make it.
    pub(crate) fn check_repair(&self) -> Result<(), DeviceError> {
        self.queue.check_lease()?;
        match self.has_left.load(Ordering::SeqCst) {
            false => Ok(()),
            true => {
                mark::hit("repair-of-departed-leaf-dropped");
                Err(DeviceError::Io {
                    action: "repair",
                    offset_bytes: 0,
                    length_bytes: 0,
                    errno: 0,
                    message: "the device has left the pool".to_owned(),
                })
            }
        }
    }

    pub(crate) fn requests(&self) -> &LeafRequests {
        &self.requests
    }

    /// Which requests may be with the device.
    pub(crate) fn queue(&self) -> &LeafQueue {
        &self.queue
    }

    /// The newest txg that the leaf missed since the pool was opened, known here before any topology knows it.
    pub(crate) fn newest_missed(&self) -> Option<Txg> {
        let until = self.missed_until.load(Ordering::SeqCst);
        until.checked_sub(1).map(Txg)
    }

    pub(crate) fn note_missed(&self, txg: Txg) {
        self.missed_until
            .fetch_max(txg.0.saturating_add(1), Ordering::SeqCst);
    }

    /// Forgets what the leaf missed before `end`, because it was written again.
    pub fn forget_missed(&self, end: Txg) {
        let old = |until: u64| (until <= end.0).then_some(0);
        let (order, missed) = (Ordering::SeqCst, &self.missed_until);
        let _ = missed.fetch_update(order, order, old);
    }

    /// The size of the leaf's device, or of its last one, in bytes; 0 if it never had one.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.device_bytes.load(Ordering::Relaxed)
    }

    /// Adds errors to a counter.
    fn add_errors(&self, counter: &AtomicU64, errors: u64) {
        if errors > 0 {
            counter.fetch_add(errors, Ordering::Relaxed);
            self.monitor.raise();
        }
    }

    /// A copy of the counters.
    #[must_use]
    pub fn stats(&self) -> LeafStats {
        LeafStats {
            read_errors: self.read_errors.load(Ordering::Relaxed),
            checksum_errors: self.checksum_errors.load(Ordering::Relaxed),
            reads: self.reads.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            write_errors: self.write_errors.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            write_bytes: self.write_bytes.load(Ordering::Relaxed),
            repaired_bytes: self.repaired_bytes.load(Ordering::Relaxed),
            flushes: self.flushes.load(Ordering::Relaxed),
            trims: self.trims.load(Ordering::Relaxed),
            trim_bytes: self.trim_bytes.load(Ordering::Relaxed),
            trim_errors: self.trim_errors.load(Ordering::Relaxed),
        }
    }

    /// How long requests took, how large they were, and how many wait now.
    #[must_use]
    pub fn io_stats(&self) -> IoStats {
        self.waits.stats()
    }

    pub(crate) fn waits(&self) -> &LeafIoStats {
        &self.waits
    }

    /// The leaf's writes that no flush covers.
    pub(crate) fn unflushed(&self) -> &UnflushedWrites {
        &self.unflushed
    }

    pub(crate) fn note_size(&self, bytes: u64) {
        self.device_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_read(&self, bytes: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts an error, and keeps it for an event.
    pub(crate) fn count_error(&self, error: RequestError) {
        self.errors.note(error);
        let counter = match error.kind {
            RequestErrorKind::Read => &self.read_errors,
            RequestErrorKind::Write => &self.write_errors,
            RequestErrorKind::Checksum => &self.checksum_errors,
        };
        self.add_errors(counter, 1);
    }

    /// The first errors since the last call.
    #[must_use]
    pub fn take_errors(&self) -> Vec<RequestError> {
        self.errors.take()
    }

    /// Resets the counts of errors and slow operations; the other counters stay.
    pub fn clear_errors(&self) {
        self.waits.clear_slow();
        for errors in [&self.read_errors, &self.write_errors, &self.checksum_errors] {
            errors.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_writes(&self, writes: u64, bytes: u64) {
        self.writes.fetch_add(writes, Ordering::Relaxed);
        self.write_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a write, which failed or not.
    pub(crate) fn count_write(&self, offset_bytes: u64, length_bytes: u64, has_failed: bool) {
        self.count_writes(1, length_bytes);
        if has_failed {
            self.count_error(RequestError {
                kind: RequestErrorKind::Write,
                offset_bytes,
                length_bytes,
                address: None,
            });
        }
    }

    pub(crate) fn count_repair(&self, bytes: u64) {
        self.repaired_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_trim(&self, bytes: u64, errors: u64) {
        self.trims.fetch_add(1, Ordering::Relaxed);
        self.trim_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.trim_errors.fetch_add(errors, Ordering::Relaxed);
    }

    pub(crate) fn count_flush(&self, is_good: bool) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        if !is_good {
            self.count_error(RequestError::of_flush());
        }
    }
}
