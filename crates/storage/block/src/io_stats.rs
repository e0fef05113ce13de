//! How long the leaves take for requests, and how many wait.
//!
//! A request *waits* from the submission of its plan until it is issued to the device. Then it is *with the
//! disk* until it completes. Requests issued to a device at once complete together: each is counted with
//! the time until the last of them is done, as the caller experiences it.

use crate::progress::Progress;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::{Clock, Env};

/// Buckets of times: bucket *n* counts times from 2^n up to 2^(n+1) nanoseconds, the first one also 0, the
/// last one all longer times.
pub const WAIT_BUCKETS: usize = 37;
/// Buckets of sizes: bucket *n* counts sizes from 2^n up to 2^(n+1) bytes, the last one all larger sizes.
pub const SIZE_BUCKETS: usize = 25;
/// An operation that takes at least this long, in nanoseconds, is slow.
pub const SLOW_NS: u64 = 30_000_000_000;

/// The purpose of a request, in the classes of `zpool iostat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IoClass {
    /// A caller waits for the content.
    SyncRead,
    /// Intent logs, labels, uberblocks.
    SyncWrite,
    /// Prefetch.
    AsyncRead,
    /// The blocks of a txg, and repairs of wrong bytes.
    AsyncWrite,
    /// Pool traversals that verify every copy.
    Scrub,
    /// Discards of free space.
    Trim,
    /// Writes of what a device lacks (resilver).
    Rebuild,
}

impl IoClass {
    /// The number of classes.
    pub const COUNT: usize = 7;

    const ALL: [Self; Self::COUNT] = [
        Self::SyncRead,
        Self::SyncWrite,
        Self::AsyncRead,
        Self::AsyncWrite,
        Self::Scrub,
        Self::Trim,
        Self::Rebuild,
    ];

    fn direction(self) -> usize {
        match self {
            IoClass::SyncRead | IoClass::AsyncRead | IoClass::Scrub => 0,
            IoClass::SyncWrite | IoClass::AsyncWrite | IoClass::Trim | IoClass::Rebuild => 1,
        }
    }
}

/// Counts by powers of two.
#[derive(Debug)]
struct Histogram<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const N: usize> Histogram<N> {
    fn add(&self, value: u64) {
        let index = value.checked_ilog2().map_or(0, |log| log as usize);
        if let Some(bucket) = self.0.get(index.min(N - 1)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The buckets up to the last non-empty one.
    fn counts(&self) -> Vec<u64> {
        let counts = self.0.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let mut counts: Vec<u64> = counts.collect();
        let used = counts.iter().rposition(|count| *count > 0);
        counts.truncate(used.map_or(0, |last| last + 1));
        counts
    }
}

/// A histogram of times and their sum.
#[derive(Debug, Default)]
pub(crate) struct Times {
    histogram: Histogram<WAIT_BUCKETS>,
    sum_ns: AtomicU64,
}

impl Times {
    pub(crate) fn add(&self, ns: u64) {
        self.histogram.add(ns);
        if ns > 0 {
            self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        }
    }

    pub(crate) fn stats(&self) -> TimeStats {
        TimeStats {
            counts: self.histogram.counts(),
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
        }
    }
}

/// A copy of counted times.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TimeStats {
    /// Counts by [`WAIT_BUCKETS`], up to the last non-empty bucket.
    pub counts: Vec<u64>,
    /// The sum of the times in nanoseconds.
    pub sum_ns: u64,
}

impl TimeStats {
    fn add(&mut self, other: &Self) {
        let length = self.counts.len().max(other.counts.len());
        self.counts.resize(length, 0);
        for (mine, others) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*others);
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    fn add_zeros(&mut self, count: u64) {
        if count > 0 {
            let sum_ns = 0;
            let counts = vec![count];
            self.add(&Self { counts, sum_ns });
        }
    }
}

/// Times, sizes and queue lengths of a leaf's requests.
#[derive(Debug, Default)]
pub(crate) struct LeafIoStats {
    /// Operations that went to the disk without waiting, as most reads do. They count once here instead of
    /// three times below.
    at_once: [Times; IoClass::COUNT],
    total: [Times; 2],
    disk: [Times; 2],
    queue: [Times; IoClass::COUNT],
    asked: [Histogram<SIZE_BUCKETS>; IoClass::COUNT],
    joined: [Histogram<SIZE_BUCKETS>; IoClass::COUNT],
    pending: [AtomicU64; IoClass::COUNT],
    active: [AtomicU64; IoClass::COUNT],
    slow: AtomicU64,
    progress: Progress,
}

/// A copy of the times and sizes in [`LeafCounters`]. Reads are first, writes second; classes are in the
/// order of [`IoClass`].
///
/// Times are those of operations: adjacent requests written together are one operation. Sizes are those of
/// requests as submitted, and of operations that join several requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IoStats {
    /// From submission to completion.
    pub total: [TimeStats; 2],
    /// With the disk.
    pub disk: [TimeStats; 2],
    /// From submission until the disk gets the request, by class.
    pub queue: [TimeStats; IoClass::COUNT],
    /// Sizes of requests by class, in [`SIZE_BUCKETS`].
    pub asked: [Vec<u64>; IoClass::COUNT],
    /// Sizes of operations that join several requests, by class.
    pub joined: [Vec<u64>; IoClass::COUNT],
    /// Requests waiting now, by class.
    pub pending: [u64; IoClass::COUNT],
    /// Requests with the disk now, by class.
    pub active: [u64; IoClass::COUNT],
    /// Operations that took 30 seconds or longer.
    pub slow: u64,
}

/// When an operation was submitted, issued and completed, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) asked_ns: u64,
    pub(crate) begun_ns: u64,
    pub(crate) ended_ns: u64,
}

impl LeafIoStats {
    pub(crate) fn stats(&self) -> IoStats {
        let sizes = |of: &[Histogram<SIZE_BUCKETS>; IoClass::COUNT]| {
            std::array::from_fn(|class| of[class].counts())
        };
        let now = |of: &[AtomicU64; IoClass::COUNT]| {
            std::array::from_fn(|class| of[class].load(Ordering::Relaxed))
        };
        let mut total = std::array::from_fn(|way| self.total[way].stats());
        let mut disk = std::array::from_fn(|way| self.disk[way].stats());
        let mut queue = std::array::from_fn(|class| self.queue[class].stats());
        for class in IoClass::ALL {
            let at_once = self.at_once[class as usize].stats();
            let way = class.direction();
            total[way].add(&at_once);
            disk[way].add(&at_once);
            let count = at_once.counts.iter().sum();
            queue[class as usize].add_zeros(count);
        }
        IoStats {
            total,
            disk,
            queue,
            asked: sizes(&self.asked),
            joined: sizes(&self.joined),
            pending: now(&self.pending),
            active: now(&self.active),
            slow: self.slow.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn clear_slow(&self) {
        self.slow.store(0, Ordering::Relaxed);
    }

    pub(crate) fn operation(&self, class: IoClass, span: Span) {
        let way = class.direction();
        let total_ns = span.ended_ns.saturating_sub(span.asked_ns);
        let queue_ns = span.begun_ns.saturating_sub(span.asked_ns);
        if queue_ns == 0 {
            self.at_once[class as usize].add(total_ns);
        } else {
            self.total[way].add(total_ns);
            self.disk[way].add(span.ended_ns.saturating_sub(span.begun_ns));
            self.queue[class as usize].add(queue_ns);
        }
        if total_ns >= SLOW_NS {
            self.slow.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a request as submitted.
    pub(crate) fn count_size(&self, class: IoClass, bytes: u64) {
        self.asked[class as usize].add(bytes);
    }

    /// Counts an operation that joins several requests.
    pub(crate) fn count_joined(&self, class: IoClass, bytes: u64) {
        self.joined[class as usize].add(bytes);
    }

    pub(crate) fn queued(&self, class: IoClass, requests: u64) {
        self.pending[class as usize].fetch_add(requests, Ordering::Relaxed);
    }

    pub(crate) fn unqueued(&self, class: IoClass, requests: u64) {
        self.pending[class as usize].fetch_sub(requests, Ordering::Relaxed);
    }

    pub(crate) fn activated(&self, class: IoClass, requests: u64, now_ns: u64) {
        self.active[class as usize].fetch_add(requests, Ordering::Relaxed);
        self.progress.went(requests, now_ns);
    }

    pub(crate) fn done(&self, class: IoClass, requests: u64, now_ns: Option<u64>) {
        self.active[class as usize].fetch_sub(requests, Ordering::Relaxed);
        self.progress.came_back(requests, now_ns);
    }

    /// Requests queued or in flight.
    pub(crate) fn load(&self) -> u64 {
        let all = self.pending.iter().chain(&self.active);
        all.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Whether the device answers.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }
}

/// The clock that measures requests.
#[derive(Clone)]
pub struct IoClock(Arc<dyn Clock>);

impl Default for IoClock {
    /// The real clock.
    fn default() -> Self {
        Self::of(&Env::real())
    }
}

impl std::fmt::Debug for IoClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IoClock").finish_non_exhaustive()
    }
}

impl IoClock {
    /// The clock of an environment.
    #[must_use]
    pub fn of(env: &Env) -> Self {
        Self(Arc::clone(&env.clock))
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.0.monotonic_ns()
    }
}
